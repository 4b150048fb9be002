"""Training: `stages.py` lists the stages in order, each resumable and determined by its seed.

`stage1/` makes the backbone, `retrieval/` the sparse queries, `pathway/` the components of the
stages (from records of the pipeline), `fast_path.py` the threshold of drafts. Runs on one GPU in
minutes at pocket size, and tiny on a CPU for the tests. Answering imports nothing from here.
"""
