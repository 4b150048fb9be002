"""Question-guided visual token pruning for the vision-language models of transformers.

    handle = skipqa.prune(model, keep=0.11)
    ...                                        # model.generate(**inputs), as before
    handle.undo()

`saliency.py` scores the visual tokens of an image, `selection.py` turns scores into the shorter
prompt, `handle.py` puts both into a model; a model family is a file of its own.
"""

from __future__ import annotations

from skipqa.plugin.handle import Handle, prune
from skipqa.plugin.selection import Kept, KeptImage

__all__ = ["Handle", "Kept", "KeptImage", "prune"]
