"""Snapshot rows as Arrow, as DuckDB relations or by key; golden files; candidate keys.

Golden files are CSV with a header line; an empty cell is null. Candidate keys are found by testing
sets of columns on the data.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, localcontext
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse_backfill.adapters.local import scan
from lakehouse_backfill.adapters.local.duckdb_engine import start_with_spill_folder
from lakehouse_backfill.adapters.local.parquet import map_files, stream_file_columns
from lakehouse_backfill.core.validation.golden import typed_key
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import ConfigError, text_of

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask

    from lakehouse_backfill.domain.partitions import RowRange


def read_golden(path: Path) -> list[dict[str, str | None]]:
    """Read the expected rows as texts; raise ConfigError, with the line, when it is no table."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"the golden file {path} cannot be read: {error}",
            fix="write it as CSV in UTF-8, with a header line",
        ) from error
    if not rows or len(set(header)) < len(header) or "" in header:
        raise ConfigError(
            f"the golden file {path} holds no table: header {header}, {len(rows)} rows",
            fix="begin with a line of column names, each once, and give at least one row",
        )
    for line, row in rows:
        if len(row) != len(header):
            raise ConfigError(
                f"{path}:{line}: {len(row)} cells, but the header names {len(header)} columns",
                fix="give every row one cell for each column",
            )
    return [{name: cell or None for name, cell in zip(header, row, strict=True)} for _, row in rows]


MAX_SAMPLED_ROWS = 2_000_000
MAX_CANDIDATE_COLUMNS = 8
MAX_KEY_COLUMNS = 4
_NESTED_TYPES = ("list", "map", "struct")
_NON_KEY_TYPES = (*_NESTED_TYPES, "float", "double", "binary", "boolean")


def find_key(catalog: Any, info: TableInfo) -> tuple[str, ...]:
    """Return the smallest set of leading columns that is unique and never null, or ().

    Looks at up to 2 million rows of the current snapshot and at sets of up to four of the first
    eight columns that can be keys; earlier columns are preferred.
    """
    names = [each.name for each in info.columns if not each.type.startswith(_NON_KEY_TYPES)]
    columns = tuple(names[:MAX_CANDIDATE_COLUMNS])
    if info.snapshot_id is None or not columns:
        return ()
    table = catalog.load_table(info.table)
    sample = table.scan(selected_fields=columns, limit=MAX_SAMPLED_ROWS).to_arrow()
    with start_with_spill_folder() as connection:
        connection.register("rows_to_try", sample)
        for size in range(1, min(MAX_KEY_COLUMNS, len(columns)) + 1):
            for candidate in combinations(columns, size):
                if _is_unique_key(connection, candidate, sample.num_rows):
                    return candidate
    return ()


def _is_unique_key(connection: Any, columns: tuple[str, ...], total: int) -> bool:
    """Return whether the columns are unique and not null; names are never pasted into SQL."""
    import duckdb

    relation = connection.table("rows_to_try")
    for name in columns:
        relation = relation.filter(duckdb.ColumnExpression(name).isnotnull())
    distinct = relation.select(*(duckdb.ColumnExpression(name) for name in columns)).distinct()
    return len(distinct) == total


def read_snapshot_arrow(
    catalog: Catalog, table: str, snapshot_id: int, ranges: tuple[RowRange, ...] = ()
) -> pa.Table:
    """Read the rows of a snapshot that are in any of the ranges; no ranges: all rows.

    Raises NotFound, Unsupported (equality deletes), CatalogDown.
    """
    side = scan.plan_scan(catalog, table, snapshot_id, ranges)
    names = [column.name for column in side.schema.fields]
    return scan.read_rows(side, names, scan.filter_of_ranges(ranges))


def open_snapshot_duckdb(
    catalog: Catalog, table: str, snapshot_id: int, ranges: tuple[RowRange, ...] = ()
) -> duckdb.DuckDBPyRelation:
    """Return a DuckDB relation over a snapshot that can be queried any number of times.

    Each query streams the rows from the files again, so memory does not grow with the table.
    """
    import duckdb

    side = scan.plan_scan(catalog, table, snapshot_id, ranges)
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    return connection.from_arrow(_SnapshotStream(side, scan.filter_of_ranges(ranges)))


def snapshot_stream(catalog: Catalog, table: str, snapshot_id: int | None) -> object:
    """Return the rows of a snapshot as an Arrow stream that can be opened any number of times.

    Without a snapshot it has the table's columns and no rows.
    """
    if snapshot_id is None:
        with scan.translate_scan_errors(table, None):
            return catalog.load_table(table).schema().as_arrow().empty_table()
    return _SnapshotStream(scan.plan_scan(catalog, table, snapshot_id), scan.filter_of_ranges(()))


def rows_by_key(
    catalog: Catalog, table: str, snapshot_id: int | None, keys: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows that have one of the keys, and the types of all columns.

    Values of `keys` may be texts, as in a golden file; all keys name the same columns. Only files
    that may hold a key are read, in batches: memory holds the rows found. Raises ConfigError when
    a key does not fit the table.
    """
    side = scan.plan_scan(catalog, table, snapshot_id)
    types = {field.name: str(field.field_type) for field in side.schema.fields}
    if snapshot_id is None or side.table is None or not keys:
        return [], types
    columns = list(keys[0])
    try:
        requested = {typed_key(key, columns, types) for key in keys}
        values = [_for_filter(columns, key, types) for key in requested]
    except (KeyError, ValueError, ArithmeticError) as error:
        raise ConfigError(
            f"a key of the expected rows does not fit {table}: {text_of(error)}",
            fix=f"name key columns of {', '.join(types)}, with values of their types",
        ) from error
    row_filter = scan.filter_of_keys(values)
    planned = side.table.scan(row_filter=row_filter, snapshot_id=snapshot_id)
    with scan.translate_scan_errors(table, snapshot_id):
        tasks = tuple(planned.plan_files())

    def find(task: FileScanTask) -> list[dict[str, Any]]:
        parts = stream_file_columns(side, task, list(types), row_filter)
        rows = (row for part in parts for row in part.to_pylist())
        return [row for row in rows if typed_key(row, columns, types) in requested]

    return [row for rows in map_files(find, tasks) for row in rows], types


#: Arrow compares no UUIDs, and takes -0.0 and 0.0 for two numbers.
_UNFILTERED_TYPES = ("uuid", "float", "double")


def _for_filter(
    columns: Sequence[str], key: tuple[Any, ...], types: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values by which files and rows are picked: at least those of the key are.

    Raises ValueError or ArithmeticError for a value that no row of the column can have.
    """
    values = zip(columns, key, strict=True)
    return {
        name: _of_column(value, types[name])
        for name, value in values
        if types[name] not in _UNFILTERED_TYPES
    }


def _of_column(value: Any, kind: str) -> Any:
    """Return a value as PyIceberg compares it: decimals of the column's scale, times as stored."""
    if kind.startswith(_NESTED_TYPES):
        raise ValueError(f"{kind} is no type of a key")
    if isinstance(value, datetime) and kind == "timestamp":
        return value.replace(tzinfo=None)
    if not isinstance(value, Decimal) or not kind.startswith("decimal"):
        return value
    if not value.is_finite():
        raise ValueError(f"{value} is no {kind}")
    scale = int(kind.rpartition(",")[2].strip(" )"))
    with localcontext() as exact:
        exact.prec = 76
        return value.quantize(Decimal(1).scaleb(-scale))


class _SnapshotStream:
    """The rows of a scan, opened again for every query.

    A plain record batch reader would be empty the second time. DuckDB requests the rows through the
    Arrow C stream protocol.
    """

    def __init__(self, side: scan.SnapshotScan, rows: BooleanExpression) -> None:
        self._side = side
        self._rows = rows
        self._schema = side.schema.as_arrow()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        names = [column.name for column in self._side.schema.fields]
        batches = (
            batch
            for task in self._side.tasks
            for part in stream_file_columns(self._side, task, names, self._rows)
            for batch in part.cast(self._schema).to_batches()
        )
        reader = pa.RecordBatchReader.from_batches(self._schema, batches)
        return reader.__arrow_c_stream__(requested_schema)
