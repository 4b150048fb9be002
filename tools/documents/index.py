"""Blocks about the knowledge: search engines, growth and safety of the index, Pocket-KB.

Enters: a results file. Leaves: the Markdown of a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from skipqa.evaluation.reports.markdown import percent, table
from skipqa.evaluation.results import Results
from tools.documents.source import source


def recall(results: Results) -> str:
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


def peers(results: Results) -> str:
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
        *("build, s", "bytes per passage", "resident, MB"),
    ]
    return table(header, rows) + "\n" + source(results)


def growth(results: Results) -> str:
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
        *("bytes per passage to search", "resident, GB", "after reading every vector, GB"),
    ]
    note = f"\n109 million passages: {found['109 million']['arithmetic']}.\n"
    return table(header, rows) + "\n" + note + source(results).lstrip()


def kill(results: Results) -> str:
    found = results["results"]
    kills = ", ".join(f"{o['kills']} in {name}" for name, o in found["operations"].items())
    said = f"{found['kills']} times `kill -9` at random moments ({kills}): "
    return f"{said}{found['failures']} failures.\n" + source(results)


# Columns by their place in the results, with the numbers of passages
HELD = {
    "okvqa_named": ("OK-VQA: answer in the first {} / {}, %", (5, 20)),
    "fvqa": ("FVQA: fact stated in the first {} / {}, %", (4, 20)),
    "fvqa_named": ("with the thing named, %", (4, 20)),
}


def corpora(results: Results) -> str:
    found = results["results"]
    costs = [
        [
            name,
            f"{cost['passages']:,}",
            f"{cost['words'] / 1e6:.1f} M",
            f"{cost['index_bytes'] / 1e6:.0f}",
            f"{cost['build_seconds']:.0f}",
        ]
        for name, cost in found["corpora"].items()
    ]
    header = ["corpus", "passages", "words", "index, MB", "build, s"]
    blocks = [table(header, costs)]
    if "okvqa_named" in found:
        rows = [
            [name, *(_held(found[task][name], cuts) for task, (_, cuts) in HELD.items())]
            for name in found["okvqa_named"]
        ]
        titles = [title.format(*cuts) for title, cuts in HELD.values()]
        blocks.append(table(["passages from", *titles], rows))
        counts = [next(iter(found[task].values()))["questions"] for task in HELD]
        blocks.append(
            "{:,} questions of OK-VQA, {:,} and {:,} of FVQA, all for training; in brackets the "
            "control.".format(*counts)
        )
    return "\n\n".join(blocks) + "\n" + source(results)


def _held(rates: Results, cuts: tuple[int, int]) -> str:
    first = " / ".join(f"{100 * rates[f'first_{k}']:.1f}" for k in cuts)
    control = " / ".join(f"{100 * rates[f'control_{k}']:.1f}" for k in cuts)
    return f"{first} ({control})"


def pocket_kb(results: Results) -> str:
    found = results["results"]
    counts = found["counts"]

    def found_when_named(what: str, name: str) -> str:
        fraction = found["named_recall"][what].get(name)
        return "" if fraction is None else f"{100 * fraction:.0f} %"

    def rows(what: str) -> list[list[str]]:
        return [
            [name, f"{s.get('train', 0):,}", f"{s.get('val', 0):,}", found_when_named(what, name)]
            for name, s in counts[what].items()
        ]

    def counted(what: str, title: str, more: Sequence[list[str]] = ()) -> str:
        return table([title, "train", "val", "found when named"], [*rows(what), *more])

    total = [f"{counts['rows'][split]:,}" for split in ("train", "val")]
    every = ["all", *total, found_when_named("category", "all")]
    unseen = counts["unseen_entities"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(unseen.items()))
    note = (
        f"\n{counts['pictures']:,} images and {counts['gallery']:,} more in the gallery, in "
        f"{found['photos_mb']} MB; {counts['passages_of_its_own']:,} passages of its own among "
        f"{counts['passages_in_all']:,}; built in "
        f"{found['build_cpu_seconds']:.0f} s of CPU time, its index in "
        f"{found['index_cpu_seconds']:.0f} s. Unseen entities: {sum(unseen.values())} ({kinds}). "
        f"Seed {found['seed']}, sha256 `{found['checksum'][:16]}…`. The last column: a gold "
        "passage of the first step is among the first four of a search by words when the entity's "
        "name is put before the question.\n"
    )
    tables = [
        counted("category", "category", [every]),
        counted("subset", "subset"),
        counted("asked_by", "crowded, asked by"),
    ]
    return "\n\n".join(tables) + f"\n{note}{source(results)}"


def own_documents(results: Results) -> str:
    found = {name: one for name, one in results["results"].items() if isinstance(one, dict)}
    rows = [
        [name, *(percent(one[key]) for key in ("found", "read", "right"))]
        for name, one in found.items()
    ]
    count = next(iter(found.values()))["questions"]
    note = f"\n\n{count} questions, in brackets 95 % bootstrap intervals.\n"
    return table(["the notes", "found, %", "read, %", "right, %"], rows) + note + source(results)
