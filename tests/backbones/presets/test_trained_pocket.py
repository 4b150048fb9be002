"""What training added to the pocket networks: a tagger, a question encoder, a reader."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from skipqa.backbones import concepts
from skipqa.backbones.backbone import Decoding
from skipqa.backbones.concepts import Concept, Concepts
from skipqa.backbones.presets.pocket import FineTuned, Pocket
from skipqa.backbones.presets.pocket_vision import NATIVE_CELLS, NUM_WORDS, surest, tag_views
from skipqa.backbones.text_encoder import MiniLm
from skipqa.config import EncodeConfig
from skipqa.costs.flops import count_flops
from skipqa.nn import compact, low_rank
from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.pipeline import Pipeline
from skipqa.stages.encode import Encode, NoPrior
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import VisualTokens

PROMPT = "Fact: tea (noun): a drink of leaves\nPicture: cup\nQuestion: What is in it?\nAnswer:"
CANDIDATES = (("tea", 0.0), ("a cup of coffee", 0.0), ("Earl Grey", 0.0))
NAMES = [name for name, _ in CANDIDATES]


@pytest.fixture(scope="module")
def plain(pipeline: Pipeline) -> Pocket:
    assert isinstance(pipeline.backbone, Pocket)
    return pipeline.backbone


@pytest.fixture(scope="module")
def trained(trained_pipeline: Pipeline) -> Pocket:
    assert isinstance(trained_pipeline.backbone, Pocket)
    return trained_pipeline.backbone


@pytest.fixture(scope="module")
def tagger(trained: Pocket) -> Tagger:
    assert trained.learned.tagger is not None
    return trained.learned.tagger


@pytest.fixture(scope="module")
def image(photo: Path) -> Image.Image:
    with Image.open(photo) as image:
        return image.convert("RGB")


@pytest.fixture(scope="module")
def seen(trained: Pocket, image: Image.Image) -> VisualTokens:
    return trained.encode_high_res(image, trained.encode_low_res(image)[0])[0]


@pytest.fixture(scope="module")
def plainly_seen(trained: Pocket, image: Image.Image) -> VisualTokens:
    """With the trained vision encoder, without the tagger."""
    untagged = Pocket(EncodeConfig(), learned=FineTuned(vision=trained.learned.vision))
    return untagged.encode_high_res(image, untagged.encode_low_res(image)[0])[0]


class TestReader:
    def test_candidates_change_no_completion(self, trained: Pocket) -> None:
        alone = trained.generate(PROMPT, Decoding(8))
        scored = trained.generate(PROMPT, Decoding(8, candidates=CANDIDATES))
        assert scored.text == alone.text
        assert (scored.prompt_tokens, scored.new_tokens) == (alone.prompt_tokens, alone.new_tokens)
        assert alone.candidate_log_probs == ()
        found = scored.candidate_log_probs
        assert len(found) == len(CANDIDATES) + 1  # the completion's own is the last
        apart, _ = trained.loglikelihood(PROMPT, [*NAMES, scored.text])
        for log_prob, target in zip(found, apart, strict=True):
            beaten = target < apart[0] == max(apart[:3])
            assert log_prob == pytest.approx(target, abs=1e-3) or beaten
        assert found[0] == pytest.approx(apart[0], abs=1e-3)

    def test_candidates_are_not_scored_next_to_a_quotation(self) -> None:
        with pytest.raises(ValueError, match="not a quoted one"):
            Decoding(8, quote_from=("a text",), candidates=CANDIDATES)

    def test_loglikelihood_is_log_prob_and_the_end_token(self, trained: Pocket) -> None:
        """Two computations: one pass over a tree, and forced generation."""
        (whole,), _ = trained.loglikelihood(PROMPT, ["green tea"])
        answer = trained.log_prob(PROMPT, "green tea")
        (end,), _ = trained.loglikelihood(f"{PROMPT} green tea", [""])
        assert whole == pytest.approx(answer + end, abs=1e-3)

    def test_flops_are_what_torch_counts(self, trained: Pocket) -> None:
        found = []
        decoding = Decoding(4, candidates=CANDIDATES)
        counted = count_flops(lambda: found.append(trained.generate(PROMPT, decoding)))
        assert found[0].flops == counted
        counted = count_flops(lambda: found.append(trained.loglikelihood(PROMPT, NAMES)))
        assert found[1][1] == counted

    def test_it_is_the_published_decoder_plus_the_delta(
        self, plain: Pocket, trained: Pocket
    ) -> None:
        assert trained.learned.reader is not None
        published, tuned = plain.decoder.state_dict(), trained.decoder.state_dict()
        learned = compact.unpack(load_file(trained.learned.reader))
        name = next(name for name in learned if name.endswith(low_rank.DOWN))
        weight = name.removesuffix(low_rank.DOWN)
        added = learned[weight + low_rank.UP].T @ learned[name]
        torch.testing.assert_close(tuned[weight] - published[weight], added, atol=1e-5, rtol=1e-3)
        assert trained.decoder_tokenizer.to_str() == plain.decoder_tokenizer.to_str()


class TestQuestions:
    def test_the_drafter_has_an_encoder_of_its_own(
        self, plain: Pocket, trained: Pocket, image: Image.Image
    ) -> None:
        """What is compared with passages is encoded by the published one, as passages are."""
        text, record = "What is in the cup?", StageRecord("encode")
        published, own = plain.encode_texts([text]), trained.encode_for_drafter(text)
        assert own is not None
        stage = Encode(EncodeConfig(scales=(64,)), trained, NoPrior())
        asked = stage(State(image, text), record).question
        assert torch.equal(asked.embedding, published.embeddings[0])
        assert torch.equal(asked.states, published.states[0])
        assert asked.drafter_states is not None
        assert torch.equal(asked.drafter_states, own.states[0])
        assert record.flops == trained.encode_low_res(image, (64,))[1] + published.flops + own.flops
        assert own.states[0].shape == published.states[0].shape
        assert not torch.allclose(own.states[0], published.states[0], atol=1e-2)
        assert own.flops == published.flops
        assert plain.encode_for_drafter(text) is None
        stage = Encode(EncodeConfig(scales=(64,)), plain, NoPrior())
        assert stage(State(image, text), record).question.drafter_states is None

    def test_its_delta_is_added_to_the_published_weights(self, trained: Pocket) -> None:
        assert trained.learned.question is not None
        base = MiniLm().network.state_dict()
        expected = low_rank.apply(base, compact.unpack(load_file(trained.learned.question)))
        found = MiniLm(delta=trained.learned.question).network.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert any(not torch.equal(base[name], expected[name]) for name in expected)


def same_tokens(one: VisualTokens, other: VisualTokens) -> bool:
    names = ("features", "concept_probs", "meaning", "overview", "drafter_features")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


def small_tagger(names: tuple[str, ...], kinds: tuple[str, ...], width: int = 6) -> Tagger:
    torch.manual_seed(0)
    made = Tagger(TaggerConfig(names, kinds, width=width, hidden=8, text_width=4)).eval()
    made.meanings.copy_(F.normalize(torch.randn(len(names), 4), dim=-1))
    return made.requires_grad_(False)


class TestConcepts:
    def test_all_tags_follow_the_classes(self) -> None:
        names = ("person", "beagle", "siamese", "rose", "oat milk", "mali", "gizmo")
        tagger = small_tagger(names, ("", "dog", "cat", "flower", "food", "flag", ""))
        known = Concepts((Concept("n1", ("cup",), "a cup", ()),), torch.ones(1, 4))
        person = Concept("n2", ("person", "individual"), "a human being", (("organism",),))
        found = concepts.with_tags(known, tagger, {"person": person})
        assert [c.name for c in found.entries] == [
            "cup", "person", "beagle", "siamese", "rose", "oat milk", "flag of mali", "gizmo",
        ]  # fmt: skip
        assert found[0] == known[0]
        assert found[1] == person
        assert found[2].kinds == (("dog",), ("animal",))
        assert found[4].kinds == (("flower", "plant"),)
        assert found[6].names == ("flag of mali", "mali")
        assert found[7] == Concept("", ("gizmo",), "", ())  # nobody knows what it is
        assert torch.equal(found.embeddings, torch.cat((known.embeddings, tagger.meanings)))

    def test_the_question_word_animal_names_a_bear(self, trained: Pocket) -> None:
        called, entries = trained.concepts.called, trained.concepts.entries
        numbers = {c.name: i for i, c in enumerate(entries)}
        assert numbers["bear"] in called["animal"]
        assert numbers["pizza"] in called["food"]
        assert numbers["person"] in called["person"]

    def test_each_shipped_tag_has_an_embedding(self, plain: Pocket, trained: Pocket) -> None:
        assert trained.concepts.entries[: len(plain.concepts)] == plain.concepts.entries
        assert len(trained.concepts.embeddings) == len(trained.concepts)
        lengths = trained.concepts.embeddings.norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), atol=0.01, rtol=0)  # 8 bits


class TestVision:
    def test_evidence_is_a_distribution_over_all_concepts(
        self, trained: Pocket, seen: VisualTokens
    ) -> None:
        assert seen.concept_probs.shape == (256, len(trained.concepts))
        assert seen.overview.shape == (len(trained.concepts),)
        assert (seen.concept_probs >= 0).all()
        torch.testing.assert_close(seen.concept_probs.sum(1), torch.ones(256))
        assert float(seen.overview.sum()) == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(seen.meaning.norm(dim=1), torch.ones(256))

    def test_tags_leave_features_and_proportions_of_the_classes(
        self, plain: Pocket, seen: VisualTokens, plainly_seen: VisualTokens
    ) -> None:
        """Tags take a fraction of the evidence; the classes divide the rest as before."""
        assert torch.equal(seen.features, plainly_seen.features)
        classes = seen.concept_probs[:, : len(plain.concepts)]
        torch.testing.assert_close(
            classes / classes.sum(1, keepdim=True), plainly_seen.concept_probs
        )

    def test_without_a_tagger_there_are_only_the_classes(
        self, trained: Pocket, image: Image.Image, plainly_seen: VisualTokens
    ) -> None:
        others = dataclasses.replace(trained.learned, tagger=None)
        backbone = Pocket(EncodeConfig(), learned=others)
        found, _ = backbone.encode_high_res(image, backbone.encode_low_res(image)[0])
        for name in ("features", "concept_probs", "meaning", "overview", "drafter_features"):
            assert torch.equal(getattr(found, name), getattr(plainly_seen, name)), name
        assert found.words is None

    def test_words_are_the_best_of_tags_and_classes(
        self,
        plain: Pocket,
        trained: Pocket,
        tagger: Tagger,
        seen: VisualTokens,
        plainly_seen: VisualTokens,
    ) -> None:
        assert seen.words is not None
        assert seen.drafter_features is not None
        assert len(seen.words.names) == len(seen.words.probs) == NUM_WORDS == 12
        probs = seen.words.probs.tolist()
        assert probs == sorted(probs, reverse=True)
        assert "espresso" in seen.words.names[:2]  # a class, among the best tags
        assert "cup" in seen.words.names
        tags = tagger(seen.drafter_features[None])[0].sigmoid()
        windows = [
            seen.features.view(16, 16, -1)[top : top + 8, left : left + 8].flatten(0, 1)
            for top in range(0, 9, 2)
            for left in range(0, 9, 2)
        ]
        tags = tags.maximum(tagger(torch.stack(windows)).sigmoid().amax(0))
        for name, prob, embedding in zip(
            seen.words.names, probs, seen.words.embeddings, strict=True
        ):
            # A tag and a class may have the same name; it is one of them.
            options = [
                (tags[i], tagger.meanings[i])
                for i in range(len(tags))
                if tagger.config.word(i) == name
            ]
            options += [
                (plainly_seen.overview[i], plain.concepts.embeddings[i])
                for i, concept in enumerate(plain.concepts.entries)
                if concept.name == name
            ]
            assert any(
                math.isclose(prob, float(has), abs_tol=1e-5) and torch.equal(embedding, meaning)
                for has, meaning in options
            ), name
        everything = torch.cat((tags, plainly_seen.overview)).sort(descending=True).values
        torch.testing.assert_close(seen.words.probs, everything[:NUM_WORDS])

    @pytest.mark.parametrize("side", [4, 8, 11, 24])
    def test_each_view_is_tagged_by_itself(self, side: int) -> None:
        tagger = small_tagger(("a", "b", "c"), ("", "dog", "cat"))
        features = torch.randn(1, 6, side, side, generator=torch.Generator().manual_seed(side))
        found = tag_views(tagger, features)
        size = min(NATIVE_CELLS, side)
        starts = range(0, side - size + 1, 2)
        assert found.shape == (1, 3, len(starts), len(starts))
        for row, top in enumerate(starts):
            for column, left in enumerate(starts):
                window = features[:, :, top : top + size, left : left + size]
                alone = tagger(window.flatten(2).transpose(1, 2)).sigmoid()
                torch.testing.assert_close(found[:, :, row, column], alone)

    def test_a_tag_has_its_largest_probability_over_views(self) -> None:
        """In a batch as for each image alone."""
        tagger = small_tagger(("a", "b", "c"), ("", "dog", "cat"))
        generator = torch.Generator().manual_seed(0)
        coarse, fine = (torch.randn(2, 6, side, side, generator=generator) for side in (8, 16))
        found = surest([tag_views(tagger, coarse), tag_views(tagger, fine)])
        for image in range(2):
            whole = tagger(coarse[image].flatten(1).T[None])[0].sigmoid()
            windows = tag_views(tagger, fine[image : image + 1])[0].flatten(1)
            assert windows.shape == (3, 25)
            torch.testing.assert_close(found[image], whole.maximum(windows.amax(1)))

    def test_high_resolution_only_adds_to_the_words(
        self,
        trained: Pocket,
        tagger: Tagger,
        image: Image.Image,
        seen: VisualTokens,
        plainly_seen: VisualTokens,
    ) -> None:
        low_res, _ = trained.encode_low_res(image)
        assert low_res.drafter_features is not None
        assert low_res.words is not None
        assert seen.words is not None
        assert torch.equal(low_res.features, low_res.drafter_features)
        probs = tagger(low_res.drafter_features[None])[0].sigmoid()
        everything = torch.cat((probs, plainly_seen.overview)).sort(descending=True).values
        torch.testing.assert_close(low_res.words.probs, everything[:NUM_WORDS])
        assert (seen.words.probs >= low_res.words.probs - 1e-6).all()
        assert trained.encode_high_res(image, low_res, (256,)) == (low_res, 0)

    def test_flops_of_tagging_are_what_torch_counts(
        self, plain: Pocket, trained: Pocket, image: Image.Image
    ) -> None:
        def both(backbone: Pocket) -> tuple[int, int]:
            said, scales = [], (256, 320)

            def see() -> None:
                low_res, cheap = backbone.encode_low_res(image, scales)
                said.append(cheap + backbone.encode_high_res(image, low_res, scales)[1])

            counted = count_flops(see)
            return said[0], counted

        _ = plain.concepts, trained.concepts  # else the first call would encode their names
        (said, counted), (said_plain, counted_plain) = both(trained), both(plain)
        assert said - said_plain == counted - counted_plain > 0

    def test_a_cell_tagger_changes_the_evidence_for_its_names_alone(
        self,
        trained: Pocket,
        tagger: Tagger,
        image: Image.Image,
        seen: VisualTokens,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        names, kinds = tagger.config.names[-5:], tagger.config.kinds[-5:]
        torch.manual_seed(0)
        cells = CellTagger(CellTaggerConfig(names, kinds)).eval().requires_grad_(False)
        backbone = Pocket(
            EncodeConfig(), learned=dataclasses.replace(trained.learned, cell_tagger=cells)
        )
        low_res, plain_low_res = (one.encode_low_res(image)[0] for one in (backbone, trained))
        monkeypatch.delattr(CellTaggerConfig, "columns")  # found once, not for every image
        assert same_tokens(low_res, plain_low_res)
        found, flops = backbone.encode_high_res(image, low_res)
        for name in ("features", "overview", "drafter_features"):
            assert torch.equal(getattr(found, name), getattr(seen, name)), name
        assert found.words is not None
        assert seen.words is not None
        assert found.words.names == seen.words.names
        assert torch.equal(found.words.probs, seen.words.probs)
        others = seen.concept_probs[:, :-5]
        torch.testing.assert_close(
            found.concept_probs[:, :-5] / found.concept_probs[:, :-5].sum(1, keepdim=True),
            others / others.sum(1, keepdim=True),
        )
        maps = [one.features.T.unflatten(1, (one.grid, one.grid))[None] for one in (low_res, found)]
        classes = found.concept_probs[:, : len(trained.concepts) - len(tagger.config.names)]
        ratio = found.concept_probs[:, -5:] / classes.sum(1, keepdim=True)
        torch.testing.assert_close(ratio, cells.probs(maps[0], maps[1])[0])
        assert flops - trained.encode_high_res(image, low_res)[1] == count_flops(
            lambda: cells.probs(maps[0], maps[1])
        )

    @pytest.mark.parametrize("scales", [(96,), (160, 320), (512,)])
    def test_the_drafter_reads_as_many_cells_at_any_scale(
        self, trained_pipeline: Pipeline, image: Image.Image, scales: tuple[int, ...]
    ) -> None:
        system = trained_pipeline.with_config(encode={"scales": list(scales)})
        state = system.run(State(image, "What is in the cup?"), stop="draft")
        assert state.low_res.drafter_features is not None
        assert len(state.low_res.drafter_features) == system.backbone.widths.low_res
        assert state.draft.candidates
