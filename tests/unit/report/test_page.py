"""The evidence page: complete, self-contained, and safe to open whatever the values say."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.errors import ConfigError, EnvironmentDown
from lakehouse_backfill.report import charts, markup
from lakehouse_backfill.report.page import render, write
from lakehouse_backfill.report.style import COLOURS

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
LIMIT_BYTES = 2 * 1024 * 1024


class Reader(HTMLParser):
    """Collects the elements, the attributes and the texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


#: Free texts; in a run manifest and a contract fewer fields are free.
DECLARED = {"reason", "requested_by", "owner", "description", "contact"}
FREE = DECLARED | {
    "actor", "answer", "by", "code_hash", "created_by", "detail", "git_commit", "is_safe",
    "manifest_file", "name", "next_command", "question", "readers_see", "requested",
    "shadow_table", "verb",
}  # fmt: skip


def poisoned(value: Any, free: set[str]) -> Any:
    """Put a hostile string into every free text of a document."""
    if isinstance(value, list):
        return [poisoned(item, free) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: HOSTILE
        if key in free and isinstance(item, str)
        else poisoned(item, DECLARED if key in ("manifest", "contract") else free)
        for key, item in value.items()
    }


def test_page_and_archive_are_written_beside_each_other(
    document: dict[str, Any], tmp_path: Path
) -> None:
    page = write(document, tmp_path / "evidence")
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == ["bf-0f3a9c2e71.html", "bf-0f3a9c2e71.json"]
    assert page.name == "bf-0f3a9c2e71.html"
    assert json.loads(page.with_suffix(".json").read_text(encoding="utf-8")) == document


def test_the_same_document_gives_the_same_bytes(document: dict[str, Any], tmp_path: Path) -> None:
    first = write(document, tmp_path).read_bytes()
    assert write(document, tmp_path).read_bytes() == first


def test_the_page_needs_no_script_and_no_network(document: dict[str, Any]) -> None:
    page = render(document)
    reader = read(page)
    assert {"script", "img", "link", "iframe", "object", "form"} & set(reader.elements) == set()
    assert [name for name, _ in reader.attributes if name.startswith("on") or name == "src"] == []
    assert {value[0] for name, value in reader.attributes if name == "href"} == {"#"}
    assert "://" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_every_link_leads_to_a_section(document: dict[str, Any]) -> None:
    reader = read(render(document))
    anchors = {value for name, value in reader.attributes if name == "id"}
    assert {value[1:] for name, value in reader.attributes if name == "href"} == anchors


def test_the_first_screen_answers_what_how_much_safe_and_who(document: dict[str, Any]) -> None:
    first_screen = render(document).split("</header>")[0]
    for text in (
        "✓ published as version 3", "45 partitions", "2013-02-15 to 2013-03-31",
        "changed, 270 added, 355 removed", "flights: 40,210 → 40,200 (\N{MINUS SIGN}10)",
        "✓ 4 of 4 checks passed", "Result accepted by lead", "Published by release-bot",
    ):  # fmt: skip
        assert text in first_screen


def test_hostile_values_are_shown_as_text(document: dict[str, Any]) -> None:
    plain, reader = read(render(document)), read(render(poisoned(document, FREE)))
    assert reader.elements == plain.elements
    assert [name for name, _ in reader.attributes] == [name for name, _ in plain.attributes]
    assert any(HOSTILE in text for text in reader.texts)


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".hidden", "x" * 101, "a\nb"])
def test_a_run_id_that_is_no_plain_name_is_refused(
    document: dict[str, Any], tmp_path: Path, run_id: str
) -> None:
    document["run"]["run_id"] = run_id
    with pytest.raises(ConfigError):
        write(document, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_environment_error(
    document: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(EnvironmentDown) as caught:
        write(document, tmp_path / "file")
    assert caught.value.state.startswith("only the page is missing")


def test_a_run_that_was_only_planned_has_a_page(document: dict[str, Any]) -> None:
    document |= {
        "validation": None, "publication": None, "validation_digest": None, "chunks": [],
        "approvals": [], "input_checks": [],
    }  # fmt: skip
    document["run"]["state"] = "planned"
    page = render(document)
    read(page)
    for text in ("not known yet", "✓ nothing was changed", "nobody yet", "nothing to take back"):
        assert text in page


def test_a_failed_check_is_named_on_the_first_screen(document: dict[str, Any]) -> None:
    document["validation"]["checks"][1] |= {"passed": False, "detail": "3 duplicate keys"}
    document["run"]["state"] = "rejected"
    first_screen = render(document).split("</header>")[0]
    assert "✗ 3 of 4 checks passed" in first_screen
    assert "Failed: keys are unique" in first_screen


def test_an_open_edge_names_the_range_that_closes_it(document: dict[str, Any]) -> None:
    document["validation"]["edge"] |= {
        "is_closed": False, "closing_from": "2013-02-14", "closing_to": "2013-04-02",
    }  # fmt: skip
    page = render(document)
    assert "✗ open" in page
    assert "from <code>2013-02-14</code> to <code>2013-04-02</code>, not included" in page


def test_a_run_of_many_partitions_stays_below_two_megabytes(document: dict[str, Any]) -> None:
    row, balance = (
        document["validation"]["diff"]["partitions"][0],
        document["validation"]["balances"][0],
    )
    labels = [str(number) for number in range(100_000)]
    document["validation"]["diff"]["partitions"] = [row | {"partition": label} for label in labels]
    document["validation"]["balances"] = [balance | {"partition": label} for label in labels]
    document["events"] *= 1_000
    document["validation"]["diff"]["samples"][0]["key"] = {"note": "x" * 1_000_000}
    page = render(document)
    assert len(page.encode()) < LIMIT_BYTES
    assert "99,800 more rows are in the archive" in page


def test_cells_that_share_neighbours_keep_the_total() -> None:
    cells = charts.gather([str(number) for number in range(1_001)], list(range(1_001)))
    assert len(cells) <= charts.MAX_CELLS
    assert sum(cell.value for cell in cells) == sum(range(1_001))
    assert cells[0] == charts.Cell("0 to 4", 10)


def test_long_values_are_cut_with_their_length() -> None:
    assert markup.escape("x" * 1_500) == "x" * 400 + "… (1,500 characters)"


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "accent", "good", "bad", "warn", "old", "new"])
@pytest.mark.parametrize("ground", ["paper", "card"])
def test_texts_have_enough_contrast(name: str, ground: str, side: int) -> None:
    light, dark = sorted((luminance(COLOURS[name][side]), luminance(COLOURS[ground][side])))[::-1]
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_the_style_sheet_names_only_known_colours(document: dict[str, Any]) -> None:
    style = render(document).split("<style>")[1].split("</style>")[0]
    assert set(re.findall(r"var\(--([a-z]+)\)", style)) <= set(COLOURS)
