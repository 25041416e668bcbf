"""The evidence page: complete, self-contained, and safe to open whatever the values say."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import markupsafe
import pytest

from lakehouse_backfill.errors import ConfigError, EnvironmentDown
from lakehouse_backfill.report import break_glass, changes, charts, lineage
from lakehouse_backfill.report.html import (
    MAX_FIELD_LENGTH,
    MAX_FIELDS,
    MAX_TABLE_BYTES,
    MAX_TABLE_ROWS,
    MAX_TEXT,
    PageTable,
    allow_breaks,
)
from lakehouse_backfill.report.page import render_page, write_evidence_files

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
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def without_breaks(page: str) -> str:
    """Leave out where names may break, and what marks changed values: both follow the values."""
    text = re.sub(r"<wbr>|</?mark>", "", page)
    return re.sub(r'<span class="nb">([^<]*)</span>', r"\1", text)


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


def test_page_and_archive_are_written_beside_each_other(document, tmp_path) -> None:
    page = write_evidence_files(document, tmp_path / "evidence")
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == ["bf-0f3a9c2e71.html", "bf-0f3a9c2e71.json", "bf-0f3a9c2e71.sha256"]
    assert page.name == "bf-0f3a9c2e71.html"
    assert json.loads(page.with_suffix(".json").read_text(encoding="utf-8")) == document


def test_the_same_document_gives_the_same_bytes(document: dict[str, Any], tmp_path: Path) -> None:
    first = write_evidence_files(document, tmp_path).read_bytes()
    assert write_evidence_files(document, tmp_path).read_bytes() == first


def test_the_page_needs_no_script_and_no_network(document: dict[str, Any]) -> None:
    page = render_page(document)
    reader = read(page)
    assert {"script", "img", "link", "iframe", "object", "form"} & set(reader.elements) == set()
    assert [name for name, _ in reader.attributes if name.startswith("on") or name == "src"] == []
    links = {value for name, value in reader.attributes if name == "href"}
    assert {value for value in links if value[0] != "#"} == {"index.html"}
    assert "://" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_every_link_leads_to_a_section(document: dict[str, Any]) -> None:
    reader = read(render_page(document))
    anchors = {value for name, value in reader.attributes if name == "id"}
    links = {value for name, value in reader.attributes if name == "href"}
    assert {value[1:] for value in links - {"index.html"}} == anchors


def test_the_first_screen_answers_what_how_much_safe_and_who(document: dict[str, Any]) -> None:
    first_screen = render_page(document).split("</header>")[0]
    for text in (
        "✓ published as version 3", "45 partitions", "2013-02-15 to 2013-03-31",
        "changed, 270 added, 355 removed", "flights: 44,370 → 44,332 (\N{MINUS SIGN}38)",
        "fares: 43,533.00 → 44,343.25 (+810.25)", "Waived by lead: mean delay moves",
        "! 8 of 10 checks passed, 1 waived, 1 failed without blocking",
        "! Restatement not tolerated by yearly report",
        "Result accepted by lead", "Published by release-bot",
    ):  # fmt: skip
        assert text in first_screen


def test_hostile_values_are_shown_as_text(document: dict[str, Any]) -> None:
    # A hostile check has no waiver: its name is another one.
    for check in document["validation"]["checks"]:
        check["passed"] = True
    document["waivers"] = []
    plain, reader = (
        read(without_breaks(render_page(one))) for one in (document, poisoned(document, FREE))
    )
    # A longer name takes more lines in the lineage picture; each is a `text` with x and y.
    assert [name for name in reader.elements if name != "text"] == [
        name for name in plain.elements if name != "text"
    ]
    assert [name for name, _ in reader.attributes if name not in ("x", "y")] == [
        name for name, _ in plain.attributes if name not in ("x", "y")
    ]
    assert any(HOSTILE in text for text in reader.texts)


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".hidden", "x" * 101, "a\nb"])
def test_a_run_id_that_is_no_plain_name_is_refused(document, tmp_path, run_id) -> None:
    document["run"]["run_id"] = run_id
    with pytest.raises(ConfigError):
        write_evidence_files(document, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_environment_error(document, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(EnvironmentDown) as caught:
        write_evidence_files(document, tmp_path / "file")
    assert caught.value.state.startswith("only the page is missing")


def test_a_run_that_was_only_planned_has_a_page(document: dict[str, Any]) -> None:
    document |= {
        "validation": None, "publication": None, "validation_digest": None, "chunks": [],
        "approvals": [], "input_checks": [], "chunk_checks": [], "waivers": [],
    }  # fmt: skip
    document["run"]["state"] = "planned"
    page = render_page(document)
    read(page)
    for text in ("not known yet", "✓ nothing is published", "nobody yet", "nothing to take back"):
        assert text in page


def test_a_failed_check_is_named_on_the_first_screen(document: dict[str, Any]) -> None:
    document["validation"]["checks"][1] |= {"passed": False, "detail": "3 duplicate keys"}
    document["run"]["state"] = "rejected"
    first_screen = render_page(document).split("</header>")[0]
    assert "✗ 7 of 10 checks passed, 1 failed, 1 waived, 1 failed without blocking" in first_screen
    assert "Failed: Is every key unique?" in first_screen


def test_an_open_edge_names_the_range_that_closes_it(document: dict[str, Any]) -> None:
    document["validation"]["edge"] |= {
        "is_closed": False, "closing_from": "2013-02-14", "closing_to": "2013-04-02",
    }  # fmt: skip
    page = render_page(document)
    assert "✗ open" in page
    assert "from <code>2013-02-14</code> to <code>2013-04-02</code>, not included" in page


@pytest.mark.req("O4")
def test_a_run_of_100_000_partitions_stays_below_two_megabytes(document: dict[str, Any]) -> None:
    row, balance = (
        document["validation"]["diff"]["partitions"][0],
        document["validation"]["balances"][0],
    )
    labels = [str(number) for number in range(100_000)]
    document["validation"]["diff"]["partitions"] = [row | {"partition": label} for label in labels]
    document["validation"]["balances"] = [balance | {"partition": label} for label in labels]
    document["events"] *= 1_000
    document["validation"]["diff"]["samples"][0]["key"] = {"note": "x" * 1_000_000}
    page = render_page(document)
    assert len(page.encode()) < LIMIT_BYTES
    assert "99,800 more rows are in the archive" in page


def wide_document(document: dict[str, Any], partitions: int, columns: int, text: str) -> None:
    """Make a run of many partitions and columns, each cell of which changed, all values long."""
    labels = [f"{number:05d}{text}" for number in range(partitions)]
    names = [f"{number:03d}{text}" for number in range(columns)]
    diff, validation = document["validation"]["diff"], document["validation"]
    document["plan"]["resolved"]["scope"] = {
        "field": {"column": "part", "transform": "identity", "type": "string"},
        "partitions": labels,
    }
    diff["partitions"] = [diff["partitions"][0] | {"partition": label} for label in labels]
    diff["cells"] = [
        {"partition": label, "column": name, "changed": 1 + (len(label) + place) % 80}
        for label in labels
        for place, name in enumerate(names)
    ]
    spread = {"nulls": 0, "min": text, "max": text, "top": {text: 1}}
    diff["columns"] = [
        {"name": name, "changed": 7, "old": spread, "new": spread, "shift": 0.5} for name in names
    ]
    values = dict.fromkeys(names, text * 50)
    diff["samples"] = [{"kind": "changed", "key": values, "old": values, "new": values}] * 200
    validation["balances"] = [validation["balances"][0] | {"partition": label} for label in labels]
    series = [{"partition": label, "old": "12345.67", "new": "12346.67"} for label in labels]
    validation["totals"] = [
        {"name": name, "old": 1, "new": 2, "series": series} for name in names[:20]
    ]
    validation["checks"] = [
        check | {"name": f"{name}{check['name']}", "detail": text * 50}
        for check in validation["checks"]
        for name in names
    ]


@pytest.mark.req("O4")
@pytest.mark.parametrize("text", ["a value", "\"'<&>" * 40], ids=["plain", "hostile and long"])
def test_many_partitions_columns_and_long_values_stay_below_two_megabytes(document, text) -> None:
    wide_document(document, 3_000, 100, text)
    page = render_page(document)
    assert len(page.encode()) < LIMIT_BYTES
    assert "3,000 partitions share" in page
    assert "77 other columns, values changed" in page
    assert page.count("more rows are in the archive") >= 3
    assert "This part is too large" not in page


@pytest.mark.req("O4")
def test_a_part_that_nobody_foresaw_as_large_is_left_to_the_archive(document) -> None:
    document["standing"]["next_command"] = "x" * 3_000_000
    page = render_page(document)
    assert len(page.encode()) < LIMIT_BYTES
    assert "This part is too large for a page: bf-0f3a9c2e71.json holds it." in page
    assert 'id="next"' in page


@pytest.mark.req("O4", "Q8")
def test_a_waiver_stands_beside_its_check_and_among_the_decisions(document: dict[str, Any]) -> None:
    page = render_page(document)
    said = "by lead: the old days were wrong by this much"
    assert f'! waived</span><div class="by soft">{said}</div>' in page
    assert ">waive</td>" in page


@pytest.mark.req("O4", "Q8")
def test_a_waiver_of_an_earlier_result_does_not_count(document: dict[str, Any]) -> None:
    document["waivers"][0]["bound_to"] = "0" * 64
    first_screen, rest = render_page(document).split("</header>")
    assert "✗ 8 of 10 checks passed, 1 failed, 1 failed without blocking" in first_screen
    assert "waived by" not in rest


@pytest.mark.req("O4", "Q9")
def test_a_failed_check_of_a_chunk_names_the_chunk(document: dict[str, Any]) -> None:
    document["chunk_checks"][1]["checks"][0] |= {"passed": False, "detail": "0 rows"}
    document["run"]["state"] = "halted"
    first_screen, rest = render_page(document).split("</header>")
    assert "✗ 7 of 10 checks passed, 1 failed, 1 waived, 1 failed without blocking" in first_screen
    assert "Failed: rows were written (chunk c002)" in first_screen
    row = rest.split("rows were written</td>")[1].split("</tr>")[0]
    assert ">chunk c002</td>" in row
    assert "All 3 checks of single chunks" in rest


@pytest.mark.req("O4", "Q8")
def test_a_waiver_of_a_chunk_holds_for_its_checksum_only(document: dict[str, Any]) -> None:
    chunk = document["chunk_checks"][1]
    chunk["checks"][0]["passed"] = False
    waiver = {"gate": "rows were written", "group": "technical", "scope": "c002", "by": "eva"}
    waiver |= {"at": document["run"]["at"], "reason": "a quiet day"}
    document["waivers"] = [waiver | {"bound_to": f"c002@{chunk['checksum']}"}]
    assert ">by eva: a quiet day" in render_page(document)
    chunk["checksum"] = "another"
    assert "waived by eva" not in render_page(document)


@pytest.mark.req("O4", "Q8")
def test_a_check_that_nobody_can_waive_says_so(document: dict[str, Any]) -> None:
    document["validation"]["checks"][1] |= {"passed": False, "waivable": False}
    assert "✗ failed, nobody can waive it" in render_page(document)


@pytest.mark.req("O4")
def test_the_page_proves_which_run_it_tells_of(document: dict[str, Any]) -> None:
    page = render_page(document)
    part = page.split('id="identity"')[1].split("</section>")[0]
    for text in (
        document["plan"]["manifest_hash"], document["plan"]["resolved"]["code_hash"],
        document["validation_digest"], document["run"]["head"],
        "2026-03-02 09:38:00 UTC by release-bot", "3, in place of 1", "<dd>no other run</dd>",
    ):  # fmt: skip
        assert text in part


def test_a_run_without_sealed_events_has_no_chain(document: dict[str, Any]) -> None:
    document["run"]["head"] = ""
    for event in document["events"]:
        event |= {"hash": "", "previous": ""}
    assert "Head of the event chain" not in render_page(document)


@pytest.mark.req("O4")
def test_the_code_is_folded_in_and_cut_where_it_is_long(document: dict[str, Any]) -> None:
    text = document["code"][0]["text"]
    assert f"<code>{markupsafe.escape(text)}</code>" in render_page(document)
    document["code"] = [{"file": "a.py", "sha256": "0", "text": "<" * 1_000_000}] * 2
    page = render_page(document)
    assert "Only 60,000 of 1,000,000 characters; the archive holds all." in page
    assert len(page.encode()) < LIMIT_BYTES


def test_a_document_without_code_has_a_page_too(document: dict[str, Any]) -> None:
    del document["code"]
    assert "Code: " not in render_page(document)


def test_a_diff_that_is_not_by_partition_says_so(document: dict[str, Any]) -> None:
    diff = document["validation"]["diff"]
    diff |= {"partitions": [diff["summary"]], "cells": []}
    page = render_page(document)
    assert "Rows were not compared by partition: see the columns below." in page
    assert "partitions differ.</p>" not in page


def test_the_documentation_says_the_limits_of_the_page() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "evidence.md").read_text("utf-8")
    for row in (
        f"| rows of a table | {MAX_TABLE_ROWS}, and {MAX_TABLE_BYTES // 1_000} kB |",
        f"| a value | {MAX_TEXT} characters; in examples {MAX_FIELD_LENGTH}, "
        f"and {MAX_FIELDS} fields |",
        f"| heat map | {charts.MAX_HEAT_COLUMNS} columns, {charts.MAX_CELLS} cells a line |",
        f"| totals drawn | the row count and {changes.MAX_TOTAL_FIGURES} totals |",
        f"| code | {lineage.MAX_CODE_CHARACTERS:,} characters |",
        f"make more than {break_glass.MAX_RANGES} ranges",
    ):
        assert row in text


def test_long_values_are_cut_with_their_length() -> None:
    table = PageTable({"Reason": "wide"})
    table.row("x" * 1_500)
    assert f">{'x' * 400}… (1,500 characters)</td>" in table.__html__()


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({}, "Nothing outside these partitions changes: 321 files shared, 0 differ."),
        ({"passed": False, "detail": "320 files shared, 2 differ"},
         "✗ Files outside these partitions differ: 320 files shared, 2 differ"),
        ({"name": "another"}, "Nothing else may change; that was not compared yet."),
    ],
    ids=["equal", "differ", "not looked at"],
)  # fmt: skip
def test_that_nothing_else_changes_is_said_where_it_was_compared(
    document: dict[str, Any], found: dict[str, Any], sentence: str
) -> None:
    document["validation"]["checks"][2] |= found
    assert sentence in render_page(document).split("</header>")[0]


def test_the_section_of_checks_counts_as_the_first_screen_does(document: dict[str, Any]) -> None:
    document["validation"]["checks"][0] |= {"judged": False, "detail": "nothing to look at"}
    first_screen, rest = render_page(document).split("</header>")
    counts = "7 of 10 checks passed, 1 waived, 1 failed without blocking, 1 not judged"
    assert f"! {counts}" in first_screen
    assert re.search(rf"<p>{counts}: \d+ of the input, \d+ of chunks, \d+ of the result\. ", rest)
    assert '<span class="mark soft">○ not judged</span>' in rest


def test_the_log_on_the_page_shows_no_code(document: dict[str, Any]) -> None:
    document["events"][0]["detail"] = {
        "failed": ["edges are closed"], "spent": {"suites_s": 1.5, "runs": [{"a": 1}, {"a": 2}]},
    }  # fmt: skip
    log = render_page(document).split('<section id="work">')[1]
    assert (
        "failed Does anything beyond the range change?; spent suites_s=1.5, runs (a=1; a=2)" in log
    )


def test_changed_values_of_an_example_are_marked_and_equal_ones_are_not(
    document: dict[str, Any],
) -> None:
    document["validation"]["diff"]["samples"] = [
        {"kind": "changed", "key": {"id": 1}, "old": {"fare": 5, "state": "paid"},
         "new": {"fare": 4, "state": "paid"}},
        {"kind": "added", "key": {"id": 2}, "old": None, "new": {"fare": 7}},
    ]  # fmt: skip
    shown = render_page(document).split('<section id="samples">')[1].split("</section>")[0]
    assert re.findall("<mark>(.*?)</mark>", shown) == ["5", "4"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("expect_column_to_exist", "expect_<wbr>column_<wbr>to_<wbr>exist"),
        ("silver.arrivals.daily", "silver.<wbr>arrivals.<wbr>daily"),
        ("short_name", "short_name"),
        ("from 1234567.125 to 2.0", "from 1234567.125 to 2.0"),
    ],
)
def test_names_break_behind_dots_and_underscores_only(name: str, shown: str) -> None:
    assert re.sub("</?span[^>]*>", "", allow_breaks(name)) == shown


def test_checks_that_passed_are_folded(document: dict[str, Any]) -> None:
    shown = render_page(document).split('<section id="checks">')[1].split("</section>")[0]
    above, folded, _ = shown.split("<details>")
    assert "mean delay moves by at most 1 %" in above
    assert "Is every key unique?" not in above
    assert "<summary>5 of input and result passed</summary>" in folded
    assert "Is every key unique?" in folded
