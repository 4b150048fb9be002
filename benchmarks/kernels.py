"""Bipartite attention and the fusion layer on a GPU, against dense attention in the same run.

    python benchmarks/kernels.py --out benchmarks/results

Correctness first: nothing is timed before forward and backward agree with float64. The dense
side is the fastest of torch's SDPA backends at the same precision, on the same inputs; times are
medians over CUDA graphs, inputs out of the cache. The last lines are a short table.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from skipqa.costs.environment import write_results
from skipqa.costs.roofline import Ceilings, Timing, driver_version, measure_ceilings, time_gpu
from skipqa.figures import Labels, Mark, Series, line_chart, save
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    cuda,
    reference,
    select_edges,
)
from skipqa.ops.bipartite_attention import triton as kernels

HEADS, HEAD_WIDTH, LENGTH, PASSAGES = 32, 128, 100, 16
WIDTH = HEADS * HEAD_WIDTH
DENSE_TOKENS = 576 + 20 + 16 * 100
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
DENSITIES = (0.05, 0.10, 0.25, 0.50, 1.00)
DTYPE = torch.bfloat16


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    q: Tensor  # [B, V, H, D]
    k: Tensor  # [B K L, H, D]
    v: Tensor
    edges: Tensor  # [B, V, K]
    lengths: Tensor  # [B, K]

    @staticmethod
    def draw(batch: int, tokens: int, passages: int, density: float) -> Inputs:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, HEADS, HEAD_WIDTH, device="cuda", dtype=DTYPE)

        packed = batch * passages * LENGTH
        lengths = torch.full((batch, passages), LENGTH, device="cuda")
        edges = select_edges(torch.rand(batch, tokens, passages, device="cuda"), top=density)
        return Inputs(normal(batch, tokens), normal(packed), normal(packed), edges, lengths)

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """[B, H, V or K L, D] views of the same numbers."""
        batch = len(self.q)
        k, v = (x.view(batch, -1, HEADS, HEAD_WIDTH).transpose(1, 2) for x in (self.k, self.v))
        return self.q.transpose(1, 2), k, v

    def bytes_moved(self) -> int:
        """The least: queries and results of tokens with an edge, passages with one; zeros."""
        read_tokens = int(self.edges.any(-1).sum())
        read_passages = int(self.edges.any(1).sum())
        row = WIDTH * self.q.element_size()
        return row * (read_tokens + self.q[..., 0, 0].numel() + 2 * LENGTH * read_passages)

    def flops(self) -> int:
        return 4 * int(self.edges.sum()) * LENGTH * WIDTH


@contextmanager
def only(backend: SDPBackend) -> Iterator[None]:
    with sdpa_kernel(backend):
        yield


def fastest_dense(run: Callable[[], Any], **options: Any) -> tuple[str, Timing]:
    found = {}
    for name, backend in BACKENDS.items():
        try:
            with only(backend):
                found[name] = time_gpu(run, **options)
        except RuntimeError:  # this backend does not take these shapes
            continue
    best = min(found, key=lambda name: found[name].median_us)
    return best, found[best]


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())


def check() -> list[dict[str, Any]]:
    """Our error and that of torch in the same precision, both against float64."""
    rows = []
    for batch, tokens, density in ((2, 64, 0.1), (2, 576, 0.1), (1, 130, 1.0)):
        inputs = Inputs.draw(batch, tokens, 5, density)
        grad = torch.randn_like(inputs.q)

        def run(
            backend: str, dtype: torch.dtype, inputs: Inputs = inputs, grad: Tensor = grad
        ) -> list[Tensor]:
            leaves = [x.to(dtype).requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
            out = bipartite_attention(*leaves, inputs.edges, inputs.lengths, backend=backend)
            return [out, *torch.autograd.grad(out, leaves, grad.to(dtype))]

        exact = run("reference", torch.float64)
        ours, theirs = run("auto", DTYPE), run("reference", DTYPE)
        for name, a, b, e in zip(("out", "dq", "dk", "dv"), ours, theirs, exact, strict=True):
            row = {
                "batch": batch, "tokens": tokens, "density": density, "tensor": name,
                "error": relative_error(a, e), "torch_error": relative_error(b, e),
            }  # fmt: skip
            row["ok"] = row["error"] <= 2 * row["torch_error"]
            rows.append(row)
    return rows + check_layer()


def check_layer() -> list[dict[str, Any]]:
    rows = []
    layer, *inputs = draw_layer(2, 6)
    exact_layer = BipartiteFusion(layer.config).cuda().double()
    exact_layer.load_state_dict(layer.state_dict())
    tokens, passages, _, lengths = inputs
    with torch.inference_mode():
        orders = {
            order: layer(*inputs, longest=LENGTH, order=order) for order in ("project", "absorb")
        }
        edges = orders["project"].edges

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (HEADS, HEAD_WIDTH))

        def plain(layer: BipartiteFusion, dtype: torch.dtype) -> Tensor:
            x, p = tokens.to(dtype), passages.to(dtype)
            read = reference.bipartite_attention(
                heads(layer.query(x)), heads(layer.key(p)), heads(layer.value(p)),
                edges, lengths, None, HEAD_WIDTH**-0.5,
            )  # fmt: skip
            return layer.out(read.flatten(2))

        exact = plain(exact_layer, torch.float64)
        theirs = relative_error(plain(layer, DTYPE), exact)
        for order, found in orders.items():
            # The residual is exact; what the layer adds is what can be wrong.
            added = found.tokens.double() - tokens.double()
            rounding = relative_error((exact + tokens.double()).to(DTYPE) - tokens.double(), exact)
            error = relative_error(added, exact)
            rows.append({
                "tensor": f"layer, {order}", "error": error, "torch_error": theirs,
                "residual_rounding": rounding,
                "ok": error <= 2 * math.hypot(theirs, rounding),
            })  # fmt: skip
    return rows


def attention(ceilings: Ceilings, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for batch in (1, 8, 32):
        for tokens in (64, 576):
            dense_name, dense = "", None
            for density in DENSITIES:
                x = Inputs.draw(batch, tokens, PASSAGES, density)
                if dense is None:
                    q, k, v = x.dense()
                    dense_name, dense = fastest_dense(
                        lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
                        repeats=repeats,
                    )
                kernel, launch, ours, planning = time_ours(x, repeats)
                floor = ceilings.floor_us(x.flops(), x.bytes_moved())
                rows.append({
                    "batch": batch, "tokens": tokens, "passages": PASSAGES, "density": density,
                    "dense_backend": dense_name, "dense": dataclasses.asdict(dense),
                    "ours": dataclasses.asdict(ours), "schedule": dataclasses.asdict(planning),
                    "kernel": kernel, "launch": dataclasses.asdict(launch), "flops": x.flops(),
                    "bytes": x.bytes_moved(), "floor_us": floor,
                    "roofline": floor / ours.median_us,
                    "times_faster": dense.median_us / ours.median_us,
                    "times_faster_with_schedule": dense.median_us
                    / (ours.median_us + planning.median_us),
                })  # fmt: skip
    return rows


def time_ours(x: Inputs, repeats: int) -> tuple[str, kernels.Launch | cuda.Launch, Timing, Timing]:
    """The kernel that `auto` takes, how it was launched, its time and that of its schedule."""
    batch, tokens = x.q.shape[:2]
    scale = HEAD_WIDTH**-0.5
    if cuda.pays(x.q, x.k, x.v, PASSAGES):
        hand = cuda.Launch.choose(batch, HEADS, PASSAGES)
        ours = time_gpu(
            lambda: cuda.attend(x.q, x.k, x.v, None, x.edges, x.lengths, scale, hand),
            repeats=repeats,
        )
        return "cuda", hand, ours, Timing(0.0, 0.0, 0.0, repeats)  # it plans by itself
    launch = kernels.choose_forward(batch, tokens, PASSAGES, HEADS)
    plan = kernels.plan_for(x.edges, x.lengths, launch)
    ours = time_gpu(
        lambda: kernels.attend(x.q, x.k, x.v, None, x.edges, x.lengths, plan, scale, launch),
        repeats=repeats,
    )
    planning = time_gpu(lambda: kernels.plan_for(x.edges, x.lengths, launch), repeats=repeats)
    return "triton", launch, ours, planning


def backward(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for batch in (8, 32):
        x = Inputs.draw(batch, 576, PASSAGES, 0.1)
        grad = torch.randn_like(x.q)
        scale = HEAD_WIDTH**-0.5
        kernel = "cuda" if cuda.pays_backward(x.q, x.k, x.v, None, PASSAGES) else "triton"
        launch: kernels.Launch | cuda.Backward = cuda.Backward()
        if kernel == "triton":
            launch = kernels.choose_backward(batch, 576, PASSAGES, HEADS)
        first = kernels.choose_forward(batch, 576, PASSAGES, HEADS)
        plan = kernels.plan_for(x.edges, x.lengths, first)
        out, lse = kernels.attend(x.q, x.k, x.v, None, x.edges, x.lengths, plan, scale, first)

        def ours(
            x: Inputs = x,
            launch: kernels.Launch | cuda.Backward = launch,
            saved: tuple[Tensor, Tensor, Tensor] = (out, lse, grad),
        ) -> Any:
            """Its schedule included, where it needs one."""
            return kernels.gradients_of(
                x.q, x.k, x.v, None, x.edges, x.lengths, *saved, HEAD_WIDTH**-0.5, launch
            )

        mine = time_gpu(ours, repeats=repeats)
        found = {}
        for name, backend in BACKENDS.items():
            q, k, v = (t.detach().requires_grad_() for t in x.dense())
            with only(backend):
                dense_out = F.scaled_dot_product_attention(q, k, v)
            dense_grad = grad.transpose(1, 2)

            def dense(
                out: Tensor = dense_out,
                leaves: tuple[Tensor, ...] = (q, k, v),
                grad: Tensor = dense_grad,
            ) -> Any:
                return torch.autograd.grad(out, leaves, grad, retain_graph=True)

            found[name] = time_gpu(dense, repeats=repeats, graph=False)
        best = min(found, key=lambda name: found[name].median_us)
        rows.append({
            "batch": batch, "tokens": 576, "density": 0.1, "dense_backend": best,
            "dense": dataclasses.asdict(found[best]), "ours": dataclasses.asdict(mine),
            "kernel": kernel, "launch": dataclasses.asdict(launch),
            "times_faster": found[best].median_us / mine.median_us,
        })  # fmt: skip
    return rows


def draw_layer(batch: int, passages: int) -> tuple[BipartiteFusion, Tensor, Tensor, Tensor, Tensor]:
    with torch.device("cuda"):
        layer = BipartiteFusion(FusionConfig(WIDTH, WIDTH, HEADS, beta=0.1))
    torch.nn.init.normal_(layer.out.weight, std=0.02)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, WIDTH, device="cuda", dtype=DTYPE)

    return (
        layer.to("cuda", DTYPE).requires_grad_(False),
        normal(batch, 64),
        normal(batch * passages * LENGTH),
        normal(batch, passages),
        torch.full((batch, passages), LENGTH, device="cuda"),
    )


def layers(ceilings: Ceilings, repeats: int) -> list[dict[str, Any]]:
    """The paper's comparison: one dense self-attention layer, projections included, and BSCA."""
    rows = []
    qkv, out = (
        torch.randn(n * WIDTH, WIDTH, device="cuda", dtype=DTYPE) * WIDTH**-0.5 for n in (3, 1)
    )

    def dense(x_BSd: Tensor) -> Tensor:
        batch, length, _ = x_BSd.shape
        heads = F.linear(x_BSd, qkv).view(batch, length, 3, HEADS, HEAD_WIDTH)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x_BSd.shape)
        return x_BSd + F.linear(mixed, out)

    dense_flops = 8 * DENSE_TOKENS * WIDTH**2 + 4 * DENSE_TOKENS**2 * WIDTH
    for batch in (1, 8, 32):
        x = torch.randn(batch, DENSE_TOKENS, WIDTH, device="cuda", dtype=DTYPE)
        name, time = fastest_dense(lambda x=x: dense(x), repeats=max(5, repeats // 2))
        del x
        for passages in (6, 16):
            layer, *inputs = draw_layer(batch, passages)
            tokens, _, embeddings, lengths = inputs

            def choose(
                layer: BipartiteFusion = layer,
                tokens: Tensor = tokens,
                embeddings: Tensor = embeddings,
                lengths: Tensor = lengths,
            ) -> Tensor:
                return layer.choose(tokens, embeddings, lengths)[1]

            selection = time_gpu(choose, repeats=repeats)
            edges = choose()
            active, kept = int(edges.any(-1).sum()) / batch, int(edges.sum()) / batch
            flops = {
                "project": 4 * (64 + passages * LENGTH) * WIDTH**2 + 4 * kept * LENGTH * WIDTH,
                "absorb": 8 * active * WIDTH**2 + 4 * kept * LENGTH * WIDTH * HEADS,
            }
            for order in ("project", "absorb"):
                ours = time_gpu(
                    lambda layer=layer, inputs=inputs, order=order: layer(
                        *inputs, longest=LENGTH, order=order
                    ),
                    repeats=repeats,
                )
                rows.append({
                    "batch": batch, "passages": passages, "order": order,
                    "dense_backend": name, "dense": dataclasses.asdict(time),
                    "ours": dataclasses.asdict(ours),
                    "selection": dataclasses.asdict(selection),
                    "selection_share": selection.median_us / ours.median_us,
                    "flops": flops[order], "dense_flops": dense_flops,
                    "counted_ratio": dense_flops / flops[order],
                    "times_faster": time.median_us / ours.median_us,
                    "of_projected_flops_ratio": time.median_us / ours.median_us
                    / (dense_flops / flops["project"]),
                    "compute_floor_us": ceilings.floor_us(batch * flops[order], 0),
                })  # fmt: skip
            del layer, inputs
    return rows


def crossover_plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Speed over density: one line per batch size and number of tokens, dense at 1."""
    lines: dict[str, list[Mark]] = {}
    for row in sorted(rows, key=lambda row: (-row["tokens"], row["batch"])):
        name = f"V' = {row['tokens']}, batch {row['batch']}"
        lines.setdefault(name, []).append(Mark(row["density"], row["times_faster_with_schedule"]))
    labels = Labels(
        "Where sparsity stops paying",
        "bipartite attention against the fastest dense attention in the same run",
        "fraction of edges kept, β",
        "times faster",
    )
    series = [Series(name, marks) for name, marks in lines.items()]
    save(line_chart(series, labels, log_x=True, level=("dense", 1.0)), path)


def table(results: dict[str, Any]) -> str:
    ceilings = results["ceilings"]
    lines = [
        f"ceilings: {ceilings['bytes_per_second'] / 1e12:.2f} TB/s, "
        f"{ceilings['flops_per_second'] / 1e12:.0f} TFLOP/s",
        "attention alone     dense us   ours us  faster  roofline",
    ]
    for r in results["attention"]:
        lines.append(
            f"B {r['batch']:2d} V' {r['tokens']:3d} b {r['density']:4.2f}  "
            f"{r['dense']['median_us']:9.1f} {r['ours']['median_us']:9.1f}  "
            f"{r['times_faster_with_schedule']:5.2f}x  {r['roofline']:6.0%}"
        )
    for r in results["backward"]:
        lines.append(
            f"backward B {r['batch']:2d} V' 576: dense {r['dense']['median_us']:.0f} us, "
            f"ours {r['ours']['median_us']:.0f} us, {r['times_faster']:.2f}x"
        )
    for r in results["layers"]:
        lines.append(
            f"layer B {r['batch']:2d} K' {r['passages']:2d} {r['order']:7s}: dense "
            f"{r['dense']['median_us']:.0f} us, ours {r['ours']['median_us']:.0f} us, "
            f"{r['times_faster']:.2f}x (FLOPs {r['counted_ratio']:.1f}x), "
            f"selection {r['selection_share']:.0%}"
        )
    worst = max(
        r["error"] / math.hypot(r["torch_error"], r.get("residual_rounding", 0.0))
        for r in results["check"]
    )
    lines.append(f"largest error: {worst:.2f} times that of torch in the same precision")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--repeats", type=int, default=20)
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    torch.manual_seed(2026)
    checked = check()
    wrong = [row for row in checked if not row["ok"]]
    if wrong:
        sys.exit(f"not timed, since these are wrong: {wrong}")
    ceilings = measure_ceilings()
    results: dict[str, Any] = {
        "driver": driver_version(),
        "ceilings": dataclasses.asdict(ceilings),
        "shape": {"heads": HEADS, "head_width": HEAD_WIDTH, "passage_tokens": LENGTH},
        "dtype": "bfloat16",
        "check": checked,
        "attention": attention(ceilings, chosen.repeats),
        "backward": backward(max(5, chosen.repeats // 2)),
    }
    with torch.inference_mode():
        results["layers"] = layers(ceilings, chosen.repeats)
    path = write_results(results, "kernels", chosen.out)
    crossover_plot(results["attention"], path.with_suffix(".svg"))
    return results


if __name__ == "__main__":
    print(table(main()))
