"""The store of uploaded indexes, with real builds in real processes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.serve import store as stores
from skipqa.serve.build_index import UploadedDocuments
from skipqa.serve.index_jobs import EMPTY_INDEX_BYTES
from skipqa.serve.index_upload import safe_path
from skipqa.serve.store import IndexStatus, IndexStore, Limits

QUOTA = 200_000_000
QUICK = Limits(linger_s=0.0)
OTTERS = {"otters.md": b"# Otters\nOtters eat fish and crabs."}
BADGERS = {"badgers.txt": b"Badgers dig setts in woodland."}
ROWS = 16_000  # a build of more than a second

EMPTY = {".lock", "store.json"}  # of a store without indexes


@pytest.fixture(scope="module", autouse=True)
def tokenizer() -> None:
    """Fetched before builds are timed."""
    LexicalEncoder.default()


@asynccontextmanager
async def started(
    folder: Path, limits: Limits = QUICK, quota: int = QUOTA
) -> AsyncIterator[IndexStore]:
    store = IndexStore(folder, quota, limits, reserved=["pocket"])
    await store.start()
    try:
        async with asyncio.timeout(60):
            yield store
    finally:
        await store.stop()


def upload(store: IndexStore, name: str, files: Mapping[str, bytes]) -> IndexStatus:
    with store.create(name) as one:
        for path, content in files.items():
            one.add(path, [content])
        return one.commit()


async def until(store: IndexStore, condition: Callable[[], object]) -> None:
    while not condition():
        await store.changed()


async def built(store: IndexStore, name: str) -> IndexStatus:
    await until(store, lambda: store.status(name).status != "building")
    return store.status(name)


def table(rows: int = ROWS) -> dict[str, bytes]:
    lines = (
        json.dumps({"id": i, "text": f"Otter number {i} eats fish in river {i % 97}."})
        for i in range(rows)
    )
    return {"rivers.jsonl": "\n".join(lines).encode()}


def found(path: Path, question: str) -> list[str]:
    """Ids of the passages that an index of this folder has for a question."""
    library = Library.open([path])
    (source,) = library.searched({})
    (hits,) = source.index.search([source.index.encoder.encode_query(question)], 5)
    return [library.passage(hit.row).id for hit in hits]


def files_in(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def left_of(folder: Path, name: str) -> set[str]:
    """File names in all generations of an index."""
    return {path.partition("/")[2] for path in files_in(folder / name)}


def test_an_upload_becomes_an_index_that_can_be_searched(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            first = await asyncio.to_thread(upload, store, "notes", OTTERS | table(6_000))
            assert (first.status, first.documents, first.passages) == ("building", 2, 0)
            with pytest.raises(stores.NotReady, match="still being built"):
                store.path("notes")
            seen = []
            while (status := store.status("notes")).status == "building":
                seen.append((status.progress.step, status.progress.done))
                await store.changed()
            steps = list(dict.fromkeys(step for step, _ in seen))
            assert steps == ["waiting", "starting", "encoding", "inverting"]
            done = [count for step, count in seen if step == "encoding"]
            assert done == sorted(done)
            assert len(set(done)) > 1
            assert (status.status, status.passages, status.error) == ("ready", 6_001, None)
            assert found(store.path("notes"), "crabs") == ["notes:otters.md"]
            assert "notes:rivers.jsonl:17" in found(store.path("notes"), "number 17")
            assert Library.open([store.path("notes")]).names == ("notes",)
            assert store.list() == [status]
            assert store.used_bytes() == status.bytes > EMPTY_INDEX_BYTES / 2

    asyncio.run(run())


def test_a_status_has_the_fields_of_the_interface(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            upload(store, "notes", OTTERS | {"old.pdf": b"%PDF"})
            told = (await built(store, "notes")).as_dict()
            size, created = told.pop("bytes"), told.pop("created")
            assert (
                json.loads(json.dumps(told))
                == told
                == {
                    "name": "notes",
                    "status": "ready",
                    "progress": {"step": "ready", "done": 1, "total": 1},
                    "passages": 1,
                    "documents": 1,
                    "skipped": [{"file": "old.pdf", "reason": "a PDF, convert it to text first"}],
                    "error": None,
                    "built_in": False,
                }
            )
            assert isinstance(size, int)
            assert isinstance(created, int)

    asyncio.run(run())


def test_files_of_all_kinds_and_bad_ones_among_them(tmp_path: Path) -> None:
    files = {
        "a/notes.csv": b"id,text\n1,Herons stand in shallow water.\n2\n",
        "b/notes.csv": b"id,text\n1,Kingfishers dive for minnows.\n",
        "page.html": b"<title>Frogs</title><p>Frogs croak at night.",
        "wordnet.jsonl": b'{"text": "Newts lay eggs."}\nnot json\n',
        "no-text.csv": b"name,age\nann,3\n",
        "shop.json": b'{"id": "Q1", "labels": ["shop"]}\n',
        "latin.txt": b"caf\xe9",
        "empty.md": b"",
    }

    async def run() -> None:
        async with started(tmp_path) as store:
            upload(store, "documents", files)
            status = await built(store, "documents")
            assert (status.status, status.passages, status.documents) == ("ready", 4, len(files))
            reasons = {one.file: one.reason for one in status.skipped}
            assert reasons.keys() == {
                "a/notes.csv:3",
                "wordnet.jsonl:2",
                "no-text.csv",
                "shop.json:1",
                "latin.txt:1",
                "empty.md",
            }
            assert "no `text` column" in reasons["no-text.csv"]
            assert str(tmp_path) not in str(reasons)
            path = store.path("documents")
            assert found(path, "minnows") == ["documents:b/notes.csv:1"]
            assert found(path, "herons") == ["documents:a/notes.csv:1"]
            # A file named like a built-in corpus does not make the index one of it.
            index = Library.open([path]).indexes["documents"]
            assert index.manifest["corpus"]["sources"] == ["documents"]

    asyncio.run(run())


def test_a_long_title_is_not_repeated_in_every_passage(tmp_path: Path) -> None:
    row = {"title": "t" * 5_000, "text": "word " * 2_000}
    (tmp_path / "one.jsonl").write_text(json.dumps(row))
    (document,) = UploadedDocuments(tmp_path, "notes").read()
    assert len(document.title) == len(document.subject) == 200  # type: ignore[union-attr]


def test_a_killed_build_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            upload(store, "notes", table())
            await until(store, lambda: store.status("notes").progress.done > 5_000)
            assert store.build_pid is not None
            os.kill(store.build_pid, signal.SIGKILL)
            await until(store, lambda: store.status("notes").progress.step == "waiting")
            (journal,) = tmp_path.glob("notes/*/index/notes/building/journal.json")
            assert sum(json.loads(journal.read_text())["rows_of_parts"]) >= 4_096
            await until(store, lambda: store.status("notes").progress.done > 0)
            assert store.status("notes").progress.done > 4_096  # not from the beginning
            assert (await built(store, "notes")).passages == ROWS
            assert "notes:rivers.jsonl:9" in found(store.path("notes"), "number 9")

    asyncio.run(run())


def test_a_build_that_always_dies_fails_in_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            upload(store, "notes", OTTERS)
            killed = []

            def over() -> bool:
                if store.build_pid is not None and store.build_pid not in killed:
                    killed.append(store.build_pid)
                    os.kill(store.build_pid, signal.SIGKILL)
                return store.status("notes").status != "building"

            await until(store, over)
            status = store.status("notes")
            assert len(killed) == 1 + QUICK.restarts
            assert status.status == "failed"
            assert status.error is not None
            assert "ended early 4 times" in status.error
            assert left_of(tmp_path, "notes") <= {"job.json", "build.lock"}
            assert store.used_bytes() == 0
            with pytest.raises(stores.NotReady, match="could not be built: the build ended early"):
                store.path("notes")
            upload(store, "notes", OTTERS)  # once more
            assert (await built(store, "notes")).status == "ready"

    asyncio.run(run())


def test_a_stopped_store_goes_on_as_another(tmp_path: Path) -> None:
    async def first() -> None:
        async with started(tmp_path) as store:
            upload(store, "notes", table())
            upload(store, "more", OTTERS)
            await until(store, lambda: store.status("notes").progress.done > 5_000)
            assert store.status("more").progress.step == "waiting"  # one build at a time

    async def second() -> None:
        async with started(tmp_path) as store:
            assert {one.name: one.status for one in store.list()} == {
                "more": "building",
                "notes": "building",
            }
            (job,) = tmp_path.glob("notes/*/job.json")
            assert json.loads(job.read_text())["starts"] <= 1  # a stop is no failure
            assert (await built(store, "notes")).passages == ROWS
            assert (await built(store, "more")).passages == 1

    asyncio.run(first())
    assert not list(tmp_path.glob("notes/*/scratch"))
    asyncio.run(second())


SERVER = """
import asyncio, sys
from pathlib import Path
from skipqa.serve.store import IndexStore

async def serve():
    store = IndexStore(Path(sys.argv[1]), 200_000_000)
    await store.start()
    with store.create("notes") as upload:
        upload.add("rivers.jsonl", open(sys.argv[2], "rb"))
        upload.commit()
    while store.status("notes").progress.done < 4_500:
        await store.changed()
    print("encoding", flush=True)
    await asyncio.sleep(60)

asyncio.run(serve())
"""


def test_a_killed_server_takes_its_build_along_and_the_next_one_goes_on(tmp_path: Path) -> None:
    corpus, folder = tmp_path / "rivers.jsonl", tmp_path / "store"
    corpus.write_bytes(table()["rivers.jsonl"])
    command = [sys.executable, "-c", SERVER, str(folder), str(corpus)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"encoding\n"
        server.kill()

    async def resume() -> None:
        (lock,) = folder.glob("notes/*/build.lock")
        with lock.open() as file:  # held until the build has ended as well
            await asyncio.wait_for(asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX), 30)
        assert not list(folder.glob("notes/*/index/notes/manifest.json"))
        (folder / ".uploads" / "half").mkdir(parents=True)
        async with started(folder) as store:
            assert store.status("notes").status == "building"
            assert not (folder / ".uploads").exists()
            assert (await built(store, "notes")).passages == ROWS

    asyncio.run(resume())


def test_new_documents_replace_the_old_when_they_are_ready(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path, Limits(linger_s=600.0)) as store:
            upload(store, "notes", OTTERS)
            await built(store, "notes")
            old = store.path("notes")
            second = upload(store, "notes", BADGERS)
            assert (second.status, second.passages) == ("building", 1)
            assert store.path("notes") == old
            assert found(old, "crabs")
            with pytest.raises(stores.IndexBusy):
                store.create("notes")
            await built(store, "notes")
            new = store.path("notes")
            assert new != old
            assert new.name == old.name == "notes"
            assert found(new, "setts") == ["notes:badgers.txt"]
            assert not found(new, "crabs")
            assert found(old, "crabs")  # for who is still reading it

            upload(store, "notes", {"empty.txt": b" "})
            failed = await built(store, "notes")
            assert (failed.status, failed.passages) == ("failed", 1)
            assert failed.error == (
                "no document could be read, nothing was indexed: empty.txt: empty; the earlier "
                "index is still in use"
            )
            assert store.path("notes") == new
        assert not old.exists()
        async with started(tmp_path) as store:
            assert store.status("notes") == failed
            assert store.path("notes") == new

    asyncio.run(run())


def test_deleting(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            with pytest.raises(stores.UnknownIndex):
                store.delete("notes")
            upload(store, "notes", OTTERS)
            await built(store, "notes")
            upload(store, "notes", table())
            await until(store, lambda: store.status("notes").progress.done > 0)
            await asyncio.to_thread(store.delete, "notes")  # while it is built
            assert store.list() == []
            assert store.used_bytes() == 0
            for ask in (store.status, store.path, store.delete):
                with pytest.raises(stores.UnknownIndex):
                    ask("notes")
            upload(store, "notes", BADGERS)  # the name is free at once
            assert (await built(store, "notes")).passages == 1
            assert found(store.path("notes"), "setts")
            store.delete("notes")
        assert files_in(tmp_path) == EMPTY
        assert not (tmp_path / "notes").exists()

    asyncio.run(run())


def test_a_deletion_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            upload(store, "notes", OTTERS)
        (job,) = tmp_path.glob("notes/*/job.json")
        job.unlink()
        async with started(tmp_path) as store:
            assert store.list() == []
        assert not (tmp_path / "notes").exists()

    asyncio.run(run())


def test_what_is_damaged_is_built_again_or_said_to_be(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            upload(store, "notes", OTTERS | {"empty.txt": b"", "scan.pdf": b""})
            before = await built(store, "notes")
            assert [one.file for one in before.skipped] == ["scan.pdf", "empty.txt"]
            (store.path("notes") / "manifest.json").write_text("{")
        async with started(tmp_path) as store:
            assert store.status("notes").status == "building"
            after = await built(store, "notes")
            assert (after.status, after.skipped) == ("ready", before.skipped)
            assert found(store.path("notes"), "crabs")
        (job,) = tmp_path.glob("notes/*/job.json")
        job.write_text("{")
        async with started(tmp_path) as store:
            assert store.status("notes").status == "failed"
            assert "damaged" in str(store.status("notes").error)
            store.delete("notes")
        assert not (tmp_path / "notes").exists()

    asyncio.run(run())


def test_limits_of_an_upload(tmp_path: Path) -> None:
    limits = Limits(files=2, file_bytes=2 << 20, indexes=1)

    async def run() -> None:
        async with started(tmp_path, limits, quota=8_000_000) as store:
            with store.create("notes") as one:
                with pytest.raises(stores.FileTooLarge, match=r"big\.txt has more than 2 MB"):
                    one.add("big.txt", [b"x" * (1 << 20)] * 3)
                assert one.add("big.txt", io.BytesIO(b"x" * (2 << 20)))  # the name is free again
                with pytest.raises(stores.QuotaExceeded, match=r"of the 8\.0 MB"):
                    one.add("second.txt", [b"x" * (1 << 20)] * 2)
                assert store.used_bytes() < 8_000_000
                assert one.add("second.txt", [b"small"])
                with pytest.raises(stores.TooManyFiles, match="more than 2 files"):
                    one.add("third.txt", [b"x"])
                with pytest.raises(stores.IndexBusy, match="just being uploaded"):
                    store.create("notes")
                with pytest.raises(stores.TooManyIndexes):
                    store.create("other")
                assert files_in(one.documents) == {"big.txt", "second.txt"}
            assert store.used_bytes() == 0  # given up
            assert files_in(tmp_path) == EMPTY
            with store.create("notes") as one:
                one.add("a.pdf", [b"%PDF"])
                with pytest.raises(stores.NothingToIndex, match="PDF"):
                    one.commit()
            assert store.list() == []

    asyncio.run(run())


def test_an_index_that_outgrows_the_quota_fails(tmp_path: Path) -> None:
    """Many tiny rows make an index many times their size."""
    rows = {"r.jsonl": b'{"text":"a"}\n' * 20_000}

    async def run() -> None:
        async with started(tmp_path, quota=2_300_000) as store:
            upload(store, "notes", rows)
            status = await built(store, "notes")
            assert status.status == "failed"
            assert "than is left of the quota" in str(status.error)
            assert left_of(tmp_path, "notes") == {"job.json", "build.lock"}

    asyncio.run(run())


def test_a_build_has_limited_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path, Limits(build_s=0.01)) as store:
            upload(store, "notes", OTTERS)
            assert "took more than" in str((await built(store, "notes")).error)

    asyncio.run(run())


def test_a_full_disk_during_an_upload(tmp_path: Path) -> None:
    def content() -> Iterator[bytes]:
        yield b"some"
        raise OSError(errno.ENOSPC, "No space left on device")

    async def run() -> None:
        async with started(tmp_path) as store:
            with store.create("notes") as one:
                with pytest.raises(stores.DiskFull, match=r"^no space left on the disk$"):
                    one.add("a.txt", content())
                assert not files_in(one.folder)
            assert files_in(tmp_path) == EMPTY

    asyncio.run(run())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_during_a_build(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            upload(store, "notes", OTTERS)
        (folder,) = tmp_path.glob("notes/*")
        index = folder / "index" / "notes"
        index.mkdir(parents=True, exist_ok=True)
        (index / "manifest.json.partial").symlink_to("/dev/full")
        async with started(tmp_path) as store:
            status = await built(store, "notes")
            assert (status.status, status.error) == ("failed", "no space left on the disk")
            assert left_of(tmp_path, "notes") == {"job.json", "build.lock"}

    asyncio.run(run())


def test_one_store_per_folder(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            with pytest.raises(UserError, match="another server uses"):
                await IndexStore(tmp_path, QUOTA).start()
            with pytest.raises(UserError, match="another server uses"):
                await store.start()
        async with started(tmp_path):
            pass
        with pytest.raises(RuntimeError, match="not started"):
            store.create("notes")

    asyncio.run(run())


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos" / "2024").mkdir(parents=True)
    (tmp_path / "photos" / "2024" / "a.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="holds other files"):
        asyncio.run(IndexStore(tmp_path, QUOTA).start())
    assert files_in(tmp_path) == {"photos/2024/a.jpg"}
    with pytest.raises(UserError, match="cannot be used: File exists"):
        asyncio.run(IndexStore(tmp_path / "photos" / "2024" / "a.jpg", QUOTA).start())


def test_everything_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)

    async def run() -> None:
        async with started(folder) as store:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            upload(store, "notes", {"deep/er/otters.md": b"Otters."})
            await built(store, "notes")
            for path in store.path("notes").rglob("*"):
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
            (document,) = folder.rglob("otters.md")
            assert stat.S_IMODE(document.stat().st_mode) == 0o600

    asyncio.run(run())


@pytest.mark.parametrize(
    "name", ["", "Notes", "-a", "a b", "a/b", "..", "a\n", "é", "a" * 65, "default", "wordnet"]
)
def test_names_that_no_index_can_have(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        async with started(tmp_path) as store:
            with pytest.raises(stores.BadIndexName):
                store.create(name)
            with pytest.raises(stores.BadIndexName, match="taken by the server"):
                store.create("pocket")

    asyncio.run(run())


def test_files_that_are_skipped_have_a_reason(tmp_path: Path) -> None:
    names = {
        ".hidden.txt": "hidden",
        "a/.git/config.txt": "hidden",
        "scan.PDF": "a PDF, convert it to text first",
        "dump.jsonl.gz": "compressed, unpack it first",
        "notes.txt.xz": "compressed, unpack it first",
        "1/2/3/4/5/6/7/8/deep.md": "more than 8 folders deep",
        "x" * 201 + ".txt": "its name is too long",
        "Otters.MD": "otters.md differs in case only",
        "otters.md": "given twice",
        "otters.md/inside.txt": "otters.md is a file, not a folder",
        "E\N{COMBINING ACUTE ACCENT}t\xe9.txt": "\xe9t\xe9.txt differs in case only",
        "folder.txt": "also the name of a folder",
    }

    async def run() -> None:
        async with started(tmp_path) as store:
            with store.create("notes") as one:
                for name in ("otters.md", "\xe9te\N{COMBINING ACUTE ACCENT}.txt"):
                    assert one.add(name, [b"x"])
                assert one.add("folder.txt/a\\b.txt", [b"x"])
                for name, reason in names.items():
                    assert not one.add(name, [b"x"])
                    assert one.skipped[-1].reason == reason
                assert not one.add("program.exe", [b"x"])
                assert one.skipped[-1].reason.startswith("not one of .txt, .md,")
                assert one.num_documents == 3
                for number in range(200):
                    one.add(f".{number}", [b"x"])
                assert len(one.skipped) == 101
                assert one.skipped[-1].file == "113 more files"

    asyncio.run(run())


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/etc/passwd.txt", "../a.txt", "a/../b.txt", "a/./b.txt", "a//b.txt"),
        *("a/", "C:\\a.txt", "c:a.txt", "..\\a.txt", "\\\\host\\a.txt", "a\0.txt", "a\n.txt"),
        *("a\u202etxt.md", "\ud800.txt", "a" * 5_000 + ".txt"),
    ],
)
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(stores.BadFileName) as caught:
        safe_path(name)
    assert str(caught.value).isascii() or "…" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_no_name_writes_outside_the_folder(tmp_path: Path) -> None:
    pieces = st.sampled_from(
        ["..", ".", "/", "\\", "a", "B", "~", "C:", "\0", "\n", ".txt", "\u2025", "\uff0f", "é"]
    )
    names = st.lists(st.one_of(pieces, st.text(max_size=5)), max_size=9).map("".join)

    async def run() -> None:
        async with started(tmp_path / "store", Limits(files=10_000)) as store:
            with store.create("notes") as one:

                @given(names, st.sampled_from(["", ".txt", ".md"]))
                @example("../../escaped", ".txt")
                @example("..\\..\\escaped", ".txt")
                @example("/tmp/escaped", ".txt")
                def never(name: str, ending: str) -> None:
                    try:
                        stored = one.add(name + ending, [b"x"])
                    except stores.BadFileName:
                        stored = False
                    inside = len(files_in(one.documents))
                    assert inside == one.num_documents
                    assert len(files_in(tmp_path)) == inside + len(EMPTY)
                    assert stored is False or inside

                never()

    asyncio.run(run())
