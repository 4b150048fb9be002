"""skipqa costs: what a question costs, part by part, dense and SKIP, counted without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipqa.cli.console import Json, Preset, out, print_json, working

if TYPE_CHECKING:
    from skipqa.costs.systems import Load


def costs(
    preset: Preset = "submission-7b",
    system: Annotated[str, typer.Option(help="dense, skip or both.")] = "both",
    V: Annotated[int | None, typer.Option("--V", help="Visual tokens.")] = None,
    V_kept: Annotated[int | None, typer.Option("--V-kept", help="Visual tokens kept (V').")] = None,
    T: Annotated[int | None, typer.Option("--T", help="Question tokens.")] = None,
    K: Annotated[int | None, typer.Option("--K", help="Passages found.")] = None,
    K_kept: Annotated[int | None, typer.Option("--K-kept", help="Passages kept (K').")] = None,
    K_read: Annotated[
        int | None,
        typer.Option("--K-read", help="Passages in the prompt; 0 for fused tokens only."),
    ] = None,
    L_c: Annotated[int | None, typer.Option("--L_c", help="Tokens per passage.")] = None,
    R: Annotated[int | None, typer.Option("--R", help="Regions.")] = None,
    L_a: Annotated[int | None, typer.Option("--L_a", help="Tokens in the answer.")] = None,
    draft_rate: Annotated[
        float | None, typer.Option(help="Fraction of questions answered by the drafter.")
    ] = None,
    json: Json = False,
) -> None:
    """FLOPs of every part, counted by running it on torch's meta device and by formula.

    Examples:

      skipqa costs --preset submission-7b

      skipqa costs --preset ablation-13b --V-kept 230 --K-kept 14

      skipqa costs --preset pocket --system skip --json
    """
    from skipqa.costs.presets import architecture
    from skipqa.costs.systems import changed
    from skipqa.errors import UserError, choices

    systems = ("dense", "skip", "both")
    if system not in systems:
        raise UserError(f"no system {system!r}; there is {choices(system, systems)}")
    shapes = architecture(preset)
    asked = {
        "V": V,
        "V_kept": V_kept,
        "T": T,
        "K": K,
        "K_kept": K_kept,
        "K_read": K_read,
        "L_c": L_c,
        "R": R,
        "L_a": L_a,
        "draft_rate": draft_rate,
    }
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    load = changed(shapes.load, changes)
    with working("counting"):
        report = _count(preset, load, ("dense", "skip") if system == "both" else (system,))
    if json:
        print_json(report)
    else:
        show(report)


def _count(preset: str, load: Load, systems: tuple[str, ...]) -> dict[str, Any]:
    from dataclasses import asdict

    from skipqa.claims.paper import TOTALS, doubts
    from skipqa.costs.presets import architecture
    from skipqa.costs.systems import (
        decoder_peak_bytes,
        expected_flops,
        kv_cache_bytes,
        parts,
        prompt_tokens,
    )

    shapes = architecture(preset)
    both = {name: parts(shapes, load, name) for name in ("dense", "skip")}
    report: dict[str, Any] = {"preset": preset, "load": asdict(load), "systems": {}}
    for name in systems:
        found = both[name]
        prompt = prompt_tokens(shapes, load, name)  # type: ignore[arg-type]
        counted = {part.name: part.counted_flops() for part in found}
        report["systems"][name] = {
            "parts": [
                {"name": p.name, "counted_flops": counted[p.name], "formula_flops": p.flops}
                for p in found
            ],
            "flops": sum(counted.values()),
            "expected_flops": expected_flops(found, load.draft_rate if name == "skip" else 0.0),
            "prompt_tokens": prompt,
            "kv_cache_bytes": kv_cache_bytes(shapes.decoder, prompt + load.L_a),
            "activation_peak_bytes": decoder_peak_bytes(shapes, load, name),  # type: ignore[arg-type]
        }
    report["paper_gflops"] = dict(zip(("dense", "skip"), TOTALS.get(preset, ()), strict=False))
    report["doubts"] = doubts(preset, shapes, load, both["dense"], both["skip"])
    return report


def show(report: dict[str, Any]) -> None:
    """The report as a table, and where the paper's figures contradict it."""
    from rich.table import Table

    systems = report["systems"]
    letters = ", ".join(f"{k} {v}" for k, v in report["load"].items())
    table = Table(title=f"{report['preset']}, GFLOPs per question", caption=letters)
    table.add_column("part")
    for name in systems:
        table.add_column(name, justify="right")
    if len(systems) == 2:
        table.add_column("ratio", justify="right")
    rows = {n: {p["name"]: p["counted_flops"] for p in s["parts"]} for n, s in systems.items()}
    # The union in pipeline order: SKIP's parts include all of the dense system's.
    for part in max(rows.values(), key=len):
        _row(table, part, [rows[n].get(part) for n in systems], 1e9)
    table.add_section()
    _row(table, "total", [s["flops"] for s in systems.values()], 1e9)
    _row(table, "mean over routes", [s["expected_flops"] for s in systems.values()], 1e9)
    if report["paper_gflops"]:
        claimed = [report["paper_gflops"][n] * 1e9 for n in systems]
        _row(table, "the paper's total", claimed, 1e9)
    table.add_section()
    _row(table, "prompt tokens", [s["prompt_tokens"] for s in systems.values()], 1, digits=0)
    _row(table, "KV cache, GB", [s["kv_cache_bytes"] for s in systems.values()], 1e9)
    _row(table, "activation peak, GB", [s["activation_peak_bytes"] for s in systems.values()], 1e9)
    out.print(table)
    if report["doubts"]:
        out.print("Where the paper's figures cannot be right:")
        for doubt in report["doubts"]:
            out.print(f"• {doubt}", highlight=False)


def _row(table: Any, name: str, values: list[float | None], unit: float, digits: int = 3) -> None:
    cells = ["–" if value is None else f"{value / unit:,.{digits}f}" for value in values]
    if len(values) == 2:
        dense, skip = values
        cells.append("" if not dense or not skip else f"{dense / skip:.2f}x")
    table.add_row(name, *cells)
