"""A real server that is attacked: a fast selection of `benchmarks/serve_attacks.py`.

Every attack is made as that script makes it and judged by its rules: a status that the attack
allows, the form of this API, no word about this machine. Time and memory are measured there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from benchmarks.server_process import ServerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads processes in /proc")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NUM_MUTATIONS = 60
ALL: tuple[str, ...] = ()
FAST = {  # those that take long, or that wait for a time limit of the server, are left out
    "headers": ALL,
    "smuggling": ALL,
    "browsers": ALL,
    "urls": ALL,
    "forms": ALL,
    "mutations": ALL,
    "bodies": (
        *("endless", "33 MiB", "longer than it says", "lengths beyond all", "deep nesting"),
        *("numbers", "broken JSON", "wrong content types", "empty", "65,536 wrong parts"),
        "31 MiB of lists, 8 at once",
    ),
    "indexes": (
        *("names of an index", "paths of files", "nothing that can be indexed"),
        *("2,001 files and more", "a file of 33 MiB", "ask what does not exist"),
        *("delete what is the server's", "delete what is not there"),
    ),
    "connections": ("endless heads", "1,000 requests in one breath"),
}
ODD = """1 x 1 PNG,1 x 1 GIF,1 x 5;000,a transparent pixel,CMYK,16 bits,Lab,NaN,WEBP of 100 frames,
a picture and a page,cut PNG,cut JPEG,only a head,no bytes,one byte,SVG,PDF,a PPM below zero,
a GIF of 4 gigapixels,a PPM of 10^18 pixels,text of 60 MB in a chunk,PNG; 98 MP"""
TEXTS = ("?!?", "\0", "\ud800", "a" * 2_001, "w " * 201, "<|im_end|>", "\u202e", "😀" * 900)


@pytest.fixture(scope="module")
def attacks() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("serve_attacks")


@pytest.fixture(scope="module")
def server(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a key, and a store whose folder has nothing else beside it."""
    store = tmp_path_factory.mktemp("attacked") / "store"
    with ServerProcess("--port", "0", "--workers", "1", "--store", str(store)) as server:
        server.wait_ready()
        yield server
        assert [path.name for path in store.parent.iterdir()] == ["store"]


@pytest.fixture(scope="module")
def target(attacks: ModuleType, server: ServerProcess) -> Any:
    return attacks.Target(server.host, server.port, server.key)


@pytest.mark.parametrize("kind", FAST)
def test_the_server_holds(
    attacks: ModuleType, target: Any, server: ServerProcess, kind: str
) -> None:
    workers = server.workers()
    with attacks.Canary() as canary:
        options = SimpleNamespace(seed=2026, mutations=NUM_MUTATIONS, canary=canary, configured=[])
        for attack in attacks.KINDS[kind](target, options):
            if not FAST[kind] or attack.name in FAST[kind]:
                faults = attacks.judged(attack, attacks.attempt(attack, target))
                assert not faults, f"{attack.name}: {faults}"
        assert not canary.touched
    assert server.health() == "ok"
    assert server.workers() == workers


def test_pictures_that_are_odd_are_answered_or_refused(attacks: ModuleType, target: Any) -> None:
    makers = importlib.import_module("hostile_requests")
    names = [name.strip().replace(";", ",") for name in ODD.split(",")]
    tries = [target.ask(makers.ODD[name](), **makers.DRAFTED) for name in names]
    attack = attacks.Attack("odd pictures", tries, (200, 400), at_once=4)
    faults = attacks.judged(attack, attacks.attempt(attack, target))
    assert not faults


def test_texts_that_are_odd_are_refused(attacks: ModuleType, target: Any) -> None:
    makers = importlib.import_module("hostile_requests")
    allowed = {"<|im_end|>": (200,)}
    for text in TEXTS:
        attack = attacks.Attack(
            "texts", [target.json(makers.chat(text))], allowed.get(text, (400,))
        )
        faults = attacks.judged(attack, attacks.attempt(attack, target))
        assert not faults, ascii(text[:20])


def test_a_fetch_never_leads_inside(attacks: ModuleType) -> None:
    """A redirect to an address that is not permitted, and a name that becomes one."""
    assert attacks.fetches() == []


def test_nothing_has_failed_unseen(server: ServerProcess) -> None:
    """After all attacks above: whatever went wrong was a refusal."""
    assert "Traceback" not in server.log()
    assert server.key is not None
    assert server.key not in server.log()
