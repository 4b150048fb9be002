"""Decodings that share their passes against the same ones alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_candidates import CONFIG, NETWORKS, TOKEN, embed

from skipqa.backbones.generation.candidates import Candidate, generate_with_candidates
from skipqa.backbones.generation.mixin import GenerationMixin
from skipqa.backbones.generation.packing import decode_together
from skipqa.backbones.networks.llama import KVCache, Llama, Pass, Placement, rotation

END = 1
PROMPT = st.lists(TOKEN, min_size=1, max_size=9)
ANSWER = st.lists(TOKEN, min_size=1, max_size=4).map(lambda tokens: [*tokens, END])


class Tiny(GenerationMixin):
    """Only a decoder: the tasks below use nothing else."""

    decoder: Llama = NETWORKS[0]
    decoder_tokenizer: Any = None
    stop_tokens = (END,)

    def __init__(self, decoder: Llama) -> None:
        self.decoder = decoder

    def embed_prompt(self, prompt: str, visual: Any = None) -> torch.Tensor:
        raise AssertionError

    def answer_tokens(self, text: str) -> list[int]:
        raise AssertionError


Task = Callable[[Tiny], Any]


def greedy(prompt: Sequence[int], length: int) -> Task:
    return lambda b: b.decoder.generate(embed(b.decoder, prompt), length, (END,)).tokens


def scored(prompt: Sequence[int], answers: Sequence[Sequence[int]], length: int) -> Task:
    candidates = [Candidate(answer, -0.1 * n) for n, answer in enumerate(answers)]

    def run(backbone: Tiny) -> Any:
        decoder = backbone.decoder
        generated, log_probs = generate_with_candidates(
            decoder, embed(decoder, prompt), length, (END,), candidates
        )
        return generated.tokens, log_probs, generated.flops

    return run


TASK = st.one_of(
    st.builds(greedy, PROMPT, st.integers(0, 6)),
    st.builds(scored, PROMPT, st.lists(ANSWER, min_size=1, max_size=4), st.integers(0, 5)),
)


@pytest.mark.parametrize("decoder", NETWORKS, ids=["grouped, tied", "one key head each"])
@given(tasks=st.lists(TASK, min_size=1, max_size=5))
def test_together_each_task_has_what_it_has_alone(decoder: Llama, tasks: list[Task]) -> None:
    backbone = Tiny(decoder)
    alone = [task(backbone) for task in tasks]
    together = decode_together(backbone, tasks)
    for one, other in zip(alone, together, strict=True):
        if isinstance(one, tuple):
            assert (other[0], other[2]) == (one[0], one[2])
            assert other[1] == pytest.approx(one[1], abs=1e-4)
        else:
            assert other == one


def test_a_packed_pass_is_that_of_each_text() -> None:
    decoder, torch_seed = NETWORKS[0], torch.manual_seed(0)
    passes, alone = [], []
    for length in (1, 5, 3):
        x_1TD = torch.randn(1, length, CONFIG.width, generator=torch_seed)
        positions = torch.arange(length)
        rope = rotation(CONFIG, positions, torch.float32)
        placed = Placement(positions, rope, length, None)
        alone.append(decoder.forward_at(x_1TD, KVCache(CONFIG, 1, length), placed))
        passes.append(Pass(x_1TD, KVCache(CONFIG, 1, length), placed))
    for one, other in zip(alone, decoder.forward_packed(passes), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_passes_really_meet() -> None:
    """Three tasks of the same length need as many passes as one."""
    decoder = NETWORKS[0]
    calls = []

    class Counting(Llama):
        def forward_packed(self, passes: Sequence[Pass]) -> list[torch.Tensor]:
            calls.append(len(passes))
            return super().forward_packed(passes)

    counting = Counting.__new__(Counting)
    vars(counting).update(vars(decoder))
    task = lambda b: b.decoder.generate(embed(b.decoder, [3, 4]), 4).tokens  # noqa: E731
    decode_together(Tiny(counting), [task] * 3)
    assert calls == [3, 3, 3, 3]


def test_an_error_of_one_ends_no_other_and_is_raised() -> None:
    finished = []

    def fails(_: Tiny) -> None:
        raise ValueError("this one")

    def works(backbone: Tiny) -> None:
        finished.append(greedy([2, 3], 3)(backbone))

    with pytest.raises(ValueError, match="this one"):
        decode_together(Tiny(NETWORKS[0]), [works, fails, works])
    assert len(finished) == 2


def test_an_error_in_a_pass_reaches_all_who_wait_for_it() -> None:
    def broken(backbone: Tiny) -> str:
        try:
            backbone.decoder.logits(torch.zeros(1, 7))  # another width
        except RuntimeError:
            return "told"
        return "not told"

    assert decode_together(Tiny(NETWORKS[0]), [broken, broken]) == ["told", "told"]


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    decode_together(Tiny(NETWORKS[0]), [greedy([1], 2), greedy([2], 3)])
    assert threading.active_count() == before
