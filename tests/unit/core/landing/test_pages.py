"""Pages of an API: every record of a range is met once, whatever the paging."""

from __future__ import annotations

import itertools
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.landing import pages
from lakehouse_backfill.domain.sources.declaration import ApiSource
from lakehouse_backfill.domain.sources.landings import LandingRequest
from lakehouse_backfill.errors import Blocked, ConfigError

NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
WINDOW = {
    "by": "window", "from": "since", "to": "until", "column": "at", "hours": 36,
    "cursor": "cursor", "next": "next",
}  # fmt: skip


def api(paging: dict[str, Any] | None, **more: Any) -> ApiSource:
    fields = {"url": "https://vendor.example/v1", "id": "id", "paging": paging, "records": "items"}
    return ApiSource.model_validate(fields | more)


@pytest.mark.req("S5")
@given(hours=st.integers(1, 24 * 20), start=st.integers(1, 5), stop=st.integers(6, 28))
def test_windows_cover_a_range_without_gap_or_overlap(hours: int, start: int, stop: int) -> None:
    declared = api(WINDOW | {"hours": hours})
    request = LandingRequest(
        from_=datetime(2026, 1, start, tzinfo=timezone.utc),
        to=datetime(2026, 1, stop, tzinfo=timezone.utc),
    )
    place = pages.first_place(declared, request, {}, NOW)
    met = []
    last = place
    while place is not None:
        asked = pages.query(declared, place)
        met.append((asked["since"], asked["until"]))
        last, place = place, pages.next_place(declared, place, {"items": []}, [])
    assert met[0][0] == f"2026-01-{start:02d}T00:00:00Z"
    assert met[-1][1] == f"2026-01-{stop:02d}T00:00:00Z"
    assert all(one[1] == other[0] for one, other in itertools.pairwise(met))
    assert last is not None
    assert pages.continued_from(declared, last, {}) == {"from": f"2026-01-{stop:02d}T00:00:00Z"}


def test_a_window_has_its_own_pages_and_then_the_next_window() -> None:
    declared = api(WINDOW)
    first = pages.first_place(
        declared, LandingRequest(from_=datetime(2026, 1, 30, tzinfo=timezone.utc)), {}, NOW
    )
    assert first is not None
    second = pages.next_place(declared, first, {"next": "c2"}, [{"id": 1}])
    assert second == {**first, "cursor": "c2"}
    assert pages.query(declared, second)["cursor"] == "c2"
    with pytest.raises(Blocked, match="names the same page again"):
        pages.next_place(declared, second, {"next": "c2"}, [])


@pytest.mark.parametrize(
    ("paging", "continued", "place"),
    [
        (None, {}, {"cursor": None}),
        ({"by": "cursor", "parameter": "c", "next": "n"}, {"cursor": "9"}, {"cursor": None}),
        (
            {"by": "cursor", "parameter": "c", "next": "n", "continues": True}, {"cursor": "9"},
            {"cursor": "9"},
        ),
        ({"by": "id_range", "parameter": "after"}, {}, {"after": "0"}),
        ({"by": "id_range", "parameter": "after"}, {"after": 7}, {"after": 7}),
    ],
)  # fmt: skip
def test_a_later_landing_begins_where_its_paging_says(
    paging: dict[str, Any] | None, continued: dict[str, Any], place: dict[str, Any]
) -> None:
    assert pages.first_place(api(paging), LandingRequest(), continued, NOW) == place


def test_ranges_are_for_windows_only_and_within_what_the_vendor_keeps() -> None:
    day = LandingRequest(from_=datetime(2025, 1, 1, tzinfo=timezone.utc))
    with pytest.raises(ConfigError, match="are for APIs with paging by window"):
        pages.first_place(api({"by": "id_range", "parameter": "after"}), day, {}, NOW)
    with pytest.raises(Blocked, match=r"records before 2026-01-01T00:00Z are gone"):
        pages.first_place(api(WINDOW, retention_days=30), day, {}, NOW)
    assert pages.first_place(api(WINDOW), LandingRequest(from_=NOW), {}, NOW) is None


@pytest.mark.parametrize("body", [{"items": {}}, {"items": [1]}, {}, [], None])
def test_a_response_without_a_list_of_records_is_refused(body: Any) -> None:
    with pytest.raises(Blocked, match="items is no list of records"):
        pages.records_of(api(None), body)


@pytest.mark.req("S5")
@pytest.mark.parametrize(
    ("first", "end", "before", "wanted"),
    [
        pytest.param("05", "08", {}, "08", id="the first landing"),
        pytest.param("05", "08", {"from": "05"}, "08", id="goes on"),
        pytest.param("01", "03", {"from": "05"}, "05", id="an old range again"),
        pytest.param("10", "12", {"from": "05"}, "05", id="behind a gap"),
        pytest.param("10", "12", {"from": "01"}, "12", id="behind a gap that is not kept any more"),
        pytest.param("05", "99", {"from": "05"}, "31", id="a range that ends in the future"),
    ],
)
def test_a_later_landing_begins_where_no_window_is_left_out(
    first: str, end: str, before: dict[str, str], wanted: str
) -> None:
    def at(day: str) -> str:
        return "2027-01-01T00:00:00Z" if day == "99" else f"2026-01-{day}T00:00:00Z"

    declared = api(WINDOW, retention_days=28)
    known = {name: at(day) for name, day in before.items()}
    landed = {"from": at(first)}, {"from": at(end)}
    assert pages.without_gap(declared, landed, known, NOW) == {"from": at(wanted)}
    feed = api({"by": "cursor", "parameter": "c", "next": "next"})
    assert pages.without_gap(feed, ({}, {"cursor": "8"}), {"cursor": "9"}, NOW) == {"cursor": "8"}


def test_a_range_that_ends_within_a_second_is_read_to_the_end_of_it() -> None:
    stop = datetime(2026, 1, 2, 3, 4, 5, 500000, tzinfo=timezone.utc)
    request = LandingRequest(from_=datetime(2026, 1, 2, tzinfo=timezone.utc), to=stop)
    place = pages.first_place(api(WINDOW), request, {}, NOW)
    assert place is not None
    assert place["to"] == "2026-01-02T03:04:06Z"


@pytest.mark.req("S5")
def test_ids_in_another_order_are_refused_for_the_last_one_would_leave_records_out() -> None:
    declared = api({"by": "id_range", "parameter": "after"})
    records = [{"id": one} for one in (10, 9, 8)]
    with pytest.raises(Blocked, match="not in the order of their ids"):
        pages.next_place(declared, {"after": 0}, {}, records)
    assert pages.next_place(declared, {"after": 0}, {}, records[::-1]) == {"after": 10}


def test_a_next_page_that_is_false_is_none() -> None:
    declared = api({"by": "cursor", "parameter": "c", "next": "next"})
    assert pages.next_place(declared, {"cursor": None}, {"next": False}, [{"id": 1}]) is None
