"""The evidence page in a real browser: on a phone, on a screen, on paper, in the dark, offline."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.domain.run import RunStatus
from lakehouse_backfill.report.page import render_index, write_evidence_files
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
    lower = """(() => { const said = document.querySelector('#checks td .by');
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


def waiting_document(state: str) -> dict[str, Any]:
    """A run of some rows of the partitions that waits for a decision in this state."""
    document = published_document()
    run_id = document["run"]["run_id"]
    document["run"]["state"], document["publication"] = state, None
    document["plan"]["resolved"]["manifest"]["target"]["row_predicate"] = {"carrier": ["UA", "AA"]}
    commands = {
        "planned": f"approve {run_id}", "validated": f"accept {run_id}",
        "rejected": f"plan jobs/arrivals_daily/3-restate.yaml --revise {run_id}",
    }  # fmt: skip
    document["standing"] = {
        "is_safe": "this run has published nothing; others changed nothing",
        "readers_see": "the accepted version as before; nothing of this run",
        "next_command": f"lakehouse-backfill {commands[state]}",
    }
    if state == "planned":
        document |= {"validation": None, "approvals": [], "input_checks": [], "chunk_checks": []}
    if state == "rejected":
        document["validation"]["checks"][4]["passed"] = False
        document["validation"]["checks"][1]["passed"] = False
        document["waivers"] = []
    return document


#: Each visible text of the first screen, and where it ends.
FIRST_SCREEN = """[...document.querySelectorAll('h1, .verdict, .wanted, .answer, .answer p')]
  .filter(e => e.getClientRects().length).map(e => [
  e.innerText, Math.ceil(e.getBoundingClientRect().bottom)])"""


@pytest.mark.req("O4")
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (375, 812)])
@pytest.mark.parametrize("state", ["published", "planned", "validated", "rejected"])
def test_the_first_screen_needs_no_scrolling(
    browser: Browser, tmp_path: Path, state: str, width: int, height: int
) -> None:
    """Status, size, safety, row predicate, approver and the wanted act with its commands."""
    document = published_document() if state == "published" else waiting_document(state)
    page = write_evidence_files(document | {"profile": "prod"}, tmp_path)
    tab = browser.open(page, width, height)
    assert [question for question, _ in tab.evaluate(ANSWERS)] == [
        "What changes?", "By how much?", "Is it safe?", "Who approved?",
    ]  # fmt: skip
    found = tab.evaluate(FIRST_SCREEN)
    assert max(bottom for _, bottom in found) <= height
    text = " ".join("\n".join(text for text, _ in found).split())
    wanted = {
        "published": ["published as version 3", "2,866 rows", "8 of 10 checks passed",
                      "rollback silver.arrivals_daily --reason TEXT"],
        "planned": ["planned", "not known yet", "nobody yet", "Only rows with carrier in UA, AA",
                    "approve bf-0f3a9c2e71", "reject bf-0f3a9c2e71 --reason TEXT"],
        "validated": ["validated", "2,866 rows", "Only rows with carrier in UA, AA", "lead",
                      "accept bf-0f3a9c2e71", "reject bf-0f3a9c2e71 --reason TEXT"],
        "rejected": ["rejected by checks", "✗ 7 of 10 checks passed",
                     "Failed: Is every key unique?",
                     "plan jobs/arrivals_daily/3-restate.yaml --revise bf-0f3a9c2e71",
                     "waive bf-0f3a9c2e71 --list"],
    }  # fmt: skip
    assert [words for words in wanted[state] if words not in text] == []


@pytest.mark.req("O4")
def test_checks_that_passed_are_folded_on_a_phone(browser: Browser, page: Path) -> None:
    shown = """[...document.querySelectorAll('#checks .mark')].filter(
      e => e.innerText).map(e => e.innerText)"""
    assert set(browser.open(page, 375, 812).evaluate(shown)) == {
        "! waived", "! failed without blocking",
    }  # fmt: skip


@pytest.mark.req("O4")
@pytest.mark.parametrize("width", [375, 900, 1280])
def test_the_name_of_an_expectation_breaks_between_its_words(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    document = published_document()
    name = "expect_column_values_to_match_strftime_format of a_column_with_many_words_in_its_name"
    document["validation"]["checks"][3]["name"] = name
    for column in document["validation"]["diff"]["columns"]:
        column["name"] = f"average_{column['name']}_of_all_departures"
    tab = browser.open(write_evidence_files(document, tmp_path), width, 812)
    unfold(tab)
    cut = """[...document.querySelectorAll('.nb')].flatMap(e => [...e.childNodes]).filter(
      e => e.nodeType === 3).filter(e => { const range = document.createRange();
      range.selectNodeContents(e); return range.getClientRects().length > 1; }).map(e => e.data)"""
    assert tab.evaluate("document.querySelectorAll('.nb').length") > 5
    assert tab.evaluate(cut) == []
    assert tab.evaluate(SCROLL_WIDTH) <= width


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


@pytest.mark.parametrize("width", [320, 375, 1280])
def test_the_index_leads_to_the_pages_and_back_offline(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    page = write_evidence_files(published_document(), tmp_path)
    status = RunStatus.model_validate(published_document()["run"])
    other = status.model_copy(update={"run_id": "bf-0000000000", "product": f"silver.{LONG}"})
    index = tmp_path / "index.html"
    index.write_text(render_index([other, status], tmp_path), encoding="utf-8")
    tab = browser.open(index, width, 812)
    assert tab.evaluate(WIDER) == []
    assert tab.evaluate("[...document.links].map(e => e.href)") == [page.resolve().as_uri()]
    tab.browser.messages.clear()
    tab.evaluate("document.links[0].click()")
    tab.browser.wait("Page.loadEventFired", tab.session)
    assert index.resolve().as_uri() in tab.evaluate("[...document.links].map(e => e.href)")


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
