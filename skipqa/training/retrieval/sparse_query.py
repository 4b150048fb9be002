"""Retrieval, learned: a question's terms and their weights, trained against the passages.

Enters: an index and the published text encoder. Leaves in the run's folder:
`sparse_query.safetensors`, a difference from the published weights, `expectation.safetensors`
(`expecting.py`) and `metrics.json`. InfoNCE over the passages of the
batch and those that a lexical search confuses with the right one, with SPLADE's price on every
term that joins in. Half of the questions come with the name of their thing as a lexical part beside
them, as the pipeline adds it for what it sees in a region; half have it before their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.backbones import concepts
from skipqa.backbones.networks import sparse_query
from skipqa.backbones.networks.sparse_query import SparseQuery
from skipqa.backbones.text_encoder import MiniLm
from skipqa.config import Between, Count, Fraction, Weight
from skipqa.knowledge import Index, default_index_path
from skipqa.nn import checkpoint
from skipqa.nn.region_query import term_flops_loss
from skipqa.nn.term_weights import NO_TERM, tie_to_words
from skipqa.training.export import export
from skipqa.training.loop import Phase, batches, fit
from skipqa.training.retrieval import concept_prior as concept_prior
from skipqa.training.retrieval import pairs as tensors
from skipqa.training.retrieval.concept_prior import ConceptPriorTraining
from skipqa.training.retrieval.pairs import NO_ROW, Pairs
from skipqa.training.retrieval.queries import SOURCES, TAUGHT, UNSEEN, generate
from skipqa.training.run import Run

PRESET = "pocket"
PAIRS, DELTA, CONCEPT_PRIOR = (
    f"{name}.safetensors" for name in ("pairs", "sparse_query", "concept_prior")
)
PART = "sparse_query"
# Learned terms count as much as what is seen; definitions then only tell senses apart (LOG.md)
RETRIEVE = {"definition_weight": 0.1, "question_weight": 1.0}
MEASURED = 128  # held-out queries of each source
QUIETENED = 2_000  # training queries that are looked at for terms of no use


@dataclass(frozen=True, slots=True)
class SparseTraining:
    fraction: Fraction = 0.2  # of the passages ask a question
    reworded: Count = 8  # other wordings of each thing that Pocket-KB asks for
    hard: Count = 6  # confusable passages known for each query
    steps: Count = 400
    batch: Count = 48
    hard_used: Count = 4  # of them in a batch
    lr: Weight = 1e-3
    text_lr_scale: Fraction = 0.1  # the pretrained encoder moves more slowly
    temperature: Weight = 1.0  # a term that fits is worth about 4
    sparsity: Weight = 1e-2
    unwanted: Fraction = 0.01  # of the questions that a term may join in for without being of use
    joining: Count = 4  # terms that join in for each word at the start
    asked_times: Count = 2  # how often a Pocket-KB question comes for each made one
    ranks: Annotated[tuple[int, ...], Between(1, 1_000)] = (8, 12)  # 12 is 0.73 MB
    max_loss: Fraction = 0.003
    concept_prior: ConceptPriorTraining = field(default_factory=ConceptPriorTraining)


def run(
    pocket_kb: Path | None,
    index: Path | None,
    settings: SparseTraining,
    run: Run,
    device: torch.device,
    limit: int | None = None,
) -> dict[str, Any]:
    """`index` has Pocket-KB's passages in it where that is given; else the default one."""
    if PART not in run.metrics():
        known = run.folder / "state" / PAIRS
        if not known.exists():
            opened = Index.open(index or default_index_path())
            made = generate(opened, pocket_kb, run.seed, settings.fraction, settings.reworded)
            queries = made[:: _every(limit)]
            counted = run.counted("looking for confusion")
            known.parent.mkdir(parents=True, exist_ok=True)
            tensors.save(tensors.prepare(opened, queries, settings.hard, counted), known)
        network = sparse_query.published().to(device)
        run.finish(PART, train(network, tensors.load(known).to(device), settings, run))
    if pocket_kb is not None and concept_prior.PART not in run.metrics():
        text = MiniLm()
        classes = [
            c.names for c in concepts.load(lambda names: text.encode(names).embeddings).entries
        ]
        encoder, reworded = text.network.to(device), settings.concept_prior.reworded
        asked = concept_prior.read(pocket_kb, classes, encoder, text.tokenizer, reworded, run.seed)
        module, measured = concept_prior.train(asked, settings.concept_prior, run)
        checkpoint.save(module, run.folder / CONCEPT_PRIOR, preset=PRESET)
        run.finish(concept_prior.PART, measured)
    run.forget_states()
    return run.metrics()


def _every(limit: int | None) -> int:
    """For a trial, one query in so many."""
    return 1 if limit is None else max(1, 100_000 // limit)


def train(network: SparseQuery, pairs: Pairs, settings: SparseTraining, run: Run) -> dict[str, Any]:
    published = {name: value.clone() for name, value in network.state_dict().items()}
    run.say("measuring what words alone find")
    lexical = measure(network, pairs, SOURCES)
    _start(network, pairs, settings, run.seed)
    asked = pairs.select("pocket-kb", held_out=False).repeat(settings.asked_times)
    groups = [pairs.select(source, held_out=False) for source in TAUGHT[:2]] + [asked]
    at = batches([group.cpu() for group in groups], settings.batch, run.seed)

    def loss(step: int) -> Tensor:
        rows = at(step).to(pairs.gold.device)
        price = settings.sparsity * min(1.0, (3 * step / settings.steps)) ** 2
        return _loss(network, pairs, rows, settings, price)

    _trainable(network)
    phase = Phase(settings.steps, settings.lr, warmup=settings.steps // 10)
    slower: list[tuple[nn.Module, float]] = [(network.text, settings.text_lr_scale)]
    network = fit(PART, network, loss, phase, run, slower=slower)
    run.say("quietening terms of no use, then choosing the rank")
    quieten(network, pairs, run.seed, settings.unwanted)
    measured: list[dict[str, float]] = []

    def accuracy() -> float:
        # The rank is not chosen by the words that nothing is taught in.
        measured.append(measure(network, pairs, TAUGHT))
        return sum(measured[-1].values()) / len(measured[-1])

    shipped = export(
        network,
        published,
        accuracy,
        run.folder / DELTA,
        preset=PRESET,
        ranks=settings.ranks,
        max_loss=settings.max_loss,
        never_cut=("head.to_word.weight",),
    )
    return {
        "training_free": lexical,
        "trained": measured[-1] | measure(network, pairs, UNSEEN),
        "before_truncation": measured[0],
        "difference": shipped,
        "terms": _terms(network, pairs),
    }


def _trainable(network: SparseQuery) -> None:
    """All but what stands for words and places: the head is tied to the words as published."""
    network.requires_grad_(True)
    network.text.words.requires_grad_(False)
    network.text.places.requires_grad_(False)


@torch.no_grad()
def _start(network: SparseQuery, pairs: Pairs, settings: SparseTraining, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(pairs.gold), generator=generator)[:4_096].to(pairs.gold.device)
    states, ids = [], []
    for rows in some.split(256):
        text, mask = pairs.whole.padded(rows)
        states.append(network.text(text, mask)[mask])
        ids.append(text[mask])
    words = network.text.words.weight
    tie_to_words(network.head, torch.cat(states), torch.cat(ids), words, settings.joining)


def _loss(
    network: SparseQuery, pairs: Pairs, rows: Tensor, settings: SparseTraining, price: float
) -> Tensor:
    """Legend: B queries, M passages: a right one and some confusable ones for each query."""
    count, device = len(rows), rows.device
    beside = torch.rand(count).to(device) < 0.5
    named = beside * (0.3 + 0.7 * torch.rand(count).to(device))  # regions are not sure either
    gold_BG, hard_BH = pairs.gold[rows].long(), pairs.hard[rows].long()
    right_B = _one_of(gold_BG)
    drawn = torch.rand(hard_BH.shape).argsort(1)[:, : settings.hard_used].to(device)
    wrong = hard_BH.gather(1, drawn).flatten()
    passages_M = torch.cat((right_B, wrong[wrong != NO_ROW]))
    among = pairs.terms.values[pairs.terms.places(passages_M)[0]].long().unique()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        weights_BN, joined_BN = ask(network, pairs, rows, named, among)
    scores_BM = pairs.scores(weights_BN * pairs.idf, passages_M) / settings.temperature
    # Another's passage may answer this one too.
    also_BM = (passages_M[None, :, None] == gold_BG[:, None]).any(-1)
    also_BM[torch.arange(count), torch.arange(count)] = False
    scores_BM = scores_BM.masked_fill(also_BM, -torch.inf)
    contrast = F.cross_entropy(scores_BM, torch.arange(count, device=device))
    return contrast + price * term_flops_loss(joined_BN * pairs.idf)


def ask(
    network: SparseQuery, pairs: Pairs, rows: Tensor, named: Tensor, among: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Factors [B, N] of the queries, and of that what joined in. Where `named` is above 0 the
    text is asked alone, and the name's own terms are added with that weight."""
    beside = named > 0
    order = torch.cat((beside.nonzero()[:, 0], (~beside).nonzero()[:, 0]))
    made = []
    for chosen, ragged in ((beside, pairs.text), (~beside, pairs.whole)):
        if chosen.any():
            made.append(network(*ragged.padded(rows[chosen]), pairs.matched_as.long(), among))
    own, joined = (torch.cat(part)[order.argsort()] for part in zip(*made, strict=True))
    pieces, mask = pairs.name.padded(rows)
    terms = pairs.matched_as.long()[pieces]
    worth = named[:, None] * ((terms != NO_TERM) & mask)
    names = torch.zeros_like(own).scatter_reduce(1, terms.clamp(min=0), worth.to(own), "amax")
    return own + joined + names, joined


@torch.no_grad()
def quieten(network: SparseQuery, pairs: Pairs, seed: int, fraction: float) -> None:
    """Lower every term's bias until it joins in for no more than `share` of the questions whose
    passages do not hold it. The price is on terms that a batch's passages have; rare ones hardly
    ever paid it."""
    generator = torch.Generator().manual_seed(seed)
    taught = (~pairs.held_out).nonzero()[:, 0]
    chosen = taught[torch.randperm(len(taught), generator=generator)[:QUIETENED].to(taught.device)]
    found = []
    for rows in chosen.split(64):
        _, joined = ask(network, pairs, rows, torch.ones(len(rows), device=rows.device))
        gold = pairs.gold[rows].long()
        which, place = (gold != NO_ROW).nonzero(as_tuple=True)
        places, first = pairs.terms.places(gold[which, place])
        lengths = torch.diff(first, append=first.new_tensor([len(places)]))
        joined[which.repeat_interleave(lengths), pairs.terms.values[places].long()] = 0.0
        found.append(joined.expm1().half())
    levels = torch.cat(found)
    kept = max(1, min(len(levels), round((1 - fraction) * len(levels))))
    for terms in torch.arange(levels.shape[1], device=levels.device).split(4_096):
        network.head.bias[terms] -= levels[:, terms].float().kthvalue(kept, dim=0).values


def _one_of(gold_BG: Tensor) -> Tensor:
    """One gold row of each query, drawn among those there are."""
    luck = torch.rand(gold_BG.shape).to(gold_BG.device).masked_fill(gold_BG == NO_ROW, -1.0)
    return gold_BG.gather(1, luck.argmax(1, keepdim=True))[:, 0]


@torch.no_grad()
def measure(network: SparseQuery, pairs: Pairs, sources: Sequence[str]) -> dict[str, float]:
    """Recall@4 of held-out queries: by source, the name before the text; and all but those made
    from passages with the name beside it."""
    found = {}
    for source in sources:
        rows = pairs.select(source, held_out=True)
        rows = rows[:: max(1, len(rows) // MEASURED)][:MEASURED]
        if len(rows):
            found[source] = _recall(network, pairs, rows, 0.0)
            if source not in TAUGHT[:2]:
                found[f"{source}, name beside"] = _recall(network, pairs, rows, 1.0)
    return found


def _recall(network: SparseQuery, pairs: Pairs, rows: Tensor, named: float) -> float:
    training, device = network.training, rows.device
    network.eval()
    hits = []
    for some in rows.split(64):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            weights, _ = ask(network, pairs, some, torch.full((len(some),), named, device=device))
        hits.append(pairs.recall(weights * pairs.idf, some))
    network.train(training)
    return float(torch.cat(hits).float().mean())


@torch.no_grad()
def _terms(network: SparseQuery, pairs: Pairs) -> dict[str, float]:
    """How many terms a query has on average, and how many of them joined in."""
    rows = torch.cat([pairs.select(source, held_out=True)[:64] for source in TAUGHT])
    weights, joined = ask(network, pairs, rows, torch.zeros(len(rows), device=rows.device))
    counted = pairs.idf > 0
    return {
        "all": float(((weights > 0) & counted).sum(1).float().mean()),
        "joined": float(((joined > 0) & counted).sum(1).float().mean()),
    }
