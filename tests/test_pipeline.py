"""The full path on the real parts: answer, evidence, JSON, and a trace that adds up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from skipqa.backbones.networks import mobile_sam
from skipqa.backbones.segmenter import Segmenter
from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.pipeline import NAMES, Answer, Pipeline, load
from skipqa.stages.regions import iou

QUESTION = "How is this drink brewed?"
ESPRESSO = "wordnet:n07920052"
STAGES = "encode draft budget look prune regions zoom read_text retrieve verify fuse decode".split()
assert list(NAMES) == STAGES


def same_but_for_time(answer: Answer) -> dict[str, Any]:
    found = answer.as_dict()
    del found["latency_ms"]
    for stage in found["stages"]:
        del stage["ms"]
    return found


def test_answer_comes_from_the_gloss_of_what_the_photo_shows(looked_up: Answer) -> None:
    assert looked_up.route == "full"
    assert "forcing hot water" in looked_up.text or "pressure" in looked_up.text
    assert looked_up.evidence[0].id == ESPRESSO
    assert "pressure" in looked_up.evidence[0].text
    scores = [evidence.score for evidence in looked_up.evidence]
    assert scores == sorted(scores, reverse=True)


def test_json_has_exactly_these_keys_and_types(looked_up: Answer) -> None:
    found = json.loads(json.dumps(looked_up.as_dict()))
    types = {
        "answer": str,
        "route": str,
        "confidence": type(None),  # nothing was calibrated for untrained parts
        "grounded": bool,
        "evidence": list,
        "text": list,
        "regions": list,
        "tokens": dict,
        "passages": dict,
        "stages": list,
        "flops": int,
        "latency_ms": float,
    }
    assert {key: type(value) for key, value in found.items()} == types
    for evidence in found["evidence"]:
        assert {key: type(value) for key, value in evidence.items()} == {
            "id": str, "title": str, "text": str, "score": float, "region": int,
        }  # fmt: skip
        assert 0 <= evidence["region"] < len(found["regions"])
    for region in found["regions"]:
        assert set(region) == {"box", "tokens"}
        left, top, right, bottom = region["box"]
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1
        assert isinstance(region["tokens"], int)
        assert region["tokens"] > 0
    assert {key: type(value) for key, value in found["tokens"].items()} == {
        "total": int, "kept": int,
    }  # fmt: skip
    assert {key: type(value) for key, value in found["passages"].items()} == {
        "retrieved": int, "unique": int, "kept": int,
    }  # fmt: skip
    for stage in found["stages"]:
        assert {key: type(value) for key, value in stage.items()} == {
            "name": str, "ms": float, "flops": int,
        }  # fmt: skip
    assert [stage["name"] for stage in found["stages"]] == STAGES


def test_sums_agree(looked_up: Answer) -> None:
    found = looked_up.as_dict()
    assert sum(stage["flops"] for stage in found["stages"]) == found["flops"]
    rounding = 0.005 * (len(STAGES) + 1)
    assert sum(s["ms"] for s in found["stages"]) == pytest.approx(found["latency_ms"], abs=rounding)
    assert sum(region["tokens"] for region in found["regions"]) == found["tokens"]["kept"]
    passages = found["passages"]
    assert passages["retrieved"] >= passages["unique"] >= passages["kept"]
    assert passages["kept"] == len(found["evidence"])


def test_trace_accounts_for_everything_dropped(looked_up: Answer) -> None:
    trace, state = looked_up.trace, looked_up.state
    retrieved, verified, fused = state.retrieved, state.verified, state.fused
    positions = state.kept.positions

    def counts(stage: str) -> tuple[int, int]:
        record = trace[stage]
        assert record.kept is not None
        assert record.dropped is not None
        return record.kept, record.dropped

    assert counts("encode") == (64, 0)
    assert counts("look") == (256, 0)
    assert sum(counts("prune")) == 256
    assert counts("prune")[0] == len(positions)
    assert counts("regions") == (len(positions), 0)
    members = sorted(member for region in state.regions for member in region.members)
    assert members == positions.tolist()
    assert sum(counts("retrieve")) == retrieved.num_hits
    assert counts("retrieve")[0] == len(retrieved.passages)
    assert sum(counts("verify")) == len(retrieved.passages)
    kept_or_rejected = [*verified.passages, *(passage for passage, _ in verified.rejected)]
    assert sorted(p.row for p in kept_or_rejected) == sorted(p.row for p in retrieved.passages)
    assert sum(counts("fuse")) == fused.edges.numel()
    assert counts("fuse")[0] == int(fused.edges.sum())
    assert sum(counts("decode")) == len(verified.passages)
    assert all(record.why for record in trace.stages)


def test_same_question_same_answer(pipeline: Pipeline, looked_up: Answer, photo: Path) -> None:
    again = pipeline.answer(photo, QUESTION)
    assert same_but_for_time(again) == same_but_for_time(looked_up)


@pytest.mark.parametrize("question", [QUESTION, "What is this?"])
def test_drafting_in_parallel_changes_nothing(
    pipeline: Pipeline, photo: Path, question: str
) -> None:
    """Answer and trace are those of one stage after the other, whether or not the draft is
    accepted."""
    parallel = pipeline.with_config(draft={"parallel": True})
    one, other = (system.answer(photo, question) for system in (pipeline, parallel))
    assert same_but_for_time(one) == same_but_for_time(other)
    assert [s.why for s in one.trace.stages] == [s.why for s in other.trace.stages]


def test_fast_path_names_what_is_seen_and_stops(drafted: Answer) -> None:
    assert drafted.route == "draft"
    assert drafted.text == "espresso"
    found = drafted.as_dict()
    assert [stage["name"] for stage in found["stages"]] == ["encode", "draft"]
    assert found["evidence"] == found["regions"] == []
    assert found["passages"] == {"retrieved": 0, "unique": 0, "kept": 0}
    assert found["tokens"] == {"total": 64, "kept": 0}
    assert "budget" not in drafted.state


def test_without_the_fast_path_everything_is_looked_up(pipeline: Pipeline, photo: Path) -> None:
    answer = pipeline.answer(photo, "What is this?", fast_path=False)
    assert answer.route == "full"
    assert [stage.name for stage in answer.trace.stages] == STAGES
    assert ESPRESSO in [evidence.id for evidence in answer.evidence]


def test_any_way_to_hand_over_an_image_is_the_same(
    pipeline: Pipeline, drafted: Answer, photo: Path
) -> None:
    with photo.open("rb") as file:
        assert same_but_for_time(pipeline.answer(file, "What is this?")) == same_but_for_time(
            drafted
        )
    with Image.open(photo) as image:
        assert pipeline.answer(image, "What is this?").text == drafted.text


def test_a_batch_answers_as_one_by_one_and_encodes_an_image_once(
    pipeline: Pipeline, looked_up: Answer, drafted: Answer, photo: Path
) -> None:
    answers = pipeline.answer_batch([photo, photo], [QUESTION, "What is this?"])
    first, second = map(same_but_for_time, answers)
    assert first == same_but_for_time(looked_up)
    alone = same_but_for_time(drafted)
    assert [second[key] for key in ("answer", "route")] == [alone["answer"], alone["route"]]
    assert answers[0].state.low_res is answers[1].state.low_res
    assert second["flops"] < alone["flops"]
    assert pipeline.answer_batch([], []) == []
    with pytest.raises(ValueError, match="shorter"):
        pipeline.answer_batch([photo], [])


def test_what_is_looked_up_in_a_batch_is_decoded_together(
    trained_pipeline: Pipeline, trained_looked_up: Answer, photo: Path
) -> None:
    asked = [QUESTION, "Where does this drink come from?", "Who invented this drink?"]
    together = trained_pipeline.answer_batch([photo] * 3, asked, fast_path=False)
    alone = [trained_pipeline.answer(photo, text, fast_path=False) for text in asked]
    for one, other in zip(alone, together, strict=True):
        assert (other.text, other.grounded) == (one.text, one.grounded)
        assert other.evidence == one.evidence
        assert other.trace["decode"].flops == one.trace["decode"].flops
        if one.state.answer.log_prob is not None:
            assert other.state.answer.log_prob == pytest.approx(one.state.answer.log_prob, abs=1e-3)
    assert together[0].text == trained_looked_up.text


@pytest.mark.parametrize("size", [(1, 1), (3, 4000)])
def test_images_of_any_shape_take_the_full_path(pipeline: Pipeline, size: tuple[int, int]) -> None:
    answer = pipeline.answer(Image.new("RGB", size, (120, 60, 20)), "Where does it live?")
    assert answer.route == "full"
    assert answer.trace["prune"].kept == 29  # ceil(0.11 * 256)


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("???", "no words"),
        ("why " * 2_000, "2000 words"),
        pytest.param("a" * 5_000, "too long|characters", id="one endless word"),
    ],
)
def test_bad_questions_get_one_line(pipeline: Pipeline, question: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as error:
        pipeline.answer(Image.new("RGB", (8, 8)), question)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("question", ["Что это за напиток?", "これは何? 42 <|im_end|>"])
def test_questions_in_any_script_are_answered(
    pipeline: Pipeline, photo: Path, question: str
) -> None:
    assert pipeline.answer(photo, question).route == "full"


def test_an_index_that_knows_nothing_of_the_image(
    pipeline: Pipeline, photo: Path, tmp_path: Path
) -> None:
    """No passage shares a term with any region: the answer stands without evidence."""
    corpus = tmp_path / "corpus.jsonl"
    row = {"id": "1", "title": "Zyzzyva", "text": "zyzzyva qwxkj vrrmpf"}
    corpus.write_text(json.dumps(row) + "\n")
    build(tmp_path / "index", [JsonLines(corpus)], LexicalEncoder.default())
    small = Pipeline(replace(pipeline.parts, library=Library.open([tmp_path / "index"])))
    answer = small.answer(photo, QUESTION)
    assert answer.route == "full"
    assert answer.evidence == ()
    assert answer.as_dict()["passages"] == {"retrieved": 0, "unique": 0, "kept": 0}


def test_budgets_are_obeyed(home: Path, photo: Path) -> None:
    frugal = load(
        trained=False,
        overrides={"budget": {"tokens": 9, "passages": 3}, "regions": {"max_regions": 2}},
    )
    answer = frugal.answer(photo, QUESTION)
    found = answer.as_dict()
    assert found["tokens"] == {"total": 256, "kept": 9}
    assert len(found["regions"]) <= 2
    assert found["passages"]["kept"] <= 3


def test_no_passages_allowed_means_no_retrieval(home: Path, photo: Path) -> None:
    answer = load(trained=False, overrides={"budget": {"passages": 0}}).answer(photo, QUESTION)
    assert answer.route == "full"
    assert answer.evidence == ()
    assert answer.text
    assert answer.trace["look"].flops == 0, "low resolution is enough to name things"
    assert answer.num_tokens == answer.trace["encode"].kept


def test_evidence_is_a_distribution_on_every_token(pipeline: Pipeline, photo: Path) -> None:
    with Image.open(photo) as opened:
        image = opened.convert("RGB")
    low_res, cheap = pipeline.backbone.encode_low_res(image)
    high_res, dear = pipeline.backbone.encode_high_res(image, low_res)
    for tokens, count in ((low_res, 64), (high_res, 256)):
        assert tokens.concept_probs.shape == (count, 1000)
        np.testing.assert_allclose(tokens.concept_probs.sum(1), 1, rtol=1e-5)
        np.testing.assert_allclose(tokens.meaning.norm(dim=1), 1, rtol=1e-5)
    assert 0 < 4 * cheap < dear + cheap


def test_missing_default_index_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))
    with pytest.raises(UserError, match="skipqa setup"):
        load()


@pytest.fixture(scope="module")
def boxed_pipeline(pipeline: Pipeline) -> Pipeline:
    """Regions of variant B, by MobileSAM's real weights."""
    return pipeline.with_config(regions={"proposals": "boxes"})


@pytest.fixture(scope="module")
def boxed(boxed_pipeline: Pipeline, photo: Path) -> Answer:
    return boxed_pipeline.answer(photo, QUESTION)


class TestBoxes:
    def test_same_question_same_answer(
        self, boxed_pipeline: Pipeline, boxed: Answer, photo: Path
    ) -> None:
        again = boxed_pipeline.answer(photo, QUESTION)
        assert same_but_for_time(again) == same_but_for_time(boxed)

    def test_the_cup_is_a_region(self, boxed: Answer) -> None:
        assert boxed.evidence[0].id == ESPRESSO
        cup = (0.3, 0.05, 0.67, 0.51)  # as seen by eye
        boxes = [region.box for region in boxed.state.regions]
        assert max(iou(box, cup) for box in boxes) > 0.5

    def test_the_trace_adds_up(self, boxed: Answer, segmenter: Segmenter) -> None:
        test_json_has_exactly_these_keys_and_types(boxed)
        test_sums_agree(boxed)
        test_trace_accounts_for_everything_dropped(boxed)
        flops = boxed.trace["regions"].flops
        assert flops > mobile_sam.flops(segmenter.network.config, 1)
