"""Single rows, deleted and tombstoned rows, and readers' queries, with DuckDB over Arrow.

Starts no JVM and reads only the columns that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse_backfill.adapters.local.dual_read import compare_query
from lakehouse_backfill.adapters.local.duckdb_engine import start_with_spill_folder
from lakehouse_backfill.adapters.local.reader import read_golden, rows_by_key
from lakehouse_backfill.adapters.local.scan import (
    SnapshotScan,
    filter_of_ranges,
    plan_scan,
    read_rows,
)
from lakehouse_backfill.domain.catch_up import (
    DeletedRows,
    Erasure,
    ExcludedRows,
    TableState,
    TombstonedRows,
    TombstonePin,
)
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField, scope_row_ranges
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.ports.compute import RowReader

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.catalog import Catalog

    from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery

_SAMPLES = 3


@dataclass(frozen=True)
class LocalRowReader(RowReader):
    """Reads the tables of one catalog and the golden files of one project folder."""

    catalog: Catalog
    folder: Path = Path()

    def golden(self, file: str) -> list[dict[str, str | None]]:
        """Read the rows of a golden CSV file of the project; an empty cell is null."""
        return read_golden(self.folder / file)

    def by_key(
        self, table: str, snapshot_id: int | None, keys: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Fetch the rows that have one of `keys` (column -> value)."""
        return rows_by_key(self.catalog, table, snapshot_id, keys)[0]

    def compare_query(
        self, query: ReaderQuery, old: TableState, new: TableState
    ) -> QueryComparison:
        """Run the query on both states and compare the results as multisets of rows."""
        return compare_query(self.catalog, query, old, new)

    def deleted_rows(
        self, old: TableState, new: TableState, scope: Scope, key: tuple[str, ...]
    ) -> DeletedRows:
        """Count the rows of `old` whose key is missing from `new` in the scope, with samples.

        Null is a value like any other here. Without a key, whole rows are compared.
        """
        before, after = self._plan_scope_scan(old, scope), self._plan_scope_scan(new, scope)
        if _has_same_files(before, after):
            return DeletedRows(rows=0, partitions=(), samples=(), is_only_deletion=True)
        columns = _comparable_columns(before)
        compared = key or columns
        rows = scope_row_ranges(scope)
        with start_with_spill_folder() as duck:
            missing = _missing_rows(duck, before, after, compared, rows)
            count = len(missing)
            samples = missing.limit(_SAMPLES).fetchall()
            has_same_columns = _comparable_columns(after) in ((), columns)
            is_only_deletion = has_same_columns and _has_no_added_rows(
                duck, before, after, columns, rows
            )
        return DeletedRows(
            rows=count,
            partitions=scope.partitions if count else (),
            samples=tuple(dict(zip(compared, row, strict=True)) for row in samples),
            is_only_deletion=is_only_deletion,
        )

    def tombstoned_rows(
        self, state: TableState, partitions: tuple[str, ...], left_out: ExcludedRows
    ) -> TombstonedRows:
        """Count the rows of the partitions that tombstones or erasures name."""
        # Read once for all partitions, as tombstone tables may be large.
        exclusions = [self._read_tombstones(pin) for pin in left_out.tombstones]
        exclusions += [
            self._read_erased_keys(erasure, left_out.field) for erasure in left_out.erasures
        ]
        exclusions = [(columns, table) for columns, table in exclusions if table.num_rows]
        total, labels = 0, []
        for label in partitions if exclusions else ():
            scope = Scope(field=left_out.field, partitions=(label,))
            count = self._count_tombstoned_in(state, scope, exclusions)
            total += count
            labels += [label] if count else []
        return TombstonedRows(rows=total, partitions=tuple(labels))

    def _count_tombstoned_in(
        self, state: TableState, scope: Scope, names: list[tuple[tuple[str, ...], pa.Table]]
    ) -> int:
        side = self._plan_scope_scan(state, scope)
        if side.table is None:
            return 0
        needed = tuple(dict.fromkeys(name for columns, _ in names for name in columns))
        candidate = _read_rows(side, needed, scope_row_ranges(scope))
        row_numbers: set[int] = set()
        with start_with_spill_folder() as duck:
            for columns, table in names:
                row_numbers.update(_matching_row_numbers(duck, candidate, columns, table))
        return len(row_numbers)

    def _read_tombstones(self, pin: TombstonePin) -> tuple[tuple[str, ...], pa.Table]:
        side = plan_scan(self.catalog, pin.table, pin.snapshot_id)
        keys = _read_rows(side, tuple(pin.columns.values()), ())
        # A null names no row: two unknown people are not the same person.
        return tuple(pin.columns), keys.drop_null() if keys.num_rows else keys

    def _read_erased_keys(
        self, erasure: Erasure, field: ScopeField
    ) -> tuple[tuple[str, ...], pa.Table]:
        scope = Scope(field=field, partitions=erasure.partitions)
        rows = scope_row_ranges(scope)
        before = plan_scan(self.catalog, erasure.table, erasure.before_snapshot_id, rows)
        after = plan_scan(self.catalog, erasure.table, erasure.after_snapshot_id, rows)
        with start_with_spill_folder() as duck:
            missing = _missing_rows(duck, before, after, erasure.key, rows)
            return erasure.key, missing.to_arrow_table()

    def _plan_scope_scan(self, state: TableState, scope: Scope) -> SnapshotScan:
        return plan_scan(self.catalog, state.table, state.snapshot_id, scope_row_ranges(scope))


def _has_no_added_rows(
    duck: duckdb.DuckDBPyConnection,
    before: SnapshotScan,
    after: SnapshotScan,
    columns: tuple[str, ...],
    rows: tuple[RowRange, ...],
) -> bool:
    """Return whether the new rows are a sub-multiset of the old rows."""
    if after.table is None:
        return True
    _register_rows(duck, "all_old", before, columns, rows)
    _register_rows(duck, "all_new", after, columns, rows)
    added = duck.sql("SELECT * FROM all_new EXCEPT ALL SELECT * FROM all_old LIMIT 1")
    return len(added) == 0


def _missing_rows(
    duck: duckdb.DuckDBPyConnection,
    before: SnapshotScan,
    after: SnapshotScan,
    columns: tuple[str, ...],
    rows: tuple[RowRange, ...],
) -> duckdb.DuckDBPyRelation:
    """Return the distinct values of the columns that are only in `before`."""
    old_rows = _register_rows(duck, "old", before, columns, rows)
    new_rows = _register_rows(duck, "new", after, columns, rows)
    return old_rows.distinct().except_(new_rows.distinct())


def _has_same_files(old: SnapshotScan, new: SnapshotScan) -> bool:
    """Return from metadata whether both states hold the same files and the same delete files."""

    def files(side: SnapshotScan) -> set[tuple[str, frozenset[str]]]:
        return {
            (task.file.file_path, frozenset(delete.file_path for delete in task.delete_files))
            for task in side.tasks
        }

    return files(old) == files(new)


def _comparable_columns(side: SnapshotScan) -> tuple[str, ...]:
    """Return the columns that make up a row, without the lineage columns."""
    names = [field.name for field in side.schema.fields]
    return tuple(name for name in names if name not in LINEAGE_NAMES)


def _read_rows(side: SnapshotScan, columns: Sequence[str], rows: tuple[RowRange, ...]) -> pa.Table:
    if side.table is None:
        return pa.table({name: pa.array([], pa.null()) for name in columns})
    return read_rows(side, columns, filter_of_ranges(rows))


def _register_rows(
    duck: duckdb.DuckDBPyConnection,
    name: str,
    side: SnapshotScan,
    columns: tuple[str, ...],
    rows: tuple[RowRange, ...],
) -> duckdb.DuckDBPyRelation:
    duck.register(name, _with_numbered_columns(_read_rows(side, columns, rows)))
    return duck.table(name)


def _with_numbered_columns(table: pa.Table) -> pa.Table:
    """Rename the columns to c0, c1, …, so that users' names never reach a query."""
    return table.rename_columns([f"c{number}" for number in range(table.num_columns)])


def _matching_row_numbers(
    duck: duckdb.DuckDBPyConnection, candidate: pa.Table, columns: tuple[str, ...], names: pa.Table
) -> list[int]:
    """Return the numbers of the candidate's rows that have the named values."""
    chosen = _with_numbered_columns(candidate.select(list(columns)))
    numbers = pa.array(range(candidate.num_rows), pa.int64())
    duck.register("candidate", chosen.append_column("row_number", numbers))
    duck.register("names", _with_numbered_columns(names))
    same = " AND ".join(
        f"candidate.c{number} IS NOT DISTINCT FROM names.c{number}"
        for number in range(len(columns))
    )
    # The text holds only our own column names.
    query = f"SELECT row_number FROM candidate SEMI JOIN names ON {same}"  # noqa: S608
    return [row[0] for row in duck.sql(query).fetchall()]
