"""Fetching against a server on this machine: whole, broken off, changed, damaged, absent."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import pytest
from typer.testing import CliRunner

from skipqa.data import __main__ as command
from skipqa.data import download
from skipqa.data.download import Collection, Source
from skipqa.errors import UserError


class Server(ThreadingHTTPServer):
    """Serves `files`; sends at most `cut` bytes of a body before it hangs up."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.ranges: list[str | None] = []

    def source(self, name: str, **more: object) -> Source:
        return Source(f"http://127.0.0.1:{self.server_port}/{name}", **more)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        body = self.server.files.get(self.path.lstrip("/"))
        if body is None:
            self.send_error(404)
            return
        tag = f'"{hashlib.sha256(body).hexdigest()[:8]}"'
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        start = 0
        if wanted and self.headers.get("If-Range") == tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body) if self.server.cut is None else start + self.server.cut
        self.wfile.write(body[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def collection(*sources: Source) -> Collection:
    return Collection("test", "https://example.org/page", sources)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def zip_of(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/"), data)
    return buffer.getvalue()


def test_first_download_is_recorded_and_kept(server: Server, tmp_path: Path) -> None:
    server.files["a.jsonl"] = b"x" * 3_000_000
    seen: list[tuple[str, int, int | None]] = []
    wanted = collection(server.source("a.jsonl"))
    new = download.fetch(wanted, tmp_path, lambda *step: seen.append(step))
    assert [source.name for source in new] == ["a.jsonl"]
    assert (tmp_path / "a.jsonl").read_bytes() == server.files["a.jsonl"]
    assert seen[-1] == ("a.jsonl", 3_000_000, 3_000_000)
    entry = json.loads((tmp_path / download.LOCK).read_text(encoding="utf-8"))["a.jsonl"]
    assert entry["sha256"] == sha256(server.files["a.jsonl"])
    assert entry["sha256_from"] == "first download"
    assert download.fetch(wanted, tmp_path) == []
    assert len(server.ranges) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", download.LOCK}


def test_a_broken_download_continues(server: Server, tmp_path: Path) -> None:
    server.files["a.csv"] = bytes(range(256)) * 1000
    wanted = collection(server.source("a.csv", sha256=sha256(server.files["a.csv"])))
    server.cut = 100_000
    for _ in range(2):
        with pytest.raises(UserError, match=r"broke off at .*run the same command again"):
            download.fetch(wanted, tmp_path)
    server.cut = None
    download.fetch(wanted, tmp_path)
    assert (tmp_path / "a.csv").read_bytes() == server.files["a.csv"]
    assert server.ranges == [None, "bytes=100000-", "bytes=200000-"]


def test_a_changed_source_starts_over(server: Server, tmp_path: Path) -> None:
    server.files["a.csv"] = b"old" * 1000
    wanted = collection(server.source("a.csv"))
    server.cut = 500
    with pytest.raises(UserError, match="broke off"):
        download.fetch(wanted, tmp_path)
    server.cut = None
    server.files["a.csv"] = b"new!" * 1000
    download.fetch(wanted, tmp_path)
    assert (tmp_path / "a.csv").read_bytes() == b"new!" * 1000


def test_a_kill_before_unpacking_costs_no_download(server: Server, tmp_path: Path) -> None:
    server.files["a.zip"] = zip_of(inner=b"1")
    tag = f'"{sha256(server.files["a.zip"])[:8]}"'
    (tmp_path / "a.zip.part").write_bytes(server.files["a.zip"])
    (tmp_path / "a.zip.part.tag").write_text(tag, encoding="utf-8")
    download.fetch(collection(server.source("a.zip", unpack=True)), tmp_path)
    assert (tmp_path / "inner").read_bytes() == b"1"
    (tmp_path / "inner").unlink()
    (tmp_path / "a.zip.part").write_bytes(server.files["a.zip"] + b"too long")
    (tmp_path / "a.zip.part.tag").write_text(tag, encoding="utf-8")
    download.fetch(collection(server.source("a.zip", unpack=True)), tmp_path)
    assert (tmp_path / "inner").read_bytes() == b"1"


def test_a_stated_checksum_is_enforced(server: Server, tmp_path: Path) -> None:
    server.files["a.csv"] = b"other bytes"
    wanted = collection(server.source("a.csv", sha256="0" * 64))
    with pytest.raises(UserError, match="its publisher states 000000000000…"):
        download.fetch(wanted, tmp_path)
    assert not list(tmp_path.glob("a.csv*"))


def test_the_recorded_checksum_is_enforced_later(server: Server, tmp_path: Path) -> None:
    server.files["a.csv"] = b"first"
    wanted = collection(server.source("a.csv"))
    download.fetch(wanted, tmp_path)
    (tmp_path / "a.csv").unlink()
    server.files["a.csv"] = b"second"
    with pytest.raises(UserError, match=r"skipqa-data\.lock holds from the first time"):
        download.fetch(wanted, tmp_path)


def test_archives_are_unpacked_and_removed(server: Server, tmp_path: Path) -> None:
    server.files["a.zip"] = zip_of(folder__a=b"1", b=b"2")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("./c.json")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"3"))
    server.files["c.tar.gz"] = buffer.getvalue()
    stated = {"b": sha256(b"2")}
    download.fetch(
        collection(
            server.source("a.zip", unpack=True, members=stated),
            server.source("c.tar.gz", unpack=True),
        ),
        tmp_path,
    )
    assert (tmp_path / "folder" / "a").read_bytes() == b"1"
    assert (tmp_path / "c.json").read_bytes() == b"3"
    assert not list(tmp_path.glob("*.part*"))
    assert not list(tmp_path.glob("*.zip"))


def test_bad_archives(server: Server, tmp_path: Path) -> None:
    server.files["a.zip"] = b"no archive"
    with pytest.raises(UserError, match="no readable archive"):
        download.fetch(collection(server.source("a.zip", unpack=True)), tmp_path)
    server.files["b.zip"] = zip_of(**{"..__evil": b"1"})
    with pytest.raises(UserError, match="wants to write outside"):
        download.fetch(collection(server.source("b.zip", unpack=True)), tmp_path)
    assert not (tmp_path.parent / "evil").exists()
    server.files["c.zip"] = zip_of(kb=b"1")
    wanted = server.source("c.zip", unpack=True, members={"kb": "0" * 64})
    with pytest.raises(UserError, match=r"kb in c\.zip has not the sha256"):
        download.fetch(collection(wanted), tmp_path)
    assert not (tmp_path / "kb").exists()


def test_no_network_and_no_file(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Not Found.*https://example.org/page.*by hand"):
        download.fetch(collection(server.source("absent")), tmp_path)
    nowhere = Source("http://127.0.0.1:1/a.csv")
    with pytest.raises(UserError, match="without a network") as caught:
        download.fetch(collection(nowhere), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / download.LOCK).write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        download.fetch(collection(), tmp_path)


def test_the_manifest_is_sound() -> None:
    known = download.manifest()
    assert {"okvqa", "vqav2", "aokvqa", "infoseek", "evqa", "viquae"} <= set(known)
    for found in known.values():
        assert found.images is None or found.images in known
        names = [source.name for source in found.sources]
        assert len(names) == len(set(names))
        for source in found.sources:
            assert urlparse(source.url).scheme in ("http", "https")
            digests = [*source.members.values(), *([source.sha256] if source.sha256 else [])]
            assert all(len(digest) == 64 for digest in digests)
            assert source.unpack == source.name.endswith((".zip", ".tar.gz"))


def test_command(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["a.csv"] = b"1"
    entry = Collection("small", "page", (server.source("a.csv"),), "photos", {"x": "y"})
    monkeypatch.setattr(download, "manifest", lambda: {"small": entry})
    runner = CliRunner()
    assert "a.csv" in runner.invoke(command.app, ["list"]).stdout
    assert "small" in json.loads(runner.invoke(command.app, ["list", "--json"]).stdout)
    done = runner.invoke(command.app, ["fetch", "small", "--to", str(tmp_path), "--json"])
    assert json.loads(done.stdout) == {"folder": str(tmp_path), "new": ["a.csv"]}
    assert "by hand: x: y" in done.stderr
    error = runner.invoke(command.app, ["fetch", "large", "--to", str(tmp_path)]).exception
    assert isinstance(error, UserError)
