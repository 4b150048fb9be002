"""Can fusion into a decoder learn at all? Tiny networks, a world where only passages answer."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import tiny_fusion
import torch

from skipqa.nn.fusion_reader import FusionReader, Opening
from skipqa.nn.relaxation import cosine_schedule, linear_schedule
from skipqa.training.pathway.fusion_loss import (
    FusionTables,
    LossWeights,
    Offer,
    edge_loss,
    read_hard,
)
from skipqa.training.pathway.fusion_quality import (
    BEST,
    FUSED,
    FUSED_BEST,
    NOTHING,
    TWO,
    HeldOut,
    compare_reading,
    fusion_ships,
)
from skipqa.training.pathway.read_today import ReadToday
from skipqa.training.pathway.stage3_fusion import TAU_E, TAU_G

STEPS = 200
CHANCE = 0.3  # one name in twelve, and some luck among fifty


@dataclass(frozen=True, slots=True)
class Learned:
    reader: FusionReader
    tables: FusionTables
    offers: list[Offer]


@pytest.fixture(scope="module")
def learned() -> Learned:
    """A reader and its decoder, trained together on fifty questions."""
    networks = tiny_fusion.networks(seed=1)
    reader = tiny_fusion.reader(networks)
    tables = FusionTables(tiny_fusion.examples(), tiny_fusion.scenes(), networks)
    parameters = [*reader.parameters(), *networks.decoder.parameters()]
    optimiser = torch.optim.AdamW(parameters, weight_decay=0.0)
    for step in range(STEPS):
        opening = Opening(
            cosine_schedule(*TAU_G, step, STEPS),
            linear_schedule(*TAU_E, step, STEPS),
            hard=step % 2 == 1,
        )
        found = tiny_fusion.loss(reader, tables, step, opening, LossWeights(distilled=0.0))
        optimiser.zero_grad()
        torch.stack(list(found.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 20) * max(0.02, 1 - step / STEPS)
        optimiser.step()
    networks.decoder.requires_grad_(False)
    offers = tiny_fusion.offers(tables, seed=99)
    return Learned(reader.requires_grad_(False), tables, offers)


@pytest.mark.parametrize("variant", ["A", "B"])
@pytest.mark.parametrize("hard", [False, True])
def test_the_answer_reaches_every_parameter_at_the_first_step(variant: str, hard: bool) -> None:
    """Through a frozen decoder, and without any other loss."""
    networks = tiny_fusion.networks()
    networks.decoder.requires_grad_(False)
    reader = tiny_fusion.reader(networks, variant)
    tables = FusionTables(tiny_fusion.examples(), tiny_fusion.scenes(), networks)
    opening = Opening(TAU_G[0], TAU_E[0], hard)
    tiny_fusion.loss(reader, tables, 0, opening, LossWeights())["answer"].backward()
    silent = [n for n, p in reader.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_every_loss_has_something_to_say_at_the_first_step() -> None:
    networks = tiny_fusion.networks()
    reader = tiny_fusion.reader(networks)
    tables = FusionTables(tiny_fusion.examples(), tiny_fusion.scenes(), networks)
    opening = Opening(TAU_G[0], TAU_E[0])
    found = tiny_fusion.loss(reader, tables, 0, opening, LossWeights())
    assert set(found) == {"answer", "pointer", "edges", "degree", "distilled"}
    for name, value in found.items():
        assert float(value.detach()) > 0, name
        reader.zero_grad()
        value.backward(retain_graph=True)
        assert any(p.grad is not None and p.grad.any() for p in reader.parameters()), name


def test_bfloat16_on_a_cpu_rounds_losses_and_keeps_every_gradient() -> None:
    found = {}
    for bfloat16 in (False, True):
        networks = replace(tiny_fusion.networks(), bfloat16=bfloat16)
        networks.decoder.requires_grad_(False)
        reader = tiny_fusion.reader(networks)
        tables = FusionTables(tiny_fusion.examples(), tiny_fusion.scenes(), networks)
        opening = Opening(TAU_G[0], TAU_E[0])
        parts = tiny_fusion.loss(reader, tables, 0, opening, LossWeights())
        torch.stack(list(parts.values())).sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in reader.parameters())
        found[bfloat16] = {name: float(value.detach()) for name, value in parts.items()}
    assert found[True] == pytest.approx(found[False], rel=0.05, abs=1e-5)
    assert found[True] != found[False]


def test_it_answers_what_stands_in_passages_alone(learned: Learned) -> None:
    assert tiny_fusion.accuracy(*_of(learned)) >= 0.9


def test_without_fused_tokens_it_is_chance(learned: Learned) -> None:
    assert tiny_fusion.accuracy(*_of(learned), zeroed=True) <= CHANCE


def test_with_wrong_passages_it_is_chance(learned: Learned) -> None:
    wrong = []
    draw = random.Random(5)
    for offer in learned.offers:
        others = [t for t, right in zip(offer.texts, offer.gold, strict=True) if not right]
        wrong.append(Offer(offer.row, tuple(others), (False,) * len(others)))
        draw.shuffle(others)
    assert tiny_fusion.accuracy(learned.reader, learned.tables, wrong) <= CHANCE


def test_the_answer_follows_an_edited_fact(learned: Learned) -> None:
    edited = tiny_fusion.edited(list(learned.tables.examples))
    tables = FusionTables(edited, tiny_fusion.scenes(), learned.tables.networks)
    offers = tiny_fusion.offers(tables, seed=98)
    assert tiny_fusion.accuracy(learned.reader, tables, offers) >= 0.9


def test_random_edges_of_the_same_number_do_worse(learned: Learned) -> None:
    """Though the gates still know how likely each is: what stands on a right one is heard."""
    edges = read_hard(learned.reader, learned.tables, learned.offers).edges.open_BVK
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(edges.flatten(1).shape, generator=generator).argsort(1)
    drawn = edges.flatten(1).gather(1, order).view_as(edges)
    assert torch.equal(drawn.flatten(1).sum(1), edges.flatten(1).sum(1))
    own, by_chance = (tiny_fusion.accuracy(*_of(learned), edges=some) for some in (edges, drawn))
    assert by_chance <= own - 0.15


def test_what_it_learned_passes_its_own_rule(learned: Learned) -> None:
    """A perfect choice of edges, too: neither is more than beta of all pairs."""
    texts = learned.tables.texts
    today = [
        ReadToday(
            tuple(texts[n] for n in offer.texts),
            tuple(float(right) for right in offer.gold),
            (1.0,) * len(offer.texts),
            len(offer.texts),
            (offer.gold.index(True),),
        )
        for offer in learned.offers
    ]
    examples = [
        replace(one, found=read.texts, scores=(0.5,) * len(read.texts))
        for one, read in zip(learned.tables.examples, today, strict=True)
    ]
    answers = [{one.answer: 1.0} for one in examples]
    networks = learned.tables.networks
    held_out = HeldOut.of(examples, today, answers, tiny_fusion.scenes(), networks)
    found = compare_reading(learned.reader, held_out)
    assert found["questions"] == 50
    assert found["scores"][FUSED] >= 0.9
    assert found["scores"][FUSED_BEST] >= 0.9
    assert found["edges"]["open"] <= found["edges"]["allowed"] < found["edges"]["pairs"] / 2
    assert fusion_ships(found)
    perfect = found | {"scores": found["scores"] | {FUSED_BEST: 1.0, BEST: 1.0, TWO: 1.0}}
    assert fusion_ships(perfect)
    for name, worse in ((BEST, 0.99), (TWO, 0.98)):
        scores = {NOTHING: 0.0, BEST: 0.9, TWO: 0.9, name: 1.0, FUSED_BEST: worse}
        assert not fusion_ships(perfect | {"scores": scores})
    assert not fusion_ships(perfect | {"scores": dict.fromkeys(found["scores"], 0.0)})
    too_many = found["edges"] | {"open": found["edges"]["allowed"] + 1}
    assert not fusion_ships(perfect | {"edges": too_many})


def test_without_questions_to_compare_nothing_ships(learned: Learned) -> None:
    networks = learned.tables.networks
    found = compare_reading(learned.reader, HeldOut.of([], [], [], tiny_fusion.scenes(), networks))
    assert found["questions"] == 0
    assert set(found["scores"].values()) == {0.0}
    assert not fusion_ships(found)


def test_a_perfect_choice_of_edges_fits_under_the_rule(learned: Learned) -> None:
    """Every token to the gold passage and to no other is one edge in five: beta allows it, and
    the loss of edges is next to nothing there."""
    batch = learned.tables.batch(learned.offers)
    gold = batch.gold_BK[:, None].expand(-1, tiny_fusion.NUM_TOKENS, -1)
    read = read_hard(learned.reader, learned.tables, learned.offers, gold)
    beta = learned.reader.config.beta
    assert beta is not None
    assert gold.float().mean() <= beta
    perfect = read._replace(edges=read.edges._replace(logits_BVK=20.0 * (2.0 * gold - 1)))
    assert float(edge_loss(perfect, batch)) < 1e-6
    torch.testing.assert_close(read.mass_BVK, gold.float())


def test_what_may_be_right_is_no_wrong_edge(learned: Learned) -> None:
    """Of a passage that is neither gold nor known to be wrong, the loss of edges says nothing."""
    one = next(one for one in learned.tables.examples if set(one.gold) < set(one.found))
    unknown = next(text for text in one.found if text not in one.gold)
    place = one.found.index(unknown)
    for neither, judged in (((), True), ((unknown,), False)):
        asked = replace(one, neither=neither)
        tables = FusionTables([asked], tiny_fusion.scenes(), learned.tables.networks)
        offer = tables.found(0)
        batch = tables.batch([offer])
        assert bool(batch.judged_BK[0, place]) is judged
        assert int((~batch.judged_BK).sum()) == len(neither)
        read = read_hard(learned.reader, tables, [offer])
        logits = read.edges.logits_BVK.clone().requires_grad_()
        edge_loss(read._replace(edges=read.edges._replace(logits_BVK=logits)), batch).backward()
        assert logits.grad is not None
        assert bool(logits.grad[0, :, place].any()) is judged
        assert logits.grad[0].any(0).sum() == len(one.found) - len(neither)


def test_passages_come_in_any_order_and_the_gold_one_among_them(learned: Learned) -> None:
    draw = random.Random(0)
    offers = [learned.tables.offer(0, tiny_fusion.READ, draw) for _ in range(40)]
    assert {offer.gold.index(True) for offer in offers} == set(range(tiny_fusion.READ))
    assert all(sum(offer.gold) == 1 for offer in offers)
    batch = learned.tables.batch(offers)
    for b, offer in enumerate(offers):
        [[passage, first]] = batch.starts_BKT[b].nonzero().tolist()
        assert offer.gold[passage]
        words = learned.tables.words
        word = int(words.ids_M[words.places(batch.texts_BK[b])[passage, first]])
        assert learned.tables.networks.tokenizer.decode([word]) == learned.tables.examples[0].answer


def test_an_answer_that_no_passage_holds_points_nowhere(learned: Learned) -> None:
    one = replace(learned.tables.examples[0], answer="sky")
    tables = FusionTables([one], tiny_fusion.scenes(), learned.tables.networks)
    batch = tables.batch([tables.offer(0, 3, random.Random(0))])
    assert not batch.starts_BKT.any()


def test_an_answer_begins_with_a_word(learned: Learned) -> None:
    fact = "The dog is called red ed ned."
    one = replace(learned.tables.examples[0], answer="ed", gold=(fact,))
    tables = FusionTables([one], tiny_fusion.scenes(), learned.tables.networks)
    assert tables.starts(0, tables.row[fact]) == [fact.split().index("ed")]


def _of(learned: Learned) -> tuple[FusionReader, FusionTables, list[Offer]]:
    return learned.reader, learned.tables, learned.offers
