"""GCIDE's entries as senses, from a small dictionary in the form of a DICT server."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.knowledge.sources import BadRow, Document, gcide
from skipqa.knowledge.sources.dictd import DIGITS, decoded
from skipqa.knowledge.sources.gcide_entry import Sense, read_entry

HERON = r"""Heron \Her"on\ (h[e^]r"[u^]n), n. [Old word; see
   {Hern} [and others].] (Zool.)
   A tall wading bird ({Ardea nova}) with a long neck; -- called
   also {fisher}. "He stood as still as a heron." --A. Poet.
   [1913 Webster]

         A quotation that is set in further.      --Somebody.
   [1913 Webster]

   Note: It nests in trees.
   [1913 Webster]

   Syn: Egret; bittern.
        [WordNet 1.5]

   {Heron shaw} (Zool.), a young heron.
      [1913 Webster]

   {Heronry}. See {Heron}.
"""
PRESS = r"""Press \Press\, v. t. [imp. & p. p. {Pressed}.]
   1. To push steadily; as, to press a button.
      [1913 Webster]

            A line of verse about it.             --B. Poet.
      [1913 Webster]

   2. To crowd. [Obs.] --C. Poet.
      [1913 Webster]

   3. (Mach.) To squeeze with a machine. Caf['e] style.
      [1913 Webster] Presser
"""
PRESS_NOUN = r"""Press \Press\, n.
   A machine that squeezes.
   [1913 Webster]
"""
PROPER = r"""Utopia \Utopia\ prop. n.
   A town in no country.
   [PJC]
"""
ABOUT = "00-database-short\n   A small dictionary\n"
ENTRIES = {
    "00-database-short": ABOUT,
    "Heron": HERON,
    "Press": PRESS,
    "press": PRESS_NOUN,
    "Utopia": PROPER,
}


def encoded(number: int) -> str:
    digits = DIGITS[number % 64]
    while number := number // 64:
        digits = DIGITS[number % 64] + digits
    return digits


def dictionary(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    lines, at = [], 0
    for headword, text in ENTRIES.items():
        size = len(text.encode())
        lines.append(f"{headword}\t{encoded(at)}\t{encoded(size)}")
        at += size
    lines.append(lines[1].replace("Heron", "fisher"))  # a second name of an entry
    (folder / gcide.INDEX).write_text("\n".join(sorted(lines)) + "\n")
    (folder / gcide.TEXT).write_bytes(gzip.compress("".join(ENTRIES.values()).encode()))
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = dictionary(tmp_path / "dictd")
    monkeypatch.setenv("SKIPQA_GCIDE", str(folder))
    return folder


def read() -> tuple[list[Document], list[BadRow]]:
    rows = list(gcide.Gcide().read())
    return (
        [row for row in rows if isinstance(row, Document)],
        [row for row in rows if isinstance(row, BadRow)],
    )


def test_one_document_for_each_sense(installed: Path) -> None:
    documents, bad = read()
    assert not bad
    assert gcide.available()
    assert [(d.id, d.lead + d.text) for d in documents] == [
        (
            "gcide:1:Heron",
            "Heron (noun): A tall wading bird (Ardea nova) with a long neck; -- called also "
            "fisher. It nests in trees.",
        ),
        ("gcide:1:Heron shaw", "Heron shaw: a young heron."),
        ("gcide:1:Press", "Press (verb): To push steadily; as, to press a button."),
        ("gcide:2:Press", "Press (verb): To squeeze with a machine. Café style."),
        ("gcide:3:Press", "Press (noun): A machine that squeezes."),
        ("gcide:1:Utopia", "Utopia (noun): A town in no country."),
    ]
    assert documents[0].title == "Heron"
    assert documents[0].source == "gcide"
    assert read()[0] == documents


def test_a_damaged_dictionary_is_reported(installed: Path) -> None:
    index = installed / gcide.INDEX
    index.write_text(index.read_text() + "bad line\nword\t!!\tB\nfar\t////\tB\nbig\tB\t/////\n")
    documents, bad = read()
    assert len(documents) == 6
    assert len(bad) == 4
    text = installed / gcide.TEXT
    text.write_bytes(text.read_bytes()[:-30])
    assert "reading ended" in read()[1][-1].reason


def test_numbers_are_in_base_64() -> None:
    assert [decoded(number) for number in ("A", "B", "/", "BA", "BNy")] == [0, 1, 63, 64, 4978]
    assert all(decoded(encoded(n)) == n for n in (0, 63, 64, 4_095, 4_096, 39_952_321))


def test_a_folder_without_the_dictionary_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPQA_GCIDE", str(tmp_path))
    with pytest.raises(UserError, match=r"holds no gcide\.dict\.dz and gcide\.index$"):
        gcide.Gcide().fingerprint()


def debian_archive(path: Path, members: dict[str, bytes]) -> Path:
    data = gcide.AR_MAGIC
    for name, content in members.items():
        data += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        data += content + b"\n" * (len(content) % 2)
    path.write_bytes(data)
    return path


def tar(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./usr/share/dictd/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return held.getvalue()


def test_a_debian_archive_is_unpacked_without_installing_it(tmp_path: Path) -> None:
    folder = dictionary(tmp_path / "dictd")
    files = {name: (folder / name).read_bytes() for name in (gcide.TEXT, gcide.INDEX)}
    target = tmp_path / "target"
    target.mkdir()
    content = {"debian-binary": b"2.0", "control.tar.xz": b"odd", "data.tar.xz": tar(files)}
    gcide.unpack(debian_archive(tmp_path / "some.deb", content), target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == files


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"not ar", "damaged"),
        (gcide.AR_MAGIC + b"x" * 70, "damaged"),
        (gcide.AR_MAGIC + b"data.tar.xz".ljust(48) + b"3".ljust(10) + b"`\nxyz", "damaged"),
        (gcide.AR_MAGIC, "holds no"),
    ],
)
def test_another_archive_is_one_clear_line(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "some.deb"
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"{complaint}.*dict-gcide"):
        gcide.unpack(path, tmp_path)


@given(st.text(max_size=300))
def test_any_entry_is_read(entry: str) -> None:
    for sense in [*read_entry(entry), *read_entry(r"Word \Word\, n. " + entry)]:
        assert sense.headword.strip()
        assert sense.definition.strip()


@given(st.text(alphabet='[]{}()\\-. 1aA\n"', max_size=200))
def test_any_marks_are_read(marks: str) -> None:
    assert all(isinstance(sense, Sense) for sense in read_entry("Word \\Word\\, n. " + marks))


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_any_bytes_are_only_reported(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, index: bytes
) -> None:
    folder = tmp_path_factory.mktemp("dictd")
    (folder / gcide.TEXT).write_bytes(gzip.compress(text))
    (folder / gcide.INDEX).write_bytes(index + b"\nword\tA\tB\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKIPQA_GCIDE", str(folder))
        read()
        (folder / gcide.TEXT).write_bytes(text)
        documents, _ = read()
    assert len({document.id for document in documents}) == len(documents)
