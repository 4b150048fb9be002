"""Many candidates in one tree against one answer at a time, without a cache."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.backbones.generation.candidates import (
    READ_WITH_PROMPT,
    Candidate,
    generate_with_candidates,
    loglikelihood,
)
from skipqa.backbones.networks.llama import Llama, LlamaConfig, flops
from skipqa.costs.flops import count_flops

CONFIG = LlamaConfig(53, 48, 3, 6, 2, 80, rope_theta=100_000.0, tied=True)
UNTIED = LlamaConfig(53, 32, 2, 4, 4, 48)
TOKEN = st.integers(0, CONFIG.vocabulary - 1)
Ids = list[int]


def network(config: LlamaConfig, seed: int = 0) -> Llama:
    torch.manual_seed(seed)
    made = Llama(config).eval().requires_grad_(False)
    for parameter in made.parameters():  # larger than usual so that an error shows
        torch.nn.init.normal_(parameter, std=0.3)
    return made


NETWORKS = [network(CONFIG), network(UNTIED)]
# A vocabulary of seven, so that completions often stop and often are among the candidates
FEW_WORDS = [
    network(dataclasses.replace(config, vocabulary=7), seed)
    for seed in range(4)
    for config in (CONFIG, UNTIED)
]


def embed(decoder: Llama, ids: Sequence[int]) -> torch.Tensor:
    return decoder.embedding(torch.tensor([ids]))


def teacher_forced(decoder: Llama, prompt: Ids, answer: Ids) -> float:
    """The answer's log-probability from one pass over the whole text."""
    states = decoder.states(embed(decoder, [*prompt, *answer[:-1]]))[0, len(prompt) - 1 :]
    scores = decoder.logits(states).log_softmax(-1)
    return sum(float(row[token]) for row, token in zip(scores, answer, strict=True))


@pytest.mark.parametrize("decoder", NETWORKS, ids=["grouped, tied", "one key head each"])
@given(
    before=st.lists(TOKEN, max_size=6),
    prompt=st.lists(TOKEN, min_size=1, max_size=7),
    answers=st.lists(st.lists(TOKEN, min_size=1, max_size=5), min_size=1, max_size=5),
)
def test_log_probs_are_those_of_one_answer_at_a_time(
    decoder: Llama, before: Ids, prompt: Ids, answers: list[Ids]
) -> None:
    past = decoder.read(embed(decoder, before)) if before else None
    found, _ = loglikelihood(decoder, embed(decoder, prompt), answers, past)
    expected = [teacher_forced(decoder, [*before, *prompt], answer) for answer in answers]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_other_answers_do_not_matter() -> None:
    decoder, prompt = NETWORKS[0], embed(NETWORKS[0], [5, 6, 7])
    answers = [[1], [2, 3, 4], [2, 3], [2, 9, 9, 9]]
    together, _ = loglikelihood(decoder, prompt, answers)
    backwards, _ = loglikelihood(decoder, prompt, answers[::-1])
    assert backwards[::-1] == pytest.approx(together, abs=1e-4)
    for answer, log_prob in zip(answers, together, strict=True):
        assert loglikelihood(decoder, prompt, [answer])[0] == pytest.approx([log_prob], abs=1e-4)


def test_answers_of_one_token_have_probability_one_together() -> None:
    decoder = NETWORKS[0]
    everything = [[token] for token in range(CONFIG.vocabulary)]
    found, _ = loglikelihood(decoder, embed(decoder, [3, 1, 4]), everything)
    assert torch.tensor(found).exp().sum().item() == pytest.approx(1, abs=1e-4)


def test_the_past_is_not_changed() -> None:
    decoder = NETWORKS[0]
    past = decoder.read(embed(decoder, [8, 2, 5]))
    keys, values = past.keys.clone(), past.values.clone()
    scored = [
        loglikelihood(decoder, embed(decoder, [7]), [[1, 2, 3], [4]], past)[0] for _ in range(2)
    ]
    assert scored[0] == scored[1]
    assert past.length == 3
    assert torch.equal(past.keys, keys)
    assert torch.equal(past.values, values)


@pytest.mark.parametrize(
    ("answers", "nodes"),
    [([[1]], 0), ([[1], [2]], 0), ([[1, 2], [3, 4, 5], [6]], 3), ([[1, 2, 3], [1, 2, 4]], 2)],
)
@pytest.mark.parametrize("num_before", [0, 4])
def test_flops_are_what_torch_counts(answers: list[Ids], nodes: int, num_before: int) -> None:
    """One pass over the prompt and the nodes of the tree."""
    decoder, prompt = NETWORKS[0], [9, 8, 7, 6, 5]
    past = decoder.read(embed(decoder, [1] * num_before)) if num_before else None
    embedded = embed(decoder, prompt)
    _, spent = loglikelihood(decoder, embedded, answers, past)
    assert spent == count_flops(lambda: loglikelihood(decoder, embedded, answers, past))
    new = len(prompt) + nodes
    assert spent == flops(CONFIG, new, num_before + new, logits=1 + nodes)


END = 0
ANSWER = st.lists(st.integers(1, 6), max_size=3).map(lambda tokens: [*tokens, END])


@given(
    seed=st.integers(0, 50),
    before=st.lists(TOKEN, max_size=4),
    prompt=st.lists(TOKEN, min_size=1, max_size=5),
    answers=st.lists(ANSWER, min_size=1, max_size=24),
    max_new=st.integers(0, 6),
    data=st.data(),
)
def test_a_completion_is_that_of_one_token_at_a_time(
    seed: int, before: Ids, prompt: Ids, answers: list[Ids], max_new: int, data: st.DataObject
) -> None:
    """And the candidate that is best with its prior has the log-probability it has alone, whatever
    is added where it is the completion."""
    decoder = FEW_WORDS[seed % len(FEW_WORDS)]
    before, prompt = ([token % 7 for token in ids] for ids in (before, prompt))
    prior = [data.draw(st.floats(-20, 0)) for _ in answers]
    own = data.draw(st.sampled_from([0.0, 2.0, -0.5, -3.0]))
    stop = data.draw(st.sampled_from([{END}, {END, 3}]))
    past = decoder.read(embed(decoder, before)) if before else None
    embedded = embed(decoder, prompt)
    plain = decoder.generate(embedded, max_new, stop, past=past)
    candidates = [Candidate(*pair, own) for pair in zip(answers, prior, strict=True)]
    found, log_probs = generate_with_candidates(decoder, embedded, max_new, stop, candidates, past)
    assert found.tokens == plain.tokens
    assert found.log_probs == pytest.approx(plain.log_probs, abs=1e-3)
    alone, _ = loglikelihood(decoder, embedded, [*answers, [*found.tokens, END]], past)
    assert log_probs[-1] == pytest.approx(alone[-1], abs=1e-3)
    completed = [own * (answer == [*found.tokens, END]) for answer in answers]
    sums = [sum(three) for three in zip(alone[:-1], prior, completed, strict=True)]
    for log_prob, expected, total in zip(log_probs[:-1], alone, sums, strict=False):
        if log_prob == -math.inf:
            assert total <= max(sums) + 1e-3
        else:
            assert log_prob == pytest.approx(expected, abs=1e-3)
    best = max(range(len(sums)), key=sums.__getitem__)
    assert log_probs[best] > -math.inf or completed[best] > 0  # the completion is scored anyway


def test_a_completion_among_the_candidates_takes_no_pass_of_its_own() -> None:
    decoder, prompt = NETWORKS[0], embed(NETWORKS[0], [5, 6, 7])
    greedy = decoder.generate(prompt, 3).tokens
    a, b, c, end = [token for token in range(CONFIG.vocabulary) if token not in greedy][:4]
    others = [Candidate([a, b, end]), Candidate([c, end])]
    every = [Candidate([*greedy, end]), *others]
    spent = [
        generate_with_candidates(decoder, prompt, 3, {end}, every)[0].flops,
        count_flops(lambda: generate_with_candidates(decoder, prompt, 3, {end}, others)),
    ]
    assert spent[0] == flops(CONFIG, 3 + 6, 9, logits=1 + 6)
    steps = sum(flops(CONFIG, 1, 6 + n) for n in (1, 2, 3))
    assert spent[1] == flops(CONFIG, 3 + 3, 6, logits=1 + 3) + steps


def test_candidates_that_cannot_be_the_best_are_not_scored() -> None:
    decoder, prompt = NETWORKS[0], embed(NETWORKS[0], [5, 6, 7])
    candidates = [
        Candidate([token, END], 0.0 if token <= READ_WITH_PROMPT else -1_000.0)
        for token in range(1, 25)
    ]
    _, log_probs = generate_with_candidates(decoder, prompt, 0, {END}, candidates)
    first = decoder.generate(prompt, 1).tokens[0]
    for token, log_prob in enumerate(log_probs[:-1], 1):
        assert (log_prob > -math.inf) == (token <= READ_WITH_PROMPT or token == first), token


@pytest.mark.parametrize("if_completion", [0.0, 1_000.0, -1_000.0])
def test_what_beats_a_completion_that_counts_less_is_scored(if_completion: float) -> None:
    """The completion is the best candidate by far, the others in the first pass are the worst."""
    decoder, prompt = NETWORKS[0], embed(NETWORKS[0], [5, 6, 7])
    (first,) = decoder.generate(prompt, 1).tokens
    other, *lengthy = [token for token in range(1, 10) if token != first][:READ_WITH_PROMPT]
    candidates = [
        Candidate([first, END], 0.0, if_completion),
        *(Candidate([*[token] * 30, END], 0.0, if_completion) for token in lengthy),
        Candidate([other, END], -20.0, if_completion),
    ]
    _, log_probs = generate_with_candidates(decoder, prompt, 1, {END}, candidates)
    assert (log_probs[-2] > -math.inf) == (if_completion < 0)
