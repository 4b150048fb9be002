"""The paper's claims, its bound and its own numbers, checked against what was measured."""
