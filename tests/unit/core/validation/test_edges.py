"""Edge partitions: what is compared, and how open edges are probed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any, cast

import pytest

from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.validation import edges
from lakehouse_backfill.core.validation.edges import probe_edges
from lakehouse_backfill.domain.checks import EdgePartition, EdgeReport
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.manifest import InputRange, Validation
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.ports.compute import Staging
from tests.support.examples.plans import a_plan, with_fields
from tests.support.fakes.compute import checksum

pytestmark = pytest.mark.req("Q10")

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


def test_the_partitions_around_the_scope_are_looked_at_nearest_first() -> None:
    found = resolve.edge_labels(_scope("2020-01-03", "2020-01-04"), 2)
    assert found == {
        "before": ("2020-01-02", "2020-01-01"),
        "inside": (),
        "after": ("2020-01-05", "2020-01-06"),
    }


def test_a_gap_inside_the_scope_has_edges_too() -> None:
    found = resolve.edge_labels(_scope("2020-01-01", "2020-01-02", "2020-01-06"), 1)
    assert found["inside"] == ("2020-01-03", "2020-01-05")


def test_no_edge_is_looked_at_when_none_is_asked_for() -> None:
    assert resolve.edge_labels(_scope("2020-01-01"), 0) == {}


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
    # The rows stay in their partitions: nothing is counted twice.
    assert "10 rows there would come out with other values, too" in check.detail
    assert "twice" not in check.detail


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        # No key beyond the partition column: nothing tells.
        (
            {"2020-01-05": (None, None), "2020-01-06": (None, None)},
            ": where they moved across the edge, publishing would count 3 of flights, 120 of miles "
            "twice and lose 1 of flights, 50 of miles",
        ),
        (
            {"2020-01-05": (2, 1), "2020-01-06": (1, 0)},
            "; by key 3 moved into the range and 1 out of it: publishing would count 3 of flights, "
            "120 of miles twice and lose 1 of flights, 50 of miles",
        ),
        (
            {"2020-01-05": (0, 0), "2020-01-06": (0, 0)},
            "; by key none of them moved across the edge",
        ),
    ],
)
def test_rows_that_only_one_side_has_are_told_by_measure_with_what_they_would_do(
    moves: dict[str, tuple[int | None, int | None]], said: str
) -> None:
    def edge(day: str, added: int, removed: int, changed: int) -> EdgePartition:
        moved_in, moved_out = moves.get(day, (None, None))
        twice, lost = (
            removed if moved_in is None else moved_in,
            added if moved_out is None else moved_out,
        )
        return EdgePartition(
            partition=day, side="after", added=added, removed=removed, changed=changed,
            moved_in=moved_in, moved_out=moved_out,
            counted_twice={"flights": twice, "miles": 40 * twice},
            lost={"flights": lost, "miles": 50 * lost},
        )  # fmt: skip

    scope = _scope("2020-01-03", "2020-01-04")
    found = (edge("2020-01-05", 1, 2, 0), edge("2020-01-06", 0, 1, 5), edge("2020-01-07", 0, 0, 0))
    check = edges.check_edges(edges.report_edges(scope, found, 0), wanted())
    assert check.detail == (
        "open at 2020-01-05, 2020-01-06: 3 accepted rows are not computed there any more, and 1 "
        f"others are{said}; 5 rows there would come out with other "
        "values, too; restate from 2020-01-03 to 2020-01-07 (not included)"
    )


def test_a_side_that_differs_as_far_as_was_looked_closes_nowhere() -> None:
    report = edges.report_edges(_scope("2020-01-03"), (_edge("2020-01-02", "before", 1),), 0)
    assert report == EdgeReport(
        partitions=report.partitions, is_closed=False, closing_from=None, closing_to=None
    )


def test_differences_within_the_tolerance_pass() -> None:
    report = edges.report_edges(_scope("2020-01-03"), (_edge("2020-01-02", "before", 1),), 1)
    assert edges.check_edges(report, wanted(edge_tolerance_rows=1)).passed


def test_probing_goes_further_out_and_ends() -> None:
    scope, seen = _scope("2020-06-01"), ("2020-05-31", "2020-05-30")
    rounds = 0
    while more := edges.next_edge_labels(scope, "before", seen):
        seen += more
        rounds += 1
    assert len(seen) == edges.MAX_PROBED_PARTITIONS
    assert rounds < 6


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


@dataclass
class Probed:
    """Answers for partitions that differ, and keeps what it was asked."""

    differing: set[str]
    asked: list[dict[str, tuple[str, ...]]] = field(default_factory=list)
    summed: list[tuple[str, ...]] = field(default_factory=list)

    def edge_checksums(self, plan: Plan, around: Any) -> dict[str, Checksum]:
        labels = tuple(label for some in around.values() for label in some)
        self.summed.append(labels)
        return {label: _sum(label, changed=label in self.differing) for label in labels}

    def edges(self, plan: Plan, around: Any) -> tuple[EdgePartition, ...]:
        self.asked.append({side: labels for side, labels in around.items() if labels})
        return tuple(
            EdgePartition(
                partition=label, side=side, added=0, removed=0,
                changed=1 if label in self.differing else 0, counted_twice={}, lost={},
            )
            for side, labels in around.items()
            for label in labels
        )  # fmt: skip


def _sum(label: str, *, changed: bool = False) -> Checksum:
    return checksum(frozenset({f"{label} changed" if changed else label}))


def accepted(labels: tuple[str, ...]) -> dict[str, Checksum]:
    return {label: _sum(label) for label in labels}


def plan(first: date, stop: date) -> Plan:
    """Days 15 and 16 of February, of an input that is declared from `first` to `stop`."""
    made = a_plan()
    declared = InputRange.model_validate({"column": "day", "from": first, "to": stop})
    pin = with_fields(made.resolved.sources[0], range=declared, warm_up_days=0)
    return with_fields(made, resolved__sources=(pin,))


def days(first: int, stop: int, step: int = 1) -> tuple[str, ...]:
    return tuple(f"2013-02-{day:02d}" for day in range(first, stop, step))


WIDE = plan(date(2013, 1, 1), date(2013, 3, 1))


def test_closed_edges_are_looked_at_once_and_together() -> None:
    probed = Probed(set())
    report = probe_edges(cast(Staging, probed), WIDE)
    assert probed.asked == [{"before": days(14, 12, -1), "after": days(17, 19)}]
    assert report.is_closed


def test_of_what_is_known_by_checksums_only_what_differs_is_compared_by_key() -> None:
    looked = (*days(14, 12, -1), *days(17, 19))
    closed = Probed(set())
    report = probe_edges(cast(Staging, closed), WIDE, accepted)
    assert (closed.asked, closed.summed) == ([], [looked])
    everything = probe_edges(cast(Staging, Probed(set())), WIDE)
    totals = dict.fromkeys((each.name for each in WIDE.resolved.contract.measures), 0)
    none = {"counted_twice": totals, "lost": totals}
    assert report == everything.model_copy(
        update={"partitions": tuple(p.model_copy(update=none) for p in everything.partitions)}
    )
    is_open = Probed({"2013-02-17"})
    assert not probe_edges(cast(Staging, is_open), WIDE, accepted).is_closed
    assert (is_open.asked, is_open.summed) == ([{"after": ("2013-02-17",)}], [looked])


def test_a_partition_that_only_one_side_has_rows_in_is_compared_by_key() -> None:
    is_gone = Probed({"2013-02-14"})
    nothing = probe_edges(cast(Staging, is_gone), WIDE, lambda _labels: {})
    assert is_gone.asked == [{"before": days(14, 12, -1), "after": days(17, 19)}]
    assert not nothing.is_closed


def test_only_the_sides_that_are_open_at_their_end_are_followed() -> None:
    probed = Probed({*days(17, 22), "2013-02-14"})
    report = probe_edges(cast(Staging, probed), WIDE)
    assert probed.asked[1:] == [{"after": days(19, 23)}]
    assert (report.closing_from, report.closing_to) == ("2013-02-14", "2013-02-22")


def test_both_sides_are_followed_together_as_far_as_the_input_is_declared() -> None:
    probed = Probed({*days(1, 29)})
    report = probe_edges(cast(Staging, probed), plan(date(2013, 2, 12), date(2013, 2, 21)))
    assert probed.asked[1:] == [{"before": ("2013-02-12",), "after": days(19, 21)}]
    assert (report.is_closed, report.closing_from, report.closing_to) == (False, None, None)
