"""skipqa theory: what the paper's bound asks for, and how results compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import err, out, print_json


def theory(
    V: Annotated[int, typer.Option("--V", help="Visual tokens.")] = 576,
    K: Annotated[int, typer.Option("--K", help="Passages.")] = 16,
    epsilon: Annotated[float, typer.Option("--eps", help="Information that may be lost.")] = 0.05,
    lipschitz: Annotated[float, typer.Option("--L", help="Lipschitz constant.")] = 1.0,
    eta: Annotated[float, typer.Option("--eta", help="Largest saliency error.")] = 0.01,
    C: Annotated[
        float | None, typer.Option("--C", help="The bound's constant, instead of L and eta.")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(help="Results of a sweep over kept tokens (JSON); may be repeated."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted against measured into FILE.svg.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The sparsity bound's V' and K', its likely range, and measured sweeps beside it.

    Examples:

      skipqa theory

      skipqa theory --V 2880 --eps 0.02 --eta 0.018

      skipqa theory --measured benchmarks/results/sweep.json --plot bound.svg
    """
    from dataclasses import asdict

    from skipqa.theory.bound import NOTES, constant, passages_needed, read_sweeps, tokens_needed

    used = constant(lipschitz, eta) if C is None else C
    tokens, passages = tokens_needed(V, epsilon, used), passages_needed(K, epsilon)
    sweeps = [sweep for path in measured or () for sweep in read_sweeps(path)]
    compared = [
        (sweep.available, tokens_needed(sweep.available, epsilon, used), sweep.needed(epsilon))
        for sweep in sweeps
    ]
    if plot is not None:
        from skipqa.theory.plot import draw

        plot.write_text(draw(sweeps, epsilon, used))
        err.print(f"drawn into {plot}")
    if json:
        print_json(
            {
                "tokens": {"available": V, **asdict(tokens)},
                "passages": {"available": K, **asdict(passages)},
                "epsilon": epsilon,
                "compared": [
                    {
                        "available": available,
                        "predicted": bound.count,
                        "likely": bound.likely,
                        "measured": needed,
                    }
                    for available, bound, needed in compared
                ],
                "notes": NOTES,
            }
        )
        return
    from rich.table import Table

    table = Table(
        "", "available", "bound", "likely range", "C", title=f"To lose at most {epsilon:g}"
    )
    for name, available, bound in (("V'", V, tokens), ("K'", K, passages)):
        asked = f"{bound.count}" + (" (everything: vacuous)" if bound.vacuous else "")
        low, high = bound.likely
        table.add_row(name, f"{available}", asked, f"{low}–{high}", f"{bound.constant:.3f}")
    out.print(table)
    if compared:
        table = Table("V", "predicted V'", "likely range", "measured V'")
        for available, bound, needed in compared:
            low, high = bound.likely
            table.add_row(f"{available}", f"{bound.count}", f"{low}–{high}", f"{needed}")
        out.print(table)
    for note in NOTES:
        out.print(f"• {note}", style="dim")
