"""Which offsets of a topic a landing reads, whether they are all there, and what was read of them.

A range is half-open. Offsets without a record (markers of transactions, records of aborted ones,
records that compaction removed) are gaps: they are never counted as records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

from lakehouse_backfill.errors import Blocked

Span = tuple[int, int]
#: Ranges of offsets by partition, in order, apart from each other.
Spans = dict[int, tuple[Span, ...]]
_NOTHING_LANDED = "nothing was landed by this command"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: A backfill that reads slower than this many times real time hardly catches up.
WANTED_SPEED = 10


class FoundOffset(NamedTuple):
    """The first offset whose timestamp is not before the one that was looked for."""

    offset: int
    timestamp_ms: int


class PartitionView(NamedTuple):
    """One partition as its broker describes it now."""

    #: First offset that retention has left.
    low: int
    #: Behind the last offset that is committed; an open transaction holds it back.
    stop: int
    #: Behind the last offset that was written.
    high: int
    #: Where `--from` and the end of the range by `--to` lie; None: behind the last record.
    begin: FoundOffset | None = None
    end: FoundOffset | None = None
    #: The first record that is left: markers, and gaps of a compaction, can lie before it.
    first: FoundOffset | None = None


class TopicView(NamedTuple):
    """A topic as its cluster describes it now."""

    cluster_id: str
    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionView]


class OffsetWindow(NamedTuple):
    """Which instants of `--from` and `--to` were looked for, in milliseconds; None: no bound."""

    begin_ms: int | None = None
    end_ms: int | None = None


class OffsetFact(NamedTuple):
    """What brokers said of all records of `first <= offset < stop`, in milliseconds since 1970.

    `stamped_before`: their timestamps lie before `at_ms`. `before_stamp`: they were appended before
    a record that is stamped `at_ms`. `appended_from`: they were appended at `at_ms` or later.
    """

    first: int
    stop: int
    kind: Literal["stamped_before", "before_stamp", "appended_from"]
    at_ms: int

    def implies(self, other: OffsetFact) -> bool:
        """Return whether the other fact says no more than this one."""
        if self.kind != other.kind or self.first > other.first or self.stop < other.stop:
            return False
        is_later = self.at_ms >= other.at_ms
        return is_later if self.kind == "appended_from" else self.at_ms <= other.at_ms


#: Facts by partition.
Facts = dict[int, tuple[OffsetFact, ...]]


def milliseconds(moment: datetime) -> int:
    """Return an instant as Kafka writes it; a fraction of a millisecond counts as a whole one."""
    micros = (moment - _EPOCH) // timedelta(microseconds=1)
    return -(-micros // 1000)


def instant_text(timestamp_ms: int) -> str:
    """Return an instant of Kafka as `--from` takes it."""
    moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class OffsetPosition:
    """How far the landings of a topic are: the position that each commit carries."""

    landing_id: str
    cluster_id: str
    topic: str
    topic_id: str
    #: What the newest landing reads, pinned when it began.
    asked: Spans = field(default_factory=dict)
    #: Offsets that all landings have read to their end: the records in them are in the raw table.
    landed: Spans = field(default_factory=dict)
    #: Records of `asked` by partition, as far as it was read.
    records: dict[int, int] = field(default_factory=dict)
    records_per_s: int | None = None
    #: Records of all landings by partition; None: older landings did not count them.
    held: dict[int, int] | None = None
    #: What is known of records that were not landed; all partitions that the topic had.
    facts: Facts = field(default_factory=dict)
    partitions: tuple[int, ...] = ()
    #: By column: seconds after its instant at which an event is in the topic at the latest.
    bounds_s: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def read(position: Mapping[str, Any]) -> OffsetPosition | None:
        """Return the position of a state; None where no topic was landed yet."""
        if "topic_id" not in position:
            return None
        return OffsetPosition(
            landing_id=position["landing"],
            cluster_id=position["cluster_id"],
            topic=position["topic"],
            topic_id=position["topic_id"],
            asked=_as_spans(position["asked"]),
            landed=_as_spans(position["landed"]),
            records=_as_counts(position["records"]),
            records_per_s=position.get("records_per_s"),
            held=_as_counts(position["held"]) if "held" in position else None,
            facts={
                int(number): tuple(OffsetFact(*one) for one in own)
                for number, own in position.get("facts", {}).items()
            },
            partitions=tuple(position.get("partitions", ())),
            bounds_s=dict(position.get("bounds_s", {})),
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as a state holds it."""
        asked, landed = (
            {str(number): [list(span) for span in spans] for number, spans in one.items()}
            for one in (self.asked, self.landed)
        )
        found = {
            "landing": self.landing_id,
            "cluster_id": self.cluster_id,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "asked": asked,
            "landed": landed,
            "records": {str(number): count for number, count in self.records.items()},
            "gaps": {str(number): count for number, count in self.gaps().items()},
            "facts": {
                str(number): [list(one) for one in own] for number, own in self.facts.items()
            },
            "partitions": list(self.partitions),
            "bounds_s": self.bounds_s,
        }
        if self.held is not None:
            found["held"] = {str(number): count for number, count in self.held.items()}
        return found | ({"records_per_s": self.records_per_s} if self.records_per_s else {})

    def remaining(self) -> Spans:
        """Return what is asked and not landed."""
        return without(self.asked, self.landed)

    def gaps(self) -> dict[int, int]:
        """Return by partition how many offsets that were read have no record."""
        done = without(self.asked, self.remaining())
        return {
            number: _length(spans) - self.records.get(number, 0) for number, spans in done.items()
        }

    def advanced(self, read: Spans, records: Mapping[int, int]) -> OffsetPosition:
        """Return the position after these offsets were read, with so many records in them."""
        landed = dict(self.landed)
        for number, spans in read.items():
            landed[number] = merged([*landed.get(number, ()), *spans])
        held = None if self.held is None else _sum(self.held, records)
        return replace(self, landed=landed, records=_sum(self.records, records), held=held)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the union of ranges; adjacent ones become one, empty ones none."""
    found: list[Span] = []
    for first, stop in sorted(spans):
        if stop <= first:
            continue
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((first, stop))
    return tuple(found)


def without(spans: Spans, taken: Spans) -> Spans:
    """Return what of the ranges is in none of `taken`; partitions with nothing are left out."""
    found: Spans = {}
    for number, own in spans.items():
        left = []
        for first, stop in own:
            start = first
            for other_first, other_stop in taken.get(number, ()):
                left.append((start, min(stop, other_first)))
                start = max(start, other_stop)
            left.append((start, stop))
        kept = merged(left)
        if kept:
            found[number] = kept
    return found


def count_offsets(spans: Spans) -> int:
    """Return how many offsets the ranges hold."""
    return sum(_length(own) for own in spans.values())


def plan_offsets(
    source: str, view: TopicView, before: OffsetPosition | None, window: OffsetWindow
) -> Spans:
    """Return the ranges of the request, those that were landed before included.

    Raises Blocked when retention has removed offsets that the range needs.
    """
    landed = before.landed if before else {}
    found: Spans = {}
    for number, one in view.partitions.items():
        own = landed.get(number, ())
        if window.begin_ms is not None:
            first = one.begin.offset if one.begin else one.stop
            _require_uncut(source, view, number, own, window.begin_ms)
        else:
            first = own[-1][1] if own else one.low
        stop = min(one.stop, one.end.offset) if window.end_ms is not None and one.end else one.stop
        spans = merged([(first, stop)])
        if spans:
            found[number] = spans
    require_kept(source, view, without(found, landed))
    return found


def _require_uncut(
    source: str, view: TopicView, number: int, landed: tuple[Span, ...], begin_ms: int
) -> None:
    """Raise Blocked when a record that retention removed may lie in the range.

    It may when the first record that is left is later than the begin, and older ones are gone that
    were not landed.
    """
    one = view.partitions[number]
    first_left = max(one.low, one.first.offset) if one.first else one.low
    is_first_left = one.first is None if one.begin is None else one.begin.offset <= first_left
    if not one.low or not is_first_left or not without({number: ((0, one.low),)}, {number: landed}):
        return
    if one.begin is not None and one.begin.timestamp_ms <= begin_ms:
        return
    left = f" of {instant_text(one.begin.timestamp_ms)}" if one.begin else ""
    raise Blocked(
        f"{view.topic}[{number}]: retention has removed the offsets before {one.low}, and --from "
        f"{instant_text(begin_ms)} may need them; the first offset that is left is {one.low}{left}",
        state=_NOTHING_LANDED,
        fix=f"restore the older records from a backup, or land what is left: lakehouse-backfill "
        f"land {source}" + (f" --from {instant_text(one.begin.timestamp_ms)}" if one.begin else ""),
    )


def require_kept(source: str, view: TopicView, wanted: Spans) -> None:
    """Raise Blocked unless every wanted offset lies between the ends of its partition."""
    for number, spans in wanted.items():
        one = view.partitions.get(number)
        if one is None:
            raise _replaced(view.topic, f"it has no partition {number} any more")
        first = spans[0][0]
        if first < one.low:
            raise cut_by_retention(source, view.topic, number, (first, one.low))


def cut_by_retention(source: str, topic: str, number: int, offsets: tuple[int, int]) -> Blocked:
    """Build the error for a wanted offset that is gone: the wanted one, and the first one left."""
    wanted, left = offsets
    return Blocked(
        f"{topic}[{number}]: the landing wants offset {wanted}, and retention has removed it; the "
        f"first offset that is left is {left}",
        state="no row behind the missing offsets was landed; what was committed before stays",
        fix="restore the records from a backup; or give --from with the instant from which on "
        f"records are left: lakehouse-backfill land {source} --from …",
    )


def require_same_topic(view: TopicView, before: OffsetPosition | None) -> None:
    """Raise Blocked when the topic is not the one that was landed before."""
    if before is None:
        return
    if before.topic != view.topic:
        raise _replaced(view.topic, f"the raw table holds records of {before.topic}")
    if before.cluster_id != view.cluster_id:
        raise _replaced(view.topic, f"cluster {view.cluster_id} is not {before.cluster_id}")
    if before.topic_id != view.topic_id:
        raise _replaced(view.topic, "it was deleted and made again since the last landing")
    for number, spans in before.landed.items():
        one = view.partitions.get(number)
        if one is None:
            raise _replaced(view.topic, f"it has no partition {number} any more")
        if one.high < spans[-1][1]:
            raise _replaced(
                view.topic,
                f"partition {number} ends at offset {one.high}, and was landed up to "
                f"{spans[-1][1]}: its log was cut",
            )


def _replaced(topic: str, problem: str) -> Blocked:
    return Blocked(
        f"{topic} is not the topic that was landed before: {problem}",
        state=_NOTHING_LANDED,
        fix="declare it as a source of another name with a raw table of its own",
    )


def range_notes(view: TopicView, before: OffsetPosition | None, asked: Spans) -> tuple[str, ...]:
    """Return what a person should know of the range before it is landed."""
    notes = []
    for number, one in view.partitions.items():
        if one.stop < one.high:
            notes.append(
                f"{view.topic}[{number}]: an open transaction holds back {one.high - one.stop} "
                f"offsets from {one.stop} on; a later landing reads them"
            )
        if before is not None and before.landed and number not in before.landed and number in asked:
            notes.append(f"{view.topic}[{number}] is a new partition since the last landing")
        gone = without({number: ((0, one.low),)}, before.landed if before else {})
        if gone and asked.get(number, ((-1, -1),))[0][0] == one.low:
            count = _length(gone[number])
            notes.append(f"{view.topic}[{number}]: {count} offsets before {one.low} are gone")
    return tuple(notes)


def speed_note(records_per_s: int | None, live_per_s: float) -> str:
    """Return how fast a landing is against what the topic gets: the rule of ten times."""
    live = f"the topic got {live_per_s:,.1f} offsets a second in its last hour"
    if records_per_s is None:
        return f"{live}; how fast a landing reads is not measured yet"
    if not live_per_s:
        return f"{live}; the last landing read {records_per_s:,} records a second"
    times = records_per_s / live_per_s
    judged = "" if times >= WANTED_SPEED else f"; less than {WANTED_SPEED} times catches up slowly"
    return (
        f"{live}; the last landing read {records_per_s:,} records a second: {times:,.1f} times "
        f"real time{judged}"
    )


def _length(spans: Iterable[Span]) -> int:
    return sum(stop - first for first, stop in spans)


def _sum(counts: Mapping[int, int], more: Mapping[int, int]) -> dict[int, int]:
    return {
        number: counts.get(number, 0) + more.get(number, 0) for number in sorted({*counts, *more})
    }


def _as_counts(found: Mapping[str, int]) -> dict[int, int]:
    return {int(number): count for number, count in found.items()}


def _as_spans(found: Mapping[str, Any]) -> Spans:
    return {
        int(number): tuple((first, stop) for first, stop in spans)
        for number, spans in found.items()
    }
