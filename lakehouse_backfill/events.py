"""Events, and the handlers that fold them: the same code in a replay, in a rebuild and in Spark.

A handler is a pure function of the state of one aggregate and its next event::

    from lakehouse_backfill.events import SKIP, RejectEvent

    def balance(state, event, context):
        if event.event_type == "note":
            return SKIP
        cents = (state or {"cents": 0})["cents"] + event.payload["cents"]
        if cents < 0:
            raise RejectEvent("the balance would be negative")
        context.send("mail", event.event_id, {"cents": cents})
        return {"cents": cents}

It gets None as the state before the first event, and returns the state after the event: an object
that JSON can hold. PySpark is imported when a frame is folded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn

from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = [
    "SKIP", "AggregateEvent", "EventOutcome", "HandledEvent", "HandlerContext", "RejectEvent",
    "UpcastStep", "Upcasters", "fold_aggregates", "fold_events", "handle_event", "parse_payload",
]  # fmt: skip

#: What a handler returns for an event that does not concern it.
SKIP: Final = object()
EventOutcome = Literal["done", "skipped", "suppressed", "rejected"]
#: The first byte of a payload in Confluent's wire format; the id of its schema is in the next four.
_WIRE_MAGIC, _WIRE_HEADER = b"\x00", 5


class RejectEvent(Exception):
    """Raised by a handler or an upcaster: the event is refused, and the state stays as it is."""


class AggregateEvent(NamedTuple):
    """One event of an aggregate; `payload` is what its JSON says, in the newest version."""

    event_id: str
    aggregate_id: str
    event_type: str
    sequence_num: int
    occurred_at: datetime
    payload: Any
    version: int | None = None
    aggregate_type: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None


class HandlerContext:
    """What a handler may use beside its arguments."""

    __slots__ = ("is_replay", "suppressed")

    def __init__(self, *, is_replay: bool = True) -> None:
        """Collect the messages of one event."""
        #: Whether the event happened before, and is handled again.
        self.is_replay = is_replay
        self.suppressed: list[dict[str, str]] = []

    def send(self, sink: str, key: str, payload: Any) -> None:  # noqa: ARG002 (it is not sent)
        """Note a message for a sink. A replay sends nothing: it lists what was suppressed."""
        self.suppressed.append({"sink": str(sink), "key": str(key)})


#: `handler(state, event, context)` returns the next state, or SKIP; it may raise RejectEvent.
Handler = Callable[[Any, AggregateEvent, HandlerContext], Any]


class HandledEvent(NamedTuple):
    """What became of an event, and the state of its aggregate after it."""

    outcome: EventOutcome
    state: Any
    reason: str | None = None
    suppressed: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class UpcastStep:
    """A function that makes a payload of version `to` of one of version `from_`."""

    event_type: str
    from_: int
    to: int
    function: Callable[[Any], Any]


class Upcasters:
    """The steps by which payloads of old versions become those of the current one."""

    def __init__(self, steps: Iterable[UpcastStep], current: Mapping[str, int]) -> None:
        """Chain steps; `current` is the newest version of each event type that has versions."""
        self._steps = {(one.event_type, one.from_): one for one in steps}
        self.current = dict(current)

    def missing_link(self, event_type: str, version: int | None) -> str | None:
        """Return why events of this version cannot be read; None when they can."""
        newest = self.current.get(event_type)
        if newest is None or version == newest:
            return None
        if version is None:
            return f"{event_type} has events without a version"
        if version > newest:
            return f"{event_type} has events of version {version}, and {newest} is the newest known"
        at = version
        while at < newest:
            step = self._steps.get((event_type, at))
            if step is None:
                return f"{event_type} has events of version {version}; no upcaster begins at {at}"
            at = step.to
        return None if at == newest else f"upcasters of {event_type} lead past {newest} to {at}"

    def raise_version(self, event: AggregateEvent) -> AggregateEvent:
        """Return the event in the current version; raises RejectEvent when no chain leads there."""
        if event.event_type not in self.current:
            return event
        if why := self.missing_link(event.event_type, event.version):
            raise RejectEvent(why)
        newest, payload, version = self.current.get(event.event_type), event.payload, event.version
        while newest is not None and version is not None and version < newest:
            step = self._steps[event.event_type, version]
            payload, version = step.function(payload), step.to
        return event._replace(payload=payload, version=version)


_NO_UPCASTERS = Upcasters((), {})


def split_wire_format(data: bytes) -> tuple[int | None, bytes]:
    """Return the id of the writer's schema and the payload; None without Confluent's header."""
    if len(data) >= _WIRE_HEADER and data[:1] == _WIRE_MAGIC:
        return int.from_bytes(data[1:_WIRE_HEADER], "big"), data[_WIRE_HEADER:]
    return None, data


def parse_payload(data: bytes | str | None) -> Any:
    """Return what JSON says; raises RejectEvent for what is no JSON, without quoting it."""
    if data is None:
        return None
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RejectEvent(f"its payload is no JSON: {type(error).__name__}") from error


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError("it is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def handle_event(
    handler: Handler,
    state: Any,
    event: AggregateEvent,
    upcasters: Upcasters = _NO_UPCASTERS,
    *,
    is_replay: bool = True,
) -> HandledEvent:
    """Return what a handler makes of an event whose payload is JSON text, and the state after it.

    The state is handed over as a copy: what a handler changes in it before it raises RejectEvent is
    not kept. Raises ConfigError when the handler returns no object that JSON can hold, and what the
    handler raises.
    """
    context = HandlerContext(is_replay=is_replay)
    try:
        parsed = event._replace(payload=parse_payload(event.payload))
        found = handler(_copy(state), upcasters.raise_version(parsed), context)
    except RejectEvent as refusal:
        return HandledEvent("rejected", state, str(refusal) or "the handler gave no reason")
    messages = tuple(context.suppressed)
    if found is SKIP:
        return HandledEvent("suppressed" if messages else "skipped", state, None, messages)
    try:
        after = _plain_object(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise _bad_state_error(event.event_id, error) from error
    return HandledEvent("suppressed" if messages else "done", after, None, messages)


def _bad_state_error(event_id: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the handler's state after {event_id!r} is no object that JSON can hold: "
        f"{type(error).__name__}",
        fix="return a dict of texts, numbers, booleans, None, lists and dicts; or SKIP",
    )


def state_text(state: Any, event_id: str) -> str:
    """Return the one JSON text of a state; raises ConfigError for a number that is too long."""
    try:
        return json.dumps(state, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise _bad_state_error(event_id, error) from error


def _plain_object(state: Any) -> dict[str, Any]:
    if not isinstance(state, dict):
        raise TypeError("it is no dict")
    return _copy(state)  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    """Return a copy as JSON would give it back, with sorted keys; raise for what it cannot hold.

    A handler sees the same state whether it was stored in between or not.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is float and isfinite(value):
        return value
    if isinstance(value, dict):
        if not all(type(key) is str for key in value):
            raise TypeError("a key is no text")
        return {key: _copy(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    raise TypeError(f"it holds {kind.__name__}")


_LEAVES = frozenset({str, int, bool, type(None)})


def fold_events(
    handler: Handler,
    events: Iterable[AggregateEvent],
    upcasters: Upcasters = _NO_UPCASTERS,
    state: Any = None,
) -> Iterator[HandledEvent]:
    """Yield what a handler makes of each event of one aggregate, in the order of `sequence_num`."""
    for event in sorted(events, key=attrgetter("sequence_num")):
        handled = handle_event(handler, state, event, upcasters)
        state = handled.state
        yield handled


def instant_of(microseconds: int) -> datetime:
    """Return the instant so many microseconds after 1970, in UTC."""
    return _UNIX_EPOCH + timedelta(microseconds=microseconds)


_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


#: What `fold_aggregates` returns, as Spark's schema text.
FOLDED_COLUMNS: Final = (
    "aggregate_id string, sequence_num long, events long, rejected long, state string"
)


def fold_aggregates(
    events: DataFrame, handler: Handler, upcasters: Upcasters = _NO_UPCASTERS
) -> DataFrame:
    """Return one row for each aggregate: its state after all of its events, as JSON.

    `events` has the columns of an event store: `event_id`, `aggregate_id`, `event_type`,
    `payload` (JSON), `sequence_num`, `occurred_at`, and `version` where upcasters need it; others
    are left out. Exact duplicates count once. Each aggregate is folded in one task, in memory. On a
    cluster the executors need this package, and the modules of handler and upcasters.

    A job fails when an event id has two contents, a sequence number two events, or a row lacks a
    value that each event has.
    """
    from pyspark.sql import functions as F

    # As pandas has them, instants would be in the zone of the session, and without a zone.
    columns = [
        F.unix_micros(name).alias(name) if name == "occurred_at" else F.col(name)
        for name in AggregateEvent._fields
        if name in events.columns
    ]

    def fold(frame: pd.DataFrame) -> pd.DataFrame:
        return _fold_frame(frame, handler, upcasters)

    groups = events.select(*columns).groupBy("aggregate_id")
    return groups.applyInPandas(fold, FOLDED_COLUMNS)


def _fold_frame(frame: pd.DataFrame, handler: Handler, upcasters: Upcasters) -> pd.DataFrame:
    import pandas as pd

    by_sequence: dict[int, AggregateEvent] = {}
    for event in _events_of(frame):
        other = by_sequence.setdefault(event.sequence_num, event)
        if other is not event and other != event:
            raise ValueError(
                f"events {other.event_id!r} and {event.event_id!r} of {event.aggregate_id!r} have "
                f"the sequence number {event.sequence_num}, and differ"
            )
    if len({event.event_id for event in by_sequence.values()}) < len(by_sequence):
        name = next(iter(by_sequence.values())).aggregate_id
        raise ValueError(f"an event id of {name!r} has several sequence numbers")
    state, rejected = None, 0
    for handled in fold_events(handler, by_sequence.values(), upcasters):
        state = handled.state
        rejected += handled.outcome == "rejected"
    last = by_sequence[max(by_sequence)]
    text = state_text(state, last.event_id)
    made = (last.aggregate_id, last.sequence_num, len(by_sequence), rejected, text)
    names = [column.split()[0] for column in FOLDED_COLUMNS.split(", ")]
    folded: pd.DataFrame = pd.DataFrame([made], columns=names)
    return folded


def _events_of(frame: pd.DataFrame) -> Iterator[AggregateEvent]:
    """Yield the events of a frame, in which instants are microseconds, and nulls may be NaN."""
    columns: dict[str, Iterable[Any]] = {name: frame[name].tolist() for name in frame.columns}
    for name in columns.keys() - _MAY_BE_NULL:
        # The first test is quick; what is null is None or NaN.
        is_odd = not _NULLS.isdisjoint(map(type, columns[name]))
        if is_odd and any(one is None or one != one for one in columns[name]):
            raise ValueError(f"a row has no {name}, which each event has")
    try:
        columns["occurred_at"] = [instant_of(one) for one in columns["occurred_at"]]
    except OverflowError as error:
        raise ValueError("a row has an occurred_at outside the years 1 to 9999") from error
    for name in _MAY_BE_NULL & columns.keys():
        columns[name] = [None if one is None or one != one else one for one in columns[name]]
    if "version" in columns:
        columns["version"] = [None if one is None else int(one) for one in columns["version"]]
    missing = [None] * len(frame)
    yield from map(
        AggregateEvent._make,
        zip(*(columns.get(name, missing) for name in AggregateEvent._fields), strict=True),
    )


_MAY_BE_NULL: Final = frozenset(
    {"payload", "version", "aggregate_type", "correlation_id", "causation_id"}
)
_NULLS: Final = frozenset({float, type(None)})
