"""Published weights on disk: finding, converting and loading them, and adding trained deltas."""
