"""Bipartite attention as a repository of the Kernel Hub: `python -m tools.kernel_hub OUT`.

Enters: `skipqa/ops/bipartite_attention` as it is. Leaves: a folder in the layout of kernel-builder
(`build.toml`, `torch-ext/`) with a build for each backend (`build/torch-cpu`, `build/torch-cuda`),
which `get_local_kernel(OUT)` of Hugging Face's `kernels` loads and the Hub takes. The kernels are
Triton, and CUDA compiled when first used, so a build is the sources themselves. A kernel may be
loaded from anywhere and in several versions at once: imports become relative, and nothing of skipqa
is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path

from skipqa import __version__

ROOT = Path(__file__).parents[1]
OPERATOR = ROOT / "skipqa" / "ops" / "bipartite_attention"
NAME, VERSION = "bipartite-attention", 1
PACKAGE = NAME.replace("-", "_")
BACKENDS = ("cpu", "cuda")
SOURCES = (".py", ".cu", ".cuh")
_ABSOLUTE = re.compile(r"from skipqa\.(?:ops\.bipartite_attention|(errors))((?:\.\w+)*) import")

BUILD = f"""\
[general]
name = "{NAME}"
version = {VERSION}
license = "MIT"
backends = [{", ".join(f'"{backend}"' for backend in BACKENDS)}]

[torch-noarch]
"""
CARD = f"""\
---
library_name: kernels
license: mit
tags: [kernels, sparse-attention, triton, hopper]
---
# Bipartite sparse attention

Attention from query tokens to packed passages along the edges that survive: a token attends to all
tokens of the passages it has an edge to, and what has no edge is never loaded. From skipqa
{__version__}; Triton on any CUDA device, kernels of its own for Hopper, a gathering path on a CPU,
and `backend="reference"`, a masked dense product to compare with. All are differentiable.

```python
import torch
from kernels import get_kernel

kernel = get_kernel("OWNER/{NAME}", version={VERSION})
q = torch.randn(64, 8, 64)                      # [tokens, heads, width]
k, v = torch.randn(2, 600, 8, 64).unbind()      # six passages of a hundred tokens, packed
edges = kernel.select_edges(torch.rand(64, 6), top=0.1)
out = kernel.bipartite_attention(q, k, v, edges, [100] * 6)   # [64, 8, 64]
```

A token without an edge gets zeros. NOTES.md has every variant that was measured on an H200.
"""


def export(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty")
    package = out / "torch-ext" / PACKAGE
    package.mkdir(parents=True)
    files = [path for path in sorted(OPERATOR.iterdir()) if path.suffix in SOURCES]
    for path in (*files, ROOT / "skipqa" / "errors.py"):
        (package / path.name).write_text(relative(path.read_text()))
    (out / "build.toml").write_text(BUILD)
    (out / "README.md").write_text(CARD)
    shutil.copyfile(ROOT / "LICENSE", out / "LICENSE")
    shutil.copyfile(OPERATOR / "NOTES.md", out / "NOTES.md")
    for backend in BACKENDS:
        variant = out / "build" / f"torch-{backend}"
        shutil.copytree(package, variant)
        known = {
            "id": f"_{PACKAGE}_{backend}_{digest(package)}",
            "name": NAME,
            "version": VERSION,
            "license": "MIT",
            "python-depends": [],
            "backend": {"type": backend},
        }
        (variant / "metadata.json").write_text(json.dumps(known, indent=2) + "\n")


def relative(source: str) -> str:
    """Imports of one flat package; anything else of skipqa is a mistake."""
    written = _ABSOLUTE.sub(lambda m: f"from .{m[1] or ''}{m[2].lstrip('.')} import", source)
    assert not re.search(r"^\s*(?:from|import) skipqa", written, re.MULTILINE), written
    return written


def digest(folder: Path) -> str:
    """Of all files, so that two versions in one process are two modules."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:12]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_hub", description=__doc__)
    parser.add_argument("out", type=Path, help="folder to write, empty or new")
    out: Path = parser.parse_args(arguments).out
    export(out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{NAME} {VERSION} in {out}: {size / 1e3:.0f} kB, for {', '.join(BACKENDS)}")


if __name__ == "__main__":
    main()
