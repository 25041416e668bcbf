"""What brokers said of offsets while a topic was landed: where events of a window cannot lie.

Offsets and event times differ in order, so a window of event time is complete only when each offset
that was not landed is known to hold no event of it. A fact says something of all records in a range
of offsets, landed or not. It stays true: records are only ever added behind the end of a log.

Assumed is what the declaration of the source says: no record is stamped later than it is appended,
and none is appended later than its bound after its stamp. The clock of the landing's own machine is
used where a partition got nothing since: it must not run ahead of that of the producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse_backfill.core.landing.offsets import (
    Facts,
    OffsetFact,
    OffsetWindow,
    Span,
    Spans,
    TopicView,
    merged,
    without,
)

#: Behind all offsets of a partition.
END = 2**63 - 1
#: The column with the timestamps of the records themselves.
STAMP_COLUMN = "kafka_timestamp"
#: In facts: the partitions that the topic had not got yet.
NEW_PARTITIONS = -1


def learned_facts(
    view: TopicView, window: OffsetWindow, looked_at_ms: int, until_ms: int | None
) -> Facts:
    """Return what a look at a topic tells; `looked_at_ms` is from before the look.

    With `until_ms` nothing later than that instant is claimed: so the same question again tells
    nothing new.
    """
    at_ms = looked_at_ms if until_ms is None else min(looked_at_ms, until_ms)
    found: Facts = {NEW_PARTITIONS: (OffsetFact(0, END, "appended_from", at_ms),)}
    for number, one in view.partitions.items():
        own = []
        if window.begin_ms is not None:
            # Retention may have gone on between two answers: only what is left is told of.
            low = one.low if one.first is None else max(one.low, one.first.offset)
            begin = one.begin.offset if one.begin else one.stop
            own.append(OffsetFact(low, begin, "stamped_before", window.begin_ms))
        own += [
            OffsetFact(0, each.offset, "before_stamp", each.timestamp_ms)
            for each in (one.begin, one.first)
            if each is not None
        ]
        if window.end_ms is not None and one.end is not None:
            own.append(OffsetFact(one.end.offset, END, "appended_from", one.end.timestamp_ms))
        elif one.stop == one.high:
            # An open transaction would hold records back that were appended before the look.
            own.append(OffsetFact(one.stop, END, "appended_from", at_ms))
        found[number] = tuple(each for each in own if each.first < each.stop)
    return found


def with_facts(known: Facts, learned: Facts, landed: Spans) -> Facts:
    """Return both, without what another one implies, and of landed offsets nothing.

    A landed record shows its own time, so facts are kept of the others only.
    """
    found: Facts = {}
    for number in sorted({*known, *learned}):
        kept: list[OffsetFact] = []
        for one in (*known.get(number, ()), *learned.get(number, ())):
            trimmed = _trimmed(one, landed.get(number, ()))
            if trimmed is None or any(other.implies(trimmed) for other in kept):
                continue
            kept = [other for other in kept if not trimmed.implies(other)] + [trimmed]
        if kept:
            found[number] = tuple(sorted(kept))
    return found


def _trimmed(fact: OffsetFact, landed: tuple[Span, ...]) -> OffsetFact | None:
    """Return the fact between the first and the last offset of it that is not landed."""
    left = without({0: ((fact.first, fact.stop),)}, {0: landed}).get(0)
    return None if not left else fact._replace(first=left[0][0], stop=left[-1][1])


def open_offsets(
    column: str,
    span_us: tuple[int, int],
    bounds_s: Mapping[str, int],
    evidence: tuple[Iterable[int], Spans, Facts],
) -> Spans:
    """Return the offsets that were not landed and may hold an event of `first <= column < stop`.

    `span_us` is in microseconds since 1970. `bounds_s` says by column how many seconds after its
    instant an event is in the topic at the latest. `evidence`: the partitions of the topic, what
    was landed, and what is known of the rest.
    """
    numbers, landed, facts = evidence
    whole: Spans = dict.fromkeys((*numbers, NEW_PARTITIONS), ((0, END),))
    clear: Spans = {}
    for number, own in facts.items():
        excluded = (one for one in own if _excludes(one, column, span_us, bounds_s))
        clear[number] = merged((one.first, one.stop) for one in excluded)
    return without(without(whole, landed), clear)


def _excludes(
    fact: OffsetFact, column: str, span_us: tuple[int, int], bounds_s: Mapping[str, int]
) -> bool:
    """Return whether no record of the fact can be an event of the span."""
    (first_us, stop_us), at_us = span_us, fact.at_ms * 1000
    stamp_s, own_s = bounds_s.get(STAMP_COLUMN), bounds_s.get(column)
    if fact.kind == "appended_from":
        return own_s is not None and at_us >= stop_us + own_s * 1_000_000
    # Timestamps are whole milliseconds: those before `at_ms` are one earlier.
    last_us = at_us - 1000 if fact.kind == "stamped_before" else at_us
    if fact.kind == "stamped_before" and column == STAMP_COLUMN:
        return last_us < first_us
    # An event happened before it was appended, so by the bound after the timestamp at the latest.
    return stamp_s is not None and last_us + stamp_s * 1_000_000 < first_us
