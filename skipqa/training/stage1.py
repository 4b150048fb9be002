"""Stage I, the backbone: learn what a picture is called, then to answer from that.

Enters: the data folder, and Pocket-KB where it was built. Leaves in `out`: `tagger`, `drafter`,
`question` (the drafter's text encoder) and `reader` (the decoder) as safetensors, the last two as
differences from the published weights, and `metrics.json`. What is chosen by data (the
temperature, the fast path's threshold, how far the reader heeds the drafter, the rank of a
difference) is chosen on held-out training photos; validation questions are only scored.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skipqa.backbones import bert
from skipqa.backbones.llama import Llama
from skipqa.backbones.pocket import Pocket
from skipqa.config import EncodeConfig
from skipqa.nn import checkpoint, compact, low_rank
from skipqa.nn.drafter import calibrate_threshold
from skipqa.stages.prompts import reading_prompt
from skipqa.training import drafts, mixture, photos, reader, tags
from skipqa.training.drafts import Asker, DraftTraining, Questions, Words
from skipqa.training.loop import Run
from skipqa.training.mixture import Example, Mixture
from skipqa.training.reader import Prompts, ReaderTraining
from skipqa.training.tags import TagTraining

PRESET = "pocket"
SHOWN = 10  # words in the reader's prompt
LEAST_SHARE = 0.03
DRAFTED = 24  # candidates that the reader weighs
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)  # of the drafter's opinion beside the reader's


@dataclass(frozen=True, slots=True)
class Stage1:
    answers: int = 4_000
    words: int = 12
    views: int = 3
    ranks: tuple[int, ...] = (32, 64, 128)
    max_loss: float = 0.003  # of held-out accuracy, for a smaller rank
    tags: TagTraining = field(default_factory=TagTraining)
    drafts: DraftTraining = field(default_factory=DraftTraining)
    reader: ReaderTraining = field(default_factory=ReaderTraining)


def run(
    data: Path,
    out: Path,
    *,
    pocket_kb: Path | None = None,
    settings: Stage1 | None = None,
    limit: int | None = None,
    job: Run,
) -> dict[str, Any]:
    settings = settings or Stage1()
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(dataclasses.asdict(settings), indent=1) + "\n")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone = Pocket(EncodeConfig())
    mixed = mixture.read(data, pocket_kb, limit)
    tower = backbone.vision.float().to(device)
    seen = photos.see(tower, photos.decode(mixed.photos), device, views=settings.views)
    metrics: dict[str, Any] = {"examples": len(mixed.examples), "photos": len(mixed.photos)}

    targets = tags.targets(mixed, len(mixed.photos))
    tagger, shares = tags.train(seen, targets, job, settings.tags)
    checkpoint.save(tagger, out / "tagger.safetensors", preset=PRESET, eight_bit=True)
    metrics["tagger"] = {
        "names": len(targets.names),
        "cross_fitted_map": tags.mean_average_precision(shares.cpu(), targets.wanted),
    }
    job.record(**metrics)

    text = backbone.texts.network.float().to(device)
    published = copy.deepcopy(text).state_dict()
    tag_words = [tagger.config.word(i) for i in range(len(targets.names))]
    words = _words(backbone, text, tag_words, shares, seen.overview, settings.words)
    groups = _groups(mixed)
    answers = mixture.answer_vocabulary(mixed.examples, settings.answers)
    tokenizer = backbone.texts.tokenizer
    questions = Questions(mixed.examples, answers, tokenizer, device)
    asker = drafts.train(
        seen,
        words,
        questions,
        answers,
        _embed(text, backbone, list(answers)),
        text,
        groups,
        job,
        settings.drafts,
    )
    drafted = {
        name: drafts.answer_all(asker, seen, rows, questions, words)
        for name, rows in groups.items()
        if name.endswith(("held-out", "val")) and len(rows)
    }
    _calibrate(asker, drafted["okvqa/held-out"], questions, groups["okvqa/held-out"])
    metrics["drafter"] = {
        name: questions.accuracy(logits, groups[name].to(device))
        for name, logits in drafted.items()
    }
    job.record(**metrics)
    checkpoint.save(asker.drafter, out / "drafter.safetensors", preset=PRESET, eight_bit=True)
    shipped = compact.unpack(compact.pack(asker.drafter.state_dict()))
    asker.drafter.load_state_dict(shipped)

    def drafted_right() -> float:
        rows = groups["okvqa/held-out"]
        logits = drafts.answer_all(asker, seen, rows, questions, words)
        return questions.accuracy(logits, rows.to(device))

    path = out / "question.safetensors"
    metrics["drafter"]["ranks"] = _ship(asker.text, published, drafted_right, path, settings)
    drafted = {
        name: drafts.answer_all(asker, seen, groups[name], questions, words) for name in drafted
    }
    metrics["reader"] = _train_reader(
        backbone, mixed, words, groups, asker, drafted, out, settings, job
    )
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    return metrics


def _groups(mixed: Mixture) -> dict[str, Tensor]:
    """Rows of the examples, to train on and to score."""
    kinds = sorted({(example.source, example.split) for example in mixed.examples})
    found = {
        f"{source}/{split}": torch.tensor(mixed.select(source, split), dtype=torch.long)
        for source, split in kinds
    }
    empty = torch.zeros(0, dtype=torch.long)
    knowledge = [found.get("okvqa/train", empty), found.get("pocket-kb/train", empty)]
    return found | {"knowledge": torch.cat(knowledge), "other": found.get("coco/train", empty)}


def _embed(text: bert.Bert, backbone: Pocket, names: Sequence[str]) -> Tensor:
    """[names, d], unit length."""
    device, tokenizer = text.segment.device, backbone.texts.tokenizer
    found = []
    with torch.inference_mode():
        for start in range(0, len(names), 512):
            some = tokenizer.encode_batch(list(names[start : start + 512]))
            ids = [torch.tensor(one.ids) for one in some]
            padded = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1).to(device)
            mask = padded >= 0
            found.append(bert.mean_pool(text(padded.clamp(min=0), mask), mask))
    return torch.cat(found)


def _words(
    backbone: Pocket,
    text: bert.Bert,
    tag_names: Sequence[str],
    shares: Tensor,
    overview: Tensor,
    count: int,
) -> Words:
    concepts = backbone.concepts
    names = (*tag_names, *(concept.name for concept in concepts.entries))
    embeddings = torch.cat(
        (_embed(text, backbone, tag_names), concepts.embeddings.to(shares.device))
    )
    best = torch.cat((shares, overview), dim=1).topk(count, dim=1)
    return Words(names, embeddings.clone(), best.indices, best.values)


def _calibrate(asker: Asker, logits: Tensor, questions: Questions, rows: Tensor) -> None:
    rows = rows.to(logits.device)
    known = questions.score[rows].sum(1) > 0
    best = questions.answer[rows].gather(1, questions.score[rows].argmax(1, keepdim=True))[:, 0]
    asker.drafter.calibrate(logits[known], best[known])


def _ship(
    network: nn.Module,
    published: Mapping[str, Tensor],
    held_out_accuracy: Callable[[], float],
    path: Path,
    settings: Stage1,
) -> dict[str, Any]:
    """Save the network as the smallest difference that loses nothing on held-out questions, and
    leave it as it will be read back."""
    device = next(network.parameters()).device
    base = {name: value.float().to(device) for name, value in published.items()}
    difference = low_rank.difference(base, network.state_dict(), max(settings.ranks))
    found: dict[str, Any] = {"whole": held_out_accuracy()}
    for rank in settings.ranks:
        small = compact.pack(low_rank.truncated(difference, rank))
        network.load_state_dict(low_rank.apply(base, compact.unpack(small)))
        found |= {"rank": rank, f"rank {rank}": held_out_accuracy()}
        if found[f"rank {rank}"] >= found["whole"] - settings.max_loss:
            break
    small = {name: value.cpu() for name, value in small.items()}
    checkpoint.save_tensors(small, path, component=path.stem, preset=PRESET)
    return found


def facts_shown(
    example: Example, words: Words, glosses: dict[int, str], seed: int
) -> tuple[str, ...]:
    """What the reader finds beside a question while it learns: passages that state the answer
    among others that do not, or only those others, or none, as retrieval will bring them."""
    draw = random.Random(seed)
    seen = [i for i in words.indices[example.photo].tolist() if i in glosses][:4]
    others = [glosses[i] for i in draw.sample(seen, min(len(seen), draw.choice((0, 0, 1, 2))))]
    if example.hops and draw.random() < 0.85:
        return (*others[:1], *(draw.choice(hop) for hop in example.hops))
    return tuple(others)


def _train_reader(
    backbone: Pocket,
    mixed: Mixture,
    words: Words,
    groups: dict[str, Tensor],
    asker: Asker,
    drafted: dict[str, Tensor],
    out: Path,
    settings: Stage1,
    job: Run,
) -> dict[str, Any]:
    device = words.shares.device
    offset = len(words.names) - len(backbone.concepts)
    glosses = {
        offset + i: f"{concept.name} (noun): {concept.gloss}"
        for i, concept in enumerate(backbone.concepts.entries)
    }
    indices, shares = words.indices.tolist(), words.shares.tolist()

    def shown(photo: int) -> list[str]:
        pairs = zip(indices[photo][:SHOWN], shares[photo][:SHOWN], strict=True)
        return [words.names[i] for i, share in pairs if share > LEAST_SHARE]

    on_cpu = dataclasses.replace(words, indices=words.indices.cpu())
    texts = []
    for row, example in enumerate(mixed.examples):
        facts = facts_shown(example, on_cpu, glosses, job.seed + row)
        texts.append(reading_prompt(facts, shown(example.photo), example.question))
    tokenizer = backbone.decoder_tokenizer
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    prompts = Prompts(texts, tokenizer, end)
    decoder = backbone.decoder.float().to(device)
    published = {name: value.cpu().clone() for name, value in decoder.state_dict().items()}
    decoder = reader.train(decoder, prompts, mixed.examples, groups, job, settings.reader)

    def accuracy(name: str) -> float:
        rows = groups[name].tolist()
        given = zip(rows, reader.generate(decoder, prompts, rows), strict=True)
        return _mean(mixed.examples[row].answers.get(answer, 0.0) for row, answer in given)

    metrics: dict[str, Any] = {"all_weights": {name: accuracy(name) for name in drafted}}
    job.record(reader=metrics)
    path = out / "reader.safetensors"
    right = partial(accuracy, "okvqa/held-out")
    metrics["ranks"] = _ship(decoder, published, right, path, settings)
    metrics["shipped"] = {name: accuracy(name) for name in drafted}
    job.record(reader=metrics)
    metrics["joint"] = _weigh(decoder, prompts, mixed, groups, asker, drafted)
    return metrics


def _weigh(
    decoder: Llama,
    prompts: Prompts,
    mixed: Mixture,
    groups: dict[str, Tensor],
    asker: Asker,
    drafted: dict[str, Tensor],
) -> dict[str, Any]:
    """How far the reader should heed the drafter, and when the drafter may answer alone."""
    found: dict[str, Any] = {}
    answers = asker.drafter.config.answers
    chosen = 0
    for name in sorted(drafted, key=lambda name: name != "okvqa/held-out"):
        rows = groups[name].tolist()
        shares = (drafted[name] / asker.drafter.temperature).log_softmax(-1).cpu()
        best = shares.topk(min(DRAFTED, len(answers)))
        # The reader's own answer stands too, with as little support as the least of the others.
        own = reader.generate(decoder, prompts, rows)
        given = [
            [*(answers[i] for i in row), text]
            for row, text in zip(best.indices.tolist(), own, strict=True)
        ]
        opinion = torch.cat((best.values, best.values[:, -1:]), dim=1)
        pairs = [(row, text) for row, texts in zip(rows, given, strict=True) for text in texts]
        read = reader.log_probabilities(decoder, prompts, pairs).view(len(rows), -1)
        credit = torch.tensor(
            [
                [mixed.examples[row].answers.get(text, 0.0) for text in texts]
                for row, texts in zip(rows, given, strict=True)
            ]
        )
        picked = [credit.gather(1, (read + w * opinion).argmax(1, keepdim=True)) for w in WEIGHTS]
        by_weight = [float(p.mean()) for p in picked]
        if name == "okvqa/held-out":
            chosen = max(range(len(WEIGHTS)), key=by_weight.__getitem__)
        routed = calibrate_threshold(opinion[:, 0].exp(), credit[:, 0], picked[chosen][:, 0])
        found[name] = {
            "by_weight": dict(zip(WEIGHTS, by_weight, strict=True)),
            "weight": WEIGHTS[chosen],
            "accuracy": by_weight[chosen],
            "route": dataclasses.asdict(routed),
        }
    return found


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / max(1, len(found))
