"""`Llama.weigh`, many answers side by side, against one answer at a time without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.backbones.llama import Llama, LlamaConfig, flops
from skipqa.costs.flops import count_flops

CONFIG = LlamaConfig(53, 48, 3, 6, 2, 80, rope_theta=100_000.0, tied=True)
UNTIED = LlamaConfig(53, 32, 2, 4, 4, 48)
TOKEN = st.integers(0, CONFIG.vocabulary - 1)
Ids = list[int]


def network(config: LlamaConfig) -> Llama:
    torch.manual_seed(0)
    made = Llama(config).eval().requires_grad_(False)
    for parameter in made.parameters():  # larger than the usual start so that an error shows
        torch.nn.init.normal_(parameter, std=0.3)
    return made


NETWORKS = [network(CONFIG), network(UNTIED)]


def embed(decoder: Llama, ids: Sequence[int]) -> torch.Tensor:
    return decoder.embedding(torch.tensor([ids]))


def teacher_forced(decoder: Llama, prompt: Ids, answer: Ids) -> float:
    """The answer's log-probability from one whole text, position by position."""
    states = decoder.states(embed(decoder, [*prompt, *answer[:-1]]))[0, len(prompt) - 1 :]
    scores = decoder.logits(states).log_softmax(-1)
    return sum(float(row[token]) for row, token in zip(scores, answer, strict=True))


@pytest.mark.parametrize("decoder", NETWORKS, ids=["grouped, tied", "one key head each"])
@given(
    before=st.lists(TOKEN, max_size=6),
    prompt=st.lists(TOKEN, min_size=1, max_size=7),
    answers=st.lists(st.lists(TOKEN, min_size=1, max_size=5), min_size=1, max_size=5),
)
def test_weights_are_those_of_one_answer_at_a_time(
    decoder: Llama, before: Ids, prompt: Ids, answers: list[Ids]
) -> None:
    past = decoder.read(embed(decoder, before)) if before else None
    found, _ = decoder.weigh(embed(decoder, prompt), answers, past)
    expected = [teacher_forced(decoder, [*before, *prompt], answer) for answer in answers]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_company_does_not_matter() -> None:
    decoder, prompt = NETWORKS[0], embed(NETWORKS[0], [5, 6, 7])
    answers = [[1], [2, 3, 4], [2, 3], [2, 9, 9, 9]]
    together, _ = decoder.weigh(prompt, answers)
    backwards, _ = decoder.weigh(prompt, answers[::-1])
    assert backwards[::-1] == pytest.approx(together, abs=1e-4)
    for answer, weight in zip(answers, together, strict=True):
        assert decoder.weigh(prompt, [answer])[0] == pytest.approx([weight], abs=1e-4)


def test_all_answers_of_one_token_share_one_unit_of_probability() -> None:
    decoder = NETWORKS[0]
    everything = [[token] for token in range(CONFIG.vocabulary)]
    found, _ = decoder.weigh(embed(decoder, [3, 1, 4]), everything)
    assert torch.tensor(found).exp().sum().item() == pytest.approx(1, abs=1e-4)


def test_what_was_read_before_is_left_as_it_was() -> None:
    decoder = NETWORKS[0]
    past = decoder.read(embed(decoder, [8, 2, 5]))
    keys, values = past.keys.clone(), past.values.clone()
    weighed = [decoder.weigh(embed(decoder, [7]), [[1, 2, 3], [4]], past)[0] for _ in range(2)]
    assert weighed[0] == weighed[1]
    assert past.length == 3
    assert torch.equal(past.keys, keys)
    assert torch.equal(past.values, values)


@pytest.mark.parametrize("answers", [[[1]], [[1], [2]], [[1, 2], [3, 4, 5], [6]]])
@pytest.mark.parametrize("num_before", [0, 4])
def test_flops_are_what_torch_counts(answers: list[Ids], num_before: int) -> None:
    decoder, prompt = NETWORKS[0], [9, 8, 7, 6, 5]
    past = decoder.read(embed(decoder, [1] * num_before)) if num_before else None
    embedded = embed(decoder, prompt)
    _, spent = decoder.weigh(embedded, answers, past)
    assert spent == count_flops(lambda: decoder.weigh(embedded, answers, past))
    read = num_before + len(prompt)
    ahead = sum(len(answer) - 1 for answer in answers)
    second = flops(CONFIG, ahead, read + ahead, logits=ahead)
    assert spent == flops(CONFIG, len(prompt), read) + second
