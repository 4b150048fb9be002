"""Do tokens say what is at their own place? Names of boxes, by windows and by cells.

Every box is named by the mean evidence of its cells among all names that the cell tagger knows, in
three kinds of images that nothing was trained on: composites of held-out photos, with one to six
things pasted at known boxes; held-out photos of COCO as they are; and Pocket-KB's crowded images,
held-out ones and those of `val`. "windows" is the tagger over windows and scales, "cells" the cell
tagger. None says how many cells of things the cell tagger calls none of its names.

    python benchmarks/local_tokens.py --data DATA --pocket-kb FOLDER [--components FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.components import load_for
from skipqa.costs.environment import write_results
from skipqa.errors import UserError
from skipqa.training.cells.material import Material
from skipqa.training.cells.quality import BANDS, quality
from skipqa.training.cells.scenes import check_scales
from skipqa.training.cells.stage import vision_of
from skipqa.training.grounding.examples import read_boxes
from skipqa.training.pipelines import Source
from skipqa.training.stage1 import mixture

COLUMNS = (*(name for name, _ in BANDS), "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="as training reads it")
    parser.add_argument("--pocket-kb", type=Path, required=True)
    parser.add_argument("--components", type=Path, help="default: the bundled ones")
    parser.add_argument("--images", type=int, default=500, help="of each kind")
    parser.add_argument("--limit", type=int, help="rows of each file to read")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    source = Source(components=options.components)
    check_scales(source.config.encode)
    components = load_for(source.preset, source.folder)
    if (model := components.cell_tagger) is None:
        raise UserError("these components have no cell tagger: give --components")
    vision = vision_of(source)
    names = list(zip(model.config.kinds, model.config.names, strict=True))
    whole = mixture.read(options.data, options.pocket_kb, options.limit)
    boxes = read_boxes(options.data)
    material = Material.of(whole, boxes, names, lambda *_: None, err.print)
    model = model.to(next(vision.network.parameters()).device)
    found = quality(model, vision, material.scored(options.images, options.seed))

    table = Table("images", "named by", *COLUMNS, "none")
    for what, ways in found.items():
        for way, sides in ways.items():
            cells = (
                f"{100 * sides[name]['named']:.1f} ({sides[name]['boxes']:,})"
                if name in sides
                else "–"
                for name in COLUMNS
            )
            none = sides["all"].get("none")
            table.add_row(what, way, *cells, "–" if none is None else f"{100 * none:.1f}")
    out.print(table)
    results = {"seed": options.seed, "images": options.images, "names": len(names), "found": found}
    path = write_results(results, "local_tokens", options.out, components.checksums())
    err.print(f"written to {path}")


if __name__ == "__main__":
    main()
