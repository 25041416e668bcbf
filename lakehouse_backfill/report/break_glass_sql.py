"""The way back in Spark SQL, for the day on which this toolkit cannot be run."""

from __future__ import annotations

from datetime import date, datetime
from string import ascii_letters, digits

from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.scope import Bound, RowRange, ScopeField
from lakehouse_backfill.report.break_glass import readable_ranges

#: Characters that mean the same to the parser, to the `spark-sql` shell, which replaces `${…}`
#: even inside quotes, and to a terminal. All others are written as escapes.
_SAFE_CHARACTERS = frozenset(ascii_letters + digits + " _.,:+-/=()[]<>@#%&*!?|")


def sql_statements(publication: Publication) -> list[str] | None:
    """Give the lines of the statements; None when there is nothing that a person would read.

    One commit: the rows of the run's partitions are replaced by those of the snapshot from before,
    also where there were none. A dynamic overwrite would leave partitions as they are for which
    the old snapshot holds no row.
    """
    ranges = readable_ranges(publication)
    if ranges is None or publication.scope is None:
        return None
    table = ".".join(quote_identifier(part) for part in publication.table.split("."))
    condition = sql_condition(publication.scope.field, ranges)
    catalog = ["-- NAME: the catalog, as your Spark session calls it", "USE NAME;"]
    first = [*catalog, f"REFRESH TABLE {table};"]
    before = publication.before_snapshot_id
    if before is None:
        # S608: all names and values are quoted above, and nothing here runs the text.
        delete = f"DELETE FROM {table}"  # noqa: S608
        return [*first, "-- there were no rows before", delete, f"WHERE {condition};"]
    return [
        *first,
        "-- goes by position: when columns were moved since, use the PyIceberg program",
        f"INSERT INTO {table}",
        f"REPLACE WHERE {condition}",
        f"SELECT * FROM {table} VERSION AS OF {int(before)}",  # noqa: S608
        f"WHERE {condition};",
    ]


def sql_condition(field: ScopeField, ranges: tuple[RowRange, ...]) -> str:
    """Give the condition that holds for exactly the rows of the ranges."""
    name = quote_identifier(field.column)
    single = [rows.equals for rows in ranges if rows.equals is not None]
    parts = [_range_condition(field, rows) for rows in ranges if rows.equals is None]
    if len(single) == 1:
        parts.append(f"{name} = {sql_literal(field, single[0])}")
    elif single:
        parts.append(f"{name} IN ({', '.join(sql_literal(field, value) for value in single)})")
    return "\n  OR ".join(parts)


def _range_condition(field: ScopeField, rows: RowRange) -> str:
    name = quote_identifier(field.column)
    if rows.is_null:
        return f"{name} IS NULL"
    sides = []
    if rows.lower is not None:
        sides.append(f"{name} >= {sql_literal(field, rows.lower)}")
    if rows.upper is not None:
        sides.append(f"{name} < {sql_literal(field, rows.upper)}")
    return f"({' AND '.join(sides)})"


def quote_identifier(name: str) -> str:
    """Quote an identifier, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"


def sql_literal(field: ScopeField, value: Bound) -> str:
    """Write a typed literal; instants carry their zone, so the session's zone does not matter."""
    if isinstance(value, datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind} '{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, int):
        return f"{value}L" if field.type == "long" else str(value)
    return "'" + "".join(_escape_character(character) for character in value) + "'"


def _escape_character(character: str) -> str:
    if character in _SAFE_CHARACTERS:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
