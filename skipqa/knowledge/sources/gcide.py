"""GCIDE, the Collaborative International Dictionary of English: one document for each sense.

It is Debian's package `dict-gcide` (Webster of 1913 and later additions, GPL). The dictionary is
taken from `SKIPQA_GCIDE` (a folder), from where a DICT server keeps it, or from our cache, into
which `apt-get download` puts it without installing anything. No sha256 is fixed here: each release
of Debian has its own build, and apt checks every archive against the signed list of its release.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skipqa import assets
from skipqa.errors import UserError
from skipqa.knowledge.sources.dictd import read_entries
from skipqa.knowledge.sources.gcide_entry import read_entry
from skipqa.knowledge.sources.source import BadRow, Document

FOLDERS = ("/usr/share/dictd", "/usr/lib/dict", "/usr/local/share/dictd", "/opt/local/share/dictd")
TEXT, INDEX = "gcide.dict.dz", "gcide.index"
PACKAGE = "dict-gcide"
MEGABYTES = 15
LICENCE = "GPL"
HOW = f"install Debian's package {PACKAGE}, or set SKIPQA_GCIDE to a folder with {TEXT} and {INDEX}"
AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60


class Gcide:
    name = "gcide"

    def fingerprint(self) -> str:
        return assets.sha256_of(fetch() / TEXT)

    def read(self) -> Iterator[Document | BadRow]:
        folder = fetch()
        senses: Counter[str] = Counter()
        for entry in read_entries(folder / TEXT, folder / INDEX):
            if isinstance(entry, BadRow):
                yield entry
                continue
            for sense in read_entry(entry):
                senses[sense.headword] += 1
                kind = f" ({sense.part_of_speech})" if sense.part_of_speech else ""
                yield Document(
                    # The number stands before the word, which may hold anything.
                    id=f"gcide:{senses[sense.headword]}:{sense.headword}",
                    title=sense.headword,
                    text=sense.definition,
                    source="gcide",
                    lead=f"{sense.headword}{kind}: ",
                )


def available() -> bool:
    """Whether the dictionary is here, or apt knows where to download it."""
    return _local() is not None or _apt("--print-uris") is not None


def fetch(report: assets.Report = lambda _: None) -> Path:
    """The folder with the dictionary, which is downloaded the first time where apt can do that."""
    if found := _local():
        return found
    target = _cache()
    with assets.building(target) as partial:
        report(f"downloading {PACKAGE} ({MEGABYTES} MB, {LICENCE})")
        if _apt(cwd=partial) is None or not (archive := next(partial.glob("*.deb"), None)):
            raise UserError(f"GCIDE is not on this machine and apt cannot download it: {HOW}")
        unpack(archive, partial)
        archive.unlink()
    return target


def _local() -> Path | None:
    if chosen := os.environ.get("SKIPQA_GCIDE"):
        folder = Path(chosen).expanduser()
        if not _complete(folder):
            raise UserError(f"SKIPQA_GCIDE is {folder}, which holds no {TEXT} and {INDEX}")
        return folder
    return next((path for path in (*map(Path, FOLDERS), _cache()) if _complete(path)), None)


def _complete(folder: Path) -> bool:
    return (folder / TEXT).is_file() and (folder / INDEX).is_file()


def _cache() -> Path:
    return assets.home() / "assets" / "gcide"


def _apt(*options: str, cwd: Path | None = None) -> str | None:
    """What `apt-get download` says; None if there is no apt or it fails."""
    if shutil.which("apt-get") is None:
        return None
    command = ["apt-get", "download", "-q", *options, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    return done.stdout if done.returncode == 0 else None


def unpack(archive: Path, folder: Path) -> None:
    """Writes the two files of the dictionary from a Debian archive, which is an `ar` of tars."""
    try:
        for name, data in _members(archive.read_bytes()):
            if name.startswith("data.tar"):
                with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                    for member in tar:
                        file = PurePosixPath(member.name).name
                        if member.isfile() and file in (TEXT, INDEX):
                            (folder / file).write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
    except (ValueError, tarfile.TarError, EOFError) as error:
        raise UserError(f"{archive.name} is damaged: {HOW}") from error
    if not _complete(folder):
        raise UserError(f"{archive.name} holds no {TEXT} and {INDEX}: {HOW}")


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    if not data.startswith(AR_MAGIC):
        raise ValueError("not a Debian archive")
    at = len(AR_MAGIC)
    while at < len(data):
        header = data[at : at + AR_HEADER]
        size = int(header[48:58])
        at += AR_HEADER
        yield header[:16].decode("ascii").strip().rstrip("/"), data[at : at + size]
        at += size + size % 2
