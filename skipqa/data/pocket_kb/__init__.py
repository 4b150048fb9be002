"""Pocket-KB, a small benchmark of knowledge questions about pictures (docs/pocket_kb.md).

`build.build` makes it from a data folder and the default corpus; importing this imports nothing.
"""
