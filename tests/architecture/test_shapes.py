"""The shapes of the code, read from the source with `ast`: stages, parameters, results, pools."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import skipqa

ROOT = Path(skipqa.__file__).parent
STAGE_FOLDERS = (ROOT / "stages", ROOT / "evaluation" / "systems")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[Path, ast.Module]:
    """Not at import: every process of pytest imports this, and one of them runs it."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))
    }


def place(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def parameters(function: Function) -> list[ast.arg]:
    """Without self, cls and the packed ones."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [arg for arg in named if arg.arg not in ("self", "cls")]


def annotation(arg: ast.arg) -> str:
    return "" if arg.annotation is None else ast.unparse(arg.annotation)


def stage_calls() -> Iterator[tuple[Path, str, Function]]:
    """`__call__` of every class that takes a State and a StageRecord."""
    for path, tree in trees().items():
        if not any(path.is_relative_to(folder) for folder in STAGE_FOLDERS):
            continue
        for node in ast.walk(tree):
            for item in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(item, Function) and item.name == "__call__":
                    kinds = {annotation(arg) for arg in parameters(item)}
                    if {"State", "StageRecord"} <= kinds:
                        yield path, node.name, item


def test_a_stage_takes_a_state_and_a_record_and_nothing_else() -> None:
    found = list(stage_calls())
    assert len(found) > 11, "the eleven stages, and those of other systems"
    for path, name, call in found:
        signature = [(arg.arg, annotation(arg)) for arg in parameters(call)]
        expected = [("state", "State"), ("record", "StageRecord")]
        assert signature == expected, f"{place(path, call)} {name}"
        assert call.returns is not None
        assert ast.unparse(call.returns) == "State", f"{place(path, call)} {name}"
        assert call.args.vararg is call.args.kwarg is None, f"{place(path, call)} {name}"


FREE = (ROOT / "ops", ROOT / "cli")  # kernels take what they compute on, commands their options
MOST_PARAMETERS, MOST_EXCEPTIONS = 6, 15


def test_few_functions_have_many_parameters() -> None:
    """What belongs together is one value that means something."""
    many = [
        f"{place(path, node)} {node.name} has {len(parameters(node))}"
        for path, tree in trees().items()
        if not any(path.is_relative_to(folder) for folder in FREE)
        for node in ast.walk(tree)
        if isinstance(node, Function)
        and node.name != "__init__"
        and len(parameters(node)) > MOST_PARAMETERS
    ]
    assert len(many) <= MOST_EXCEPTIONS, "\n".join(many)


def test_a_record_has_counts_and_costs_and_no_result() -> None:
    """What a stage found is in the state; `future.result()` is another thing."""
    wrong = []
    for path, tree in trees().items():
        calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        wrong += [
            place(path, node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr == "result" and id(node) not in calls
        ]
    assert not wrong, "\n".join(wrong)


def run_on_import(tree: ast.Module) -> Iterator[ast.AST]:
    """What importing a module runs: everything but the bodies of functions."""
    remaining: list[ast.AST] = [tree]
    while remaining:
        node = remaining.pop()
        yield node
        inside = ast.iter_child_nodes(node)
        if isinstance(node, Function | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            inside = (child for child in inside if child not in body)
        remaining.extend(inside)


POOLS = {"ThreadPoolExecutor", "ProcessPoolExecutor", "Pool", "ThreadPool"}


def test_no_module_holds_a_pool() -> None:
    wrong = []
    for path, tree in trees().items():
        for node in run_on_import(tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
                name = called.id if isinstance(called, ast.Name) else called
                if name in POOLS:
                    wrong.append(place(path, node))
    assert not wrong, "\n".join(wrong)
