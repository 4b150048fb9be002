"""Result blocks: found, filled, left alone; and what each makes of a results file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.evaluation.results import newest
from tools.documents.fill import BLOCKS, fill
from tools.documents.training import STAGE1_SETS

HEADER = {
    "machine": {"cpu": "abacus", "cores": 2},
    "python": "3.11.0",
    "versions": {"torch": "2.0"},
    "commit": "abc1234",
    "command": "made.py",
    "date": "2026-11-15",
}


SYSTEM = {
    "num_questions": 300,
    "accuracy": {"mean": 0.373, "low": 0.33, "high": 0.42},
    "recall@4": {"mean": 0.6, "low": 0.5, "high": 0.7, "count": 200},
    "fast_path_rate": 0.4,
    "tokens_mean": 64.0,
    "passages_mean": 6.0,
    "flops_mean": 68e9,
    "latency_ms": {"p50": 1_100.0, "p95": 1_500.0},
    "peak_memory_bytes": 1_340_000_000,
}


DESK_SYSTEM = {
    "latency_ms": {"p50": 57.0, "p95": 192.0, "mean": 74.0},
    "times_faster": {"mean": 2.94},
    "flops": 187e9,
    "times_fewer_flops": 10.96,
    "cache_bytes": {"mean": 1.68e6},
    "cache_saved": {"mean": 0.91},
    "drafted": 0.19,
    "accuracy": {"mean": 0.391, "low": 0.31, "high": 0.47},
    "differences": {},
}


def interval(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "count": 10}


def held(few: int) -> dict[str, float]:
    first = {f"first_{few}": 0.252, "first_20": 0.3822}
    return {"questions": 1_643, **first, f"control_{few}": 0.0164, "control_20": 0.0377}


def load(clients: int) -> dict[str, Any]:
    return {
        "clients": clients,
        "per_second": 0.1 * clients,
        "drafted": 10,
        "answered": 40,
        "latency_s": {"draft": {"p50": 0.5, "p95": 2.0}},
        "refusals": {"429": 3},
        "errors": {},
    }


def stage1_metrics(joint: float) -> dict[str, Any]:
    routed = {"rate": 0.4, "full": joint, "accuracy": joint - 0.01}
    accuracies = {"few": 0.325, "unread": 0.31, "blind": 0.2}
    forms = {form: dict.fromkeys(STAGE1_SETS, mean) for form, mean in accuracies.items()}
    return {
        "drafter": {"shipped": dict.fromkeys(STAGE1_SETS, 0.3)},
        "reader": {
            "shipped": forms,
            "joint": {name: {"accuracy": joint} for name in STAGE1_SETS},
            "fast_path": {"threshold": 0.3} | dict.fromkeys(STAGE1_SETS, routed),
        },
    }


DELTA = {"difference": -0.02, "low": -0.05, "high": 0.01, "p_value": 0.2, "count": 10}
GATE = {
    "auroc_right": interval(0.8),
    "auroc_enough": interval(0.7),
    "accuracy": interval(0.45),
}
ENCODED = {"scales": [256, 512], "locality": 0.5, "relevance": "cosine"}
LOOKED = ENCODED | {"all": interval(0.4), "small": interval(0.3), "less": DELTA}

SYSTEMS = ("skip fused", "skip read")
TIMES = {"p50": 2.0, "p99": 3.0}
POINT = {"recall_at_4": 0.99, "8_region_queries_ms": TIMES}
SEARCHED = {"passages": 1_500, "local": POINT, "compiled": POINT}

RECALLED_OF_300 = {"mean": 0.373, "low": 0.33, "high": 0.42, "count": 300}
RECALLED = {
    encoder: {"name_as_terms": dict.fromkeys(("all", "country", "new"), RECALLED_OF_300)}
    for encoder in ("lexical", "learned")
}
ROUTED = {
    "threshold": 0.35,
    "questions": 1_250,
    "rate": 0.313,
    "full": 0.362,
    "accuracy": 0.356,
    "gain": {"difference": -0.006, "low": -0.017, "high": 0.005},
}
ADAPTIVE = {
    "questions": 300,
    "no_retrieval": 0.75,
    "adaptive": {"score": 0.37, "giga_flops": 17.5},
    "fixed_at_equal_flops": 0.35,
    "gain": {"mean": 0.02, "low": 0.005, "high": 0.035},
}
JUDGED = {"f1": 0.857, "precision": 0.859, "recall": 0.856}
# block: results, and a line that must be made of them
MADE: dict[str, tuple[dict[str, Any], str]] = {
    "ask": (
        {"runs": [{"wall_s": w, "pipeline_s": 1, "peak_gb": 1} for w in (2, 9, 3)]},
        "| `skipqa ask`, from start to exit | 3.00 s | 9.00 s |",
    ),
    "class-gloss": (
        {
            name: {"photos": 4, "gloss_in_first_4": 0.75, "by_kind": {"food": [3, 4]}}
            for name in ("all", "held-out")
        },
        "| all | 4 | **75.0 %** | 4 | **75.0 %** |",
    ),
    "seeing": (
        {
            "photos": 10,
            "sizes": [
                {"size": 256} | dict.fromkeys(("top_1", "top_4", "confidence"), interval(0.5))
            ],
        },
        "| 256 | 50.0 (40 to 60) | 50.0 (40 to 60) | 0.50 |",
    ),
    "saliency-boxes": (
        {"photos": 10, "chance": 0.2, "reference": 0, "rows": [LOOKED, LOOKED]},
        "| 256, 512 | 0.5 | cosine | 0.400 | 0.300 | -0.020 (-0.050 to +0.010) |",
    ),
    "grounding": (
        {
            "all": {"rule": {"questions": 10, "points": interval(0.3), "kept": interval(0.4)}},
            "place": {
                "rule": {"questions": 4, **dict.fromkeys(("points", "kept"), interval(0.2))},
                "without features": {"questions": 4},
                "grounding": {
                    "questions": 4,
                    **dict.fromkeys(("points", "kept", "which"), interval(0.6)),
                },
            },
        },
        "| place | grounding | 60.0 (50 to 70) | 60.0 (50 to 70) | 60.0 (50 to 70) |",
    ),
    "reading": (
        {
            "questions": ["a", "b", "c"],
            "given_gloss": [{"prompt": "chat", "free": 1, "quoting": 2}],
            "given_photo": 1,
            "wrong_without_gloss": 2,
        },
        "Of the 2 wrong answers about photos, 2 had lost the gloss before it could be read.",
    ),
    "verifying": (
        {
            "photos": 12,
            "candidates": 6,
            "gloss_among_candidates": 10,
            "weights": [
                {"weight": weight, "first": interval(0.8), "in_two": interval(0.9)}
                for weight in (2.0, "score alone")
            ],
        },
        "| 2 | 80.0 (70 to 90) | 90.0 (80 to 100) |",
    ),
    "kernels": (
        {
            "layers": [
                {"batch": b, "order": order, "passages": k, "times_faster": k + b / 10}
                for b in (1, 8)
                for order in ("project", "absorb")
                for k in (6, 16)
            ],
            "attention": [
                {"batch": b, "tokens": t, "density": d, "times_faster_with_schedule": 1 + d}
                for b in (1, 8)
                for t in (64, 576)
                for d in (0.05, 0.1, 0.25)
            ],
            "backward": [{"batch": b, "times_faster": 1.5} for b in (8, 32)],
        },
        "| fusion layer, K' = 6, project | 6.1x | 6.8x |",
    ),
    "pathway": (
        {
            "load": {"draft_rate": 0.5},
            "summary": {
                "dense_ms": 80.0,
                "latency_ms": {
                    key: {"0.5": {"mean": 20.0, "times_faster": 4.0}} for key in SYSTEMS
                },
                "throughput": {f"batch 8, {name}": {"times_more": 3.0} for name in SYSTEMS},
                "flops": {key: {"times_fewer": 5.0} for key in SYSTEMS},
                "kv_cache": {key: {"saved": 0.625} for key in SYSTEMS},
            },
        },
        "| skip fused | 20.0 | 4.00x | 3.00x | 5.00x | 62% |",
    ),
    "routing-overhead": (
        {
            "A": {"total_ms": 800.0, "routing_ms": 8.0, "fraction": 0.01},
            "trained": {
                "total_ms": 800.0,
                "routing_ms": 8.0,
                "fraction": 0.01,
                "fraction_with_encoding": 0.125,
            },
        },
        "| trained | 800 | 8.0 | 1.00% | 12.50% |",
    ),
    "failures": (
        [
            {
                "run": "skip",
                "on": "pocket-kb/val.jsonl, pocket-kb, crowded",
                "asked": 10,
                "wrong": 4,
                "buckets": [
                    {"bucket": "misread", "wrong": 4, "of_wrong": 1.0, "meaning": "read wrongly"},
                    {"bucket": "unknown", "wrong": 0, "of_wrong": 0.0, "meaning": "who knows"},
                ],
            }
        ],
        "| misread | read wrongly | 4 (100 %) |",
    ),
    "sensitivity": (
        {
            "questions": 9,
            "settings": {
                "beta": {
                    "default": 0.1,
                    "values": [
                        {
                            "value": value,
                            "accuracy": interval(0.5),
                            "less_default": {"difference": 0.0, "low": -0.01, "high": 0.01},
                        }
                        for value in (0.1, 0.2)
                    ],
                }
            },
        },
        "| beta | **0.1** | 50.0 (40 to 60) | +0.0 (-1.0 to +1.0) |",
    ),
    "index-recall": (
        {
            "default corpus": {"build_seconds": 12, **SEARCHED},
            "clustered synthetic": SEARCHED,
            "known items": {"lexical impacts": 0.9, "okapi bm25": 0.8},
        },
        "| default corpus | `local:` | 1,500 | 0.990 | 2.0 | 3.0 |",
    ),
    "index-peers": (
        {
            "engines": {
                "Sorter": {
                    "build_seconds": 5.0,
                    "bytes_a_passage": 1_234,
                    "resident_mb_after_queries": 56,
                    "points": [POINT | {"recall_at_4": 0.90}, POINT | {"one_query_ms": TIMES}],
                }
            }
        },
        "| Sorter | 0.990 | 2 / 3 | 2 / 3 | 5 | 1,234 | 56 |",
    ),
    "index-growth": (
        {
            "sizes": {
                "1500": {
                    "search_bytes_a_passage": 800.0,
                    "resident_gb_after_queries": 0.5,
                    "resident_gb_after_reading_every_vector": 0.7,
                    **SEARCHED,
                }
            },
            "109 million": {"arithmetic": "one and one is two"},
        },
        "| 1,500 | 0.990 | 2.0 | 2.0 | 800 | 0.5 | 0.7 |",
    ),
    "pocket-kb": (
        {
            "seed": 1,
            "counts": {
                "rows": {"train": 8_000, "val": 2_000},
                "pictures": 10_000,
                "passages_of_its_own": 1_300,
                "passages_in_all": 158_000,
                "category": {"dog": {"train": 8_000, "val": 2_000}},
                "subset": {"small": {"train": 80}},
                "asked_by": {"place": {"train": 40, "val": 4}},
                "gallery": 300,
                "unseen_entities": {"dog": 20},
            },
            "photos_mb": 60.1,
            "build_cpu_seconds": 50.2,
            "index_cpu_seconds": 30.0,
            "checksum": "0123456789abcdef0123",
            "named_recall": {
                "category": {"dog": 0.876, "all": 0.9},
                "subset": {},
                "asked_by": {"place": 0.5},
            },
        },
        "| dog | 8,000 | 2,000 | 88 % |",
    ),
    "okvqa": (
        {
            "systems": {"skip": SYSTEM},
            "timed": {**HEADER, "num_questions": 150},
        },
        "| skip | 37.3 (33 to 42) | 60.0 (50 to 70) | 40% | 64 | 6.0 | 68 | 1,100 / 1,500 | 1.34 |",
    ),
    "desk-okvqa": (
        {"systems": {"skip": SYSTEM | {"latency_ms": None, "peak_memory_bytes": None}}},
        "| skip | 37.3 (33 to 42) | 60.0 (50 to 70) | 40% | 64 | 6.0 | 68 |",
    ),
    **{
        name: (
            {"systems": {"skip+tome": SYSTEM}},
            "| skip+tome | 37.3 (33 to 42) | 60.0 (50 to 70) | 40% | 64 | 6.0 | 68 | 1,100 / 1,500 "
            "| 1.34 |",
        )
        for name in ("crowded", "crowded-pruners", "unseen", "unseen-pruners")
    },
    "fvqa": (
        {"systems": {"skip": SYSTEM}},
        "| skip | 37.3 (33 to 42) | 60.0 (50 to 70) | 40% | 64 | 6.0 | 68 | 1,100 / 1,500 | 1.34 |",
    ),
    "desk": (
        {
            "answered": 122,
            "weights": "bfloat16",
            "summary": {
                "parts": {"all": {"questions": 122, "systems": {"skip": DESK_SYSTEM}}},
                "throughput": None,
            },
        },
        "| skip | 57 / 192 | 74 | 2.94x | 187 | 10.96x | 1.7 | 91% |",
    ),
    "multihop": (
        {
            "fraction_multihop": 0.067,
            "multihop": {
                "one round": {"questions": 223, "accuracy": interval(0.4), "flops": 40e9},
                "as needed": {
                    "questions": 223,
                    "accuracy": interval(0.6),
                    "flops": 52e9,
                    "more than one round": {"difference": 0.2, "low": 0.1, "high": 0.3},
                    "cost of one round": 1.3,
                    "hop2": 0.5,
                    "right": 0.55,
                },
            },
            "asked_again": {"multihop": 0.97, "others": 0.012},
            "cost_of_asking_again": 1.02,
        },
        "| as needed | 60.0 (50 to 70) | +20.0 (+10.0 to +30.0) | 52.0 | 1.30 | 50 % | 55 % |",
    ),
    "stage1": (
        {
            "examples": 60_000,
            "photos": 28_000,
            "seeds": {"2026": stage1_metrics(0.36), "42": stage1_metrics(0.38)},
        },
        "| OK-VQA val | 20.0 (20.0 to 20.0) | 31.0 (31.0 to 31.0) | 30.0 (30.0 to 30.0) "
        "| 32.5 (32.5 to 32.5) | 37.0 (36.0 to 38.0) |",
    ),
    "verifier": (
        {
            split: {
                "passages": 1_639,
                "by_corpus": {"simplewiki": {"passages": 20, "trained": JUDGED}},
                **dict.fromkeys(("trained", "training_free"), JUDGED),
            }
            for split in ("held-out", "val")
        },
        "| held-out, passages of simplewiki | 20 | 0.857 | 0.859 | 0.856 |",
    ),
    "budget": (
        {"held-out": ADAPTIVE | {"by_source": {"okvqa": ADAPTIVE}}},
        "| held-out, okvqa | 300 | 25 | 17.5 | 37.0 | 35.0 | +2.0 (+0.5 to +3.5) |",
    ),
    "adaptive-budget": (
        {"seed": 1, "all": ADAPTIVE | {"drafted": 0.15}},
        "| all | 300 | 10 | 17.5 | 37.0 | 35.0 | +2.0 (+0.5 to +3.5) |",
    ),
    "own-documents": (
        {
            "seed": 1,
            "alone": {
                "questions": 120,
                **dict.fromkeys(("found", "kept", "read", "right"), RECALLED_OF_300),
            },
        },
        "| alone | 37.3 (33 to 42) | 37.3 (33 to 42) | 37.3 (33 to 42) |",
    ),
    "rendered-text": (
        {
            "rendered": {
                "questions": {"all": 300},
                "accuracy": {
                    "all": dict.fromkeys(("none", "gated", "whole", "perfect"), RECALLED_OF_300)
                },
                **{
                    cost: {"none": 0.0, "gated": 4.5, "whole": 13.3, "perfect": 3.0}
                    for cost in ("gflops", "ms", "all_gflops")
                },
                "of_whole": {"accuracy": 0.97, "flops": 0.34, "ms": 0.2},
                "opens": {"where text is needed": 0.98, "where it is not": 0.0},
            },
            "okvqa": {
                name: {
                    "questions": 100,
                    "accuracy": dict.fromkeys(("none", "gated"), RECALLED_OF_300),
                    "gated_less_none": {"difference": 0.0, "low": 0.0, "high": 0.0},
                    "reads": 0.1,
                }
                for name in ("ocr", "others")
            },
        },
        "| GFLOPs of reading | 0.0 | 4.5 | 13.3 | 3.0 |",
    ),
    "small-things": (
        {
            "recall_at": 4,
            "small": {
                "questions": 300,
                "recall": dict.fromkeys(("low_res", "skip"), RECALLED_OF_300),
                "skip_less": {"low_res": {"difference": 0.2, "low": 0.15, "high": 0.25}},
            },
            "others": {
                "questions": 200,
                "recall": dict.fromkeys(("low_res", "skip"), RECALLED_OF_300),
            },
        },
        "| low-resolution image | 37.3 (33 to 42) | +20.0 (+15.0 to +25.0) | 37.3 (33 to 42) |",
    ),
    "fast-path-val": (
        {
            "shipped": {"all": ROUTED, "okvqa": {"questions": 1_000}},
            "by_threshold": [ROUTED | {"threshold": at} for at in (0.2, 0.5)],
        },
        "| **0.35** | 31.3 | 36.2 | 35.6 | -0.6 (-1.7 to +0.5) |",
    ),
    "confidence-val": (
        {
            name: {
                "drafted": {"questions": 100, "confidence": 0.52, "score": 0.5, "ece": 0.04},
                "looked_up": {"questions": 0},
            }
            for name in ("all", "okvqa", "vqav2", "pocket-kb")
        },
        "| OK-VQA | drafted | 100 | 52.0 | 50.0 | 4.0 |",
    ),
    "sparse-encoder": (
        {
            **dict.fromkeys(("named", "unseen_words", "unseen_words_of_fields"), RECALLED),
            "pipeline": {"both, regions": {"pipeline": {"all": RECALLED_OF_300}}},
        },
        "| flags in unseen words (300) | 37.3 (33 to 42) | 37.3 (33 to 42) |",
    ),
    "index-kill": (
        {"kills": 3, "failures": 1, "operations": {"build": {"kills": 2}, "add": {"kills": 1}}},
        "3 times `kill -9` at random moments (2 in build, 1 in add): 1 failures.",
    ),
    "corpora": (
        {
            "corpora": {
                "wordnet": {
                    "passages": 117_697,
                    "words": 1_730_730,
                    "index_bytes": 33_500_455,
                    "build_seconds": 10.04,
                }
            },
            "okvqa_named": {"wordnet": held(5)},
            **{name: {"wordnet": held(4)} for name in ("fvqa", "fvqa_named")},
        },
        "| wordnet | 25.2 / 38.2 (1.6 / 3.8) | 25.2 / 38.2 (1.6 / 3.8) | 25.2 / 38.2 (1.6 / 3.8) |",
    ),
    "batches": (
        {
            "1": {"speed_up": 0.7},
            "drafts": {"at_once": 8, "speed_up": 1.4},
            "decoding": {"4": {"speed_up": 1.25, "same_answers": 24, "largest_difference": 1e-5}},
            "questions": 24,
        },
        "| decoder, 4 questions | 1.25x | 24 of 24 answers the same, log-probabilities within "
        "1e-05 |",
    ),
    "serve-load": (
        {
            "workers": 2,
            "one_client": load(1),
            "many_clients": load(32),
            "throughput_ratio": 1.63,
            "memory": {
                "requests": 2_000,
                "mb_per_1000_requests": {"anonymous": 0.5},
                "mb": {name: {"100%": {"rss": 83, "pss": 1_000}} for name in ("server", "worker")},
            },
            "killed_worker": {"in_flight": 16, "errors": {}, "seconds_until_all_workers": 6.6},
            "stopped": {"in_flight": 16, "errors": {"closed": 2}, "exit_code": 0},
        },
        "| 32 | 3.20 | 10 of 40 | 0.50 / 2.00 |  | 3 | 0 |",
    ),
    "suites": (
        {
            "suites": [
                {"suite": "curl", "version": "8", "passed": 4, "failed": [], "skipped": [{}, {}]}
            ]
        },
        "| curl | 8 | 4 | 0 | 2 |",
    ),
    "serve-attacks": (
        {
            "attacks": [
                {
                    "kind": "urls",
                    "tries": tries,
                    "outcomes": {"400": tries},
                    "slowest_ms": 7 * tries,
                    "server_mb": 80,
                    "worker_mb": 1_300,
                }
                for tries in (2, 3)
            ],
            "faults": [],
        },
        "| urls | 2 | 5 | 400 × 5 | 21 | 80 | 1,300 |",
    ),
    "poisoned-passages": (
        {
            "questions": 200,
            "systems": {
                system: {
                    condition: {"asr": interval(0.5), "accuracy": interval(0.3)}
                    for condition in ("clean", "lying 1")
                }
                for system in ("skip", "skip-no-verify", "two-documents", "two-corpora")
            },
        },
        "| clean | 30 (20 to 40) | 30 (20 to 40) | 30 (20 to 40) | 30 (20 to 40) |",
    ),
    "retrievers": (
        {
            "questions": 300,
            "read": 120,
            "recall_at": 4,
            "passages": 1_360,
            "systems": {
                "skip": {"recall": interval(0.7), "score": interval(0.6), "retrieval_gflops": 0.5},
                "skip-dpr": {
                    "recall": interval(0.5),
                    "recall_less_skip": DELTA,
                    "score": interval(0.4),
                    "score_less_skip": DELTA,
                    "retrieval_gflops": 2.15,
                },
            },
        },
        "| skip-dpr | 50.0 (40 to 60) | -2.0 (-5.0 to +1.0) | 40.0 (30 to 50) | "
        "-2.0 (-5.0 to +1.0) | 2.1 |",
    ),
    "gates": (
        {
            "trained_on": 400,
            "drafted": 0.4,
            "gflops": {"confidence": 1.36, "probe": 8.1},
            **{
                name: {
                    "questions": 200,
                    "draft": interval(0.4),
                    "looked_up": interval(0.5),
                    "gates": {
                        "confidence": GATE,
                        "probe": GATE | {"accuracy_less_confidence": DELTA},
                    },
                }
                for name in ("okvqa", "vqav2", "all")
            },
        },
        "| VQAv2 val | probe | 80.0 (70 to 90) | 70.0 (60 to 80) | 45.0 (35 to 55) | "
        "-2.0 (-5.0 to +1.0) | 8.10 |",
    ),
    "corpus-swap": (
        {
            "corpora": {
                name: {"passages": 1_360, "config_sha256": "a", "components_sha256": "b"}
                for name in ("pocket-kb", "factbook")
            },
            "domains": {
                "things": {
                    "questions": 100,
                    "accuracy": {"pocket-kb": interval(0.5), "factbook": interval(0.2)},
                    "own_less_other": DELTA,
                }
            },
        },
        "| things (100) | 50.0 (40 to 60) | 20.0 (10 to 30) | -2.0 (-5.0 to +1.0) |",
    ),
    "longtail": (
        {
            "questions": {"longtail": 220, "popular": 210},
            "accuracy": {
                f"{group} {system}": interval(mean)
                for group, mean in (("longtail", 0.3), ("popular", 0.6))
                for system in ("skip", "skip-adr")
            },
            "gain": {"longtail": DELTA, "popular": DELTA},
            "gap_closed": {"fraction": 0.7, "low": 0.6, "high": 0.8, "gap": 0.3},
            "overhead_ms": {
                f"{some}thing unknown": {"count": 9, "median": 0.4} for some in ("no", "some")
            },
        },
        "| popular (210) | 60.0 (50 to 70) | 60.0 (50 to 70) | -2.0 (-5.0 to +1.0) |",
    ),
}


def write(folder: Path, name: str, results: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({**HEADER, "results": results}))


def test_every_block_is_made_here() -> None:
    assert MADE.keys() == BLOCKS.keys()


@pytest.mark.parametrize("name", MADE)
def test_a_block_says_what_was_measured_and_where(name: str) -> None:
    results, line = MADE[name]
    lines = BLOCKS[name]({**HEADER, "results": results}).splitlines()
    assert line in lines
    assert lines[-1] == (
        "`made.py` on abacus, 2 cores; Python 3.11.0, torch 2.0, commit abc1234, 2026-11-15."
    )


def test_the_newest_month_counts_whatever_the_machine(tmp_path: Path) -> None:
    for name, value in (("ask_zx81_202601", 1), ("ask_abacus_202612", 2), ("ask_pc_202603", 3)):
        write(tmp_path, name, value)
    assert newest(tmp_path, "ask")["results"] == 2


def test_another_subject_that_begins_alike_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, "ask_often_abacus_202612", 1)
    with pytest.raises(UserError, match="no results of ask in"):
        newest(tmp_path, "ask")


def test_fill_writes_blocks_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, "ask_abacus_202611", MADE["ask"][0])
    block = "<!-- results: ask -->\nstale\n<!-- end -->"
    filled = fill(f"before\n{block}\nbetween\n{block}\nafter\n", tmp_path, tmp_path)
    body = BLOCKS["ask"](newest(tmp_path, "ask"))
    fresh = f"<!-- results: ask -->\n{body}\n<!-- end -->"
    assert filled == f"before\n{fresh}\nbetween\n{fresh}\nafter\n"
    assert fill(filled, tmp_path, tmp_path) == filled


@given(st.text())
def test_a_document_without_blocks_stays_as_it_is(text: str) -> None:
    assert fill(text, Path("nowhere"), Path("nowhere")) == text


def test_unknown_blocks_and_missing_results_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no block 'nonsense'; there is ask, "):
        fill("<!-- results: nonsense -->\n<!-- end -->", tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"no results of class_gloss .* run its script"):
        fill("<!-- results: class-gloss -->\n<!-- end -->", tmp_path, tmp_path)
