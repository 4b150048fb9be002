"""What retrieval finds for the questions of stage I, which its reader is trained on.

Enters: the questions with the cross-fitted words of their photos, a library, and what was learned
before this stage of asking it. Leaves: excerpts by question, the best first. Perceptual questions
need none, but retrieval does not always know: some of them get what it finds, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skipqa.backbones.networks import sparse_query
from skipqa.components import Components
from skipqa.config import RegionsConfig, RetrieveConfig
from skipqa.knowledge import Library
from skipqa.nn.concept_prior import ConceptPriorHead
from skipqa.training.example import TrainExample
from skipqa.training.retrieval.found import Asked, Finder
from skipqa.training.stage1.drafter import TRAIN_GROUPS
from skipqa.training.stage1.inputs import StageInputs
from skipqa.training.stage1.reading import MANY
from skipqa.training.stage1.words import Words, embed

SHOWN = RegionsConfig().concepts  # names of what an image shows that take part in a query
*_, PERCEPTUAL = TRAIN_GROUPS
EVERY = 5  # one perceptual question in so many
AT_ONCE = 1_024  # questions whose priors are computed together


@dataclass(frozen=True, slots=True)
class Retrieval:
    open_library: Callable[[], Library]
    components: Components  # of which sparse_query and concept_prior are used, where they are
    config: RetrieveConfig

    def with_whole_passages(self) -> Retrieval:
        return replace(self, config=replace(self.config, excerpt_words=0))


def find_passages(
    inputs: StageInputs, words: Words, retrieval: Retrieval
) -> dict[int, tuple[str, ...]]:
    """By row of the examples."""
    rows = _rows(inputs)
    examples = [inputs.mixed.examples[row] for row in rows]
    delta, device = retrieval.components.sparse_query, inputs.device
    network = None if delta is None else sparse_query.trained(delta).to(device)
    finder = Finder(retrieval.open_library, network, retrieval.config, device)
    priors = _priors(inputs, examples, words, retrieval.components.concept_prior)
    asked = [
        Asked(example.question, shown(words, example.photo, prior_N))
        for example, prior_N in zip(examples, priors, strict=True)
    ]
    found = finder(asked, MANY, inputs.run.counted("finding passages"))
    return dict(zip(rows, found, strict=True))


def _rows(inputs: StageInputs) -> list[int]:
    """All questions that are trained on or scored; of the perceptual ones some."""
    rows: list[int] = []
    for name, group in inputs.groups.items():
        rows += group[:: EVERY if name == PERCEPTUAL else 1].tolist()
    return rows


def _priors(
    inputs: StageInputs,
    examples: Sequence[TrainExample],
    words: Words,
    head: ConceptPriorHead | None,
) -> Iterable[Tensor]:
    """[names] of each question: how much likelier it makes each of the words' names."""
    if head is None:
        return (torch.ones(len(words.names)) for _ in examples)
    networks = inputs.networks
    questions = [example.question for example in examples]
    text = networks.text.to(inputs.device)
    embedded = embed(text, networks.text_tokenizer, questions)
    head = copy.deepcopy(head).to(inputs.device)
    projected = head.of_concept(words.embeddings.float().to(inputs.device))
    chunks = (head.weights(some, projected).cpu() for some in embedded.split(AT_ONCE))
    return (one for chunk in chunks for one in chunk)


def shown(words: Words, photo: int, prior_N: Tensor) -> tuple[tuple[str, float], ...]:
    """What an image shows and the question is about, by Bayes' rule; each name once."""
    indices, probs = words.indices[photo].cpu(), words.probs[photo].cpu()
    posterior = probs * prior_N[indices]
    best = posterior.topk(min(SHOWN, len(posterior)))
    total = float(best.values.sum())
    found: dict[str, float] = {}
    for place, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        name = words.names[int(indices[place])]
        found[name] = found.get(name, 0.0) + (value / total if total > 0 else 0.0)
    return tuple(found.items())
