"""skipqa setup: downloads, converts and builds what the first question needs."""

from __future__ import annotations

from skipqa.cli.console import (
    Json,
    counting,
    err,
    megabytes,
    plural,
    prepare_process,
    print_json,
    working,
)


def setup(json: Json = False) -> None:
    """Download the models, convert them, and build the default indexes, one for each corpus.

    Finished steps are skipped, so run it again after an interruption. It downloads about 250 MB and
    needs 1 GB in the cache folder (SKIPQA_HOME). The first question with --untrained adds 0.5 GB.

    Example:

      skipqa setup
    """
    prepare()
    if json:
        from skipqa import assets
        from skipqa.knowledge.default import default_indexes

        indexes = {name: str(folder) for name, folder in default_indexes().items()}
        print_json({"home": str(assets.home()), "indexes": indexes})


def prepare() -> None:
    from skipqa.backbones.presets.pocket import FineTuned, Pocket
    from skipqa.components import bundled, load
    from skipqa.config import preset

    prepare_process()
    with working("checking the models") as report:
        folder = bundled("pocket")
        assert folder is not None
        trained = load(folder, preset="pocket")
        learned = FineTuned(trained.tagger, trained.vision, trained.question, trained.reader)
        Pocket(preset("pocket").encode, report, learned).prepare()
    _build_indexes()
    err.print("ready")


def _build_indexes() -> None:
    from skipqa.knowledge.default import build_default, left_out, superseded, unbuilt
    from skipqa.knowledge.estimate import estimate

    if missing := unbuilt():
        expected = estimate(missing)
        _say(
            f"indexing {', '.join(missing)}: about {plural(expected.passages, 'passage')}, "
            f"{megabytes(expected.index_bytes)}, {max(1, round(expected.seconds))} s"
        )
        with counting() as progress:
            build_default(progress)
    for name in left_out():
        _say(f"{name} is left out: it is not available here")
    if (old := superseded()) is not None:
        size = sum(path.stat().st_size for path in old.rglob("*") if path.is_file())
        _say(f"the index of an earlier release is not used any more: {old} ({megabytes(size)})")


def _say(line: str) -> None:
    err.print(line, markup=False, highlight=False, soft_wrap=True)
