"""Photos with text composed into them: what is written, what is known about it, what is neither.

`build.py` writes the set; the other files draw things that carry text and word the questions.
"""
