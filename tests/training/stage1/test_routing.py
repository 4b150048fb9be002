"""Joint answers: the weights are fitted on held-out questions, and so is who answers alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import decoder, make_example, tokenizer
from torch import Tensor

from skipqa.backbones.backbone import Completion
from skipqa.config import DecodeConfig, override
from skipqa.stages.readers import best_of_both
from skipqa.training.stage1 import reader, routing
from skipqa.training.stage1.drafter import ABSTAIN
from skipqa.training.stage1.reader import Prompts, generate, log_probs
from skipqa.training.stage1.routing import (
    GRID,
    MOST_DRAFTED,
    Candidates,
    Drafted,
    RankingWeights,
    accuracy_by_type,
    best_on_grid,
    choose_weights,
    concatenated,
    cross_validated,
    fit,
    open_fast_path,
)
from skipqa.types import Draft


def of(drafted: Tensor, read: Tensor, score: Tensor) -> Candidates:
    """The drafter never abstains, and its confidence is its probability; every question is about a
    photo of its own."""
    nothing = torch.zeros_like(drafted)
    own = nothing.bool()
    own[:, -1] = True
    photos = torch.arange(len(score))
    never = torch.zeros(len(score))
    return Candidates(drafted, read, nothing, own, score, never, drafted[:, 0].exp(), photos)


def test_weights() -> None:
    """Two candidates: the drafter likes the first, the reader the second."""
    opinion = torch.tensor([[-0.1, -2.0]]).expand(4, 2)
    read = torch.tensor([[-1.0, -0.5]]).expand(4, 2)
    first_right = of(opinion, read, torch.tensor([[1.0, 0.0]]).expand(4, 2))
    assert first_right.chosen(RankingWeights(0.0)).tolist() == [0.0] * 4
    assert first_right.chosen(RankingWeights(1.0)).tolist() == [1.0] * 4
    assert first_right.chosen(RankingWeights(0.0, own_weight=-0.4)).tolist() == [0.0] * 4
    assert first_right.chosen(RankingWeights(0.0, own_weight=-0.6)).tolist() == [1.0] * 4
    frequent = dataclasses.replace(first_right, log_frequency_QC=opinion)
    assert frequent.chosen(RankingWeights(0.0, frequency_weight=0.3)).tolist() == [1.0] * 4
    assert best_on_grid(first_right) == RankingWeights(0.3)  # the first: 0.3 * 1.9 > 0.5
    types = ["lookup", None, "other", "lookup"]
    assert accuracy_by_type(first_right, RankingWeights(0.3), types) == {
        "lookup": 1.0,
        "other": 1.0,
    }


def questions(seed: int, count: int, weights: RankingWeights, sharpness: float = 1.0) -> Candidates:
    """Right answers are drawn by that ranking; of some photos there are two questions."""
    generator = torch.Generator().manual_seed(seed)
    drafted, read, frequency = 3 * torch.randn(3, count, 6, generator=generator)
    own = torch.zeros(count, 6, dtype=torch.bool)
    own[torch.arange(count), torch.randint(6, (count,), generator=generator)] = True
    abstain = torch.rand(count, generator=generator)
    photos = torch.arange(count) * 3 // 4
    blank = torch.zeros(count, 6)
    asked = Candidates(drafted, read, frequency, own, blank, abstain, blank[:, 0], photos)
    weights_F = torch.tensor(dataclasses.astuple(weights), dtype=torch.float64)
    prob = (sharpness * (read + asked.features() @ weights_F)).softmax(1)
    right = torch.multinomial(prob, 1, generator=generator)
    return dataclasses.replace(asked, score_QC=blank.scatter(1, right, 1.0))


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(
    "true",
    [RankingWeights(0.5, -0.6, 2.0), RankingWeights(0.2, 0.4, -1.5), RankingWeights(-0.3)],
)
def test_weights_are_recovered(true: RankingWeights, sharpness: float) -> None:
    """The reader has weight 1, at whatever temperature the right answers were drawn; and on other
    questions they are as good as the true ones."""
    asked, others = (questions(seed, 3_000, true, sharpness) for seed in (0, 1))
    found = fit(asked)
    assert found == fit(asked)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(true), abs=0.35)
    assert others.accuracy(found) >= others.accuracy(true) - 0.01


def test_fitted_weights_are_chosen_where_they_help() -> None:
    weights, found = choose_weights(questions(0, 500, RankingWeights(0.5, -0.6, 2.0)))
    assert found["chosen"] == "fitted"
    assert found["cross_validated"]["fitted"] > found["cross_validated"]["grid"] + 0.05
    assert dataclasses.asdict(weights) == found["weights"]["fitted"]
    assert found["by_drafter_weight"].keys() == set(map(str, GRID))


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=20)
def test_a_handful_of_questions_is_enough_to_choose(seed: int, count: int) -> None:
    """The chosen way is never the worse one on photos it has not seen, and can be set."""
    asked = questions(seed, count, RankingWeights(0.5))
    silent = asked.read_QC.clone()
    silent[:, -1] = -math.inf
    asked = concatenated([asked, dataclasses.replace(asked, read_QC=silent)])
    weights, found = choose_weights(asked)
    accuracies = found["cross_validated"]
    assert accuracies[found["chosen"]] == max(accuracies.values())
    assert all(0 <= accuracy <= 1 for accuracy in accuracies.values())
    override(DecodeConfig(), dataclasses.asdict(weights))
    if count == 1:
        assert found["chosen"] == "grid"


def test_photos_are_not_shared_between_folds() -> None:
    """Both forms of a question, and all questions about a photo, are in one fold."""
    asked = questions(0, 40, RankingWeights(0.5))
    asked = concatenated([asked, asked])
    left: list[set[int]] = []

    def choose(others: Candidates) -> RankingWeights:
        left.append(set(asked.photo_Q.tolist()) - set(others.photo_Q.tolist()))
        return RankingWeights(0.5)

    assert cross_validated(asked, choose) == pytest.approx(asked.accuracy(RankingWeights(0.5)))
    assert len(left) == routing.FOLDS
    assert sum(map(len, left)) == len(set().union(*left)) == len(set(asked.photo_Q.tolist()))


ANSWERS = {ABSTAIN: -9.0, "a": -1.0, "b": -2.0, "c": -4.0}  # with their log-frequencies


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
    assert found.log_frequency_QC.tolist() == [[-2.0, -4.0, -1.0, -9.0], [-1.0, -4.0, -2.0, -9.0]]
    assert found.own_QC.tolist() == [[False, False, False, True]] * 2
    assert found.photo_Q.tolist() == [examples[0].photo] * 2
    confidence, score = found.alone()
    assert confidence.tolist() == pytest.approx([0.35, 0.5])  # its probability, abstaining counted
    assert score.tolist() == pytest.approx([1.0, 0.3])
    found = routing.gather(
        network,
        prompts,
        examples,
        [1, 0],
        Drafted(dict.fromkeys((ABSTAIN, "yes", "no", "c"), 0.0), opinion),
    )
    assert found.alone()[0].tolist() == pytest.approx([0.0, 0.0])  # no better than chance


@pytest.mark.parametrize("own", ["a", "c", "unknown", ""])  # drafted, known, neither, empty
@given(st.integers(0, 10_000), st.tuples(*[st.floats(-2, 2)] * 3))
def test_answers_are_scored_as_in_answering(
    own: str, seed: int, values: tuple[float, float, float]
) -> None:
    """The same answer as `readers.best_of_both`, whatever the reader says."""
    generator = torch.Generator().manual_seed(seed)
    opinion = torch.randn(1, 4, generator=generator).log_softmax(-1)
    opinion[0, 3] = -9.0  # "c" is never among the two that are drafted
    read = torch.randn(3, generator=generator).tolist()
    worth = {"a": 0.1, "b": 0.2, "c": 0.3, "unknown": 0.4}  # tells which was chosen
    example = make_example(0, "?", worth, "okvqa", "val")

    def weights_of(_: Any, __: Any, pairs: list[tuple[int, str]], *___: Any) -> Tensor:
        texts = [text for _, text in pairs]
        by_text = dict(zip(texts, read, strict=True))
        return torch.tensor([by_text[text] for text in texts])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "DRAFTED", 2)
        patch.setattr(reader, "generate", lambda *_: [own])
        patch.setattr(reader, "log_probs", weights_of)
        found = routing.gather(None, None, [example], [0], Drafted(ANSWERS, opinion))  # type: ignore[arg-type]
    best = opinion[0, 1:].topk(2)
    drafted = tuple(
        ([*ANSWERS][1 + place], value)
        for place, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    abstain_prob = float(opinion[0, 0].exp())
    draft = Draft(drafted[0][0], 0.5, "", drafted, ANSWERS, abstain_prob=abstain_prob)
    names = [name for name, _ in drafted]
    by_text = dict(zip([*names, own], read, strict=True))
    log_probs = tuple(by_text[name] for name in (*names, own))
    weights = RankingWeights(*values)
    config = override(DecodeConfig(), dataclasses.asdict(weights))
    answer, _ = best_of_both(Completion(own, 0, 0, 0, log_probs), draft, config)
    assert float(found.chosen(weights)) == pytest.approx(worth[answer])


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
    st.sampled_from(GRID).map(RankingWeights),
)
def test_the_fast_path_costs_a_point_at_most(
    seed: int, first: int, second: int, weights: RankingWeights
) -> None:
    """Of all questions that it was chosen on, together; and what is said of it is so."""
    held_out = ("x/held-out", "y/held-out")
    sets = {
        held_out[0]: random_set(seed, first),
        held_out[1]: random_set(seed + 1, second),
        "z/val": random_set(seed + 2, 50),
    }
    threshold, found = open_fast_path(sets, held_out, weights)
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
        routed = torch.where(fast, score, candidates.chosen(weights))
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
    _, found = open_fast_path({"held-out": sure}, ["held-out"], RankingWeights(0.0))
    lr = found["held-out"]["rate"]
    assert lr == pytest.approx(MOST_DRAFTED)
    assert found["held-out"]["accuracy"] == pytest.approx(lr)
    assert found["held-out"]["full"] == 0


def test_one_that_is_right_only_where_it_is_not_sure_answers_next_to_nothing() -> None:
    """Answering everything would lose nothing; the surest, which it may answer, lose a lot."""
    unsure = against_reader(torch.linspace(0.99, 0.3, 100), (torch.arange(100) >= 50).float())
    _, found = open_fast_path({"held-out": unsure}, ["held-out"], RankingWeights(0.0))
    assert found["held-out"]["rate"] == pytest.approx(0.01)  # a point's worth
    assert found["held-out"]["accuracy"] == pytest.approx(0.49)


def test_one_that_is_always_wrong_answers_nothing() -> None:
    drafted, read = torch.tensor([[-0.1, -3.0]] * 3), torch.tensor([[-1.0, 0.0]] * 3)
    wrong = of(drafted, read, torch.tensor([[0.0, 1.0]] * 3))
    threshold, found = open_fast_path({"held-out": wrong}, ["held-out"], RankingWeights(0.0))
    assert threshold == 1
    assert found["held-out"] == {"rate": 0.0, "accuracy": 1.0, "full": 1.0, "drafter": 0.0}
