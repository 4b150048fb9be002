"""SKIP and the rows of the paper's ablation table: one component less, or one component alone.

Enters: a pipeline. Leaves: the same one with a part switched off, replaced by its dense
equivalent, or left as the only sparse one. `dense`, which has none of them, is here too: the single
components are added to it, and it is the strongest baseline (RA-CM3 style).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import partial

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.presets.pocket import Pocket
from skipqa.errors import UserError
from skipqa.evaluation.systems.budgets import with_budget
from skipqa.evaluation.systems.pruners import random_pruning, regions_alike
from skipqa.pipeline import Pipeline
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Verified

DENSE_PASSAGES = 16
ONE_REGION = {"max_regions": 1, "proposals": "clusters"}  # nothing to segment
NO_ZOOM = {"regions": 0}
HIGH_RES = {"min_information": 0.0}  # for every question
LOW_RES_ONLY = {"min_information": 1_000.0}  # more than any question carries
WITH_SOURCES = "skip-adr"
FIXED_FRACTION, FIXED_PASSAGES = 64 / 576, 8  # of the paper's row without DBC


def skip(base: Pipeline, seed: int) -> Pipeline:
    """The pipeline as it is."""
    return base


def with_sources(base: Pipeline, seed: int) -> Pipeline:
    """SKIP-ADR: other sources are asked for names that the library lacks (`--source`)."""
    if not base.sources:
        raise UserError(f"{WITH_SOURCES} asks knowledge sources: name them with --source")
    return base


def rule_saliency(base: Pipeline, seed: int) -> Pipeline:
    """QVS by its training-free rule, at the same V'."""
    return regions_alike(base).with_components(grounding=None, saliency=None)


def without_pruning(base: Pipeline, seed: int) -> Pipeline:
    """Without QVS: V' = V, all tokens of the high-resolution view."""
    return with_budget(base.with_config(budget=HIGH_RES), tokens=base.config.encode.num_tokens)


def global_retrieval(base: Pipeline, seed: int) -> Pipeline:
    """Without RCSR: one query for all kept tokens, which may find as many as K' allows, and no
    zoom."""
    most = max(base.config.budget.passages, base.config.budget.max_passages)
    return base.with_config(regions=ONE_REGION, zoom=NO_ZOOM, retrieve={"per_region": most})


def dense_fusion(base: Pipeline, seed: int) -> Pipeline:
    """Without BSCA: beta = 1, every token attends to every passage."""
    found = {name: getattr(base.components, name) for name in ("fusion", "fusion_reader")}
    layers = {name: copy.copy(layer) for name, layer in found.items() if layer is not None}
    for layer in layers.values():  # the same weights under another rule
        layer.rule = dataclasses.replace(layer.rule, top=1.0, degree=None)
    system = base.with_config(fuse={"edges": "fraction", "beta": 1.0})
    return system.with_components(**layers)


def fixed_budget(base: Pipeline, seed: int) -> Pipeline:
    """Without DBC: the paper's fixed V' (64 of 576) and K' = 8 for every question."""
    tokens = math.ceil(FIXED_FRACTION * base.config.encode.num_tokens)
    system = base.with_components(budget=None).with_config(budget=HIGH_RES)
    return with_budget(system, tokens, FIXED_PASSAGES)


def without_draft(base: Pipeline, seed: int) -> Pipeline:
    """Without SKV's fast path: no confidence exceeds 1."""
    return base.with_config(draft={"threshold": 1.0, "counting_threshold": 1.0})


def without_verification(base: Pipeline, seed: int) -> Pipeline:
    """Without SKV's verdict: the first K' that retrieval found, in its order."""
    return base.with_stages(verify=partial(accept_all, encode=True))


def one_round(base: Pipeline, seed: int) -> Pipeline:
    """Without SKIP-Iter: H = 1."""
    return base.with_config(budget={"rounds": 1})


def two_rounds(base: Pipeline, seed: int) -> Pipeline:
    """SKIP-Iter with H = 2 for every question."""
    return base.with_config(budget={"rounds": 2})


def three_rounds(base: Pipeline, seed: int) -> Pipeline:
    """SKIP-Iter with H = 3 for every question."""
    return base.with_config(budget={"rounds": 3})


def qvs_only(base: Pipeline, seed: int) -> Pipeline:
    """V' tokens, one query, all that it finds accepted, fused and read; no fast path. A verifier
    still ranks what is read: one of embeddings, since all passages are embedded anyway."""
    system = one_round(without_draft(dense_fusion(base, seed), seed), seed)
    system = system.with_components(pair_verifier=None)
    return with_budget(system, passages=DENSE_PASSAGES).with_config(
        budget=HIGH_RES,
        regions=ONE_REGION,
        zoom=NO_ZOOM,
        retrieve={"per_region": DENSE_PASSAGES, "excerpt_words": 0},
        verify={"threshold": 0.0},
        decode={"passages": "text", "max_passages": DENSE_PASSAGES},
    )


def dense(base: Pipeline, seed: int) -> Pipeline:
    """RA-CM3 style: all tokens, one query, all that it finds accepted, ranked, fused and read; by a
    reader of its own where one was trained (`skipqa train reader --set many=1`)."""
    system = without_pruning(qvs_only(base, seed), seed)
    reader, backbone = base.components.dense_reader, base.backbone
    if reader is None or not isinstance(backbone, Pocket):
        return system
    return system.with_backbone(backbone.with_reader(reader))


def rcsr_only(base: Pipeline, seed: int) -> Pipeline:
    """The dense system with one query per region, and zoom."""
    regions, retrieve = base.config.regions, base.config.retrieve
    return dense(base, seed).with_config(
        regions={"max_regions": regions.max_regions, "proposals": regions.proposals},
        zoom={"regions": base.config.zoom.regions},
        retrieve={"per_region": retrieve.per_region},
    )


def bsca_only(base: Pipeline, seed: int) -> Pipeline:
    """The dense system that fuses, and so reads, only along edges."""
    fuse, found = base.config.fuse, base.components
    system = dense(base, seed).with_config(fuse={"edges": fuse.edges, "beta": fuse.beta})
    system = system.with_components(fusion=found.fusion, fusion_reader=found.fusion_reader)
    return system.with_config(decode={"passages": base.config.decode.passages})


class AcceptAll:
    """verify: as many as the budget allows stay as they were found; `encode` them for fusion."""

    def __init__(self, backbone: Backbone, encode: bool) -> None:
        self.backbone, self.encode = backbone, encode

    def __call__(self, state: State, record: StageRecord) -> State:
        found = state.retrieved.passages
        most = state.budget.most_passages(len(found))
        kept, left = found[:most], found[most:]
        encoded = self.backbone.encode_texts([p.passage.text for p in kept] if self.encode else [])
        record.flops, record.kept, record.dropped = encoded.flops, len(kept), len(left)
        record.why = "accepted as they were found"
        verified = Verified(
            kept,
            (1.0,) * len(kept),
            encoded.states,
            encoded.embeddings,
            tuple((passage, 0.0) for passage in left),
        )
        return state.add(verified=verified)


def accept_all(parts: Parts, *, encode: bool) -> AcceptAll:
    return AcceptAll(parts.backbone, encode)


ABLATIONS = {
    "skip": skip,
    WITH_SOURCES: with_sources,
    "skip-rule-saliency": rule_saliency,
    "skip-random-pruning": random_pruning,
    "skip-no-pruning": without_pruning,
    "skip-global-retrieval": global_retrieval,
    "skip-dense-fusion": dense_fusion,
    "skip-fixed-budget": fixed_budget,
    "skip-no-draft": without_draft,
    "skip-no-verify": without_verification,
    "skip-one-round": one_round,
    "skip-iter": two_rounds,
    "skip-iter-3": three_rounds,
    "qvs-only": qvs_only,
    "rcsr-only": rcsr_only,
    "bsca-only": bsca_only,
}
