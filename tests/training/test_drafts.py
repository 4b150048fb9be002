"""Questions as tensors, and a drafter that learns from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_training import networks, tokenizer

from skipqa.training import drafts
from skipqa.training.drafts import DraftTraining, Exam, Questions
from skipqa.training.mixture import Example
from skipqa.training.photos import Seen
from skipqa.training.run import Run
from skipqa.training.words import Words, best_words, embed

ANSWERS = ("red", "blue", "sky")
CPU = torch.device("cpu")


def examples() -> list[Example]:
    """Even photos are red, odd ones blue; the last is something else."""
    asked = [
        Example(
            photo, ("which?", "colour?")[photo % 3 > 0], {ANSWERS[photo % 2]: 1.0}, "coco", "train"
        )
        for photo in range(24)
    ]
    return [*asked, Example(0, "what is it?", {"a thing": 1.0}, "okvqa", "train")]


@pytest.fixture
def questions() -> Questions:
    return Questions(examples(), ANSWERS, tokenizer(), CPU)


@pytest.fixture
def seen() -> Seen:
    colour = torch.tensor([1.0, -1.0]).repeat(12)[:, None, None].expand(24, 4, 5)
    noise = torch.randn(2, 24, 4, 5, generator=torch.Generator().manual_seed(0))
    return Seen((colour + 0.3 * noise).bfloat16(), torch.zeros(24, 2))


@pytest.fixture
def words() -> Words:
    shares = torch.rand(24, 3, generator=torch.Generator().manual_seed(1))
    return best_words(("x", "y", "z", "u"), torch.randn(4, 24), shares, torch.ones(24, 1), 2)


def test_questions(questions: Questions) -> None:
    ids, mask = questions.text(torch.tensor([0, 1]))
    assert mask.sum(1).tolist() == [6, 7]
    assert ids.shape == (2, 7)
    assert ids[0, :6].tolist() == tokenizer().encode("which?").ids
    rows = torch.arange(25)
    assert questions.known(rows).tolist() == list(range(24))
    logits = torch.tensor([[2.0, 1.0, 0.0]]).expand(25, 3)  # always red
    assert questions.accuracy(logits, rows) == pytest.approx(12 / 25)


def test_credit_is_in_proportion_and_for_the_best() -> None:
    given = {"unknown": 1.0, "blue": 0.3, "red": 0.6}
    one = Questions([Example(0, "?", given, "okvqa", "train")], ANSWERS, tokenizer(), CPU)
    assert one.answer[0, :2].tolist() == [0, 1]
    assert one.score[0, :2].tolist() == pytest.approx([0.6, 0.3])
    assert one.score[0, 2:].sum() == 0


def test_the_best_words_come_first(words: Words) -> None:
    assert (words.indices[:, 0] == 3).all()  # the tower is sure
    assert (words.shares[:, 0] >= words.shares[:, 1]).all()
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


def test_it_learns_and_leaves_the_embeddings_alone(
    questions: Questions, seen: Seen, words: Words, tmp_path: Path
) -> None:
    text = networks().text
    before = {name: value.clone() for name, value in text.state_dict().items()}
    training = DraftTraining(
        rounds=40.0, focus_rounds=3.0, batch=8, rate=3e-3, width=16, layers=1, dropout=0.0
    )
    asker = drafts.build(ANSWERS, torch.randn(3, 24), text, seen, training, seed=0)
    groups = {"knowledge": torch.arange(25), "other": torch.zeros(0, dtype=torch.long)}
    run = Run(tmp_path)
    asker = drafts.train(asker, seen, words, questions, groups, run, training)
    exam = Exam({"all": torch.arange(24)}, questions, seen, words)
    assert exam.accuracy(asker, "all") > 0.95
    after = asker.text.state_dict()
    changed = {
        name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])
    }
    assert changed == {"layers"}
    exam.calibrate(asker, "all")
    assert float(asker.drafter.temperature) != 1
