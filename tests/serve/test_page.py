"""The page of `skipqa serve` in a real browser, against the real server with real models.

The outline that the page drew is read back from its own history, so what is on the screen is
compared with what the server said, in pixels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("selenium")
pytest.importorskip("fastapi")

from browser import Browser, browsing, executables
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.skipif(executables() is None, reason="needs chromium and chromedriver")

KEY = "key-of-this-test"
QUESTION = "How is this drink brewed?"
ODD = "Mr <b>Plum</b> & Mrs <img src=x onerror=alert(1)>"  # words that a careless page would run


@pytest.fixture(scope="module")
def server(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of its own, on any free port."""
    folder = tmp_path_factory.mktemp("server")
    command = [Path(sys.executable).with_name("skipqa"), "serve", "--port", "0", "--workers", "1"]
    command += ["--threads", os.environ.get("OMP_NUM_THREADS", "2"), "--grace", "0"]
    command += ["--store", folder / "store"]
    environment = {**os.environ, "SKIPQA_API_KEYS": KEY, "SKIPQA_HOME": str(home)}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        said = next((line for line in process.stdout if "listens at" in line), "")
        assert said, (folder / "log").read_text()
        try:
            yield said.split()[-1].partition("?")[0]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Has entered with the key, while the models may still be loading."""
    with browsing(tmp_path_factory.mktemp("profile")) as started:
        started.size(1280, 860)
        started.driver.get(server)
        enter(started)
        started.until(lambda: is_ready(server) and not started.shown("#notice"), 60)
        started.complaints()  # of a server that is not ready
        yield started


def enter(browser: Browser) -> None:
    browser.get("#key").send_keys(KEY, Keys.ENTER)
    browser.until(lambda: browser.all("#example-list button"))
    logged = [line for line in browser.complaints() if "status of" not in line]
    assert logged == []


def is_ready(server: str) -> bool:
    """Until it is, the page says so."""
    try:
        return bool(urlopen(f"{server}health").status == 200)
    except HTTPError:
        return False


@pytest.fixture
def page(browser: Browser, server: str) -> Iterator[Browser]:
    """The page anew. At the end neither the console nor the policy has anything to say."""
    browser.open(server)
    browser.requests()
    yield browser
    browser.prefer()
    browser.size(1280, 860)
    assert browser.complaints() == []


@pytest.fixture
def answered(browser: Browser, server: str, photo: Path) -> Iterator[Browser]:
    """The page with an answer that went the full path; tests that only look at it share it."""
    if not browser.run("return window.asked"):
        browser.open(server)
        browser.run("window.asked = true; sessionStorage.clear()")
        give(browser, photo)
        ask(browser, QUESTION)
    browser.run("scrollTo(0, 0); document.activeElement.blur()")
    yield browser
    browser.prefer()
    browser.size(1280, 860)
    assert browser.complaints() == []


def give(browser: Browser, photo: Path) -> None:
    browser.get("#photo").send_keys(str(photo))
    browser.until(lambda: browser.shown("#stage-photo"))


def ask(browser: Browser, question: str) -> None:
    """Types, presses Enter, and waits for the answer to this very question."""
    field = browser.get("#question")
    field.clear()
    field.send_keys(question, Keys.ENTER)
    wait_for_answer(browser, question)


def wait_for_answer(browser: Browser, question: str) -> None:
    def here() -> bool:
        assert not [one.text for one in browser.all("#tell .error") if one.is_displayed()]
        return not browser.all(".busy") and browser.shown("#result")

    browser.until(here, 60)
    assert outline(browser)["question"] == question


def history(browser: Browser) -> list[dict[str, Any]]:
    return json.loads(browser.run("return sessionStorage.getItem('skipqa.history')") or "[]")


def outline(browser: Browser) -> dict[str, Any]:
    return dict(history(browser)[0]["outline"])


def ending(link: WebElement) -> tuple[str, str]:
    return str(link.get_attribute("data-region")), str(link.get_attribute("data-passage"))


def assert_lines_end_well(browser: Browser) -> None:
    links = [ending(link) for link in browser.all("path.edge")]
    assert links
    for region, passage in links:
        start, end = browser.line_ends(f"path[data-region='{region}'][data-passage='{passage}']")
        box = browser.rect(f".region[data-region='{region}']")
        card = browser.rect(f".passage[data-number='{passage}']")
        assert box.touches(start), (region, passage)
        assert min(abs(start[0] - box.left), abs(start[0] - box.right)) <= 2
        assert card.touches(end), (region, passage)
        assert abs(end[0] - card.left) <= 2


def test_an_answer_with_its_certainty_citations_and_cost(answered: Browser) -> None:
    said = outline(answered)
    assert answered.text("#answer").startswith(said["answer"])
    assert answered.text("#certainty") == said["certainty"]
    spoken = answered.get("[aria-live=polite]#spoken").get_attribute("textContent")
    assert said["answer"] in spoken
    assert "full path" in answered.text("#route")
    assert said["draft"]["answer"] in answered.text("#route")
    cited = [f"[{passage['number']}]" for passage in said["passages"] if passage["cited"]]
    assert [link.text for link in answered.all("#answer .cite")] == cited != []
    times_less = said["dense"]["flops"] / said["flops"]
    assert f"{times_less:.1f} times less" in answered.text("#cost-line")
    ours, dense = (
        sum(part.width for part in answered.rects(f".cost-row:nth-child({n}) .bar span"))
        for n in (1, 2)
    )
    assert dense / ours == pytest.approx(times_less, rel=0.02)
    stages = [row.get_attribute("textContent") for row in answered.all("#stages tbody tr")]
    assert len(stages) == len(said["stages"])
    assert all(stage["why"] in row for stage, row in zip(said["stages"], stages, strict=True))


def test_patches_and_boxes_are_where_the_outline_has_them(answered: Browser) -> None:
    said = outline(answered)
    grid, kept = said["tokens"]["grid"], said["tokens"]["kept"]
    photo = answered.rect("#stage-photo")
    shape = said["image"]
    assert photo.width / photo.height == pytest.approx(shape["width"] / shape["height"], rel=0.01)
    patches = answered.rects(".patch")
    assert len(patches) == len(kept) > 0
    for position, patch in zip(kept, patches, strict=True):
        row, column = divmod(position, grid)
        sides = (column / grid, row / grid, (column + 1) / grid, (row + 1) / grid)
        assert patch.near(photo.part(*sides)), position
    boxes = answered.rects(".region")
    assert len(boxes) == len(said["regions"]) > 0
    for region, box in zip(said["regions"], boxes, strict=True):
        assert box.near(photo.part(*region["box"]))
    described = answered.get("#stage-photo").get_attribute("alt")
    assert all(region["concepts"][0]["name"] in described for region in said["regions"])


def test_every_verdict_is_told_with_its_reason(answered: Browser) -> None:
    said = outline(answered)
    cards = answered.all(".passage")
    assert len(cards) == len(said["passages"]) > 1
    for passage, card in zip(said["passages"], cards, strict=True):
        assert passage["title"] in card.text
        assert passage["reason"] in card.text
        assert f"verifier {passage['verification']:.2f}" in card.text
        assert (f"[{passage['number']}]" in card.text) == passage["cited"]


def test_lines_follow_the_attention_and_what_moves(answered: Browser) -> None:
    said = outline(answered)
    thick = {(str(e["region"]), str(e["passage"])): e["attention"] for e in said["edges"]}
    found = {(str(p["region"]), str(p["number"])) for p in said["passages"]}
    links = {ending(link): link for link in answered.all("path.edge")}
    assert set(links) == set(thick) | found
    dashed = {pair for pair, link in links.items() if "found" in link.get_attribute("class")}
    assert dashed == found - set(thick)
    width = {pair: float(links[pair].get_attribute("stroke-width")) for pair in links}
    assert sorted(thick, key=thick.__getitem__) == sorted(thick, key=width.__getitem__)
    assert_lines_end_well(answered)
    before = answered.line_ends("path.edge:last-child")[0]
    answered.run("scrollTo(0, 300)")
    answered.next_frame()
    assert_lines_end_well(answered)
    answered.size(1000, 700)
    answered.next_frame()
    assert answered.line_ends("path.edge:last-child")[0] != before
    assert_lines_end_well(answered)


def test_pointer_and_focus_light_up_what_belongs_together(answered: Browser) -> None:
    edge = outline(answered)["edges"][0]
    region, passage = edge["region"], edge["passage"]
    ActionChains(answered.driver).move_to_element(answered.get(f"#passage-{passage}")).perform()
    lit = {box.get_attribute("data-region") for box in answered.all(".lit .region.on")}
    linked = {str(e["region"]) for e in outline(answered)["edges"] if e["passage"] == passage}
    assert str(region) in linked <= lit
    ActionChains(answered.driver).move_to_element(answered.get("#question")).perform()
    assert not answered.all(".lit")
    answered.run("document.querySelector(`.region[data-region='${arguments[0]}']`).focus()", region)
    lit = {card.get_attribute("data-number") for card in answered.all(".lit .passage.on")}
    assert str(passage) in lit
    answered.keys(Keys.ESCAPE)
    assert not answered.all(".lit")


def test_a_citation_leads_to_its_passage(answered: Browser) -> None:
    answered.prefer(prefers_reduced_motion="reduce")
    answered.get("#answer .cite").click()
    number = answered.text("#answer .cite").strip("[]")
    assert answered.focused() == f"passage-{number}"
    card = answered.rect(f"#passage-{number}")
    assert card.top >= 0
    assert card.bottom <= 860


def test_the_photo_can_be_seen_alone_or_with_its_saliency(answered: Browser) -> None:
    view = Select(answered.get("#view"))
    view.select_by_value("saliency")
    assert not answered.shown(".patch")
    assert len(answered.all(".heat rect")) == 1 + len(outline(answered)["tokens"]["saliency"])
    view.select_by_value("photo")
    assert not answered.shown(".region")
    view.select_by_value("kept")
    assert answered.shown(".region")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(answered: Browser, scheme: str) -> None:
    answered.prefer(prefers_color_scheme=scheme)
    paper = answered.run("return getComputedStyle(document.body).backgroundColor")
    red = int(paper.removeprefix("rgb(").split(",")[0])
    assert (red < 60) == (scheme == "dark")
    answered.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    faint = [(round(ratio, 2), text) for ratio, text in answered.contrasts() if ratio < 4.5]
    assert faint == []


def test_everything_that_can_be_used_has_a_name(answered: Browser) -> None:
    assert answered.nameless() == []
    for landmark in ("header", "main", "section[aria-label]", "form[aria-label]"):
        assert answered.all(landmark)
    headers = answered.all("#stages th[scope]")
    assert len(headers) == 7 + len(outline(answered)["stages"])


def test_a_phone_shows_all_of_it_without_scrolling_sideways(answered: Browser) -> None:
    answered.size(360, 740, phone=True)
    answered.next_frame()
    assert answered.run("return document.documentElement.scrollWidth <= innerWidth")
    photo, card = answered.rect("#stage-photo"), answered.rect("#passage-1")
    assert card.top > photo.bottom
    assert photo.right <= 360
    assert_lines_end_well(answered)
    answered.get("#open-documents").click()
    assert answered.rect("#documents").right <= 360
    answered.keys(Keys.ESCAPE)
    assert not answered.shown("#documents")


def test_side_by_side_with_the_dense_system(answered: Browser) -> None:
    num_asked = len(history(answered))
    answered.get("#compare").click()
    answered.until(lambda: answered.shown("#compared"), 60)
    ours, dense = (cell.text for cell in answered.all("#compared [data-row=answer] td"))
    assert ours == outline(answered)["answer"]
    assert ("Both say the same" in answered.text("#compared p")) == (ours.lower() == dense.lower())
    _, patches = (cell.text for cell in answered.all("#compared [data-row=patches] td"))
    assert patches == "256 of 256"
    paid = [cell.text for cell in answered.all("#compared [data-row=cost] td")]
    assert all(cell.endswith("GFLOPs") for cell in paid)
    assert len(history(answered)) == num_asked  # the dense answer is not among them


def test_sliders_ask_again_once(answered: Browser) -> None:
    answered.requests()
    for tokens in (40, 25, 12):
        answered.move("#tokens", tokens)
    answered.move("#passages", 2)
    answered.until(lambda: len(answered.all(".patch")) == 12, 60)
    assert len([line for line in answered.requests() if line.startswith("POST")]) == 1
    said = outline(answered)
    assert len(said["tokens"]["kept"]) == 12
    assert len(answered.all(".passage")) == len(said["passages"]) <= 2
    assert {"tokens=12", "passages=2"} <= set(answered.fragment.split("&"))
    answered.get("#reset").click()
    answered.until(lambda: len(answered.all(".patch")) != 12, 60)
    assert answered.fragment == "q=How+is+this+drink+brewed%3F"


def test_the_history_shows_an_answer_again_without_asking(answered: Browser) -> None:
    said = outline(answered)
    assert len(json.dumps(history(answered))) < 200_000  # thumbnails, no photos
    answered.driver.refresh()
    answered.until(lambda: answered.all(".asked"))
    answered.requests()
    answered.get(".asked").click()
    assert answered.text("#answer").startswith(said["answer"])
    assert len(answered.all(".patch")) == len(said["tokens"]["kept"])
    assert not [line for line in answered.requests() if line.startswith("POST")]
    answered.get("#compare").click()  # the photo itself is gone
    assert "thumbnail" in answered.text("#compare-error")
    answered.get("#clear-history").click()
    assert history(answered) == []
    assert not answered.shown("#history")


def test_own_documents_from_the_first_file_to_the_answer(page: Browser, tmp_path: Path) -> None:
    (tmp_path / "cellar.txt").write_text(f"The cellar of Wexcombe Hall is kept by {ODD}.")
    (tmp_path / "garden.txt").write_text("The garden of Wexcombe Hall has nine pear trees.")
    page.get("#open-documents").click()
    page.until(lambda: page.all("#indexes [data-index=default]"))
    names = [tmp_path / "cellar.txt", tmp_path / "garden.txt"]
    page.get("#files").send_keys("\n".join(map(str, names)))
    assert page.text("#chosen").startswith("2 files")
    page.get("#index-name").clear()
    page.get("#index-name").send_keys("Not A Name")
    page.get("#send-documents").click()
    assert "small letters" in page.text("#upload-error")
    page.get("#index-name").clear()
    page.get("#index-name").send_keys("hall", Keys.ENTER)
    page.until(lambda: page.all("[data-index=hall][data-status=ready]"), 60)
    assert "2 documents" in page.text("[data-index=hall] .facts")
    page.get("[data-index=default] input").click()
    page.keys(Keys.ESCAPE)
    assert not page.shown("#documents")
    assert page.text("#searched") == "Searches hall."

    ask(page, "How many pear trees has the garden of Wexcombe Hall?")
    assert page.text("#answer").split()[0] in ("9", "nine")
    assert "index=hall" in page.fragment
    ask(page, f"Who is <i>{ODD}</i>, who keeps the cellar of Wexcombe Hall?")
    assert any(ODD in card.text for card in page.all(".passage"))
    assert not page.all("#tell img, .passage i, #history b b, #answer b")

    page.get("#choose-documents").click()
    page.get("[data-index=hall] .danger").click()
    page.get("[data-index=hall] .danger").click()
    page.until(lambda: not page.all("[data-index=hall]"))


def test_photos_and_folders_can_be_dropped_and_photos_pasted(
    page: Browser, photo: Path, tmp_path: Path
) -> None:
    page.drop("#drop", photo)
    page.until(lambda: page.shown("#stage-photo"))
    page.get("#no-photo").click()
    assert not page.shown("#stage-photo")
    page.paste_photo()
    page.until(lambda: page.shown("#stage-photo"))
    (tmp_path / "House & home" / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b.md", "deep/c.txt"):
        (tmp_path / "House & home" / name).write_text("Some words.")
    page.drop("#drop", tmp_path / "House & home")
    page.until(lambda: page.text("#chosen").startswith("3 files"))
    assert page.get("#index-name").get_attribute("value") == "house-home"
    page.get("#close-documents").click()


def test_only_a_very_large_photo_is_made_smaller(
    page: Browser, photo: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (4_400, 2_200), "teal").save(tmp_path / "large.bmp")  # 29 MB
    page.keep_questions()
    page.get("#question").send_keys("What is this?")
    for path in (photo, tmp_path / "large.bmp"):
        give(page, path)
        page.get("#ask").click()
        page.get("#no-photo").click()
    (name, size, kind), large = page.run(
        "return window.photos.map((p) => [p.name, p.size, p.type])"
    )
    assert (name, size, kind) == ("coffee.png", photo.stat().st_size, "image/png")
    assert large[2] == "image/jpeg"
    assert large[1] < 2_000_000


def test_errors_are_told_where_they_belong(page: Browser, server: str, tmp_path: Path) -> None:
    page.get("#ask").click()
    assert page.text("#question-error") == "Write a question first."
    assert page.focused() == "question"
    (tmp_path / "notes.png").write_text("no picture at all")
    page.get("#photo").send_keys(str(tmp_path / "notes.png"))
    page.until(lambda: page.shown("#photo-error"))
    assert page.text("#photo-error") == "notes.png is not a photo that this browser can read."
    page.open(f"{server}#q=What+is+tea%3F&index=no-such-index")
    assert page.get("#question").get_attribute("value") == "What is tea?"
    page.get("#ask").click()
    page.until(lambda: page.shown("#ask-error"))
    assert "no-such-index" in page.text("#ask-error")
    assert page.get("#ask-error").get_attribute("role") == "alert"
    assert all("404" in line for line in page.complaints())


def test_who_has_no_key_is_led_to_the_key_page(page: Browser) -> None:
    page.driver.delete_all_cookies()
    page.get("#question").send_keys("What is tea?", Keys.ENTER)
    page.until(lambda: page.shown("#ask-error"))
    page.get("#ask-error a").click()
    page.until(lambda: page.all("#key"))
    enter(page)


def test_a_busy_or_loading_server_is_asked_again(page: Browser) -> None:
    busy = {"error": {"message": "too many questions at once", "param": None}}
    page.answer_once("/v1/ask", 429, busy)
    page.get("#question").send_keys("What is the capital of Palau?", Keys.ENTER)
    assert page.text("#ask-error") == "The server is busy. It is asked again in 1 second."
    page.until(lambda: page.shown("#result"), 60)
    assert not page.shown("#ask-error")
    page.answer_once("/health", 503, {"status": "loading"})
    page.answer_once("/v1/ask", 503, {"error": {"message": "loading", "param": None}})
    ask(page, "What is the capital of Bangladesh?")
    assert not page.shown("#notice")


def test_an_example_from_a_link(page: Browser, server: str) -> None:
    page.open(f"{server}#example=1&tokens=20&fast=off")
    wait_for_answer(page, "What is the capital of this country?")
    assert page.rect("#stage-photo").width > 400
    assert not page.get("#fast").is_selected()
    assert {"example=1", "tokens=20", "fast=off"} <= set(page.fragment.split("&"))
    assert len(outline(page)["tokens"]["kept"]) == 20
    assert page.text("#answer")


def test_all_by_keyboard(page: Browser) -> None:
    reached: list[str] = []
    while "question" not in reached:
        page.keys(Keys.TAB)
        reached.append(page.focused())
        assert len(reached) < 20, reached
    assert {"open-documents", "photo", "tokens", "passages", "fast", "threshold"} <= set(reached)
    outlined = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outlined == "solid"
    page.keys("What is the capital of Palau?", Keys.ENTER)
    wait_for_answer(page, "What is the capital of Palau?")
    while "passage-1" not in reached:
        page.keys(Keys.TAB)
        reached.append(page.focused())
        assert len(reached) < 40, reached


def test_nothing_comes_from_elsewhere() -> None:
    static = files("skipqa.serve").joinpath("static")
    text = {n: static.joinpath(n).read_text("utf-8") for n in ("index.html", "page.css", "page.js")}
    for name, content in text.items():
        outside = content.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in outside, name
        assert "https:" not in outside, name
    assert "innerHTML" not in text["page.js"]
    assert "style=" not in text["index.html"]
