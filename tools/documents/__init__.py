"""Measured numbers in the repository's documents, written by a program and never by hand.

    python -m tools.documents            fill every document
    python -m tools.documents --check    write nothing, fail if any is out of date

Not part of the installed package: only the repository's own documents have such blocks.
"""
