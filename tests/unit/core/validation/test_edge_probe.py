"""Looking beyond the edges: all sides in one go, and further out where they are open (Q10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any, cast

import pytest

from lakehouse_backfill.core.validation.edges import probe_edges
from lakehouse_backfill.domain.checks import EdgePartition
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.manifest import InputRange
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.ports.compute import Staging
from tests.support.examples.plans import a_plan
from tests.support.fakes.compute import checksum


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
    pin = made.resolved.sources[0].model_copy(update={"range": declared, "warm_up_days": 0})
    resolved = made.resolved.model_copy(update={"sources": (pin,)})
    return made.model_copy(update={"resolved": resolved})


def days(first: int, stop: int, step: int = 1) -> tuple[str, ...]:
    return tuple(f"2013-02-{day:02d}" for day in range(first, stop, step))


WIDE = plan(date(2013, 1, 1), date(2013, 3, 1))


@pytest.mark.req("Q10")
def test_closed_edges_are_looked_at_once_and_together() -> None:
    probed = Probed(set())
    report = probe_edges(cast(Staging, probed), WIDE)
    assert probed.asked == [{"before": days(14, 12, -1), "after": days(17, 19)}]
    assert report.is_closed


@pytest.mark.req("Q10")
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


@pytest.mark.req("Q10")
def test_a_partition_that_only_one_side_has_rows_in_is_compared_by_key() -> None:
    is_gone = Probed({"2013-02-14"})
    nothing = probe_edges(cast(Staging, is_gone), WIDE, lambda _labels: {})
    assert is_gone.asked == [{"before": days(14, 12, -1), "after": days(17, 19)}]
    assert not nothing.is_closed


@pytest.mark.req("Q10")
def test_only_the_sides_that_are_open_at_their_end_are_followed() -> None:
    probed = Probed({*days(17, 22), "2013-02-14"})
    report = probe_edges(cast(Staging, probed), WIDE)
    assert probed.asked[1:] == [{"after": days(19, 23)}]
    assert (report.closing_from, report.closing_to) == ("2013-02-14", "2013-02-22")


@pytest.mark.req("Q10")
def test_both_sides_are_followed_together_as_far_as_the_input_is_declared() -> None:
    probed = Probed({*days(1, 29)})
    report = probe_edges(cast(Staging, probed), plan(date(2013, 2, 12), date(2013, 2, 21)))
    assert probed.asked[1:] == [{"before": ("2013-02-12",), "after": days(19, 21)}]
    assert (report.is_closed, report.closing_from, report.closing_to) == (False, None, None)
