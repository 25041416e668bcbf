"""Comparison of one batch of rows: in arrays where keys and columns allow it, else in DuckDB.

Values are equal as IS NOT DISTINCT FROM defines it: null equals null, NaN equals NaN, -0.0 equals
0.0. Keys that a side holds more than once are never joined, as a join would multiply their rows.
Their rows are compared as multisets, as are all rows when there is no key.

Differing rows are in `pairs` by key, and in `bags` as multisets. `bags` exists only where keys
repeat or there is no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.adapters.local.diff.columns import (
    CHANGE_KINDS,
    PARTITION_SLOT,
    ROW_NUMBER_SLOT,
    ChangeKind,
    DiffColumn,
    SideName,
)
from lakehouse_backfill.adapters.local.diff.counts import rows_by_number
from lakehouse_backfill.adapters.local.diff.distributions import (
    ArrowProfiler,
    count_values_in_duckdb,
)
from lakehouse_backfill.adapters.local.diff.hash_join import HashJoin, number_rows, prepare_sides
from lakehouse_backfill.adapters.local.diff.sort_merge import are_sortable, sorted_pairs
from lakehouse_backfill.adapters.local.diff.tally import RowOrder, Tally, row_order
from lakehouse_backfill.adapters.local.duckdb_engine import LazyDuckDB, is_duckdb_error
from lakehouse_backfill.domain.comparison.diff import DiffSample
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    import duckdb


# ruff: noqa: S608 (the SQL uses our own slots c0, c1, … and a parsed, rewritten condition)


_Row = dict[str, Any]
_ROWS_PER_READ = 20_000


class DifferingRows:
    """The differing rows of a batch: counts and samples for a tally, or every row in full."""

    def __init__(self, engine: LazyDuckDB, tally: Tally, matched: HashJoin) -> None:
        self._engine = engine
        self._tally = tally
        self._pairs, self._has_bags = matched.pairs, matched.has_bags

    def count(self) -> None:
        """Count rows by partition and kind, and changed rows by column."""
        partitions, kinds = self._pairs[PARTITION_SLOT].to_numpy(), self._kind_indices
        for index, kind in enumerate(CHANGE_KINDS):
            for partition, count in rows_by_number([partitions[kinds == index]]).items():
                self._tally.counts_of(partition).add(**{kind: count})
        is_changed = kinds == CHANGE_KINDS.index("changed")
        for slot in (column.slot for column in self._tally.compared):
            flags = self._pairs[f"d_{slot}"].to_numpy() & is_changed
            for partition, count in rows_by_number([partitions[flags]]).items():
                self._tally.changed_cells[partition, slot] += count
        if self._has_bags:
            query = f"SELECT {PARTITION_SLOT}, sum(added), sum(removed) FROM bags GROUP BY ALL"
            for partition, added, removed in self._engine.db.execute(query).fetchall():
                self._tally.counts_of(partition).add(added=int(added), removed=int(removed))

    def collect_samples(self) -> None:
        """Keep the first rows of each kind by partition and key, up to the tally's limit."""
        for kind in CHANGE_KINDS:
            limit = self._tally.missing_samples(kind)
            if limit > 0:
                samples = [*self._sample_pairs(kind, limit), *self._sample_bags(kind, limit)]
                self._tally.add_samples(kind, samples)

    def __iter__(self) -> Iterator[tuple[RowOrder, DifferingRow]]:
        """Yield the rows of unique keys, then those of repeated keys, each by partition and key."""
        keys, compared = self._tally.keys, self._tally.compared
        for row in self._read_pairs(self._sorted_positions(np.arange(self._pairs.num_rows))):
            key = _values(row, keys)
            old, new = ({**key, **_values(row, compared, side)} for side in ("o_", "n_"))
            yield (
                row_order(row[PARTITION_SLOT], (row[each.slot] for each in keys)),
                DifferingRow(
                    partition=self._tally.labels[row[PARTITION_SLOT]],
                    key=key,
                    old=None if row["kind"] == "added" else old,
                    new=None if row["kind"] == "removed" else new,
                ),
            )
        for order, row in self._read_bags():
            whole = _values(row, [*keys, *compared])
            label, key = self._tally.labels[row[PARTITION_SLOT]], _values(row, keys) or whole
            for _ in range(int(row["removed"])):
                yield order, DifferingRow(partition=label, key=key, old=whole, new=None)
            for _ in range(int(row["added"])):
                yield order, DifferingRow(partition=label, key=key, old=None, new=whole)

    @cached_property
    def _kind_indices(self) -> np.ndarray:
        """Return the index of each pair's kind in CHANGE_KINDS."""
        indices = pc.index_in(self._pairs["kind"], pa.array(CHANGE_KINDS, self._pairs["kind"].type))
        return np.asarray(indices.to_numpy())

    def _sample_pairs(self, kind: ChangeKind, limit: int) -> Iterator[tuple[RowOrder, DiffSample]]:
        positions = np.flatnonzero(self._kind_indices == CHANGE_KINDS.index(kind))
        partitions = self._pairs[PARTITION_SLOT].to_numpy()[positions]
        if len(positions) > limit:
            # Partitions are few, so the first rows are in the first partitions.
            positions = positions[partitions <= np.partition(partitions, limit - 1)[limit - 1]]
        for row in self._read_pairs(self._sorted_positions(positions)[:limit]):
            shown = [c for c in self._tally.compared if kind != "changed" or row[f"d_{c.slot}"]]
            order = row_order(row[PARTITION_SLOT], (row[key.slot] for key in self._tally.keys))
            yield (
                order,
                self._sample(kind, row, _values(row, shown, "o_"), _values(row, shown, "n_")),
            )

    def _sample_bags(self, kind: ChangeKind, limit: int) -> Iterator[tuple[RowOrder, DiffSample]]:
        """Yield rows of one side, each as often as it occurs."""
        if kind == "changed":
            return
        for order, row in self._read_bags(f"WHERE {kind} > 0", f"LIMIT {limit}"):
            values = _values(row, self._tally.compared)
            for _ in range(min(int(row[kind]), limit)):
                yield order, self._sample(kind, row, values, values)

    def _sample(self, kind: ChangeKind, row: _Row, old: _Row, new: _Row) -> DiffSample:
        return DiffSample(
            kind=kind,
            key=_values(row, self._tally.keys),
            old=None if kind == "added" else old,
            new=None if kind == "removed" else new,
        )

    def _sorted_positions(self, positions: np.ndarray) -> np.ndarray:
        """Return positions of pairs by partition and key, nulls first and NaN last."""
        names = [PARTITION_SLOT, *(key.slot for key in self._tally.keys)]
        rows, order = self._pairs.select(names).take(positions), []
        for name in names:
            if rows[name].null_count:
                rows = rows.append_column(f"{name}_valid", rows[name].is_valid())
                order.append((f"{name}_valid", "ascending"))
            order.append((name, "ascending"))
        result: np.ndarray = positions[pc.sort_indices(rows, sort_keys=order).to_numpy()]
        return result

    def _read_pairs(self, positions: np.ndarray) -> Iterator[_Row]:
        # Taking rows from several chunks would put the chunks together each time.
        pairs = self._pairs.combine_chunks()
        for start in range(0, len(positions), _ROWS_PER_READ):
            yield from pairs.take(positions[start : start + _ROWS_PER_READ]).to_pylist()

    def _read_bags(self, where: str = "", limit: str = "") -> Iterator[tuple[RowOrder, _Row]]:
        """Yield the rows of `bags` by all of their values, as rows of one key have an order too."""
        if not self._has_bags:
            return
        columns = [*self._tally.keys, *self._tally.compared]
        order = ", ".join(
            f"{name} NULLS FIRST" for name in [PARTITION_SLOT, *(each.slot for each in columns)]
        )
        found = self._engine.db.sql(f"SELECT * FROM bags {where} ORDER BY {order} {limit}")
        for batch in found.to_arrow_reader(_ROWS_PER_READ):
            for row in batch.to_pylist():
                values = (row[column.slot] for column in columns)
                yield row_order(row[PARTITION_SLOT], values), row


def _values(row: _Row, columns: list[DiffColumn], prefix: str = "") -> _Row:
    return {column.name: to_json_value(row[f"{prefix}{column.slot}"]) for column in columns}


class BatchComparison:
    """Compares batches of both sides, and adds to the tally what it finds."""

    def __init__(self, engine: LazyDuckDB, tally: Tally, condition: str | None) -> None:
        self._background = ThreadPoolExecutor(1, thread_name_prefix="count")
        self._engine = engine
        self._tally = tally
        self._condition = condition
        self._hash_join = HashJoin(engine, tally)
        self._is_sortable = are_sortable(tally.columns)

    def close(self) -> None:
        """Release all rows; an idle engine holds none."""
        self._background.shutdown(cancel_futures=True)
        if not self._engine.is_started:
            return
        for name in ("old_rows", "new_rows", "tested", "found"):
            self._db.unregister(name)
        self._db.execute("DROP TABLE IF EXISTS bags; DROP TABLE IF EXISTS duplicates")

    def check_condition(self, old: pa.Table, new: pa.Table, text: str) -> None:
        """Evaluate the condition on empty tables; raise ConfigError unless it is boolean."""
        for rows in (old, new):
            self._db.register("tested", rows)
            with self._translate_condition_errors(text):
                query = f"DESCRIBE SELECT ({self._condition}) AS met FROM tested"
                kind = self._db.execute(query).fetchall()[0][1]
            if kind != "BOOLEAN":
                raise ConfigError(
                    f"the condition {text!r} gives {kind}, not true or false",
                    fix="compare the value with something, e.g. flights > 3",
                )

    def count_shared_rows(self, rows: pa.Table) -> None:
        """Count shared rows that meet the condition as unchanged."""
        for partition, count in _rows_by_partition(self._filter(rows)).items():
            self._tally.add_shared(partition, count)

    def compare_batch(self, old: pa.Table, new: pa.Table) -> None:
        """Compare all rows of some partitions."""
        old, new = self._filter(old), self._filter(new)
        self._count_rows(old, new)
        profiler = ArrowProfiler(self._tally, {"old": old, "new": new})
        # Distributions are counted in the background while rows are matched.
        with self._translate_errors():
            background_counts = [self._background.submit(profiler.profile_new_side)]
            old, new = prepare_sides(old, new)
            pairs = sorted_pairs(old, new, self._tally.columns) if self._is_sortable else None
            if pairs is None:
                self._create_views(old, new)
                candidates = self._hash_join.match_rows(old, new)
                count_values_in_duckdb(self._db, self._tally)
            else:
                candidates = self._hash_join.take_pairs(pairs, old, new)
            background_counts.append(self._background.submit(profiler.profile_old_side, candidates))
            rows = DifferingRows(self._engine, self._tally, self._hash_join)
            rows.count()
            rows.collect_samples()
            for count in background_counts:
                count.result()

    def iterate_differing(
        self, old: pa.Table, new: pa.Table
    ) -> Iterator[tuple[RowOrder, DifferingRow]]:
        """Yield the differing rows of some partitions, by partition and key."""
        with self._translate_errors():
            old, new = prepare_sides(old, new)
            self._create_views(old, new)
            self._hash_join.match_rows(old, new)
            yield from DifferingRows(self._engine, self._tally, self._hash_join)

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        return self._engine.db

    def _filter(self, rows: pa.Table) -> pa.Table:
        """Return the rows that meet the condition."""
        if self._condition is None:
            return rows
        self._db.register("tested", number_rows(rows))
        with self._translate_condition_errors(self._condition, shows_text=False):
            query = f"SELECT {ROW_NUMBER_SLOT} FROM tested WHERE {self._condition}"
            numbers = self._db.sql(query).to_arrow_table()[ROW_NUMBER_SLOT].to_numpy()
        is_met = np.zeros(rows.num_rows, bool)
        is_met[numbers - 1] = True
        return rows.filter(pa.array(is_met))

    def _count_rows(self, old: pa.Table, new: pa.Table) -> None:
        """Count the rows of both sides, and those that hold a value of an added column."""
        for partition, count in _rows_by_partition(old).items():
            self._tally.counts_of(partition).add(old_rows=count)
        for partition, count in _rows_by_partition(new).items():
            self._tally.counts_of(partition).add(new_rows=count)
        for column in self._tally.columns:
            if column.name in self._tally.added_columns:
                filled = new.num_rows - new[column.slot].null_count
                self._tally.filled_rows[column.name] += filled

    def _create_views(self, old: pa.Table, new: pa.Table) -> None:
        sides: dict[SideName, pa.Table] = {"old": old, "new": new}
        for side, rows in sides.items():
            self._db.register(f"{side}_rows", rows)
            slots = [
                f"{column.comparable_sql(side)} AS {column.slot}"
                for column in [*self._tally.keys, *self._tally.compared]
            ]
            others = [name for name in rows.column_names if not name.startswith("c")]
            self._db.execute(
                f"CREATE OR REPLACE TEMP VIEW {side} AS "
                f"SELECT {', '.join([*others, *slots])} FROM {side}_rows"
            )

    @contextmanager
    def _translate_condition_errors(self, text: str, *, shows_text: bool = True) -> Iterator[None]:
        """Translate DuckDB's errors; on rows, its text may quote a value, and is left out."""
        try:
            yield
        except Exception as error:
            if not is_duckdb_error(error):
                raise
            raise ConfigError(
                f"the condition {text!r} cannot be evaluated: "
                f"{error if shows_text else type(error).__name__}",
                fix="compare columns with values of their own type",
            ) from error

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not (is_duckdb_error(error) or isinstance(error, pa.ArrowInvalid)):
                raise
            raise Unsupported(
                f"this engine cannot compare these columns: {type(error).__name__}",
                fix="leave the column out with `ignore`, or compare on Spark",
            ) from error


def _rows_by_partition(rows: pa.Table) -> dict[int, int]:
    return rows_by_number([chunk.to_numpy() for chunk in rows[PARTITION_SLOT].chunks])
