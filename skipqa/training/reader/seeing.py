"""What a decoder is trained on: words of every photo, the passages found, the drafter's opinions.

Enters: questions and photos as in stage I, the encoders and the drafter that a preset answers with,
an index. Leaves: `Seen`, which a killed run finds in its folder again. The tagger as it ships was
trained on most of these photos, and a reader would learn to trust words that are never as accurate
again: of COCO's classes a photo's words come from a tagger that was not trained on it, as in
stage I.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from skipqa.components import Components
from skipqa.files import atomic, read_json
from skipqa.nn.tagger import TaggerConfig, pooled, said_of_a_picture
from skipqa.training.reader.settings import PART, ReaderSettings
from skipqa.training.stage1 import parts, photos, tagger
from skipqa.training.stage1.drafter import DrafterEval, DrafterInputs, DrafterModel, Questions
from skipqa.training.stage1.finding import Retrieval, find_passages
from skipqa.training.stage1.inputs import PERCEPTUAL, StageInputs, evenly, group_rows
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import PhotoFeatures
from skipqa.training.stage1.tagger import TaggerTraining, TagProbs, Targets, Views
from skipqa.training.stage1.words import Words
from skipqa.types import Box

OWN_QUESTIONS = "okvqa"  # the source that is never thinned: it is what everything is chosen on


@dataclass(frozen=True, slots=True)
class Seen:
    low_res: Words
    high_res: Words
    passages: Mapping[int, tuple[str, ...]]  # found for a row of the examples, the best first
    drafter: DrafterModel
    drafted: Mapping[str, Tensor]  # logits of all scored questions


def thinned(mixed: Mixture, settings: ReaderSettings) -> Mixture:
    """As `ReaderSettings.questions` says."""
    if not settings.questions:
        return mixed
    rows: list[int] = []
    for name, some in group_rows(mixed).items():
        source, split = name.split("/")
        if split == "val" and source != "unseen":  # all of these are in `val`
            continue
        if source != OWN_QUESTIONS and name != PERCEPTUAL:  # by these the fast path is chosen
            some = evenly(some, settings.questions if split == "train" else settings.scored)
        rows += some.tolist()
    return mixed.only(sorted(rows))


def things_asked_about(mixed: Mixture) -> dict[int, str]:
    """By row of the examples, where it is known, as one would say it of an image."""
    shown, found = mixed.shown(), {}
    for row, example in enumerate(mixed.examples):
        if example.thing:
            found[row] = example.thing
        elif things := shown.get(example.photo):
            near = {one: _apart(one.box, example.box) for one in things}
            asked = min(things, key=near.__getitem__)
            found[row] = said_of_a_picture(asked.name, asked.kind)
    return found


def _apart(one: Box | None, other: Box | None) -> float:
    if one is None or other is None:
        return 0.0
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def see(inputs: StageInputs, found: Components, retrieval: Retrieval, *, bfloat16: bool) -> Seen:
    """By the components as they ship, in bfloat16 if asked to. Features are not kept: training
    needs the memory."""
    assert found.question is not None
    assert found.tagger is not None
    assert found.drafter is not None
    model = parts.drafter_model(inputs, found.drafter, found.question)
    kept = _Kept(inputs.run.states(PART))
    if not kept.complete:
        _look(inputs, found, model, kept, bfloat16)
    low_res, high_res, drafted = kept.read(inputs, found.tagger.config)
    if not kept.passages.exists():
        passages = find_passages(inputs, high_res, retrieval)
        with atomic(kept.passages) as partial:
            partial.write_text(json.dumps(list(passages.items())))
    rows = {int(row): tuple(texts) for row, texts in read_json(kept.passages)}
    return Seen(low_res, high_res, rows, model, drafted)


def _look(
    inputs: StageInputs, found: Components, model: DrafterModel, kept: _Kept, bfloat16: bool
) -> None:
    assert found.vision is not None
    assert found.tagger is not None
    assert found.drafter is not None
    pixels = photos.decode(inputs.mixed.photos, inputs.run.counted("decoding photos"))
    features = parts.see(inputs, pixels, found.vision, views=1, crops=0, bfloat16=bfloat16)
    own = found.tagger.to(inputs.device)
    probs = tagger.tag(own, pooled(features.views[0]), features.windows)
    probs = cross_fitted(inputs, features, own.config, probs)
    words = parts.words_shown(inputs, features, own.config, own.meanings, probs)
    answers, tokenizer = found.drafter.config.answers, inputs.networks.text_tokenizer
    questions = Questions(inputs.mixed.examples, answers, tokenizer, inputs.device)
    drafts = DrafterEval(inputs.scored, DrafterInputs(questions, features, words[0]))
    kept.write(words, drafts.all_logits(model))


def cross_fitted(
    inputs: StageInputs, features: PhotoFeatures, config: TaggerConfig, probs: TagProbs
) -> TagProbs:
    """With COCO's classes of labelled photos as told by taggers that were not trained on them."""
    targets = tagger.targets(inputs.mixed)
    known = {name: i for i, (name, kind) in enumerate(_named(config)) if not kind}
    common = [i for i, (name, kind) in enumerate(_named(targets)) if not kind and name in known]
    if not inputs.mixed.labels or not common:
        return probs
    names = tuple(targets.names[i] for i in common)
    nothing = torch.full_like(targets.columns, -1)  # of things
    only = Targets(names, ("",) * len(common), targets.labels[:, common], nothing)
    own = replace(config, names=names, kinds=only.kinds)
    fitted = tagger.cross_fit(Views.of(features, only), features, own, inputs.run, TaggerTraining())
    rows = torch.tensor(sorted(inputs.mixed.labels), device=inputs.device)
    columns = torch.tensor([known[name] for name in names], device=inputs.device)

    def joined(told: Tensor, better: Tensor) -> Tensor:
        told = told.clone()
        told[rows[:, None], columns] = better[rows].to(told)
        return told

    low_res = joined(probs.low_res, fitted.low_res)
    return TagProbs(low_res, joined(probs.high_res, fitted.high_res))


def _named(config: TaggerConfig | Targets) -> Iterable[tuple[str, str]]:
    return zip(config.names, config.kinds, strict=True)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The files of a run that is not finished."""

    folder: Path

    @property
    def passages(self) -> Path:
        return self.folder / "passages.json"

    @property
    def tensors(self) -> Path:
        return self.folder / "seen.safetensors"

    @property
    def complete(self) -> bool:
        return self.tensors.exists()

    def write(self, words: tuple[Words, Words], drafted: Mapping[str, Tensor]) -> None:
        low_res, high_res = words
        found = {f"drafted/{name}": logits for name, logits in drafted.items()}
        for kind, some in (("low_res", low_res), ("high_res", high_res)):
            found |= {f"{kind}/indices": some.indices, f"{kind}/probs": some.probs}
        found["embeddings"] = low_res.embeddings
        with atomic(self.tensors) as partial:
            save_file({name: one.cpu().contiguous() for name, one in found.items()}, partial)

    def read(
        self, inputs: StageInputs, config: TaggerConfig
    ) -> tuple[Words, Words, dict[str, Tensor]]:
        """As `write` got them."""
        found = load_file(self.tensors, device=str(inputs.device))
        names = parts.word_names(inputs, config)
        low_res, high_res = (
            Words(names, found["embeddings"], found[f"{kind}/indices"], found[f"{kind}/probs"])
            for kind in ("low_res", "high_res")
        )
        start = "drafted/"
        drafted = {n.removeprefix(start): one for n, one in found.items() if n.startswith(start)}
        return low_res, high_res, drafted
