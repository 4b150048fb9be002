"""The reader's gains, the labels that come from them, and how few passages may be kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import small_world
import tiny_training
import torch

from skipqa.backbones.presets.pocket import Pocket
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.pipeline import Pipeline
from skipqa.stages.signals import SIGNALS
from skipqa.training.pathway import gains, gather
from skipqa.training.pathway.context import Gathering, TrainingContext
from skipqa.training.pathway.gains import AnswerScorer, Gains
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.verifier_cases import collect_cases, labelled
from skipqa.training.pathway.verifier_quality import (
    best_threshold,
    compare_min_passages,
    compare_verifiers,
)

ROWS = 6


@pytest.fixture(scope="module")
def context(
    tmp_path_factory: pytest.TempPathFactory, photo: Path, pipeline: Pipeline
) -> TrainingContext:
    """Half of the questions are held out."""
    folder = small_world.write(tmp_path_factory.mktemp("world") / "pocket-kb", photo)
    counts = dict.fromkeys(Gathering().counts(), 99)
    rows = gather.questions(None, folder, counts, seed=1)[:ROWS]
    halves = [replace(row, split=("train", "held-out")[n % 2]) for n, row in enumerate(rows)]
    return small_world.context(folder, pipeline, halves)


@pytest.fixture(scope="module")
def measured(context: TrainingContext) -> Gains:
    return gains.load_or_measure(context, on_cpu=2)


def as_source(records: Records, source: str, **about: object) -> Records:
    """The same records, as if of another data set."""
    changed = [one | {"source": source, "gold": [], **about} for one in records.about]
    return replace(records, about=changed)


def test_questions_of_all_data_sets(tmp_path: Path, photo: Path) -> None:
    """Each with what its data set knows of the answer, split as stage I splits them."""
    pocket_kb = small_world.write(tmp_path / "pocket-kb", photo)
    data = tiny_training.write_fvqa(tiny_training.write_data(tmp_path / "data"))
    counts = dict.fromkeys(Gathering().counts(), 99)
    rows = gather.questions(data, pocket_kb, counts, seed=1)
    found = {(row.source, row.split) for row in rows}
    splits = ("train", "held-out", "val")
    assert found >= {(source, split) for source in ("okvqa", "fvqa") for split in splits}
    assert all(row.fact for row in rows if row.source == "fvqa")
    assert all(row.category and row.archive.is_file() and row.answers for row in rows)
    assert all(row.gold_ids for row in rows if row.source == "pocket-kb")


def test_crowded_and_unseen_are_sources_of_their_own(tmp_path: Path, photo: Path) -> None:
    pocket_kb = small_world.write(tmp_path / "pocket-kb", photo)
    rows = [small_world._row(n, f"scenes/{n}.webp") for n in range(4)]
    thing = {"entity": "cup:mug", "name": "mug", "kind": "cup", "photo": "a", "box": [0.5] * 4}
    rows[1] |= {"things": [thing]}
    rows[2] |= {"things": [thing], "entity": "drink:tea"}
    tiny_training.write_lines(pocket_kb / "val.jsonl", rows)
    unseen = {"entity": "drink:tea", "name": "tea", "names": [], "kind": "drink", "passages": []}
    (pocket_kb / "unseen.json").write_text(f"[{unseen}]".replace("'", '"'))
    counts = dict.fromkeys(Gathering().counts(), 99)
    val = [row for row in gather.questions(None, pocket_kb, counts, 1) if row.split == "val"]
    by_id = sorted((str(row.id), row.source) for row in val)
    assert [source for _, source in by_id] == ["pocket-kb", "crowded", "unseen", "pocket-kb"]


def test_a_gain_is_the_readers(context: TrainingContext, measured: Gains) -> None:
    """As the backbone itself computes it, one answer and one passage at a time."""
    pocket, records = context.pipeline.backbone, context.records
    assert isinstance(pocket, Pocket)
    assert int(measured.known.sum()) == 2
    scorer = AnswerScorer.of(context)
    for i in measured.known.nonzero()[:, 0].tolist():
        assert measured.passage[i, len(records.places(i)) :].isnan().all()
        ((answer, score),) = scorer.answers[i].items()
        assert score == 1.0
        before, after = (
            pocket.loglikelihood(scorer.prompt(i, read), [answer])[0][0] for read in ((), (0,))
        )
        assert float(measured.unread[i]) == pytest.approx(before, abs=0.02)
        gain = min(max(after - before, -gains.LARGEST), gains.LARGEST)
        assert float(measured.passage[i, 0]) == pytest.approx(gain, abs=0.04)
        fact = f"Fact: {records.candidates(i)[0].text}"
        assert scorer.prompt(i, (0,)).startswith(fact)


def test_gains_are_measured_once(
    context: TrainingContext, measured: Gains, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(AnswerScorer, "__call__", fail)
    again = gains.load_or_measure(context, on_cpu=2)
    assert torch.equal(again.unread.nan_to_num(), measured.unread.nan_to_num())
    assert torch.equal(again.passage.nan_to_num(), measured.passage.nan_to_num())
    about = [one | {"question": "What is it?"} for one in context.records.about]
    other = replace(context.records, about=about)
    with pytest.raises(AssertionError):
        gains.load_or_measure(replace(context, records=other), on_cpu=2)


def test_several_answers_count_by_their_scores(context: TrainingContext) -> None:
    scorer = AnswerScorer.of(context)
    one, other = (
        replace(scorer, answers=[answers] * ROWS) for answers in ({"italy": 1.0}, {"milk": 0.5})
    )
    both = replace(scorer, answers=[{"italy": 1.0, "milk": 0.5}] * ROWS)
    readings = [(0, ()), (0, (1, 0))]
    a, b, together = (each(readings) for each in (one, other, both))
    torch.testing.assert_close(together, torch.logaddexp(a, b), atol=1e-3, rtol=1e-3)


def test_labels(context: TrainingContext) -> None:
    """Gold first; then the gain, where gold passages are not named; else nothing is known."""
    records, nothing = context.records, Gains.unknown(context.records)
    there = records["passages"] >= 0
    gold = records["gold"]
    some = replace(nothing, passage=torch.where(there, 1.0, math.nan))
    many = replace(nothing, passage=torch.where(there, 3.0, math.nan))

    labels, known = labelled(records, nothing)
    assert torch.equal(labels, gold.float())
    assert torch.equal(known, there)
    _, known = labelled(records, many)  # stating the answer, and helpful: who knows
    assert torch.equal(known, there & (gold | ~records["stated"]))

    okvqa = as_source(records, "okvqa")
    okvqa = replace(okvqa, tensors=records.tensors | {"gold": torch.zeros_like(gold)})
    assert not labelled(okvqa, nothing)[1].any()
    labels, known = labelled(okvqa, some)
    assert torch.equal(known, there)
    assert set(labels[there].tolist()) == {0.5}
    assert set(labelled(okvqa, many)[0][there].tolist()) == {1.0}

    fvqa = as_source(records, "fvqa", fact="espresso is from italy")
    labels, known = labelled(fvqa, nothing)
    assert torch.equal(known, there)
    assert torch.equal(labels, gold.float())


def test_comparison_by_source_and_corpus(context: TrainingContext, measured: Gains) -> None:
    held_out = context.records.select("held-out")
    cases = collect_cases(context, held_out).with_gains(context.records, measured)
    torch.manual_seed(0)
    verifier = Verifier(VerifierConfig(384, 384, hidden=8, signals=SIGNALS)).eval()
    threshold = best_threshold(verifier, cases, held_out)
    found = compare_verifiers(context, verifier, cases, held_out, threshold)
    assert list(found["by_source"]) == ["pocket-kb"]
    assert list(found["by_corpus"]) == ["index"]
    for name in ("trained", "training_free"):
        for part in (found["by_source"]["pocket-kb"], found["by_corpus"]["index"]):
            assert part[name]["f1"] == found[name]["f1"]
    assert found["questions"] == len(held_out)


def test_as_few_passages_are_kept_as_is_best(context: TrainingContext) -> None:
    """None where passages harm, and more where they help."""
    records = context.records
    rows, there = list(range(len(records))), records["passages"] >= 0
    config = {"max_passages": 1}
    one = replace(context, pipeline=context.pipeline.with_config(decode=config))
    nu = torch.zeros(records["passages"].shape)
    for gain, chosen in ((-1.0, 0), (1.0, 1)):
        passages = torch.where(there, gain, math.nan)
        found = compare_min_passages(one, nu, Gains(passages, torch.zeros(len(rows))), rows, 0.5)
        assert found["chosen"] == chosen
        assert found["by_min_passages"]["1"]["gain"] == pytest.approx(gain)
        assert found["by_min_passages"]["0"]["unread"] == 1.0
    nothing = compare_min_passages(one, nu, Gains.unknown(records), rows, 0.5)
    assert nothing == {"questions": 0, "chosen": None}


def test_two_passages_are_read_together(context: TrainingContext, measured: Gains) -> None:
    rows = measured.known.nonzero()[:, 0].tolist()
    nu = torch.linspace(0.9, 0.1, 16).expand(len(context.records), -1)
    two = replace(context, pipeline=context.pipeline.with_config(decode={"max_passages": 2}))
    found = compare_min_passages(two, nu, measured, rows, 0.0)
    scorer = AnswerScorer.of(context)
    together = scorer([(i, (0, 1)) for i in rows]) - measured.unread[rows]
    expected = float(together.clamp(-gains.LARGEST, gains.LARGEST).mean())
    for least in ("0", "1", "2"):
        assert found["by_min_passages"][least]["gain"] == pytest.approx(expected, abs=0.02)
        assert found["by_min_passages"][least]["passages_read"] == 2.0
    assert found["chosen"] == 0


def test_the_best_passage_of_each_question() -> None:
    nan = torch.nan
    gains = Gains(torch.tensor([[0.5, 2.0], [-1.0, nan], [nan, nan]]), torch.zeros(3))
    assert gains.of_best()[:2].tolist() == [2.0, -1.0]
    assert gains.of_best()[2].isnan()
