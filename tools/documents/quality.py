"""Blocks about how well the parts work: vision, retrieval, reading, whole systems.

Enters: a results file. Leaves: the Markdown of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skipqa.evaluation.reports.markdown import ABSENT, bounds, percent, table
from skipqa.evaluation.results import Results
from tools.documents.source import source

POINTING = ("points", "kept", "which")
INTERVAL = "95 % bootstrap intervals over photos"


def class_gloss(results: Results) -> str:
    drawn, never_shown = (results["results"][name] for name in ("all", "held-out"))

    def cells(found: Mapping[str, Any], kind: str) -> list[str]:
        hits, asked = found["by_kind"][kind]
        return [str(asked), f"{100 * hits / max(1, asked):.1f} %"]

    def whole(found: Mapping[str, Any]) -> list[str]:
        return [str(found["photos"]), f"**{100 * found['gloss_in_first_4']:.1f} %**"]

    rows = [[kind, *cells(drawn, kind), *cells(never_shown, kind)] for kind in drawn["by_kind"]]
    rows.append(["all", *whole(drawn), *whole(never_shown)])
    found = "own gloss in the first 4"
    header = ["photos of", "all", found, "never trained on", found]
    return table(header, rows) + "\n" + source(results)


def seeing(results: Results) -> str:
    found = results["results"]
    rows = [
        [
            str(row["size"]),
            percent(row["top_1"]),
            percent(row["top_4"]),
            f"{row['confidence']['mean']:.2f}",
        ]
        for row in found["sizes"]
    ]
    header = ["input px", "top-1, %", "top-4, %", "mean top probability"]
    note = f"\n{found['photos']} photos; in brackets {INTERVAL}."
    return table(header, rows) + "\n" + note + source(results)


def rendered_text(results: Results) -> str:
    found, okvqa = results["results"]["rendered"], results["results"]["okvqa"]
    ways = {
        "none": "without OCR",
        "gated": "gated",
        "whole": "whole picture",
        "perfect": "perfect gate",
    }
    rows = [
        [
            f"{name} ({found['questions'][name]:,})",
            *(percent(by_way[way]) for way in ways),
        ]
        for name, by_way in found["accuracy"].items()
    ]
    for name, unit in (("gflops", "GFLOPs of reading"), ("ms", "ms of reading")):
        rows.append([unit, *(f"{found[name][way]:.1f}" for way in ways)])
    rows.append(["GFLOPs in all", *(f"{found['all_gflops'][way]:.1f}" for way in ways)])
    of_whole, opens = found["of_whole"], found["opens"]
    lines = [
        f"\nGated reading has {of_whole['accuracy']:.1%} of the whole picture's accuracy for "
        f"{of_whole['flops']:.1%} of its FLOPs and {of_whole['ms']:.1%} of its time. It opens for "
        f"{opens['where text is needed']:.1%} of the questions that need text and for "
        f"{opens['where it is not']:.1%} of the others."
    ]
    for name, one in okvqa.items():
        less, accuracy = one["gated_less_none"], one["accuracy"]
        lines.append(
            f"OK-VQA, {'questions that need text' if name == 'ocr' else name} "
            f"({one['questions']:,}): {percent(accuracy['none'])} without, "
            f"{percent(accuracy['gated'])} gated, {100 * less['difference']:+.1f} points "
            f"({bounds(less, 100, '+.1f')}); text is read for {one['reads']:.0%}."
        )
    header = ["accuracy, % (questions)", *ways.values()]
    return table(header, rows) + "\n" + "\n".join(lines) + "\n" + source(results)


def saliency_boxes(results: Results) -> str:
    found = results["results"]
    rows = []
    for place, row in enumerate(found["rows"]):
        difference = f"{row['less']['difference']:+.3f} ({bounds(row['less'], 1, '+.3f')})"
        rows.append(
            [
                ", ".join(map(str, row["scales"])),
                f"{row['locality']:g}",
                row["relevance"],
                f"{row['all']['mean']:.3f}",
                f"{row['small']['mean']:.3f}",
                "reference" if place == found["reference"] else difference,
            ]
        )
    header = ["scales, px", "locality", "relevance", "all", "boxes under 10 %", "all, difference"]
    note = (
        f"\n{found['photos']} photos, {found['rows'][0]['small']['count']} with such small boxes; "
        f"chance is {found['chance']:.3f} for all; in brackets {INTERVAL}."
    )
    return table(header, rows) + "\n" + note + source(results)


def grounding(results: Results) -> str:
    found = results["results"]
    rows = [
        [asked_by, name, *(percent(row[m]) if m in row else ABSENT for m in POINTING)]
        for asked_by, of_group in found.items()
        for name, row in of_group.items()
        if asked_by == "all" or name in ("rule", "grounding")
    ]
    header = ["asked by", "saliency", "points at it, %", "of it kept, %", "above its rivals, %"]
    note = (
        f"\n{found['all']['rule']['questions']} crowded questions of Pocket-KB val; in brackets "
        f"95 % bootstrap intervals over questions. The last column has the questions whose thing "
        f"is not the only one of its kind."
    )
    return table(header, rows) + "\n" + note + source(results)


def reading(results: Results) -> str:
    found = results["results"]
    rows = [
        [f"the gloss, {row['prompt']}", str(row["free"]), str(row["quoting"])]
        for row in found["given_gloss"]
    ]
    rows.append(["a photo, the whole system", "", str(found["given_photo"])])
    asked = len(found["questions"])
    note = (
        f"\nOf the {asked - found['given_photo']} wrong answers about photos, "
        f"{found['wrong_without_gloss']} had lost the gloss before it could be read."
    )
    header = [f"given, right of {asked}", "free", "quoting"]
    return table(header, rows) + "\n" + note + source(results)


def verifying(results: Results) -> str:
    found = results["results"]
    rows = [
        [
            row["weight"] if isinstance(row["weight"], str) else f"{row['weight']:g}",
            percent(row["first"]),
            percent(row["in_two"]),
        ]
        for row in found["weights"]
    ]
    note = (
        f"\nOver the {found['gloss_among_candidates']} of {found['photos']} photos whose gloss was "
        f"among the {found['candidates']} candidates; in brackets {INTERVAL}."
    )
    header = ["weight", "own gloss first, %", "in the first two, %"]
    return table(header, rows) + "\n" + note + source(results)


def systems(title: str, results: Results) -> str:
    """Of `benchmarks/run_summaries.py`; a column that nothing stands in is left out."""
    systems = results["results"]["systems"]
    rows = []
    for name, found in systems.items():
        latency, peak = found["latency_ms"], found["peak_memory_bytes"]
        recall = found["recall@4"]
        rows.append(
            [
                name,
                percent(found["accuracy"]),
                percent(recall) if recall and recall["count"] else ABSENT,
                f"{found['fast_path_rate']:.0%}",
                f"{found['tokens_mean']:.0f}",
                f"{found['passages_mean']:.1f}",
                f"{found['flops_mean'] / 1e9:,.0f}",
                f"{latency['p50']:,.0f} / {latency['p95']:,.0f}" if latency else ABSENT,
                f"{peak / 1e9:.2f}" if peak else ABSENT,
            ]
        )
    header = [title, "accuracy, %", "recall@4, %", "drafted", "V'", "K'", "GFLOPs"]
    header += ["p50 / p95, ms", "peak GB"]
    columns = [i for i in range(len(header)) if any(row[i] != ABSENT for row in rows)]
    rows = [[row[i] for i in columns] for row in rows]
    count = next(iter(systems.values()))["num_questions"]
    note = f"\n\n{count:,} questions, in brackets 95 % bootstrap intervals over questions."
    if (timed := results["results"].get("timed")) is not None:
        note += f" Times and memory are of {timed['num_questions']:,} of them:\n" + source(timed)
        note += "\n\nAll else:"
    return table([header[i] for i in columns], rows) + note + "\n" + source(results)


def multihop(results: Results) -> str:
    found = results["results"]
    rows = []
    for way, one in found["multihop"].items():
        more = one.get("more than one round")
        rows.append(
            [
                way,
                percent(one["accuracy"]),
                f"{100 * more['difference']:+.1f} ({bounds(more, 100, '+.1f')})"
                if more
                else ABSENT,
                f"{one['flops'] / 1e9:.1f}",
                f"{one['cost of one round']:.2f}" if more else ABSENT,
                f"{100 * one['hop2']:.0f} %" if "hop2" in one else ABSENT,
                f"{100 * one['right']:.0f} %" if one.get("right") else ABSENT,
            ]
        )
    header = ["", "accuracy, %", "more than one round", "GFLOPs", "of one round"]
    header += ["second passage found", "bridge right"]
    count = found["multihop"]["one round"]["questions"]
    note = f"\n\n{count} questions of two steps, in brackets 95 % bootstrap intervals."
    again, all_of = found["asked_again"], found["cost_of_asking_again"]
    note += (
        f" As needed asks {100 * again['multihop']:.1f} % of these again and "
        f"{100 * again['others']:.1f} % of all others. Over all questions, "
        f"{100 * found['fraction_multihop']:.1f} % of which have two steps, it costs "
        f"{all_of:.3f} of one round."
    )
    return table(header, rows) + note + "\n" + source(results)
