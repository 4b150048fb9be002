"""Every bad input gets exit code 2 and one clear line, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from skipqa.knowledge.default import default_indexes
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder

if TYPE_CHECKING:
    from conftest import Command

QUESTION = "How is this drink brewed?"


@pytest.fixture(autouse=True)
def _ready(home: Path) -> None:
    """Everything is set up before a test changes the environment."""


@pytest.fixture
def refuses(skipqa: Command) -> object:
    """Calls the command, checks the form of the refusal and returns its line."""

    def call(*arguments: str | Path) -> str:
        outcome = skipqa(*arguments)
        assert outcome.code == 2
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")
        assert outcome.err.count("\n") == 1, outcome.err
        assert outcome.err.endswith("\n")
        assert "Traceback" not in outcome.err
        return outcome.err

    return call


class TestPhoto:
    def test_missing(self, refuses: Command, tmp_path: Path) -> None:
        assert "no such file" in refuses("ask", tmp_path / "none.jpg", QUESTION)

    def test_folder(self, refuses: Command, tmp_path: Path) -> None:
        assert "folder" in refuses("ask", tmp_path, QUESTION)

    def test_not_an_image(self, refuses: Command, tmp_path: Path) -> None:
        path = tmp_path / "notes.jpg"
        path.write_text("Once upon a time")
        assert "not an image" in refuses("ask", path, QUESTION)

    @pytest.mark.parametrize("kind", ["jpeg", "png", "tiff"])
    def test_cut_short(self, refuses: Command, tmp_path: Path, kind: str) -> None:
        path = tmp_path / f"photo.{kind}"
        options = {"compression": "tiff_lzw"} if kind == "tiff" else {}
        Image.effect_noise((200, 200), 50).convert("RGB").save(path, **options)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
        assert str(path) in refuses("ask", path, QUESTION)

    def test_decompression_bomb(self, refuses: Command, tmp_path: Path) -> None:
        def chunk(kind: bytes, data: bytes) -> bytes:
            body = kind + data
            return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

        header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
        path = tmp_path / "bomb.png"
        chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1_000)))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks + chunk(b"IEND", b""))
        assert "scale it down" in refuses("ask", path, QUESTION)

    def test_name_with_a_newline(self, refuses: Command, tmp_path: Path) -> None:
        refuses("ask", tmp_path / "two\nlines.jpg", QUESTION)


class TestQuestion:
    @pytest.mark.parametrize(
        ("question", "complaint"),
        [
            ("", "empty"),
            ("  ", "empty"),
            ("?!", "no words"),
            ("why " * 2_000, "2000 words"),
            (os.fsdecode(b"caf\xe9 or tea?"), "not UTF-8"),
        ],
        ids=["empty", "blank", "no words", "2,000 words", "latin-1"],
    )
    def test_refused(self, refuses: Command, photo: Path, question: str, complaint: str) -> None:
        assert complaint in refuses("ask", photo, question)


class TestSetting:
    @pytest.mark.parametrize(
        ("setting", "complaint"),
        [
            ("regions.proposals=ovals", "regions.proposals takes clusters or boxes, not 'ovals'"),
            ("regions.proposal=boxes", "unknown setting regions.proposal"),
            ("regions.proposals", "a setting is stage.name=value"),
            ("budget.tokens=many", "budget.tokens takes a int"),
        ],
    )
    def test_refused(self, refuses: Command, photo: Path, setting: str, complaint: str) -> None:
        assert complaint in refuses("ask", photo, QUESTION, "--set", setting)


class TestIndex:
    @pytest.fixture
    def index(self, tmp_path: Path) -> Path:
        rows = [
            {"id": f"{n}", "title": title, "text": f"{title} is coffee brewed number {n}"}
            for n, title in enumerate(("espresso", "cup", "latte", "mug", "saucer") * 20)
        ]
        corpus = tmp_path / "corpus.jsonl"
        corpus.write_text("\n".join(map(json.dumps, rows)))
        build(tmp_path / "index", [JsonLines(corpus)], LexicalEncoder.default())
        return tmp_path / "index"

    def test_a_sound_one_is_used(self, skipqa: Command, photo: Path, index: Path) -> None:
        outcome = skipqa("ask", photo, QUESTION, "--index", index, "--json")
        assert outcome.code == 0
        found = json.loads(outcome.out)["evidence"]
        assert found
        assert "coffee brewed" in found[0]["text"]

    def test_missing(self, refuses: Command, photo: Path, tmp_path: Path) -> None:
        assert "no index at" in refuses("ask", photo, QUESTION, "--index", tmp_path / "none")

    def test_not_an_index(self, refuses: Command, photo: Path, tmp_path: Path) -> None:
        assert "no index at" in refuses("ask", photo, QUESTION, "--index", tmp_path)

    @pytest.mark.parametrize("position", [0, 0.5, 0.99])
    def test_flipped_bytes_in_its_manifest(
        self, refuses: Command, photo: Path, index: Path, position: float
    ) -> None:
        path = index / "manifest.json"
        data = bytearray(path.read_bytes())
        place = int(position * len(data))
        data[place] ^= 0x15
        path.write_bytes(data)
        assert "damaged" in refuses("ask", photo, QUESTION, "--index", index)

    @pytest.mark.parametrize("name", ["texts.json", "lists.rows", "forward.offsets"])
    def test_a_file_cut_short(self, refuses: Command, photo: Path, index: Path, name: str) -> None:
        (path,) = index.glob(f"segments/*/{name}")
        path.write_bytes(path.read_bytes()[:-3])
        line = refuses("ask", photo, QUESTION, "--index", index)
        assert "damaged" in line
        assert name in line

    def test_flipped_bytes_in_its_texts(self, refuses: Command, photo: Path, index: Path) -> None:
        (path,) = index.glob("segments/*/texts.json")
        path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))
        assert "damaged" in refuses("ask", photo, QUESTION, "--index", index)


class TestCache:
    def test_empty_says_what_to_run(
        self, refuses: Command, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))
        assert "skipqa setup" in refuses("ask", photo, QUESTION)

    def test_an_unfinished_index_says_what_to_run(
        self, refuses: Command, photo: Path, home: Path, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """A build that was killed leaves its folder, with a lock and some parts in it."""
        unfinished, *finished = default_indexes().values()
        unfinished = tmp_path / "indexes" / unfinished.name
        (unfinished / "building").mkdir(parents=True)
        for folder in finished:
            (tmp_path / "indexes" / folder.name).symlink_to(folder)
        (unfinished / ".lock").touch()
        monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))
        assert "skipqa setup" in refuses("ask", photo, QUESTION)

    def test_not_writable(
        self, refuses: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Root may write anywhere but to the kernel's own tree."""
        locked = Path("/sys/skipqa") if os.geteuid() == 0 else tmp_path / "locked"
        if os.geteuid() != 0:
            locked.mkdir(mode=0o500)
        monkeypatch.setenv("SKIPQA_HOME", str(locked))
        assert "SKIPQA_HOME" in refuses("setup")

    def test_a_file_in_its_place(
        self, refuses: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "home").write_text("a file")
        monkeypatch.setenv("SKIPQA_HOME", str(tmp_path / "home"))
        assert "SKIPQA_HOME" in refuses("setup")

    def test_damaged_weights(
        self, refuses: Command, photo: Path, home: Path, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        for part in ("assets", "indexes"):
            (tmp_path / part).symlink_to(home / part)
        skip_weights = shutil.ignore_patterns("weights.safetensors")
        shutil.copytree(home / "converted", tmp_path / "converted", ignore=skip_weights)
        monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))
        assert "delete that folder" in refuses("ask", photo, QUESTION)


class TestOptions:
    @pytest.mark.parametrize("name", ["trace.jpg", "trace", ".png", "trace.png.txt"])
    def test_trace_with_a_wrong_ending(
        self, refuses: Command, photo: Path, tmp_path: Path, name: str
    ) -> None:
        line = refuses("ask", photo, QUESTION, "--explain", tmp_path / name)
        assert ".png or .html" in line

    def test_trace_into_a_missing_folder(
        self, refuses: Command, photo: Path, tmp_path: Path
    ) -> None:
        line = refuses("ask", photo, QUESTION, "--explain", tmp_path / "none" / "trace.png")
        assert "no folder" in line

    def test_trace_over_a_folder(self, refuses: Command, photo: Path, tmp_path: Path) -> None:
        (tmp_path / "trace.png").mkdir()
        assert "folder" in refuses("ask", photo, QUESTION, "--explain", tmp_path / "trace.png")

    def test_unknown_style(self, refuses: Command, photo: Path) -> None:
        line = refuses("ask", photo, QUESTION, "--style", "poem")
        assert "short or sentence, not 'poem'" in line

    def test_unknown_preset(self, refuses: Command, photo: Path) -> None:
        line = refuses("ask", photo, QUESTION, "--preset", "giant")
        assert "giant" in line
        assert "pocket" in line

    @pytest.mark.parametrize(
        ("arguments", "what", "nearest"),
        [
            ("eval vqa --questions q --images i --out o --system skipp", "system 'skipp'", "skip"),
            ("eval vqa --questions q --images i --out o --pruner tomb", "pruner 'tomb'", "tome"),
            ("ask p.jpg What? --preset pockt", "preset 'pockt'", "pocket"),
            ("costs --preset submision-7b", "preset 'submision-7b'", "submission-7b"),
            ("costs --system Dense", "system 'Dense'", "dense"),
            ("train stge1 --out o", "stage 'stge1'", "stage1"),
            ("data fetch okvq --to d", "collection 'okvq'", "okvqa"),
            ("score okvq", "benchmark 'okvq'", "okvqa"),
        ],
    )
    def test_a_misspelt_name_is_told_the_nearest(
        self, refuses: Command, arguments: str, what: str, nearest: str
    ) -> None:
        line = refuses(*arguments.split())
        assert what in line
        assert line.endswith(f"; did you mean {nearest}?\n")

    def test_a_name_far_from_all_is_told_the_known_ones(self, refuses: Command) -> None:
        line = refuses("costs", "--preset", "giant")
        known = "pocket, desk, submission-7b, ablation-13b"
        assert line == f"error: no preset 'giant'; there is {known}\n"

    def test_trained_and_untrained_at_once(
        self, refuses: Command, photo: Path, tmp_path: Path
    ) -> None:
        line = refuses("ask", photo, QUESTION, "--untrained", "--components", tmp_path)
        assert "not both" in line

    def test_a_figure_into_a_missing_folder(self, refuses: Command, tmp_path: Path) -> None:
        line = refuses("theory", "--plot", tmp_path / "none" / "bound.svg")
        assert "cannot be written" in line

    def test_results_into_a_file(self, refuses: Command, photo: Path, tmp_path: Path) -> None:
        row = {"question_id": 1, "image": photo.name, "question": QUESTION, "answer": "?"}
        questions, taken = tmp_path / "q.jsonl", tmp_path / "taken"
        questions.write_text(json.dumps(row))
        taken.touch()
        options = ("--questions", questions, "--images", photo.parent)
        for out in (taken, taken / "inside"):
            line = refuses("eval", "vqa", *options, "--out", out)
            assert f"cannot use {out}: " in line


def test_a_pdf_is_told_to_be_converted(refuses: Command, tmp_path: Path) -> None:
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.7")
    line = refuses("index", "build", tmp_path / "i", tmp_path / "paper.pdf")
    assert "paper.pdf is a PDF: convert it to text first" in line


def test_an_unreadable_corpus_ends_with_one_error(skipqa: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("x\ny\n")
    outcome = skipqa("index", "build", tmp_path / "i", tmp_path / "bad.jsonl")
    assert (outcome.code, outcome.out) == (2, "")
    *_, last = outcome.err.splitlines()
    assert last == (
        "error: no document could be read, nothing was indexed: bad.jsonl:1: not JSON at column 1 "
        "(Expecting value), and 1 more"
    )


def test_the_installed_command_does_the_same(tmp_path: Path) -> None:
    """In a process of its own, as a shell script would call it."""
    command = Path(sys.executable).with_name("skipqa")
    missing = tmp_path / "none.jpg"
    done = subprocess.run([command, "ask", missing, QUESTION], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: no such file: {missing}\n"


def test_claims_without_runs_say_where_they_are_looked_for(
    refuses: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no runs in benchmarks/runs" in refuses("report", "claims")
