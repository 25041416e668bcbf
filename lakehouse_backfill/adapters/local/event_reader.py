"""Tables of events, read as of a snapshot: all events, or those of one aggregate."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as expr
from pyiceberg.types import TimestamptzType

from lakehouse_backfill.adapters.local import scan
from lakehouse_backfill.adapters.local.event_set import DuckEventSet
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.domain.sources.events import (
    EVENT_COLUMNS,
    REQUIRED_EVENT_COLUMNS,
    AggregateEvents,
    EventStoreDeclaration,
)
from lakehouse_backfill.domain.sources.schemas import UndecodablePayload
from lakehouse_backfill.errors import RejectedInput, Unsupported
from lakehouse_backfill.events import RejectEvent, parse_payload
from lakehouse_backfill.ports.events import PayloadSchemas

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_NUMBERS = ("int", "long")
_TYPES = {
    "sequence_num": _NUMBERS,
    "occurred_at": ("timestamptz",),
    "created_at": ("timestamptz",),
    "payload": ("string", "binary"),
}
_INSTANTS = {"occurred_at": "occurred_us", "created_at": "created_us"}
_MAX_VERSION = 2**31


class IcebergEventReader:
    """`ports.events.EventReader` on PyIceberg and DuckDB."""

    def __init__(self, catalog: Catalog, schemas: PayloadSchemas | None = None) -> None:
        """Use the schemas of writers, by id, for payloads with Confluent's header."""
        self._catalog = catalog
        self._schemas = schemas

    def head(self, store: EventStoreDeclaration) -> int | None:
        """Return the newest snapshot; None when the table is empty. Raises NotFound."""
        snapshot = self._load(store).current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    def holds(self, store: EventStoreDeclaration, snapshot_id: int) -> bool:
        """Return whether the table still has a snapshot."""
        return self._load(store).metadata.snapshot_by_id(snapshot_id) is not None

    def _load(self, store: EventStoreDeclaration) -> Table:
        with scan.translate_scan_errors(store.table, None):
            return self._catalog.load_table(store.table)

    def open(
        self, store: EventStoreDeclaration, snapshot_id: int, aggregate: str | None
    ) -> DuckEventSet:
        """Read a snapshot, or one aggregate of it.

        Raises Unsupported when a column is missing or has a type that events do not have.
        """
        planned, columns = self._plan(store, snapshot_id, aggregate)
        rows = self._rows(store, planned, columns, _filter(store, aggregate, None))
        return DuckEventSet(rows, store.first_sequence)

    def aggregate_events(
        self, store: EventStoreDeclaration, snapshot_id: int, aggregate: str, after: int
    ) -> AggregateEvents:
        """Return the events of one aggregate with a higher sequence number, in order.

        Only files that may hold one are opened. Raises RejectedInput when they are not consistent.
        """
        every, columns = self._plan(store, snapshot_id, aggregate)
        wanted = _filter(store, aggregate, after)
        table = every.table
        if table is None:
            return AggregateEvents((), 0, 0)
        with scan.translate_scan_errors(store.table, snapshot_id):
            tasks = tuple(table.scan(row_filter=wanted, snapshot_id=snapshot_id).plan_files())
            total = sum(1 for _ in table.scan(snapshot_id=snapshot_id).plan_files())
        planned = scan.SnapshotScan(
            every.name, table, snapshot_id, every.schema, tasks, every.specs
        )
        events = DuckEventSet(self._rows(store, planned, columns, wanted), store.first_sequence)
        try:
            if faults := events.findings().faults:
                raise RejectedInput(
                    f"events of {aggregate!r} are not consistent: {'; '.join(faults)}",
                    state="nothing was computed",
                    fix=f"lakehouse-backfill replay {store.events} --dry-run names all such events",
                )
            return AggregateEvents(tuple(events.in_sequence()), len(tasks), total)
        finally:
            events.close()

    def first_since(
        self, store: EventStoreDeclaration, snapshot_id: int, aggregate: str, moment: datetime
    ) -> int:
        """Return the lowest sequence number of an aggregate's events that occurred since a moment.

        Where there are none, the number behind its last event; without events the first of all.
        """
        planned, _ = self._plan(store, snapshot_id, aggregate)
        names = store.column("sequence_num"), store.column("occurred_at")
        numbers: list[int] = []
        since: list[int] = []
        wanted = _filter(store, aggregate, None)
        for task in planned.tasks:
            for part in scan.read_files(planned, [task], list(names), wanted):
                own, times = (part[name] for name in names)
                is_since = pc.greater_equal(times, pa.scalar(moment, times.type))
                numbers += own.drop_null().to_pylist()
                since += own.filter(is_since).drop_null().to_pylist()
        return min(since, default=max(numbers, default=store.first_sequence - 1) + 1)

    def _plan(
        self, store: EventStoreDeclaration, snapshot_id: int, aggregate: str | None
    ) -> tuple[scan.SnapshotScan, dict[str, str]]:
        """Return the files of the snapshot, and the columns to read by their name as an event's."""
        name = store.column("aggregate_id")
        ranges = [] if aggregate is None else [RowRange(column=name, equals=aggregate)]
        planned = scan.plan_scan(self._catalog, store.table, snapshot_id, ranges)
        return planned, _columns(store, planned)

    def _rows(
        self,
        store: EventStoreDeclaration,
        planned: scan.SnapshotScan,
        columns: dict[str, str],
        wanted: expr.BooleanExpression,
    ) -> Iterator[pa.Table]:
        """Yield the rows file by file, with the columns of an event."""
        names = list(dict.fromkeys(columns.values()))
        for task in planned.tasks:
            for part in scan.read_files(planned, [task], names, wanted):
                if part.num_rows:
                    yield self._as_events(store, part, columns)

    def _as_events(
        self, store: EventStoreDeclaration, part: pa.Table, columns: dict[str, str]
    ) -> pa.Table:
        made: dict[str, Any] = {}
        for name in EVENT_COLUMNS:
            if name not in columns:
                continue
            values = part[columns[name]]
            if name in _INSTANTS:
                made[_INSTANTS[name]] = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            elif name == "sequence_num":
                made[name] = values.cast(pa.int64())
            else:
                made[name] = values.cast(pa.large_binary() if name == "payload" else pa.string())
        if "version" in columns:
            made["version"] = pc.cast(part[columns["version"]], pa.int64())
        elif store.version is not None:
            pairs = zip(made["payload"], made["event_type"], strict=True)
            found = [self._read(store, one.as_py(), kind.as_py()) for one, kind in pairs]
            by_column = zip(*found, strict=True)
            for (name, kind), values in zip(_READ_COLUMNS, by_column, strict=True):
                made[name] = pa.array(values, kind)
        return pa.table(made)

    def _read(
        self, store: EventStoreDeclaration, payload: bytes | None, event_type: str | None
    ) -> _ReadPayload:
        """Return a payload as JSON, with its version; or why there is neither."""
        versions = store.version
        if payload is None or versions is None:
            return _ReadPayload(payload)
        if versions.field is not None or self._schemas is None:
            return _field_version(versions.field, payload)
        content = sha256(payload).hexdigest()
        reader = versions.readers.get(event_type or "")
        try:
            found = self._schemas.decode(payload, reader)
        except UndecodablePayload as why:
            return _ReadPayload(payload, None, content, f"its payload {why}")
        schema, version = found.schema, None
        if schema is not None and schema.event_type not in (None, event_type):
            other = f"its payload has a schema of {schema.event_type}"
            return _ReadPayload(payload, None, content, other)
        if schema is not None:
            is_read_as = reader is not None and schema.kind != "json"
            version = store.current.get(event_type or "") if is_read_as else schema.version
        return _ReadPayload(found.text, version, content)


class _ReadPayload(NamedTuple):
    """A payload as handlers get it, and what is known of it."""

    payload: bytes | None
    version: int | None = None
    payload_hash: str | None = None
    unreadable: str | None = None


_READ_COLUMNS = (
    ("payload", pa.large_binary()), ("version", pa.int64()), ("payload_hash", pa.string()),
    ("unreadable", pa.string()),
)  # fmt: skip


def _field_version(field: str | None, payload: bytes) -> _ReadPayload:
    """Return the version that a field of the payload says."""
    try:
        parsed = parse_payload(payload)
    except RejectEvent:
        return _ReadPayload(payload)
    found = parsed.get(field) if isinstance(parsed, dict) else None
    is_version = type(found) is int and 0 <= found < _MAX_VERSION
    return _ReadPayload(payload, found if is_version else None)


def _filter(
    store: EventStoreDeclaration, aggregate: str | None, after: int | None
) -> expr.BooleanExpression:
    wanted: expr.BooleanExpression = expr.AlwaysTrue()
    if aggregate is not None:
        wanted = expr.EqualTo(term=store.column("aggregate_id"), value=aggregate)
    if after is not None:
        later = expr.GreaterThan(term=store.column("sequence_num"), value=after)
        wanted = expr.And(wanted, later)
    return wanted


def _columns(store: EventStoreDeclaration, planned: scan.SnapshotScan) -> dict[str, str]:
    """Return the columns of an event in the table; raise Unsupported for those it cannot have."""
    present = {field.name: field.field_type for field in planned.schema.fields}
    wanted = {name: store.column(name) for name in EVENT_COLUMNS}
    if store.version is not None and store.version.column is not None:
        wanted["version"] = store.version.column
    faults = []
    for name, column in wanted.items():
        if column not in present:
            if name in (*REQUIRED_EVENT_COLUMNS, "version") or name in store.columns:
                faults.append(f"it has no column {column} ({name})")
            continue
        kind = "timestamptz" if isinstance(present[column], TimestamptzType) else present[column]
        allowed = _NUMBERS if name == "version" else _TYPES.get(name, ("string",))
        if str(kind) not in allowed:
            faults.append(f"{column} ({name}) is {kind}, not {' or '.join(allowed)}")
    if faults:
        raise Unsupported(
            f"{store.table} is no event store: {'; '.join(faults)}",
            state="nothing was replayed",
            fix=f"map its columns under `columns` in catalog/events/{store.events}.yaml, or land "
            "the events in a table that has them",
        )
    return {name: column for name, column in wanted.items() if column in present}
