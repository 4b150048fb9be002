"""Blocks about what training adds: stage I, verifier, fast path, retrieval.

Enters: a results file. Leaves: the Markdown of a block.
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

from skipqa.evaluation.reports.markdown import ABSENT, bounds, percent, table
from skipqa.evaluation.results import Results
from tools.documents.source import source

STAGE1_SETS = {
    "okvqa/val": "OK-VQA val",
    "vqav2/val": "VQAv2 val",
    "pocket-kb/val": "Pocket-KB val, the gold passage shown for four in five",
}
# What a query is made of, by its name in the results
QUERIES = {"low_res": "low-resolution image", "picture": "high-resolution image"}
# Questions with the entity's name given, by their place in the results and their group there
NAMED = {
    "Pocket-KB val": ("named", "all"),
    "flags": ("named", "country"),
    "entity and relation new": ("named", "new"),
    "Pocket-KB val in unseen words": ("unseen_words", "all"),
    "flags in unseen words": ("unseen_words", "country"),
    "fields of the Factbook in unseen words": ("unseen_words_of_fields", "all"),
}


def stage1(results: Results) -> str:
    found = results["results"]
    seeds = found["seeds"].values()

    def over_seeds(*path: str) -> str:
        values = [100 * functools.reduce(lambda at, key: at[key], path, one) for one in seeds]
        return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    rows = [
        [
            title,
            over_seeds("reader", "shipped", "blind", name),
            over_seeds("reader", "shipped", "unread", name),
            over_seeds("drafter", "shipped", name),
            over_seeds("reader", "shipped", "few", name),
            over_seeds("reader", "joint", name, "accuracy"),
        ]
        for name, title in STAGE1_SETS.items()
    ]
    header = ["soft accuracy, %", "question", "and image", "drafter", "reader", "both together"]
    first = next(iter(seeds))["reader"]["fast_path"]
    routed = "; ".join(
        f"{title.partition(',')[0]} {100 * first[name]['rate']:.0f} % drafted, "
        f"{100 * first[name]['full']:.1f} -> {100 * first[name]['accuracy']:.1f}"
        for name, title in STAGE1_SETS.items()
    )
    note = (
        f"\n\n{found['examples']:,} questions about {found['photos']:,} photos; the mean of "
        f"{len(seeds)} seeds, in brackets the smallest and the largest. In the first two columns "
        f"the reader has no facts; elsewhere it has glosses of what was recognised and passages of "
        f"Pocket-KB, not search results. At this stage's own threshold for the drafter, "
        f"{first['threshold']:.2f} (the first seed): {routed}.\n\n"
    )
    return (
        table(header, rows) + note + " ".join(results.get("remarks", [])) + "\n" + source(results)
    )


def verifier(results: Results) -> str:
    """All passages, then those of questions of each data set and those of each index."""
    found = results["results"]

    def row(name: str, passages: int, measured: dict[str, float]) -> list[str]:
        numbers = (f"{measured[key]:.3f}" for key in ("f1", "precision", "recall"))
        return [name, f"{passages:,}", *numbers]

    rows = []
    for split in ("held-out", "val"):
        if (own := found[split]) is None:
            continue
        rows += [
            row(f"{split}, {how.replace('_', '-')}", own["passages"], own[how])
            for how in ("trained", "training_free")
        ]
        for by, told in (("by_source", "questions of"), ("by_corpus", "passages of")):
            rows += [
                row(f"{split}, {told} {name}", part["passages"], part["trained"])
                for name, part in own.get(by, {}).items()
                if part["passages"]
            ]
    return (
        table(["verifier", "passages", "F1", "precision", "recall"], rows) + "\n" + source(results)
    )


OVER_FIXED = (
    *("questions of", "number", "looked up, %", "GFLOPs", "score, %"),
    *("best fixed budget, %", "points"),
)


def budget(results: Results) -> str:
    """The controller next to the best fixed budget, or mixture of two, at as many FLOPs."""
    found = results["results"]
    rows = [
        _over_fixed(f"{split}, {name}", own)
        for split in ("held-out", "val")
        if split in found
        for name, own in {"all": found[split], **found[split]["by_source"]}.items()
    ]
    return table(OVER_FIXED, rows) + "\n" + source(results)


def adaptive_budget(results: Results) -> str:
    """The same of the budget that ships; what is drafted is not looked up, either."""
    found = results["results"]
    rows = [
        _over_fixed(name, own | {"no_retrieval": own["no_retrieval"] + own["drafted"]})
        for name, own in found.items()
        if isinstance(own, dict)
    ]
    return table(OVER_FIXED, rows) + "\n" + source(results)


def _over_fixed(name: str, own: dict[str, Any]) -> list[str]:
    gain = own["gain"]
    return [
        name,
        f"{own['questions']:,}",
        f"{100 * (1 - own['no_retrieval']):.0f}",
        f"{own['adaptive']['giga_flops']:.1f}",
        f"{100 * own['adaptive']['score']:.1f}",
        f"{100 * own['fixed_at_equal_flops']:.1f}",
        f"{100 * gain['mean']:+.1f} ({bounds(gain, 100, '+.1f')})",
    ]


def small_things(results: Results) -> str:
    found = results["results"]
    small, others = found["small"], found["others"]

    def gained(query: str) -> str:
        if query not in small["skip_less"]:
            return ABSENT
        gain = small["skip_less"][query]
        return f"{100 * gain['difference']:+.1f} ({bounds(gain, 100, '+.1f')})"

    rows = [
        [
            QUERIES.get(query, query),
            percent(recall),
            gained(query),
            percent(others["recall"][query]),
        ]
        for query, recall in small["recall"].items()
    ]
    header = [
        f"Recall@{found['recall_at']} by what the query is made of, %",
        f"small things ({small['questions']:,})",
        "SKIP gains, points",
        f"others ({others['questions']:,})",
    ]
    return table(header, rows) + "\n" + source(results)


def confidence(results: Results) -> str:
    """By route and source, the mean confidence next to the mean score."""
    routes = {"drafted": "drafted", "looked_up": "looked up"}
    titles = {"all": "all", "okvqa": "OK-VQA", "vqav2": "VQAv2", "pocket-kb": "Pocket-KB"}
    found = results["results"]
    rows = [
        [title, shown, f"{part['questions']:,}"]
        + [f"{100 * part[key]:.1f}" for key in ("confidence", "score", "ece")]
        for name, title in titles.items()
        for route, shown in routes.items()
        if "ece" in (part := found[name][route])
    ]
    header = ["val", "route", "questions", "confidence, %", "score, %", "calibration error, %"]
    return table(header, rows) + "\n" + source(results)


def fast_path(results: Results) -> str:
    found = results["results"]
    shipped = found["shipped"]["all"]
    by_threshold = sorted((shipped, *found["by_threshold"]), key=lambda row: row["threshold"])
    rows = [
        [
            f"**{row['threshold']:.2f}**" if row is shipped else f"{row['threshold']:.2f}",
            f"{100 * row['rate']:.1f}",
            f"{100 * row['full']:.1f}",
            f"{100 * row['accuracy']:.1f}",
            f"{100 * row['gain']['difference']:+.1f} ({bounds(row['gain'], 100, '+.1f')})",
        ]
        for row in by_threshold
    ]
    header = ["drafts above", "drafted, %", "accuracy without, %", "with, %", "points"]
    counts = ", ".join(
        f"{row['questions']:,} questions of {name}"
        for name, row in found["shipped"].items()
        if name != "all"
    )
    note = f"\n\n{counts}; in bold what ships.\n"
    return table(header, rows) + note + source(results)


def sparse_encoder(results: Results) -> str:
    found = results["results"]
    rows = [
        [f"{title} ({encoders['lexical']['name_as_terms'][group]['count']:,})"]
        + [percent(encoder["name_as_terms"][group]) for encoder in encoders.values()]
        for title, (what, group) in NAMED.items()
        for encoders in [found[what]]
    ]
    blocks = [table(["Recall@4, name given, %", *found["named"]], rows)]
    for what in ("pipeline", "pipeline_unseen_words"):
        if what in found:
            groups = next(iter(found[what].values()))["pipeline"]
            lines = [
                [name, *(percent(group) for group in variant["pipeline"].values())]
                for name, variant in found[what].items()
            ]
            blocks.append(table([f"Recall@4, {what.replace('_', ' ')}, %", *groups], lines))
    note = "\nIn brackets 95 % bootstrap intervals over questions."
    return "\n\n".join(blocks) + "\n" + note + source(results)
