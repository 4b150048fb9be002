"""Blocks about systems next to each other: retrievers, gates, corpora, sources beyond them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skipqa.evaluation.reports.markdown import ABSENT, bounds, percent, points, table
from skipqa.evaluation.results import Results
from skipqa.evaluation.statistics import Comparison
from tools.documents.source import source

INTERVALS = "In brackets 95 % bootstrap intervals over questions"
GATED = {"okvqa": "OK-VQA val", "vqav2": "VQAv2 val", "all": "both"}


def retrievers(results: Results) -> str:
    found = results["results"]
    rows = [
        [
            name,
            percent(row["recall"]),
            _less(row, "recall_less_skip"),
            percent(row["score"]),
            _less(row, "score_less_skip"),
            f"{row['retrieval_gflops']:.1f}",
        ]
        for name, row in found["systems"].items()
    ]
    recall = f"recall@{found['recall_at']}, %"
    header = ["system", recall, "minus skip", "accuracy, %", "minus skip", "GFLOPs of retrieval"]
    note = (
        f"\n\nRecall on {found['questions']:,} questions of Pocket-KB, accuracy on the first "
        f"{found['read']:,}; {found['passages']:,} passages. {INTERVALS}.\n"
    )
    return table(header, rows) + note + source(results)


def gates(results: Results) -> str:
    found = results["results"]
    header = ["questions of", "gate", "AUROC: right, %", "AUROC: enough, %"]
    header += [f"accuracy, {100 * found['drafted']:.0f} % drafted", "minus confidence", "GFLOPs"]
    rows, counts = [], []
    for name, title in GATED.items():
        measured = found[name]
        drafts, looked_up = percent(measured["draft"]), percent(measured["looked_up"])
        counts.append(f"{title}: {measured['questions']:,}, all drafted {drafts}, none {looked_up}")
        for gate, row in measured["gates"].items():
            keys = ("auroc_right", "auroc_enough", "accuracy")
            cells = [percent(row[key]) if key in row else ABSENT for key in keys]
            less = _less(row, "accuracy_less_confidence")
            rows.append([title, gate, *cells, less, f"{found['gflops'][gate]:.2f}"])
    note = (
        f"\n\nQuestions and accuracies: {'; '.join(counts)}. The probe learned from "
        f"{found['trained_on']:,} questions. {INTERVALS}.\n"
    )
    return table(header, rows) + note + source(results)


def corpus_swap(results: Results) -> str:
    found = results["results"]
    corpora = found["corpora"]
    header = ["questions about", *(f"{name}, %" for name in corpora), "own corpus minus the other"]
    rows = [
        [
            f"{name} ({domain['questions']:,})",
            *(percent(domain["accuracy"][corpus]) for corpus in corpora),
            points(Comparison(**domain["own_less_other"])),
        ]
        for name, domain in found["domains"].items()
    ]
    sizes = ", ".join(f"{name} {about['passages']:,}" for name, about in corpora.items())
    same = all(
        len({about[key] for about in corpora.values()}) == 1
        for key in ("config_sha256", "components_sha256")
    )
    assert same, "another config or other components: this is no swap of corpora"
    note = f"\n\nPassages: {sizes}; same config, same components. {INTERVALS}.\n"
    return table(header, rows) + note + source(results)


def longtail(results: Results) -> str:
    found = results["results"]
    accuracy, closed, idle = (found[key] for key in ("accuracy", "gap_closed", "overhead_ms"))
    rows = [
        [
            f"{group} ({count:,})",
            *(percent(accuracy[f"{group} {system}"]) for system in ("skip", "skip-adr")),
            points(Comparison(**found["gain"][group])),
        ]
        for group, count in found["questions"].items()
    ]
    header = ["questions about things", "corpus alone, %", "with a source, %", "gain"]
    note = (
        f"\n\nOf the {100 * closed['gap']:.1f} points between the two, at the same mixture of "
        f"questions, {100 * closed['fraction']:.0f} % ({bounds(closed, 100, '.0f')}) are closed. "
        f"Where nothing is unknown the stage takes {idle['nothing unknown']['median']:.1f} ms "
        f"(median of {idle['nothing unknown']['count']:,}), elsewhere "
        f"{idle['something unknown']['median']:.1f}. {INTERVALS}.\n"
    )
    return table(header, rows) + note + source(results)


def _less(row: Mapping[str, Any], key: str) -> str:
    return points(Comparison(**row[key])) if key in row else ABSENT
