"""skipqa index: build, change, search and check an index of passages."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from skipqa.cli.console import (
    ComponentsFolder,
    Json,
    counting,
    err,
    megabytes,
    out,
    plural,
    print_facts,
    print_json,
)
from skipqa.cli.index_build import announce, conclude, say_if_own
from skipqa.errors import UserError

if TYPE_CHECKING:
    from skipqa.knowledge.index.encode import Embed

app = typer.Typer(
    help="Build, change, search and check an index of passages.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

NAMES_SHOWN = 10  # of things known by sight, so that a badly named photo is noticed
Folder = Annotated[Path, typer.Argument(help="Folder of the index.", show_default=False)]
Uri = Annotated[
    str, typer.Argument(help="Folder of the index, or ENGINE:folder.", show_default=False)
]
Corpus = Annotated[
    list[str],
    typer.Argument(
        help="`wordnet`, `factbook`, `conceptnet`, `gcide`, a folder of texts, a .txt, .md or "
        ".html file, a .jsonl, .csv or .tsv, a Wikipedia .xml or a Wikidata .json; tables and "
        "dumps may be compressed (.gz, .bz2, .xz). Several corpora go into one index.",
        show_default=False,
    ),
]
General = Annotated[
    bool,
    typer.Option(
        "--general",
        help="General knowledge, such as an encyclopedia: questions that need no lookup are "
        "answered without it. Otherwise files are your own documents, where a question is looked "
        "up unless a quick answer is nearly certain. Built-in corpora and dumps of Wikipedia and "
        "Wikidata always count as general.",
    ),
]


@app.command()
def build(
    folder: Folder,
    corpus: Corpus,
    splade: Annotated[
        str | None,
        typer.Option(help="SPLADE model (folder or Hugging Face id). Default: lexical matching."),
    ] = None,
    trained_query: Annotated[
        Path | None,
        typer.Option(
            help="Trained query encoder (sparse_query.safetensors from `skipqa train splade`). "
            "It does not slow down the build."
        ),
    ] = None,
    embeddings: Annotated[
        bool, typer.Option(help="Store a text embedding per passage (slow, 768 bytes each).")
    ] = False,
    shards: Annotated[int, typer.Option(min=1, help="Split the index into this many shards.")] = 1,
    ray: Annotated[int, typer.Option(min=0, help="Encode with this many Ray workers.")] = 0,
    general: General = False,
    json: Json = False,
) -> None:
    """Build an index. An old one in the folder stays in use until the new one is complete.

    If the build is interrupted, run the same command again to resume it. `skipqa ask --index
    my-index` searches this index alone, `--index default --index my-index` the default corpora too.

    One index per corpus finds more where passages differ in length: in a common index the long
    ones of one corpus push the short ones of another down.

    Examples:

      skipqa index build my-index notes/

      skipqa index build my-index articles.jsonl notes/

      skipqa index build my-index wordnet --trained-query runs/splade/sparse_query.safetensors

      skipqa index build wiki simplewiki.jsonl.xz --general

      skipqa index build wiki enwiki-pages-articles.xml.bz2 --splade ./splade-checkpoint
    """
    from skipqa.knowledge import index
    from skipqa.knowledge.index import Execution, Settings
    from skipqa.knowledge.sources import open_source
    from skipqa.knowledge.sparse_encoder import LexicalEncoder, SparseEncoder

    if splade is not None and trained_query is not None:
        raise UserError("give --splade or --trained-query, not both: an index has one encoder")
    if trained_query is not None and not trained_query.is_file():
        raise UserError(
            f"no trained query encoder at {trained_query}: `skipqa train splade` writes one"
        )
    sources = [open_source(spec) for spec in corpus]
    expected = announce(folder, corpus, timed=splade is None and not embeddings)
    encoder: SparseEncoder
    if splade is not None:
        from skipqa.knowledge.splade import SpladeEncoder

        encoder = SpladeEncoder(splade)
    elif trained_query is not None:
        from skipqa.knowledge.trained_query import QueryNetwork, TrainedQueryEncoder
        from skipqa.knowledge.vocabulary import Vocabulary

        encoder = TrainedQueryEncoder(Vocabulary.default(), QueryNetwork(trained_query))
    else:
        encoder = LexicalEncoder.default()
    if ray:
        from skipqa.knowledge.engines.ray import RayEncoder

        encoder = RayEncoder(encoder, folder / "ray", ray)
    started = time.perf_counter()
    with counting(expected) as report:
        # Ray starts a job per batch, so its batches are larger.
        execution = Execution(report, 1 << 16) if ray else Execution(report)
        settings, embed = Settings(shards=shards), _embed(embeddings)
        outcome = index.build(folder, sources, encoder, settings, embed, execution, general=general)
    conclude(folder, outcome, time.perf_counter() - started, json)


@app.command()
def add(folder: Folder, corpus: Corpus, general: General = False, json: Json = False) -> None:
    """Add passages. A passage whose id already exists is replaced.

    An index of general knowledge (`--general`) counts as your own documents once you add some. A
    file named like one that the index has updates that corpus, which stays as general as it was.

    Examples:

      skipqa index add my-index more.jsonl

      skipqa index add wiki wiktionary.jsonl --general
    """
    from skipqa.knowledge import Index, index
    from skipqa.knowledge.sources import open_source

    sources = [open_source(spec) for spec in corpus]
    old = Index.open(folder)
    embed = _embed(old.embeddings([]) is not None)
    started = time.perf_counter()
    with counting() as report:
        outcome = index.add(folder, sources, embed, index.Execution(report), general=general)
    conclude(folder, outcome, time.perf_counter() - started, json, "added to")
    say_if_own(old, Index.open(folder))


@app.command()
def photos(
    folder: Folder,
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder of photos, each named after what it shows (`Rex.jpg`, `Rex 2.jpg`), or "
            "a .jsonl with `name`, `image` and perhaps `kind`.",
            show_default=False,
        ),
    ],
    images: Annotated[
        Path | None,
        typer.Option(help="Zip or folder of a .jsonl's images. Default: the folder it lies in."),
    ] = None,
    components: ComponentsFolder = None,
    json: Json = False,
) -> None:
    """Show an index what its things look like: one labelled photo of each is enough.

    `skipqa ask --index my-index` then knows them by sight and looks them up by name. The photos
    themselves are not stored. Those that the index had before are replaced.

    Examples:

      skipqa index photos my-index photos/

      skipqa index photos pocket-kb/index pocket-kb/gallery.jsonl --images pocket-kb/photos.zip
    """
    from skipqa.backbones.presets.pocket import FineTuned, Pocket
    from skipqa.cli.labelled import labelled_photos
    from skipqa.components import load_for
    from skipqa.config import preset
    from skipqa.knowledge import photos as by_sight
    from skipqa.knowledge.index.format import read_manifest

    read_manifest(folder)  # before any work: there is an index
    learned = load_for("pocket", components)
    backbone = Pocket(preset("pocket").encode, err.print, FineTuned(vision=learned.vision))
    started = time.perf_counter()
    with counting() as report:
        found = by_sight.describe(labelled_photos(source, images, report), backbone.vision)
    path = by_sight.write(folder, found)
    known = learned.tagger.config.names if learned.tagger is not None else ()
    new = len(set(found.names) - set(known))
    if json:
        print_json(
            {
                "names": len(found),
                "new": new,
                "bytes": path.stat().st_size,
                "seconds": time.perf_counter() - started,
            }
        )
    else:
        more = "" if len(found) <= NAMES_SHOWN else ", …"
        out.print(
            f"{plural(len(found), 'thing')} known by sight, {new:,} of them new to the tagger, in "
            f"{megabytes(path.stat().st_size)}: {', '.join(found.names[:NAMES_SHOWN])}{more}"
        )


@app.command()
def delete(
    folder: Folder,
    ids: Annotated[
        list[str], typer.Argument(help="Passage ids; `-` reads them from standard input.")
    ],
    json: Json = False,
) -> None:
    """Delete passages by id.

    Examples:

      skipqa index delete my-index articles:17 articles:17#1

      skipqa index delete my-index - < ids.txt
    """
    from skipqa.knowledge import index

    if ids == ["-"]:
        ids = [
            line.strip()
            for line in typer.get_text_stream("stdin", errors="replace")
            if line.strip()
        ]
    with counting() as report:
        deleted = index.delete(folder, ids, report)
    if json:
        print_json({"asked": len(ids), "deleted": deleted})
    else:
        out.print(f"{deleted:,} of {plural(len(ids), 'passage')} deleted")


@app.command()
def compact(folder: Folder, json: Json = False) -> None:
    """Merge additions and remove deleted passages from disk.

    `add` and `delete` do this automatically from time to time.

    Example:

      skipqa index compact my-index
    """
    from skipqa.knowledge import index

    with counting() as report:
        index.compact(folder, report)
    info(folder, json)


@app.command()
def search(
    uri: Annotated[
        str,
        typer.Argument(
            help="Folder of the index, ENGINE:folder, or `default` for the default corpora.",
            show_default=False,
        ),
    ],
    questions: Annotated[list[str], typer.Argument(help="One or more questions or keywords.")],
    index: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Another index to search with it. Can be repeated."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Passages per query.")] = 4,
    json: Json = False,
) -> None:
    """Find passages in one index or several.

    Several questions are searched in one pass. What several indexes find makes one list, in the
    order that `skipqa ask` has.

    Examples:

      skipqa index search my-index "strong black coffee"

      skipqa index search exact:my-index "capital of France" -k 10 --json

      skipqa index search default "strong black coffee" --index my-index
    """
    from skipqa.config import RetrieveConfig
    from skipqa.files import is_text
    from skipqa.knowledge import Library
    from skipqa.knowledge.library import merge
    from skipqa.knowledge.text_query import same_length

    if not all(map(is_text, questions)):
        raise UserError("a question is not UTF-8 text")
    config = RetrieveConfig()
    library = Library.open([uri, *(index or ())])
    sources = library.searched(library.weights(config.general_weight))
    by_question = [
        same_length([[source.index.encoder.encode_query(question)] for source in sources])
        for question in questions
    ]
    started = time.perf_counter()
    hits = [
        source.index.search([query for (query,) in asked], k)
        for source, asked in zip(sources, zip(*by_question, strict=True), strict=True)
    ]
    ranked = [
        merge(sources, [[found] for found in of_one], config.index_sharpness)[:k]
        for of_one in zip(*hits, strict=True)
    ]
    milliseconds = (time.perf_counter() - started) * 1e3
    if json:
        results = [
            {
                "question": question,
                "hits": [
                    {
                        "score": hit.score,
                        "relative": round(hit.relative, 4),
                        "index": library.name_of(hit.row),
                        **asdict(library.passage(hit.row)),
                    }
                    for hit in found
                ],
            }
            for question, found in zip(questions, ranked, strict=True)
        ]
        print_json({"milliseconds": round(milliseconds, 3), "results": results})
        return
    for question, found in zip(questions, ranked, strict=True):
        table = Table(title=question, title_justify="left", show_edge=False, box=None)
        table.add_column("score", justify="right", style="cyan")
        table.add_column("index", style="dim")
        table.add_column("passage", style="bold")
        table.add_column("text")
        for hit in found:
            passage = library.passage(hit.row)
            table.add_row(f"{hit.score:.2f}", library.name_of(hit.row), passage.id, passage.text)
        out.print(table if found else f"{question}\n  nothing found")
    err.print(f"{milliseconds:.1f} ms over {plural(len(library), 'passage')}")


@app.command()
def info(folder: Folder, json: Json = False) -> None:
    """Show what an index contains and how it was built.

    Example:

      skipqa index info my-index
    """
    from skipqa.knowledge import Index
    from skipqa.knowledge import photos as by_sight

    index = Index.open(folder)
    photographed = by_sight.read(folder)
    sizes: dict[str, int] = {}
    for segment in index.segments:
        for name, file in segment.files.items():
            kind = name.partition(".")[0]
            sizes[kind] = sizes.get(kind, 0) + file["bytes"]
    vectors = sum(sizes.get(kind, 0) for kind in ("forward", "lists", "runs", "frequencies"))
    sources, own = index.manifest["corpus"]["sources"], index.own_sources
    held = {
        "passages": len(index),
        "sources": sources,
        "general": [source for source in sources if source not in own],
        "corpus_hash": index.manifest["corpus"]["hash"],
        "bad_rows": index.manifest["corpus"]["bad_rows"],
        "encoder": index.manifest["encoder"]["config"],
        "settings": index.manifest["settings"],
        "segments": len(index.segments),
        "generation": index.manifest["generation"],
        "bytes": sizes,
        "bytes_per_passage": round(sum(sizes.values()) / max(1, len(index)), 1),
        "search_bytes_per_passage": round(vectors / max(1, len(index)), 1),
        "known_by_sight": 0 if photographed is None else len(photographed),
    }
    if json:
        print_json(held)
        return
    print_facts(held)


@app.command()
def verify(folder: Folder, json: Json = False) -> None:
    """Check every file of an index against its checksum. The exit code is 1 if one fails.

    Example:

      skipqa index verify my-index
    """
    from skipqa.knowledge import index
    from skipqa.knowledge import photos as by_sight

    with err.status("checking every file"):
        faults = index.verify(folder) + by_sight.verify(folder)
    if json:
        print_json({"intact": not faults, "faults": faults})
    else:
        out.print("\n".join(faults) or "intact")
    if faults:
        raise typer.Exit(1)


@app.command()
def bench(
    uri: Uri,
    queries: Annotated[int, typer.Option(min=8, help="Number of queries.")] = 200,
    k: Annotated[int, typer.Option("-k", min=1, help="Passages per query.")] = 4,
    json: Json = False,
) -> None:
    """Measure the latency and the recall of searches, compared with exact search.

    The queries are made from passages of the index.

    Examples:

      skipqa index bench my-index

      skipqa index bench compiled:my-index --queries 1000 --json
    """
    from skipqa.knowledge.measure import measure

    with counting() as report:
        found = measure(uri, queries, k, report)
    if json:
        print_json(found)
    else:
        print_facts(found)


def _embed(enabled: bool) -> Embed | None:
    if not enabled:
        return None
    from skipqa.backbones.presets.pocket import Pocket
    from skipqa.config import preset

    encode = Pocket(preset("pocket").encode).encode_texts
    return lambda texts: encode(texts).embeddings.numpy()
