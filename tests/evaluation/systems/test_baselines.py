"""The baselines' own stages: what they compute, what it costs, and how the systems differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from skipqa.backbones.backbone import Decoding
from skipqa.backbones.networks.llama import Llama, LlamaConfig
from skipqa.backbones.presets.pocket import Pocket
from skipqa.costs.flops import count_flops
from skipqa.errors import UserError
from skipqa.evaluation import systems
from skipqa.evaluation.systems import baselines
from skipqa.evaluation.systems.ablations import AcceptAll
from skipqa.evaluation.systems.baselines import (
    LATE_PASSAGES,
    SLOTS,
    LateRerank,
    MemoryAttention,
    PassThrough,
)
from skipqa.evaluation.systems.reading_apart import generate_jointly, join
from skipqa.nn.budget import DifficultyBudgetConfig, build_budget
from skipqa.pipeline import Answer, Pipeline
from skipqa.stages.prompts import reading_prompt
from skipqa.stages.readers import EXAMPLES
from skipqa.state import State
from skipqa.trace import StageRecord, Trace
from skipqa.types import (
    Budget,
    Fused,
    KeptTokens,
    Passage,
    Question,
    Retrieved,
    RetrievedPassage,
    Verified,
    VisualTokens,
)

FACTS = [
    "espresso (noun): strong black coffee brewed by forcing hot water under pressure",
    "beagle (noun): a small short-legged smooth-coated breed of hound",
    "lemon (noun): a small evergreen tree that originated in Asia",
]


ODD = "Æbleskiver (noun): a “pancake” ball — 球 🥞 — from Denmark; naïve cafés"


@pytest.fixture(scope="module")
def backbone(pipeline: Pipeline) -> Pocket:
    assert isinstance(pipeline.backbone, Pocket)
    return pipeline.backbone


@pytest.fixture(scope="module")
def asked(backbone: Pocket) -> Question:
    text = "How is this drink brewed?"
    encoded = backbone.encode_texts([text])
    return Question(text, encoded.embeddings[0], ("drink", "brewed"), encoded.states[0])


def passages(texts: Sequence[str], scores: Sequence[float]) -> tuple[RetrievedPassage, ...]:
    return tuple(
        RetrievedPassage(
            row, Passage(f"test:{row}", "", text, "test"), score, 0, score / max(scores)
        )
        for row, (text, score) in enumerate(zip(texts, scores, strict=True))
    )


def write_prompt(asked: Question, facts: Sequence[str], shown: Sequence[str]) -> str:
    return EXAMPLES + reading_prompt(facts, shown, asked.text)


# Fusion in the decoder


@pytest.mark.parametrize("fact", [FACTS[0], ODD])
def test_one_passage_apart_is_plain_decoding(backbone: Pocket, asked: Question, fact: str) -> None:
    prompt = write_prompt(asked, [fact], ["espresso"])
    decoding = Decoding(12, (fact,), frozenset({"how"}))
    plain = backbone.generate(prompt, decoding)
    apart = generate_jointly(backbone, [prompt], decoding)
    assert apart.text == plain.text
    assert apart.prompt_tokens == plain.prompt_tokens
    # The examples never see the passage, and neither sees the ending: a little is saved.
    assert 0.9 * plain.flops < apart.flops < plain.flops


@pytest.mark.parametrize("facts", [FACTS[:1], [ODD], []])
def test_one_passage_apart_is_plain_reading(
    backbone: Pocket, asked: Question, facts: list[str]
) -> None:
    """Without examples, and with candidates scored next to the completion."""
    prompt = reading_prompt(facts, ["espresso"], asked.text)
    decoding = Decoding(6, candidates=(("by steam", 0.0), ("tea", 0.0)))
    plain = backbone.generate(prompt, decoding)
    apart = generate_jointly(backbone, [prompt], decoding)
    assert apart.text == plain.text
    assert apart.candidate_log_probs == pytest.approx(plain.candidate_log_probs, abs=1e-3)
    assert apart.prompt_tokens == plain.prompt_tokens


def test_the_order_of_passages_read_apart_is_nothing(backbone: Pocket, asked: Question) -> None:
    prompts = [write_prompt(asked, [fact], ["espresso"]) for fact in FACTS]
    decoding = Decoding(8, tuple(FACTS))
    forth = generate_jointly(backbone, prompts, decoding)
    back = generate_jointly(backbone, prompts[::-1], decoding)
    assert forth == back
    assert forth.text


def test_flops_of_reading_apart_are_what_torch_counts(backbone: Pocket, asked: Question) -> None:
    prompts = [write_prompt(asked, [fact], ["espresso"]) for fact in FACTS[:2]]
    said = []
    quoting = Decoding(3, tuple(FACTS[:2]))
    counted = count_flops(lambda: said.append(generate_jointly(backbone, prompts, quoting)))
    assert said[0].flops == counted
    prompts = [reading_prompt([fact], ["espresso"], asked.text) for fact in FACTS[:2]]
    scoring = Decoding(3, candidates=(("by steam", 0.0), ("tea", 0.0)))
    counted = count_flops(lambda: said.append(generate_jointly(backbone, prompts, scoring)))
    assert said[1].flops == counted


def test_a_stretch_ends_where_the_answer_begins() -> None:
    """Each passage is as far from the answer as if it had been read alone."""
    torch.manual_seed(0)
    config = LlamaConfig(50, 32, 2, 4, 2, 48)
    model = Llama(config).eval()
    with torch.inference_mode():
        shared, one, other = (
            model.embedding(torch.randint(50, (1, length))) for length in (3, 4, 6)
        )
        examples = model.read(shared)
        stretches = [model.read(part, examples) for part in (one, other)]
        past = join(config, examples, stretches)
        assert past.length == 3 + 4 + 6
        # Alone, but read so late that it ends at the same place.
        before = model.read(torch.zeros(1, past.length - 7, 32))
        moved = model.read(one, model.read(shared, before))
    # A key of the first layer depends on its token and place alone.
    torch.testing.assert_close(past.keys[0, :, :, 3:7], moved.keys[0, :, :, 9:], rtol=0, atol=1e-5)
    torch.testing.assert_close(past.values[:, :, :, 3:7], stretches[0].values[:, :, :, 3:])
    only = join(config, examples, stretches[:1])
    torch.testing.assert_close(only.keys, stretches[0].keys)


# Late interaction


def test_late_interaction_prefers_what_resembles_the_question(
    backbone: Pocket, asked: Question, tokens: VisualTokens
) -> None:
    concepts = backbone.concepts
    espresso = next(i for i in range(len(concepts)) if concepts[i].name == "espresso")
    seen = concepts.embeddings[[espresso]].expand(4, -1)
    kept = KeptTokens(torch.arange(4), torch.ones(4), _as_seen(tokens, seen))
    texts = [FACTS[1], FACTS[2], FACTS[0], *(f"naval battle {n}" for n in range(4))]
    retrieved = Retrieved(passages(texts, [1.0] * 7), 7, 7)
    entering = State("nowhere.png", asked.text).add(question=asked, kept=kept, retrieved=retrieved)
    stage, record = LateRerank(backbone), StageRecord("verify")
    found = stage(entering, record).verified
    assert found.passages[0].passage.text == FACTS[0]
    assert list(found.scores) == sorted(found.scores, reverse=True)
    assert (record.kept, record.dropped) == (LATE_PASSAGES, 2)
    assert max(score for _, score in found.rejected) <= min(found.scores)
    assert len(found.token_states) == len(found.embeddings) == LATE_PASSAGES
    counted = count_flops(lambda: stage(entering, StageRecord("verify")))
    assert record.flops == pytest.approx(counted, rel=1e-3)


def _as_seen(tokens: VisualTokens, meaning: torch.Tensor) -> VisualTokens:
    return VisualTokens(tokens.features[:4], tokens.concept_probs[:4], meaning, tokens.overview, 2)


def test_max_sim_is_one_where_every_token_is_there_again() -> None:
    torch.manual_seed(0)
    words = F.normalize(torch.randn(6, 8), dim=-1)
    assert baselines.max_sim(words[[3, 1, 1]], words) == pytest.approx(1)
    assert baselines.max_sim(words[[3]], words[:3]) < 1


# Attentive memory


def memory_of(scores: list[float], lengths: Sequence[int] = (7, 9, 3)) -> Verified:
    torch.manual_seed(2)
    states = tuple(torch.randn(length, 12) for length in lengths)
    found = passages(FACTS[: len(lengths)], scores)
    return Verified(found, (1.0,) * len(lengths), states, torch.zeros(len(lengths), 12), ())


def attended(tokens: VisualTokens, asked: Question, memory: Verified) -> tuple[Fused, StageRecord]:
    kept, record = KeptTokens(torch.arange(10), torch.ones(36), tokens), StageRecord("fuse")
    given = State("nowhere.png", asked.text).add(question=asked, kept=kept, verified=memory)
    return MemoryAttention()(given, record).fused, record


def test_memory_is_attended_by_value_and_prior(
    tokens: VisualTokens, questions: tuple[Question, Question]
) -> None:
    equal, certain, alone = (
        attended(tokens, questions[0], memory_of(scores))[0]
        for scores in ([1.0, 1.0, 1.0], [1.0, 50.0, 1.0], [-2.0, 5.0, 0.0])
    )
    assert sum(equal.mass) == pytest.approx(10)  # every token spends one
    assert equal.tokens.shape == (10, 12)
    assert certain.mass[1] > equal.mass[1]
    assert alone.mass[1] == pytest.approx(10, abs=1e-2)


def test_a_passage_shorter_than_its_slots_is_attended_to_word_by_word(
    tokens: VisualTokens, questions: tuple[Question, Question]
) -> None:
    memory = memory_of([3.0], [SLOTS])
    fused, _ = attended(tokens, questions[0], memory)
    (states,) = memory.token_states
    asking = tokens.meaning[:10] + questions[0].embedding
    expected = F.scaled_dot_product_attention(asking[None], states[None], states[None])[0]
    torch.testing.assert_close(fused.tokens, tokens.meaning[:10] + expected)


def test_flops_of_the_memory_are_what_torch_counts(
    tokens: VisualTokens, questions: tuple[Question, Question]
) -> None:
    memory = memory_of([1.0, 2.0, 3.0])
    counted = count_flops(lambda: attended(tokens, questions[0], memory))
    assert attended(tokens, questions[0], memory)[1].flops == counted > 0
    empty, _ = attended(tokens, questions[0], memory_of([], []))
    assert torch.equal(empty.tokens, tokens.meaning[:10])


# Stages that leave the choice to others


@pytest.mark.parametrize("encode", [True, False])
def test_accepting_all_keeps_the_first_as_they_were_found(
    backbone: Pocket, asked: Question, encode: bool
) -> None:
    found = passages(FACTS, [3.0, 2.0, 1.0])
    given = State("nowhere.png", asked.text).add(
        retrieved=Retrieved(found, 3, 3), budget=Budget(1, 2)
    )
    record = StageRecord("verify")
    verified = AcceptAll(backbone, encode)(given, record).verified
    assert verified.passages == found[:2]
    assert verified.scores == (1.0, 1.0)
    assert verified.rejected == ((found[2], 0.0),)
    assert (record.kept, record.dropped) == (2, 1)
    assert len(verified.token_states) == (2 if encode else 0)
    assert (record.flops > 0) == encode


def test_passing_through_leaves_every_passage_to_the_decoder(tokens: VisualTokens) -> None:
    kept, memory = KeptTokens(torch.arange(10), torch.ones(36), tokens), memory_of([1.0, 2.0, 3.0])
    record = StageRecord("fuse")
    fused = PassThrough()(State("nowhere.png", "?").add(kept=kept, verified=memory), record).fused
    assert torch.equal(fused.tokens, tokens.meaning[:10])
    assert fused.mass == (1.0, 1.0, 1.0)
    assert (record.kept, record.dropped, record.flops) == (0, 30, 0)


# The systems


def prompt_tokens(trace: Trace) -> int:
    found = re.search(r"([\d,]+) prompt tokens", trace["decode"].why)
    assert found is not None
    return int(found[1].replace(",", ""))


def test_baselines_find_what_dense_finds_and_read_it_their_way(
    ask: Callable[[str], Answer],
) -> None:
    dense = ask("dense").trace

    def found(name: str) -> list[int]:
        return [passage.row for passage in ask(name).state.retrieved.passages]

    for name in ("fid", "late", "memory"):
        trace = ask(name).trace
        assert ask(name).route == "full"
        assert trace["prune"].dropped == 0
        assert trace["look"].flops == dense["look"].flops > 0
        assert found(name)[:16] == found("dense")

    fid = ask("fid").trace
    assert fid["decode"].kept == 16
    assert fid["verify"].flops == fid["fuse"].flops == fid["fuse"].kept == 0
    # The question is read with each passage. Costs in FLOPs may still be lower: attention does not
    # go across passages.
    assert prompt_tokens(fid) > prompt_tokens(dense)

    late = ask("late").trace
    assert len(found("late")) == 32
    assert late["verify"].kept == late["decode"].kept == LATE_PASSAGES

    memory = ask("memory").trace
    assert memory["verify"].dropped == 0
    assert memory["decode"].kept == 2
    state = ask("memory").state
    for j in sorted(range(16), key=lambda j: -state.fused.mass[j])[:2]:
        text = state.retrieved.passages[j].passage.text
        assert " ".join(text.split()) in state.prompt
    assert 0 < memory["fuse"].flops < dense["fuse"].flops


@pytest.mark.parametrize("question", ["Where does this come from?", "How is this drink brewed?"])
def test_what_was_trained_reads_apart_too(
    trained_brief: Pipeline, photo: Path, question: str
) -> None:
    """Freely, scored with the drafter; where a passage explains, it is quoted as in SKIP."""
    answers = [
        systems.build(name, trained_brief)
        .with_config(budget={"passages": 5})  # more than SKIP reads, and not all that they may
        .answer(photo, question)
        for name in ("fid", "dense")
    ]
    fid, dense = (answer.trace["decode"] for answer in answers)
    ways = ("by examples", "as the reader", "as the passages", "not ")
    assert fid.why.startswith(ways), fid.why
    assert fid.why.startswith("by examples") == dense.why.startswith("by examples")
    assert fid.kept == dense.kept == 5
    assert answers[0].state.prompt.count("Question: ") == fid.kept


# SKIP-NR


def test_easy_questions_are_answered_without_retrieval(
    trained_brief: Pipeline, photo: Path
) -> None:
    everything = systems.build("skip-no-draft", trained_brief.with_config(budget={"easy": 0.0}))
    system = systems.build("skip-nr", everything)
    assert system.config.budget.easy == 0.15
    assert system.replaced == trained_brief.replaced
    none = systems.build("no-retrieval", everything)
    closed = []
    for asked in ("What colour is the cup?", "In which country was this drink invented?"):
        answer = system.answer(photo, asked)
        state, trace = answer.state, answer.trace
        closed.append(state.budget.passages == 0)
        assert closed[-1] == (state.draft.abstain_prob < 0.15)
        assert trace["prune"].kept == state.budget.tokens
        other = none if closed[-1] else everything
        expected = other.answer(photo, asked)
        assert (answer.text, trace.flops) == (expected.text, expected.trace.flops)
    assert closed == [True, False]


def test_a_trained_controller_has_its_own_zero(trained_brief: Pipeline) -> None:
    width = trained_brief.backbone.widths.text
    controller = build_budget(DifficultyBudgetConfig(width, width))
    controlled = trained_brief.with_components(budget=controller)
    assert systems.build("skip-nr", controlled) is controlled


def test_without_a_difficulty_nothing_can_be_suppressed(brief: Pipeline) -> None:
    with pytest.raises(UserError, match="skip-nr needs a difficulty"):
        systems.build("skip-nr", brief)
