"""Result folders of `skipqa eval` as tables, figures, verdicts and failure sheets."""
