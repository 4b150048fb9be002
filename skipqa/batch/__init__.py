"""Many questions from files, answered with Ray Data on one machine or on a cluster.

`fragments.py` says what is to do and what is done, `answering.py` is what a worker does with one
fragment, `run.py` is the flow between them.
"""
