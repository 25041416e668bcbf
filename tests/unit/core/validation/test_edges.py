"""The edge check (Q10)."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.planning import resolve
from lakehouse_backfill.core.validation import edges
from lakehouse_backfill.domain.checks import EdgePartition, EdgeReport
from lakehouse_backfill.domain.manifest import Validation
from lakehouse_backfill.domain.partitions import Scope, ScopeField

DAY = ScopeField(column="d", transform="identity", type="date")


def _scope(*days: str) -> Scope:
    return Scope(field=DAY, partitions=days)


def wanted(**changes: int) -> Validation:
    return Validation.model_validate({"edge_partitions": 2} | changes)


def _edge(day: str, side: str, changed: int) -> EdgePartition:
    return EdgePartition(
        partition=day, side=side, added=0, removed=0, changed=changed,
        counted_twice={"flights": changed}, lost={"flights": 0},
    )  # fmt: skip


@pytest.mark.req("Q10")
def test_the_partitions_around_the_scope_are_looked_at_nearest_first() -> None:
    found = resolve.edge_labels(_scope("2020-01-03", "2020-01-04"), 2)
    assert found == resolve.EdgeLabels(
        before=("2020-01-02", "2020-01-01"), inside=(), after=("2020-01-05", "2020-01-06")
    )


@pytest.mark.req("Q10")
def test_a_gap_inside_the_scope_has_edges_too() -> None:
    found = resolve.edge_labels(_scope("2020-01-01", "2020-01-02", "2020-01-06"), 1)
    assert found.inside == ("2020-01-03", "2020-01-05")


@pytest.mark.req("Q10")
def test_no_edge_is_looked_at_when_none_is_asked_for() -> None:
    assert resolve.edge_labels(_scope("2020-01-01"), 0).all_labels == ()


@pytest.mark.req("Q10")
def test_an_open_range_names_the_range_that_closes_it() -> None:
    scope = _scope("2020-01-03", "2020-01-04")
    found = (
        _edge("2020-01-01", "before", 0),
        _edge("2020-01-02", "before", 7),
        _edge("2020-01-05", "after", 3),
        _edge("2020-01-06", "after", 0),
    )
    report = edges.report_edges(scope, found, 0)
    assert (report.is_closed, report.closing_from, report.closing_to) == (
        False, "2020-01-02", "2020-01-06",
    )  # fmt: skip
    check = edges.check_edges(report, wanted())
    assert not check.passed
    assert "restate from 2020-01-02 to 2020-01-06" in check.detail
    assert "10 twice" in check.detail


@pytest.mark.req("Q10")
def test_a_side_that_differs_as_far_as_was_looked_closes_nowhere() -> None:
    report = edges.report_edges(_scope("2020-01-03"), (_edge("2020-01-02", "before", 1),), 0)
    assert report == EdgeReport(
        partitions=report.partitions, is_closed=False, closing_from=None, closing_to=None
    )


@pytest.mark.req("Q10")
def test_differences_within_the_tolerance_pass() -> None:
    report = edges.report_edges(_scope("2020-01-03"), (_edge("2020-01-02", "before", 1),), 1)
    assert edges.check_edges(report, wanted(edge_tolerance_rows=1)).passed


@pytest.mark.req("Q10")
def test_probing_goes_further_out_and_ends() -> None:
    scope, seen = _scope("2020-06-01"), ("2020-05-31", "2020-05-30")
    rounds = 0
    while more := edges.next_edge_labels(scope, "before", seen):
        seen += more
        rounds += 1
    assert len(seen) == edges.MAX_PROBED_PARTITIONS
    assert rounds < 6


@pytest.mark.req("Q10")
@pytest.mark.parametrize(
    ("found", "asked", "detail"),
    [
        (EdgeReport(partitions=(), is_closed=True, closing_from=None, closing_to=None), 0,
         "not looked at: edge_partitions is 0"),
        (None, 0, "not looked at: edge_partitions is 0"),
        (None, 2, "nothing is accepted beyond the edges yet"),
        (EdgeReport(partitions=(), is_closed=True, closing_from=None, closing_to=None), 2,
         "not looked at: these partitions have no order, so nothing lies beyond an edge"),
    ],
    ids=["none wanted", "none wanted of a new product", "new product", "texts"],
)  # fmt: skip
def test_edges_that_were_not_looked_at_are_not_called_closed_without_saying_so(
    found: EdgeReport | None, asked: int, detail: str
) -> None:
    check = edges.check_edges(found, wanted(edge_partitions=asked))
    assert (check.passed, check.detail) == (True, detail)
