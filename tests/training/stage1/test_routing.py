"""Joint answers: the weight is chosen on held-out questions, for all alike, and so who answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import decoder, make_example, tokenizer
from torch import Tensor

from skipqa.backbones.backbone import Completion
from skipqa.stages.readers import best_of_both
from skipqa.training.stage1 import reader, routing
from skipqa.training.stage1.drafter import ABSTAIN
from skipqa.training.stage1.reader import Prompts, generate, log_probs
from skipqa.training.stage1.routing import (
    MOST_DRAFTED,
    WEIGHTS,
    Candidates,
    Drafted,
    choose_weight,
    open_fast_path,
)
from skipqa.types import Draft


def of(drafted: Tensor, read: Tensor, score: Tensor) -> Candidates:
    """The drafter never abstains, and its confidence is its probability."""
    return Candidates(drafted, read, score, torch.zeros(len(score)), drafted[:, 0].exp())


def test_weights() -> None:
    """Two candidates: the drafter likes the first, the reader the second."""
    opinion = torch.tensor([[-0.1, -2.0]]).expand(4, 2)
    read = torch.tensor([[-1.0, -0.5]]).expand(4, 2)
    first_right = of(opinion, read, torch.tensor([[1.0, 0.0]]).expand(4, 2))
    second_right = of(opinion, read, torch.tensor([[0.0, 1.0]]).expand(4, 2))
    assert first_right.chosen(0.0).tolist() == [0.0] * 4
    assert first_right.chosen(1.0).tolist() == [1.0] * 4
    weight, found = choose_weight({"x/val": second_right, "held-out": first_right}, "held-out")
    assert weight == 0.3  # the first by which the drafter wins: 0.3 * 1.9 > 0.5
    assert found["held-out"]["accuracy"] == 1
    assert found["x/val"]["accuracy"] == 0
    assert found["x/val"]["by_weight"]["0.0"] == 1
    assert found["x/val"]["by_weight"].keys() == set(map(str, WEIGHTS))


ANSWERS = (ABSTAIN, "a", "b", "c")


def test_candidates_are_the_drafters_best_and_the_readers_own() -> None:
    prompts = Prompts(["One Answer:", "Two Answer:"], tokenizer())
    network = decoder()
    examples = [make_example(0, "?", {"b": 1.0, "a": 0.3}, "okvqa", "val")] * 2
    opinion = torch.tensor([[0.4, 0.05, 0.35, 0.2], [0.01, 0.5, 0.2, 0.29]]).log()
    found = routing.gather(network, prompts, examples, [1, 0], Drafted(ANSWERS, opinion))
    # Abstaining is no candidate; what the drafter does not know has the support of the best
    own = generate(network, prompts, [1, 0])
    assert not {*own} & {*ANSWERS}
    assert found.drafted_QC.exp().tolist() == [
        pytest.approx([0.35, 0.2, 0.05, 0.35]),
        pytest.approx([0.5, 0.29, 0.2, 0.5]),
    ]
    assert found.score_QC[:, :3].tolist() == [
        pytest.approx([1.0, 0.0, 0.3]),
        pytest.approx([0.3, 0.0, 1.0]),
    ]
    expected = log_probs(network, prompts, [(1, "b"), (1, own[0])])
    assert found.read_QC[0, [0, 3]].tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert all(math.isfinite(value) for value in found.read_QC.flatten().tolist())
    confidence, score = found.alone()
    assert confidence.tolist() == pytest.approx([0.35, 0.5])  # its probability, abstaining counted
    assert score.tolist() == pytest.approx([1.0, 0.3])
    found = routing.gather(
        network, prompts, examples, [1, 0], Drafted((ABSTAIN, "yes", "no", "c"), opinion)
    )
    assert found.alone()[0].tolist() == pytest.approx([0.0, 0.0])  # no better than chance


@pytest.mark.parametrize("own", ["a", "c", "unknown", ""])  # drafted, known, neither, empty
@given(st.integers(0, 10_000), st.sampled_from(WEIGHTS))
def test_answers_are_scored_as_in_answering(own: str, seed: int, weight: float) -> None:
    """The same answer as `readers.best_of_both`, whatever the reader says."""
    generator = torch.Generator().manual_seed(seed)
    opinion = torch.randn(1, 4, generator=generator).log_softmax(-1)
    opinion[0, 3] = -9.0  # "c" is never among the two that are drafted
    read = torch.randn(3, generator=generator).tolist()
    worth = {"a": 0.1, "b": 0.2, "c": 0.3, "unknown": 0.4}  # tells which was chosen
    example = make_example(0, "?", worth, "okvqa", "val")

    def weights_of(_: Any, __: Any, pairs: list[tuple[int, str]], *___: Any) -> Tensor:
        texts = [text for _, text in pairs]
        values = dict(zip(texts, read, strict=True))
        return torch.tensor([values[text] for text in texts])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "DRAFTED", 2)
        patch.setattr(reader, "generate", lambda *_: [own])
        patch.setattr(reader, "log_probs", weights_of)
        found = routing.gather(None, None, [example], [0], Drafted(ANSWERS, opinion))  # type: ignore[arg-type]
    best = opinion[0, 1:].topk(2)
    drafted = tuple(
        (ANSWERS[1 + place], value)
        for place, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    abstain_prob = float(opinion[0, 0].exp())
    draft = Draft(drafted[0][0], 0.5, "", drafted, ANSWERS, abstain_prob=abstain_prob)
    names = [name for name, _ in drafted]
    values = dict(zip([*names, own], read, strict=True))
    log_probs = tuple(values[name] for name in (*names, own))
    answer, _ = best_of_both(Completion(own, 0, 0, 0, log_probs), draft, weight)
    assert float(found.chosen(weight)) == pytest.approx(worth[answer])


def random_set(seed: int, count: int) -> Candidates:
    """Confidences with ties, scores of three kinds; the surer the righter."""
    generator = torch.Generator().manual_seed(seed)
    confidence = (torch.rand(count, generator=generator) * 12).ceil() / 12
    right = torch.rand(count, 3, generator=generator) < torch.stack(
        (confidence, torch.full_like(confidence, 0.6), torch.full_like(confidence, 0.7)), dim=1
    )
    drafted = torch.stack((confidence, confidence / 2, confidence), dim=1).log()
    noise = torch.randn(count, 3, generator=generator)
    return of(drafted, noise, right.float())


@given(
    st.integers(0, 10_000),
    st.integers(1, 150),
    st.integers(1, 150),
    st.sampled_from(WEIGHTS),
)
def test_the_fast_path_costs_a_point_at_most(
    seed: int, first: int, second: int, weight: float
) -> None:
    """Of all questions that it was chosen on, together; and what is said of it is so."""
    held_out = ("x/held-out", "y/held-out")
    sets = {
        held_out[0]: random_set(seed, first),
        held_out[1]: random_set(seed + 1, second),
        "z/val": random_set(seed + 2, 50),
    }
    threshold, found = open_fast_path(sets, held_out, weight)
    assert 0 <= threshold <= 1
    assert found.keys() == sets.keys()
    sizes = (first, second)

    def together(what: str) -> float:
        pairs = zip(held_out, sizes, strict=True)
        return sum(found[name][what] * size for name, size in pairs) / sum(sizes)

    assert together("accuracy") >= together("full") - 0.01 - 1e-6
    assert together("rate") <= MOST_DRAFTED + 1 / sum(sizes)  # as near as their number allows
    for name, candidates in sets.items():
        confidence, score = candidates.alone()
        fast = confidence > threshold
        routed = torch.where(fast, score, candidates.chosen(weight))
        assert found[name]["rate"] == pytest.approx(float(fast.float().mean()))
        assert found[name]["accuracy"] == pytest.approx(float(routed.mean()))
        assert found[name]["drafter"] == pytest.approx(float(score.mean()))


def against_reader(confidence: Tensor, right: Tensor) -> Candidates:
    """The drafter's answer, right or not, next to the reader's, which the full path takes."""
    drafted = torch.stack((confidence, confidence / 100), dim=1).log()
    read = torch.tensor([[-100.0, 0.0]]).expand(len(right), 2)
    return of(drafted, read, torch.stack((right, 1 - right), dim=1))


def test_a_drafter_that_is_always_right_answers_as_many_as_it_may() -> None:
    sure = against_reader(torch.linspace(0.99, 0.3, 100), torch.ones(100))
    _, found = open_fast_path({"held-out": sure}, ["held-out"], 0.0)
    lr = found["held-out"]["rate"]
    assert lr == pytest.approx(MOST_DRAFTED)
    assert found["held-out"]["accuracy"] == pytest.approx(lr)
    assert found["held-out"]["full"] == 0


def test_one_that_is_right_only_where_it_is_not_sure_answers_next_to_nothing() -> None:
    """Answering everything would lose nothing; the surest, which it may answer, lose a lot."""
    unsure = against_reader(torch.linspace(0.99, 0.3, 100), (torch.arange(100) >= 50).float())
    _, found = open_fast_path({"held-out": unsure}, ["held-out"], 0.0)
    assert found["held-out"]["rate"] == pytest.approx(0.01)  # a point's worth
    assert found["held-out"]["accuracy"] == pytest.approx(0.49)


def test_one_that_is_always_wrong_answers_nothing() -> None:
    drafted, read = torch.tensor([[-0.1, -3.0]] * 3), torch.tensor([[-1.0, 0.0]] * 3)
    wrong = of(drafted, read, torch.tensor([[0.0, 1.0]] * 3))
    threshold, found = open_fast_path({"held-out": wrong}, ["held-out"], 0.0)
    assert threshold == 1
    assert found["held-out"] == {"rate": 0.0, "accuracy": 1.0, "full": 1.0, "drafter": 0.0}
