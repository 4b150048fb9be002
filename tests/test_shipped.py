"""The checkpoint that comes with the package, in the pipeline: what it answers, what overrides it,
and one clear line for whatever is wrong with such a folder."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from skipqa import components
from skipqa.backbones.presets.build import build
from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.backbones.weights import gguf_decoder
from skipqa.components import DELTAS, SETTINGS, TRAINING_FREE, bundled
from skipqa.config import PRESETS
from skipqa.errors import UserError
from skipqa.nn import checkpoint, compact
from skipqa.nn.lora import LoraConfig
from skipqa.pipeline import Answer, Pipeline, load
from skipqa.training.reader import adapter

FOLDER = Path(components.__file__).parent / "checkpoints" / "pocket"
QUESTION = "How is this drink brewed?"
CUP = "What is in the cup?"
ESPRESSO = "wordnet:n07920052"
SHIPPED = [name for name in DELTAS if (FOLDER / f"{name}.safetensors").exists()]
MOST_BYTES = 60_000_000  # of what a package that people install has for its default preset
MOST_BYTES_OF_DESK = 40_000_000


def same_but_for_time(answer: Answer) -> dict[str, Any]:
    found = answer.as_dict()
    del found["latency_ms"]
    for stage in found["stages"]:
        del stage["ms"]
    return found | {"why": [stage.why for stage in answer.trace.stages]}


CLOSED = {"threshold": 1.0, "counting_threshold": 1.0}  # the fast path
HARD = {"easy": 0.0}  # every question


@pytest.fixture(scope="module")
def in_the_cup(trained_pipeline: Pipeline, photo: Path) -> Answer:
    """Looked up, however sure the drafter is."""
    return trained_pipeline.with_config(draft=CLOSED, budget=HARD).answer(photo, CUP)


class TestAnswers:
    def test_how_is_quoted_from_the_passage(self, trained_looked_up: Answer) -> None:
        assert "hot water" in trained_looked_up.text
        assert ESPRESSO in [evidence.id for evidence in trained_looked_up.evidence]
        assert any(trained_looked_up.text in e.text for e in trained_looked_up.evidence)

    def test_what_is_read_and_scored_with_the_draft(self, in_the_cup: Answer) -> None:
        assert in_the_cup.text == "coffee"
        assert in_the_cup.route == "full"
        drafted = in_the_cup.state.draft
        assert drafted.answer == "coffee"
        assert not drafted.accepted
        assert len(drafted.candidates) == 24
        prompt = in_the_cup.state.prompt
        assert re.search(r"^Picture: (?:.*, )?espresso,", prompt, re.MULTILINE)
        assert prompt.endswith(f"Question: {CUP}\nAnswer:")

    def test_the_drafter_reads_its_own_encoder_and_the_rest_the_published_one(
        self, trained_pipeline: Pipeline, photo: Path
    ) -> None:
        """Shown by queries that do not name what the drafter thinks of."""
        assert isinstance(trained_pipeline.backbone, Pocket)
        plain = replace(trained_pipeline.backbone.learned, question=None)
        backbone = Pocket(trained_pipeline.config.encode, learned=plain)
        own = trained_pipeline.with_config(
            draft=CLOSED, budget=HARD, retrieve={"draft_weight": 0.0}
        )
        one, other = (system.answer(photo, CUP) for system in (own, own.with_backbone(backbone)))
        assert one.evidence == other.evidence
        assert one.state.draft.candidates != other.state.draft.candidates

    def test_same_question_same_answer_also_in_parallel(
        self, trained_pipeline: Pipeline, photo: Path, in_the_cup: Answer
    ) -> None:
        """Run again, and with the full path begun before the draft is there."""
        parallel = trained_pipeline.with_config(draft=CLOSED | {"parallel": True}, budget=HARD)
        assert same_but_for_time(parallel.answer(photo, CUP)) == same_but_for_time(in_the_cup)

    @pytest.mark.parametrize("asked", [CUP, QUESTION])
    def test_a_draft_decides_whether_to_look_up_also_in_parallel(
        self, trained_pipeline: Pipeline, photo: Path, asked: str
    ) -> None:
        one = trained_pipeline.with_config(draft=CLOSED)
        other = trained_pipeline.with_config(draft=CLOSED | {"parallel": True})
        answers = [same_but_for_time(system.answer(photo, asked)) for system in (one, other)]
        assert answers[0] == answers[1]

    def test_what_the_drafter_would_not_abstain_from_is_not_looked_up(
        self, trained_pipeline: Pipeline, photo: Path
    ) -> None:
        """But for questions that are asked without the fast path."""
        undrafted = trained_pipeline.with_config(draft=CLOSED)
        easy, brewed = undrafted.answer(photo, CUP), undrafted.answer(photo, QUESTION)
        assert (easy.route, easy.evidence) == ("full", ())
        assert brewed.evidence
        assert undrafted.answer(photo, CUP, fast_path=False).evidence

    def test_an_open_fast_path_is_taken(self, trained_pipeline: Pipeline, photo: Path) -> None:
        eager = trained_pipeline.with_config(draft={"threshold": 0.5, "parallel": True})
        answer = eager.answer(photo, CUP)
        assert (answer.text, answer.route) == ("coffee", "draft")
        assert [stage.name for stage in answer.trace.stages] == ["encode", "draft"]


class TestFolder:
    def test_is_small_and_complete(self) -> None:
        sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
        assert sum(sizes.values()) <= MOST_BYTES
        seeing, reading = ("vision", "tagger"), ("drafter", "question", "reader")
        parts = (*seeing, "grounding", *reading, "sparse_query", "concept_prior", "verifier")
        parts += ("region_query", "bridge", "text_gate")
        assert sizes.keys() == {f"{part}.safetensors" for part in parts} | {SETTINGS, "README.md"}

    def test_desk_has_a_reader_for_its_published_decoder(self) -> None:
        folder = FOLDER.parent / "desk"
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert sum(sizes.values()) <= MOST_BYTES_OF_DESK
        assert sizes.keys() == {"reader.safetensors", SETTINGS, "README.md"}
        header = checkpoint.read_header(folder / "reader.safetensors")
        assert (header.component, header.preset) == ("reader", "desk")
        gguf_decoder.QWEN.check_base(folder / "reader.safetensors")
        named = compact.unpack(load_file(folder / "reader.safetensors"))
        assert {name.rpartition(".weight.")[0] for name in named} == set(
            adapter.matrices(gguf_decoder.QWEN.config, LoraConfig(16, mlp=True))
        )

    def test_others_have_none(self) -> None:
        own = ("pocket", "desk")
        assert {name: bundled(name) for name in PRESETS} == {
            name: FOLDER.parent / name if name in own else None for name in PRESETS
        }

    def test_its_settings_hold_unless_overridden(self, home: Path) -> None:
        found = load().config
        assert found.decode.prompt == "short"
        chosen = tomllib.loads((FOLDER / SETTINGS).read_text())["draft"]["counting_threshold"]
        assert found.draft.counting_threshold == chosen != PRESETS["pocket"].draft.threshold
        changed = load(overrides={"draft": {"threshold": 0.9}, "budget": {"tokens": 32}}).config
        assert (changed.draft.threshold, changed.draft.counting_threshold) == (0.9, chosen)
        assert changed.budget.tokens == 32
        assert changed.decode == found.decode

    def test_untrained_is_as_if_it_were_not_there(
        self, pipeline: Pipeline, drafted: Answer, photo: Path
    ) -> None:
        assert pipeline.components == TRAINING_FREE
        assert pipeline.config == PRESETS["pocket"]
        assert len(pipeline.backbone.concepts) == 1_000
        bare = pipeline.with_backbone(Pocket(pipeline.config.encode))
        assert same_but_for_time(bare.answer(photo, "What is this?")) == same_but_for_time(drafted)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped files by links: what a test damages, it replaces."""
    for path in FOLDER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def refused(folder: Path, complaint: str) -> str:
    with pytest.raises(UserError, match=complaint) as error:
        load(components=folder)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestDamage:
    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (b"[draft\nthreshold = 1", "settings.toml is damaged"),
            (b"\xff\xfe", "settings.toml is damaged"),
            (b"[draft]\nthresold = 1.0", "unknown setting draft.thresold"),
            (b"[draft]\nthreshold = 2.0", "draft.threshold takes 0.0 to 1.0"),
            (b"draft = 1", "draft is a group of settings"),
            (b'preset = "ablation-13b"', "a preset is chosen by its name"),
        ],
    )
    def test_settings(self, folder: Path, home: Path, content: bytes, complaint: str) -> None:
        (folder / SETTINGS).unlink()
        (folder / SETTINGS).write_bytes(content)
        refused(folder, complaint)

    @pytest.mark.parametrize("name", ["tagger", "drafter", *SHIPPED])
    def test_half_a_file(self, folder: Path, home: Path, name: str) -> None:
        path = folder / f"{name}.safetensors"
        beginning = path.read_bytes()[: path.stat().st_size // 2]
        path.unlink()
        path.write_bytes(beginning)
        assert str(path) in refused(folder, "is damaged or no safetensors file")

    @pytest.mark.parametrize("name", SHIPPED)
    def test_another_presets(self, folder: Path, home: Path, name: str) -> None:
        path = folder / f"{name}.safetensors"
        path.unlink()
        checkpoint.save_tensors({"x": torch.ones(1)}, path, component=name, preset="ablation-13b")
        refused(folder, "was trained for preset 'ablation-13b' and cannot serve 'pocket'")

    def test_one_in_the_place_of_the_other(self, folder: Path, home: Path) -> None:
        (folder / "question.safetensors").unlink()
        (folder / "question.safetensors").symlink_to(FOLDER / "reader.safetensors")
        refused(folder, "holds a reader, not a question")

    def test_a_foreign_file(self, folder: Path, home: Path) -> None:
        (folder / "reader.safetensors").unlink()
        save_file({"x": torch.ones(1)}, folder / "reader.safetensors")
        refused(folder, "is not a skipqa component")

    def test_a_drafter_of_words_without_its_tagger(self, folder: Path, home: Path) -> None:
        (folder / "tagger.safetensors").unlink()
        refused(folder, "reads words: tagger.safetensors has to be in the same folder")

    def test_a_larger_preset_refuses_what_it_has_no_place_for(self) -> None:
        with pytest.raises(UserError, match="takes no tagger, question or reader"):
            build(PRESETS["submission-7b"], learned=FineTuned(reader=FOLDER / "reader.safetensors"))

    def test_a_preset_without_a_backbone(self) -> None:
        with pytest.raises(UserError, match="no backbone of preset 'other'; there is"):
            build(replace(PRESETS["pocket"], preset="other"))

    def test_any_subset_will_do(self, folder: Path, home: Path) -> None:
        # Two of these know the tagger's names
        for name in ("drafter", "tagger", "grounding", "region_query", "question"):
            (folder / f"{name}.safetensors").unlink()
        found = components.load(folder, preset="pocket")
        assert found.reader == folder / "reader.safetensors"
        assert (found.tagger, found.drafter, found.question) == (None, None, None)
        assert load(components=folder).config.decode.prompt == "short"


def test_large_files_are_in_eight_bits() -> None:
    for path in FOLDER.glob("*.safetensors"):
        if path.stat().st_size < 500_000:
            continue
        tensors = load_file(path).values()
        small = sum(t.nbytes for t in tensors if t.dtype == torch.int8)
        assert small > 0.8 * sum(t.nbytes for t in tensors), path.name
