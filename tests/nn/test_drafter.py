from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.checkpoint import load, read_config, save
from skipqa.nn.drafter import (
    Drafter,
    DrafterConfig,
    above_chance,
    calibrate_threshold,
    fit_temperature,
)

CONFIG = DrafterConfig(9, 5, 4, answers=tuple("abcdefg"), width=16, layers=2, heads=2, ffn=32)


def test_padding_is_invisible() -> None:
    torch.manual_seed(0)
    model = Drafter(CONFIG).double()
    visual, question = torch.randn(2, 9, 5).double(), torch.randn(2, 3, 4).double()
    padded = torch.cat((question, torch.randn(2, 2, 4).double()), dim=1)
    mask = torch.tensor([[True, True, True, False, False]] * 2)
    torch.testing.assert_close(model(visual, padded, mask), model(visual, question))


WITH_WORDS = replace(CONFIG, words=True, named_answers=True)


def test_padding_is_invisible_beside_words() -> None:
    torch.manual_seed(0)
    model = Drafter(WITH_WORDS).double()
    model.answer_names.normal_()
    visual, question = torch.randn(2, 9, 5).double(), torch.randn(2, 3, 4).double()
    words = torch.randn(2, 6, 4).double(), torch.rand(2, 6).double()
    padded = torch.cat((question, torch.randn(2, 2, 4).double()), dim=1)
    mask = torch.tensor([[True, True, True, False, False]] * 2)
    found = model(visual, padded, mask, words)
    torch.testing.assert_close(found, model(visual, question, None, words))


def test_words_are_read_with_their_shares_in_any_order() -> None:
    torch.manual_seed(0)
    model = Drafter(WITH_WORDS).double()
    visual, question = torch.randn(1, 9, 5).double(), torch.randn(1, 3, 4).double()
    words, probs = torch.randn(1, 6, 4).double(), torch.rand(1, 6).double()
    found = model(visual, question, None, (words, probs))
    other = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = model(visual, question, None, (words[:, other], probs[:, other]))
    torch.testing.assert_close(found, shuffled)
    assert not torch.allclose(found, model(visual, question, None, (words, probs[:, other])))
    assert not torch.allclose(found, model(visual, question, None, (words[:, other], probs)))


def test_answers_are_scored_by_what_they_mean() -> None:
    """Two answers of the same name and the same output weights score alike."""
    torch.manual_seed(0)
    model = Drafter(replace(WITH_WORDS, words=False))
    model.answer_names.normal_()
    with torch.no_grad():
        model.to_answers.weight.zero_()
        model.to_answers.bias.zero_()
        model.answer_names[3] = model.answer_names[5]
    logits = model(torch.randn(2, 9, 5), torch.randn(2, 3, 4))
    torch.testing.assert_close(logits[:, 3], logits[:, 5])
    assert not torch.allclose(logits[:, 3], logits[:, 4])


def test_places_matter() -> None:
    torch.manual_seed(0)
    model = Drafter(CONFIG)
    visual, question = torch.randn(1, 9, 5), torch.randn(1, 3, 4)
    assert not torch.allclose(model(visual, question), model(visual.flip(1), question))


def test_a_file_without_frequencies_is_still_read(tmp_path: Path) -> None:
    """And one with them holds them."""
    plain, counted = Drafter(CONFIG), Drafter(replace(CONFIG, counted_answers=True))
    counted.log_frequency.copy_(-torch.arange(7.0))
    for model in (plain, counted):
        save(model, tmp_path / "drafter.safetensors", preset="pocket")
        found = Drafter(read_config(tmp_path / "drafter.safetensors", DrafterConfig))
        load(found, tmp_path / "drafter.safetensors", preset="pocket")
        assert found.vocabulary() == model.vocabulary()
    assert "log_frequency" not in plain.state_dict()
    assert plain.vocabulary() == dict.fromkeys("abcdefg", 0.0)
    assert found.vocabulary()["c"] == -2


@given(st.floats(0.2, 5.0), st.integers(0, 1000))
def test_temperature_is_recovered(true: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4000, 7, generator=generator).double() * 2
    answers = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    assert fit_temperature(logits * true, answers) == pytest.approx(true, rel=0.15)


def test_calibration_is_kept_and_changes_no_answer() -> None:
    torch.manual_seed(0)
    model = Drafter(CONFIG)
    logits, answers = torch.randn(50, 7) * 9, torch.randint(0, 7, (50,))
    before, sure = model.draft(logits)
    assert model.calibrate(logits, answers) > 1
    after, less_sure = model.draft(logits)
    assert torch.equal(before, after)
    assert (less_sure <= sure).all()
    assert model.state_dict()["temperature"] > 1


held_out = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 20).map(lambda x: x / 20), min_size=n, max_size=n),
        st.lists(st.sampled_from([0.0, 0.3, 0.6, 1.0]), min_size=n, max_size=n),
        st.lists(st.sampled_from([0.0, 0.3, 0.6, 1.0]), min_size=n, max_size=n),
    )
)


@given(held_out, st.sampled_from([0.0, 0.01, 0.1]))
def test_threshold_loses_no_more_than_allowed_and_drafts_the_most(
    split: tuple[list[float], list[float], list[float]], max_loss: float
) -> None:
    confidence, draft, full = (torch.tensor(x, dtype=torch.float64) for x in split)
    found = calibrate_threshold(confidence, draft, full, max_loss)

    def routed(threshold: float) -> tuple[float, float]:
        fast = confidence > threshold
        return float(torch.where(fast, draft, full).mean()), float(fast.double().mean())

    accuracy, rate = routed(found.threshold)
    if found.draft_rate == 1.0 and float(confidence.min()) == 0.0:
        rate, accuracy = 1.0, float(draft.mean())  # nothing lies strictly above a confidence of 0
    assert rate == pytest.approx(found.draft_rate)
    assert accuracy == pytest.approx(found.accuracy)
    assert found.accuracy >= found.full_accuracy - max_loss - 1e-9
    for other in {0.0, *confidence.tolist()}:
        other_accuracy, other_rate = routed(other)
        if other_accuracy >= found.full_accuracy - max_loss:
            assert other_rate <= found.draft_rate + 1e-9


@given(st.floats(0, 1))
def test_of_yes_and_no_only_what_is_above_chance_counts(prob: float) -> None:
    assert above_chance("tennis", prob) == prob
    for answer in ("yes", "no"):
        assert above_chance(answer, prob) == pytest.approx(max(0, (prob - 0.5) / 0.5))
