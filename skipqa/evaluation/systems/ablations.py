"""SKIP and the rows of the paper's ablation table: one component less, or one component alone.

Enters: a pipeline. Leaves: the same one with a part switched off, replaced by its dense
equivalent, or left as the only sparse one. `dense`, which has none of them, is here too: it is
what the single components are added to, and the strongest baseline (RA-CM3 style).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from functools import partial

from skipqa.backbones.backbone import Backbone
from skipqa.config import VerifyConfig
from skipqa.evaluation.systems.changes import (
    with_budget,
    with_components,
    with_config,
    with_stages,
)
from skipqa.evaluation.systems.pruners import random_pruning
from skipqa.nn.verifier import Verifier
from skipqa.pipeline import Pipeline
from skipqa.trace import StageRecord
from skipqa.types import Budget, KeptTokens, Question, Region, Retrieved, Verified

DENSE_PASSAGES = 16
ONE_REGION = {"max_regions": 1, "proposals": "clusters"}  # nothing to segment
NO_ZOOM = {"regions": 0}
HIGH_RES = {"min_information": 0.0}  # a closer look for every question
LOW_RES_ONLY = {"min_information": 1_000.0}  # more than any question tells
FIXED_FRACTION, FIXED_PASSAGES = 64 / 576, 8  # of the paper's row without DBC


def skip(base: Pipeline, seed: int) -> Pipeline:
    """The pipeline as it is."""
    return base


def without_pruning(base: Pipeline, seed: int) -> Pipeline:
    """Without QVS: V' = V, all of a closer look."""
    return with_budget(with_config(base, budget=HIGH_RES), tokens=base.config.encode.num_tokens)


def global_retrieval(base: Pipeline, seed: int) -> Pipeline:
    """Without RCSR: one query for all kept tokens, which may find as many as K' allows. Nothing is
    seen for itself."""
    most = max(base.config.budget.passages, base.config.budget.max_passages)
    return with_config(base, regions=ONE_REGION, zoom=NO_ZOOM, retrieve={"per_region": most})


def dense_fusion(base: Pipeline, seed: int) -> Pipeline:
    """Without BSCA: beta = 1, every token attends to every passage."""
    system = with_config(base, fuse={"edges": "fraction", "beta": 1.0})
    if base.components.fusion is None:
        return system
    layer = copy.copy(base.components.fusion)  # the same weights under another rule
    layer.rule = dataclasses.replace(layer.rule, top=1.0, degree=None)
    return with_components(system, fusion=layer)


def fixed_budget(base: Pipeline, seed: int) -> Pipeline:
    """Without DBC: the paper's fixed V' (64 of 576) and K' = 8 for every question."""
    tokens = math.ceil(FIXED_FRACTION * base.config.encode.num_tokens)
    system = with_config(with_components(base, budget=None), budget=HIGH_RES)
    return with_budget(system, tokens, FIXED_PASSAGES)


def without_draft(base: Pipeline, seed: int) -> Pipeline:
    """Without SKV's fast path: no confidence exceeds 1."""
    return with_config(base, draft={"threshold": 1.0, "counting_threshold": 1.0})


def without_verification(base: Pipeline, seed: int) -> Pipeline:
    """Without SKV's verdict: the first K' that retrieval found, in its order."""
    return with_stages(base, verify=partial(accept, read=True))


def qvs_only(base: Pipeline, seed: int) -> Pipeline:
    """V' tokens, one query, all that it finds accepted, fused and read; no fast path."""
    system = without_draft(dense_fusion(base, seed), seed)
    return with_config(
        with_budget(system, passages=DENSE_PASSAGES),
        budget=HIGH_RES,
        regions=ONE_REGION,
        zoom=NO_ZOOM,
        retrieve={"per_region": DENSE_PASSAGES},
        verify={"threshold": 0.0},
        decode={"max_passages": DENSE_PASSAGES},
    )


def dense(base: Pipeline, seed: int) -> Pipeline:
    """RA-CM3 style: all tokens, one query, all that it finds accepted, fused and read."""
    return without_pruning(qvs_only(base, seed), seed)


def rcsr_only(base: Pipeline, seed: int) -> Pipeline:
    """The dense system with a query a region, and a look at the small ones."""
    regions, retrieve = base.config.regions, base.config.retrieve
    return with_config(
        dense(base, seed),
        regions={"max_regions": regions.max_regions, "proposals": regions.proposals},
        zoom={"regions": base.config.zoom.regions},
        retrieve={"per_region": retrieve.per_region},
    )


def bsca_only(base: Pipeline, seed: int) -> Pipeline:
    """The dense system that fuses, and so reads, along edges alone."""
    fuse = base.config.fuse
    system = with_config(dense(base, seed), fuse={"edges": fuse.edges, "beta": fuse.beta})
    return with_components(system, fusion=base.components.fusion)


def accept(
    retrieved: Retrieved,
    question: Question,
    allowed: Budget,
    kept_tokens: KeptTokens,
    regions: Sequence[Region],
    backbone: Backbone,
    config: VerifyConfig,
    record: StageRecord,
    learned: Verifier | None = None,
    *,
    read: bool = False,
) -> Verified:
    """verify: as many as the budget allows stay as they were found, seen by the text encoder where
    they are `read`."""
    most = allowed.most_passages(len(retrieved.passages))
    kept, left = retrieved.passages[:most], retrieved.passages[most:]
    encoded = backbone.encode_texts([found.passage.text for found in kept] if read else [])
    record.flops, record.kept, record.dropped = encoded.flops, len(kept), len(left)
    record.why = "accepted as they were found"
    record.result = Verified(
        kept,
        (1.0,) * len(kept),
        encoded.states,
        encoded.embeddings,
        tuple((found, 0.0) for found in left),
    )
    return record.result


ABLATIONS = {
    "skip": skip,
    "skip-random-pruning": random_pruning,
    "skip-no-pruning": without_pruning,
    "skip-global-retrieval": global_retrieval,
    "skip-dense-fusion": dense_fusion,
    "skip-fixed-budget": fixed_budget,
    "skip-no-draft": without_draft,
    "skip-no-verify": without_verification,
    "qvs-only": qvs_only,
    "rcsr-only": rcsr_only,
    "bsca-only": bsca_only,
}
