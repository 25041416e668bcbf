"""The evidence page in a real browser: on a phone, on a screen, on paper, in the dark, offline."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.report.page import write_evidence_files
from tests.pages.browser import Browser, BrowserMissing, Tab, find
from tests.pages.pictures import A4_HEIGHT, A4_WIDTH, SHOTS, Shot, take
from tests.support.examples.dossiers import published_document

DOCS = Path(__file__).resolve().parents[2] / "docs" / "images"
MAX_PICTURE = 300_000
LONG = "a_name_without_any_place_to_break_" * 6
#: The elements that reach beyond the right edge of the page; those cut by design are none.
WIDER = """[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 0.5;
}).map(e => e.tagName + '.' + (e.className.baseVal ?? e.className)).slice(0, 5)"""
SCROLL_WIDTH = "document.documentElement.scrollWidth"
#: Where an answer of the first screen ends, in pixels from the top.
ANSWERS = """[...document.querySelectorAll('.answer')].map(e => [
  e.querySelector('h2').innerText, Math.ceil(e.getBoundingClientRect().bottom)])"""


def long_document() -> dict[str, Any]:
    """A run in which names, values and texts are long and cannot be broken at a space."""
    document = published_document()
    diff, validation = document["validation"]["diff"], document["validation"]
    for cell in diff["cells"]:
        cell["column"] = f"{cell['column']}_{LONG}"
    for column in diff["columns"]:
        column |= {"name": f"{column['name']}_{LONG}", "old": {"min": LONG}, "new": {"min": LONG}}
    for sample in diff["samples"]:
        sample["new"] = {LONG: LONG}
    for check in validation["checks"]:
        check |= {"name": f"{check['name']} {LONG}", "detail": LONG}
    for total in validation["totals"]:
        total |= {"name": LONG, "old": "1234567890123456789012345678.90"}
        total["series"][0]["new"] = "9999999999999999999999999999.25"
    for event in document["events"]:
        event |= {"actor": LONG, "verb": LONG, "detail": {"reason": LONG, "gate": LONG}}
    resolved = document["plan"]["resolved"]
    resolved["contract"]["consumers"][0] |= {"name": LONG, "contact": LONG}
    document["plan"] |= {"shadow_table": LONG, "manifest_file": LONG, "created_by": LONG}
    document["code"][0] |= {"file": LONG, "text": LONG * 5}
    document["approvals"][0] |= {"by": LONG, "reason": LONG}
    document["publication"] |= {"table": f"silver.{LONG}", "by": LONG}
    return document


@pytest.fixture(scope="session")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_evidence_files(long_document(), tmp_path_factory.mktemp("long"))


def unfold(tab: Tab) -> None:
    tab.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")


@pytest.mark.req("O4")
@pytest.mark.parametrize("width", [320, 375, 640, 768, 900, 1280])
@pytest.mark.parametrize("kind", ["page", "long_page"])
def test_nothing_scrolls_sideways(
    browser: Browser, request: pytest.FixtureRequest, kind: str, width: int
) -> None:
    tab = browser.open(request.getfixturevalue(kind), width, 812)
    unfold(tab)
    assert tab.evaluate(WIDER) == []
    assert tab.evaluate(SCROLL_WIDTH) <= width


@pytest.mark.req("O4", "Q8")
def test_a_waiver_stands_below_its_verdict_on_a_phone(browser: Browser, page: Path) -> None:
    tab = browser.open(page, 375, 812)
    lower = """(() => { const said = document.querySelector('#checks td .warn');
      const verdict = said.parentElement.querySelector('.mark');
      return [said.getBoundingClientRect().top >= verdict.getBoundingClientRect().bottom,
              verdict.getClientRects().length]; })()"""
    assert tab.evaluate(lower) == [True, 1]


@pytest.mark.req("O4")
def test_the_page_asks_nobody_for_anything_and_runs_nothing(browser: Browser, page: Path) -> None:
    tab = browser.open(page, 1280, 800)
    unfold(tab)
    tab.picture(1280, 800)
    asked = [each["request"]["url"] for each in tab.events("Network.requestWillBeSent")]
    assert asked == [page.resolve().as_uri()]
    assert tab.events("Log.entryAdded") == []
    assert tab.evaluate("document.scripts.length") == 0


@pytest.mark.req("O4")
def test_a_script_that_got_into_the_page_would_not_run(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    text = page.read_text(encoding="utf-8")
    bad = "<script>document.title='run'</script><img src='http://127.0.0.1:9/x.png'>"
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("<main>", f"<main>{bad}"), encoding="utf-8")
    tab = browser.open(broken, 1280, 800)
    assert tab.evaluate("document.title") != "run"
    blocked = [each["entry"]["text"] for each in tab.events("Log.entryAdded")]
    assert len(blocked) == 2
    assert all("Content Security Policy" in text for text in blocked)


@pytest.mark.req("O4")
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (375, 2 * 812)])
def test_the_first_screen_holds_the_four_answers(
    browser: Browser, page: Path, width: int, height: int
) -> None:
    found = browser.open(page, width, 800).evaluate(ANSWERS)
    assert [question for question, _ in found] == [
        "What changes?", "By how much?", "Is it safe?", "Who approved?",
    ]  # fmt: skip
    assert max(bottom for _, bottom in found) <= height


@pytest.mark.req("O4")
def test_words_are_not_cut_where_they_need_not_be(browser: Browser, page: Path) -> None:
    """Each cell that holds one word only is one line high."""
    lines = """[...document.querySelectorAll('td.word, td.n, .mark')].filter(e => {
      const range = document.createRange(); range.selectNodeContents(e);
      const text = e.innerText.trim();
      const tops = [...range.getClientRects()].map(box => box.top);
      return text && !text.includes(' ') && Math.max(...tops) - Math.min(...tops) > 12;
    }).map(e => e.innerText)"""
    for width in (375, 1280):
        tab = browser.open(page, width, 800)
        unfold(tab)
        assert tab.evaluate(lines) == []


@pytest.mark.req("O4")
def test_the_lineage_is_drawn_once_and_in_letters_of_a_readable_size(
    browser: Browser, page: Path
) -> None:
    sizes = """[...document.querySelectorAll('svg.lineage')].filter(
      e => e.getBoundingClientRect().width > 0).map(
      e => 13 * e.getBoundingClientRect().width / e.viewBox.baseVal.width)"""
    for width in (320, 375, 640, 896, 897, 1280):
        found = browser.open(page, width, 800).evaluate(sizes)
        assert len(found) == 1
        assert found[0] >= 9.5, width
    on_paper = browser.open(page, A4_WIDTH, A4_HEIGHT, printing=True).evaluate(sizes)
    assert [round(size) >= 12 for size in on_paper] == [True]


@pytest.mark.req("O4")
def test_dark_mode_is_dark_and_light_mode_is_light(browser: Browser, page: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert browser.open(page, 1280, 800).evaluate(ground) == "rgb(255, 255, 255)"
    assert browser.open(page, 1280, 800, dark=True).evaluate(ground) == "rgb(20, 23, 28)"
    printed = browser.open(page, 1280, 800, dark=True, printing=True)
    assert printed.evaluate(ground) == "rgb(255, 255, 255)"


@pytest.mark.req("O4")
@pytest.mark.parametrize("kind", ["page", "long_page"])
def test_it_prints_on_a4_with_nothing_cut_at_the_right(
    browser: Browser, request: pytest.FixtureRequest, kind: str
) -> None:
    page = request.getfixturevalue(kind)
    on_paper = browser.open(page, A4_WIDTH, A4_HEIGHT, printing=True)
    assert on_paper.evaluate(WIDER) == []
    assert on_paper.evaluate(SCROLL_WIDTH) <= A4_WIDTH
    pdf = browser.open(page, 1280, 800).pdf()
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    pages = len(re.findall(rb"/Type /Page\b", pdf))
    assert 3 <= pages <= 40
    assert {(round(float(width)), round(float(height))) for width, height in boxes} == {(595, 842)}


@pytest.mark.req("O4")
def test_what_is_folded_on_a_screen_is_open_on_paper(browser: Browser, page: Path) -> None:
    shown = """[...document.querySelectorAll('details')].map(
      e => e.lastElementChild.getBoundingClientRect().height > 0)"""
    assert set(browser.open(page, A4_WIDTH, A4_HEIGHT, printing=True).evaluate(shown)) == {True}


@pytest.mark.req("O4")
@pytest.mark.parametrize("shot", SHOTS, ids=[shot.name for shot in SHOTS])
def test_pictures_of_the_page_are_taken_and_small(
    browser: Browser, page: Path, tmp_path: Path, shot: Shot
) -> None:
    path = take(browser, page, shot, tmp_path)
    assert size(path) == (shot.width, shot.shown)
    assert path.stat().st_size < MAX_PICTURE
    assert len(set(pixels(path))) > 20


@pytest.mark.req("O4")
@pytest.mark.parametrize("shot", SHOTS, ids=[shot.name for shot in SHOTS])
def test_pictures_in_the_documentation_have_the_same_sizes(shot: Shot) -> None:
    path = DOCS / f"{shot.name}.png"
    assert size(path) == (shot.width, shot.shown)
    assert path.stat().st_size < MAX_PICTURE


def test_a_missing_browser_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHROME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BrowserMissing, match="apt-get install chromium"):
        find()


def size(path: Path) -> tuple[int, int]:
    """Read width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def pixels(path: Path) -> bytes:
    """Give the unpacked bytes of a PNG, filters and all: enough to see that it is not blank."""
    data, found, at = path.read_bytes(), b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            found += data[at + 8 : at + 8 + length]
        at += 12 + length
    return zlib.decompress(found)
