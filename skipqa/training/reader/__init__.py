"""The stage `reader`: a larger decoder learns to read as the pocket's does, by LoRA."""
