"""Each claim holds, fails, stays undecided or unmeasured by its rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from skipqa.claims import shipping
from skipqa.claims.registry import CLAIMS, gather, judge, page
from skipqa.claims.verdict import Evidence, Verdict
from skipqa.cli.main import app
from skipqa.errors import UserError
from skipqa.evaluation.records import make_record
from skipqa.evaluation.reports.runs import read_run, read_runs
from skipqa.tasks import Example
from skipqa.tasks.jsonl import JSONL

if TYPE_CHECKING:
    from made_runs import MakeRun

    from skipqa.pipeline import Answer

MANY = range(2_000)
Judge = Callable[..., tuple[str, str]]


@pytest.fixture
def verdict(tmp_path: Path) -> Judge:
    """The verdict on one claim and what was said, given runs and results files."""

    def find(number: int, folders: list[Path], **benchmarks: Any) -> tuple[str, str]:
        results = tmp_path / "results"
        results.mkdir(exist_ok=True)
        for subject, found in benchmarks.items():
            header = {"machine": {"gpu": "abacus"}, "versions": {}, "commit": "abc"}
            path = results / f"{subject}_abacus_202611.json"
            path.write_text(json.dumps({**header, "results": found}))
        sets = read_runs(folders) if folders else []
        finding = judge(Evidence(sets, results))[number - 1].finding
        return str(finding.verdict), finding.said

    return find


def test_there_are_twenty_and_none_is_measured_by_nothing(tmp_path: Path) -> None:
    judged = judge(Evidence([], tmp_path))
    assert len(judged) == len(CLAIMS) == 20
    assert [one.number for one in judged] == list(range(1, 21))
    assert {one.finding.verdict for one in judged} == {Verdict.UNMEASURED}
    assert all("needs" in one.finding.said for one in judged)
    assert page(judged).count("**not measured**") == 20


def test_a_claim_is_as_good_as_its_weakest_part() -> None:
    assert min(Verdict.HOLDS, Verdict.UNMEASURED) is Verdict.UNMEASURED
    assert min(Verdict.HOLDS, Verdict.UNDECIDED) is Verdict.UNDECIDED
    assert all(min(other, Verdict.FAILS) is Verdict.FAILS for other in Verdict)
    shown = {Verdict.FAILS: "does not hold", Verdict.UNMEASURED: "not measured"}
    shown |= {Verdict.UNDECIDED: "undecided", Verdict.HOLDS: "holds"}
    assert {verdict: str(verdict) for verdict in Verdict} == shown


@pytest.mark.parametrize(
    ("accuracy", "flops", "ms", "expected"),
    [
        (0.5, 20e9, 300, "holds"),
        (0.5, 30e9, 300, "does not hold"),  # FLOPs
        (0.5, 20e9, 500, "does not hold"),  # latency
        (0.3, 20e9, 300, "does not hold"),  # accuracy
        (0.398, 20e9, 300, "undecided"),
    ],
)
def test_1_accuracy_and_cost(
    made: MakeRun, verdict: Judge, accuracy: float, flops: float, ms: float, expected: str
) -> None:
    n = range(500)
    folders = [
        made("skip", "skip", accuracy, questions=n, flops=flops, ms=ms),
        made("dense", "dense", 0.4, questions=n, flops=100e9, ms=1_000),
        made("fid", "fid", 0.2, questions=n, flops=1e9, ms=1),
    ]
    found, said = verdict(1, folders)
    assert found == expected
    assert "against dense on 500 questions" in said, "the strongest baseline"


def test_1_is_undecided_where_several_processes_answered(made: MakeRun, verdict: Judge) -> None:
    n = range(500)
    folders = [
        made("skip", "skip", 0.5, questions=n, flops=20e9, ms=300, alone=False),
        made("dense", "dense", 0.4, questions=n, flops=100e9, ms=1_000),
    ]
    found, said = verdict(1, folders)
    assert found == "undecided"
    assert said.endswith("5.00x fewer FLOPs, not timed")


def test_1_other_machines_are_not_timed(made: MakeRun, verdict: Judge) -> None:
    other = {"machine": {"cpu": "zx81", "cores": 1}}
    folders = [
        made("skip", "skip", 0.6, questions=MANY, flops=1e9, ms=1),
        made("dense", "dense", 0.4, questions=MANY, header=other),
    ]
    assert verdict(1, folders)[0] == "undecided"


@pytest.mark.parametrize(
    ("kept", "expected"), [(0.5, "holds"), (0.4, "does not hold"), (0.495, "undecided")]
)
def test_2_retention(made: MakeRun, verdict: Judge, kept: float, expected: str) -> None:
    folders = [
        made("a", "skip", kept, questions=MANY, retention=0.11),
        made("b", "skip-no-pruning", 0.5, questions=MANY, tokens=576),
    ]
    found, said = verdict(2, folders)
    assert found == expected
    assert said.startswith(f"{200 * kept:.1f} % of 50.0 on 2,000 questions, ")
    assert said.endswith("points from 99 % of it")


@pytest.mark.parametrize(("random", "expected"), [(0.3, "holds"), (0.45, "does not hold")])
@pytest.mark.parametrize("swept", [False, True])
def test_3_random(made: MakeRun, verdict: Judge, random: float, expected: str, swept: bool) -> None:
    own = {"retention": 0.11} if swept else {}
    drawn = {"pruner": "random", "retention": 0.11} if swept else {}
    folders = [
        made("a", "skip", 0.5, questions=MANY, **own),
        made("b", "skip" if swept else "skip-random-pruning", random, questions=MANY, **drawn),
    ]
    assert verdict(3, folders)[0] == expected


def small_things(gain: float) -> dict[str, Any]:
    recall = {"low_res": 0.25, "kept tokens": 0.3, "regions": 0.3 + gain, "skip": 0.9}
    return {
        "small": {
            "recall": {way: {"mean": mean} for way, mean in recall.items()},
            "regions_less_one_query": gained(gain),
            "zoom_adds": gained(0.05),
        }
    }


def gained(difference: float) -> dict[str, float]:
    """As a results file keeps it, within a point either way."""
    low, high = difference - 0.01, difference + 0.01
    return {"difference": difference, "low": low, "high": high, "p_value": 0.5, "count": 1_250}


@pytest.mark.parametrize(
    ("gain", "expected"), [(0.3, "holds"), (0.1, "does not hold"), (0.275, "undecided")]
)
def test_4_zoom_is_said_apart(verdict: Judge, gain: float, expected: str) -> None:
    found, said = verdict(4, [], small_things=small_things(gain))
    assert found == expected
    assert said.startswith(f"30.0 → {30 + 100 * gain:.1f} on 1,250 questions, +")
    assert said.endswith("points; zoom adds +5.0 (+4.0 to +6.0)")


@pytest.mark.parametrize(
    ("drafted", "accuracy", "expected"),
    [
        (0.36, 0.5, "holds"),
        (0.20, 0.5, "does not hold"),
        (0.36, 0.45, "does not hold"),
        (0.36, 0.49, "undecided"),
    ],
)
def test_6_fast_path(
    made: MakeRun, verdict: Judge, drafted: float, accuracy: float, expected: str
) -> None:
    folders = [
        made("a", "skip", accuracy, questions=MANY, drafted=drafted),
        made("b", "skip-no-draft", 0.5, questions=MANY),
    ]
    assert verdict(6, folders)[0] == expected


@pytest.mark.parametrize(
    ("rate", "gain", "expected"),
    [
        (0.36, 0.001, "holds"),
        (0.20, 0.001, "does not hold"),
        (0.36, -0.03, "does not hold"),
        (0.36, -0.01, "undecided"),
    ],
)
def test_6_by_the_benchmark_rather_than_by_runs(
    made: MakeRun, verdict: Judge, rate: float, gain: float, expected: str
) -> None:
    folders = [made("a", "skip", 1.0), made("b", "skip-no-draft", 0.0)]
    shipped = {"all": {"rate": rate, "gain": gained(gain)}}
    found, said = verdict(6, folders, fast_path_val={"shipped": shipped})
    assert found == expected
    assert said.startswith(f"{100 * rate:.1f} % at {100 * gain:+.1f} (")
    assert said.endswith("points on 1,250 questions")


@pytest.mark.parametrize(
    ("accuracy", "flops", "expected"),
    [
        (0.6, 50e9, "holds"),
        (0.6, 60e9, "does not hold"),
        (0.4, 50e9, "does not hold"),
        (0.5, 50e9, "undecided"),
    ],
)
def test_8_budget(
    made: MakeRun, verdict: Judge, accuracy: float, flops: float, expected: str
) -> None:
    trained = {"components": {"budget": "a"}}
    folders = [
        made("a", "skip", accuracy, questions=MANY, flops=flops, **trained),
        made("b", "skip-fixed-budget", 0.5, questions=MANY, flops=50e9, **trained),
    ]
    found, said = verdict(8, folders)
    assert found == expected
    assert "on 2,000 questions with" in said


def test_8_only_a_budget_that_ships_counts(made: MakeRun, tmp_path: Path) -> None:
    folders = [made("a", "skip", 1.0), made("b", "skip-fixed-budget", 0.0)]
    found = judge(Evidence(read_runs(folders), tmp_path))[7].finding
    assert str(found.verdict) == "not measured"
    assert found.said.endswith("with a trained `budget`")
    found = judge(Evidence([], tmp_path, shipped={"verifier": "a"}))[7].finding
    assert str(found.verdict) == "not measured"
    assert "adaptive_budget.py" in found.said


@pytest.mark.parametrize(
    ("pooled", "within", "expected"),
    [
        ((0.01, 0.03), (-0.01, 0.01), "holds"),
        ((-0.01, 0.03), (-0.01, 0.01), "undecided"),
        ((0.01, 0.03), (-0.03, -0.01), "does not hold"),  # within a data set it loses
        ((-0.03, -0.01), (-0.01, 0.01), "does not hold"),
    ],
)
def test_8_the_drafters_abstaining_is_the_budget_that_ships(
    tmp_path: Path, pooled: tuple[float, float], within: tuple[float, float], expected: str
) -> None:
    def over_fixed(bounds: tuple[float, float]) -> dict[str, Any]:
        low, high = bounds
        return {"questions": 900, "gain": {"mean": (low + high) / 2, "low": low, "high": high}}

    measured = {"seed": 1, "all": over_fixed(pooled), "okvqa": over_fixed(within)}
    shipped = {"verifier": "a"}
    text = json.dumps({"components": shipped, "results": measured})
    (tmp_path / "adaptive_budget_abacus_202611.json").write_text(text)
    found = judge(Evidence([], tmp_path, shipped=shipped))[7].finding
    assert str(found.verdict) == expected
    assert "on 900 held-out questions" in found.said


@pytest.mark.parametrize(("at_64", "expected"), [(0.5, "holds"), (0.3, "does not hold")])
def test_10_bound(made: MakeRun, verdict: Judge, at_64: float, expected: str) -> None:
    folders = [
        made(str(retention), "skip", accuracy, retention=retention)
        for retention, accuracy in ((0.05, 0.2), (1 / 9, at_64), (0.5, 0.5), (1.0, 0.5))
    ]
    found, said = verdict(10, folders)
    assert found == expected
    assert "51 of 576" in said


@pytest.mark.parametrize(
    ("questions", "expected"), [(MANY, "does not hold"), (range(40), "undecided")]
)
def test_10_few_questions_do_not_refute_the_bound(
    made: MakeRun, verdict: Judge, questions: range, expected: str
) -> None:
    """Fewer tokens than it asks for are enough, if there are questions enough to say so."""
    right = {0.05: 3, 0.5: 7, 1.0: 7}  # which tenth of the questions is wrong

    def fields(tenth: int) -> Callable[[int], dict[str, Any]]:
        return lambda question: {"score": float(question % 10 != tenth)}

    folders = [
        made(str(r), "skip", questions=questions, retention=r, fields=fields(tenth))
        for r, tenth in right.items()
    ]
    found, said = verdict(10, folders)
    assert found == expected
    assert "the sweep for 29 of" in said


@pytest.mark.parametrize(
    ("step", "same", "expected"),
    [(1, False, "holds"), (20, False, "does not hold"), (0, True, "not measured")],
)
def test_12_seeds(made: MakeRun, verdict: Judge, step: int, same: bool, expected: str) -> None:
    folders = [
        made(
            str(seed),
            "skip",
            0.5 + seed * step / 1_000,
            questions=range(1_000),
            seed=seed,
            components={"drafter": "same" if same else str(seed)},
            config={"preset": "pocket", "draft": {"threshold": 0.3 if same else seed / 10}},
        )
        for seed in range(3)
    ]
    assert verdict(12, folders)[0] == expected


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.350, 0.352, 0.354), "holds"),
        ((0.350, 0.352, 0.364), "does not hold"),
        ((0.350, 0.352), "not measured"),
    ],
)
def test_12_stage_1_where_no_runs_tell(
    made: MakeRun, verdict: Judge, accuracies: tuple[float, ...], expected: str
) -> None:
    seeds = {
        str(seed): {"reader": {"joint": {"okvqa/val": {"accuracy": accuracy}}}}
        for seed, accuracy in enumerate(accuracies)
    }
    found, said = verdict(12, [made("a", "skip")], stage1={"seeds": seeds})
    assert found == expected
    assert said.endswith("as measured by stage I") is (expected != "not measured")


def test_12_runs_count_before_stage_1(made: MakeRun, verdict: Judge) -> None:
    folders = [made(str(s), "skip", seed=s, components={"drafter": str(s)}) for s in range(3)]
    found, said = verdict(12, folders, stage1={})
    assert found == "holds"
    assert said.endswith("40 questions")


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [(0.6, "holds"), (0.5, "does not hold"), (0.3, "does not hold")],
)
def test_13_significance(made: MakeRun, verdict: Judge, accuracy: float, expected: str) -> None:
    folders = [made("a", "skip", accuracy, questions=MANY), made("b", "dense", 0.5, questions=MANY)]
    assert verdict(13, folders)[0] == expected


def test_16_only_vqav2_counts(made: MakeRun, verdict: Judge) -> None:
    here = [made("a", "skip-nr", 0.6), made("b", "dense", 0.4)]
    found, said = verdict(16, here)
    assert found == "not measured"
    assert "needs runs of `skip-nr`, `dense` over" in said
    there = [
        made("c", "skip-nr", 0.6, questions=MANY, file="vqav2/val.jsonl"),
        made("d", "dense", 0.4, questions=MANY, file="vqav2/val.jsonl"),
    ]
    found, said = verdict(16, here + there)
    assert found == "holds"
    assert said.startswith("+20.0")


def test_17_by_the_benchmark_if_it_asked_more(made: MakeRun, verdict: Judge) -> None:
    folders = [
        made(name, name, questions=range(100), fields=lambda q: {"subset": "multihop"})
        for name in ("skip-iter", "dense")
    ]
    ways = {
        "two rounds": {"accuracy": {"mean": 0.4}, "more than dense": gained(-0.1)},
        "dense": {"accuracy": {"mean": 0.5}},
    }
    found, said = verdict(17, folders, multihop={"multihop": ways})
    assert found == "does not hold"
    assert said.startswith("40.0 against 50.0, -10.0 (")


def test_17_multihop(made: MakeRun, verdict: Judge) -> None:
    def fields(question: int) -> dict[str, Any]:
        return {"subset": "multihop" if question % 2 else "small"}

    folders = [
        made("a", "skip-iter", 0.6, questions=MANY, fields=fields),
        made("b", "dense", 0.4, questions=MANY, fields=fields),
    ]
    found, said = verdict(17, folders)
    assert found == "holds"
    assert "on 1,000 questions" in said


@pytest.mark.parametrize(
    ("rescued", "expected"), [(60, "holds"), (20, "does not hold"), (None, "undecided")]
)
def test_18_longtail(made: MakeRun, verdict: Judge, rescued: int | None, expected: str) -> None:
    """Of 100 rare questions none is right, of 100 popular ones all: a gap of 100 points."""

    def fields(helped: int) -> Callable[[int], dict[str, Any]]:
        right = 0 if rescued is None else 1
        return lambda q: {"popularity": q, "score": float(q < helped or (right and q >= 100))}

    folders = [
        made("a", "skip-adr", questions=range(200), fields=fields(rescued or 0)),
        made("b", "skip", questions=range(200), fields=fields(0)),
    ]
    assert verdict(18, folders)[0] == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.6, 0.8, "holds"), (0.1, 0.3, "does not hold")]
)
def test_18_by_the_benchmark(verdict: Judge, low: float, high: float, expected: str) -> None:
    closed = {"fraction": (low + high) / 2, "low": low, "high": high, "gap": 0.2}
    results = {"gap_closed": closed, "questions": {"longtail": 300, "popular": 200}}
    found, said = verdict(18, [], longtail=results)
    assert found == expected
    assert said.endswith("of 20.0 points on 300 rare questions")


@pytest.mark.parametrize(("unique", "expected"), [(5, "holds"), (2, "holds"), (9, "does not hold")])
def test_19_duplicates(made: MakeRun, verdict: Judge, unique: int, expected: str) -> None:
    folder = made("a", "skip", fields=lambda question: {"hits": 10, "unique": unique})
    assert verdict(19, [folder])[0] == expected


def test_19_the_harness_records_hits(looked_up: Answer) -> None:
    record = make_record(Example(1, "a.png", "Why?", {"yes": 1.0}), looked_up, JSONL)
    assert record["hits"] == looked_up.state.retrieved.num_hits
    assert len(record["retrieved"]) <= record["unique"] <= record["hits"]


def corpus_swap(gains: dict[str, float], *, same: bool = True) -> dict[str, Any]:
    corpora = {
        name: {"config_sha256": "a", "components_sha256": "b" if same else name}
        for name in ("pocket-kb", "factbook")
    }
    accuracy = {"pocket-kb": {"mean": 0.5}, "factbook": {"mean": 0.3}}
    domains = {
        name: {"questions": 100, "accuracy": accuracy, "own_less_other": gained(gain)}
        for name, gain in gains.items()
    }
    return {"corpora": corpora, "domains": domains}


@pytest.mark.parametrize(
    ("gain", "same", "expected"),
    [(0.2, True, "holds"), (-0.2, True, "does not hold"), (0.2, False, "does not hold")],
)
def test_20_needs_accuracy_on_both(verdict: Judge, gain: float, same: bool, expected: str) -> None:
    swap = corpus_swap({"things": 0.2, "countries": gain}, same=same)
    found, said = verdict(20, [], corpus_swap=swap)
    assert found == expected
    assert said.startswith("things: 50.0 over pocket-kb, 30.0 over factbook, +20.0 (")


LAYERS = [{"batch": b, "passages": 6, "times_faster": 7.5 + b} for b in (1, 8)]
PATHWAY = {
    "load": {"draft_rate": 0.375},
    "summary": {
        "flops": {"fused": {"times_fewer": 11.0}},
        "latency_ms": {"fused": {"0.375": {"times_faster": 3.0}}},
        "kv_cache": {"fused": {"saved": 0.9}, "read": {"saved": 0.65}},
    },
}
SLOW = {"layers": [*LAYERS, {"batch": 32, "passages": 6, "times_faster": 2.0}]}
FAITHFUL = {"eta": 0.01, "eta_calibrated": 0.01, "spearman": 0.8, "num_questions": 9}
FAITHFUL |= {"proxy": "answer"}
COLLAPSE = {"staged": {"runs": 5, "collapsed": 0}, "joint": {"runs": 5, "collapsed": 4}}


def routing(without: float, with_encoding: float) -> dict[str, Any]:
    return {"trained": {"fraction": without, "fraction_with_encoding": with_encoding}}


@pytest.mark.parametrize(
    ("number", "subject", "results", "expected"),
    [
        (5, "kernels", {"layers": LAYERS}, "holds"),
        (5, "kernels", SLOW, "does not hold"),
        (5, "kernels", {"layers": []}, "not measured"),
        (5, "kernels", {"levels": []}, "not measured"),
        (7, "verifier", {"f1": 0.91}, "holds"),
        (7, "verifier", {"f1": 0.89}, "does not hold"),
        (9, "fidelity", FAITHFUL, "holds"),
        (9, "fidelity", FAITHFUL | {"eta": 0.02}, "does not hold"),
        (11, "collapse", COLLAPSE, "holds"),
        (11, "collapse", COLLAPSE | {"joint": COLLAPSE["staged"]}, "does not hold"),
        (14, "pathway", PATHWAY, "holds"),
        (15, "routing_overhead", routing(0.01, 0.02), "holds"),
        (15, "routing_overhead", routing(0.01, 0.12), "undecided"),
        (15, "routing_overhead", routing(0.06, 0.12), "does not hold"),
    ],
)
def test_claims_of_benchmarks(
    verdict: Judge, number: int, subject: str, results: Any, expected: str
) -> None:
    assert verdict(number, [], **{subject: results})[0] == expected


def test_1_names_the_pathway_without_counting_it(verdict: Judge) -> None:
    found, said = verdict(1, [], pathway=PATHWAY)
    assert found == "not measured"
    assert "At 7B shapes with random weights, no accuracy: fused: 11.00x fewer FLOPs" in said


def test_a_damaged_results_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "kernels_abacus_202611.json").write_text("{")
    with pytest.raises(UserError, match=r"kernels_abacus_202611\.json: not JSON"):
        judge(Evidence([], tmp_path))


def test_the_set_that_a_claim_is_about_counts(made: MakeRun, verdict: Judge) -> None:
    folders = [
        made("a", "skip", 0.6, questions=range(200)),
        made("b", "dense", 0.4, questions=range(200)),
        made("c", "skip", 0.3, questions=MANY, file="other"),
        made("d", "dense", 0.4, questions=MANY, file="other"),
    ]
    assert verdict(13, folders)[0] == "holds", "OK-VQA, though another has more questions"
    assert verdict(13, folders[2:])[0] == "does not hold"


def test_of_other_sets_the_one_with_the_most_questions_counts(
    made: MakeRun, verdict: Judge
) -> None:
    folders = [
        made("a", "skip", 0.6, questions=range(200), file="one"),
        made("b", "dense", 0.4, questions=range(200), file="one"),
        made("c", "skip", 0.3, questions=MANY, file="other"),
        made("d", "dense", 0.4, questions=MANY, file="other"),
    ]
    assert verdict(13, folders)[0] == "does not hold"


SHIPPED = {"verifier": "v2", "reader": "r1", "bridge": "b1"}


@pytest.mark.parametrize(
    ("components", "system", "current"),
    [
        (SHIPPED, "skip", True),
        (SHIPPED, "skip-iter", True),
        ({"verifier": "v2", "reader": "r1"}, "skip", False),  # before the bridge came
        ({"verifier": "v1", "reader": "r1"}, "skip", False),
        ({"verifier": "v2"}, "skip", False),  # before the reader came
        (SHIPPED | {"saliency": "s"}, "skip", False),  # with one that does not ship
        (SHIPPED | {"dense_reader": "d"}, "dense", True),  # a baseline's own
        ({"verifier": "v1", "reader": "r1", "dense_reader": "d"}, "dense", False),
        ({}, "skip", False),
    ],
)
def test_runs_of_another_checkpoint_are_told_apart(
    made: MakeRun, components: dict[str, str], system: str, current: bool
) -> None:
    folder = made("a", system, components=components)
    assert bool(shipping.current([read_run(folder)], SHIPPED)) is current


def test_what_no_longer_ships_decides_nothing(made: MakeRun, tmp_path: Path) -> None:
    """It says what to measure again, and no number."""
    old = [made("old/skip", "skip", 0.9, questions=MANY), made("old/dense", "dense", 0.1)]
    results = tmp_path / "results"
    evidence, earlier = gather([tmp_path / "old"], results)
    assert not evidence.sets
    assert len(earlier.sets[0].runs) == len(old)
    finding = judge(evidence, earlier)[12].finding
    assert str(finding.verdict) == "not measured"
    assert finding.said == "so far on an earlier checkpoint; again with `skipqa eval vqa`"


def test_what_ships_decides(made: MakeRun, tmp_path: Path) -> None:
    shipped = shipping.shipped()
    assert "reader" in shipped
    made("new/skip", "skip", 0.6, questions=MANY, components=shipped)
    made("new/dense", "dense", 0.4, questions=MANY, components=shipped)
    judged = judge(*gather([tmp_path / "new"], tmp_path))
    assert str(judged[12].finding.verdict) == "holds"
    assert "`new/skip`, `new/dense`, commit abc1234" in page(judged)


def test_a_dense_baseline_with_its_own_reader_is_the_strongest_dense(
    made: MakeRun, tmp_path: Path
) -> None:
    shipped = shipping.shipped()
    own = shipped | {"dense_reader": "d"}
    made("new/skip", "skip", 0.6, questions=MANY, components=shipped)
    made("new/dense", "dense", 0.4, questions=MANY, components=shipped)
    made("new/own", "dense", 0.7, questions=MANY, components=own)
    judged = judge(*gather([tmp_path / "new"], tmp_path))
    for number in (1, 13):
        finding = judged[number - 1].finding
        assert finding.verdict is Verdict.FAILS
        assert "against dense with dense_reader" in finding.said


@pytest.mark.parametrize(
    ("named", "uses", "counts"),
    [
        ({"verifier": "v2"}, ("verifier",), True),
        ({"verifier": "v1"}, ("verifier",), False),
        ({"verifier": "v2"}, None, False),  # nothing is said of the reader
        (SHIPPED, None, True),
        (None, None, False),
        (None, (), True),  # depends on none
    ],
)
def test_results_count_by_the_components_they_depend_on(
    tmp_path: Path, named: dict[str, str] | None, uses: tuple[str, ...] | None, counts: bool
) -> None:
    header = {} if named is None else {"components": named}
    (tmp_path / "kernels_abacus_202611.json").write_text(json.dumps({**header, "results": {}}))
    found = Evidence([], tmp_path, SHIPPED).benchmark("kernels", uses)
    assert (found is not None) is counts


def test_why_is_told_only_where_a_claim_does_not_hold(verdict: Judge, tmp_path: Path) -> None:
    verdict(5, [], kernels={"layers": LAYERS})
    judged = judge(Evidence([], tmp_path / "results"))
    assert CLAIMS[4].why not in page(judged)
    verdict(5, [], kernels=SLOW)
    judged = judge(Evidence([], tmp_path / "results"))
    assert CLAIMS[4].why in page(judged)


def test_claims_command(made: MakeRun, tmp_path: Path) -> None:
    words = ["report", "claims", str(made("a", "skip")), "--results", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--json", "--out", str(tmp_path / "claims.md")])
    assert done.exit_code == 0, done.exception
    numbers = [claim["number"] for claim in json.loads(done.stdout)["claims"]]
    assert numbers == list(range(1, 21))
    assert "### 20. another corpus" in (tmp_path / "claims.md").read_text()
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0
    assert "not measured" in shown.stdout
