"""Which offsets a landing reads, and when it is refused."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.landing import offsets
from lakehouse_backfill.core.landing.offsets import (
    FoundOffset,
    OffsetPosition,
    OffsetWindow,
    PartitionView,
    TopicView,
)
from lakehouse_backfill.errors import Blocked

SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair))),
    max_size=6,
)


def view(*partitions: PartitionView, **other: str) -> TopicView:
    named = {"cluster_id": "c", "topic": "t", "topic_id": "i", **other}
    return TopicView(partitions=dict(enumerate(partitions)), **named)


def position(**other: object) -> OffsetPosition:
    return OffsetPosition(
        **{"landing_id": "ld", "cluster_id": "c", "topic": "t", "topic_id": "i"} | other
    )  # type: ignore[arg-type]


def members(spans: tuple[offsets.Span, ...]) -> set[int]:
    return {number for first, stop in spans for number in range(first, stop)}


@given(SPANS, SPANS)
def test_ranges_are_sets_of_offsets(one: list[offsets.Span], other: list[offsets.Span]) -> None:
    own, taken = offsets.merged(one), offsets.merged(other)
    assert members(own) == set().union(*(range(*span) for span in one))
    left = offsets.without({0: own}, {0: taken})
    assert members(left.get(0, ())) == members(own) - members(taken)
    assert offsets.merged(left.get(0, ())) == left.get(0, ())


@given(SPANS, st.data())
def test_each_offset_that_was_read_is_a_record_or_a_gap(
    asked: list[offsets.Span], data: st.DataObject
) -> None:
    found = position(asked={3: offsets.merged(asked)} if asked else {})
    total = 0
    while found.remaining():
        first, stop = found.remaining()[3][0]
        end = data.draw(st.integers(first + 1, stop))
        count = data.draw(st.integers(0, end - first))
        total += count
        found = OffsetPosition.read(found.advanced({3: ((first, end),)}, {3: count}).as_json())  # type: ignore[assignment]
    assert found.records.get(3, 0) == total
    assert found.gaps().get(3, 0) == len(members(found.asked.get(3, ()))) - total


PLANS = {
    "all that is left": ((10, 90, 95), None, OffsetWindow(), ((10, 90),)),
    "nothing new": ((10, 90, 90), ((10, 90),), OffsetWindow(), ()),
    "what is behind the last landing": ((10, 90, 90), ((10, 50),), OffsetWindow(), ((50, 90),)),
    "from an instant": (
        (0, 90, 90, FoundOffset(20, 5), None), None, OffsetWindow(5), ((20, 90),),
    ),
    "an instant behind the end": ((0, 90, 90, None, None), None, OffsetWindow(5), ()),
    "up to an instant": (
        (0, 90, 90, FoundOffset(20, 5), FoundOffset(30, 9)), None, OffsetWindow(5, 9), ((20, 30),),
    ),
    "an end behind the end": (
        (0, 90, 90, FoundOffset(20, 5), None), None, OffsetWindow(5, 9), ((20, 90),),
    ),
    "an end in an open transaction": (
        (0, 90, 99, None, FoundOffset(95, 9)), None, OffsetWindow(None, 9), ((0, 90),),
    ),
    "a window that was landed in part": (
        (0, 90, 90, FoundOffset(20, 5), None), ((30, 40),), OffsetWindow(5), ((20, 90),),
    ),
    "the first offset that is left has the instant": (
        (7, 90, 90, FoundOffset(7, 5), None), None, OffsetWindow(5), ((7, 90),),
    ),
    "only markers lie before the first record that is left, and it has the instant": (
        (7, 90, 90, FoundOffset(9, 5), None, FoundOffset(9, 5)), None, OffsetWindow(5), ((9, 90),),
    ),
    "all that is left is earlier": (
        (7, 90, 90, None, None, FoundOffset(9, 4)), None, OffsetWindow(5), (),
    ),
    "what retention removed was landed": (
        (7, 90, 90, FoundOffset(7, 6), None), ((0, 20),), OffsetWindow(5), ((7, 90),),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("one", "landed", "window", "wanted"), PLANS.values(), ids=PLANS)
def test_a_range_is(one: tuple, landed: tuple | None, window: OffsetWindow, wanted: tuple) -> None:
    before = None if landed is None else position(landed={0: landed})
    found = offsets.plan_offsets("s", view(PartitionView(*one)), before, window)
    assert found == ({0: wanted} if wanted else {})


CUTS = {
    "behind the last landing": (
        (60, 90, 90), ((10, 50),), OffsetWindow(), r"wants offset 50, .* left is 60",
    ),
    "the range may begin before what is left": (
        (7, 90, 90, FoundOffset(7, 6), None), None, OffsetWindow(5), r"before 7, .*is 7 of 1970",
    ),
    "only a part of what is gone was landed": (
        (7, 90, 90, FoundOffset(7, 6), None), ((3, 7),), OffsetWindow(5), "before 7",
    ),
    "a marker, or a gap, lies before the first record that is left": (
        (7, 90, 90, FoundOffset(9, 6), None, FoundOffset(9, 6)), None, OffsetWindow(5), "before 7",
    ),
    "only markers are left": ((7, 9, 9, None, None), None, OffsetWindow(5), "is left is 7$"),
    "everything is gone": ((90, 90, 90, None, None), None, OffsetWindow(5), "is 90$"),
}  # fmt: skip


@pytest.mark.parametrize(("one", "landed", "window", "problem"), CUTS.values(), ids=CUTS)
def test_a_range_that_retention_cuts_is_refused(
    one: tuple, landed: tuple | None, window: OffsetWindow, problem: str
) -> None:
    before = None if landed is None else position(landed={0: landed})
    with pytest.raises(Blocked) as refused:
        offsets.plan_offsets("s", view(PartitionView(*one)), before, window)
    assert re.search(problem, refused.value.problem)


OTHERS = {
    "another cluster": (view(PartitionView(0, 9, 9), cluster_id="d"), "cluster d is not c"),
    "another topic": (view(PartitionView(0, 9, 9), topic="u"), "holds records of t"),
    "a new topic of the name": (view(PartitionView(0, 9, 9), topic_id="j"), "made again"),
    "a partition that is gone": (view(), "no partition 0"),
    "offsets that went back": (view(PartitionView(0, 4, 4)), "ends at offset 4"),
}


@pytest.mark.parametrize(("found", "problem"), OTHERS.values(), ids=OTHERS)
def test_another_topic_is_refused(found: TopicView, problem: str) -> None:
    with pytest.raises(Blocked, match=problem):
        offsets.require_same_topic(found, position(landed={0: ((0, 5),)}))


def test_the_topic_that_was_landed_is_accepted() -> None:
    grown = view(PartitionView(2, 9, 9), PartitionView(0, 1, 1))
    offsets.require_same_topic(grown, position(landed={0: ((0, 5),)}))
    offsets.require_same_topic(grown, None)


def test_notes_name_open_transactions_new_partitions_and_what_is_gone() -> None:
    found = view(PartitionView(5, 9, 12), PartitionView(0, 1, 1))
    before = position(landed={0: ((5, 9),)})
    assert offsets.range_notes(found, before, {1: ((0, 1),)}) == (
        "t[0]: an open transaction holds back 3 offsets from 9 on; a later landing reads them",
        "t[1] is a new partition since the last landing",
    )
    assert offsets.range_notes(view(PartitionView(5, 9, 9)), None, {0: ((5, 9),)}) == (
        "t[0]: 5 offsets before 5 are gone",
    )


@pytest.mark.parametrize(
    ("read", "live", "text"),
    [
        (None, 2.0, "not measured yet"),
        (5000, 0.0, "last landing read 5,000 records a second"),
        (5000, 50.0, "100.0 times real time"),
        (400, 50.0, "8.0 times real time; less than 10 times catches up slowly"),
    ],
)
def test_the_speed_is_shown_against_real_time(read: int | None, live: float, text: str) -> None:
    assert offsets.speed_note(read, live).endswith(text)


@given(st.integers(0, 7_000_000_000_000_000))
def test_an_instant_is_no_earlier_in_milliseconds(micros: int) -> None:
    moment = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=micros)
    found = offsets.milliseconds(moment)
    again = datetime.fromisoformat(offsets.instant_text(found).replace("Z", "+00:00"))
    assert timedelta(0) <= again - moment < timedelta(milliseconds=1)
