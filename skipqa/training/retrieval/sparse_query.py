"""The sparse query encoder: a question's terms and their weights, trained against the passages.

Enters: a library and the published text encoder. Leaves in the run's folder:
`sparse_query.safetensors`, a delta from the published weights, `concept_prior.safetensors`
(`concept_prior.py`) and `metrics.json`. The loss is InfoNCE over the passages of the batch and hard
negatives of a lexical search, with SPLADE's FLOPs regulariser on every added term. Half of the
questions come with the name of their thing as separate lexical terms, as the pipeline adds it for
what a region shows; half have the name before their text. Nothing of stage I is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones import concepts
from skipqa.backbones.networks import sparse_query
from skipqa.backbones.networks.sparse_query import SparseQuery
from skipqa.backbones.text_encoder import MiniLm
from skipqa.components import SETTINGS, change_settings
from skipqa.config import Between, Count, Fraction, Weight
from skipqa.knowledge import Library
from skipqa.knowledge.default import DEFAULT
from skipqa.nn import checkpoint
from skipqa.nn.region_query import term_flops_loss
from skipqa.nn.term_weights import NO_TERM, tie_to_words
from skipqa.training.export import Truncation, copy_components, export
from skipqa.training.loop import Optimisation, batches, fit
from skipqa.training.pipelines import index_digests, text_digest
from skipqa.training.retrieval import about, concept_prior, people, spans
from skipqa.training.retrieval.concept_prior import ConceptPriorTraining
from skipqa.training.retrieval.pairs import NO_ROW, Pairs, prepare
from skipqa.training.retrieval.queries import TRAIN, Amounts, Unseen, generate
from skipqa.training.retrieval.query import ASKED, HELD_OUT_SOURCES, MADE, SOURCES, TRAIN_SOURCES
from skipqa.training.retrieval.spans import SpanTraining
from skipqa.training.retrieval.stored import Corpus
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage

PRESET = "pocket"
PAIRS, DELTA, CONCEPT_PRIOR = (
    f"{name}.safetensors" for name in ("pairs", "sparse_query", "concept_prior")
)
PART = "sparse_query"
# Learned terms count as much as what is recognised; definitions then only separate senses (LOG.md)
RETRIEVE = {"definition_weight": 0.1, "question_weight": 1.0}
MEASURED = 128  # held-out queries of each source
SUPPRESSED_ON = 2_000  # training queries that useless terms are counted on


@dataclass(frozen=True, slots=True)
class SparseTraining:
    fraction: Fraction = 0.2  # of the passages get a question
    most: Count = 20_000  # questions made from the passages of one corpus
    reworded: Count = 8  # paraphrases of each Pocket-KB question
    hard: Count = 6  # hard negatives per query
    steps: Count = 800
    batch: Count = 48
    hard_used: Count = 4  # of them in a batch
    lr: Weight = 1e-3
    text_lr_scale: Fraction = 0.1  # the pretrained encoder moves more slowly
    temperature: Weight = 1.0  # a matching term scores about 4
    sparsity: Weight = 1e-2
    useless: Fraction = 0.01  # of the questions, that a term may be added to without use
    joining: Count = 4  # terms added per word at the start
    # How often a question is repeated per epoch
    asked_times: Count = 2  # of Pocket-KB
    people_times: Count = 8  # of OK-VQA and FVQA, which are few
    ranks: Annotated[tuple[int, ...], Between(1, 1_000)] = (8, 12)  # 12 is 0.73 MB
    max_loss: Fraction = 0.003
    concept_prior: ConceptPriorTraining = field(default_factory=ConceptPriorTraining)
    span: SpanTraining = field(default_factory=SpanTraining)


@dataclass(frozen=True, slots=True)
class RetrievalStage(TrainingStage):
    settings: SparseTraining

    @property
    def makes_backbone(self) -> bool:
        return True

    def run(self, inputs: Inputs, settings: SparseTraining, run: Run) -> Metrics:
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                "pocket_kb": _questions_digest(inputs.pocket_kb),
                "data": _data_digests(inputs.data),
                "indexes": index_digests(inputs.index),
                "settings": dataclasses.asdict(settings),
            }
        )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if PART not in run.metrics():
            pairs = _pairs(inputs, settings, run, device).to(device)
            run.finish(PART, train(sparse_query.published().to(device), pairs, settings, run))
        asks_about = inputs.pocket_kb is not None or inputs.data is not None
        if asks_about and concept_prior.PART not in run.metrics():
            _train_concept_prior(inputs, settings, run, device)
        run.forget_states()
        if inputs.components is not None:
            copy_components(inputs.components, run.folder)
        change_settings(run.folder / SETTINGS, retrieve=RETRIEVE, **_high_res(run.metrics()))
        return run.metrics()


STAGE = RetrievalStage("splade", SparseTraining(), needs_pocket="it trains pocket's text encoder")


def _questions_digest(pocket_kb: Path | None) -> str | None:
    return None if pocket_kb is None else text_digest(pocket_kb / TRAIN)


def _data_digests(data: Path | None) -> list[str]:
    """Of the files that are there, of those that queries are made from."""
    paths = [] if data is None else [data / name for name in about.FILES]
    return [f"{path.stem} {text_digest(path)}" for path in paths if path.is_file()]


def _pairs(inputs: Inputs, settings: SparseTraining, run: Run, device: torch.device) -> Pairs:
    """Prepared once, with the questions of Pocket-KB and of people where these are given."""
    known = run.folder / "state" / PAIRS
    if not known.exists():
        run.say("reading the passages")
        corpus = Corpus.of(Library.open(inputs.index or [DEFAULT]), device)
        amounts = Amounts(settings.fraction, settings.most, settings.reworded)
        queries = generate(corpus.passages, inputs.pocket_kb, run.seed, amounts)
        queries = queries[:: _every(inputs.limit)]
        if inputs.data is not None:
            asked = people.read(inputs.data, inputs.pocket_kb, Unseen.of(inputs.pocket_kb).names)
            counted = run.counted("finding passages that answer")
            labelled, unanswered = people.label(asked[: inputs.limit], corpus, counted)
            queries += labelled
            run.say(f"no passage found answers {unanswered}")
        counted = run.counted("finding hard negatives")
        known.parent.mkdir(parents=True, exist_ok=True)
        prepare(corpus, queries, settings.hard, counted).save(known)
    return Pairs.load(known)


def _train_concept_prior(
    inputs: Inputs, settings: SparseTraining, run: Run, device: torch.device
) -> None:
    """Over the classes of the published vision encoder, COCO's names and those of Pocket-KB: it
    needs nothing that was trained before. The words that stand for the thing are learned with it.
    """
    text = MiniLm()
    network = text.network.to(device)
    classes = concepts.load(lambda names: text.encode(names).embeddings)
    common = concepts.common_things(about.common_names(inputs.data))
    asked = about.read(inputs.pocket_kb, inputs.data, settings.concept_prior.reworded, run.seed)
    asked = asked[:: _every(inputs.limit)]
    unseen = Unseen.of(inputs.pocket_kb).names
    known = concept_prior.nameable(classes.entries, common.values(), asked, unseen)
    run.say(f"encoding {len(asked):,} questions about {len(known):,} concepts")
    prepared, left_out = concept_prior.prepare(asked, known, network, text.tokenizer)
    module, measured = concept_prior.train(prepared, settings.concept_prior, run)
    spanned = spans.read(inputs.data, inputs.pocket_kb, settings.span.most, run.seed)
    spanned = spanned[:: _every(inputs.limit)]
    tokens = spans.prepare(spanned, network, text.tokenizer)
    module.span, of_spans = spans.train(tokens, settings.span, run)
    checkpoint.save(module, run.folder / CONCEPT_PRIOR, preset=PRESET)
    least = concept_prior.min_information(module, prepared)
    run.finish(
        concept_prior.PART,
        measured | {"no concept": left_out, "spans": of_spans, "min_information": least},
    )


def _high_res(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Which questions are looked at in high resolution, where the prior says so."""
    least = metrics.get(concept_prior.PART, {}).get("min_information")
    stages = () if least is None else ("budget", "zoom")
    return {stage: {"min_information": least} for stage in stages}


def _every(limit: int | None) -> int:
    """For a trial, one query in so many."""
    return 1 if limit is None else max(1, 100_000 // limit)


def train(network: SparseQuery, pairs: Pairs, settings: SparseTraining, run: Run) -> dict[str, Any]:
    published = {name: value.clone() for name, value in network.state_dict().items()}
    run.say("measuring lexical retrieval")
    lexical = measure(network, pairs, SOURCES)
    _start(network, pairs, settings, run.seed)
    times = dict.fromkeys(MADE, 1) | dict.fromkeys(ASKED, settings.people_times)
    times["pocket-kb"] = settings.asked_times
    groups = [pairs.select(name, held_out=False).repeat(n) for name, n in times.items()]
    at = batches([group.cpu() for group in groups], settings.batch, run.seed)

    def loss(step: int) -> Tensor:
        rows = at(step).to(pairs.gold.device)
        sparsity = settings.sparsity * min(1.0, (3 * step / settings.steps)) ** 2
        return _loss(network, pairs, rows, settings, sparsity)

    _trainable(network)
    optimisation = Optimisation(settings.steps, settings.lr, warmup=settings.steps // 10)
    network = fit(PART, network, loss, optimisation, run, [(network.text, settings.text_lr_scale)])
    run.say("suppressing useless terms, then choosing the rank")
    suppress_useless(network, pairs, run.seed, settings.useless)
    measured: list[dict[str, float]] = []

    def accuracy() -> float:
        # Held-out wordings have no say in the rank.
        measured.append(measure(network, pairs, TRAIN_SOURCES))
        return sum(measured[-1].values()) / len(measured[-1])

    truncation = Truncation(settings.ranks, settings.max_loss, ("head.to_word.weight",))
    exported = export(network, published, accuracy, run.folder / DELTA, truncation, preset=PRESET)
    return {
        "training_free": lexical,
        "trained": measured[-1] | measure(network, pairs, HELD_OUT_SOURCES),
        "before_truncation": measured[0],
        "delta": exported,
        "terms": _terms(network, pairs),
    }


def _trainable(network: SparseQuery) -> None:
    """All but word and position embeddings: the head is tied to the published words."""
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
    network: SparseQuery, pairs: Pairs, rows: Tensor, settings: SparseTraining, sparsity: float
) -> Tensor:
    """Shape letters: B queries, M passages: a gold one and hard negatives for each query."""
    count, device = len(rows), rows.device
    separate = torch.rand(count).to(device) < 0.5
    named = separate * (0.3 + 0.7 * torch.rand(count).to(device))  # regions are uncertain too
    gold_BG, hard_BH = pairs.gold[rows].long(), pairs.hard[rows].long()
    right_B = _one_of(gold_BG)
    drawn = torch.rand(hard_BH.shape).argsort(1)[:, : settings.hard_used].to(device)
    wrong = hard_BH.gather(1, drawn).flatten()
    passages_M = torch.cat((right_B, wrong[wrong != NO_ROW]))
    among = pairs.terms.values[pairs.terms.places(passages_M)[0]].long().unique()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        weights_BN, joined_BN = ask(network, pairs, rows, named, among)
    scores_BM = pairs.scores(weights_BN * pairs.idf, passages_M) / settings.temperature
    # The gold passage of another query may answer this one too.
    also_BM = (passages_M[None, :, None] == gold_BG[:, None]).any(-1)
    also_BM[torch.arange(count), torch.arange(count)] = False
    scores_BM = scores_BM.masked_fill(also_BM, -torch.inf)
    contrast = F.cross_entropy(scores_BM, torch.arange(count, device=device))
    return contrast + sparsity * term_flops_loss(joined_BN * pairs.idf)


def ask(
    network: SparseQuery, pairs: Pairs, rows: Tensor, named: Tensor, among: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Term weights [B, N] of the queries, and those of added terms alone. Where `named` is above 0
    the text is encoded without the name, whose terms are added with that weight."""
    separate = named > 0
    order = torch.cat((separate.nonzero()[:, 0], (~separate).nonzero()[:, 0]))
    made = []
    for chosen, ragged in ((separate, pairs.text), (~separate, pairs.whole)):
        if chosen.any():
            made.append(network(*ragged.padded(rows[chosen]), pairs.matched_as.long(), among))
    own, joined = (torch.cat(part)[order.argsort()] for part in zip(*made, strict=True))
    pieces, mask = pairs.name.padded(rows)
    terms = pairs.matched_as.long()[pieces]
    worth = named[:, None] * ((terms != NO_TERM) & mask)
    names = torch.zeros_like(own).scatter_reduce(1, terms.clamp(min=0), worth.to(own), "amax")
    return own + joined + names, joined


@torch.no_grad()
def suppress_useless(network: SparseQuery, pairs: Pairs, seed: int, fraction: float) -> None:
    """Lower every term's bias until it is added to no more than `fraction` of the questions whose
    passages do not hold it. The regulariser only sees terms of a batch's passages, so rare terms
    hardly ever meet it."""
    generator = torch.Generator().manual_seed(seed)
    known = (~pairs.held_out).nonzero()[:, 0]
    order = torch.randperm(len(known), generator=generator)
    chosen = known[order[:SUPPRESSED_ON].to(known.device)]
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
    drawn = torch.rand(gold_BG.shape).to(gold_BG.device).masked_fill(gold_BG == NO_ROW, -1.0)
    return gold_BG.gather(1, drawn.argmax(1, keepdim=True))[:, 0]


@torch.no_grad()
def measure(network: SparseQuery, pairs: Pairs, sources: Sequence[str]) -> dict[str, float]:
    """Recall@4 of held-out queries by source, the name before the text; for all but those made from
    passages also with the name as separate terms."""
    found = {}
    for source in sources:
        rows = pairs.select(source, held_out=True)
        rows = rows[:: max(1, len(rows) // MEASURED)][:MEASURED]
        if len(rows):
            found[source] = _recall(network, pairs, rows, 0.0)
            if source not in MADE:
                found[f"{source}, name apart"] = _recall(network, pairs, rows, 1.0)
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
    """How many terms a query has on average, and how many of them were added."""
    rows = torch.cat([pairs.select(source, held_out=True)[:64] for source in TRAIN_SOURCES])
    weights, joined = ask(network, pairs, rows, torch.zeros(len(rows), device=rows.device))
    counted = pairs.idf > 0
    return {
        "all": float(((weights > 0) & counted).sum(1).float().mean()),
        "joined": float(((joined > 0) & counted).sum(1).float().mean()),
    }
