"""The paper's twenty claims, and what was measured about each.

Enters: runs and results files of benchmarks. Leaves: a finding per claim, and a page. The paper's
own figures stand next to the measured ones and are marked as the paper's. Why a claim does not hold
and what was tried is told next to it, and shown only while it does not. How a claim is decided is
in `rules/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skipqa.claims import shipping
from skipqa.claims.bound import EXAMPLE_TOKENS
from skipqa.claims.rules import accuracy, cost, pruning, retrieval, routing, training
from skipqa.claims.verdict import Evidence, Finding, Verdict, missing
from skipqa.evaluation.reports.markdown import table
from skipqa.evaluation.reports.runs import read_run, read_runs, run_folders

VERDICTS = """\
The paper's figures are its own and were measured on other models. A claim about accuracies holds
where its whole interval does, does not hold where none of it does, and is undecided otherwise. Each
is judged once, from the measurement with the most questions of the set that it is about, and only
with the components that ship.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    paper: str  # the paper's own figure
    rule: Callable[[Evidence], Finding]
    why: str = ""  # it does not hold, and what was tried


@dataclass(frozen=True, slots=True)
class Judged:
    number: int  # as in the report
    claim: Claim
    finding: Finding


def gather(folders: Sequence[Path], results: Path) -> tuple[Evidence, Evidence]:
    """What was measured with the components that ship, and all that was measured."""
    shipped = shipping.shipped()
    every = [read_run(folder) for one in folders for folder in run_folders(one)]
    current = shipping.current(every, shipped)
    whole = read_runs([run.folder for run in every]) if every else []
    return (
        Evidence(read_runs(current) if current else [], results, shipped),
        Evidence(whole, results),
    )


def judge(evidence: Evidence, earlier: Evidence | None = None) -> list[Judged]:
    """`earlier` also has what was measured on checkpoints that no longer ship: it decides nothing,
    but says what to measure again."""
    judged = []
    for number, claim in enumerate(CLAIMS, 1):
        finding = _judge(claim, evidence)
        if finding.verdict is Verdict.UNMEASURED and earlier is not None:
            before = _judge(claim, earlier)
            if before.verdict is not Verdict.UNMEASURED:
                again = f"so far on an earlier checkpoint; again with `{before.command}`"
                finding = missing(again)
        judged.append(Judged(number, claim, finding))
    return judged


def _judge(claim: Claim, evidence: Evidence) -> Finding:
    try:
        return claim.rule(evidence)
    except (KeyError, TypeError) as error:  # a results file in an older format
        return missing(f"its results file has another format: {error!r}")


def page(judged: Sequence[Judged]) -> str:
    """All claims in Markdown: a table of verdicts, then one by one."""
    counts = Counter(str(one.finding.verdict) for one in judged)
    total = ", ".join(f"{verdict} {counts[verdict]}" for verdict in sorted(counts))
    rows = [[str(j.number), j.claim.text, f"**{j.finding.verdict}**"] for j in judged]
    parts = [
        f"{VERDICTS}\nOf {len(judged)}: {total}.",
        table(["", "claim", "verdict"], rows),
        *map(_section, judged),
    ]
    return "\n\n".join(parts) + "\n"


def _section(judged: Judged) -> str:
    claim, finding = judged.claim, judged.finding
    short = finding.verdict in (Verdict.FAILS, Verdict.UNDECIDED)
    rests_on = ", ".join(filter(None, (finding.on, finding.source)))
    lines = {
        "To measure" if finding.verdict is Verdict.UNMEASURED else "Measured": finding.said,
        "The paper": claim.paper,
        "Rests on": rests_on,
        "Why, and what was tried": claim.why if short else "",
    }
    told = "\n".join(f"- {name}: {text}" for name, text in lines.items() if text)
    return f"### {judged.number}. {claim.text}: {finding.verdict}\n\n{told}"


CLAIMS = (
    Claim(
        "accuracy at least the strongest dense baseline's with 4.07x fewer FLOPs, 2.69x faster",
        "63.2 against 60.5 on OK-VQA, 4.07x, 2.69x; its 0.42 TFLOPs cannot cover a 7B decoder "
        "over some 700 tokens",
        accuracy.accuracy_and_cost,
        "Most answers of OK-VQA are in no corpus at hand: a right answer stands in the first two "
        "passages for 20 % of the lookup questions, and the mean gain of a passage is -0.02 nats. "
        "The two passages that SKIP would read mislead its reader, sixteen do so less, and what "
        "the drafter would not abstain from is therefore not looked up. Readers retrained three "
        "times, six corpora and two more verifiers changed that by no more than their intervals.",
    ),
    Claim(
        "QVS keeps 99 % of the accuracy with 11 % of the tokens",
        "99 %; its plot says 60.7 of 63.4, 95.7 %",
        pruning.retention,
        "One per cent of this accuracy is less than a point, for which so many questions are too "
        "few. Tried for saliency: the training-free rule, a score of each token by itself, a head "
        "blind to the question, and the grounding that ships.",
    ),
    Claim(
        "random pruning loses 9.1 points at the same budget",
        "9.1 points",
        pruning.random_pruning,
        "With one thing in a photo random tokens lose next to nothing (1.6 points of 130 questions "
        "before): windows overlap, and any of them shows the thing. In crowds they lose more since "
        "saliency is trained to tell which thing is asked about; the rest is recognising: with the "
        "true box in place of saliency, a third of the gold passages is still not found.",
    ),
    Claim(
        "region queries lift Recall@4 on entities under 10 % of the area",
        "43 → 71",
        retrieval.small_entities,
        "One query for the kept tokens already names small things, as saliency leaves mostly "
        "these. Tried: fewer and larger regions (10 points worse), a third region, zoom into the "
        "whole salient thing, one more region where a window of four cells is surest. With the "
        "thing's true box given, small things gain one point more: what is missing is "
        "recognising, not finding.",
    ),
    Claim(
        "the fusion layer is 7.2x faster (here: at every batch)",
        "7.2x",
        cost.fusion_layer,
        "At batch 1 the layer is 18.7 us in two launches, which is most of what is left. Tried: "
        "W_K moved to the queries and W_V to the results, six launches made two, whole "
        "tiles skipped, Triton, CUDA C++ with warpgroup products, clusters of 2 to 8; every "
        "variant is in skipqa/ops/bipartite_attention/NOTES.md.",
    ),
    Claim(
        "the fast path takes 34–41 % at no more than 1 point",
        "34–41 %",
        routing.fast_path,
        "The threshold was chosen on held-out questions for four in ten drafts; on so many "
        "questions a point cannot be told from none. Tried: the lead over the next answer and its "
        "ratio as confidence (worse), a yes by how far it exceeds chance (shipped).",
    ),
    Claim(
        "the verifier's F1 is at least 0.90",
        "0.913",
        routing.verifier,
        "Told which thing the picture shows, an earlier verifier had 0.84 where it had 0.68 "
        "without: most of what is missing is recognising, as of two breeds that look alike one has "
        "to be picked. Tried: gold labels and the reader's gain as labels, comparing with rivals, "
        "ten more signals (0.67 to 0.73), four times the records (0.80), questions on photos never "
        "seen (0.82), reading question and passage together (0.43 over six corpora, as without), "
        "crowds and all default corpora (0.70 held out over all of them, before 0.66).",
    ),
    Claim(
        "the adaptive budget beats a fixed one at equal cost",
        "+1.4 points",
        routing.adaptive_budget,
        "The controller of stage V gained 2.6 points (1.3 to 3.8) over the best fixed budget at "
        "equal FLOPs on 721 held-out questions of four data sets, but nothing within any of them "
        "(OK-VQA -0.8, crowds -1.2): it tells data sets apart. That is what the drafter's "
        "probability of abstaining does as well, so this ships instead (K' = 0 below 0.15). Tried: "
        "variant A, variant B's grid, the draft's confidence and other signals as inputs, a "
        "predicted gain of looking up.",
    ),
    Claim(
        "saliency follows the counterfactual proxy: eta ≤ 0.018, Spearman ≥ 0.76",
        "0.011–0.018, 0.76–0.84",
        pruning.fidelity,
        "The decoder reads names, not tokens, and windows overlap: replacing one token of 256 "
        "mostly changes no name, so its worth is 0 and no score of single tokens can follow it. "
        "Saliency is a probability and worth is in nats, so eta as scored compares unlike scales; "
        "calibrated eta does not. Tried: the answer and the evidence as proxies, one thing and "
        "crowds, the rule's and the learned saliency.",
    ),
    Claim(
        "the sqrt(V) bound predicts V'",
        f"{EXAMPLE_TOKENS} of 576, an input of C",
        pruning.bound,
        "The constant is fitted to the paper's one example, V' = 51 of 576, and says nothing of "
        "this encoder, whose windows overlap: fewer tokens are enough. `skipqa theory quantities` "
        "prints L, eta, the score gap and the C that they give, which is vacuous here.",
    ),
    Claim(
        "staged training never collapses, joint training does",
        "joint: 72 % of 10 seeds",
        training.collapse,
        "As gates are decided, runs of both kinds have hardly an open one after 200 + 200 steps; "
        "as training draws them, none of either kind collapses, and with the stages' own steps 8 "
        "to 20 % of the tokens are open. Tried: 60 and 200 steps per stage, gates as drawn and as "
        "decided.",
    ),
    Claim(
        "three seeds differ by no more than 0.4",
        "± 0.2 to ± 0.4",
        training.seeds,
        "Three seeds of small networks on 60,000 questions; recipes that were compared differ by "
        "less. Another recipe (more of the published encoder remembered) had ± 0.38, but is worse "
        "at telling things apart and does not ship.",
    ),
    Claim(
        "better than dense with p < 0.001 by paired bootstrap",
        "p < 0.001",
        accuracy.significance,
        "See claim 1: where passages answer, as in Pocket-KB, the verifier's choice is worth "
        "points over dense; where they do not, as in OK-VQA, there is nothing to be better by. A "
        "difference of two points needs some three thousand questions for p < 0.001.",
    ),
    Claim("the KV cache is 62 % smaller", "12.7 → 4.8 GB", cost.kv_cache),
    Claim(
        "routing takes less than 5 % of the time",
        "< 5 %",
        cost.routing_overhead,
        "The heads take next to nothing. The verifier compares passages as the text encoder embeds "
        "them, and encoding six of them takes most of its time; fusion needs the same states, so "
        "the dense baseline encodes them too, sixteen of them.",
    ),
    Claim(
        "SKIP-NR is at least as good as dense on VQAv2",
        "82.1 against 81.9",
        accuracy.without_retrieval,
        "SKIP-NR closes retrieval where the drafter thinks that it is not needed; both then read "
        "with the same small decoder, so they differ by what passages mislead.",
    ),
    Claim(
        "SKIP-Iter with H = 2 beats dense on multi-hop",
        "52.7 against 50.8",
        accuracy.multihop,
        "The second hop asks for the name that the first one found: where the thing is not "
        "recognised, neither hop finds anything.",
    ),
    Claim(
        "SKIP-ADR closes 55 % of the long-tail gap",
        "55 %; its table says 44.9 → 52.7 below 70.1, "
        f"{100 * (52.7 - 44.9) / (70.1 - 44.9):.0f} % of the gap",
        retrieval.longtail,
        "Only a thing that is recognised can be asked for by name.",
    ),
    Claim(
        "40–60 % of retrieved passages are duplicates, which deduplication saves",
        "40–60 %",
        retrieval.duplicates,
    ),
    Claim(
        "another corpus needs no other change",
        "PubMed for Wikipedia",
        retrieval.corpus,
        "Over another domain's corpus nothing can be found; where its own corpus does not help "
        "either, the verifier or the reader was trained on the other.",
    ),
)
