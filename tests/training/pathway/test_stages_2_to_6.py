"""Stages II to VI on a small world over the real backbone: each ends, resumes, repeats itself."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import small_world
import tiny_training
import torch
from safetensors.torch import load_file
from torch import Tensor

from skipqa import components
from skipqa.data.held_out import Split
from skipqa.errors import UserError
from skipqa.evaluation import systems
from skipqa.evaluation.systems import Variant
from skipqa.nn.fusion_reader import LocalTokens
from skipqa.nn.region_query import RegionQueryConfig, SparseRegionQuery
from skipqa.pipeline import Pipeline
from skipqa.stages.budget_signals import signals
from skipqa.stages.fuse import local_tokens
from skipqa.stages.prompts import trained_prompt
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.training.pathway import (
    budget_grid,
    gather,
    stage2_saliency,
    stage3_fusion,
    stage4_verifier,
    stage5_budget,
    stage6_joint,
)
from skipqa.training.pathway.answering import GIGA
from skipqa.training.pathway.budget_settings import BudgetTraining
from skipqa.training.pathway.collapse import openness
from skipqa.training.pathway.context import Gathering, TrainingContext
from skipqa.training.pathway.fusion_examples import Scenes, from_records, generated
from skipqa.training.pathway.fusion_loss import ReaderNetworks, words_read
from skipqa.training.pathway.gather import Gathered
from skipqa.training.pathway.read_today import ReadToday
from skipqa.training.pathway.records import replay, replaying
from skipqa.training.pathway.stage import PathwayStage
from skipqa.training.pathway.stage3_region_query import RegionQueryPart, RegionQueryTraining
from skipqa.training.pathway.stage5_reading import ReadingPart
from skipqa.training.pathway.verifier_settings import PairTraining, VerifierTraining
from skipqa.training.pipelines import Source
from skipqa.training.run import Run
from skipqa.training.sampling import inverse_frequency, nested_inverse_frequency
from skipqa.types import Budget

COUNTS = {f"pocket-kb/{kind}": 99 for kind in ("train", "fresh", "held-out", "val")}
# Measured of six questions and unknown of the others, as of most in a real run on a CPU
FEW_GAINS = partial(stage5_budget.best_gains, on_cpu=6)
FUSION = stage3_fusion.FusionTraining(
    pointing_steps=2,
    pointing_batch=4,
    steps=3,
    batch=4,
    early_layers=1,
    edge_width=8,
    read=3,
    generated=8,
    ranks=(2,),
    region_query=RegionQueryTraining(steps=3, batch=4, hidden=8),
)


def tiny_reader(
    context: TrainingContext, bfloat16: bool
) -> tuple[ReaderNetworks, Callable[[], Mapping[str, Tensor]]]:
    """A decoder with random weights in place of the real one."""
    decoder = tiny_training.decoder()
    networks = ReaderNetworks(
        decoder, tiny_training.tokenizer(), trained_prompt, True, context.embed, bfloat16
    )
    return networks, decoder.state_dict


TINY_FUSION = stage3_fusion.FusionPart(tiny_reader)
# By the part that ends the stage: the stage, its settings, and the files it leaves
STAGES: dict[str, tuple[PathwayStage, Any, tuple[str, ...]]] = {
    "saliency": (
        stage2_saliency.STAGE,
        stage2_saliency.SaliencyTraining(steps=6, batch=4, hidden=8),
        ("saliency", "keep_head"),
    ),
    "fusion": (
        replace(stage3_fusion.STAGE, parts=(RegionQueryPart(), TINY_FUSION)),
        replace(FUSION, decoder_steps=2),
        ("region_query", "fusion_reader", "reader"),
    ),
    "verifier": (
        stage4_verifier.STAGE,
        VerifierTraining(
            steps=30,
            batch=8,
            hidden=16,
            oracle_questions=1,
            pairs=PairTraining(steps_on_cpu=2, batch=2, hidden=8, ranks=(4,)),
        ),
        ("verifier", "pair_verifier", "pair_encoder"),
    ),
    "budget": (
        replace(stage5_budget.STAGE, parts=(stage5_budget.BudgetPart(FEW_GAINS), ReadingPart())),
        BudgetTraining(steps=10, questions=3, folds=2),
        ("budget",),
    ),
    "joint": (
        replace(stage6_joint.STAGE, parts=(stage6_joint.JointPart(TINY_FUSION),)),
        stage6_joint.JointTraining(
            steps=3,
            saliency=stage2_saliency.SaliencyTraining(batch=4, hidden=8),
            fusion=FUSION,
            verifier=VerifierTraining(batch=4, hidden=16, oracle_questions=1),
        ),
        ("saliency", "fusion_reader", "verifier"),
    ),
}


def run_stage(name: str, context: TrainingContext) -> dict[str, Any]:
    stage, settings, _ = STAGES[name]
    for part in stage.parts:
        part.run(context, settings)
    return context.run.metrics()


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, photo: Path) -> Path:
    return small_world.write(tmp_path_factory.mktemp("world") / "pocket-kb", photo)


@pytest.fixture(scope="module")
def rows(world: Path) -> list[Gathered]:
    found = sorted(
        gather.questions(None, world, COUNTS, seed=1),
        key=lambda row: int(str(row.id).partition("-")[2]),
    )
    counts: dict[Split, int] = {
        "train": small_world.TRAIN,
        "held-out": small_world.HELD_OUT,
        "val": small_world.VAL,
    }
    splits = [split for split, count in counts.items() for _ in range(count)]
    return [replace(row, split=split) for row, split in zip(found, splits, strict=True)]


@pytest.fixture(scope="module")
def context(world: Path, pipeline: Pipeline, rows: list[Gathered]) -> TrainingContext:
    return small_world.context(world, pipeline, rows)


@pytest.fixture(scope="module")
def finished(context: TrainingContext, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every stage, each in a folder of its own."""
    folders = {}
    for name in STAGES:
        folders[name] = tmp_path_factory.mktemp(name)
        run_stage(name, small_world.again(context, folders[name]))
    return folders


def same(first: Path, second: Path, files: tuple[str, ...]) -> bool:
    for name in files:
        a, b = (load_file(folder / "trained" / f"{name}.safetensors") for folder in (first, second))
        if a.keys() != b.keys() or not all(torch.equal(a[key], b[key]) for key in a):
            return False
    return True


def test_questions_are_drawn_by_the_seed(world: Path) -> None:
    some = gather.questions(None, world, {"pocket-kb/train": 5}, seed=1)
    more = gather.questions(None, world, {"pocket-kb/train": 9}, seed=1)
    assert [row.id for row in some] == [row.id for row in more][:5]
    with pytest.raises(UserError, match="nothing to learn from"):
        gather.questions(None, world, {"pocket-kb/val": 5}, seed=1)


def test_records_hold_what_the_pipeline_saw(context: TrainingContext, rows: list[Gathered]) -> None:
    records = context.records
    assert len(records) == len(rows)
    assert records["meaning"].shape == (len(rows), 256, 384)
    assert records.select("val") == list(range(len(rows) - small_world.VAL, len(rows)))
    gold = records["gold"].any(1).float().mean()
    assert gold > 0.5
    for i in range(len(rows)):
        ids = [one.passage.id for one in records.candidates(i)]
        flags = records["gold"][i].tolist()
        assert [id in rows[i].gold_ids for id in ids] == flags[: len(ids)]
        assert not any(flags[len(ids) :])


def test_a_record_goes_through_the_stages_as_its_question_did(context: TrainingContext) -> None:
    records, budget = context.records, context.pipeline.config.budget
    pipeline = replaying(context.pipeline, saliency=None, region_query=None)
    for i in (0, 5):
        again, _ = replay(records, i, pipeline, Budget(budget.kept_tokens(256), 16))
        kept = again.kept.positions == records["kept"][i].nonzero()[:, 0]
        assert kept.float().mean() > 0.95
        found = [(p.row, p.text) for p in again.retrieved.passages]
        assert found == [(p.row, p.text) for p in records.candidates(i)]
        assert any(p.text != p.passage.text for p in again.retrieved.passages)  # an excerpt
        assert [r.box for r in again.regions] == [r.box for r in records.regions(i)]


def test_records_do_not_depend_on_what_is_learned_from_them(context: TrainingContext) -> None:
    widths, concepts = context.pipeline.backbone.widths, context.pipeline.backbone.concepts
    query = SparseRegionQuery(
        RegionQueryConfig(widths.vision, len(concepts), widths.text, hidden=8)
    )
    gathering = gather.with_most_passages(context.pipeline.with_components(region_query=query))
    assert {getattr(gathering.components, n) for n in gather.LEARNED_BEFORE_RETRIEVAL} == {None}


def photo_of(row: Gathered) -> BytesIO:
    with zipfile.ZipFile(row.archive) as archive:
        return BytesIO(archive.read(row.image))


def test_records_hold_the_signals_that_answering_sees(
    context: TrainingContext, rows: list[Gathered]
) -> None:
    for i in (0, 7):
        state = context.pipeline.run(State(photo_of(rows[i]), rows[i].question), stop="draft")
        found = signals(state.question, state.low_res, state.draft)
        torch.testing.assert_close(context.records["signals"][i], found)
        assert context.records.question(i).span == state.question.span


def test_the_grid_costs_what_answering_costs(
    context: TrainingContext, rows: list[Gathered]
) -> None:
    i = 1
    grid = budget_grid.evaluate_grid(context, [i])
    assert grid.value.shape == grid.giga.shape == (1, 2, 4)
    assert (grid.giga[0, :, 0] == grid.giga[0, 0, 0]).all()
    assert (grid.value[0, :, 0] == grid.value[0, 0, 0]).all()
    for column, passages in ((0, 0), (2, 6)):
        fixed = context.pipeline.with_config(budget={"tokens": 32, "passages": passages})
        answer = fixed.answer(photo_of(rows[i]), rows[i].question, fast_path=False)
        spent = answer.trace.flops / GIGA
        assert float(grid.giga[0, 0, column]) == pytest.approx(spent, rel=0.01)
        right = rows[i].answers.get(answer.text.lower(), 0.0)
        assert float(grid.value[0, 0, column]) == right


def test_gathering_goes_on_after_a_kill(
    context: TrainingContext, rows: list[Gathered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "A_FILE", 2)
    observed: list[str] = []
    observe = gather.observe

    def counted(pipeline: Pipeline, row: Gathered, photo: bytes) -> Any:
        observed.append(row.id)
        if len(observed) == 4:
            raise Killed
        return observe(pipeline, row, photo)

    monkeypatch.setattr(gather, "observe", counted)
    of, here = {"of": "tests"}, small_world.workers()
    with pytest.raises(Killed):
        gather.gather(rows[:4], of, here, Run(tmp_path))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    gather.gather(rows[:4], of, here, Run(tmp_path))
    assert observed[4:] == [row.id for row in rows[2:4]]
    with pytest.raises(UserError, match="holds a run with other number, questions"):
        gather.gather(rows[:3], of, here, Run(tmp_path))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_leaves_its_parts_and_says_which_won(finished: dict[str, Path], name: str) -> None:
    folder, files = finished[name], STAGES[name][2]
    metrics = json.loads((folder / "metrics.json").read_text())
    ships = metrics[name]["ships"]
    ships = ships if isinstance(ships, dict) else {files[0]: ships}
    pairs = metrics.get("pairs", {}).get("ships", False)
    ships = ships | dict.fromkeys(("pair_verifier", "pair_encoder"), pairs)
    ships = ships | {"region_query": metrics.get("region_query", {}).get("ships", False)}
    ships = ships | {"keep_head": True}  # a rival's, it has nothing to win
    for part in files:
        assert (folder / "trained" / f"{part}.safetensors").is_file()
        assert (folder / f"{part}.safetensors").is_file() == ships.get(part, False)
    learned = components.load(folder / "trained", preset="pocket")
    assert all(getattr(learned, part) is not None for part in files)


def test_what_a_stage_leaves_needs_no_other_records(finished: dict[str, Path]) -> None:
    """None of it comes before retrieval, so the next stage may begin with it."""
    depends_on = [
        gather.records_fingerprint(Source(components=folder)) for folder in finished.values()
    ]
    assert all(one == depends_on[0] for one in depends_on)
    whole = [Source(components=folder).fingerprint() for folder in finished.values()]
    assert whole[0] != whole[-1]


@pytest.mark.parametrize(
    ("name", "stop_at"),
    [
        ("saliency", "pruning questions"),
        ("saliency", "keep_head"),
        ("verifier", "reading records"),
        ("fusion", "fusion"),
        ("joint", "joint"),
    ],
)
def test_a_killed_stage_ends_with_the_same_bits(
    context: TrainingContext, finished: dict[str, Path], tmp_path: Path, name: str, stop_at: str
) -> None:
    """And the same again from nothing: the seed decides."""

    def progress(what: str, done: int, total: int, loss: float | None) -> None:
        if what == stop_at:
            raise Killed

    with pytest.raises(Killed):
        run_stage(name, small_world.again(context, tmp_path, progress=progress))
    run_stage(name, small_world.again(context, tmp_path))
    assert same(tmp_path, finished[name], STAGES[name][2])


def test_a_finished_stage_does_nothing(context: TrainingContext, finished: dict[str, Path]) -> None:
    def progress(*_: object) -> None:
        raise AssertionError

    for name in STAGES:
        metrics = run_stage(name, small_world.again(context, finished[name], progress=progress))
        assert metrics == json.loads((finished[name] / "metrics.json").read_text())


def test_the_keep_head_is_measured_as_the_saliency_is_and_prunes(
    context: TrainingContext, finished: dict[str, Path]
) -> None:
    """Its folder has it next to what answers: all that `--components` needs."""
    metrics = json.loads((finished["saliency"] / "metrics.json").read_text())
    for split in ("held-out", "val"):
        saliency, blind = (metrics[name][split] for name in ("saliency", "keep_head"))
        assert saliency["questions"] == blind["questions"] > 0
        for count, here in saliency["by_tokens"].items():
            assert here["training_free"] == blind["by_tokens"][count]["training_free"]
    learned = components.load(finished["saliency"], preset="pocket")
    components.check_widths(learned, context.pipeline.backbone.widths, preset="pocket")
    assert learned.keep_head is not None
    pipeline = context.pipeline.with_components(keep_head=learned.keep_head)
    pruner = systems.build(Variant("skip", "dynamicvit"), pipeline).stages["prune"]
    record = StageRecord("prune")
    state = context.records.before_prune(0, len(pipeline.backbone.concepts)).add(
        budget=Budget(29, 1)
    )
    asked_otherwise = state.add(question=context.records.question(1))
    one, other = (pruner(some, record).kept for some in (state, asked_otherwise))
    expected = learned.keep_head(context.records["meaning"][0].float()).topk(29).indices
    assert set(one.positions.tolist()) == set(expected.tolist())
    assert torch.equal(one.positions, other.positions)  # whatever is asked
    assert record.why == "by the keep head"


def test_collapse_is_seen() -> None:
    gates = torch.rand(10, 64)
    assert not openness(gates).collapsed
    undecided = openness(gates * 0.4)  # as drawn, a fifth is open
    assert (undecided.open, undecided.collapsed, undecided.drawn_collapsed) == (0.0, True, False)
    assert openness(gates * 0.004).drawn_collapsed
    assert openness(1 - gates * 0.4).collapsed
    assert not openness(torch.arange(64) < 16).collapsed


def test_rare_categories_come_as_often() -> None:
    draw = inverse_frequency(list(range(100)), ["common"] * 90 + ["rare"] * 10, 400, seed=3)
    assert torch.equal(draw(7), draw(7))
    assert not torch.equal(draw(7), draw(8))
    rare = torch.cat([draw(step) for step in range(5)]) >= 90
    assert 0.45 < rare.float().mean() < 0.55


def test_data_sets_come_as_often_whatever_their_categories() -> None:
    paths = [("one", f"category {n % 5}") for n in range(90)] + [("other", "all")] * 10
    draw = nested_inverse_frequency(list(range(100)), paths, 400, seed=3)
    other = torch.cat([draw(step) for step in range(5)]) >= 90
    assert 0.45 < other.float().mean() < 0.55


def test_the_gates_shut_out_what_speaks_for_others() -> None:
    """The right passage is likelier when only the token that fits it is let through."""
    tokens = torch.eye(4)[None, :3]
    question, passages = torch.zeros(1, 4), torch.eye(4)[None, :2]
    everything = stage2_saliency.passage_logits(question, tokens, torch.ones(1, 3), passages)
    chosen = stage2_saliency.passage_logits(
        question, tokens, torch.tensor([[1.0, 0.0, 0.0]]), passages
    )
    assert everything.softmax(1)[0, 0] == pytest.approx(0.5)
    assert chosen.softmax(1)[0, 0] > 0.99


def test_scenes_are_the_tokens_that_answering_fuses(context: TrainingContext) -> None:
    records, num_concepts = context.records, len(context.pipeline.backbone.concepts)
    scenes = Scenes.of(records, num_concepts, torch.device("cpu"))
    several = scenes(torch.tensor([0, 4]))
    for place, i in enumerate((0, 4)):
        kept = records.after_retrieve(i, num_concepts).kept
        local, _ = local_tokens(kept, num_concepts)
        assert several.kept_BV is local.kept_BV is None
        for name in set(LocalTokens.__slots__) - {"kept_BV"}:
            torch.testing.assert_close(getattr(several, name)[place], getattr(local, name)[0])
    assert several.features_BVF.any()


def test_features_of_records_are_those_of_the_image(
    context: TrainingContext, rows: list[Gathered]
) -> None:
    state = gather.with_most_passages(context.pipeline).run(
        State(photo_of(rows[2]), rows[2].question), stop="prune"
    )
    records = context.records
    featured = records["featured"][2].long()
    seen = state.kept.tokens.features[featured]
    torch.testing.assert_close(records["features"][2].float(), seen, rtol=1e-3, atol=1e-3)
    assert set(state.kept.positions.tolist()) <= set(featured.tolist())


def test_generated_questions_are_answered_by_their_passage(context: TrainingContext) -> None:
    made = generated(context, context.rows("train", gold=True), 30, seed=1)
    assert len(made) == 30
    for one in made:
        [fact] = one.gold
        assert one.answer in fact.lower()
        assert fact not in one.others


def test_what_nothing_is_trained_on_is_neither_right_nor_wrong(context: TrainingContext) -> None:
    """And no question is made of it; so is what states an answer without being known as gold."""
    rows = context.rows("train", gold=True)
    today = [ReadToday((), (), (), 0, ())] * len(rows)
    coffee = "passages:other:coffee"
    told = {one.text for i in rows for one in context.records.candidates(i)}
    [of_coffee] = {text for text in told if text.startswith("Coffee is")}
    unseen = replace(context, unseen_passages=frozenset({coffee}))
    all_state = {**context.records.tensors, "stated": context.records["passages"] >= 0}
    stating = replace(context, records=replace(context.records, tensors=all_state))
    for known, in_others, in_neither in (
        (context, True, False),
        (unseen, False, True),
        (stating, False, True),
    ):
        found = from_records(known, rows, today)
        assert any(of_coffee in one.others for one in found) is in_others
        assert any(of_coffee in one.neither for one in found) is in_neither
        assert all(not set(one.gold) & {*one.others, *one.neither} for one in found)
    for known, is_read in ((context, True), (unseen, False)):
        made = generated(known, rows, 60, seed=1)
        assert any(of_coffee in (*one.gold, *one.others) for one in made) is is_read


def test_held_out_words_are_those_of_a_decoder_that_still_changes(
    context: TrainingContext, tmp_path: Path
) -> None:
    """It is compared at several ranks, and what the reader points by are its own early states."""
    here = small_world.again(context, tmp_path)
    data = TINY_FUSION.prepare(here, FUSION)
    model = TINY_FUSION.build(here, FUSION)
    model["decoder"] = copy.deepcopy(data.networks.decoder)
    held_out = stage3_fusion.held_out_of(here, stage3_fusion.with_decoder(data, model))
    assert held_out.today

    def states() -> Tensor:
        batch = held_out.tables.batch([held_out.offer(0)])
        _, words = words_read(held_out.tables, batch, FUSION.early_layers)
        return words.states_BKTD[words.there_BKT]

    before = states()
    with torch.no_grad():
        for parameter in model["decoder"].parameters():
            parameter.mul_(1.5)
    assert not torch.allclose(states(), before)


def test_a_limit_is_of_every_kind() -> None:
    assert set(Gathering().at_most(7).counts().values()) == {0, 7}
    assert Gathering().counts()["okvqa/train"] > 7
