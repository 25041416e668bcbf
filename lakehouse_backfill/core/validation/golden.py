"""Golden rows and spot checks: expected rows and named records against the candidate.

Expected cells of a golden file are text; an empty cell is null. They are compared as values of the
column's Iceberg type: `1.50` is the decimal 1.5, `2013-02-15` a date, NaN equals NaN.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timezone
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any
from uuid import UUID

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.guards.privacy import NOTHING_HIDDEN, Redaction
from lakehouse_backfill.domain.labels.instants import as_date
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import ConfigError

NAMED_CELLS = 5
Row = Mapping[str, Any]


def typed_cell(value: Any, type_text: str) -> Any:
    """Return an expected or actual cell as the comparable value of Iceberg type `type_text`.

    Texts are parsed; numbers become exact. Raises ValueError when the text is no such value.
    """
    if value is None:
        return None
    kind = type_text.partition("(")[0].partition("[")[0].strip()
    parse: Callable[[Any], Any] = _PARSERS.get(kind, str)
    try:
        return parse(value)
    except (InvalidOperation, TypeError, ArithmeticError) as error:
        raise ValueError(f"{value!r} is no {type_text}") from error


def typed_key(row: Row, key: Iterable[str], types: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the key of a row as comparable values."""
    return tuple(typed_cell(row.get(column), types[column]) for column in key)


def check_rows(
    name: str,
    expected: Sequence[tuple[tuple[str, ...], Row]],
    actual: Sequence[Row],
    types: Mapping[str, str],
    redaction: Redaction = NOTHING_HIDDEN,
) -> CheckResult:
    """Compare each expected row with the row of the same key, over the columns that it names.

    Each expected row comes with the columns of its key. Further actual rows are allowed: what is
    expected lists rows that must exist. Raises ConfigError when an expected row does not fit the
    table: no key, a column that does not exist, a cell of another type.
    """
    faults: list[str] = []
    rows_by_key: dict[tuple[str, ...], dict[tuple[Any, ...], list[Row]]] = {}
    for number, (key, row) in enumerate(expected, start=1):
        _refuse_misfit(row, number, key, types, name, redaction)
        if key not in rows_by_key:
            rows_by_key[key] = _by_key(actual, key, types)
        faults += _faults(row, rows_by_key[key], key, types, redaction)
    detail = f"{len(expected):,} expected rows found as expected"
    if faults:
        more = len(faults) - NAMED_CELLS
        detail = "; ".join(faults[:NAMED_CELLS]) + (f"; and {more} more" if more > 0 else "")
    return CheckResult(
        name=name, group="golden", passed=not faults, detail=detail, observed=len(faults), limit=0
    )


def _faults(
    row: Row,
    rows_by_key: Mapping[tuple[Any, ...], list[Row]],
    key: tuple[str, ...],
    types: Mapping[str, str],
    redaction: Redaction,
) -> list[str]:
    def show(column: str, cell: Any) -> str:
        return _show(redaction.value(column, cell))

    expected = {column: typed_cell(cell, types[column]) for column, cell in row.items()}
    rows = rows_by_key.get(typed_key(row, key, types), [])
    label = ", ".join(f"{column}={show(column, expected[column])}" for column in key)
    if len(rows) != 1:
        return [f"{label}: " + ("no such row" if not rows else f"{len(rows)} rows, not one")]
    faults = []
    for column, expected_cell in expected.items():
        actual = typed_cell(rows[0].get(column), types[column])
        if not _same(expected_cell, actual):
            found, wanted = show(column, actual), show(column, expected_cell)
            faults.append(f"{label}: {column} is {found}, expected {wanted}")
    return faults


def _by_key(
    rows: Sequence[Row], key: tuple[str, ...], types: Mapping[str, str]
) -> dict[tuple[Any, ...], list[Row]]:
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(typed_key(row, key, types), []).append(row)
    return grouped


def _refuse_misfit(
    row: Row,
    number: int,
    key: tuple[str, ...],
    types: Mapping[str, str],
    name: str,
    redaction: Redaction,
) -> None:
    if not key:
        raise ConfigError(f"{name}: rows cannot be found without a key", fix="give key columns")
    unknown = [column for column in row if column not in types]
    missing = [column for column in key if column not in row]
    if unknown or missing:
        raise ConfigError(
            f"{name}: row {number} "
            + (f"names unknown columns {unknown}" if unknown else f"lacks key {missing}"),
            fix=f"name key columns {list(key)} and others of {list(types)}",
        )
    for column, cell in row.items():
        try:
            typed_cell(cell, types[column])
        except ValueError as error:
            raise ConfigError(
                f"{name}: row {number}, column {column}: {redaction.value(column, cell)!r} is no "
                f"{types[column]}",
                fix="write the value as the column's type, or leave the cell empty for null",
            ) from (None if redaction.hides(column) else error)


def _same(wanted: Any, seen: Any) -> bool:
    if isinstance(wanted, float) and isinstance(seen, float) and math.isnan(wanted):
        return math.isnan(seen)
    return bool(wanted == seen)


def _show(value: Any) -> str:
    if value is None:
        return "null"
    return value.isoformat() if isinstance(value, (date, datetime, time)) else str(value)


def _as_integer(value: Any) -> int:
    number = Decimal(str(value))
    if number != number.to_integral_value():
        raise ValueError(f"{value!r} is no whole number")
    return int(number)


def _as_single(value: Any) -> float:
    # A file holds 0.1, the column holds the nearest 32-bit number.
    return float(struct.unpack("f", struct.pack("f", float(value)))[0])


def _as_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "false": False}
    if str(value).lower() not in known:
        raise ValueError(f"{value!r} is neither true nor false")
    return known[str(value).lower()]


def _as_instant(value: Any) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if value.tzinfo is None:
        value = value.replace(tzinfo=timezone.utc)
    moment: datetime = value
    return moment.astimezone(timezone.utc)


def _as_time(value: Any) -> time:
    return value if isinstance(value, time) else time.fromisoformat(str(value))


def _as_bytes(value: Any) -> bytes:
    return bytes.fromhex(value) if isinstance(value, str) else bytes(value)


def _as_uuid(value: Any) -> UUID:
    if isinstance(value, bytes):
        return UUID(bytes=value)
    return value if isinstance(value, UUID) else UUID(str(value))


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "boolean": _as_flag,
    "int": _as_integer,
    "long": _as_integer,
    "float": _as_single,
    "double": float,
    "decimal": lambda value: Decimal(str(value)),
    "date": as_date,
    "time": _as_time,
    "timestamp": _as_instant,
    "timestamptz": _as_instant,
    "string": str,
    "uuid": _as_uuid,
    "fixed": _as_bytes,
    "binary": _as_bytes,
}


def golden_checks(context: Context, plan: Plan, shadow: TableInfo) -> tuple[CheckResult, ...]:
    """Compare the golden file and the spot checks of the run manifest with the candidate's rows.

    Raises ConfigError when an expectation does not fit the table.
    """
    validation, key = plan.resolved.manifest.validation, plan.resolved.contract.key
    types = {column.name: column.type for column in shadow.columns}
    redaction = context.redaction(plan.resolved.contract)
    read = partial(context.row_reader.by_key, plan.shadow_table, shadow.snapshot_id)
    results: list[CheckResult] = []
    if validation.golden is not None:
        rows = context.row_reader.golden(validation.golden)
        missing = [column for column in key if column not in rows[0]]
        if missing:
            raise ConfigError(
                f"{validation.golden} has no column {missing[0]}, which is part of the key",
                fix=f"give every row {', '.join(key)}",
            )
        actual = read([{column: row[column] for column in key} for row in rows])
        results.append(
            check_rows(validation.golden, [(key, row) for row in rows], actual, types, redaction)
        )
    if spots := validation.spot_checks:
        actual = [row for spot in spots for row in read([dict(spot.key)])]
        expected = [(tuple(spot.key), {**spot.key, **spot.expect}) for spot in spots]
        results.append(check_rows("spot checks", expected, actual, types, redaction))
    return tuple(results)
