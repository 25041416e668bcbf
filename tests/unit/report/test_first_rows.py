"""A run that brings the first rows of its partitions: there is nothing old to speak of."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.core.evidence.document import has_no_old_rows
from lakehouse_backfill.core.evidence.status import summarise_safety
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.report.page import render_page


@pytest.fixture
def first(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a run before which nothing was there."""
    diff = document["validation"]["diff"]
    for row in (diff["summary"], *diff["partitions"]):
        row |= {"old_rows": 0, "added": row["new_rows"], "removed": 0, "changed": 0}
        row["unchanged"] = 0
    for total in document["validation"]["totals"]:
        total["old"] = None
        for point in total["series"]:
            point["old"] = None
    document["publication"]["before_snapshot_id"] = None
    return document


@pytest.mark.req("O4")
def test_the_first_rows_are_no_share_of_anything(first: dict[str, Any]) -> None:
    page = render_page(first)
    much = page.split("By how much?")[1].split("Is it safe?")[0]
    assert "first rows: nothing was there before" in much
    assert "flights: none → 44,332" in much
    assert "of the rows there" not in much
    assert 'data-label="Old" class="n">none</td>' in page


@pytest.mark.req("O4")
def test_the_way_back_empties_the_partitions_again(first: dict[str, Any]) -> None:
    words = "any way back leaves these partitions empty again"
    assert words in render_page(first)
    first["run"]["state"] = "rolled_back"
    page = render_page(first)
    assert words not in page
    assert "The run was rolled back: the partitions are empty again, as before." in page


@pytest.mark.req("O4")
def test_a_restatement_speaks_of_what_was_there(document: dict[str, Any]) -> None:
    page = render_page(document)
    assert "nothing was there before" not in page
    assert "empty again" not in page


@pytest.mark.parametrize("state", list(RunState))
def test_no_state_promises_old_rows_where_there_were_none(state: RunState) -> None:
    found = summarise_safety(state, "bf-1", "silver.daily", was_empty=True)
    said = f"{found.is_safe} {found.readers_see} {found.next_command}"
    assert "old" not in said.split()
    assert "accepted version as before" not in said
    assert "want them back" not in said


def test_what_was_published_first_goes_back_to_nothing() -> None:
    found = summarise_safety(RunState.PUBLISHED, "bf-1", "silver.daily", was_empty=True)
    assert vars(found) == {
        "is_safe": "yes: nothing was there before, so nothing was replaced",
        "readers_see": "the first rows of these partitions, by this run",
        "next_command": "lakehouse-backfill rollback silver.daily --reason TEXT   "
        "# only to empty these partitions again",
    }


def test_nothing_was_there_when_the_comparison_found_no_old_row(first: dict[str, Any]) -> None:
    assert has_no_old_rows(first["validation"])
    first["validation"]["diff"]["summary"]["old_rows"] = 1
    assert not has_no_old_rows(first["validation"])
    assert not has_no_old_rows(None)


@pytest.mark.req("O4")
def test_consumers_that_do_not_tolerate_restatement_are_named_first(document) -> None:
    consumers = document["plan"]["resolved"]["contract"]["consumers"]
    consumers += [{"name": f"report {number}", "tolerates_restatement": False} for number in (1, 2)]
    consumers.append({"name": "ledger", "tolerates_restatement": False})
    first_screen = render_page(document).split("</header>")[0]
    said = "! Restatement not tolerated by yearly report, report 1, report 2 and 1 more"
    assert said in first_screen
    for consumer in consumers:
        consumer["tolerates_restatement"] = True
    assert "not tolerated" not in render_page(document).split("</header>")[0]


@pytest.mark.parametrize(
    ("count", "title"),
    [
        (45, "All 45 partitions in numbers"),
        (44, "44 of 45 partitions in numbers; the others have no rows"),
    ],
)
def test_the_numbers_say_of_how_many_partitions_they_are(document, count, title) -> None:
    diff = document["validation"]["diff"]
    diff["partitions"] = [*diff["partitions"][:count], diff["summary"]]
    assert f"<summary>{title}</summary>" in render_page(document)


def test_one_partition_and_none_at_all_are_no_plural(document: dict[str, Any]) -> None:
    diff, scope = document["validation"]["diff"], document["plan"]["resolved"]["scope"]
    diff["partitions"], diff["cells"] = diff["partitions"][:1], []
    scope["partitions"] = scope["partitions"][:1]
    assert "<summary>The partition in numbers</summary>" in render_page(document)
    diff["partitions"] = [diff["summary"]]
    assert "<summary>All rows in numbers</summary>" in render_page(document)
