"""`skipqa index ...` as a user runs it."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skipqa.cli.index import app
from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.knowledge.estimate import estimate


def run(*arguments: object, stdin: str | None = None, code: int = 0) -> str:
    return run_both(*arguments, stdin=stdin, code=code)[0]


def run_both(*arguments: object, stdin: str | None = None, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error."""
    outcome = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    if isinstance(outcome.exception, UserError):
        raise outcome.exception
    assert outcome.exit_code == code, outcome.output
    return outcome.stdout, outcome.stderr


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "facts.jsonl"
    rows = ["dogs bark", "cats meow", "espresso is strong coffee", "eagles fly"]
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(rows)]
    path.write_text("\n".join([*lines[:2], "{broken", *lines[2:]]))
    return path


def test_a_whole_life(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "i"
    built = json.loads(run("build", folder, corpus, "--json"))
    assert built["passages"] == 4
    assert built["bad_rows_named"][0]["place"] == "facts.jsonl:3"

    found = json.loads(run("search", folder, "strong coffee", "eagle", "-k", 2, "--json"))
    assert [r["hits"][0]["id"] for r in found["results"]] == ["facts:2", "facts:3"]
    assert "facts:2" in run("search", f"exact:{folder}", "coffee")
    assert "nothing found" in run("search", folder, "zebra")

    more = tmp_path / "more.csv"
    more.write_text("id,text\n9,zebras have stripes\n")
    assert json.loads(run("add", folder, more, "--json"))["passages"] == 1
    assert json.loads(run("delete", folder, "-", "--json", stdin="facts:0\nno:1\n")) == {
        "asked": 2,
        "deleted": 1,
    }
    info = json.loads(run("info", folder, "--json"))
    assert (info["passages"], info["segments"], info["bad_rows"]) == (4, 2, 1)
    assert json.loads(run("compact", folder, "--json"))["segments"] == 1
    assert run("verify", folder).strip() == "intact"
    bench = json.loads(run("bench", folder, "--queries", 8, "--json"))
    assert bench["recall_at_4"] == 1.0

    text = next(folder.glob("segments/*/texts.json"))
    text.write_bytes(text.read_bytes().replace(b"zebras", b"zebraz"))
    assert "fails its sha256" in run("verify", folder, code=1)


def test_several_indexes_make_one_list(corpus: Path, tmp_path: Path) -> None:
    more = tmp_path / "drinks.csv"
    more.write_text("id,text\n1,tea is no coffee\n2,strong tea\n")
    run("build", tmp_path / "facts", corpus)
    run("build", tmp_path / "drinks", more)
    words = (
        "search",
        tmp_path / "facts",
        "strong coffee",
        "eagles",
        "--index",
        tmp_path / "drinks",
    )
    first, second = json.loads(run(*words, "--json"))["results"]
    assert [hit["index"] for hit in first["hits"]] == ["facts", "drinks", "drinks"]
    relative = [hit["relative"] for hit in first["hits"]]
    assert 1.0 == relative[0] > relative[1] >= relative[2] > 0
    assert [hit["id"] for hit in second["hits"]] == ["facts:3"]
    assert len(json.loads(run(*words, "-k", 1, "--json"))["results"][0]["hits"]) == 1
    assert "drinks" in run(*words)
    with pytest.raises(UserError, match="is given twice"):
        run("search", tmp_path / "facts", "x", "--index", tmp_path / "facts")


def test_an_encyclopedia_is_general_knowledge_if_one_says_so(tmp_path: Path) -> None:
    def general() -> list[str]:
        assert run("verify", folder).strip() == "intact"
        return json.loads(run("info", folder, "--json"))["general"]

    folder, wiki, notes = tmp_path / "wiki", tmp_path / "simplewiki.jsonl.xz", tmp_path / "n.csv"
    with lzma.open(wiki, "wt") as file:
        file.write(json.dumps({"title": "Giraffe", "text": "Its tongue is 45 cm long."}) + "\n")
    notes.write_text("id,text\n1,Rex likes giraffes\n")
    run("build", folder, wiki)
    assert general() == []
    run("build", folder, wiki, "--general")
    assert general() == ["simplewiki"]
    assert 'general: ["simplewiki"]' in run("info", folder)
    assert not Library.open([folder]).has_own_documents

    said = "was general knowledge and now counts as your own documents, because of n\n"
    assert said not in run_both("add", folder, wiki)[1]
    assert said not in run_both("add", folder, notes, "--general")[1]
    assert general() == ["simplewiki", "n"]
    run("build", folder, wiki, "--general")
    assert said in run_both("add", folder, notes)[1]
    run("compact", folder)
    assert general() == ["simplewiki"]
    assert Library.open([folder]).has_own_documents
    assert said not in run_both("add", folder, notes)[1]  # once is enough


@pytest.mark.parametrize("command", ["build", "add"])
def test_help_says_what_is_general(command: str) -> None:
    words = " ".join(run(command, "--help").replace("│", " ").split())
    assert "--general" in words
    assert "General knowledge, such as an encyclopedia: questions that need no lookup" in words
    assert "your own documents" in words


def test_rows_left_out_are_named_and_counted_on_stderr(corpus: Path, tmp_path: Path) -> None:
    out, err = run_both("build", tmp_path / "i", corpus)
    assert out.startswith("4 passages in ")
    assert "skipped facts.jsonl:3: not JSON at column 2 (Expecting property name" in err
    assert err.endswith("\n1 of 5 documents left out\n")

    out, err = run_both("build", tmp_path / "i", corpus, "--json")
    assert json.loads(out)["bad_rows"] == 1
    assert err.endswith("\n1 of 5 documents left out\n")

    corpus.write_text("{}\n" * 60 + '{"text": "good"}\n')
    out, err = run_both("build", tmp_path / "i", corpus)
    assert out.startswith("1 passage in ")
    assert err.count("skipped ") == 50
    assert err.endswith("\n60 of 61 documents left out; the first 50 are named\n")


def test_where_no_row_can_be_read_nothing_is_built(tmp_path: Path) -> None:
    folder, corpus = tmp_path / "i", tmp_path / "bad.jsonl"
    corpus.write_text("{broken\n")
    with pytest.raises(UserError) as refused:
        run("build", folder, corpus)
    assert str(refused.value).startswith(
        "no document could be read, nothing was indexed: bad.jsonl:1: not JSON at column 2 ("
    )
    with pytest.raises(UserError, match="no index at"):
        run("info", folder)


def test_small_numbers_read_well(tmp_path: Path) -> None:
    corpus = tmp_path / "one.jsonl"
    corpus.write_text('{"text": "dogs bark"}\n')
    _, err = run_both("build", tmp_path / "i", corpus)
    assert err.startswith(
        "about 1 passage: less than 1 MB of index, less than 1 MB while building, about 1 s\n"
    )
    assert run("add", tmp_path / "i", corpus).startswith("1 passage added to ")
    _, err = run_both("search", tmp_path / "i", "dogs")
    assert err.endswith(" ms over 1 passage\n")


def test_an_estimate_counts_only_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 3_000)
    (tmp_path / "b.pdf").write_bytes(bytes(3_000_000))
    assert estimate([str(tmp_path)]).passages == 10


def test_estimates_come_first_and_too_little_space_stops(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 0))
    too_little = "needs less than 1 MB and less than 1 MB is free there: choose a larger disk"
    with pytest.raises(UserError, match=too_little):
        run("build", tmp_path / "i", corpus)
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize(
    "command", ["build", "add", "delete", "compact", "search", "info", "verify", "bench"]
)
def test_every_command_explains_itself(command: str) -> None:
    assert "Example" in run(command, "--help")


def test_a_missing_index_is_one_clear_line(tmp_path: Path) -> None:
    for command in (["info"], ["verify"], ["search", "x"], ["bench"], ["delete", "x"]):
        with pytest.raises(UserError, match="no index at"):
            run(command[0], tmp_path / "none", *command[1:])
        assert not (tmp_path / "none").exists()


def test_users_words_are_printed_as_they_are(tmp_path: Path) -> None:
    """Not as an emoji, and not as markup, of which a wrong one would end in a traceback."""
    corpus, folder = tmp_path / "cafe.jsonl", tmp_path / "notes [/draft]"
    corpus.write_text('{"id": "coffee:2", "text": "Espresso [1] is [bold]strong[/bold] coffee."}\n')
    assert folder.name in run("build", folder, corpus).replace("\n", "")
    found = run("search", folder, "coffee [/x]")
    assert "coffee [/x]" in found
    assert "cafe:coffee:2" in found
    assert "[1] is [bold]strong[/bold]" in found
    assert 'sources: ["cafe"]' in run("info", folder)


def test_names_and_ids_that_are_not_utf8_stop_nothing(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", tmp_path / "i"
    notes.mkdir()
    (notes / "good.txt").write_text("dogs bark")
    (notes / os.fsdecode(b"caf\xe9.txt")).write_text("cats meow")
    built = json.loads(run("build", folder, notes, "--json"))
    assert built["passages"] == 1
    (bad,) = built["bad_rows_named"]
    assert bad["place"] == "notes:caf\\udce9.txt"
    with pytest.raises(UserError, match="not UTF-8"):
        run("search", folder, os.fsdecode(b"caf\xe9"))
    outcome = CliRunner().invoke(app, ["delete", str(folder), "-", "--json"], input=b"caf\xe9\n")
    assert json.loads(outcome.stdout) == {"asked": 1, "deleted": 0}
