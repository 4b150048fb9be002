"""Fetching official files: resumable, and held to a checksum.

`manifest.json` names the sources. A sha256 that the publisher states stands there and is
enforced. Where none is published, the sha256 of the first download is written into
`skipqa-data.lock` next to the files and enforced from then on: trust on first use. A
download that breaks off leaves a `.part` file, and the next call continues it.
"""

from __future__ import annotations

import http.client
import json
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import IO, Any

from skipqa.assets import sha256_of
from skipqa.errors import UserError
from skipqa.files import write_text

LOCK = "skipqa-data.lock"
TIMEOUT_S = 30
_BLOCK = 1 << 20

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all


@dataclass(frozen=True, slots=True)
class Source:
    url: str
    sha256: str | None = None  # of the file at `url`, where its publisher states it
    unpack: bool = False
    members: Mapping[str, str] = field(default_factory=dict)  # unpacked file -> stated sha256

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name


@dataclass(frozen=True, slots=True)
class Collection:
    name: str
    page: str
    sources: tuple[Source, ...]
    images: str | None = None  # the collection that holds its images
    by_hand: Mapping[str, str] = field(default_factory=dict)  # what -> where a person gets it


def manifest() -> dict[str, Collection]:
    text = resources.files("skipqa.data").joinpath("manifest.json").read_text(encoding="utf-8")
    return {
        name: Collection(
            name,
            entry["page"],
            tuple(Source(**source) for source in entry["sources"]),
            entry.get("images"),
            entry.get("by_hand", {}),
        )
        for name, entry in json.loads(text).items()
    }


def fetch(
    collection: Collection, folder: Path, progress: Progress = lambda *_: None
) -> list[Source]:
    """Bring every file of the collection into `folder`; the sources that were not there before."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = _read_lock(folder)
    new = []
    for source in collection.sources:
        if _is_here(source, folder, lock):
            continue
        try:
            path = _download(source, folder, progress)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"cannot fetch {source.url}: {reason}; without a network, put the files of "
                f"{collection.page} into {folder} by hand"
            ) from error
        digest = _check(source, path, lock)
        if source.unpack:
            files = _unpack(source, path, folder)
        else:
            path.rename(folder / source.name)
            files = [source.name]
        _tag(path).unlink(missing_ok=True)  # last, so that a kill costs no download
        lock[source.name] = {
            "url": source.url,
            "sha256": digest,
            "sha256_from": "publisher" if source.sha256 else "first download",
            "files": files,
        }
        _write_lock(folder, lock)
        new.append(source)
    return new


def _is_here(source: Source, folder: Path, lock: Mapping[str, Any]) -> bool:
    entry = lock.get(source.name)
    return entry is not None and all((folder / name).is_file() for name in entry["files"])


def _download(source: Source, folder: Path, progress: Progress) -> Path:
    """The whole file as `.part`, continued where the server still has the same version."""
    part = folder / f"{source.name}.part"
    tag = _tag(part)
    done = part.stat().st_size if part.is_file() and tag.is_file() else 0
    headers = {"User-Agent": "skipqa"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": tag.read_text(encoding="utf-8")}
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(source.url, headers=headers), timeout=TIMEOUT_S
        )
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{done}":
            return part  # nothing beyond what is here: an earlier call got all of it
        tag.unlink()
        return _download(source, folder, progress)
    with response:
        if response.status != 206:
            done = 0
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if version:
            tag.write_text(version, encoding="utf-8")
        else:
            tag.unlink(missing_ok=True)
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        broken = False
        with part.open("ab" if done else "wb") as file:
            try:
                while block := response.read(_BLOCK):
                    file.write(block)
                    done += len(block)
                    progress(source.name, done, total)
            except (ConnectionError, TimeoutError, http.client.HTTPException):
                broken = True
    if broken or (total is not None and done < total):
        size = "an unknown number of" if total is None else f"{total:,}"
        raise UserError(
            f"{source.name} broke off at {done:,} of {size} bytes: run the same command again "
            "to continue"
        )
    return part


def _check(source: Source, part: Path, lock: Mapping[str, Any]) -> str:
    """The digest of a finished download; a file with another than the known one is deleted."""
    digest = sha256_of(part)
    known = source.sha256 or lock.get(source.name, {}).get("sha256")
    if known is not None and digest != known:
        _forget(part)
        origin = "its publisher states" if source.sha256 else f"{LOCK} holds from the first time"
        raise UserError(
            f"{source.name} has sha256 {digest[:12]}…, but {origin} {known[:12]}…: the download "
            "was damaged or the source has changed; it was deleted"
        )
    return digest


def _tag(part: Path) -> Path:
    """Beside a `.part`: the server's name for the version that it is a beginning of."""
    return part.with_name(f"{part.name}.tag")


def _forget(part: Path) -> None:
    part.unlink()
    _tag(part).unlink(missing_ok=True)


def _unpack(source: Source, archive: Path, folder: Path) -> list[str]:
    """Every file of a zip or tar into `folder`, each by an atomic rename; the archive goes."""
    names = []
    try:
        for name, opened in _members(source.name, archive):
            target = (folder / name).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise UserError(f"{source.name} wants to write outside {folder}: {name!r}")
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.part")
            with opened as member, partial.open("wb") as file:
                shutil.copyfileobj(member, file, _BLOCK)
            if name in source.members and sha256_of(partial) != source.members[name]:
                partial.unlink()
                raise UserError(f"{name} in {source.name} has not the sha256 its publisher states")
            partial.rename(target)
            names.append(name)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        _forget(archive)
        raise UserError(
            f"{source.name} is no readable archive ({error}); it was deleted"
        ) from error
    archive.unlink()
    return names


def _members(name: str, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """(path, open file) of each regular file; links and folders are left out."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                if not info.is_dir():
                    yield info.filename, opened.open(info)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and (file := tar.extractfile(member)):
                    yield member.name, file


def _read_lock(folder: Path) -> dict[str, Any]:
    path = folder / LOCK
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        raise UserError(f"{path} is damaged: delete it to download and trust anew") from None


def _write_lock(folder: Path, lock: Mapping[str, Any]) -> None:
    write_text(folder / LOCK, json.dumps(lock, indent=2, sort_keys=True) + "\n")
