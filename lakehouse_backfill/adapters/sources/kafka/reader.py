"""A topic: offsets are pinned when a landing begins, then read, each record landed once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.adapters.sources.change_records import BadChange, ChangeShape, change_row
from lakehouse_backfill.adapters.sources.formats import (
    decode_json,
    exact_json,
    from_json_rows,
    unfit_rows,
)
from lakehouse_backfill.adapters.sources.kafka.capabilities import KAFKA
from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient
from lakehouse_backfill.adapters.sources.kafka.errors import unreadable_value
from lakehouse_backfill.adapters.sources.kafka.ledger import OffsetLedger
from lakehouse_backfill.adapters.sources.schema_values import RegisteredValues
from lakehouse_backfill.core.landing import offsets
from lakehouse_backfill.core.landing.topic_facts import (
    STAMP_COLUMN,
    learned_facts,
    with_facts,
)
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.sources.declaration import (
    KAFKA_COLUMNS,
    KafkaSource,
    SourceDeclaration,
)
from lakehouse_backfill.domain.sources.landings import (
    FileDelivery,
    LandingRequest,
    LandingState,
    LandingSurvey,
    PlannedPart,
    PlannedRange,
)
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.ports.sources import SourceCheckpoint
from lakehouse_backfill.ports.system import Clock

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message

_MIB = 1024 * 1024
#: Timestamps that a column of the lake can hold; another one is none.
_LAST_MS = 253_402_300_799_999
_TIMESTAMP_TYPES = {1: "create_time", 2: "log_append_time"}


class _PlannedLanding(NamedTuple):
    """What a landing begins with: the topic, what it reads, and what was landed before."""

    view: offsets.TopicView
    asked: offsets.Spans
    before: offsets.OffsetPosition | None
    facts: offsets.Facts
    bounds_s: dict[str, int]
    #: Whether the request has an end: what it tells again and again is then nothing new.
    has_end: bool

    def begin(self, landing_id: str) -> offsets.OffsetPosition:
        """Return the position of a landing that has read nothing yet."""
        view, before = self.view, self.before
        return offsets.OffsetPosition(
            landing_id, view.cluster_id, view.topic, view.topic_id, self.asked,
            landed=before.landed if before else {},
            records_per_s=before.records_per_s if before else None,
            held=before.held if before else {},
            facts=with_facts(before.facts if before else {}, self.facts,
                             before.landed if before else {}),
            partitions=tuple(view.partitions),
            bounds_s=self.bounds_s,
        )  # fmt: skip

    @property
    def tells_more(self) -> bool:
        """Whether the landing proves more of the offsets than the one before, without a record."""
        if self.before is None:
            return False
        learned = {
            number: tuple(one for one in own if self.has_end or one.kind != "appended_from")
            for number, own in self.facts.items()
        }
        known = with_facts(self.before.facts, {}, self.before.landed)
        more = with_facts(known, learned, self.before.landed)
        return more != known or self.bounds_s != self.before.bounds_s


@dataclass(frozen=True)
class KafkaReader:
    """`ports.sources.SourceReader` for a topic of Kafka."""

    source: SourceDeclaration
    schema: pa.Schema
    client: KafkaClient
    ledger: OffsetLedger
    clock: Clock
    values: RegisteredValues | None = None
    capabilities = KAFKA

    @property
    def declared(self) -> KafkaSource:
        return self.client.topic.declared

    def survey(self, request: LandingRequest, known: tuple[FileDelivery, ...]) -> LandingSurvey:  # noqa: ARG002 (the ledger of files has none of a topic)
        """Return the offsets that a landing reads; nothing is read.

        Raises Blocked when retention has removed some of them, or the topic is another one.
        """
        if request.reconcile:
            raise ConfigError(
                "--reconcile is for APIs: records of a topic do not change",
                fix=f"lakehouse-backfill land {self.source.source}",
            )
        _, before = self.ledger.newest()
        begun = self.ledger.begun()
        stamps = request.to is not None and self.client.broker_stamps()
        window, notes = self._window(request, broker_stamps=stamps)
        looked_at_ms = offsets.milliseconds(self.clock.now())
        view = self.client.look(window)
        # Where the end does not need it, it is asked once the brokers have answered.
        stamps = stamps or (request.to is None and self.client.broker_stamps())
        offsets.require_same_topic(view, before)
        if begun is not None:
            whole = asked = begun.asked
            offsets.require_kept(self.source.source, view, begun.remaining())
        else:
            whole = offsets.plan_offsets(self.source.source, view, before, window)
            asked = offsets.without(whole, before.landed if before else {})
        notes = (*notes, *offsets.range_notes(view, before, asked))
        left = begun.remaining() if begun is not None else asked
        return LandingSurvey(
            parts=tuple(self._part(view, number, whole, left) for number in whole),
            notes=notes,
            progress=(offsets.count_offsets(left), "offsets"),
            throughput=self._speed(view, before),
            offsets=tuple(
                PlannedRange(number, first, stop)
                for number, spans in left.items()
                for first, stop in spans
            ),
            detail=_PlannedLanding(
                view,
                asked,
                before,
                learned_facts(view, window, looked_at_ms, _last_ms(request, window)),
                self._bounds_s(broker_stamps=stamps),
                has_end=request.to is not None,
            ),
        )

    def checkpoints(self, survey: LandingSurvey, state: LandingState) -> Iterator[SourceCheckpoint]:
        """Yield groups of records; retention is looked at before each is read."""
        position = self.ledger.begun() or survey.detail.begin(state.landing_id)
        remaining = position.remaining()
        if not remaining:
            if self.ledger.begun() is None and survey.detail.tells_more:
                yield SourceCheckpoint((), position.as_json(), progress=0)
            return
        declared, began, read = self.declared, time.monotonic(), 0
        with self.client.open_reading(self.source.source, remaining) as reading:
            while not reading.is_done:
                messages, spans = reading.take(
                    declared.rows_per_commit, declared.mib_per_commit * _MIB
                )
                read += len(messages)
                counted = Counter([message.partition() or 0 for message in messages])
                speed = int(read / max(time.monotonic() - began, 1e-3))
                position = replace(
                    position.advanced(spans, counted),
                    records_per_s=speed or position.records_per_s,
                )
                parts = (_RecordsPart(self.rows(messages)),) if messages else ()
                new = self.values.take_new() if self.values else {}
                done = offsets.count_offsets(spans)
                yield SourceCheckpoint(parts, position.as_json(), progress=done, schemas=new)

    def finish(self, state: LandingState) -> None:
        """Do nothing: nothing follows a commit outside the lake."""

    def rows(self, messages: list[Message]) -> pa.Table:
        """Return records in the columns of the raw table.

        Raises Blocked for a value that does not fit the declared columns, if it shall block.
        """
        import pyarrow as pa

        stamps = [message.timestamp() for message in messages]
        values = [message.value() for message in messages]
        moments = [at if kind and 0 <= at <= _LAST_MS else None for kind, at in stamps]
        columns: dict[str, Any] = {
            "kafka_topic": pa.repeat(pa.scalar(self.client.topic.name), len(messages)),
            "kafka_partition": pa.array([one.partition() for one in messages], pa.int32()),
            "kafka_offset": pa.array([one.offset() for one in messages], pa.int64()),
            "kafka_timestamp": pa.array(moments, pa.timestamp("ms", "UTC")),
            "kafka_timestamp_type": pa.array([_TIMESTAMP_TYPES.get(kind) for kind, _ in stamps]),
            "kafka_key": pa.array([one.key() for one in messages], pa.large_binary()),
            "kafka_value": pa.array(values, pa.large_binary()),
            "kafka_headers": self._headers(messages),
            "parse_error": pa.nulls(len(messages), pa.string()),
        }
        if self.declared.format != "raw":
            columns |= self._parsed(messages, values)
        elif self.values is not None:
            errors = [self.values.check(value) for value in values]
            self._require_readable(messages, errors)
            columns["parse_error"] = pa.array(errors, pa.string())
        arrays = [columns[field.name].cast(field.type) for field in self.schema]
        return pa.table(arrays, schema=self.schema)

    def _headers(self, messages: list[Message]) -> pa.Array:
        import pyarrow as pa

        kind = self.schema.field("kafka_headers").type
        rows = [
            [{"key": one[0], "value": one[1]} for one in message.headers() or ()]
            for message in messages
        ]
        return pa.array(rows, kind)

    def _parsed(self, messages: list[Message], values: list[bytes | None]) -> dict[str, Any]:
        """Return the declared columns of the values, and why some are no records."""
        import pyarrow as pa

        added = {name for name, _, _ in KAFKA_COLUMNS}
        own = pa.schema([field for field in self.schema if field.name not in added])
        log = self.source.change_log
        shape = None if log is None else ChangeShape.of(log, own)
        records: list[dict[str, Any]] = []
        errors: list[str | None] = []
        for message, value in zip(messages, values, strict=True):
            record, error = self._record(message, value, shape)
            records.append(record)
            errors.append(error)
        bad = unfit_rows(records, own)
        for position in bad:
            records[position], errors[position] = {}, "does not fit the declared columns"
        table = from_json_rows(records, own)
        self._require_readable(messages, errors)
        found = {name: table[name] for name in table.column_names}
        return {**found, "parse_error": pa.array(errors, pa.string())}

    def _record(
        self, message: Message, value: bytes | None, shape: ChangeShape | None
    ) -> tuple[dict[str, Any], str | None]:
        """Return the record of a message, and why it is none."""
        key: Any = message.key()
        if self.values is not None:
            value, error = self.values.decode(value)
            # Keys may be plain JSON beside values that have a schema.
            if error is None and shape is not None and key is not None and key[:1] == b"\x00":
                key, error = self.values.decode(key)
            if error is not None:
                return {}, error
        return _decoded(value) if shape is None else _decoded_change(key, value, shape)

    def _require_readable(self, messages: list[Message], errors: list[str | None]) -> None:
        """Raise Blocked for the first value that is unreadable, if it shall block."""
        bad = next((position for position, error in enumerate(errors) if error), None)
        if bad is None or self.declared.unreadable != "block":
            return
        one = messages[bad]
        place = f"{self.client.topic.name}[{one.partition()}], offset {one.offset()}"
        can_keep = self.source.change_log is None
        raise unreadable_value(place, str(errors[bad]), can_keep=can_keep)

    def _bounds_s(self, *, broker_stamps: bool) -> dict[str, int]:
        """Return by column how late an event of it is in the topic at most, where that is known."""
        found = dict(self.declared.column_disorder_s)
        stamped = self.declared.disorder_s
        if broker_stamps:
            found[STAMP_COLUMN] = 0
        elif stamped is not None:
            found[STAMP_COLUMN] = stamped
        return found

    def _window(
        self, request: LandingRequest, *, broker_stamps: bool
    ) -> tuple[offsets.OffsetWindow, tuple[str, ...]]:
        """Return the instants whose offsets are looked for, and what the end means.

        Where producers set the timestamps, offsets and instants differ in order: the end is then
        the end of the topic, or where the declared disorder is over.
        """
        begin = offsets.milliseconds(as_instant(request.from_)) if request.from_ else None
        if request.to is None:
            return offsets.OffsetWindow(begin), ()
        end = offsets.milliseconds(as_instant(request.to))
        if broker_stamps:
            return offsets.OffsetWindow(begin, end), ()
        disorder_s = self.declared.disorder_s
        if disorder_s is None:
            note = (
                "producers set the timestamps of this topic, so that records before --to can lie "
                "anywhere behind it: it is read on to its end (kafka.disorder_s sets a bound)"
            )
            return offsets.OffsetWindow(begin), (note,)
        note = (
            f"records before --to that came more than {disorder_s} s after their timestamp are not "
            "in the range: kafka.disorder_s declares that there are none"
        )
        return offsets.OffsetWindow(begin, end + disorder_s * 1000), (note,)

    def _speed(self, view: offsets.TopicView, before: offsets.OffsetPosition | None) -> str:
        now_ms = offsets.milliseconds(self.clock.now())
        live = self.client.live_rate(view, now_ms)
        return offsets.speed_note(before.records_per_s if before else None, live)

    def _part(
        self, view: offsets.TopicView, number: int, whole: offsets.Spans, left: offsets.Spans
    ) -> PlannedPart:
        one, spans = view.partitions[number], left.get(number, ())
        name = f"{view.topic}[{number}]"
        kept = f"the topic has {one.low} to {one.stop}"
        if not spans:
            first, stop = whole[number][0][0], whole[number][-1][1]
            return PlannedPart(name, "skip", f"offsets {first} to {stop} were landed; {kept}")
        text = ", ".join(f"{first} to {stop}" for first, stop in spans)
        count = sum(stop - first for first, stop in spans)
        return PlannedPart(name, "read", f"offsets {text}: at most {count:,} records; {kept}")


def _last_ms(request: LandingRequest, window: offsets.OffsetWindow) -> int | None:
    """Return up to which instant a landing tells of offsets behind its end."""
    if request.to is None or window.end_ms is not None:
        return window.end_ms
    return offsets.milliseconds(as_instant(request.to))


def _decoded(value: bytes | None) -> tuple[dict[str, Any], str | None]:
    """Return the object that a value holds, and why it is none; a tombstone has no fields."""
    if value is None:
        return {}, None
    try:
        found = decode_json(value.decode())
        if not isinstance(found, dict):
            return {}, "is no JSON object"
        exact_json(found).encode()  # half a surrogate pair is no text
    except UnicodeDecodeError:
        return {}, "is no UTF-8"
    except (ValueError, RecursionError):
        return {}, "is no JSON"
    return found, None


def _decoded_change(
    key: str | bytes | None, value: bytes | None, shape: ChangeShape
) -> tuple[dict[str, Any], str | None]:
    """Return the row of a change, and why it is none."""
    try:
        own_key, found = (None if one is None else decode_json(one) for one in (key, value))
        return change_row(own_key, found, shape), None
    except BadChange as error:
        return {}, str(error)
    except (ValueError, RecursionError):
        return {}, "is no JSON"


class _RecordsPart(NamedTuple):
    """Records of some offsets; they are read and judged already."""

    table: pa.Table

    def batches(self) -> Iterator[Any]:
        """Yield the records."""
        yield self.table

    def landed(self, rows: int) -> None:
        """Return no row of the ledger of files."""

    def rejected(self, reason: str) -> None:
        """Return no row of the ledger of files."""
