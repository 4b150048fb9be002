"""Questions as tensors, and a drafter that learns from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import make_example, networks, tokenizer

from skipqa.training.example import TrainExample
from skipqa.training.run import Run
from skipqa.training.stage1 import drafter
from skipqa.training.stage1.drafter import (
    ABSTAIN,
    TRAIN_GROUPS,
    DrafterEval,
    DrafterInputs,
    DrafterTraining,
    Questions,
)
from skipqa.training.stage1.photos import PhotoFeatures
from skipqa.training.stage1.words import Words, best_words, embed

ANSWERS = (ABSTAIN, "red", "blue", "sky")
CPU = torch.device("cpu")
NONE = torch.zeros(0, dtype=torch.long)
HOPS = (("The sky is blue.",),)


def examples() -> list[TrainExample]:
    """Even photos are red, odd ones blue; then something else, and six that need a passage."""
    asked = [
        make_example(
            photo,
            ("which?", "colour?")[photo % 3 > 0],
            {ANSWERS[1 + photo % 2]: 1.0},
            "coco",
            "train",
        )
        for photo in range(24)
    ]
    other = make_example(0, "what is it?", {"a thing": 1.0}, "okvqa", "train")
    left = [make_example(n, "whence?", {"blue": 1.0}, "pocket-kb", "train", HOPS) for n in range(6)]
    return [*asked, other, *left]


@pytest.fixture
def questions() -> Questions:
    return Questions(examples(), ANSWERS, tokenizer(), CPU)


@pytest.fixture
def seen() -> PhotoFeatures:
    colour = torch.tensor([1.0, -1.0]).repeat(12)[:, None, None].expand(24, 4, 5)
    noise = torch.randn(2, 24, 4, 5, generator=torch.Generator().manual_seed(0))
    features = (colour + 0.3 * noise).bfloat16()
    nothing = torch.zeros(24, 1, 10)
    crops, shows = nothing.transpose(0, 1), torch.ones(1, 24, 1, dtype=torch.int8)
    return PhotoFeatures(features, torch.zeros(24, 2), nothing, crops, shows)


@pytest.fixture
def words() -> Words:
    probs = torch.rand(24, 3, generator=torch.Generator().manual_seed(1))
    return best_words(("x", "y", "z", "u"), torch.randn(4, 24), probs, torch.ones(24, 1), 2)


def test_questions(questions: Questions) -> None:
    ids, mask = questions.text(torch.tensor([0, 1]))
    assert mask.sum(1).tolist() == [6, 7]
    assert ids.shape == (2, 7)
    assert ids[0, :6].tolist() == tokenizer().encode("which?").ids
    assert questions.known(torch.arange(31)).tolist() == [*range(24), *range(25, 31)]
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.0]]).expand(25, 4)  # always red
    assert questions.accuracy(logits, torch.arange(25)) == pytest.approx(12 / 25)


def test_target_weights_are_in_proportion_and_for_the_best() -> None:
    given = {"unknown": 1.0, "blue": 0.3, "red": 0.6}
    one = Questions([make_example(0, "?", given, "okvqa", "train")], ANSWERS, tokenizer(), CPU)
    assert one.answer[0, :2].tolist() == [1, 2]
    assert one.score[0, :2].tolist() == pytest.approx([0.6, 0.3])
    assert one.score[0, 2:].sum() == 0
    assert torch.equal(one.target, one.answer)
    assert torch.equal(one.target_weight, one.score)


def test_what_needs_a_passage_is_abstained_from(questions: Questions) -> None:
    """That is the target; what is right stays right."""
    left = torch.arange(25, 31)
    assert (questions.target[left] == 0).all()
    assert questions.target_weight[left].tolist() == [[1.0] + [0.0] * 7] * 6
    assert questions.answer[left, 0].tolist() == [ANSWERS.index("blue")] * 6
    assert questions.score[left].sum(1).tolist() == [1.0] * 6
    says_blue = torch.tensor([[0.0, 0.0, 1.0, 0.0]]).expand(6, 4)
    assert questions.accuracy(says_blue, left) == 1


@pytest.mark.parametrize(("where", "abstains"), [("image", False), ("kb", True)])
def test_a_fact_is_needed_where_the_answer_is_in_it(where: str, abstains: bool) -> None:
    """An object in the image that the fact is about, the drafter may name itself."""
    plain = make_example(0, "?", {"blue": 1.0}, "fvqa", "train")
    example = dataclasses.replace(plain, type=where, fact="the sky is blue")
    asked = Questions([example], ANSWERS, tokenizer(), CPU)
    assert (asked.target[0, 0] == 0) == abstains
    assert asked.answer[0, 0] == ANSWERS.index("blue")


def test_the_first_answer_has_to_be_none() -> None:
    with pytest.raises(AssertionError):
        Questions(examples(), ("red", ABSTAIN), tokenizer(), CPU)


@given(st.integers(0, 1_000), st.floats(-100, 100))
def test_abstaining_is_never_right_and_never_wrong(seed: int, sure: float) -> None:
    """However sure the drafter is of it, accuracy is of its best answer."""
    asked = Questions(examples(), ANSWERS, tokenizer(), CPU)
    rows = torch.arange(31)
    logits = torch.randn(31, 4, generator=torch.Generator().manual_seed(seed))
    found = asked.accuracy(logits, rows)
    logits[:, 0] = sure
    assert asked.accuracy(logits, rows) == found
    given = [ANSWERS[1 + best] for best in logits[:, 1:].argmax(1).tolist()]
    pairs = zip(given, examples(), strict=True)
    assert found == pytest.approx(sum(e.answers.get(text, 0.0) for text, e in pairs) / 31)


def test_the_best_words_come_first(words: Words) -> None:
    assert (words.indices[:, 0] == 3).all()  # the encoder is certain
    assert (words.probs[:, 0] >= words.probs[:, 1]).all()
    faint = Words(
        ("x", "y"), torch.zeros(2, 3), torch.tensor([[1, 0]]), torch.tensor([[0.5, 0.01]])
    )
    assert faint.written(0) == ["y"]


def test_embedding_a_batch_is_embedding_each() -> None:
    text, made = networks().text, tokenizer()
    names = ["a", "three words here", "two words"]
    each = torch.cat([embed(text, made, [name]) for name in names])
    torch.testing.assert_close(embed(text, made, names), each)
    torch.testing.assert_close(each.norm(dim=-1), torch.ones(3))


TRAINING = DrafterTraining(
    epochs=60.0, focus_epochs=3.0, batch=8, lr=3e-3, width=16, layers=1, dropout=0.0
)


def test_it_learns_and_leaves_the_embeddings_alone(
    questions: Questions, seen: PhotoFeatures, words: Words, tmp_path: Path
) -> None:
    text = networks().text
    before = {name: value.clone() for name, value in text.state_dict().items()}
    drafter_model = drafter.build(ANSWERS, torch.randn(4, 24), text, seen, TRAINING, seed=0)
    rows = (torch.arange(25), torch.arange(25, 28), torch.arange(28, 31), NONE, NONE, NONE)
    groups = dict(zip(TRAIN_GROUPS, rows, strict=True))
    inputs = DrafterInputs(questions, seen, words)
    drafter_model = drafter.train(drafter_model, inputs, groups, Run(tmp_path), TRAINING)
    drafter_eval = DrafterEval({"seen": torch.arange(24), "left": torch.arange(25, 31)}, inputs)
    assert drafter_eval.accuracy(drafter_model, "seen") > 0.95
    assert (drafter_eval.logits(drafter_model, "left").argmax(1) == 0).all()
    assert (drafter_eval.logits(drafter_model, "seen").argmax(1) > 0).float().mean() > 0.95
    after = drafter_model.text.state_dict()
    changed = {
        name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])
    }
    assert changed == {"layers"}
    drafter_eval.calibrate(drafter_model, ["seen", "left"])
    assert float(drafter_model.drafter.temperature) != 1


def test_the_blind_answer_from_the_question_alone(
    questions: Questions, seen: PhotoFeatures, words: Words
) -> None:
    drafter_model = drafter.build(
        ANSWERS, torch.randn(4, 24), networks().text, seen, TRAINING, seed=0
    )
    drafter_model.eval()
    drafter_eval = DrafterEval(
        {"all": torch.arange(24), "left": torch.arange(25, 31)},
        DrafterInputs(questions, seen, words),
    )
    sighted, blind = (
        drafter_eval.all_logits(drafter_model),
        drafter_eval.all_logits(drafter_model, blind=True),
    )
    assert sighted.keys() == blind.keys() == {"all", "left"}
    assert blind["all"].shape == (24, 4)
    for asked in ("which?", "colour?"):
        rows = [row for row, example in enumerate(examples()[:24]) if example.question == asked]
        first = rows[:1] * len(rows)
        torch.testing.assert_close(blind["all"][rows], blind["all"][first])
        assert not torch.allclose(sighted["all"][rows], sighted["all"][first], atol=1e-3)
    assert not torch.allclose(blind["all"][0], blind["all"][1], atol=1e-3)
