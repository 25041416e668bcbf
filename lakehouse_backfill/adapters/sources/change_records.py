"""Records of change logs, as Debezium writes them: one record becomes one row of the raw table.

Whatever carries the records (lines of a file, values of a topic) gives `change_row` the decoded key
and value of one record, and `change_rows` makes a table of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.adapters.sources.formats import decode_json, exact_json, from_json_rows
from lakehouse_backfill.change_log import change_position
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.domain.sources.declaration import CHANGE_COLUMNS, ChangeLog

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Instants by the unit of their number.
_PER_SECOND = {"ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
#: What stands for a large value that an update did not change, and the connector did not get.
_NOT_SENT = "__debezium_unavailable_value"
_MAX_NAMES = 5


class BadChange(Exception):
    """A record that is no change; the text holds no value of it."""


class ChangeShape(NamedTuple):
    """What a change must look like: the declared log, and the columns of the row by kind."""

    log: ChangeLog
    names: frozenset[str]
    instants: frozenset[str]
    dates: frozenset[str]
    #: Instants without a zone: their number counts in the clock of the database.
    local: frozenset[str] = frozenset()

    @staticmethod
    def of(log: ChangeLog, schema: pa.Schema) -> ChangeShape:
        """Return the shape for the columns of a raw table."""
        from pyarrow import types

        added = {name for name, _, _ in CHANGE_COLUMNS}
        own = [field for field in schema if field.name not in added]
        return ChangeShape(
            log,
            frozenset(field.name for field in own),
            frozenset(field.name for field in own if types.is_timestamp(field.type)),
            frozenset(field.name for field in own if types.is_date(field.type)),
            frozenset(
                field.name
                for field in own
                if types.is_timestamp(field.type) and field.type.tz is None
            ),
        )


def read_change_lines(content: bytes, log: ChangeLog, schema: pa.Schema) -> pa.Table:
    """Return a row for each line: a record, `null`, or an object with `key` and `value`.

    Raises BadChange with the number of the first bad line; none of its values is quoted.
    """
    shape, rows = ChangeShape.of(log, schema), []
    for number, line in enumerate(_lines(content), 1):
        try:
            rows.append(change_row(*_key_and_value(_decoded(line)), shape))
        except BadChange as error:
            raise BadChange(f"record {number} {error}") from None
    return change_rows(rows, schema)


def change_rows(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows of `change_row` as a table of these columns.

    Raises ValueError (Arrow's errors are of that type) for a value that does not fit its column.
    """
    return from_json_rows(rows, schema)


def change_row(key: Any, value: Any, shape: ChangeShape) -> dict[str, Any]:
    """Return one record as a row: the columns of the row that counts, and those of the change.

    That row is the one after the change; of a deletion the one before it, as far as it was sent,
    and the key. Raises BadChange.
    """
    key, value = _payload(key), _payload(value)
    if value is None:
        own = _known_fields(key, shape) if isinstance(key, dict) else {}
        return {**own, "change_op": "tombstone"}
    if not isinstance(value, dict):
        raise BadChange("is no object")
    op, before, after = (value.get(name) for name in ("op", "before", "after"))
    if op not in ("c", "r", "u", "d"):
        raise BadChange("has an op that is none of c, r, u and d")
    _require_rows(op, before, after, shape)
    own_key = key if isinstance(key, dict) else {}
    image: dict[str, Any] = {**own_key, **(before or {})} if op == "d" else dict(after or {})
    row = _known_fields(image, shape)
    missing = [name for name in shape.log.key if row.get(name) is None]
    if missing:
        raise BadChange(f"has no value of its key: {', '.join(missing)}")
    return {**row, **_change_fields(value, shape)}


def _require_rows(op: str, before: Any, after: Any, shape: ChangeShape) -> None:
    """Raise BadChange where the rows before and after do not belong to the operation."""
    if op == "d":
        if after is not None:
            raise BadChange("is a deletion with a row after it")
    elif not isinstance(after, dict):
        raise BadChange(f"has op {op} and no row after it")
    if before is not None and not isinstance(before, dict):
        raise BadChange("has a row before that is no object")
    if op in ("c", "r") and before is not None:
        raise BadChange(f"has op {op} and a row before it")
    if op == "u" and before:
        moved = [
            name
            for name in shape.log.key
            if before.get(name) is not None and before[name] != after.get(name)
        ]
        if moved:
            raise BadChange("is an update that changes the key: it must be a d and a c")


def _change_fields(value: Mapping[str, Any], shape: ChangeShape) -> dict[str, Any]:
    origin = value.get("source")
    if not isinstance(origin, dict):
        raise BadChange("has no source")
    lacking = [name for name in shape.log.position if origin.get(name) is None]
    if lacking:
        raise BadChange(f"has no source.{', source.'.join(lacking)}")
    try:
        position = change_position(*(origin[name] for name in shape.log.position))
    except ValueError as error:
        raise BadChange(f"has no position: {error}") from None
    changed = _stamp(origin)
    if changed is None:
        raise BadChange("has no source.ts_ms")
    outer = value.get("transaction")
    transaction = origin.get("txId", origin.get("gtid"))
    if transaction is None and isinstance(outer, dict):
        transaction = outer.get("id")
    before, after = value.get("before"), value.get("after")
    return {
        "change_op": value["op"],
        "change_position": Decimal(position),
        "change_at": changed,
        "change_emitted_at": _stamp(value),
        "change_transaction": None if transaction is None else str(transaction),
        "change_snapshot": str(origin.get("snapshot") or "false").lower(),
        "change_before": None if before is None else _json_text(before),
        "change_after": None if after is None else _json_text(after),
        "change_origin": _json_text(origin),
        "change_hash": digest([value["op"], before, after]),
    }


def _known_fields(image: Mapping[str, Any], shape: ChangeShape) -> dict[str, Any]:
    """Return the values of a row in the declared columns; raises BadChange."""
    strange = [str(name) for name in image if name not in shape.names]
    if strange:
        shown = ", ".join(sorted(strange)[:_MAX_NAMES])[:200]
        raise BadChange(f"has columns that are not declared: {shown}")
    row = {}
    for name, value in image.items():
        if value == _NOT_SENT:
            raise BadChange(
                f"lacks a value of {name} that the connector did not get: the table needs REPLICA "
                "IDENTITY FULL"
            )
        row[name] = _typed(name, value, shape)
    return row


def _typed(name: str, value: Any, shape: ChangeShape) -> Any:
    """Return the number of a date or instant as text; other values as they are."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name in shape.dates:
        try:
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        except OverflowError:
            raise BadChange(f"has a date in {name} that no calendar has") from None
    if name not in shape.instants:
        return value
    if shape.log.instants is None:
        raise BadChange(f"has a number in {name}: declare its unit in change_log.instants")
    found = _instant(value, _PER_SECOND[shape.log.instants])
    if found is None:
        raise BadChange(f"has an instant in {name} that no calendar has, or is finer than 1 us")
    return found.removesuffix("+00:00") if name in shape.local else found


def _stamp(found: Mapping[str, Any]) -> str | None:
    """Return the finest instant that an object holds; None where it holds none."""
    for name, per_second in (("ts_us", 1_000_000), ("ts_ms", 1000)):
        value = found.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return _instant(value, per_second)
    return None


def _instant(number: int, per_second: int) -> str | None:
    micros, rest = divmod(number * 1_000_000, per_second)
    try:
        return None if rest else (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return None


def _json_text(found: Mapping[str, Any]) -> str:
    text = exact_json(found)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadChange("holds a character that is no text") from None
    return text


def _lines(content: bytes) -> Iterator[bytes]:
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line.strip():
            yield line


def _decoded(line: bytes) -> Any:
    try:
        return decode_json(line)
    except (ValueError, RecursionError):
        raise BadChange("is no JSON") from None


def _key_and_value(found: Any) -> tuple[Any, Any]:
    """Return key and value of a line; a line without a key is the value itself."""
    if isinstance(found, dict) and "value" in found and found.keys() <= {"key", "value"}:
        return found.get("key"), found["value"]
    return None, found


def _payload(found: Any) -> Any:
    """Return what a converter with schemas wraps."""
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        return found["payload"]
    return found
