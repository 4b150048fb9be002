"""The command: fill documents, or check that none is stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from skipqa.errors import UserError
from tools.documents.fill import BLOCK, fill

ROOT = Path(__file__).parents[2]
PLACES = ("README.md", "LOG.md", "docs/*.md", "skipqa/checkpoints/*/README.md")
DOCUMENTS = [
    path
    for place in PLACES
    for path in sorted(ROOT.glob(place))
    if BLOCK.search(path.read_text(encoding="utf-8"))
]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.documents", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", default=DOCUMENTS, help="default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if any is stale")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--runs", type=Path, default=ROOT / "benchmarks" / "runs")
    chosen = parser.parse_args(arguments)
    stale = []
    for document in chosen.files:
        if not document.is_file():
            raise UserError(f"no such file: {document}")
        old = document.read_text(encoding="utf-8")
        new = fill(old, chosen.results, chosen.runs)
        if new != old:
            stale.append(str(document))
            if not chosen.check:
                document.write_text(new, encoding="utf-8")
    if chosen.check and stale:
        raise UserError(f"stale: {', '.join(stale)}; run `make docs`")
    print(f"changed: {', '.join(stale) or 'nothing'}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
