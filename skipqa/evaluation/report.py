"""Numbers in the documents, written by a program from results files and checked by a test.

A document holds blocks between `<!-- results: NAME -->` and `<!-- end -->`; `fill` replaces
what stands between with what the block's function makes of the newest results file. Nothing
that was measured is typed by hand.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skipqa.errors import UserError, choices
from skipqa.evaluation import trained_blocks
from skipqa.evaluation.results import ABSENT, Results, newest, percent, source, span, table

INTERVAL = "95 % bootstrap intervals over photos"
BLOCK = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, folder: Path) -> str:
    """The document with every block written anew."""

    def render(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise UserError(f"no block {name!r}; there is {choices(name, BLOCKS)}")
        body = BLOCKS[name](newest(folder, name.replace("-", "_")))
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(render, text)


def _ask(results: Results) -> str:
    runs = results["results"]["runs"]

    def row(label: str, key: str, unit: str) -> list[str]:
        values = [run[key] for run in runs]
        return [label, f"{statistics.median(values):.2f} {unit}", f"{max(values):.2f} {unit}"]

    rows = [
        row("`skipqa ask`, from start to exit", "wall_s", "s"),
        row("of that, in the pipeline", "pipeline_s", "s"),
        row("peak memory", "peak_gb", "GB"),
    ]
    return table(["", "median", "worst"], rows) + "\n" + source(results)


def _class_gloss(results: Results) -> str:
    drawn, never_shown = (results["results"][name] for name in ("all", "held-out"))

    def cells(found: Mapping[str, Any], kind: str) -> list[str]:
        hits, asked = found["by_kind"][kind]
        return [str(asked), f"{100 * hits / max(1, asked):.1f} %"]

    def whole(found: Mapping[str, Any]) -> list[str]:
        return [str(found["photos"]), f"**{100 * found['gloss_in_first_4']:.1f} %**"]

    rows = [[kind, *cells(drawn, kind), *cells(never_shown, kind)] for kind in drawn["by_kind"]]
    rows.append(["all", *whole(drawn), *whole(never_shown)])
    header = ["photos of", "drawn", "own gloss in the first 4", "never shown", "the same"]
    return table(header, rows) + "\n" + source(results)


def _seeing(results: Results) -> str:
    found = results["results"]
    rows = [
        [
            str(row["size"]),
            percent(row["top_1"]),
            percent(row["top_4"]),
            f"{row['confidence']['mean']:.2f}",
        ]
        for row in found["sizes"]
    ]
    header = ["input px", "top-1, %", "top-4, %", "mean top probability"]
    note = f"\n{found['photos']} photos; in brackets {INTERVAL}."
    return table(header, rows) + "\n" + note + source(results)


def _saliency_boxes(results: Results) -> str:
    found = results["results"]
    rows = []
    for place, row in enumerate(found["rows"]):
        difference = f"{row['less']['difference']:+.3f} ({span(row['less'], 1, '+.3f')})"
        rows.append(
            [
                ", ".join(map(str, row["scales"])),
                f"{row['locality']:g}",
                row["relevance"],
                f"{row['all']['mean']:.3f}",
                f"{row['small']['mean']:.3f}",
                "reference" if place == found["reference"] else difference,
            ]
        )
    header = ["scales, px", "locality", "relevance", "all", "boxes under 10 %", "all, difference"]
    note = (
        f"\n{found['photos']} photos, {found['rows'][0]['small']['count']} with such small boxes; "
        f"chance is {found['chance']:.3f} for all; in brackets {INTERVAL}."
    )
    return table(header, rows) + "\n" + note + source(results)


def _reading(results: Results) -> str:
    found = results["results"]
    rows = [
        [f"the gloss, {row['prompt']}", str(row["free"]), str(row["quoting"])]
        for row in found["given_gloss"]
    ]
    rows.append(["a photo, the whole system", "", str(found["given_photo"])])
    asked = len(found["questions"])
    note = (
        f"\nOf the {asked - found['given_photo']} wrong answers about photos, "
        f"{found['wrong_without_gloss']} had lost the gloss before it could be read."
    )
    header = [f"given, right of {asked}", "free", "quoting"]
    return table(header, rows) + "\n" + note + source(results)


def _verifying(results: Results) -> str:
    found = results["results"]
    rows = [
        [
            row["weight"] if isinstance(row["weight"], str) else f"{row['weight']:g}",
            percent(row["first"]),
            percent(row["in_two"]),
        ]
        for row in found["weights"]
    ]
    note = (
        f"\nOver the {found['gloss_among_candidates']} of {found['photos']} photos whose gloss was "
        f"among the {found['candidates']} candidates; in brackets {INTERVAL}."
    )
    header = ["weight", "own gloss first, %", "in the first two, %"]
    return table(header, rows) + "\n" + note + source(results)


def _kernels(results: Results) -> str:
    found = results["results"]
    rows = []
    for order in ("project", "absorb"):
        for passages in (6, 16):
            cells = {
                layer["batch"]: f"{layer['times_faster']:.1f}x"
                for layer in found["layers"]
                if layer["order"] == order and layer["passages"] == passages
            }
            rows.append([f"fusion layer, K' = {passages}, {order}", *cells.values()])
    for tokens in (64, 576):
        for density in (0.05, 0.1, 0.25):
            cells = {
                point["batch"]: f"{point['times_faster_with_schedule']:.2f}x"
                for point in found["attention"]
                if point["tokens"] == tokens and point["density"] == density
            }
            rows.append([f"attention alone, V' = {tokens}, {density:.0%} edges", *cells.values()])
    backward = {b["batch"]: f"{b['times_faster']:.2f}x" for b in found["backward"]}
    rows.append(["backward, V' = 576, 10% edges", backward.get(1, ""), backward[8], backward[32]])
    header = ["faster than dense attention", "batch 1", "batch 8", "batch 32"]
    return table(header, rows) + "\n" + source(results)


def _pathway(results: Results) -> str:
    found = results["results"]["summary"]
    rate = str(results["results"]["load"]["draft_rate"])
    rows = []
    for name in ("skip fused", "skip read"):
        latency = found["latency_ms"][name][rate]
        rows.append(
            [
                name,
                f"{latency['mean']:.1f}",
                f"{latency['times_faster']:.2f}x",
                f"{found['throughput'][f'batch 8, {name}']['times_more']:.2f}x",
                f"{found['flops'][name]['times_fewer']:.2f}x",
                f"{found['kv_cache'][name]['saved']:.0%}",
            ]
        )
    header = [
        "7B shapes",
        "mean ms",
        "faster",
        "throughput, batch 8",
        "fewer FLOPs",
        "KV cache saved",
    ]
    note = (
        f"\nDense: {found['dense_ms']:.1f} ms a question. Fast-path rate {rate} is the paper's, an "
        "input here; `fused` gives the decoder fused tokens only, `read` the passages too.\n"
    )
    return table(header, rows) + "\n" + note + source(results).lstrip()


def _routing_overhead(results: Results) -> str:
    rows = [
        [name, f"{run['total_ms']:.0f}", f"{run['routing_ms']:.1f}", f"{run['fraction']:.2%}"]
        for name, run in results["results"].items()
    ]
    header = ["components", "question, ms", "routing, ms", "fraction"]
    return table(header, rows) + "\n" + source(results)


def _index_recall(results: Results) -> str:
    found = results["results"]
    rows = []
    for corpus in ("default corpus", "clustered synthetic"):
        for engine in ("local", "compiled"):
            point = found[corpus][engine]
            rows.append(
                [
                    corpus,
                    f"`{engine}:`",
                    f"{found[corpus]['passages']:,}",
                    f"{point['recall_at_4']:.3f}",
                    f"{point['8_region_queries_ms']['p50']:.1f}",
                    f"{point['8_region_queries_ms']['p99']:.1f}",
                ]
            )
    header = ["corpus", "engine", "passages", "recall@4", "8 region queries, ms", "p99"]
    known = found["known items"]
    note = (
        f"\nThe default corpus was built in {found['default corpus']['build_seconds']} s. "
        f"Known items (six words of a passage, is it among the four best): lexical impacts "
        f"{known['lexical impacts']}, Okapi BM25 {known['okapi bm25']}.\n"
    )
    return table(header, rows) + "\n" + note + source(results).lstrip()


def _index_peers(results: Results) -> str:
    rows = []
    for name, engine in results["results"]["engines"].items():
        points = [p for p in engine["points"] if p["recall_at_4"] >= 0.95]
        best = min(points, key=lambda p: p["8_region_queries_ms"]["p50"])
        one, eight = best["one_query_ms"], best["8_region_queries_ms"]
        rows.append(
            [
                name,
                f"{best['recall_at_4']:.3f}",
                f"{one['p50']:.3g} / {one['p99']:.3g}",
                f"{eight['p50']:.3g} / {eight['p99']:.3g}",
                f"{engine['build_seconds']:.3g}",
                f"{engine['bytes_a_passage']:,}",
                f"{engine['resident_mb_after_queries']:,}",
            ]
        )
    header = [
        *("engine", "recall@4", "one query, ms p50 / p99", "8 region queries, ms p50 / p99"),
        *("build, s", "bytes a passage", "resident, MB"),
    ]
    return table(header, rows) + "\n" + source(results)


def _index_growth(results: Results) -> str:
    found = results["results"]
    rows = [
        [
            f"{size['passages']:,}",
            f"{size['local']['recall_at_4']:.3f}",
            f"{size['local']['8_region_queries_ms']['p50']:.1f}",
            f"{size['compiled']['8_region_queries_ms']['p50']:.1f}",
            f"{size['search_bytes_a_passage']:.0f}",
            f"{size['resident_gb_after_queries']}",
            f"{size['resident_gb_after_reading_every_vector']}",
        ]
        for size in sorted(found["sizes"].values(), key=lambda size: size["passages"])
    ]
    header = [
        *("passages", "recall@4", "8 region queries, `local:`, ms", "`compiled:`, ms"),
        *("bytes a passage to search", "resident, GB", "after reading every vector, GB"),
    ]
    note = f"\n109 million passages: {found['109 million']['arithmetic']}.\n"
    return table(header, rows) + "\n" + note + source(results).lstrip()


def _index_kill(results: Results) -> str:
    found = results["results"]
    kills = ", ".join(f"{o['kills']} in {name}" for name, o in found["operations"].items())
    said = f"{found['kills']} times `kill -9` at random moments ({kills}): "
    return f"{said}{found['failures']} failures.\n" + source(results)


def _pocket_kb(results: Results) -> str:
    found = results["results"]
    counts = found["counts"]

    def rows(what: str) -> list[list[str]]:
        splits = counts[what].items()
        return [[n, f"{s.get('train', 0):,}", f"{s.get('val', 0):,}"] for n, s in splits]

    def recall(category: str) -> str:
        fraction = found["named_recall"].get(category)
        return "" if fraction is None else f"{100 * fraction:.0f} %"

    by_category = [[*row, recall(row[0])] for row in rows("category")]
    total = counts["rows"]
    by_category.append(["all", f"{total['train']:,}", f"{total['val']:,}", recall("all")])
    note = (
        f"\n{counts['pictures']:,} pictures in {found['photos_mb']} MB; "
        f"{counts['passages_of_its_own']:,} passages of its own among "
        f"{counts['passages_in_all']:,}; built in {found['build_seconds']:.0f} s, its index in "
        f"{found['index_seconds']:.0f} s. Seed {found['seed']}, sha256 "
        f"`{found['checksum'][:16]}…`. The last column: a gold passage of the first step is among "
        "the first four of a search by words when the entity's name is put before the question.\n"
    )
    header = ["category", "train", "val", "found when named"]
    subsets = table(["subset", "train", "val"], rows("subset"))
    return f"{table(header, by_category)}\n\n{subsets}\n{note}{source(results)}"


def _okvqa(results: Results) -> str:
    systems = results["results"]["systems"]
    rows = []
    for name, found in systems.items():
        latency, peak = found["latency_ms"], found["peak_memory_bytes"]
        rows.append(
            [
                name,
                percent(found["accuracy"]),
                f"{found['tokens_mean']:.0f}",
                f"{found['passages_mean']:.0f}",
                f"{found['flops_mean'] / 1e9:.0f}",
                f"{latency['p50']:,.0f} / {latency['p95']:,.0f}" if latency else ABSENT,
                f"{peak / 1e9:.2f}" if peak else ABSENT,
            ]
        )
    header = ["OK-VQA val", "soft accuracy, %", "V'", "K'", "GFLOPs", "p50 / p95, ms", "peak GB"]
    count = next(iter(systems.values()))["num_questions"]
    note = f"\n\n{count:,} questions, in brackets 95 % bootstrap intervals over questions."
    return table(header, rows) + note + "\n" + source(results)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "ask": _ask,
    "class-gloss": _class_gloss,
    "seeing": _seeing,
    "saliency-boxes": _saliency_boxes,
    "reading": _reading,
    "verifying": _verifying,
    "kernels": _kernels,
    "pathway": _pathway,
    "routing-overhead": _routing_overhead,
    "index-recall": _index_recall,
    "index-peers": _index_peers,
    "index-growth": _index_growth,
    "index-kill": _index_kill,
    "pocket-kb": _pocket_kb,
    "stage1": trained_blocks.stage1,
    "verifier": trained_blocks.verifier,
    "small-things": trained_blocks.small_things,
    "fast-path-val": trained_blocks.fast_path,
    "okvqa": _okvqa,
    "sparse-encoder": trained_blocks.sparse_encoder,
}
