"""What a fusion reader learns from: questions, the passages that answer them, and ones that do not.

Enters: gathered records and the library. Leaves: examples of two kinds, and the kept tokens of
their images. Questions of the records have the passages that retrieval found; those that hold no
answer are their hard negatives. Generated questions are for learning to find a place and to copy:
sentences of what was retrieved (`cloze.py`), made-up notes about something that an image shows
(`stage1/notes.py`), whose names no decoder can know, and what ConceptNet says of it
(`stage1/statements.py`). Nothing is encoded as words here.

Shapes: N records, B in a batch, V' kept tokens, F features, C concepts, d text width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

import torch
from torch import Tensor

from skipqa.nn.fusion_reader import LocalTokens
from skipqa.nn.grounding import places
from skipqa.stages.readers import names_shown, words_shown
from skipqa.training.pathway import cloze
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.read_today import ReadToday
from skipqa.training.pathway.records import Records
from skipqa.training.retrieval.corpora import OF_THING
from skipqa.training.stage1 import notes, statements
from skipqa.training.stage1.pocket_kb import scored

MOST_OTHERS = 12  # hard negatives that an example draws from
SEEN = 3  # words of an image, the most probable, that generated questions are about


@dataclass(frozen=True, slots=True)
class FusionExample:
    question: str
    answer: str
    gold: tuple[str, ...]  # passages that state it, or a step to it; the last one the answer
    others: tuple[str, ...]  # that do not
    scene: int  # a row of the scenes
    shown: tuple[str, ...] = ()  # the words of its image
    category: str = ""
    found: tuple[str, ...] = ()  # passages that are verified when it is answered
    scores: tuple[float, ...] = ()  # nu_j of these
    retrieved: tuple[float, ...] = ()  # and their retrieval scores
    neither: tuple[str, ...] = ()  # those of them that are neither gold nor wrong


@dataclass(frozen=True, slots=True)
class Scenes:
    """The kept tokens of many images, the most salient first, as `stages/fuse.py` has them."""

    features_NVF: Tensor
    probs_NVn: Tensor  # of the best few concepts
    concepts_NVn: Tensor
    names_NVd: Tensor
    places_NVP: Tensor
    saliency_NV: Tensor
    num_concepts: int

    def __call__(self, rows: Tensor) -> LocalTokens:
        rows = rows.to(self.features_NVF.device)
        probs_BVn = self.probs_NVn[rows].float()
        evidence_BVC = probs_BVn.new_zeros(*probs_BVn.shape[:2], self.num_concepts)
        evidence_BVC.scatter_add_(2, self.concepts_NVn[rows].long(), probs_BVn)
        return LocalTokens(
            self.features_NVF[rows].float(),
            evidence_BVC,
            self.names_NVd[rows].float(),
            self.places_NVP[rows],
            self.saliency_NV[rows],
        )

    @staticmethod
    def of(records: Records, num_concepts: int, device: torch.device) -> Scenes:
        positions = records["kept"].nonzero()[:, 1].view(len(records), -1)
        saliency = records["saliency"].float().gather(1, positions)
        order = saliency.argsort(dim=1, descending=True, stable=True)
        positions = positions.gather(1, order)
        featured = records["featured"].long()
        place_NV = torch.zeros_like(records["kept"], dtype=torch.long)
        place_NV.scatter_(1, featured, torch.arange(featured.shape[1]).expand_as(featured))

        def picked(values: Tensor, rows: Tensor) -> Tensor:
            wide = rows[..., None].expand(-1, -1, values.shape[2])
            return values.gather(1, wide).to(device)

        concepts = picked(records["concepts"], positions)
        # Those that an index has photos of come last and are known by their names alone
        trained = concepts < num_concepts
        return Scenes(
            picked(records["features"], place_NV.gather(1, positions)),
            picked(records["evidence"], positions) * trained,
            concepts * trained,
            picked(records["meaning"], positions),
            places(records.grid)[positions].to(device),
            saliency.gather(1, order).to(device),
            num_concepts,
        )


def from_records(
    context: TrainingContext, rows: Sequence[int], today: Sequence[ReadToday]
) -> list[FusionExample]:
    """A passage that holds an answer without being known as gold is neither, and so is one about
    what nothing is trained on."""
    records, found = context.records, []
    for i, read in zip(rows, today, strict=True):
        about, candidates = records.about[i], records.candidates(i)
        answers = scored(about["answers"])
        read_as = {one.row: one.text for one in candidates}
        gold = [
            read_as.get(row, records.table.passages[records.table.place[row]].text)
            for row in about["gold_rows"]
        ]
        flagged, stating = (records[name][i].tolist() for name in ("gold", "stated"))
        # FVQA names no passages: those that state its fact are known once they are found
        gold = gold or [one.text for one, right in zip(candidates, flagged, strict=False) if right]
        neither: list[str] = []
        others: list[str] = []
        for one, right, holds in zip(candidates, flagged, stating, strict=False):
            if one.text not in gold:
                unknown = right or holds or one.passage.id in context.unseen_passages
                (neither if unknown else others).append(one.text)
        found.append(
            FusionExample(
                about["question"],
                max(answers, key=lambda text: answers[text]),
                tuple(gold),
                tuple(others[:MOST_OTHERS]),
                i,
                words_of_image(context, i),
                about["category"],
                read.texts,
                read.scores,
                read.retrieved,
                tuple(neither),
            )
        )
    return found


def _texts_found(context: TrainingContext, i: int) -> list[str]:
    """For a question of the records, each once, without those that nothing is trained on."""
    found = context.records.candidates(i)
    seen = (one.text for one in found if one.passage.id not in context.unseen_passages)
    return list(dict.fromkeys(seen))


def words_of_image(context: TrainingContext, i: int) -> tuple[str, ...]:
    """As the decoder is told them: the tagger's, or the names of regions where there is none."""
    records, backbone = context.records, context.pipeline.backbone
    if found := words_shown(records.seen_words(i), context.pipeline.config.decode):
        return tuple(found)
    return tuple(names_shown(records.after_retrieve(i, len(backbone.concepts)), backbone))


def answerable(records: Records, split: str, *, known: bool = True) -> list[int]:
    """Questions of seen things whose passage is `known`, or is not, with an answer that is left
    when it is normalised."""
    return [
        i
        for i in records.select(split)
        if bool(records.about[i]["gold_rows"] or records["gold"][i].any()) == known
        and scored(records.about[i]["answers"])
    ]


def generated(
    context: TrainingContext, rows: Sequence[int], most: int, seed: int
) -> list[FusionExample]:
    """A third each of sentences of what was found for these records, notes about what their images
    show, things in turn, and statements, if there are enough."""
    shown: defaultdict[str, list[int]] = defaultdict(list)
    for i in rows:
        for name in words_of_image(context, i)[:SEEN]:
            shown[name].append(i)
    draw = Random(f"fusion {seed}")
    said = statements.read(context.pipeline.library, sorted(shown)).of_label
    stated = list(islice(_asked_of_statements(said, shown, draw), most // 3))
    noted = list(islice(_asked_of_notes(shown, draw), most // 3))
    found = list(islice(_asked_of_passages(context, rows, draw), most - len(stated) - len(noted)))
    for some in (stated, noted):
        for thing, question, answer, fact, scene in some:
            alike = [draw.choice(some) for _ in range(MOST_OTHERS // 2)]
            of_others = [other[3] for other in alike if other[0] != thing]
            near = [text for text in _texts_found(context, scene) if answer not in text.lower()]
            others = tuple(dict.fromkeys((*of_others, *near[: MOST_OTHERS // 2])))
            words = words_of_image(context, scene)
            found.append(FusionExample(question, answer, (fact,), others, scene, words))
    return found


def _asked_of_passages(
    context: TrainingContext, rows: Sequence[int], draw: Random
) -> Iterator[FusionExample]:
    """A sentence of one of the passages of each record in turn; the others are wrong unless they
    hold the answer."""
    made = -1
    while made:  # none in a whole turn: there is nothing to ask
        made = 0
        for i in draw.sample(rows, len(rows)):
            texts = _texts_found(context, i)
            chosen = draw.choice(texts) if texts else ""
            if asked := cloze.question(chosen, draw):
                made += 1
                question, answer = asked
                others = [text for text in texts if answer.lower() not in text.lower()]
                words = words_of_image(context, i)
                yield FusionExample(
                    question, answer.lower(), (chosen,), tuple(others[:MOST_OTHERS]), i, words
                )


Asked = tuple[str, str, str, str, int]  # of a thing: question, answer, fact, and an image of it


def _asked_of_notes(shown: Mapping[str, Sequence[int]], draw: Random) -> Iterator[Asked]:
    while shown:
        for thing, images in shown.items():
            note, question, answer = notes.write(thing, draw)
            yield thing, question, answer.lower(), note, draw.choice(images)


def _asked_of_statements(
    said: Mapping[str, Sequence[statements.Statement]],
    shown: Mapping[str, Sequence[int]],
    draw: Random,
) -> Iterator[Asked]:
    """One statement about each thing in turn, until all were asked for."""
    for turn in range(statements.BEST):
        for thing, some in said.items():
            if turn < len(some) and (wordings := OF_THING.get(some[turn].between)):
                question = draw.choice(wordings).format(it=f"this {thing}")
                image = draw.choice(shown[thing])
                yield thing, question, some[turn].answer, some[turn].sentence, image
