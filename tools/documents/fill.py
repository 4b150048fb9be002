"""Fill the result blocks of a document.

A document holds blocks between `<!-- results: NAME -->` and `<!-- end -->`. Enters: its text, a
folder of results files and one of runs. Leaves: the text with each block made anew from the newest
file of its subject, or from the runs. What stands outside the blocks is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from skipqa.errors import UserError, choices
from skipqa.evaluation.results import Results, newest
from tools.documents import (
    analysis,
    claims,
    comparison,
    desk,
    index,
    quality,
    serving,
    speed,
    training,
)

BLOCK = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

BLOCKS: dict[str, Callable[[Results], str]] = {
    "ask": speed.ask,
    "kernels": speed.kernels,
    "pathway": speed.pathway,
    "routing-overhead": speed.routing_overhead,
    "index-recall": index.recall,
    "index-peers": index.peers,
    "index-growth": index.growth,
    "index-kill": index.kill,
    "corpora": index.corpora,
    "own-documents": index.own_documents,
    "pocket-kb": index.pocket_kb,
    "class-gloss": quality.class_gloss,
    "seeing": quality.seeing,
    "saliency-boxes": quality.saliency_boxes,
    "grounding": quality.grounding,
    "reading": quality.reading,
    "rendered-text": quality.rendered_text,
    "verifying": quality.verifying,
    "okvqa": partial(quality.systems, "OK-VQA val"),
    "desk-okvqa": partial(quality.systems, "OK-VQA val"),
    "fvqa": partial(quality.systems, "FVQA val"),
    "crowded": partial(quality.systems, "crowded, val"),
    "crowded-pruners": partial(quality.systems, "crowded, val"),
    "unseen": partial(quality.systems, "unseen, val"),
    "unseen-pruners": partial(quality.systems, "unseen, val"),
    "desk": desk.desk,
    "multihop": quality.multihop,
    "stage1": training.stage1,
    "verifier": training.verifier,
    "budget": training.budget,
    "adaptive-budget": training.adaptive_budget,
    "small-things": training.small_things,
    "fast-path-val": training.fast_path,
    "confidence-val": training.confidence,
    "sparse-encoder": training.sparse_encoder,
    "batches": serving.batches,
    "serve-load": serving.serve_load,
    "suites": serving.suites,
    "serve-attacks": serving.serve_attacks,
    "poisoned-passages": serving.poisoned,
    "retrievers": comparison.retrievers,
    "gates": comparison.gates,
    "corpus-swap": comparison.corpus_swap,
    "longtail": comparison.longtail,
    "failures": analysis.failures,
    "sensitivity": analysis.sensitivity,
}

# Made from runs and several results files
FROM_RUNS: dict[str, Callable[[Path, Path], str]] = {
    "claims": claims.page,
    "theory": analysis.theory,
}


def subject(block: str) -> str:
    """The name of the results files that a block is made from."""
    return block.replace("-", "_")


def fill(text: str, results: Path, runs: Path) -> str:
    """The document with every block written anew."""

    def render(match: re.Match[str]) -> str:
        name = match["name"]
        if name in FROM_RUNS:
            body = FROM_RUNS[name](runs, results)
        elif name in BLOCKS:
            body = BLOCKS[name](newest(results, subject(name)))
        else:
            known = choices(name, [*BLOCKS, *FROM_RUNS])
            raise UserError(f"no block {name!r}; there is {known}")
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(render, text)
