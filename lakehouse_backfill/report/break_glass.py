"""The way back in plain PyIceberg, for the day on which this toolkit cannot be run."""

from __future__ import annotations

from datetime import date, datetime

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.scope import Bound, RowRange

#: More ranges than this make no program that a person would read before running it.
MAX_RANGES = 50
#: The same for the length of the values that name them.
MAX_CHARACTERS = 10_000


def pyiceberg_program(publication: Publication) -> list[str] | None:
    """Give the program's lines; None when there is nothing that a person would read.

    One commit to the catalog: the rows of the run's partitions are replaced by those of the
    snapshot from before, also where there were none.
    """
    ranges = readable_ranges(publication)
    if ranges is None:
        return None
    predicates = [_predicate(rows) for rows in ranges]
    which = predicates[0] if len(predicates) == 1 else _any_predicate(predicates)
    return [
        "from pyiceberg.catalog import load_catalog",
        "from pyiceberg.expressions import (",
        "    And, EqualTo, GreaterThanOrEqual, IsNull, LessThan, Or)",
        "",
        'catalog = load_catalog("NAME")  # the properties stand in catalog/profiles.yaml',
        f"table = catalog.load_table({publication.table!r})",
        f"restated = {which}",
        *_restore_lines(publication.before_snapshot_id),
    ]


def readable_ranges(publication: Publication) -> tuple[RowRange, ...] | None:
    """Give the rows to put back; None when nothing was published, or too many to be read."""
    if publication.action != "publish" or publication.scope is None:
        return None
    ranges = partitions.scope_row_ranges(publication.scope)
    size = sum(len(str(rows.equals)) for rows in ranges)
    return ranges if len(ranges) <= MAX_RANGES and size <= MAX_CHARACTERS else None


def _any_predicate(predicates: list[str]) -> str:
    return "Or(\n    " + ",\n    ".join(predicates) + ")"


def _restore_lines(before: int | None) -> list[str]:
    if before is None:
        return ["table.delete(restated)  # there were no rows before"]
    return [
        f"old = table.scan(restated, snapshot_id={int(before)}).to_arrow()",
        "table.overwrite(old, overwrite_filter=restated)",
    ]


def _predicate(rows: RowRange) -> str:
    if rows.is_null:
        return f"IsNull({rows.column!r})"
    if rows.equals is not None:
        return f"EqualTo({rows.column!r}, {_python_literal(rows.equals)})"
    sides = []
    if rows.lower is not None:
        sides.append(f"GreaterThanOrEqual({rows.column!r}, {_python_literal(rows.lower)})")
    if rows.upper is not None:
        sides.append(f"LessThan({rows.column!r}, {_python_literal(rows.upper)})")
    return sides[0] if len(sides) == 1 else f"And({', '.join(sides)})"


def _python_literal(value: Bound) -> str:
    """Times as ISO text, which PyIceberg reads; everything as a Python literal, never as code."""
    if isinstance(value, (date, datetime)):
        return repr(value.isoformat())
    return repr(value)
