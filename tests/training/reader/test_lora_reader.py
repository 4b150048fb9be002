"""The reader of a tiny decoder of Qwen2's kind: it learns, resumes, and is read back as it was."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tiny_training import QWEN, make_example, qwen, tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from skipqa import assets
from skipqa.backbones.networks import int8
from skipqa.backbones.networks.llama import QWEN2_1_5B, Llama
from skipqa.backbones.presets.desk import CHAT, Desk
from skipqa.backbones.presets.pocket import FineTuned, PromptForm
from skipqa.backbones.weights import loading
from skipqa.backbones.weights.gguf_decoder import PublishedDecoder
from skipqa.config import EncodeConfig
from skipqa.errors import UserError
from skipqa.nn import compact
from skipqa.nn.lora import Adapter, LoraConfig
from skipqa.training.reader import adapter
from skipqa.training.reader.estimate import ANSWER_TOKENS, Estimate
from skipqa.training.reader.settings import ReaderSchedule
from skipqa.training.run import Run
from skipqa.training.stage1.drafter import TRAIN_GROUPS
from skipqa.training.stage1.reader import (
    Prompts,
    ReaderInputs,
    ReaderTrainer,
    generate,
    log_probs,
    losses,
)

PUBLISHED = PublishedDecoder(assets.QWEN, QWEN)
COLOURS = ("red", "blue", "green", "white", "black")
TEXTS = [f"{letter}?" for letter in string.ascii_letters[:50]]
ANSWERS = [COLOURS[(7 * n + n // 9) % 5] for n in range(50)]
LORA = LoraConfig(rank=24, dropout=0.0, mlp=True)
# Fast rather than good; the second phase is there to be resumed
TRAINING = ReaderSchedule(
    epochs=150.0, focus_epochs=4.0, batch=25, lr=2e-2, focus_lr=1e-3, warmup=10, knowledge_times=1
)


class Killed(Exception):
    pass


def base() -> Llama:
    """Frozen random output weights say little: the last norm makes them louder."""
    decoder = qwen()
    decoder.norm.weight.fill_(2.0)
    return decoder


def trainer(run: Run, training: ReaderSchedule = TRAINING) -> ReaderTrainer:
    prompts = Prompts(TEXTS, tokenizer(), PromptForm("u: {prompt}\n", ""))
    pairs = zip(TEXTS, ANSWERS, strict=True)
    examples = [make_example(0, text, {answer: 1.0}, "okvqa", "train") for text, answer in pairs]
    groups = dict.fromkeys(TRAIN_GROUPS, torch.zeros(0, dtype=torch.long))
    groups |= {"okvqa/train": torch.arange(25), "coco/train": torch.arange(25, 50)}
    questions = ReaderInputs(prompts, examples, groups)
    return ReaderTrainer(questions, run, training, training.recompute)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Llama, Adapter, Prompts]:
    """A decoder, what was learned beside it, and the prompts."""
    decoder, reading = base(), trainer(Run(tmp_path_factory.mktemp("run")))
    learned = adapter.train(decoder, reading, replace(TRAINING, recompute=False), LORA)
    return decoder, learned, reading.inputs.prompts


def test_it_learns_fifty_prompts_and_changes_factors_alone(
    trained: tuple[Llama, Adapter, Prompts],
) -> None:
    decoder, learned, prompts = trained
    with learned.beside(decoder):
        given = generate(decoder, prompts, range(50))
    right = sum(one == other for one, other in zip(given, ANSWERS, strict=True))
    assert right == 50
    for name, value in base().state_dict().items():
        assert torch.equal(decoder.state_dict()[name], value), name
    assert set(learned.names) == set(adapter.matrices(QWEN, LORA))


def test_exported_and_loaded_it_says_the_same(
    trained: tuple[Llama, Adapter, Prompts], tmp_path: Path
) -> None:
    """As training scores it, merged in float32, and merged and then in 8 bits, as a CPU answers."""
    decoder, learned, prompts = trained
    path = tmp_path / "reader.safetensors"
    exported = adapter.export(learned, path, PUBLISHED, LORA, preset="desk")
    state = loading.tuned(decoder.state_dict(), path)
    merged = Llama(QWEN).eval().requires_grad_(False)
    merged.load_state_dict(state)
    rounded = int8.build(QWEN, "int8")
    rounded.load_state_dict(dict(int8.stored_as("int8", state.items())), assign=True)
    pairs = [(row, ANSWERS[row]) for row in range(50)]
    with exported.beside(decoder):
        beside = log_probs(decoder, prompts, pairs)
    torch.testing.assert_close(log_probs(merged, prompts, pairs), beside, rtol=1e-4, atol=1e-4)
    with learned.beside(decoder):  # factors in 8 bits are near those in float32
        assert float((log_probs(decoder, prompts, pairs) - beside).abs().mean()) < 0.1
    assert generate(merged, prompts, range(50)) == ANSWERS
    assert generate(rounded.eval(), prompts, range(50)) == ANSWERS


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    """With dropout and recomputation; killed in each phase."""
    short = replace(TRAINING, epochs=5.0)
    lora = LoraConfig(rank=2, dropout=0.2)
    whole = adapter.train(qwen(), trainer(Run(tmp_path / "whole"), short), short, lora)
    for phase, steps in (("reader", 6), ("reader/focus", 3)):

        def stop(what: str, done: int, *_: object, at: tuple[str, int] = (phase, steps)) -> None:
            if (what, done) == at:
                raise Killed

        folder = tmp_path / phase
        often = Run(folder, progress=stop, save_every_s=0.0)
        with pytest.raises(Killed):
            adapter.train(qwen(), trainer(often, short), short, lora)
        resumed = adapter.train(qwen(), trainer(Run(folder), short), short, lora)
        for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
            assert torch.equal(one, other)


class TestSize:
    @pytest.mark.parametrize(
        ("lora", "megabytes"),
        [
            (LoraConfig(rank=16), 3.0),
            (LoraConfig(rank=32), 6.0),
            (LoraConfig(rank=16, mlp=True), 16.4),
            (LoraConfig(rank=32, mlp=True), 32.8),
        ],
    )
    def test_of_qwens_shapes_without_its_weights(self, lora: LoraConfig, megabytes: float) -> None:
        with torch.device("meta"):
            decoder = Llama(QWEN2_1_5B)
            learned = Adapter.start(decoder, adapter.matrices(QWEN2_1_5B, lora), lora)
        parameters = [factor for factor in learned.parameters() if factor.numel() >= compact.LEAST]
        size = sum(factor.numel() + 4 * len(factor) for factor in parameters)  # a scale per row
        assert len(parameters) == len(list(learned.parameters()))
        assert size == adapter.file_bytes(QWEN2_1_5B, lora)
        assert size / 1e6 == pytest.approx(megabytes, abs=0.06)
        adapter.check_size(QWEN2_1_5B, lora)

    def test_of_a_real_file(self, tmp_path: Path) -> None:
        wide = replace(QWEN, width=256, heads=4, ffn=512)
        torch.manual_seed(0)
        learned = Adapter.start(Llama(wide), adapter.matrices(wide, LORA), LORA)
        path = tmp_path / "reader.safetensors"
        adapter.export(learned, path, PUBLISHED, LORA, preset="desk")
        header = int.from_bytes(path.read_bytes()[:8], "little") + 8
        assert path.stat().st_size == adapter.file_bytes(wide, LORA) + header

    def test_too_large_a_file_is_refused_before_anything_is_trained(self) -> None:
        with pytest.raises(UserError, match="file of 66 MB, and at most 40 are shipped") as error:
            adapter.check_size(QWEN2_1_5B, LoraConfig(rank=64, mlp=True))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("recompute", [False, True])
def test_flops_are_those_of_the_counter(recompute: bool) -> None:
    config = replace(QWEN, layers=4, width=64, ffn=160)
    lora = LoraConfig(rank=4, mlp=True)
    estimate = Estimate(config, lora, ReaderSchedule(recompute=recompute), "cpu")
    decoder = Llama(config).requires_grad_(False)
    learned = Adapter.start(decoder, adapter.matrices(config, lora), lora)
    ids = torch.zeros(3, 48, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    labels[:, -ANSWER_TOKENS:] = 1
    # Whose two products the counter knows, as it does not those of the CPU's fused kernel
    plain = sdpa_kernel(SDPBackend.MATH)
    with plain, learned.beside(decoder), FlopCounterMode(display=False) as counter:
        losses(decoder, ids, labels, recompute=recompute)[0].mean().backward()
    assert estimate.step_flops(3, 48) == pytest.approx(counter.get_total_flops(), rel=0.1)


def test_a_batch_of_32_fits_in_forty_gigabytes_of_a_gpu() -> None:
    lora = LoraConfig(mlp=True)
    kept, again = (
        Estimate(QWEN2_1_5B, lora, ReaderSchedule(recompute=flag), "cuda").peak_bytes
        for flag in (False, True)
    )
    assert again < 20e9
    assert kept > 40e9


class TestAnotherBase:
    def test_is_refused_by_its_checksum(self, tmp_path: Path) -> None:
        path = tmp_path / "reader.safetensors"
        learned = Adapter.start(qwen(), ["layers.0.out"], LORA)
        other = PublishedDecoder(replace(assets.QWEN, name="another", sha256="1234" * 16), QWEN)
        adapter.export(learned, path, other, LORA, preset="desk")
        with pytest.raises(UserError, match="was trained on another with sha256 12341234") as error:
            Desk(EncodeConfig(), learned=FineTuned(reader=path))
        assert "\n" not in str(error.value)
        with pytest.raises(UserError, match=r"not on qwen2\.5-coder-1\.5b-instruct with cc324af0"):
            Desk(EncodeConfig()).with_reader(path)

    def test_its_own_is_taken(self, tmp_path: Path) -> None:
        path = tmp_path / "reader.safetensors"
        learned = Adapter.start(qwen(), ["layers.0.out"], LORA)
        adapter.export(learned, path, PUBLISHED, LORA, preset="desk")
        assert Desk(EncodeConfig(), learned=FineTuned(reader=path)).learned.reader == path
        with safe_open(path, framework="pt") as file:
            assert assets.QWEN.sha256 in file.metadata()["config"]


def test_prompts_are_in_the_form_that_answering_writes() -> None:
    prompts = Prompts(["What is this?", ""], tokenizer(), Desk.form)
    assert prompts.tokenizer.decode(prompts.ids[0], skip_special_tokens=False) == CHAT.format(
        prompt="What is this?"
    )
    assert prompts.ids[1] == []  # a row that is not read
    desk = Desk(EncodeConfig())
    vars(desk).update(decoder=qwen(), decoder_tokenizer=tokenizer())
    assert prompts.answer("hot water") == desk.answer_tokens("hot water")
    assert desk.embed_prompt("What is this?").shape[1] == len(prompts.ids[0])
