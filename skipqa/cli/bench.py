"""skipqa bench: the measurements behind the published numbers, on this machine's GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from skipqa.cli.console import Json, out, print_json, working
from skipqa.errors import UserError

bench = typer.Typer(no_args_is_help=True, help="Measure kernels or the 7B pathway on a GPU.")

Out = Annotated[
    Path | None, typer.Option(help="Folder for the results; default benchmarks/results.")
]


@bench.command("kernels")
def kernels(out_folder: Out = None, json: Json = False) -> None:
    """Bipartite attention and the fusion layer against dense attention, forward and backward.

    Checks correctness, times every size, writes JSON and the crossover plot.

    Examples:

      skipqa bench kernels

      skipqa bench kernels --out-folder runs/kernels --json
    """
    _run("kernels", _folder(out_folder), json)


@bench.command("pathway")
def pathway(
    out_folder: Out = None,
    tiny: Annotated[bool, typer.Option(help="Tiny shapes, to try it without a GPU.")] = False,
    json: Json = False,
) -> None:
    """From pixels to the answer at 7B shapes with random weights, dense against SKIP.

    Examples:

      skipqa bench pathway

      skipqa bench pathway --tiny
    """
    arguments = _folder(out_folder)
    if tiny:
        arguments += ["--tiny", "--repeats", "3", "--batches", "1", "2"]
    else:
        _need_gpu()
    _run("pathway", arguments, json, checked=True)


def _run(subject: str, arguments: list[str], json: bool, *, checked: bool = False) -> None:
    if not checked:
        _need_gpu()
    script = _script(subject)
    with working(f"measuring {subject}"):
        results: dict[str, Any] = script.main(arguments)
    if json:
        print_json(results)
    else:
        out.print(script.table(results), highlight=False)


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("this measurement needs a CUDA device, and torch sees none")


def _folder(chosen: Path | None) -> list[str]:
    return [] if chosen is None else ["--out", str(chosen)]


def _script(subject: str) -> ModuleType:
    """Benchmarks are scripts of the repository, not part of the installed package."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{subject}.py"
    if not path.exists():
        raise UserError("skipqa bench runs from a checkout of the repository (benchmarks/)")
    spec = importlib.util.spec_from_file_location(f"benchmarks_{subject}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
