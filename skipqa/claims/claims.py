"""The paper's twenty claims, each with a rule that turns what was measured into a verdict.

Enters: runs and the results files of the benchmarks. Leaves: a table. The paper's own figures
stand beside ours and are called the paper's; nothing that was measured is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from skipqa.claims.bound import EXAMPLE_TOKENS, Sweep, constant, tokens_needed
from skipqa.claims.verdict import (
    Evidence,
    Finding,
    Verdict,
    by_interval,
    holds_if,
    missing,
    on_every_set,
)
from skipqa.evaluation.records import Record
from skipqa.evaluation.reports.runs import (
    OWN_PRUNER,
    QuestionSet,
    Run,
    pair,
    same_machine,
    seed_accuracies,
    seed_groups,
    sweeps,
    timed,
)
from skipqa.evaluation.reports.tables import RECALL, p_value, points, times
from skipqa.evaluation.results import table
from skipqa.evaluation.statistics import Comparison, across_seeds
from skipqa.evaluation.summary import names_in
from skipqa.evaluation.systems import SYSTEMS

DENSE = ("dense", "fid", "late", "memory")
EPSILON = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    paper: str  # the paper's own figure
    rule: Callable[[Evidence], Finding]


def judge(evidence: Evidence) -> list[tuple[Claim, Finding]]:
    judged = []
    for claim in CLAIMS:
        try:
            finding = claim.rule(evidence)
        except (KeyError, TypeError) as error:  # a results file of another time
            finding = missing(f"its results file has another format: {error!r}")
        judged.append((claim, finding))
    return judged


def claims_table(judged: Sequence[tuple[Claim, Finding]]) -> str:
    rows = [
        [str(number), claim.text, claim.paper, finding.said, f"**{finding.verdict}**"]
        for number, (claim, finding) in enumerate(judged, 1)
    ]
    return table(["", "claim", "the paper's own figure", "measured here", "verdict"], rows)


def _eval(*systems: str, more: str = "") -> str:
    """What to run for a claim that nothing was measured for."""
    built = {system: "" if system in SYSTEMS else " (not built yet)" for system in systems}
    named = ", ".join(f"`{system}`{note}" for system, note in built.items())
    return f"needs runs of {named} over the same questions (`skipqa eval vqa --system …{more}`)"


def _both(found: QuestionSet, one: str, other: str) -> tuple[Run, Run] | None:
    first, second = found.of_system(one), found.of_system(other)
    return (first[0], second[0]) if first and second and len(pair(first[0], second[0])) else None


def _strongest_dense(found: QuestionSet) -> tuple[Run, Run] | None:
    """SKIP, and the dense baseline that does best on the questions that SKIP answered."""
    skip = found.of_system("skip")
    rivals = [run for run in found.of_system(*DENSE) if skip and len(pair(run, skip[0]))]
    if not rivals:
        return None
    return skip[0], max(rivals, key=lambda run: float(pair(run, skip[0]).first.mean()))


def _accuracy_and_cost(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _strongest_dense(found)) is None:
            return None
        accuracy = pair(*runs).compare()
        flops = pair(*runs, "flops").ratio
        verdict = min(by_interval(accuracy), holds_if(flops >= 4.07))
        said = (
            f"{points(accuracy)} points against {found.name(runs[1])} on {accuracy.count:,} "
            f"questions, {times(flops)} fewer FLOPs"
        )
        if not timed(*runs):
            return Finding(min(verdict, Verdict.UNDECIDED), said + ", not timed")
        if not same_machine(*runs):
            return Finding(min(verdict, Verdict.UNDECIDED), said + ", timed on other machines")
        latency = pair(*runs, "latency_ms").ratio
        return Finding(min(verdict, holds_if(latency >= 2.69)), f"{said}, {times(latency)} faster")

    finding = on_every_set(evidence, rule, _eval("skip", "dense"))
    if (pathway := evidence.benchmark("pathway")) is None:
        return finding
    summary = pathway["results"]["summary"]
    rate = str(pathway["results"]["load"]["draft_rate"])
    shapes = ", ".join(
        f"{name}: {times(flops['times_fewer'])} fewer FLOPs, "
        f"{times(summary['latency_ms'][name][rate]['times_faster'])} faster"
        for name, flops in summary["flops"].items()
    )
    return Finding(
        finding.verdict, f"{finding.said}. At 7B shapes with random weights, no accuracy: {shapes}"
    )


def _retention(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        own = sweeps(found).get(OWN_PRUNER, {})
        pruned = [run for retention, run in own.items() if 0.095 <= retention <= 0.12]
        whole = [run for retention, run in own.items() if retention > 0.99]
        if not pruned or not whole:
            return None
        scores = pair(pruned[0], whole[0])
        if not scores.second.any():
            return Finding(Verdict.UNDECIDED, f"none of {len(scores):,} right without pruning")
        kept, unpruned = scores.first.mean() / scores.second.mean(), 100 * scores.second.mean()
        comparison = scores.compare(fraction=0.99)
        said = f"{100 * kept:.1f} % of {unpruned:.1f} on {len(scores):,} questions"
        return Finding(by_interval(comparison), said)

    return on_every_set(evidence, rule, _eval("skip", "skip-no-pruning"))


def _random_pruning(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _same_budget(found)) is None:
            return None
        lost = pair(*runs).compare()
        said = (
            f"random pruning loses {points(lost)} points at "
            f"V'/V = {runs[0].retention or 0:.2f} on {lost.count:,} questions"
        )
        return Finding(by_interval(lost, least=0.091), said)

    return on_every_set(evidence, rule, _eval("skip", "skip-random-pruning"))


def _same_budget(found: QuestionSet) -> tuple[Run, Run] | None:
    """QVS and random pruning at the retention nearest to the paper's 11 %."""
    if (runs := _both(found, "skip", "skip-random-pruning")) is not None:
        return runs
    lines = sweeps(found)
    own, drawn = lines.get(OWN_PRUNER, {}), lines.get("random", {})
    shared = sorted(own.keys() & drawn.keys(), key=lambda retention: abs(retention - 0.11))
    return (own[shared[0]], drawn[shared[0]]) if shared else None


def _small_entities(evidence: Evidence) -> Finding:
    """By the benchmark where there is one: the same comparison on more questions."""

    def lifted(one_query: float, regions: float, gain: Comparison, of: str = "") -> Finding:
        said = (
            f"{100 * one_query:.1f} → {100 * regions:.1f} on {gain.count:,} questions{of}, "
            f"{points(gain)} points"
        )
        return Finding(by_interval(gain, least=0.71 - 0.43), said)

    if (things := evidence.benchmark("small_things")) is not None:
        small = things["results"]["small"]
        recall = {way: found["mean"] for way, found in small["recall"].items()}
        gain = Comparison(**small["skip_less"]["kept tokens"])
        finding = lifted(recall["kept tokens"], recall["skip"], gain, " of Pocket-KB")
        low_res = f"one query of the picture at a glance has {100 * recall['glance']:.1f}"
        return Finding(finding.verdict, f"{finding.said}; {low_res}")

    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _both(found, "skip", "skip-global-retrieval")) is None:
            return None
        recalls = pair(*runs, RECALL, _in_subset("small"))
        if not len(recalls):
            return None
        return lifted(recalls.second.mean(), recalls.first.mean(), recalls.compare())

    needed = _eval("skip", "skip-global-retrieval")
    return on_every_set(evidence, rule, f"{needed}, with a subset `small` and gold passages")


def _in_subset(name: str) -> Callable[[Record], bool]:
    return lambda record: name in names_in(record, "subset")


def _fusion_layer(evidence: Evidence) -> Finding:
    if (kernels := evidence.benchmark("kernels")) is None:
        return missing("needs `skipqa bench kernels` on a GPU")
    best: dict[int, float] = {}
    for layer in kernels["results"]["layers"]:
        if layer["passages"] == 6:  # the paper's median budget
            best[layer["batch"]] = max(best.get(layer["batch"], 0.0), layer["times_faster"])
    if not best:
        return missing("the results of `kernels` have no layer with K' = 6")
    said = ", ".join(f"{times(ratio)} at batch {batch}" for batch, ratio in sorted(best.items()))
    where = kernels["machine"].get("gpu", "a CPU")
    return Finding(holds_if(min(best.values()) >= 7.2), f"K' = 6 on {where}: {said}")


def _fast_path(evidence: Evidence) -> Finding:
    """By the benchmark where there is one, as for small entities."""

    def drafted(rate: float, gain: Comparison, of: str = "") -> Finding:
        said = f"{100 * rate:.1f} % at {points(gain)} points on {gain.count:,} questions{of}"
        return Finding(min(holds_if(rate >= 0.34), by_interval(gain, least=-0.01)), said)

    if (measured := evidence.benchmark("fast_path_val")) is not None:
        shipped = measured["results"]["shipped"]["all"]
        return drafted(shipped["rate"], Comparison(**shipped["gain"]), " of OK-VQA and VQAv2")

    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _both(found, "skip", "skip-no-draft")) is None:
            return None
        return drafted(runs[0].summary["fast_path_rate"], pair(*runs).compare())

    return on_every_set(evidence, rule, _eval("skip", "skip-no-draft"))


def _verifier(evidence: Evidence) -> Finding:
    if (verifier := evidence.benchmark("verifier")) is None:
        return missing("needs a trained verifier, its F1 kept as `verifier` in benchmarks/results")
    f1 = verifier["results"]["f1"]
    return Finding(holds_if(f1 >= 0.90), f"F1 {f1:.3f}")


def _adaptive_budget(evidence: Evidence) -> Finding:
    def better(gain: Comparison) -> Verdict:
        return Verdict.UNDECIDED if gain.low <= 0 <= gain.high else by_interval(gain)

    def rule(found: QuestionSet) -> Finding | None:
        runs = _both(found, "skip", "skip-fixed-budget")
        if runs is None or "budget" not in (runs[0].about.get("components") or {}):
            return None  # untrained, the budget is as fixed as the other
        gain, ratio = pair(*runs).compare(), pair(*runs, "flops").ratio
        said = (
            f"{points(gain)} points on {gain.count:,} questions with "
            f"{1 / ratio:.2f} times the FLOPs"
        )
        return Finding(min(better(gain), holds_if(1 / ratio <= 1.02)), said)

    needed = f"{_eval('skip', 'skip-fixed-budget', more=' --components C')} with a trained `budget`"
    finding = on_every_set(evidence, rule, needed)
    stages = evidence.benchmark("later_stages")
    if finding.verdict != Verdict.UNMEASURED or stages is None:
        return finding
    budget = stages["results"]["stage5"]["budget"]
    val, spent = budget["val"], budget["val"]["adaptive"]
    low, high = val["gain"]["low"], val["gain"]["high"]
    gain = Comparison(val["gain"]["mean"], low, high, math.nan, val["questions"])  # no p was kept
    said = (
        f"{100 * spent['score']:.1f} against {100 * val['fixed_at_equal_flops']:.1f} for the best "
        f"fixed one at {spent['giga_flops']:.1f} GFLOPs, {points(gain)} points on {gain.count:,} "
        f"questions by stage V's own measure"
    )
    return Finding(better(gain), said if budget["ships"] else f"{said}; this budget does not ship")


def _fidelity(evidence: Evidence) -> Finding:
    if (fidelity := evidence.benchmark("fidelity")) is None:
        return missing("needs `skipqa theory fidelity --results benchmarks/results`")
    eta, spearman = fidelity["results"]["eta"], fidelity["results"]["spearman"]
    verdict = holds_if(eta <= 0.018 and spearman >= 0.76)
    return Finding(verdict, f"eta {eta:.3f}, Spearman {spearman:.2f}")


def _bound(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        own = sweeps(found).get(OWN_PRUNER, {})
        available = next((run.available for run in own.values() if run.available), None)
        if available is None or len(own) < 3 or max(own) <= 0.99:
            return None
        accuracy = {
            round(retention * available): run.summary["accuracy"]["mean"]
            for retention, run in own.items()
        }
        needed = Sweep(available, accuracy).needed(EPSILON)
        bound = tokens_needed(available, EPSILON, constant(1, 0.01))
        low, high = bound.likely
        said = (
            f"the bound asks for {bound.count} of {available} ({low} to {high} likely), the sweep "
            f"for {needed} of {', '.join(map(str, sorted(accuracy)))}"
        )
        return Finding(holds_if(low <= needed <= high), said)

    otherwise = _eval("skip", more=" --retention R") + ", at three retentions and unpruned"
    return on_every_set(evidence, rule, otherwise)


def _collapse(evidence: Evidence) -> Finding:
    if (collapse := evidence.benchmark("collapse")) is None:
        return missing("needs both kinds of training, kept as `collapse` in benchmarks/results")
    staged, joint = collapse["results"]["staged"], collapse["results"]["joint"]
    said = ", ".join(
        f"{name}: {runs['collapsed']} of {runs['runs']} collapsed"
        for name, runs in (("staged", staged), ("joint", joint))
    )
    return Finding(holds_if(staged["collapsed"] == 0 and joint["collapsed"] > 0), said)


def _seeds(evidence: Evidence) -> Finding:
    def apart(accuracies: Sequence[float], on: str) -> Finding:
        spread = across_seeds(100 * np.array(accuracies))
        said = (
            f"{spread.mean:.1f} ± {spread.deviation:.2f} over {spread.count} seeds, largest "
            f"minus smallest {spread.spread:.2f}, {on}"
        )
        return Finding(holds_if(spread.deviation <= 0.4), said)

    def rule(found: QuestionSet) -> Finding | None:
        for group in seed_groups(found.of_system("skip")):
            trained = {repr(run.about.get("components")) for run in group}
            accuracies, shared = seed_accuracies(group)
            if len(trained) >= 3 and shared:
                return apart(accuracies, f"{shared:,} questions")
        return None

    needed = "needs runs of `skip` with components trained under three seeds"
    finding = on_every_set(evidence, rule, f"{needed} (`--components C --seed S`)")
    stage1 = evidence.benchmark("stage1")
    if finding.verdict != Verdict.UNMEASURED or stage1 is None:
        return finding
    seeds = stage1["results"]["seeds"].values()
    accuracies = [found["reader"]["joint"]["okvqa/val"]["accuracy"] for found in seeds]
    if len(accuracies) < 3:
        return finding
    return apart(accuracies, "OK-VQA val by stage I's own measure")


def _significance(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _strongest_dense(found)) is None:
            return None
        comparison = pair(*runs).compare()
        verdict = holds_if(comparison.p_value < 0.001 and comparison.difference > 0)
        said = f"{points(comparison)} points against {found.name(runs[1])}, p"
        value = p_value(comparison)
        return Finding(verdict, f"{said} {value if value.startswith('≤') else '= ' + value}")

    return on_every_set(evidence, rule, _eval("skip", "dense"))


def _kv_cache(evidence: Evidence) -> Finding:
    if (pathway := evidence.benchmark("pathway")) is None:
        return missing("needs `skipqa bench pathway` on a GPU")
    saved = {name: kv["saved"] for name, kv in pathway["results"]["summary"]["kv_cache"].items()}
    said = ", ".join(f"{name} −{100 * fraction:.1f} %" for name, fraction in saved.items())
    return Finding(holds_if(min(saved.values()) >= 0.62), f"7B shapes: {said}")


def _routing(evidence: Evidence) -> Finding:
    if (overhead := evidence.benchmark("routing_overhead")) is None:
        return missing("needs `python benchmarks/routing_overhead.py`")
    fractions = {name: run["fraction"] for name, run in overhead["results"].items()}
    said = ", ".join(f"{name} {100 * fraction:.2f} %" for name, fraction in fractions.items())
    return Finding(holds_if(max(fractions.values()) < 0.05), said)


def _without_retrieval(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        runs = _both(found, "skip-nr", "dense") if "vqav2" in found.title.lower() else None
        return None if runs is None else _at_least(found, runs)

    return on_every_set(evidence, rule, _eval("skip-nr", "dense") + " of VQAv2")


def _multihop(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        runs = _both(found, "skip-iter", "dense")
        return None if runs is None else _at_least(found, runs, _in_subset("multihop"))

    return on_every_set(evidence, rule, _eval("skip-iter", "dense") + " with a subset `multihop`")


def _at_least(
    found: QuestionSet, runs: tuple[Run, Run], where: Callable[[Record], bool] = lambda _: True
) -> Finding | None:
    scores = pair(*runs, "score", where)
    if not len(scores):
        return None
    comparison = scores.compare()
    said = f"{points(comparison)} points against {found.name(runs[1])} on {len(scores):,} questions"
    return Finding(by_interval(comparison), said)


def _longtail(evidence: Evidence) -> Finding:
    """Popular and rare are the halves of the questions by popularity, as quartiles in the paper."""

    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _both(found, "skip-adr", "skip")) is None:
            return None
        popularity = list(runs[1].column("popularity").values())
        if not popularity:
            return None
        middle = float(np.median(popularity))
        rare = pair(*runs, "score", lambda r: r.get("popularity", np.inf) < middle)
        popular = pair(*runs, "score", lambda r: r.get("popularity", -np.inf) >= middle)
        if not len(rare) or not len(popular):
            return None
        gap = popular.second.mean() - rare.second.mean()
        if gap <= 0:
            return Finding(Verdict.UNDECIDED, f"no gap to close: {100 * gap:+.1f} points")
        closed = (rare.first.mean() - rare.second.mean()) / gap
        said = f"{100 * closed:.0f} % of {100 * gap:.1f} points on {len(rare):,} rare questions"
        return Finding(holds_if(closed >= 0.55), said)

    return on_every_set(evidence, rule, _eval("skip", "skip-adr") + " with popularities")


def _duplicates(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        for run in found.of_system("skip"):
            hits, unique = run.column("hits"), run.column("unique")
            if total := sum(hits.values()):
                fraction = 1 - sum(unique.values()) / total
                said = f"{100 * fraction:.1f} % of {total:,.0f} hits were duplicates"
                return Finding(holds_if(0.40 <= fraction <= 0.60), said)
        return None

    return on_every_set(evidence, rule, _eval("skip") + " whose records count hits")


def _corpus(evidence: Evidence) -> Finding:
    """Two indexes under one system with the same config and components, both answering."""
    alike: dict[str, dict[str, Run]] = {}
    for found in evidence.sets:
        for run in found.runs:
            kind = repr((run.system, run.about.get("config"), run.about.get("components")))
            alike.setdefault(kind, {}).setdefault(str(run.trait("index")), run)
    swapped = max(alike.values(), key=len, default={})
    if len(swapped) < 2:
        return missing("needs one system over two corpora (`skipqa eval vqa --index …`)")
    said = ", ".join(
        f"{name} ({run.summary['num_questions']:,} questions)" for name, run in swapped.items()
    )
    return Finding(Verdict.HOLDS, f"same config and components over {said}")


CLAIMS = (
    Claim(
        "accuracy at least the strongest dense baseline's with 4.07x fewer FLOPs, 2.69x faster",
        "63.2 against 60.5 on OK-VQA, 4.07x, 2.69x; its 0.42 TFLOPs cannot cover a 7B decoder "
        "over some 700 tokens",
        _accuracy_and_cost,
    ),
    Claim(
        "QVS keeps 99 % of the accuracy with 11 % of the tokens",
        "99 %; its plot says 60.7 of 63.4, 95.7 %",
        _retention,
    ),
    Claim("random pruning loses 9.1 points at the same budget", "9.1 points", _random_pruning),
    Claim(
        "region queries lift Recall@4 on entities under 10 % of the area",
        "43 → 71",
        _small_entities,
    ),
    Claim("the fusion layer is 7.2x faster (here: at every batch)", "7.2x", _fusion_layer),
    Claim("the fast path takes 34–41 % at no more than 1 point", "34–41 %", _fast_path),
    Claim("the verifier's F1 is at least 0.90", "0.913", _verifier),
    Claim("the adaptive budget beats a fixed one at equal cost", "+1.4 points", _adaptive_budget),
    Claim(
        "saliency follows the counterfactual proxy: eta ≤ 0.018, Spearman ≥ 0.76",
        "0.011–0.018, 0.76–0.84",
        _fidelity,
    ),
    Claim("the sqrt(V) bound predicts V'", f"{EXAMPLE_TOKENS} of 576, an input of C", _bound),
    Claim(
        "staged training never collapses, joint training does", "joint: 72 % of 10 seeds", _collapse
    ),
    Claim("three seeds differ by no more than 0.4", "± 0.2 to ± 0.4", _seeds),
    Claim("better than dense with p < 0.001 by paired bootstrap", "p < 0.001", _significance),
    Claim("the KV cache is 62 % smaller", "12.7 → 4.8 GB", _kv_cache),
    Claim("routing takes less than 5 % of the time", "< 5 %", _routing),
    Claim("SKIP-NR is at least as good as dense on VQAv2", "82.1 against 81.9", _without_retrieval),
    Claim("SKIP-Iter with H = 2 beats dense on multi-hop", "52.7 against 50.8", _multihop),
    Claim(
        "SKIP-ADR closes 55 % of the long-tail gap",
        "55 %; its table says 44.9 → 52.7 below 70.1, "
        f"{100 * (52.7 - 44.9) / (70.1 - 44.9):.0f} % of the gap",
        _longtail,
    ),
    Claim("40–60 % of retrieved passages are duplicates", "40–60 %", _duplicates),
    Claim("another corpus needs no other change", "PubMed for Wikipedia", _corpus),
)
