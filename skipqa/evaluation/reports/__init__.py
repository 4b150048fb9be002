"""Finished runs of `skipqa eval` as tables, figures and pages of failures."""
