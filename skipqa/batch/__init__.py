"""Many questions from files, answered with Ray Data on one machine or on a cluster.

`sources.py` reads the input, `outputs.py` writes what was answered, `fragments.py` says what is to
do and what is done, `answering.py` is what a worker does with one fragment, `run.py` is the flow.
"""
