"""SKIP-Iter: questions of two steps, and the bridge between them."""
