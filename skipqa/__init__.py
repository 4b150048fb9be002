"""skipqa: knowledge questions about images, answered along sparse pathways."""

__version__ = "0.1.0"
