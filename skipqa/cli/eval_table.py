"""The summaries of a run as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skipqa.cli.console import out


def show(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """One system with its categories and subsets, or several below each other."""
    from rich import box
    from rich.table import Column, Table

    if len(summaries) == 1:
        ((system, summary),) = summaries.items()
        table = Table("", system)
        for label, value in (_figures(summary) | _parts(summary)).items():
            table.add_row(label, value)
    else:
        figures = {system: _figures(summary) for system, summary in summaries.items()}
        named = dict.fromkeys(name for row in figures.values() for name in row)
        columns = [name for name in named if name not in ("asked", "edges")]  # a narrow screen
        first = Column("", min_width=max(map(len, figures)))
        table = Table(first, *columns, box=box.SIMPLE, padding=0, collapse_padding=True)
        for system, row in figures.items():
            table.add_row(system, *(row.get(name, "") for name in columns))
    out.print(table)


def show_by_type(header: list[str], rows: list[list[str]]) -> None:
    """A line under each type."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, title="By type", title_justify="left", box=box.SIMPLE, padding=(0, 1))
    for number, row in enumerate(rows):
        if number and row[0]:
            table.add_section()
        table.add_row(*map(Text, row))  # a type may have any name, brackets too
    out.print(table)


def _figures(summary: Mapping[str, Any]) -> dict[str, str]:
    def percent(interval: Mapping[str, Any]) -> str:
        low, high = 100 * interval["low"], 100 * interval["high"]
        return f"{100 * interval['mean']:.1f} ({low:.1f} to {high:.1f})"

    rows = {"asked": f"{summary['num_questions']:,}"}
    rows |= {f"official {name}": f"{value:.2f}" for name, value in _official(summary).items()}
    for label, name in (
        ("accuracy %", "accuracy"),
        ("recall@4 %", "recall@4"),
        ("recall of kept %", "recall_kept"),
    ):
        if (interval := summary[name]) is not None:
            rows[label] = percent(interval)
    rows |= {
        "fast %": f"{100 * summary['fast_path_rate']:.1f}",
        "V'": f"{summary['tokens_mean']:.1f}",
        "K'": f"{summary['passages_mean']:.1f}",
        "edges": f"{summary['edges_mean']:,.0f}",
        "GFLOPs": f"{summary['flops_mean'] / 1e9:.1f}",
    }
    if (latency := summary["latency_ms"]) is not None:
        rows |= {f"{name} ms": f"{ms:.0f}" for name, ms in latency.items()}
    if (peak := summary["peak_memory_bytes"]) is not None:
        rows["peak GB"] = f"{peak / 1e9:.2f}"
    return rows


def _official(summary: Mapping[str, Any]) -> dict[str, float]:
    """The overall scores of the official report, in percent."""
    scores = summary.get("official", {}).get("scores", {})
    return {name: value for name, value in scores.items() if not isinstance(value, Mapping)}


def _parts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Accuracy and recall by category and subset."""
    kinds = (("accuracy", "category"), ("accuracy", "subset"), ("recall", "subset"))
    return {
        f"{of} %, {by} {name}": f"{100 * interval['mean']:.1f} of {interval['count']:,}"
        for of, by in kinds
        for name, interval in summary[f"{of}_by_{by}"].items()
    }
