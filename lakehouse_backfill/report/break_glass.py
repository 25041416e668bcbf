"""The way back in PyIceberg and Spark SQL, for the day on which this toolkit cannot be run."""

from __future__ import annotations

import shlex
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.labels.names import quote_identifier, table_parts
from lakehouse_backfill.domain.labels.values import Bound
from lakehouse_backfill.domain.partitions import RowRange, ScopeField, scope_row_ranges
from lakehouse_backfill.domain.plan import TargetPin
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.errors import Tampered
from lakehouse_backfill.report.dossier import Dossier

#: More ranges than this make no program that a person would read before running it.
MAX_RANGES = 50
#: The same for the length of the values that name them.
MAX_CHARACTERS = 10_000


def pyiceberg_program(publication: Publication) -> list[str] | None:
    """Return the program's lines; None when there is nothing that a person would read.

    One commit to the catalog: the rows of the run's partitions are replaced by those of the
    snapshot from before, also where there were none.
    """
    ranges = readable_ranges(publication)
    if ranges is None or not all(map(_is_filtered_by_pyiceberg, _with_others(ranges))):
        return None
    which = _either(ranges)
    if ranges[0].only:
        both = ",\n    ".join([which, *map(_either, ranges[0].only)])
        which = f"And(\n    {both})"
    before = publication.before_snapshot_id
    restore = ["table.delete(restated)  # there were no rows before"]
    if before is not None:
        restore = [
            f"old = table.scan(restated, snapshot_id={int(before)}).to_arrow()",
            "table.overwrite(old, overwrite_filter=restated)",
        ]
    return [
        "from pyiceberg.catalog import load_catalog",
        "from pyiceberg.expressions import (",
        "    AlwaysTrue, And, EqualTo, GreaterThanOrEqual, IsNull, LessThan, Or)",
        "",
        'catalog = load_catalog("NAME")  # the properties stand in catalog/profiles.yaml',
        f"table = catalog.load_table({_python_table(publication.table)})",
        f"restated = {which}",
        *restore,
    ]


def name_way_back(error: Tampered, folder: Path, target: RollbackTarget) -> None:
    """Let an error on an edited plan name a program that needs no plan.

    The program is written to `folder`. None is named for a pinned product or some partitions, or
    where nobody would read it.
    """
    programs = [pyiceberg_program(row) for row in target.undone]
    is_of_plan = error.problem.startswith("the plan of ")
    if is_of_plan and not target.is_partial and all(programs):
        file = folder / f"way-back-{target.undone[0].product}.py"
        lines = [_WAY_BACK, *("\n".join(program or ()) for program in programs)]
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
        error.fix = (
            f"put its row in pipeline_run back from an earlier snapshot of that table; or run "
            f"{file}, a program for PyIceberg that puts the old rows back without the plan; "
            "then plan a repair"
        )


#: What stands above the programs, the newest publication first.
_WAY_BACK = """\
# Puts the rows of before back, without lakehouse-backfill. It does not look at what came since:
# what others changed in these partitions, and rows that were deleted there, are as before, too.
# The pointer stays; `lakehouse-backfill verify` says that readers see other rows than it names."""


def readable_ranges(publication: Publication) -> tuple[RowRange, ...] | None:
    """Return the rows to put back; None when nothing was published, or too many to be read."""
    if publication.action != "publish" or publication.scope is None:
        return None
    ranges = scope_row_ranges(publication.scope)
    named = _with_others(ranges)
    if not all(_is_printable(rows) for rows in named):
        return None
    size = sum(len(str(rows.equals)) for rows in named)
    return ranges if len(named) <= MAX_RANGES and size <= MAX_CHARACTERS else None


def _with_others(ranges: tuple[RowRange, ...]) -> tuple[RowRange, ...]:
    """Return the ranges, and those of other partition fields, which are the same for all."""
    return (*ranges, *chain.from_iterable(ranges[0].only))


def _is_printable(rows: RowRange) -> bool:
    """Return whether both programs can name the rows: not those of a bucket, or a binary value."""
    values = (rows.lower, rows.upper, rows.equals)
    return rows.buckets is None and not any(isinstance(v, bytes | Decimal) for v in values)


def _is_filtered_by_pyiceberg(rows: RowRange) -> bool:
    """Return whether PyIceberg finds the column: when it writes, it splits names at each dot."""
    return not any("." in part for part in rows.path or (rows.column,))


def _python_table(table: str) -> str:
    """Write a table for PyIceberg, which splits texts at each dot: in parts, if it needs quotes."""
    return repr(table_parts(table) if "`" in table else table)


def _limits(rows: RowRange) -> list[tuple[str, Bound]]:
    """Return the ends of a range, each with the sign that compares a row with it."""
    ends = ((">=", rows.lower), ("<", rows.upper))
    return [(sign, value) for sign, value in ends if value is not None]


_EXPRESSIONS = {">=": "GreaterThanOrEqual", "<": "LessThan"}


def _either(ranges: tuple[RowRange, ...]) -> str:
    predicates = [_predicate(rows) for rows in ranges]
    either = ",\n    ".join(predicates)
    return f"Or(\n    {either})" if len(predicates) > 1 else either


def _predicate(rows: RowRange) -> str:
    if rows.is_everything:
        return "AlwaysTrue()"
    if rows.is_null:
        return f"IsNull({rows.column!r})"
    if rows.equals is not None:
        return f"EqualTo({rows.column!r}, {_python_literal(rows.equals)})"
    sides = [
        f"{_EXPRESSIONS[sign]}({rows.column!r}, {_python_literal(value)})"
        for sign, value in _limits(rows)
    ]
    return sides[0] if len(sides) == 1 else f"And({', '.join(sides)})"


def _python_literal(value: Bound) -> str:
    """Times as ISO text, which PyIceberg reads; everything as a Python literal, never as code."""
    if isinstance(value, (date, datetime)):
        return repr(value.isoformat())
    return repr(value)


#: Characters that mean the same to the parser, to the `spark-sql` shell, which replaces `${…}`
#: even inside quotes, and to a terminal. All others are written as escapes.
_SAFE_CHARACTERS = frozenset(ascii_letters + digits + " _.,:+-/=()[]<>@#%&*!?|")


def sql_statements(publication: Publication) -> list[str] | None:
    """Return the lines of the statements; None when there is nothing that a person would read.

    One commit: the rows of the run's partitions are replaced by those of the snapshot from before,
    also where there were none. A dynamic overwrite would leave partitions as they are for which
    the old snapshot holds no row.
    """
    ranges = readable_ranges(publication)
    if ranges is None or publication.scope is None:
        return None
    table = _quote_table(publication.table)
    condition = sql_condition(publication.scope.field, ranges)
    if others := publication.scope.field.only:
        groups = zip(others, ranges[0].only, strict=True)
        all_of = [condition, *(sql_condition(one.field, group) for one, group in groups)]
        condition = "\n  AND ".join(f"({one})" for one in all_of)
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
    """Return the condition that holds for exactly the rows of the ranges."""
    name = _quote_column(field)
    single = [rows.equals for rows in ranges if rows.equals is not None]
    parts = [_range_condition(field, rows) for rows in ranges if rows.equals is None]
    if len(single) == 1:
        parts.append(f"{name} = {sql_literal(field, single[0])}")
    elif single:
        parts.append(f"{name} IN ({', '.join(sql_literal(field, value) for value in single)})")
    return "\n  OR ".join(parts)


def _range_condition(field: ScopeField, rows: RowRange) -> str:
    if rows.is_everything:
        return "true"
    name = _quote_column(field)
    if rows.is_null:
        return f"{name} IS NULL"
    sides = [f"{name} {sign} {sql_literal(field, value)}" for sign, value in _limits(rows)]
    return f"({' AND '.join(sides)})"


def _quote_column(field: ScopeField) -> str:
    return ".".join(map(quote_identifier, field.path or (field.column,)))


def sql_literal(field: ScopeField, value: Bound) -> str:
    """Write a typed literal; instants carry their zone, so the session's zone does not matter."""
    if isinstance(value, datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind} '{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, int):
        return f"{value}L" if field.type == "long" else str(value)
    return "'" + "".join(_escape_character(character) for character in str(value)) + "'"


def _escape_character(character: str) -> str:
    if character in _SAFE_CHARACTERS:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def next_facts(dossier: Dossier) -> dict[str, Any]:
    """Return the commands that check the page, and the way back with and without the toolkit."""
    run_id, product = shlex.quote(dossier.run.run_id), shlex.quote(dossier.plan.product)
    state, publication = dossier.run.state, dossier.publication
    back = [dossier.safety_summary.next_command]
    if state is RunState.PUBLISHED:
        back.insert(0, f"lakehouse-backfill rollback {product} --reason TEXT --dry-run")
    checks = [
        f"lakehouse-backfill status {run_id}",
        f"lakehouse-backfill log {run_id}",
        f"lakehouse-backfill diff {run_id}",
        f"lakehouse-backfill versions {product}",
        "lakehouse-backfill audit verify",
    ]
    return {
        "state": state.value,
        "checks": [dossier.typed(line) for line in checks],
        "next_commands": [dossier.typed(line) for line in back],
        "earlier_read": _earlier_read(dossier.plan.resolved.target),
        "python": publication and pyiceberg_program(publication),
        "sql": publication and sql_statements(publication),
    }


def _earlier_read(before: TargetPin) -> list[str]:
    """Return how to read what a pinned product was before the run; nothing when it was nothing."""
    if before.snapshot_id is None:
        return []
    return [
        "# PyIceberg",
        f"catalog.load_table({_python_table(before.table)}).scan(snapshot_id={before.snapshot_id})",
        "-- Spark SQL",
        f"SELECT * FROM {_quote_table(before.table)} VERSION AS OF {before.snapshot_id};",  # noqa: S608 (quoted; shown, not run)
    ]


def _quote_table(table: str) -> str:
    return ".".join(quote_identifier(part) for part in table_parts(table))
