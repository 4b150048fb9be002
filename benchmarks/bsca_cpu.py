"""BSCA against dense cross-attention on a CPU, in one run, alternating.

For V' = 64 and 576 visual tokens and K' = 16 passages of L_c = 100 tokens, at the shapes of the
pocket preset (width 384, 12 heads) and of the 7B preset (width 4096, 32 heads, passages of 768):

  attention  from projected queries, keys and values: torch's fused kernel over all 1,600 passage
             tokens, against choosing edges and attending along those that survive
  layer      from visual tokens and passage states: the same with all projections, ours in the
             order that the layer picks and, beside it, always projecting

Prints the speedup at beta = 0.1, the density at which sparse stops paying, and the time of the
picked order in that of projecting, at the density where it does worst.

    python benchmarks/bsca_cpu.py [--repeats 9] [--threads N] [--levels layer] [--out FOLDER]
"""

from __future__ import annotations

import os

# Before torch is imported: threads that wait must sleep, other work may share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from skipqa.costs.environment import available_cores, write_results
from skipqa.nn.fusion import BipartiteFusion, EdgeRule, FusionConfig
from skipqa.ops.bipartite_attention import bipartite_attention, compatibility, select_edges

SHAPES = {"pocket": FusionConfig(384, 384, 12), "7B": FusionConfig(4_096, 768, 32)}
TOKENS = (64, 576)
PASSAGES, LENGTH = 16, 100
BETA = 0.1
DENSITIES = {
    "attention": (0.02, 0.05, BETA, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
    "layer": (BETA, 0.3, 0.6, 1.0),
}


class Contest(NamedTuple):
    """`sparse` and `project` take the share of pairs that stay edges."""

    dense: Callable[[], Tensor]
    sparse: Callable[[float], Tensor]
    project: Callable[[float], Tensor] | None = None


def attention(config: FusionConfig, num_tokens: int) -> Contest:
    heads, width = config.heads, config.width // config.heads
    q = torch.randn(num_tokens, heads, width)
    k, v = (torch.randn(PASSAGES * LENGTH, heads, width) for _ in range(2))
    h_v, h_k = (torch.randn(n, config.edge_width) for n in (num_tokens, PASSAGES))
    q_H, k_H, v_H = (x.transpose(0, 1).contiguous()[None] for x in (q, k, v))

    def dense() -> Tensor:
        return F.scaled_dot_product_attention(q_H, k_H, v_H)[0].transpose(0, 1)

    def sparse(density: float) -> Tensor:
        edges = select_edges(compatibility(h_v, h_k), top=density)
        return bipartite_attention(q, k, v, edges, [LENGTH] * PASSAGES, backend="gather")

    torch.testing.assert_close(sparse(1.0), dense(), atol=1e-4, rtol=1e-3)
    return Contest(dense, sparse)


def layer(config: FusionConfig, num_tokens: int) -> Contest:
    tokens = torch.randn(num_tokens, config.width)
    passages = torch.randn(PASSAGES * LENGTH, config.passage_width)
    embeddings = torch.randn(PASSAGES, config.passage_width)
    fused = BipartiteFusion(config)
    nn.init.normal_(fused.out.weight, std=config.width**-0.5)

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (config.heads, -1)).transpose(0, 1)[None]

    def dense() -> Tensor:
        q, k, v = fused.query(tokens), fused.key(passages), fused.value(passages)
        read = F.scaled_dot_product_attention(heads(q), heads(k), heads(v))[0]
        return tokens + fused.out(read.transpose(0, 1).flatten(1))

    def sparse(density: float, order: Literal["auto", "project"] = "auto") -> Tensor:
        fused.rule = EdgeRule(top=density)
        return fused(tokens, passages, embeddings, [LENGTH] * PASSAGES, order=order).tokens

    torch.testing.assert_close(sparse(1.0), dense(), atol=1e-4, rtol=1e-3)
    return Contest(dense, sparse, lambda density: sparse(density, "project"))


def alternate_ms(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Milliseconds of each at its best, taken in turns: others may share the cores, and the least
    disturbed run says most."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


@torch.inference_mode()
def measure(level: str, shape: str, num_tokens: int, repeats: int) -> dict[str, Any]:
    torch.manual_seed(2026)
    contest = {"attention": attention, "layer": layer}[level](SHAPES[shape], num_tokens)
    points = []
    for density in DENSITIES[level]:
        runs: dict[str, Callable[[], Any]] = {
            "dense": contest.dense,
            "sparse": partial(contest.sparse, density),
        }
        if contest.project is not None:
            runs["project"] = partial(contest.project, density)
        ms = alternate_ms(runs, repeats)
        points.append(
            {
                "density": density,
                **{f"{name}_ms": round(time_ms, 3) for name, time_ms in ms.items()},
                "speedup": round(ms["dense"] / ms["sparse"], 3),
            }
        )
    at_beta = next(point for point in points if point["density"] == BETA)
    return {
        "level": level,
        "shape": shape,
        "tokens": num_tokens,
        "at_beta": at_beta,
        "crossover_density": crossover(points),
        "points": points,
    }


def crossover(points: list[dict[str, float]]) -> float | None:
    """Where the speedup falls through 1, linear between measured densities; None if it never
    does, 0 if sparse never pays."""
    if points[0]["speedup"] < 1:
        return 0.0
    for before, after in pairwise(points):
        if after["speedup"] < 1:
            fraction = (before["speedup"] - 1) / (before["speedup"] - after["speedup"])
            return round(before["density"] + fraction * (after["density"] - before["density"]), 3)
    return None


def worst_of_projecting(points: list[dict[str, float]]) -> float:
    return max(point["sparse_ms"] / point["project_ms"] for point in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--levels", nargs="+", choices=DENSITIES, default=list(DENSITIES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = [(level, shape, V) for level in options.levels for shape in SHAPES for V in TOKENS]
    console = Console(stderr=True)
    results = [
        measure(*case, options.repeats)
        for case in track(cases, "measuring", console=console, transient=True)
    ]
    table = Table(
        "level", "shape", "V'", "dense ms", "sparse ms", f"at beta {BETA}", "pays below",
        "of projecting, at worst",
    )  # fmt: skip
    for result in results:
        at_beta, limit = result["at_beta"], result["crossover_density"]
        table.add_row(
            result["level"],
            result["shape"],
            f"{result['tokens']}",
            f"{at_beta['dense_ms']:.2f}",
            f"{at_beta['sparse_ms']:.2f}",
            f"{at_beta['speedup']:.2f}x",
            "always" if limit is None else f"{limit:.2f}",
            f"{worst_of_projecting(result['points']):.2f}" if result["level"] == "layer" else "",
        )
    Console().print(table)
    found = {
        "threads": options.threads,
        "load_average": os.getloadavg()[0],  # others may share the cores
        "passages": PASSAGES,
        "length": LENGTH,
        "results": results,
    }
    console.print(f"written to {write_results(found, 'bsca_cpu', options.out)}")


if __name__ == "__main__":
    main()
