"""Question and passage are encoded together, and only what is kept is encoded by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from synthetic import concepts, retrieved_passage, run, state

from skipqa import components
from skipqa.backbones.caching import CachedBackbone
from skipqa.backbones.networks import bert
from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.backbones.text_encoder import PAIR_LAYERS, MiniLm
from skipqa.components import Components
from skipqa.config import override
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.pipeline import Pipeline
from skipqa.stages import verify
from skipqa.stages.pairs import NAMES, pair_of
from skipqa.stages.signals import SIGNALS
from skipqa.stages.stage import Parts
from skipqa.stages.verify import PairVerifier
from skipqa.state import State
from skipqa.training.export import write_delta
from skipqa.types import (
    Budget,
    KeptTokens,
    Passage,
    Question,
    Region,
    Retrieved,
    RetrievedPassage,
    SeenWords,
    VisualTokens,
)

TEXTS = ("An espresso is brewed under pressure.", "A beagle is a small hound.", "Chad is inland.")
KNOWN = concepts(("pug", ()), ("dog", ()), ("tulip", ()))


def about(title: str, text: str) -> RetrievedPassage:
    return RetrievedPassage(0, Passage("id", title, text, "test"), 1.0, 0, 1.0)


def test_a_pair_has_the_title_once() -> None:
    def pair(words: Sequence[str], title: str, text: str) -> tuple[str, str]:
        return pair_of("Who?", words, about(title, text), (), KNOWN)

    asked, told = pair(["pug", "dog"], "Pug", "It is from China.")
    assert (asked, told) == ("Who? pug, dog", "Pug: It is from China.")
    assert pair([], "pug", "Pug (noun): a dog") == ("Who?", "Pug (noun): a dog")
    many = [str(n) for n in range(20)]
    assert pair(many, "pug", "Pug")[0] == f"Who? {', '.join(many[:NAMES])}"


def test_a_pair_says_first_what_the_asking_region_shows() -> None:
    """In a crowd the words of the whole image do not tell which thing is asked about."""
    tulip, pug = (
        Region((0.0, 0.0, 1.0, 1.0), (0,), tuple((c, 0.5) for c in shown), 1.0)
        for shown in ((2, 0), (0, 1, 2))
    )
    found = replace(about("Pug", "It is from China."), region=1)
    asked, _ = pair_of("Who?", ["tulip", "cup"], found, (tulip, pug), KNOWN)
    assert asked == "Who? pug, dog; tulip, cup"
    assert pair_of("Who?", [], found, (tulip, pug), KNOWN)[0] == "Who? pug, dog"


def test_a_pair_is_read_as_one_text(pipeline: Pipeline) -> None:
    """With separators, as the tokenizer's own template has it; and not as its parts."""
    texts = MiniLm()
    one, other = "where is it from?", "pugs are from china"
    joined = texts.encode([(one, other)])
    tokens = texts.tokenizer.encode(one, other).tokens
    assert tokens.count("[SEP]") == 2
    assert tokens[0] == "[CLS]"
    assert len(joined.states[0]) == len(tokens)
    assert joined.flops == bert.flops(texts.network.config, len(tokens))
    apart = texts.encode([one, other]).embeddings
    assert not torch.allclose(joined.embeddings[0], apart[0], atol=0.01)


@pytest.fixture(scope="module")
def parts(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A pair encoder that differs from the published one, and a random verifier."""
    folder = tmp_path_factory.mktemp("pairs")
    network = MiniLm(layers=PAIR_LAYERS).network
    published = network.state_dict()
    changed = bert.Bert(network.config)
    changed.load_state_dict(
        {n: 1.2 * v if n.endswith("out.weight") else v for n, v in published.items()}
    )
    write_delta(changed, published, folder / "pair_encoder.safetensors", preset="pocket")
    torch.manual_seed(0)
    verifier = Verifier(VerifierConfig(384, 384, hidden=8, signals=SIGNALS)).eval()
    checkpoint.save(verifier, folder / "pair_verifier.safetensors", preset="pocket")
    config = override(pipeline.config, {"verify": {"threshold": 0.0}})
    found = components.load(folder, preset="pocket")
    own = FineTuned(pairs=found.pair_encoder)
    backbone = Pocket(config.encode, learned=own)
    return replace(pipeline.parts, components=found, config=config, backbone=backbone)


@pytest.fixture(scope="module")
def asking(parts: Parts) -> State:
    backbone = parts.backbone
    assert isinstance(backbone, Pocket)
    encoded = backbone.encode_texts(["How is it brewed?"])
    asked = Question("How is it brewed?", encoded.embeddings[0], ("brewed",), encoded.states[0])
    evidence = torch.rand(4, len(backbone.concepts), generator=torch.Generator().manual_seed(1))
    meaning = (evidence := evidence / evidence.sum(1, keepdim=True)) @ backbone.concepts.embeddings
    words = SeenWords(("cup", "espresso"), torch.tensor([0.9, 0.5]), torch.zeros(2, 384))
    tokens = VisualTokens(torch.rand(4, 8), evidence, meaning, evidence.mean(0), 2, words=words)
    kept = KeptTokens(torch.tensor([0, 3]), torch.rand(4), tokens)
    found = Retrieved(
        tuple(retrieved_passage(n, text, 0, 5.0 - n) for n, text in enumerate(TEXTS)), 3, 3
    )
    region = Region((0.0, 0.0, 1.0, 1.0), (0,), ((0, 0.9),), 1.0)
    return state(question=asked, kept=kept, regions=(region,), retrieved=found, budget=Budget(2, 2))


def test_verification_reads_pairs(parts: Parts, asking: State) -> None:
    stage = verify.build(parts)
    assert isinstance(stage.verifier, PairVerifier)
    leaving, record = run(stage, asking)
    scores = stage.verifier(asking).scores
    assert len(set(scores)) == len(TEXTS)
    other = verify.build(replace(parts, backbone=Pocket(parts.config.encode)))
    assert other.verifier(asking).scores != scores  # the delta has a say
    kept = leaving.verified
    assert list(kept.scores) == sorted(scores, reverse=True)[:2]
    alone = parts.backbone.encode_texts([passage.text for passage in kept.passages])
    assert torch.equal(kept.embeddings, alone.embeddings)
    assert record.flops == stage.verifier(asking).flops + alone.flops
    assert record.flops > alone.flops > 0


def test_half_of_a_pair_verifier_is_refused(parts: Parts, tmp_path: Path) -> None:
    assert parts.components.folder is not None
    for name in ("pair_encoder", "pair_verifier"):
        folder = tmp_path / name
        folder.mkdir()
        file = f"{name}.safetensors"
        (folder / file).write_bytes((parts.components.folder / file).read_bytes())
        with pytest.raises(UserError, match="go together"):
            components.load(folder, preset="pocket")
    assert load_file(tmp_path / "pair_encoder" / "pair_encoder.safetensors")
    assert Components().pair_verifier is None


def test_a_cached_backbone_gives_the_same(parts: Parts, asking: State) -> None:
    stage = verify.build(replace(parts, backbone=CachedBackbone(parts.backbone)))
    found, again = stage.verifier(asking), stage.verifier(asking)
    expected = verify.build(parts).verifier(asking)
    assert found.scores == again.scores == pytest.approx(expected.scores, abs=1e-5)
    assert found.flops == again.flops == expected.flops
    nothing = asking.add(retrieved=Retrieved((), 0, 0))
    assert stage.verifier(nothing).scores == []
