"""The official scores of five benchmarks, one module each, from plain Python values.

Every module offers the score of one answer and `evaluate`, the official aggregate over a
data set. `from_files` reads the official files and is what `skipqa score` calls.
"""
