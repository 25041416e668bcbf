"""Offsets that were not landed: which of them may hold an event of a window, whatever the order."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.core.landing import offsets
from lakehouse_backfill.core.landing.offsets import (
    FoundOffset,
    OffsetFact,
    OffsetPosition,
    OffsetWindow,
    PartitionView,
    TopicView,
)
from lakehouse_backfill.core.landing.topic_facts import (
    END,
    NEW_PARTITIONS,
    STAMP_COLUMN,
    learned_facts,
    open_offsets,
    with_facts,
)

#: The bound of disorder in the model, in seconds.
BOUND_S = 5


class Appended(NamedTuple):
    """A record of the model: when it was appended, its timestamp, the time of its event; in ms."""

    at: int
    stamp: int
    event: int


@st.composite
def logs(draw: st.DrawFn) -> list[Appended]:
    """Records in the order of their offsets; stamps and events up to the bound before that."""
    found, at = [], 0
    late = st.integers(0, BOUND_S)
    for step, stamp, event in draw(st.lists(st.tuples(st.integers(0, 3), late, late), max_size=15)):
        at += step
        times = at, max(0, at - stamp), max(0, at - event)
        found.append(Appended(*(one * 1000 for one in times)))
    return found


class Log:
    """A partition as brokers answer for it at a moment, after retention removed `low` records."""

    def __init__(self, records: list[Appended], now: int, low: int = 0) -> None:
        self.records = records
        self.stop = len([one for one in records if one.at < now])
        self.low = min(low, self.stop)

    def found(self, moment: int | None) -> FoundOffset | None:
        """The first offset that is left with a timestamp that is not before a moment."""
        own = range(self.low, self.stop) if moment is not None else ()
        return next(
            (FoundOffset(one, self.records[one].stamp) for one in own
             if self.records[one].stamp >= (moment or 0)), None,
        )  # fmt: skip

    def view(self, window: OffsetWindow) -> TopicView:
        begin, end = self.found(window.begin_ms), self.found(window.end_ms)
        one = PartitionView(self.low, self.stop, self.stop, begin, end, self.found(0))
        return TopicView("c", "t", "i", {0: one})


class Landing(NamedTuple):
    """A landing of the model: when it looks, from and to when, and what retention took before."""

    now: int
    from_: int | None
    to: int | None
    low: int


def landings() -> st.SearchStrategy[list[Landing]]:
    moment = st.integers(0, 25).map(lambda second: second * 1000)
    one = st.builds(
        Landing, moment, st.none() | moment, st.none() | moment, st.integers(0, 5)
    )  # fmt: skip
    return st.lists(one, min_size=1, max_size=4).map(lambda own: sorted(own, key=lambda x: x.now))


def landed(records: list[Appended], plans: list[Landing]) -> OffsetPosition | None:
    """Land as the reader does; None where a landing is refused."""
    before: OffsetPosition | None = None
    low = 0
    for one in plans:
        low = max(low, one.low)
        end = None if one.to is None else one.to + BOUND_S * 1000
        window = OffsetWindow(one.from_, end)
        view = Log(records, one.now, low).view(window)
        try:
            whole = offsets.plan_offsets("s", view, before, window)
        except Exception:  # noqa: BLE001 (retention: refused, and nothing is landed)
            return before
        known = before.landed if before else {}
        asked = offsets.without(whole, known)
        learned = learned_facts(view, window, one.now, end)
        facts = with_facts(before.facts if before else {}, learned, known)
        begun = OffsetPosition(
            "ld", "c", "t", "i", asked, landed=known, facts=facts, partitions=(0,),
            bounds_s={STAMP_COLUMN: BOUND_S, "happened_at": BOUND_S},
        )  # fmt: skip
        before = OffsetPosition.read(begun.advanced(asked, {}).as_json())
    return before


@pytest.mark.req("P6")
@settings(deadline=None, max_examples=300)
@given(logs(), landings(), st.sampled_from([STAMP_COLUMN, "happened_at"]),
       st.integers(0, 25), st.integers(1, 10))  # fmt: skip
def test_no_event_of_a_window_lies_outside_of_offsets_that_are_called_complete(
    records: list[Appended], plans: list[Landing], column: str, first: int, length: int
) -> None:
    position = landed(records, plans)
    if position is None:
        return
    span = first * 1_000_000, (first + length) * 1_000_000
    evidence = position.partitions, position.landed, position.facts
    left = offsets.without(
        {0: ((0, END),)}, open_offsets(column, span, position.bounds_s, evidence)
    )
    own = {number for begin, stop in position.landed.get(0, ()) for number in range(begin, stop)}
    for offset, one in enumerate(records):
        moment = (one.stamp if column == STAMP_COLUMN else one.event) * 1000
        if offset not in own and span[0] <= moment < span[1]:
            is_open = not any(begin <= offset < stop for begin, stop in left.get(0, ()))
            assert is_open, (offset, one)


@pytest.mark.req("P6")
@settings(deadline=None)
@given(logs(), st.integers(0, 90), st.integers(1, 20))
def test_a_landing_of_the_window_itself_proves_it(
    records: list[Appended], first: int, length: int
) -> None:
    """From T1 to T2, once the bound is over: nothing is open, also of partitions to come."""
    now = (first + length + BOUND_S) * 1000 + 200_000
    position = landed(records, [Landing(now, first * 1000, (first + length) * 1000, 0)])
    assert position is not None
    span = first * 1_000_000, (first + length) * 1_000_000
    evidence = position.partitions, position.landed, position.facts
    assert open_offsets(STAMP_COLUMN, span, position.bounds_s, evidence) == {}


def view(number: int = 0, **one: object) -> TopicView:
    fields = {"low": 0, "stop": 90, "high": 90} | one
    return TopicView("c", "t", "i", {number: PartitionView(**fields)})  # type: ignore[arg-type]


def left(
    facts: offsets.Facts, landed_spans: offsets.Spans, span: tuple[int, int], **bounds: int
) -> offsets.Spans:
    in_us = span[0] * 1_000_000, span[1] * 1_000_000
    return open_offsets(STAMP_COLUMN, in_us, bounds, ((0,), landed_spans, facts))


def test_an_open_transaction_hides_what_was_appended_before_the_look() -> None:
    facts = learned_facts(view(high=95), OffsetWindow(), 100_000, None)
    assert 0 not in facts or facts[0] == ()
    assert left(facts, {0: ((0, 90),)}, (10, 20), kafka_timestamp=0) == {0: ((90, END),)}


def test_without_a_bound_nothing_is_known_of_what_comes_later() -> None:
    facts = learned_facts(view(), OffsetWindow(), 100_000, None)
    found = left(facts, {0: ((0, 90),)}, (10, 20))
    assert found == {0: ((90, END),), NEW_PARTITIONS: ((0, END),)}
    assert left(facts, {0: ((0, 90),)}, (10, 20), kafka_timestamp=80) == {}
    assert left(facts, {0: ((0, 90),)}, (10, 20), kafka_timestamp=81) != {}


def test_what_retention_removed_is_not_told_of_by_the_time_index() -> None:
    window = OffsetWindow(begin_ms=50_000)
    begin, first = FoundOffset(60, 50_500), FoundOffset(40, 30_000)
    seen = view(low=40, begin=begin, first=first)
    facts = learned_facts(seen, window, 100_000, None)
    assert OffsetFact(40, 60, "stamped_before", 50_000) in facts[0]
    # The oldest that is left is stamped 30 s: with 5 s of disorder what was before it is older.
    assert left(facts, {0: ((60, 90),)}, (50, 60), kafka_timestamp=5) == {}
    assert left(facts, {0: ((60, 90),)}, (50, 60), kafka_timestamp=25) == {0: ((0, 40),)}


@pytest.mark.parametrize(
    ("one", "other", "implies"),
    [
        ((0, 9, "stamped_before", 5), (2, 9, "stamped_before", 6), True),
        ((0, 9, "stamped_before", 7), (2, 9, "stamped_before", 6), False),
        ((0, 9, "stamped_before", 5), (0, 10, "stamped_before", 5), False),
        ((3, END, "appended_from", 7), (4, END, "appended_from", 6), True),
        ((3, END, "appended_from", 5), (4, END, "appended_from", 6), False),
        ((0, 9, "before_stamp", 5), (0, 9, "stamped_before", 5), False),
    ],
)
def test_a_fact_that_another_one_implies_is_not_kept(
    one: tuple, other: tuple, implies: bool
) -> None:
    first, second = OffsetFact(*one), OffsetFact(*other)
    assert first.implies(second) is implies
    kept = with_facts({0: (first,)}, {0: (second,)}, {})
    assert (kept == {0: (first,)}) is implies
    assert all(any(each.implies(one) for each in kept[0]) for one in (first, second))


def test_facts_stay_few_however_often_a_topic_is_landed() -> None:
    known: offsets.Facts = {}
    for hour in range(50):
        stop = 10 * (hour + 1)
        learned = learned_facts(view(stop=stop, high=stop), OffsetWindow(), hour * 1000, None)
        known = with_facts(known, learned, {0: ((0, 10 * hour),)})
        assert sum(map(len, known.values())) <= 3
    assert with_facts(known, {}, {0: ((0, 500),)})[0] == (
        OffsetFact(500, END, "appended_from", 49_000),
    )
