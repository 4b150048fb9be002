"""Training, one file a part, each resumable and the same for the same seed.

Runs on one GPU in minutes at pocket size, and tiny on a CPU for the tests. Nothing here is
imported to answer a question.
"""
