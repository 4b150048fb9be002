"""Fused tokens on their way into a decoder: what is read, in which form, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import tiny_training
import torch
from synthetic import WIDTH, concepts, kept_tokens, question, run, state, verified
from tiny_fusion import examples, networks, scenes
from torch import Tensor

from skipqa.backbones.backbone import IMAGE, Completion, Decoding
from skipqa.backbones.networks import llama
from skipqa.backbones.presets.pocket import Pocket
from skipqa.components import Components
from skipqa.config import ConfidenceConfig, DecodeConfig, EncodeConfig, FuseConfig, preset
from skipqa.costs.flops import count_flops
from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.nn.fusion import BipartiteFusion, FusionConfig, mass_flops
from skipqa.nn.fusion_reader import LONGEST_READ, FusionReader, FusionReaderConfig
from skipqa.nn.reading_choice import WAYS
from skipqa.stages import decode, fuse
from skipqa.stages.decode import Decode
from skipqa.stages.fuse import (
    CosineFuser,
    Fuse,
    ReadingFuser,
    TrainedFuser,
    local_tokens,
    way_as_set,
)
from skipqa.stages.readers import ReadTogether, ShortReader
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.training.pathway.fusion_loss import FusionTables
from skipqa.types import Budget, Draft, Verified

TEXTS = ("The Komondor is from Hungary.", "A cup  holds\nTEA.", "Milk comes from cows.")
LAYERS = 1
TOKENS = 2 * (1 + 2)  # two windows of two words


class TinyPocket(Pocket):
    """The pocket with a decoder of bytes, and a note of what it was asked."""

    def __init__(self) -> None:
        super().__init__(EncodeConfig())
        vars(self)["decoder"] = tiny_training.decoder()
        vars(self)["decoder_tokenizer"] = tiny_training.tokenizer()
        self.asked: list[tuple[str, Tensor | None]] = []

    def generate(self, prompt: str, decoding: Decoding, visual: Tensor | None = None) -> Completion:
        self.asked.append((prompt, visual))
        return super().generate(prompt, decoding, visual)


def reader(beta: float = 0.3) -> FusionReader:
    torch.manual_seed(0)
    config = FusionReaderConfig(
        *(6, 7, WIDTH, tiny_training.LLAMA.width),
        heads=2,
        embedding_rms=0.3,
        early_layers=LAYERS,
        edge_width=8,
        beta=beta,
        window=2,
        before=1,
    )
    return FusionReader(config).requires_grad_(False)


def passages(texts: Sequence[str] = TEXTS) -> Verified:
    found = verified([3] * len(texts), seed=1)
    told = tuple(
        replace(one, passage=replace(one.passage, text=text))
        for one, text in zip(found.passages, texts, strict=True)
    )
    return replace(found, passages=told)


def asked(texts: Sequence[str] = TEXTS) -> State:
    kept = kept_tokens(4, [0, 3, 5, 8, 9, 15], seed=2)
    draft = Draft("", 0.0, "none")
    return state(question=question(), kept=kept, verified=passages(texts), draft=draft, regions=())


def test_words_are_those_of_the_decoder() -> None:
    pocket = TinyPocket()
    found = pocket.decoder_words(TEXTS[:2], LAYERS)
    for text, states, raw in zip(TEXTS, found.states, found.embeddings, strict=False):
        ids = torch.tensor([pocket.decoder_tokenizer.encode(text).ids])
        torch.testing.assert_close(raw, pocket.decoder.embedding(ids)[0])
        one = llama.Llama(replace(pocket.decoder.config, layers=LAYERS))
        weights = {k: v for k, v in pocket.decoder.state_dict().items() if "layers.1" not in k}
        one.load_state_dict(weights)
        one.norm = torch.nn.Identity()  # type: ignore[assignment]
        torch.testing.assert_close(states, one.states(raw[None])[0])
    counted = count_flops(lambda: pocket.decoder_words(TEXTS[:2], LAYERS))
    assert found.flops == counted


def test_fusing_leaves_tokens_for_the_decoder() -> None:
    pocket, entering = TinyPocket(), asked()
    fuser = ReadingFuser(reader(), pocket, lower_case=True)
    leaving, record = run(Fuse(fuser), entering)
    fused, kept = leaving.fused, entering.kept
    assert fused.for_decoder is not None
    assert fused.for_decoder.shape == (TOKENS, tiny_training.LLAMA.width)
    assert torch.equal(fused.tokens, kept.meaning)
    assert fused.edges.shape == (6, 3)
    assert int(fused.edges.sum()) == record.kept == 6  # of 18 pairs, three tenths
    assert fused.attention is not None
    torch.testing.assert_close(fused.attention.sum(1), fused.edges.any(1).float())
    assert sum(fused.mass) == pytest.approx(int(fused.edges.any(1).sum()), abs=1e-4)
    # Edges are in the order of the kept tokens, and may be given in it
    again, _ = fuser(kept, entering.question, entering.verified, fused.edges)
    torch.testing.assert_close(again.for_decoder, fused.for_decoder)
    assert torch.equal(again.edges, fused.edges)
    counted = count_flops(lambda: fuser(kept, entering.question, entering.verified))
    assert record.flops == pytest.approx(counted, rel=0.02)


def test_a_passage_without_an_edge_is_never_read() -> None:
    pocket, entering = TinyPocket(), asked()
    read: list[str] = []
    words = pocket.decoder_words

    def noted(texts: Sequence[str], *more: Any) -> Any:
        read.extend(texts)
        return words(texts, *more)

    vars(pocket)["decoder_words"] = noted
    fuser = ReadingFuser(reader(), pocket, lower_case=True)
    edges = torch.zeros(6, 3, dtype=torch.bool)
    edges[2, 1] = True
    fused, _ = fuser(entering.kept, entering.question, entering.verified, edges)
    assert read == [asked().question.text, "a cup holds tea."]
    assert fused.mass == pytest.approx((0.0, 1.0, 0.0))
    nothing, _ = fuser(entering.kept, entering.question, passages([]))
    assert nothing.mass == ()
    assert nothing.for_decoder is not None


def test_a_long_passage_is_read_as_far_as_in_training() -> None:
    """What stands behind has no place that was ever trained. The tokens are bytes here."""
    fuser, entering = ReadingFuser(reader(), TinyPocket(), lower_case=True), asked()
    long = ("a cup holds tea. " * 30).strip()
    cut = long[:LONGEST_READ]
    (whole, spent), (first, enough) = (
        fuser(entering.kept, entering.question, passages([text, *TEXTS[1:]]))
        for text in (long, cut)
    )
    assert whole.for_decoder is not None
    assert first.for_decoder is not None
    assert torch.equal(whole.for_decoder, first.for_decoder)
    assert whole.mass == first.mass
    assert spent == enough
    words = FusionTables([replace(examples()[0], gold=(long,))], scenes(), networks(seed=1)).words
    assert int(words.lengths.max()) == LONGEST_READ


def test_what_is_not_looked_up_leaves_no_fused_tokens() -> None:
    """With K' = 0 the prompt is that of a decoder which reads text."""
    pocket, entering = TinyPocket(), asked([])
    config = DecodeConfig(prompt="short", passages="fused+best")
    fuser = ReadingFuser(reader(), pocket, lower_case=True)
    fusing = Fuse(fuser, {"none": CosineFuser(FuseConfig())})
    reading = ShortReader(config, pocket, ReadTogether(pocket))
    decoding = Decode(reading, ConfidenceConfig(), passages=config.passages)
    closed, record = run(fusing, entering.add(budget=Budget(6, 0)))
    assert closed.fused.for_decoder is None
    assert record.flops == 0
    run(decoding, closed)
    [(prompt, visual)] = pocket.asked
    assert "Fact" not in prompt
    assert visual is None
    # Looked up without a find, the tokens still say what the image shows
    found_nothing, _ = run(fusing, entering.add(budget=Budget(6, 4)))
    assert found_nothing.fused.for_decoder is not None


def test_the_most_salient_token_comes_first() -> None:
    kept = kept_tokens(4, [0, 3, 5, 8], seed=2)
    local, order = local_tokens(kept, 5)
    best = kept.positions[kept.saliency[kept.positions].argmax()]
    assert torch.equal(local.features_BVF[0, 0], kept.tokens.features[best])
    assert local.evidence_BVC.shape == (1, 4, 5)
    assert sorted(order.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("way", "as_text", "visual"),
    [("text", 2, 0), ("fused+best", 1, TOKENS), ("fused", 0, TOKENS), ("none", 0, 0)],
)
def test_how_passages_are_read_is_one_setting(way: str, as_text: int, visual: int) -> None:
    pocket = TinyPocket()
    config = preset("pocket", {"decode": {"prompt": "short", "passages": way, "lower_case": True}})
    parts = Parts(pocket, cast(Library, None), config)
    stage = decode.build(parts)
    entering, _ = run(Fuse(ReadingFuser(reader(1.0), pocket, lower_case=True)), asked())
    if not config.decode.reads_fused:
        entering = entering.add(fused=replace(entering.fused, for_decoder=None))
    leaving, record = run(stage, entering)
    [(prompt, given)] = pocket.asked
    assert prompt.count("Fact: ") == record.kept == as_text
    assert (0 if given is None else len(given)) == visual
    assert prompt.startswith(f"Fact:{IMAGE}\n") == config.decode.reads_fused
    tokens = len(pocket.decoder_tokenizer.encode(prompt.replace(IMAGE, "")).ids)
    assert leaving.answer.prompt_tokens == tokens + visual
    pocket.asked.clear()
    counted = count_flops(lambda: stage(entering, replace(record)))
    assert record.flops == pytest.approx(counted, rel=0.02)


def test_what_was_not_fused_is_read_as_text() -> None:
    """As in a question without an image."""
    pocket = TinyPocket()
    config = DecodeConfig(prompt="short", passages="fused")
    stage = Decode(ShortReader(config, pocket, ReadTogether(pocket)), ConfidenceConfig())
    entering, _ = run(Fuse(ReadingFuser(reader(1.0), pocket, lower_case=True)), asked())
    run(stage, entering.add(fused=replace(entering.fused, for_decoder=None)))
    [(prompt, visual)] = pocket.asked
    assert prompt.count("Fact: ") == 2
    assert visual is None


def test_fused_tokens_need_a_reader_of_both_kinds() -> None:
    settings = {"decode": {"prompt": "short", "passages": "fused"}}
    parts = Parts(TinyPocket(), cast(Library, None), preset("pocket", settings))
    with pytest.raises(UserError, match=r"needs fusion_reader\.safetensors"):
        fuse.build(parts)
    untrained = preset("pocket", {"decode": {"passages": "fused"}})
    with pytest.raises(UserError, match="trained reader"):
        decode.build(replace(parts, config=untrained))


@pytest.mark.parametrize("prompt", ["short", "examples"])
def test_nobody_has_to_ask_for_what_was_trained(prompt: str) -> None:
    """At "auto": fused tokens and the best passage where a decoder can read them, else text."""
    pocket = TinyPocket()
    vars(pocket.vision)["classes"] = concepts(*((name, ()) for name in "abcdefg"))
    config = preset("pocket", {"decode": {"prompt": prompt}})
    assert config.decode.passages == "auto"
    plain = Parts(pocket, cast(Library, None), config)
    trained = replace(plain, components=Components(fusion_reader=reader()))
    assert way_as_set(plain) == "text"
    way = way_as_set(trained)
    assert way == ("fused+best" if prompt == "short" else "text")
    assert isinstance(fuse.build(trained).fuser, ReadingFuser) is (prompt == "short")
    assert decode.build(trained).passages == way
    asked_for = replace(trained, config=preset("pocket", {"decode": {"passages": "none"}}))
    assert way_as_set(asked_for) == "none"


def test_a_reader_of_other_concepts_is_refused_only_where_it_would_be_used() -> None:
    pocket = TinyPocket()
    vars(pocket.vision)["classes"] = concepts(("cat", ()), ("dog", ()))

    def built(way: str, known: int) -> Fuse:
        config = preset("pocket", {"decode": {"prompt": "short", "passages": way}})
        fits = reader()
        fits.config = replace(fits.config, concepts=known)
        found = Components(fusion_reader=fits)
        return fuse.build(Parts(pocket, cast(Library, None), config, found))

    assert isinstance(built("fused", 2).fuser, ReadingFuser)
    assert set(built("text", 2).chosen) == set(WAYS)
    for way in ("text", "none"):
        assert set(built(way, 7).chosen) == {"text", "none"}
    with pytest.raises(UserError, match="was trained for 7 concepts, this backbone has 2"):
        built("fused+best", 7)


def test_the_mass_of_a_trained_layer_is_its_attention() -> None:
    torch.manual_seed(0)
    layer = BipartiteFusion(FusionConfig(WIDTH, WIDTH, 2, edge_width=8, beta=0.5))
    entering = asked()
    fused, flops = TrainedFuser(layer.requires_grad_(False))(
        entering.kept, entering.question, entering.verified
    )
    assert fused.attention is not None
    torch.testing.assert_close(fused.attention.sum(1), fused.edges.any(1).float())
    several = fused.attention[fused.edges.sum(1) > 1]
    assert len(several)
    assert (several[several > 0] != 0.5).any()
    lengths = [3, 3, 3]
    given = (entering.kept.meaning, torch.cat(entering.verified.token_states))
    counted = count_flops(lambda: layer.mass(*given, fused.edges, lengths))
    assert mass_flops(layer.config, fused.edges, lengths) == counted
    assert flops > counted
