"""skipqa bench: the scripts run end to end on toy shapes; without a GPU it says so."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from skipqa.cli.bench import bench
from skipqa.errors import UserError


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_dtype")
def test_the_pathway_runs_on_toy_shapes():
    done = CliRunner().invoke(bench, ["pathway", "--tiny", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    results = json.loads(done.stdout)
    ways = results["summary"]["latency_ms"]
    assert set(ways) >= {"skip fused", "skip read", "skip fused, draft agreed"}
    assert all(m["mean"] > 0 for rates in ways.values() for m in rates.values())
    assert results["summary"]["kv_cache"]["skip fused"]["saved"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
@pytest.mark.parametrize("command", ["kernels", "pathway"])
def test_without_a_gpu_it_says_so(command):
    with pytest.raises(UserError, match="CUDA"):
        CliRunner().invoke(bench, [command], catch_exceptions=False)
