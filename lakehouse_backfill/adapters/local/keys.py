"""Finding which columns identify a row, by trying them on the data."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from lakehouse_backfill.domain.table import Column, TableInfo

MAX_SAMPLED_ROWS = 2_000_000
MAX_CANDIDATE_COLUMNS = 8
MAX_KEY_COLUMNS = 4
_NON_KEY_TYPES = ("float", "double", "list", "map", "struct", "binary", "boolean")


def find_key(catalog: Any, info: TableInfo) -> tuple[str, ...]:
    """Give the smallest set of leading columns that is unique and never null, or nothing.

    Looks at up to 2 million rows of the current snapshot and at sets of up to four of the first
    eight columns that can be keys; earlier columns are preferred.
    """
    columns = [column.name for column in info.columns if _can_be_key(column)][
        :MAX_CANDIDATE_COLUMNS
    ]
    if info.snapshot_id is None or not columns:
        return ()
    import duckdb

    rows = _sample_rows(catalog, info.table, columns)
    with duckdb.connect() as connection:
        connection.register("rows_to_try", rows)
        for size in range(1, min(MAX_KEY_COLUMNS, len(columns)) + 1):
            for chosen in combinations(columns, size):
                if _is_unique_key(connection, chosen, rows.num_rows):
                    return chosen
    return ()


def _is_unique_key(connection: Any, columns: tuple[str, ...], total: int) -> bool:
    """Columns enter as expressions of the library, never as pasted text."""
    import duckdb

    relation = connection.table("rows_to_try")
    for name in columns:
        relation = relation.filter(duckdb.ColumnExpression(name).isnotnull())
    chosen = relation.select(*(duckdb.ColumnExpression(name) for name in columns)).distinct()
    return len(chosen) == total


def _sample_rows(catalog: Any, table: str, columns: list[str]) -> Any:
    return (
        catalog.load_table(table)
        .scan(selected_fields=tuple(columns), limit=MAX_SAMPLED_ROWS)
        .to_arrow()
    )


def _can_be_key(column: Column) -> bool:
    return not column.type.startswith(_NON_KEY_TYPES)
