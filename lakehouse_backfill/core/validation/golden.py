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
from typing import Any
from uuid import UUID

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.manifest import SpotCheck
from lakehouse_backfill.domain.partitions import as_date
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.table import TableInfo
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


def check_golden(
    expected: Sequence[Row],
    actual: Sequence[Row],
    key: tuple[str, ...],
    types: Mapping[str, str],
    name: str = "golden rows",
) -> CheckResult:
    """Compare each expected row with the row of the same key, over the columns that it names.

    Further actual rows are allowed: the file lists rows that must exist. Raises ConfigError when
    the file does not fit the table: no key, a column that does not exist, a cell of another type.
    """
    _refuse_misfit(expected, key, types, name)
    rows_by_key = _by_key(actual, key, types)
    faults: list[str] = []
    for row in expected:
        faults += _faults(row, rows_by_key, key, types)
    return _result(name, len(expected), faults)


def check_spots(
    spots: Sequence[SpotCheck],
    actual: Sequence[Row],
    types: Mapping[str, str],
    name: str = "spot checks",
) -> CheckResult:
    """Compare named records with the output; `actual` holds at least the rows of their keys."""
    faults: list[str] = []
    for spot in spots:
        key = tuple(spot.key)
        row = {**spot.key, **spot.expect}
        _refuse_misfit([row], key, types, name)
        faults += _faults(row, _by_key(actual, key, types), key, types)
    return _result(name, len(spots), faults)


def _faults(
    row: Row,
    rows_by_key: Mapping[tuple[Any, ...], list[Row]],
    key: tuple[str, ...],
    types: Mapping[str, str],
) -> list[str]:
    expected = {column: typed_cell(cell, types[column]) for column, cell in row.items()}
    rows = rows_by_key.get(typed_key(row, key, types), [])
    label = ", ".join(f"{column}={_show(expected[column])}" for column in key)
    if len(rows) != 1:
        return [f"{label}: " + ("no such row" if not rows else f"{len(rows)} rows, not one")]
    faults = []
    for column, expected_cell in expected.items():
        actual = typed_cell(rows[0].get(column), types[column])
        if not _same(expected_cell, actual):
            faults.append(f"{label}: {column} is {_show(actual)}, expected {_show(expected_cell)}")
    return faults


def _result(name: str, count: int, faults: list[str]) -> CheckResult:
    if not faults:
        detail = f"{count} expected rows found as expected"
    else:
        more = len(faults) - NAMED_CELLS
        detail = "; ".join(faults[:NAMED_CELLS]) + (f"; and {more} more" if more > 0 else "")
    return CheckResult(
        name=name, group="golden", passed=not faults, detail=detail, observed=len(faults), limit=0
    )


def _by_key(
    rows: Sequence[Row], key: tuple[str, ...], types: Mapping[str, str]
) -> dict[tuple[Any, ...], list[Row]]:
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(typed_key(row, key, types), []).append(row)
    return grouped


def _refuse_misfit(
    rows: Sequence[Row], key: tuple[str, ...], types: Mapping[str, str], name: str
) -> None:
    if not key:
        raise ConfigError(f"{name}: rows cannot be found without a key", fix="give key columns")
    for number, row in enumerate(rows, start=1):
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
                    f"{name}: row {number}, column {column}: {cell!r} is no {types[column]}",
                    fix="write the value as the column's type, or leave the cell empty for null",
                ) from error


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
    results: list[CheckResult] = []
    if validation.golden is not None:
        expected = context.records.golden(validation.golden)
        missing = [column for column in key if column not in expected[0]]
        if missing:
            raise ConfigError(
                f"{validation.golden} has no column {missing[0]}, which is part of the key",
                fix=f"give every row {', '.join(key)}",
            )
        keys = [{column: row[column] for column in key} for row in expected]
        actual = context.records.by_key(plan.shadow_table, shadow.snapshot_id, keys)
        results.append(check_golden(expected, actual, key, types, validation.golden))
    if validation.spot_checks:
        actual = [
            row
            for spot in validation.spot_checks
            for row in context.records.by_key(
                plan.shadow_table, shadow.snapshot_id, [dict(spot.key)]
            )
        ]
        results.append(check_spots(validation.spot_checks, actual, types))
    return tuple(results)
