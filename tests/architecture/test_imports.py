"""The rules of the tree, read from the source with `ast`.

Arrows point one way: what a box of the figure may know is listed here, and nothing else. An
import counts wherever it stands, also inside a function or for types only.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skipqa

ROOT = Path(skipqa.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

BASE = {"types", "errors", "files", "config", "assets", "trace"}
PLAIN = BASE | {"image", "language", "wordnet"}  # no networks, no stages
BELOW_STAGES = PLAIN | {
    *("state", "confidence", "components", "ops", "nn", "backbones", "knowledge"),
}
BELOW_PIPELINE = BELOW_STAGES | {"stages", "costs", "outline", "notebook", "answer"}
BELOW_CLI = BELOW_PIPELINE | {
    *("files", "parallel", "pipeline", "explain", "data", "tasks", "figures"),
}

# box: what it may import of skipqa
MAY_KNOW: dict[str, set[str]] = {
    "__init__": {"client", "errors", "knowledge", "model", "pipeline", "plugin"},
    "errors": set(),
    "cluster": {"errors"},
    "types": set(),
    "language": set(),
    "wordnet": set(),
    "config": {"errors", "types"},
    "files": {"errors"},
    "parallel": {"errors"},
    "assets": {"errors"},
    "trace": set(),
    "state": {"types"},
    "confidence": {"config", "types"},
    "outline": {"backbones", "config", "costs", "stages", "state", "trace", "types"},
    "answer": {"notebook", "outline", "stages", "state", "trace", "types"},
    "image": {"errors"},
    "ops": BASE,
    "nn": BASE | {"ops"},
    "backbones": PLAIN | {"ops", "nn"},
    "knowledge": BASE - {"trace"} | {"cluster", "wordnet", "backbones"},
    "stages": BELOW_STAGES,
    "components": BASE | {"ops", "nn"},
    "pipeline": BELOW_PIPELINE,
    "explain": {"answer", "notebook", "outline", "state", "types", "errors", "backbones"},
    "costs": {"types", "errors", "config", "nn", "ops", "backbones"},
    "figures": {"errors"},
    "tasks": {"types", "errors", "files", "language", "data"},
    "data": PLAIN | {"files", "knowledge"},
    "training": BELOW_CLI | {"evaluation", "text_only"},
    "evaluation": BELOW_CLI,
    "claims": BELOW_CLI | {"evaluation"},
    "client": {"errors", "image", "notebook"},
    "notebook": set(),
    "batch": BELOW_PIPELINE | {"cluster", "pipeline"},
    "harness": {"errors", "image", "pipeline", "tasks"},
    "plugin": {"errors"},
    "model": BELOW_PIPELINE | {"pipeline", "plugin"},
    "prompted": PLAIN | {"state", "knowledge", "stages"},
    "synthetic": PLAIN | {"state", "knowledge", "pipeline", "prompted"},
    "text_only": BELOW_PIPELINE | {"pipeline"},
    "serve": BELOW_CLI | {"cluster", "evaluation", "text_only"},
    "cli": BELOW_CLI
    | {"training", "evaluation", "claims", "serve", "prompted", "batch", "synthetic"},
    "__main__": {"cli"},
}


def box_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted names and lines of everything imported anywhere in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            assert node.module is not None
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def at_module_level(path: Path) -> Iterator[str]:
    """Top-level packages that importing the module imports; `if TYPE_CHECKING:` is not run."""

    def visit(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from (name.partition(".")[0] for name, _ in imports(node))
            elif isinstance(node, ast.If):
                if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                    yield from visit(node.body)
                yield from visit(node.orelse)
            elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
                yield from visit(node.body)

    return visit(ast.parse(path.read_text(encoding="utf-8")).body)


def test_every_box_has_its_place() -> None:
    assert {box_of(path) for path in MODULES} <= set(MAY_KNOW), "add new boxes to MAY_KNOW"


def test_no_box_can_reach_itself() -> None:
    """The table itself has no cycle, so no arrow can point back."""
    remaining = {box: set(known) for box, known in MAY_KNOW.items()}
    while remaining:
        free = [box for box, known in remaining.items() if not known & remaining.keys()]
        assert free, f"a cycle among {sorted(remaining)}"
        for box in free:
            del remaining[box]


def test_arrows_point_one_way() -> None:
    wrong = []
    for path in MODULES:
        box = box_of(path)
        for name, line in imports(ast.parse(path.read_text(encoding="utf-8"))):
            parts = name.split(".")
            if parts[0] != "skipqa" or parts[1:] == ["__version__"]:
                continue
            target = parts[1]
            if target != box and target not in MAY_KNOW[box]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} {box} must not know {target}")
    assert not wrong, "\n".join(wrong)


def test_no_file_holds_two_ideas() -> None:
    lengths = {path.relative_to(ROOT): path.read_text().count("\n") for path in MODULES}
    assert {path: n for path, n in lengths.items() if n > 500} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


HEAVY = {"torch", "transformers", "tokenizers", "PIL", "numpy", "safetensors", "gguf"}


def test_command_line_starts_light() -> None:
    for path in (ROOT / "cli").glob("*.py"):
        assert not set(at_module_level(path)) & HEAVY, path.name


def test_command_line_really_starts_light() -> None:
    """Also what those modules import in turn."""
    code = "import sys, skipqa.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & HEAVY


# These also run where only torch is installed: on a training machine or beside a kernel.
TENSOR_CODE = sorted(
    [
        *(ROOT / "ops").rglob("*.py"),
        *(ROOT / "nn").rglob("*.py"),
        *(ROOT / "backbones" / "networks").rglob("*.py"),
    ]
)
FILE_FORMATS = {ROOT / "nn" / "checkpoint.py": {"safetensors"}}


@pytest.mark.parametrize("path", TENSOR_CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_tensor_code_needs_torch_and_nothing_else(path: Path) -> None:
    allowed = {"skipqa", "torch", "numpy", "triton", *sys.stdlib_module_names}
    assert set(at_module_level(path)) <= allowed | FILE_FORMATS.get(path, set())
