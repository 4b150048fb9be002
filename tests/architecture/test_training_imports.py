"""Training runs where only torch, numpy, Pillow, tokenizers and safetensors are installed."""

from __future__ import annotations

import subprocess
import sys

ABSENT = "typer rich platformdirs gguf transformers matplotlib numba faiss ray pymilvus".split()
CODE = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # as if it were not installed
import skipqa.training.__main__
"""


def test_training_imports_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *ABSENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
