"""skipqa setup: downloads, converts and builds what the first question needs."""

from __future__ import annotations

from skipqa.cli.console import Json, counting, err, prepare_process, print_json, working


def setup(json: Json = False) -> None:
    """Download the models, convert them, and build the default index (WordNet + Factbook).

    Finished steps are skipped, so run it again after an interruption. It downloads about 250 MB and
    needs 1 GB in the cache folder (SKIPQA_HOME). The first question with --untrained adds 0.5 GB.

    Example:

      skipqa setup
    """
    prepare()
    if json:
        from skipqa import assets
        from skipqa.knowledge import default_index_path

        print_json({"home": str(assets.home()), "index": str(default_index_path())})


def prepare() -> None:
    from skipqa.backbones.presets.pocket import FineTuned, Pocket
    from skipqa.components import bundled, load
    from skipqa.config import preset
    from skipqa.knowledge import build_default, default_index_is_built
    from skipqa.knowledge.estimate import estimate

    prepare_process()
    with working("checking the models") as report:
        folder = bundled("pocket")
        assert folder is not None
        trained = load(folder, preset="pocket")
        learned = FineTuned(trained.tagger, trained.vision, trained.question, trained.reader)
        Pocket(preset("pocket").encode, report, learned).prepare()
    if not default_index_is_built():
        with counting(estimate(["wordnet", "factbook"]).passages) as progress:
            build_default(progress=progress)
    err.print("ready")
