"""Every source: the documents it yields, and that a bad row is only reported."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.knowledge.estimate import estimate
from skipqa.knowledge.sources import (
    BUILT_IN,
    DOCUMENT_READERS,
    FILE_FORMATS,
    BadRow,
    Document,
    Source,
    open_source,
)
from skipqa.knowledge.sources.folder import Folder
from skipqa.knowledge.sources.lines import COMPRESSED
from skipqa.knowledge.sources.markup import html_to_text
from skipqa.knowledge.sources.texts import unwrapped
from skipqa.knowledge.sources.wikipedia import sections


def read(path: Path | str) -> tuple[list[Document], list[BadRow]]:
    rows = list(open_source(str(path)).read())
    return (
        [row for row in rows if isinstance(row, Document)],
        [row for row in rows if isinstance(row, BadRow)],
    )


def test_wordnet_has_every_synset_under_imagenets_ids(home: Path) -> None:
    documents, bad = read("wordnet")
    assert (len(documents), len(bad)) == (117_659, 0)
    by_id = {document.id: document for document in documents}
    assert len(by_id) == 117_659
    espresso = by_id["wordnet:n07920052"]
    assert espresso.title == "espresso"
    assert (espresso.lead + espresso.text).startswith("espresso (noun): strong black coffee")
    assert by_id["wordnet:n02084071"].title == "dog, domestic dog, Canis familiaris"
    assert by_id["wordnet:a00260780"].title.startswith("bourgeois")  # a satellite adjective


def test_factbook_names_countries_and_holds_no_markup(home: Path) -> None:
    documents, bad = read("factbook")
    assert not bad
    by_id = {document.id: document for document in documents}
    assert len(by_id) == len(documents) > 30_000
    capital = by_id["factbook:fr:government:capital"]
    assert capital.title == "France: Government > Capital"
    assert (capital.lead + capital.text).startswith("France, Capital: name: Paris;")
    assert {d.title.partition(":")[0] for d in documents} >= {
        "Côte d'Ivoire", "Svalbard", "United Arab Emirates", "European Union", "World",
    }  # fmt: skip
    assert not [d for d in documents if "<" in d.text and "/" in d.text and "<b" in d.text]


def test_bad_json_rows_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [
        b'{"id": "a", "title": "T", "text": "good"}',
        b'{"id": "b", "text": ',
        b'{"id": "c"}',
        b'{"id": "d", "text": "' + b"x" * (10 << 20) + b'"}',
        '{"id": "e", "text": "café"}'.encode("latin-1"),
        b"[1, 2]",
        b'{"id": "f", "text": 7}',
        b'{"id": ["g"], "text": "x"}',
        b'{"id": "h", "text": "  "}',
        b"",
        b"[" * 100_000,
        b'{"_id": "z", "contents": "last"}',
    ]
    path.write_bytes(b"\n".join(rows))
    documents, bad = read(path)
    assert [(d.id, d.text) for d in documents] == [("mine:a", "good"), ("mine:z", "last")]
    assert [b.place for b in bad] == [f"mine.jsonl:{n}" for n in (2, 3, 4, 5, 6, 7, 8, 9, 11)]
    reasons = " | ".join(b.reason for b in bad)
    for words in (
        "not JSON, cut off",
        "no `text`",
        "10,485",
        "not UTF-8",
        "list",
        "strings",
        "empty",
    ):
        assert words in reasons


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"id": 1, "text": "a" "b"}', "not JSON at column 23 (Expecting ',' delimiter)"),
        ('{"text": "cut o', "not JSON, cut off at character 15"),
        ('{"text": "good", "score": NaN}', "NaN is not JSON"),
        ("9" * 5_000, "not usable JSON (Exceeds the limit"),
    ],
)
def test_a_bad_json_row_names_one_line_only(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(f'{{"text": "good"}}\n{row}\n')
    _, [bad] = read(path)
    assert bad.place == "docs.jsonl:2"
    assert bad.reason.startswith(reason)
    assert "line" not in bad.reason


@pytest.mark.parametrize("ending", COMPRESSED)
def test_compressed_lines_read_the_same(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine.jsonl{ending}"
    with COMPRESSED[ending](path, "wt") as file:
        file.write('{"text": "one"}\n')
    assert read(path)[0] == [Document("mine:1", "", "one", "mine")]
    table = tmp_path / f"mine.csv{ending}"
    with COMPRESSED[ending](table, "wt") as file:
        file.write("title,text\nT,one\n")
    assert read(table)[0] == [Document("mine:2", "T", "one", "mine", subject="T")]


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_compressed_file_that_was_cut_off_gives_what_it_holds(
    tmp_path: Path, ending: str
) -> None:
    rng = random.Random(7)
    rows = "".join(json.dumps({"text": f"row {rng.random()}"}) + "\n" for _ in range(60_000))
    compress = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": partial(lzma.compress, preset=0),
    }[ending]
    whole = compress(rows.encode())
    path = tmp_path / f"cut.jsonl{ending}"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    documents, bad = read(path)
    assert documents
    assert "reading ended" in bad[-1].reason
    path.write_bytes(b"not compressed at all")
    documents, [bad_row] = read(path)
    assert not documents
    assert bad_row.place == f"cut.jsonl{ending}:1"


def test_rows_of_one_article_have_ids_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl.xz"
    rows = [{"title": "Tea", "text": "Tea is a drink."}, {"title": "Tea", "text": "It is hot."}]
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    first, second = read(path)[0]
    assert (first.id, second.id) == ("wiki:1", "wiki:2")
    assert (first.title, second.subject) == ("Tea", "Tea")
    assert read(path)[0] == [first, second]


def test_tables_take_quotes_and_report_ragged_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(
        b'\xef\xbb\xbfid,title,text\n1,A,"two\nlines"\n2,B\n3,C,\xff\n4,D,"un"closed\n5,E,fine\n'
    )
    documents, bad = read(path)
    assert [(d.id, d.text) for d in documents] == [("t:1", "two\nlines"), ("t:5", "fine")]
    assert sorted(b.place for b in bad) == ["t.csv:4", "t.csv:5", "t.csv:6"]
    tsv = tmp_path / "t.tsv"
    tsv.write_text("text\ttitle\nhello, world\tGreeting\n")
    assert read(tsv)[0] == [Document("t:2", "Greeting", "hello, world", "t", subject="Greeting")]
    (tmp_path / "u.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no `text` column"):
        read(tmp_path / "u.csv")


def test_a_folder_is_read_in_order_with_titles(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("# Heading\n\nBody *text*.\n")
    (folder / "b_note.txt").write_text("plain")
    (folder / "sub" / "c.html").write_text(
        "<html><head><title>Page &amp; co</title><style>x{}</style></head>"
        "<body><p>One<br>two</p><script>no()</script></body></html>"
    )
    (folder / "bad.txt").write_bytes(b"ok\n\xff")
    (folder / "empty.txt").write_text(" \n")
    (folder / "photo.jpg").write_bytes(b"not a text, and nobody expects it to be one")
    (folder / "paper.pdf").write_bytes(b"%PDF")
    (folder / "table.csv").write_text("text\nA table is a corpus of its own.\n")
    (folder / "letter.docx").write_bytes(b"PK")
    documents, bad = read(folder)
    assert [(d.id, d.title, d.text) for d in documents] == [
        ("notes:a.md", "Heading", "Body *text*."),
        ("notes:b_note.txt", "b note", "plain"),
        ("notes:sub/c.html", "Page & co", "One\ntwo"),
    ]
    reasons = {b.place: b.reason for b in bad}
    assert reasons == {
        "bad.txt:2": "not UTF-8 (byte 3), save it as UTF-8",
        "empty.txt": "empty",
        "letter.docx": "convert it to text first",
        "paper.pdf": "a PDF, convert it to text first",
        "table.csv": "a table, give it by its own name",
    }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_text_is_read_by_its_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    (tmp_path / "piano.txt").write_bytes(mark + "Built by Blüthner.\n".encode(encoding))
    [document], _ = read(tmp_path)
    assert document.text == "Built by Blüthner."


@pytest.mark.parametrize("raw", [b"\x00\x01\x02", "no mark".encode("utf-16-le"), b"\xff\xfe\0"])
def test_what_is_no_text_is_not_taken_for_one(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "piano.txt").write_bytes(raw)
    documents, [bad] = read(tmp_path)
    assert not documents
    assert bad.place.startswith("piano.txt")


def read_cards(path: Path) -> Iterator[Document | BadRow]:
    """A made-up format: several documents in a file, one on each line, `title: text`."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        title, colon, text = line.partition(": ")
        if colon:
            yield Document(f"card-{number}", title, text, source="")
        else:
            yield BadRow(str(number), "no title")


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        ("", []),
        ("One line.\r\n\r\n\r\nAnother.", ["One line.", "Another."]),
        ("It was planted\nby a neighbour.", ["It was planted by a neighbour."]),
        # Wrapped at a width, where the next word is a name
        (
            "The espresso machine is serviced by Mrs. Oyelaran-Szczepański every\nMarch.",
            ["The espresso machine is serviced by Mrs. Oyelaran-Szczepański every March."],
        ),
        ("# Kitchen\nthe cat\n- milk\n1. wash", ["# Kitchen", "the cat", "- milk", "1. wash"]),
        ("The end.\nand so on", ["The end.", "and so on"]),
        ("A paragraph of a file whose lines are " + "long " * 30 + "\nAnother", None),
    ],
)
def test_a_text_has_a_line_per_paragraph_however_it_was_wrapped(
    raw: str, lines: list[str] | None
) -> None:
    expected = raw.split("\n") if lines is None else lines
    assert unwrapped(raw) == "\n".join(line.strip() for line in expected)


def test_a_folder_takes_several_formats_and_files_of_several_documents(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "b.txt").write_text("plain")
    (folder / "a.CARDS").write_text("One: first\nbad\nTwo: second")
    (folder / "gone.cards").mkdir()  # a folder with the ending of a file
    readers = {**DOCUMENT_READERS, ".cards": read_cards}
    assert list(Folder(folder, readers).read()) == [
        Document("notes:a.CARDS:card-1", "One", "first", "notes"),
        BadRow("a.CARDS:2", "no title"),
        Document("notes:a.CARDS:card-3", "Two", "second", "notes"),
        Document("notes:b.txt", "b", "plain", "notes", prose=True),
    ]
    [one, _, _] = Folder(folder / "a.CARDS", readers).read()
    assert one == Document("a.CARDS:a.CARDS:card-1", "One", "first", "a.CARDS")
    assert [row.id for row in read(folder)[0]] == ["notes:b.txt"]  # unregistered


def test_the_estimate_counts_the_files_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(300_000))
    for ending in DOCUMENT_READERS:
        (tmp_path / f"a{ending}").write_bytes(b"x" * 3_000)
    assert estimate([str(tmp_path)]).passages == 10 * len(DOCUMENT_READERS)


@pytest.mark.parametrize("ending", ["", *COMPRESSED])
def test_the_estimate_of_a_file_reads_its_beginning_only(tmp_path: Path, ending: str) -> None:
    """More than the sample, and rows shorter and longer than a passage."""
    rng = random.Random(7)
    words = "the old brown horse walks slowly over a green field to drink water".split()
    rows = [
        {"title": f"Thing {i}", "text": " ".join(rng.choices(words, k=rng.choice((5, 60, 150))))}
        for i in range(24_000)
    ]
    path = tmp_path / f"rows.jsonl{ending}"
    options = {".xz": {"preset": 0}, ".gz": {"compresslevel": 1}}.get(ending, {})  # fast
    with COMPRESSED.get(ending, open)(path, "wt", **options) as file:
        file.write("\n".join(map(json.dumps, rows)))
    expected = estimate([str(path)])
    assert 24_000 * 0.8 < expected.passages / (4 / 3) < 24_000 * 1.2  # a third of them are two
    assert 0.5 < expected.index_bytes / (2 * sum(len(row["text"]) for row in rows)) < 2


def test_the_estimate_of_an_unreadable_file_leaves_the_message_to_the_build(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl.xz").write_bytes(b"not xz")
    assert estimate([str(tmp_path / "bad.jsonl.xz")]).passages == 1


def test_a_file_that_cannot_be_read_is_a_bad_row(tmp_path: Path) -> None:
    def refuse(path: Path) -> Iterator[Document | BadRow]:
        yield Document("1", "", "before", source="")
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.locked").touch()
    _, bad = Folder(tmp_path, {".locked": refuse}).read()
    assert bad == BadRow("a.locked", "cannot be read: Permission denied")
    with pytest.raises(UserError, match=r"holds no \.txt, \.md or \.html file$"):
        Folder(tmp_path, dict.fromkeys((".txt", ".md", ".html"), refuse))


def test_wikipedia_pages_become_plain_text(tmp_path: Path) -> None:
    body = (
        "{{Infobox|a={{b}}}}'''Espresso''' is [[coffee|a coffee]] from [[Italy]]"
        "&lt;ref&gt;x&lt;/ref&gt;.\n[[File:e.jpg|thumb|A [[cup]]]]\n{| table |}\n"
        "== Brewing ==\n* forced [https://x.org steam]\n== References ==\nnone"
    )
    page = (
        "<page><title>{}</title><ns>{}</ns><id>{}</id>{}"
        "<revision><id>9</id><text>{}</text></revision></page>"
    )
    pages = [
        page.format("Espresso", 0, 7, "", body),
        page.format("Talk:Espresso", 1, 8, "", "chat"),
        page.format("Expresso", 0, 9, '<redirect title="Espresso"/>', "#REDIRECT"),
        page.format("Tea", 0, 10, "", "Tea is a drink."),
        page.format("List of teas", 0, 11, "", "* Green tea"),
        page.format("Cup (disambiguation)", 0, 12, "", "Some cups."),
        page.format("Java", 0, 13, "", "'''Java''' may refer to:\n* An island\n* A coffee"),
        page.format("Jam", 0, 14, "", "Jam is sweet or a queue of cars.\n{{disambig}}"),
    ]
    xml = (
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{"".join(pages)}</mediawiki>'
    )
    whole = tmp_path / "dump.xml.bz2"
    whole.write_bytes(bz2.compress(xml.encode()))
    documents, bad = read(whole)
    assert not bad
    assert [(d.id, d.title) for d in documents] == [
        ("wikipedia:7", "Espresso"),
        ("wikipedia:7:1", "Espresso"),
        ("wikipedia:10", "Tea"),
    ]
    assert [(d.lead, d.text) for d in documents[:2]] == [
        ("", "Espresso is a coffee from Italy."),
        ("Espresso, Brewing: ", "forced steam"),
    ]
    assert {d.subject for d in documents} == {"Espresso", "Tea"}
    cut = tmp_path / "cut.xml.bz2"
    cut.write_bytes(bz2.compress(xml[: xml.index("Tea is")].encode()))
    documents, bad = read(cut)
    assert [d.id for d in documents] == ["wikipedia:7", "wikipedia:7:1"]
    assert "reading ended" in bad[0].reason


def test_unclosed_wiki_marks_end() -> None:
    assert list(sections("a {{ b [[ c")) == [("", "a {{ b [[ c")]


def test_sections_without_statements_are_left_out_and_later_ones_read() -> None:
    wiki = "Lead.\n== See also ==\n* [[Other]]\n== Uses ==\nMany.\n=== At home ===\nFew."
    assert list(sections(wiki)) == [("", "Lead."), ("Uses", "Many."), ("At home", "Few.")]


@given(st.text(alphabet="=[]{}|<>'*# \nab", max_size=300))
def test_any_wiki_markup_is_read(wiki: str) -> None:
    (heading, _), *_ = sections(wiki)
    assert heading == ""


def test_wikidata_keeps_what_the_filter_asks_for(tmp_path: Path) -> None:
    def entity(number: str, label: str, claims: dict) -> str:
        words = {"en": {"value": label}}
        return json.dumps({"id": number, "labels": words, "descriptions": words, "claims": claims})

    def value(kind: str, value: object) -> list:
        return [{"mainsnak": {"snaktype": "value", "datavalue": {"type": kind, "value": value}}}]

    rich = {
        "P1": value("wikibase-entityid", {"id": "Q2"}),
        "P2": value("time", {"time": "+1889-03-31T00:00:00Z"}),
        "P3": value("string", " ".join(f"word{i}" for i in range(60))),
    }
    lines = [
        "[",
        entity("Q1", "Eiffel Tower", rich) + ",",
        entity("Q2", "Paris", {"P1": rich["P1"]}) + ",",
        entity("P1", "located in", {}) + ",",
        "{broken,",
        entity("Q3", "short", {k: value("string", "x") for k in ("P1", "P2", "P3")}),
        '{"no": "id"}',
        "]",
    ]
    path = tmp_path / "wikidata.json"
    path.write_text("\n".join(lines))
    documents, bad = read(path)
    assert [d.id for d in documents] == ["wikidata:Q1"]
    assert "It is located in Paris." in documents[0].text
    assert "Its P2 is 1889-03-31." in documents[0].text
    assert [b.place for b in bad] == ["wikidata.json:5", "wikidata.json:7"]


@pytest.mark.parametrize(
    "damage",
    [
        {"labels": []},
        {"labels": ["Paris"]},
        {"labels": {"en": ["Paris"]}},
        {"labels": {"en": {"value": 7}}},
        {"labels": {"en": None}},
        {"aliases": ["a"]},
        {"claims": [1, 2, 3]},
    ],
    ids=str,
)
def test_an_entity_of_another_shape_is_a_bad_row(tmp_path: Path, damage: dict) -> None:
    words = {"en": {"value": "Paris"}}
    entity = {"id": "Q90", "labels": words, "claims": {"P1": [], "P2": [], "P3": []}, **damage}
    path = tmp_path / "wikidata.json"
    path.write_text("[\n" + json.dumps(entity) + "\n]")
    documents, bad = read(path)
    assert not documents
    # An entity without a label is left out, which is not an error.
    assert [b.place for b in bad] == ([] if damage == {"labels": []} else ["wikidata.json:2"])


def test_markup_keeps_breaks_and_entities() -> None:
    assert html_to_text("<b>a</b>&nbsp;&lt;b&gt;<br><br>c") == "a <b>\nc"


@pytest.mark.parametrize("spec", ["nowhere.jsonl", "wordnot"])
def test_a_missing_corpus_is_one_clear_line(spec: str) -> None:
    with pytest.raises(UserError, match="no corpus at"):
        open_source(spec)


def test_an_unknown_kind_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="unknown kind of corpus"):
        open_source(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize("spec", ["wordnett", "Factbok"])
def test_a_misspelt_corpus_is_told_the_nearest(spec: str) -> None:
    nearest = {"w": "wordnet", "F": "factbook"}[spec[0]]
    with pytest.raises(
        UserError, match=rf"wordnet, factbook, conceptnet, gcide; did you mean {nearest}\?$"
    ):
        open_source(spec)


def test_a_header_that_cannot_be_read_is_not_the_next_line(tmp_path: Path) -> None:
    (tmp_path / "excel.csv").write_bytes("title,text\nLamp,From Oslo\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"^excel\.csv:1, the header line: not UTF-8 \(byte 0\)"):
        read(tmp_path / "excel.csv")


def test_a_list_of_documents_is_told_where_to_go(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('[{"title": "Lamp", "text": "From Oslo"}]')
    _, [bad] = read(tmp_path / "notes.json")
    assert "rows of your own are read from a .jsonl or .csv" in bad.reason


def test_no_name_is_not_the_working_folder() -> None:
    with pytest.raises(UserError, match="no corpus at ''"):
        open_source("")


def test_a_pdf_is_told_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "Paper.PDF").write_bytes(b"%PDF-1.7")
    with pytest.raises(UserError, match=r"Paper\.PDF is a PDF: convert it to text first"):
        open_source(str(tmp_path / "Paper.PDF"))
    with pytest.raises(UserError, match=r"holds no .* file \(Paper\.PDF: a PDF, convert it"):
        open_source(str(tmp_path))


def test_one_text_is_a_corpus_too(tmp_path: Path) -> None:
    (tmp_path / "lemon-trees.txt").write_text("Agathe planted them in 1931.")
    (tmp_path / "other.txt").write_text("Not asked for.")
    source = open_source(str(tmp_path / "lemon-trees.txt"))
    [document] = source.read()
    assert isinstance(document, Document)
    assert (document.title, document.text) == ("lemon trees", "Agathe planted them in 1931.")
    assert document.id == "lemon-trees.txt:lemon-trees.txt"
    (tmp_path / "lemon-trees.txt").write_text("")
    [bad] = source.read()
    assert isinstance(bad, BadRow)


def test_every_registered_format_opens_its_endings(tmp_path: Path) -> None:
    for known in FILE_FORMATS:
        for ending in known.endings:
            path = tmp_path / f"Corpus{ending.upper()}"
            path.write_bytes(b"")
            source: Source = open_source(str(path))
            assert type(source) is type(known.open(path))
            assert source.name
            assert source.fingerprint() == open_source(str(path)).fingerprint()
    (tmp_path / "x.parquet").write_bytes(b"")
    with pytest.raises(UserError) as refused:
        open_source(str(tmp_path / "x.parquet"))
    assert all(ending in str(refused.value) for known in FILE_FORMATS for ending in known.endings)


def test_every_built_in_corpus_has_a_name_and_an_estimate(home: Path) -> None:
    for name, built_in in BUILT_IN.items():
        assert open_source(name).name == name
        assert estimate([name]).passages == built_in.passages
