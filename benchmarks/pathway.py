"""The 7B pathway, dense against SKIP, from pixels to the answer's tokens, with random weights.

    python benchmarks/pathway.py --out benchmarks/results      (a CUDA GPU with 100 GB)
    python benchmarks/pathway.py --tiny                        (any machine; checks the script)

Both systems are the modules of preset `submission-7b`. Dense: every visual token, the question
and all K passages in the prompt. SKIP: a draft first; where it does not convince, prune, verify,
encode the kept passages, fuse, and decode from the fused tokens, with the kept passages as text
behind them or without. Not timed: retrieval, which runs on the CPU for both, and of SKIP the
budget controller, k-means and region queries (their FLOPs are counted). Throughput is derived:
the part of a batch that goes on is taken to cost its share of a whole batch's time.
Weights do not change what is computed, except whether the decoder agrees with a draft: both
outcomes are timed, and means are given for none and for all agreeing.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skipqa.backbones.generation.graphs import StaticDecoder, capture
from skipqa.backbones.networks.bert import Bert, mean_pool
from skipqa.backbones.networks.llama import Llama
from skipqa.backbones.networks.vit import EVA_CLIP_G_336, Vit, VitConfig
from skipqa.costs.environment import write_results
from skipqa.costs.presets import architecture
from skipqa.costs.roofline import Ceilings, driver_version, measure_ceilings
from skipqa.costs.systems import (
    Architecture,
    Load,
    expected_flops,
    kv_cache_bytes,
    parts,
    prompt_tokens,
)
from skipqa.nn.drafter import Drafter
from skipqa.nn.fusion import BipartiteFusion
from skipqa.nn.projector import Projector
from skipqa.nn.saliency import ProductSaliency
from skipqa.nn.verifier import Verifier

FAST_PATH_RATES = (0.34, 0.375, 0.41)  # the paper's range and its middle
ANSWER_TOKENS = 5
BATCHES = (1, 8, 32)


class Networks(nn.Module):
    def __init__(self, shapes: Architecture, vision: VitConfig) -> None:
        super().__init__()
        assert shapes.projector is not None
        assert shapes.drafter is not None
        self.vision = Vit(vision)
        self.projector = Projector(shapes.projector)
        self.drafter = Drafter(shapes.drafter)
        self.saliency = ProductSaliency(shapes.saliency)
        self.text = Bert(shapes.text)
        self.verifier = Verifier(shapes.verifier)
        self.fusion = BipartiteFusion(shapes.fusion)
        self.decoder = Llama(shapes.decoder)


class Question:
    """The inputs of a batch at fixed addresses. Passages come from retrieval, both systems' way."""

    def __init__(self, shapes: Architecture, vision: VitConfig, load: Load, batch: int) -> None:
        self.pixels = torch.randn(batch, 3, vision.image, vision.image)
        self.ids_BT = torch.randint(shapes.decoder.vocabulary, (batch, load.T))
        self.passages_BKL = torch.randint(shapes.decoder.vocabulary, (batch, load.K, load.L_c))
        self.passages_bert = torch.randint(shapes.text.vocabulary, (batch, load.K, load.L_c))
        self.index_embeddings = torch.randn(batch, load.K, shapes.text.width)
        self.question_embedding = torch.randn(batch, shapes.text.width)


class Stages:
    """The graph-ready pieces between the inputs and the decoder's prompt."""

    def __init__(self, networks: Networks, load: Load) -> None:
        self.networks, self.load = networks, load

    def encode(self, ask: Question) -> tuple[Tensor, Tensor]:
        n = self.networks
        return n.projector(n.vision(ask.pixels)), n.decoder.embedding(ask.ids_BT)

    def draft(self, ask: Question) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        visual, question = self.encode(ask)
        answer, confidence = self.networks.drafter.draft(self.networks.drafter(visual, question))
        return visual, question, answer, confidence

    def dense_prompt(self, ask: Question) -> Tensor:
        visual, question = self.encode(ask)
        return torch.cat((visual, question, self._read(ask.passages_BKL)), dim=1)

    def fused_prompt(
        self, ask: Question, visual: Tensor, question: Tensor, *, reads: bool
    ) -> Tensor:
        """[B, V' + T (+ K' L_c), d]: prune, verify, encode what is kept, fuse."""
        n, load = self.networks, self.load
        batch = len(visual)
        pooled = question.mean(1)
        kept = n.saliency(visual, pooled).topk(load.V_kept).indices.sort().values
        tokens = visual.gather(1, kept[..., None].expand(-1, -1, visual.shape[2]))
        verdict = n.verifier(ask.question_embedding, tokens.mean(1), ask.index_embeddings)
        best = verdict.topk(load.K_kept).indices[..., None]
        ids = ask.passages_bert.gather(1, best.expand(-1, -1, load.L_c))
        states = n.text(ids.flatten(0, 1))  # [B K', L_c, p]: packed, all of one length
        fused = n.fusion(
            tokens,
            states.flatten(0, 1),
            mean_pool(states).unflatten(0, (batch, load.K_kept)),
            torch.full((batch, load.K_kept), load.L_c, device=visual.device),
            longest=load.L_c,
        ).tokens
        if not reads:
            return torch.cat((fused, question), dim=1)
        passages = ask.passages_BKL.gather(1, best.expand(-1, -1, load.L_c))
        return torch.cat((fused, question, self._read(passages)), dim=1)

    def _read(self, passages_BKL: Tensor) -> Tensor:
        return self.networks.decoder.embedding(passages_BKL).flatten(1, 2)


class Recorded:
    """A function as a CUDA graph with its outputs at fixed addresses; eager without a GPU."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.out: Any = None

        def keep() -> None:
            self.out = run()

        self._replay = capture(keep) if torch.cuda.is_available() else keep

    def __call__(self) -> Any:
        self._replay()
        return self.out


def wall_ms(run: Callable[[], Any], repeats: int) -> list[float]:
    def once() -> float:
        begin = time.perf_counter()
        run()
        _wait()
        return 1e3 * (time.perf_counter() - begin)

    for _ in range(3):
        once()
    return [once() for _ in range(repeats)]


def measure(
    networks: Networks,
    shapes: Architecture,
    vision: VitConfig,
    load: Load,
    batch: int,
    repeats: int,
) -> dict[str, Any]:
    """Milliseconds of every way through, for a batch that goes that way as a whole."""
    stages = Stages(networks, load)
    ask = Question(shapes, vision, load, batch)
    tokens = ANSWER_TOKENS
    found: dict[str, Any] = {"batch": batch, "ms": {}, "cache_bytes": {}, "peak_bytes": {}}

    def record(name: str, run: Callable[[], Any]) -> None:
        found["ms"][name] = wall_ms(run, repeats)

    front = Recorded(lambda: stages.draft(ask))

    def fast() -> Any:
        *_, answer, confidence = front()
        return answer.tolist(), confidence.tolist()  # the route is decided on the host

    record("draft", fast)
    if batch == 1:
        record("vision", Recorded(lambda: stages.encode(ask)))

    for name, reads in (("fused", False), ("read", True)):
        length = load.V_kept + load.T + (load.K_kept * load.L_c if reads else 0)
        _forget_peak()
        decoder = StaticDecoder(networks.decoder, batch=batch, prompts=[length], max_new=tokens)
        middle = Recorded(lambda reads=reads: stages.fused_prompt(ask, *front.out[:2], reads=reads))

        def full(middle: Recorded = middle, decoder: StaticDecoder = decoder) -> Any:
            fast()
            return decoder.generate(middle(), tokens).tolist()

        record(f"skip {name}", full)
        record(f"prompt of {name}", middle)
        found["cache_bytes"][f"skip {name}"] = decoder.cache.bytes
        found["peak_bytes"][f"skip {name}"] = _peak()
        if batch == 1:
            _decode(decoder, middle.out, record, name)
            _check_draft(networks, length, middle, fast, record, name)
        del decoder, middle, full

    _forget_peak()
    prompt = Recorded(lambda: stages.dense_prompt(ask))
    length = prompt.out.shape[1] if prompt.out is not None else prompt().shape[1]
    decoder = StaticDecoder(networks.decoder, batch=batch, prompts=[length], max_new=tokens)
    record("dense", lambda: decoder.generate(prompt(), tokens).tolist())
    found["cache_bytes"]["dense"] = decoder.cache.bytes
    found["peak_bytes"]["dense"] = _peak()
    if batch == 1:
        _decode(decoder, prompt.out, record, "dense")
    return found


def _decode(
    decoder: StaticDecoder,
    prompt: Tensor,
    record: Callable[[str, Callable[[], Any]], None],
    name: str,
) -> None:
    """The decoder alone; and a step as torch's operations compute it, to compare."""
    model, length = decoder.model, prompt.shape[1]
    record(f"prefill of {name}", lambda: decoder.generate(prompt, 1))
    record(f"answer of {name}", lambda: decoder.generate(prompt, ANSWER_TOKENS))
    token, position = model.embedding(torch.zeros(1, 1, dtype=torch.int64)), torch.tensor([length])

    def plain() -> Tensor:
        hidden = model(token, decoder.cache, position, decoder.cache.length, from_zero=False)
        return model.logits(hidden).argmax(-1)

    record(f"plain step of {name}", Recorded(plain))


def _check_draft(
    networks: Networks,
    length: int,
    middle: Recorded,
    fast: Callable[[], Any],
    record: Callable[[str, Callable[[], Any]], None],
    name: str,
) -> None:
    """The decoder reads the draft's tokens along with the prompt; all agree, or none does."""
    tokens = ANSWER_TOKENS
    decoder = StaticDecoder(
        networks.decoder, batch=1, prompts=[length + tokens], max_new=tokens, max_draft=tokens - 1
    )
    agreed: list[int] = []
    for _ in range(tokens):  # what this very pass says: of random weights, rounding can decide
        agreed = decoder.generate_checking(middle(), agreed, tokens)[: tokens - 1]
    vocabulary = networks.decoder.config.vocabulary
    drafts = {"agreed": agreed, "refused": [(token + 1) % vocabulary for token in agreed]}
    for outcome, draft in drafts.items():

        def full(draft: list[int] = draft) -> Any:
            fast()
            return decoder.generate_checking(middle(), draft, tokens)

        record(f"skip {name}, draft {outcome}", full)


def mixed(fast: list[float], full: list[float], rate: float) -> dict[str, float]:
    """Latency of a stream in which `rate` of the questions stop at the draft."""
    rng = random.Random(2026)
    drawn = sorted(rng.choice(fast if rng.random() < rate else full) for _ in range(20_000))
    mean = rate * sum(fast) / len(fast) + (1 - rate) * sum(full) / len(full)
    return {"mean": mean, "p50": drawn[10_000], "p95": drawn[19_000]}


def summarise(
    measured: list[dict[str, Any]], shapes: Architecture, load: Load, ceilings: Ceilings | None
) -> dict[str, Any]:
    by_batch = {one["batch"]: one for one in measured}
    lone = by_batch[1]["ms"]
    dense = sum(lone["dense"]) / len(lone["dense"])
    ways = [way for way in lone if way.startswith("skip")]
    latency = {
        way: {
            str(rate): (m := mixed(lone["draft"], lone[way], rate))
            | {"times_faster": dense / m["mean"]}
            for rate in FAST_PATH_RATES
        }
        for way in ways
    }
    rate = 0.375
    throughput = {}
    for batch, one in by_batch.items():
        if batch == 1:
            continue
        middle = {name: sorted(ms)[len(ms) // 2] for name, ms in one["ms"].items()}
        for way in ("skip fused", "skip read"):
            # All items draft together; those that go on are batched with those of other batches.
            rest = middle[way] - middle["draft"]
            spent = middle["draft"] + (1 - rate) * rest
            throughput[f"batch {batch}, {way}"] = {
                "questions_per_second": 1e3 * batch / spent,
                "dense_questions_per_second": 1e3 * batch / middle["dense"],
                "times_more": middle["dense"] / spent,
            }
    found: dict[str, Any] = {"latency_ms": latency, "dense_ms": dense, "throughput": throughput}
    found["parts_ms"] = decoded = parts_ms(lone)
    found["flops"], found["kv_cache"] = {}, {}
    dense_load = dataclasses.replace(load, K_read=load.K_kept)
    dense_flops = expected_flops(parts(shapes, dense_load, "dense"), 0.0)
    dense_cache = kv_cache_bytes(
        shapes.decoder, prompt_tokens(shapes, dense_load, "dense") + ANSWER_TOKENS
    )
    for name, read in (("fused", 0), ("read", load.K_kept)):
        one_load = dataclasses.replace(load, K_read=read)
        flops = expected_flops(parts(shapes, one_load, "skip"), rate)
        cache = kv_cache_bytes(
            shapes.decoder, prompt_tokens(shapes, one_load, "skip") + ANSWER_TOKENS
        )
        found["flops"][f"skip {name}"] = {
            "skip": flops, "dense": dense_flops, "times_fewer": dense_flops / flops,
        }  # fmt: skip
        found["kv_cache"][f"skip {name}"] = {
            "skip_bytes": cache, "dense_bytes": dense_cache, "saved": 1 - cache / dense_cache,
        }  # fmt: skip
    if ceilings is not None:
        weights = sum(p.numel() for p in decoder_on_meta(shapes).parameters()) * 2
        found["limits"] = {
            "decode step ms": decoded["dense"]["step"],
            "decode step floor ms (weights once)": 1e3 * weights / ceilings.bytes_per_second,
            "dense prefill floor ms (FLOPs)": 1e3 * dense_flops / ceilings.flops_per_second,
        }
    return found


def parts_ms(lone: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Where the milliseconds of one question go: the draft, then each way on from it, and dense."""
    mean = {name: sum(ms) / len(ms) for name, ms in lone.items()}
    found = {"draft": {"vision": mean["vision"], "drafter": mean["draft"] - mean["vision"]}}
    for name in ("fused", "read", "dense"):
        prefill = mean[f"prefill of {name}"]
        found[name] = {
            "prompt": mean.get(f"prompt of {name}", mean["vision"]),
            "prefill": prefill,
            "step": (mean[f"answer of {name}"] - prefill) / (ANSWER_TOKENS - 1),
            "step by torch's operations": mean[f"plain step of {name}"],
        }
    return found


def decoder_on_meta(shapes: Architecture) -> Llama:
    with torch.device("meta"):
        return Llama(shapes.decoder)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int | None:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def tiny() -> tuple[Architecture, VitConfig]:
    """The same modules in toy widths, to run the script where there is no GPU."""
    real = architecture("submission-7b")
    replace = dataclasses.replace
    assert real.projector is not None
    assert real.drafter is not None
    vision = replace(EVA_CLIP_G_336, image=56, width=32, layers=2, heads=4, ffn=48)
    load = replace(real.load, V=16, V_kept=8, T=4, K=4, K_kept=2, K_read=2, L_c=6, R=2)
    return replace(
        real,
        text=replace(real.text, width=24, layers=2, heads=4, ffn=48),
        decoder=replace(
            real.decoder, vocabulary=97, width=32, layers=2, heads=4, kv_heads=4, ffn=48,
        ),
        projector=replace(real.projector, vision_width=32, width=32),
        drafter=replace(
            real.drafter, visual_tokens=16, visual_width=32, question_width=32,
            width=32, layers=2, heads=4, ffn=48,
        ),
        saliency=replace(real.saliency, width=32),
        budget=replace(real.budget, visual_width=32, question_width=32),
        region_query=replace(real.region_query, vision_width=32, question_width=32),
        verifier=replace(real.verifier, width=24, visual_width=32),
        fusion=replace(real.fusion, width=32, passage_width=24, heads=4),
        load=load,
    ), vision  # fmt: skip


def table(result: dict[str, Any]) -> str:
    lines = [f"dense, batch 1: {result['summary']['dense_ms']:.1f} ms a question"]
    for way, rates in result["summary"]["latency_ms"].items():
        for rate, m in rates.items():
            lines.append(
                f"  {way:32s} fast path {rate}: mean {m['mean']:6.1f} p50 {m['p50']:6.1f} "
                f"p95 {m['p95']:6.1f} ms, {m['times_faster']:.2f}x faster"
            )
    for name, t in result["summary"]["throughput"].items():
        lines.append(
            f"  {name}: {t['questions_per_second']:.1f}/s, dense "
            f"{t['dense_questions_per_second']:.1f}/s, {t['times_more']:.2f}x"
        )
    for way, f in result["summary"]["flops"].items():
        saved = result["summary"]["kv_cache"][way]["saved"]
        lines.append(f"  {way}: {f['times_fewer']:.2f}x fewer FLOPs, KV cache {saved:.0%} smaller")
    for way, parts_of_it in result["summary"]["parts_ms"].items():
        told = ", ".join(f"{part} {ms:.2f}" for part, ms in parts_of_it.items())
        lines.append(f"  ms of {way}: {told}")
    for name, value in result["summary"].get("limits", {}).items():
        lines.append(f"  {name}: {value:.2f}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--tiny", action="store_true", help="toy shapes, to check the script")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    chosen = parser.parse_args(arguments)
    if not chosen.tiny and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device; --tiny tries it without one")
    shapes, vision = tiny() if chosen.tiny else (architecture("submission-7b"), EVA_CLIP_G_336)
    load = dataclasses.replace(shapes.load, L_a=ANSWER_TOKENS)
    gpu = torch.cuda.is_available()
    torch.manual_seed(2026)
    torch.set_default_device("cuda" if gpu else "cpu")
    torch.set_default_dtype(torch.bfloat16 if gpu else torch.float32)
    ceilings = measure_ceilings() if gpu else None
    with torch.inference_mode():
        networks = Networks(shapes, vision).eval()
        measured = [
            # A batch takes seconds where one question takes milliseconds.
            measure(networks, shapes, vision, load, batch, max(3, chosen.repeats // batch))
            for batch in chosen.batches
        ]
    results = {
        "driver": driver_version(),
        "ceilings": dataclasses.asdict(ceilings) if ceilings else None,
        "load": dataclasses.asdict(load),
        "answer_tokens": ANSWER_TOKENS,
        "weights_bytes": sum(p.nbytes for p in networks.parameters()),
        "measured": measured,
        "summary": summarise(measured, shapes, load, ceilings),
    }
    if not chosen.tiny:
        write_results(results, "pathway", chosen.out)
    return results


if __name__ == "__main__":
    print(table(main()))
