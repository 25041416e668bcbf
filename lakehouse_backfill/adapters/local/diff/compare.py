"""Comparison of one batch of rows: in arrays where keys and columns allow it, else in DuckDB.

Values are equal as IS NOT DISTINCT FROM defines it: null equals null, NaN equals NaN, -0.0 equals
0.0. Keys that a side holds more than once are never joined, as a join would multiply their rows.
Their rows are compared as multisets, as are all rows when there is no key.

Differing rows are in `pairs` by key, and in `bags` as multisets. `bags` exists only where keys
repeat or there is no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.adapters.local.diff.columns import (
    PARTITION_SLOT,
    ChangeKind,
    DiffColumn,
    SideName,
)
from lakehouse_backfill.adapters.local.diff.counts import (
    BinAccumulator,
    rows_by_number,
    rows_by_partition_number,
)
from lakehouse_backfill.adapters.local.diff.distributions import (
    ArrowProfiler,
    BinAccumulators,
    profile_in_duckdb,
)
from lakehouse_backfill.adapters.local.diff.hash_join import HashJoin, prepare_sides
from lakehouse_backfill.adapters.local.diff.sort_merge import are_sortable, sorted_pairs
from lakehouse_backfill.adapters.local.diff.tally import RowOrder, Tally, row_order
from lakehouse_backfill.adapters.local.diff.values import CHANGE_KINDS
from lakehouse_backfill.adapters.local.duckdb_engine import LazyDuckDB, is_duckdb_error
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    import duckdb


# ruff: noqa: S608 (the SQL uses our own slots c0, c1, … and a parsed, rewritten condition)


_WHOLE_ROW_KINDS: tuple[tuple[ChangeKind, str], ...] = (("added", "n"), ("removed", "o"))


class ChangeCollector:
    """Adds the differing rows of a batch to a tally: change counts and samples."""

    def __init__(self, engine: LazyDuckDB, tally: Tally, matched: HashJoin) -> None:
        self._engine = engine
        self._tally = tally
        self._matched = matched
        self._pairs, self._has_bags = matched.pairs, matched.has_bags
        self._keys = [column for column in tally.columns if column.use == "key"]
        self._compared = [column for column in tally.columns if column.use == "compared"]

    def count_changes(self) -> None:
        """Count rows by partition and kind, and changed rows by column."""
        partitions, kinds = self._pairs[PARTITION_SLOT].to_numpy(), self._kind_indices
        for index, kind in enumerate(CHANGE_KINDS):
            for partition, count in rows_by_number([partitions[kinds == index]]).items():
                self._add_count(partition, kind, count)
        is_changed = kinds == CHANGE_KINDS.index("changed")
        for slot in (column.slot for column in self._compared):
            flags = self._pairs[f"d_{slot}"].to_numpy() & is_changed
            for partition, count in rows_by_number([partitions[flags]]).items():
                self._tally.changed_cells[partition, slot] += count
        if self._has_bags:
            self._count_bags()

    def collect_samples(self) -> None:
        """Keep the first rows of each kind by partition and key, up to the tally's limit."""
        if self._has_bags:
            self._matched.register_pairs()
            for kind, side in _WHOLE_ROW_KINDS:
                self._sample_whole_rows(kind, side)
            self._sample_pairs("changed")
        else:
            for kind in CHANGE_KINDS:
                self._sample_pairs(kind)

    @cached_property
    def _kind_indices(self) -> np.ndarray:
        """Return the index of each pair's kind in CHANGE_KINDS."""
        indices = pc.index_in(self._pairs["kind"], pa.array(CHANGE_KINDS, self._pairs["kind"].type))
        return np.asarray(indices.to_numpy())

    def _count_bags(self) -> None:
        query = (
            f"SELECT {PARTITION_SLOT}, sum(added), sum(removed) FROM bags GROUP BY {PARTITION_SLOT}"
        )
        for partition, added, removed in self._engine.db.execute(query).fetchall():
            self._add_count(partition, "added", added)
            self._add_count(partition, "removed", removed)

    def _add_count(self, partition: int, kind: ChangeKind, count: int) -> None:
        rows = self._tally.counts_of(partition)
        setattr(rows, kind, getattr(rows, kind) + int(count))

    def _sample_pairs(self, kind: ChangeKind) -> None:
        limit = self._tally.missing_samples(kind)
        if limit <= 0:
            return
        positions = np.flatnonzero(self._kind_indices == CHANGE_KINDS.index(kind))
        partitions = self._pairs[PARTITION_SLOT].to_numpy()[positions]
        if len(positions) > limit:
            # Partitions are few, so the first rows are in the first partitions.
            positions = positions[partitions <= np.partition(partitions, limit - 1)[limit - 1]]
        key_columns = self._pairs.select([PARTITION_SLOT, *(key.slot for key in self._keys)]).take(
            positions
        )
        for row in self._pairs.take(positions[_sorted_positions(key_columns)[:limit]]).to_pylist():
            self._add_sample(row)

    def _add_sample(self, row: dict[str, Any]) -> None:
        kind: ChangeKind = row["kind"]
        shown = [c for c in self._compared if kind != "changed" or row[f"d_{c.slot}"]]
        old, new = ({c.name: row[f"{side}_{c.slot}"] for c in shown} for side in ("o", "n"))
        key = self._key(row)
        self._tally.add_sample(
            kind,
            row_order(row[PARTITION_SLOT], key.values()),
            key,
            None if kind == "added" else old,
            None if kind == "removed" else new,
        )

    def _sample_whole_rows(self, kind: ChangeKind, side: str) -> None:
        """Keep rows of one side; rows of repeated keys as often as they occur."""
        limit = self._tally.missing_samples(kind)
        if limit <= 0:
            return
        keys = [key.slot for key in self._keys]
        slots = [column.slot for column in self._compared]
        paired = ", ".join([PARTITION_SLOT, *keys, *(f"{side}_{slot} AS {slot}" for slot in slots)])
        bagged = ", ".join([PARTITION_SLOT, *keys, *slots])
        # All columns, so that rows of a duplicate key have one order too.
        order = ", ".join(f"{c} NULLS FIRST" for c in [PARTITION_SLOT, *keys, *slots])
        query = (
            f"SELECT {paired}, 1 AS times FROM pairs WHERE kind = '{kind}' UNION ALL "
            f"SELECT {bagged}, {kind} FROM bags WHERE {kind} > 0"
        )
        for row in self._fetch_rows(f"SELECT * FROM ({query}) ORDER BY {order} LIMIT {limit}"):
            values = {column.name: row[column.slot] for column in self._compared}
            old, new = (None, values) if kind == "added" else (values, None)
            key = self._key(row)
            place = row_order(row[PARTITION_SLOT], (*key.values(), *values.values()))
            for _ in range(min(int(row["times"]), limit)):
                self._tally.add_sample(kind, place, key, old, new)

    def _key(self, row: dict[str, Any]) -> dict[str, Any]:
        return {key.name: row[key.slot] for key in self._keys}

    def _fetch_rows(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._engine.db.sql(query).to_arrow_table().to_pylist()
        return rows


def _sorted_positions(rows: pa.Table) -> np.ndarray:
    """Return the positions of the rows in column order, nulls first and NaN last."""
    order = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if column.null_count:
            rows = rows.append_column(f"{name}_valid", column.is_valid())
            order.append((f"{name}_valid", "ascending"))
        order.append((name, "ascending"))
    return np.asarray(pc.sort_indices(rows, sort_keys=order))


_BATCH_ROWS = 20_000


def iterate_differing_rows(
    db: duckdb.DuckDBPyConnection, tally: Tally, *, has_bags: bool
) -> Iterator[tuple[RowOrder, DifferingRow]]:
    """Yield the changed, added and removed rows of the tables `pairs` and `bags`."""
    keys = [column for column in tally.columns if column.use == "key"]
    values = [column for column in tally.columns if column.use == "compared"]
    for row in _iterate_rows(db, "pairs", [PARTITION_SLOT, *(key.slot for key in keys)]):
        key = _values_by_name(row, keys)
        old, new = ({**key, **_values_by_name(row, values, f"{side}_")} for side in ("o", "n"))
        yield (
            row_order(row[PARTITION_SLOT], (row[each.slot] for each in keys)),
            DifferingRow(
                partition=tally.labels[row[PARTITION_SLOT]],
                key=key,
                old=None if row["kind"] == "added" else old,
                new=None if row["kind"] == "removed" else new,
            ),
        )
    columns = [*keys, *values]
    if not has_bags:
        return
    for row in _iterate_rows(db, "bags", [PARTITION_SLOT, *(column.slot for column in columns)]):
        order = row_order(row[PARTITION_SLOT], (row[column.slot] for column in columns))
        whole, label = _values_by_name(row, columns), tally.labels[row[PARTITION_SLOT]]
        key = _values_by_name(row, keys) if keys else whole
        for _ in range(int(row["removed"])):
            yield order, DifferingRow(partition=label, key=key, old=whole, new=None)
        for _ in range(int(row["added"])):
            yield order, DifferingRow(partition=label, key=key, old=None, new=whole)


def _values_by_name(
    row: dict[str, Any], columns: list[DiffColumn], prefix: str = ""
) -> dict[str, Any]:
    return {column.name: to_json_value(row[f"{prefix}{column.slot}"]) for column in columns}


def _iterate_rows(
    db: duckdb.DuckDBPyConnection, name: str, order: list[str]
) -> Iterator[dict[str, Any]]:
    order_by = ", ".join(f"{column} NULLS FIRST" for column in order)
    reader = db.sql(f"SELECT * FROM {name} ORDER BY {order_by}").to_arrow_reader(_BATCH_ROWS)
    for batch in reader:
        yield from batch.to_pylist()


_Sides = Mapping[SideName, pa.Table]
_SIDES: tuple[SideName, SideName] = ("old", "new")


class BatchComparison:
    """Compares batches of both sides; the tally is complete after `close`."""

    def __init__(self, engine: LazyDuckDB, tally: Tally, condition: str | None) -> None:
        self._background = ThreadPoolExecutor(1, thread_name_prefix="count")
        self._engine = engine
        self._tally = tally
        self._condition = condition
        self._keys = [column for column in tally.columns if column.use == "key"]
        self._compared = [column for column in tally.columns if column.use == "compared"]
        self._hash_join = HashJoin(engine, tally)
        self._pending = BinAccumulators(BinAccumulator)
        self._needs_duckdb = bool(condition or tally.added_columns) or not are_sortable(
            tally.columns
        )

    def close(self) -> None:
        """Flush pending counts to the tally and release all rows; an idle engine holds none."""
        self._background.shutdown(cancel_futures=True)
        for slot_and_side, bins in self._pending.items():
            bins.flush_to(self._tally.profiles[slot_and_side].histogram)
        if not self._engine.is_started:
            return
        for name in ("old_rows", "new_rows", "shared_rows", "found", "pairs"):
            self._db.unregister(name)
        tables = ("bags", "duplicates")
        self._db.execute("; ".join(f"DROP TABLE IF EXISTS {name}" for name in tables))

    def check_condition(self, old: pa.Table, new: pa.Table, text: str) -> None:
        """Evaluate the condition on empty tables; raise ConfigError unless it is boolean."""
        for name, rows in (("old_rows", old), ("new_rows", new)):
            self._db.register(name, rows)
            with self._translate_errors(text):
                query = f"DESCRIBE SELECT ({self._condition}) AS met FROM {name}"
                kind = self._db.execute(query).fetchall()[0][1]
            if kind != "BOOLEAN":
                raise ConfigError(
                    f"the condition {text!r} gives {kind}, not true or false",
                    fix="compare the value with something, e.g. flights > 3",
                )

    def count_shared_rows(self, rows: pa.Table) -> None:
        """Count shared rows that meet the condition as unchanged."""
        self._db.register("shared_rows", rows)
        with self._translate_errors():
            counts = self._count_by_partition("shared_rows" + self._where)
        for partition, count in counts:
            self._tally.add_shared(partition, count)

    def compare_batch(self, old: pa.Table, new: pa.Table) -> None:
        """Compare all rows of some partitions."""
        raw: dict[SideName, pa.Table] = {} if self._condition else {"old": old, "new": new}
        profiler = ArrowProfiler(self._tally, raw, self._pending)
        # Distributions are counted in the background while rows are matched.
        with self._translate_errors():
            background_counts = [
                self._background.submit(profiler.count_values),
                self._background.submit(profiler.count_numbers),
            ]
            old, new = prepare_sides(old, new)
            pairs = None if self._needs_duckdb else sorted_pairs(old, new, self._tally.columns)
            if pairs is None:
                candidates = self._match_by_join(old, new, raw)
            else:
                self._count_rows(raw)
                candidates = self._hash_join.take_pairs(pairs, old, new)
            background_counts.append(self._background.submit(profiler.profile_old_side, candidates))
            changes = ChangeCollector(self._engine, self._tally, self._hash_join)
            changes.count_changes()
            changes.collect_samples()
            for count in background_counts:
                count.result()

    def _match_by_join(self, old: pa.Table, new: pa.Table, raw: _Sides) -> _Sides | None:
        """Match by a join; return the rows that may differ, None when they are not known."""
        self._create_view("old", old)
        self._create_view("new", new)
        pairs = self._hash_join.join_unique_keys(old.column_names, self._count_rows(raw))
        candidates = self._hash_join.match_rows(pairs, old, new)
        profile_in_duckdb(self._db, self._tally, raw)
        self._count_filled_columns()
        return candidates

    def iterate_differing(
        self, old: pa.Table, new: pa.Table
    ) -> Iterator[tuple[RowOrder, DifferingRow]]:
        """Yield the differing rows of some partitions, by partition and key."""
        with self._translate_errors():
            old, new = prepare_sides(old, new)
            self._create_view("old", old)
            self._create_view("new", new)
            pairs = self._hash_join.join_unique_keys(old.column_names, (old.num_rows, new.num_rows))
            self._hash_join.match_rows(pairs, old, new)
            self._hash_join.register_pairs()
            yield from iterate_differing_rows(
                self._db, self._tally, has_bags=self._hash_join.has_bags
            )

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        return self._engine.db

    @property
    def _where(self) -> str:
        return f" WHERE {self._condition}" if self._condition else ""

    def _create_view(self, side: SideName, rows: pa.Table) -> None:
        self._db.register(f"{side}_rows", rows)
        slots = [f"{c.comparable_sql(side)} AS {c.slot}" for c in [*self._keys, *self._compared]]
        others = [name for name in rows.column_names if not name.startswith("c")]
        self._db.execute(
            f"CREATE OR REPLACE TEMP VIEW {side} AS "
            f"SELECT {', '.join([*others, *slots])} FROM {side}_rows{self._where}"
        )

    def _count_rows(self, raw: _Sides) -> tuple[int, int]:
        """Add the row counts of both views to the tally and return them."""
        old, new = (dict(self._partition_counts(side, raw)) for side in _SIDES)
        for partition, count in old.items():
            self._tally.counts_of(partition).old_rows += count
        for partition, count in new.items():
            self._tally.counts_of(partition).new_rows += count
        return sum(old.values()), sum(new.values())

    def _count_by_partition(self, relation: str) -> list[tuple[int, int]]:
        query = f"SELECT {PARTITION_SLOT}, count(*) FROM {relation} GROUP BY {PARTITION_SLOT}"
        return self._db.execute(query).fetchall()

    def _partition_counts(self, side: SideName, raw: _Sides) -> Iterable[tuple[int, int]]:
        return (
            rows_by_partition_number(raw[side][PARTITION_SLOT]).items()
            if raw
            else self._count_by_partition(side)
        )

    def _count_filled_columns(self) -> None:
        added = [
            column for column in self._tally.columns if column.name in self._tally.added_columns
        ]
        if not added:
            return
        counts = ", ".join(f"count({column.slot})" for column in added)
        filled = self._db.execute(f"SELECT {counts} FROM new_rows{self._where}").fetchall()[0]
        names = [column.name for column in added]
        self._tally.filled_rows.update(dict(zip(names, map(int, filled), strict=True)))

    @contextmanager
    def _translate_errors(self, text: str | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not (is_duckdb_error(error) or isinstance(error, pa.ArrowInvalid)):
                raise
            if self._condition is not None and is_duckdb_error(error):
                raise ConfigError(
                    f"the condition {text or self._condition!r} cannot be evaluated: {error}",
                    fix="compare columns with values of their own type",
                ) from error
            raise Unsupported(
                f"this engine cannot compare these columns: {error}",
                fix="leave the column out with `ignore`, or compare on Spark",
            ) from error
