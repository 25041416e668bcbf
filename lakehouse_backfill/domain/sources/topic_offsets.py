"""Offsets of a topic behind a raw table: what a snapshot holds, and where a window's events are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from lakehouse_backfill.domain.serialization import Value


class OffsetRange(Value):
    """Offsets `first <= offset < stop` of one partition of a topic."""

    partition: int
    first: int
    stop: int


class TopicPin(Value):
    """The topic behind a raw table: which of its offsets the pinned snapshot holds the records of.

    `records` is how many they are; None: older landings did not count them.
    """

    source: str
    landing_id: str
    cluster_id: str
    topic: str
    topic_id: str
    offsets: tuple[OffsetRange, ...]
    records: int | None = None


class WindowOffsets(Value):
    """Where the events of a window lie in one partition: `first` to `last`, both included.

    All others of its offsets are known to hold none: they were landed, or brokers and the declared
    disorder say so. Without an event `first` and `last` are None.
    """

    partition: int
    first: int | None
    last: int | None
    records: int


class TopicWindow(Value):
    """The offsets of a topic that hold the events of a window, all of them.

    `without_time` counts landed records without a value of the column: they belong to no window.
    `disorder_s` is the declared bound that the proof rests on. `is_closed`: the snapshot also has
    all later events that the replay reads.
    """

    topic: str
    column: str
    disorder_s: int
    offsets: tuple[WindowOffsets, ...]
    without_time: int = 0
    is_closed: bool = True


@dataclass(frozen=True)
class TableLanding:
    """The newest landing behind a snapshot of a raw table, by the summaries of its snapshots.

    `rows` counts the rows of the snapshot; None: its summary does not tell, or rows are deleted by
    delete files.
    """

    landing_id: str
    source: str
    position: dict[str, Any]
    rows: int | None


class EventOffsets(NamedTuple):
    """First and last offset of the events of a span in one partition, and how many they are."""

    partition: int
    first: int
    last: int
    records: int


@dataclass(frozen=True)
class LandedEvents:
    """Events of a span in a snapshot, by partition, and rows without a time."""

    offsets: tuple[EventOffsets, ...] = ()
    without_time: int = 0
