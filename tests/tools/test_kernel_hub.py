"""The exported kernel: loads without skipqa, from anywhere, twice in one process."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.kernel_hub import BACKENDS, NAME, PACKAGE, export, relative

# As `kernels` imports a build: by its file, under a name of its own.
LOADED = """
import importlib.util, json, sys

class NoSkipqa:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "skipqa", "a kernel may not know skipqa"

sys.meta_path.insert(0, NoSkipqa())

def load(variant):
    name = json.load(open(f"{variant}/metadata.json"))["id"]
    spec = importlib.util.spec_from_file_location(name, f"{variant}/__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

import torch

torch.manual_seed(2026)
q, (k, v) = torch.randn(6, 2, 8), torch.randn(2, 9, 2, 8).unbind()
outs = []
for variant in sys.argv[1:]:
    kernel = load(variant)
    edges = kernel.select_edges(torch.arange(18.0).view(6, 3), top=0.5)
    sparse = kernel.bipartite_attention(q, k, v, edges, [4, 2, 3])
    dense = kernel.bipartite_attention(q, k, v, edges, [4, 2, 3], backend="reference")
    torch.testing.assert_close(sparse, dense)
    assert sparse[:3].abs().sum() == 0 and sparse[3:].abs().sum() > 0
    outs.append(kernel)
assert len({id(one) for one in outs}) == len(outs), "two builds are two modules"
print("ok")
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / NAME
    export(folder)
    return folder


def test_layout(repository: Path) -> None:
    described = tomllib.loads((repository / "build.toml").read_text())
    assert described["general"]["name"] == NAME
    assert described["general"]["backends"] == list(BACKENDS)
    assert (repository / "torch-ext" / PACKAGE / "reference.py").is_file()
    for backend in BACKENDS:
        known = json.loads(
            (repository / "build" / f"torch-{backend}" / "metadata.json").read_text()
        )
        assert known["backend"] == {"type": backend}
        assert known["name"] == NAME
    card = (repository / "README.md").read_text()
    assert "library_name: kernels" in card


def test_it_loads_where_skipqa_is_not(repository: Path) -> None:
    variants = [str(repository / "build" / f"torch-{backend}") for backend in BACKENDS]
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOADED, *variants], capture_output=True, text=True
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_the_hubs_own_loader_takes_it(repository: Path) -> None:
    kernels = pytest.importorskip("kernels", reason="an optional client of the Kernel Hub")
    loaded = kernels.get_local_kernel(repository)
    assert loaded.select_edges is not None


def test_an_export_never_overwrites(repository: Path) -> None:
    with pytest.raises(SystemExit, match="not empty"):
        export(repository)


def test_only_the_operator_may_be_imported() -> None:
    assert relative("from skipqa.errors import UserError") == "from .errors import UserError"
    assert relative("from skipqa.ops.bipartite_attention import gather") == "from . import gather"
    inner = "    from skipqa.ops.bipartite_attention.forward import LOG2E"
    assert relative(inner) == "    from .forward import LOG2E"
    with pytest.raises(AssertionError):
        relative("from skipqa.nn.fusion import Fusion")
