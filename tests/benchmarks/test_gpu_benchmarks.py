"""Benchmarks for a GPU: the pathway runs end to end on toy shapes; without a GPU they say so."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Under a name that no other module has: `kernels` is also a library that is tested with."""
    monkeypatch.syspath_prepend(BENCHMARKS)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"of {name}.py", BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_dtype")
def test_the_pathway_runs_on_toy_shapes(script: Script) -> None:
    pathway = script("pathway")
    results = pathway.main(["--tiny", "--repeats", "3", "--batches", "1", "2"])
    latencies = results["summary"]["latency_ms"]
    assert set(latencies) >= {"skip fused", "skip read", "skip fused, draft agreed"}
    assert all(m["mean"] > 0 for rates in latencies.values() for m in rates.values())
    assert results["summary"]["kv_cache"]["skip fused"]["saved"] > 0
    assert "KV cache" in pathway.table(results)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
@pytest.mark.parametrize("name", ["kernels", "pathway"])
def test_without_a_gpu_it_says_so(script: Script, name: str, tmp_path: Path) -> None:
    if name == "kernels":
        pytest.importorskip("triton")
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        script(name).main(["--out", str(tmp_path)])
