"""QVS over all tokens together, trained on boxes."""
