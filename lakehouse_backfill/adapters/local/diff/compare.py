"""Comparing one batch of rows: in arrays where keys and columns allow it, else in DuckDB.

Values are equal as IS NOT DISTINCT FROM says: null equals null, NaN equals NaN, -0.0 equals 0.0.
Keys that a side holds more than once are never joined, which would multiply them: they are compared
as multisets of rows, like everything when there is no key.
"""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, … and of a parsed, rewritten condition)
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from lakehouse_backfill.adapters.local.diff.bins import BinAccumulator
from lakehouse_backfill.adapters.local.diff.changes import ChangeCollector
from lakehouse_backfill.adapters.local.diff.differing import iterate_differing_rows
from lakehouse_backfill.adapters.local.diff.matching import HashJoin, prepare_sides
from lakehouse_backfill.adapters.local.diff.plain_spreads import ArrowProfiler, BinAccumulators
from lakehouse_backfill.adapters.local.diff.rows import PARTITION_SLOT
from lakehouse_backfill.adapters.local.diff.sorting import are_sortable, sorted_pairs
from lakehouse_backfill.adapters.local.diff.spreads import profile_in_duckdb
from lakehouse_backfill.adapters.local.diff.tally import SideName, Tally
from lakehouse_backfill.adapters.local.diff.value_counts import rows_by_partition_number
from lakehouse_backfill.adapters.local.engine import LazyDuckDB, is_duckdb_error
from lakehouse_backfill.adapters.local.memory import keep_freed_memory
from lakehouse_backfill.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    import duckdb

    from lakehouse_backfill.domain.rollout import DifferingRow


_Sides = Mapping[SideName, pa.Table]
_SIDES: tuple[SideName, SideName] = ("old", "new")


class BatchComparison:
    """Compares batches of both sides; a tally has all that differs once it is closed."""

    def __init__(self, engine: LazyDuckDB, tally: Tally, condition: str | None) -> None:
        keep_freed_memory()
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="count")
        self._engine = engine
        self._tally = tally
        self._condition = condition
        self._keys = [column for column in tally.columns if column.use == "key"]
        self._compared = [column for column in tally.columns if column.use == "compared"]
        self._matching = HashJoin(engine, tally)
        self._pending = BinAccumulators(BinAccumulator)
        self._needs_engine = bool(condition or tally.coming) or not are_sortable(tally.columns)

    def close(self) -> None:
        """Hand over what is counted, and let go of the rows: an idle engine holds none."""
        self._beside.shutdown(cancel_futures=True)
        for place, bins in self._pending.items():
            bins.add_to(self._tally.spreads[place].histogram)
        if not self._engine.is_started:
            return
        for name in ("old_rows", "new_rows", "shared_rows", "found", "pairs"):
            self._db.unregister(name)
        tables = ("bags", "duplicates")
        self._db.execute("; ".join(f"DROP TABLE IF EXISTS {name}" for name in tables))

    def check(self, old: pa.Table, new: pa.Table, text: str) -> None:
        """Prove on empty tables that the condition is a boolean; raises ConfigError."""
        for name, rows in (("old_rows", old), ("new_rows", new)):
            self._db.register(name, rows)
            with self._translated(text):
                query = f"DESCRIBE SELECT ({self._condition}) AS met FROM {name}"
                kind = self._db.execute(query).fetchall()[0][1]
            if kind != "BOOLEAN":
                raise ConfigError(
                    f"the condition {text!r} gives {kind}, not true or false",
                    fix="compare the value with something, e.g. flights > 3",
                )

    def count(self, rows: pa.Table) -> None:
        """Count rows that both sides share, where the condition holds, as unchanged."""
        self._db.register("shared_rows", rows)
        with self._translated():
            counts = self._counts("shared_rows" + self._where)
        for partition, count in counts:
            self._tally.add_shared(partition, count)

    def compare(self, old: pa.Table, new: pa.Table) -> None:
        """Compare all rows of some partitions."""
        raw: dict[SideName, pa.Table] = {} if self._condition else {"old": old, "new": new}
        plain = ArrowProfiler(self._tally, raw, self._pending)
        # How values are spread is counted while rows are matched.
        with self._translated():
            counting = [
                self._beside.submit(plain.count_values),
                self._beside.submit(plain.count_numbers),
            ]
            old, new = prepare_sides(old, new)
            pairs = None if self._needs_engine else sorted_pairs(old, new, self._tally.columns)
            if pairs is None:
                found = self._matched(old, new, raw)
            else:
                self._count_rows(raw)
                found = self._matching.take(pairs, old, new)
            counting.append(self._beside.submit(plain.finish, found))
            changes = ChangeCollector(self._engine, self._tally, self._matching)
            changes.count()
            changes.sample()
            for each in counting:
                each.result()

    def _matched(self, old: pa.Table, new: pa.Table, raw: _Sides) -> _Sides | None:
        """Match by a join; gives the rows that may differ, None when they are not known."""
        self._view("old", old)
        self._view("new", new)
        pairs = self._matching.join(old.column_names, self._count_rows(raw))
        found = self._matching.match(pairs, old, new)
        profile_in_duckdb(self._db, self._tally, raw)
        self._add_filled()
        return found

    def differing(self, old: pa.Table, new: pa.Table) -> Iterator[DifferingRow]:
        """Yield the rows of some partitions that differ, by partition and key."""
        with self._translated():
            old, new = prepare_sides(old, new)
            self._view("old", old)
            self._view("new", new)
            pairs = self._matching.join(old.column_names, (old.num_rows, new.num_rows))
            self._matching.match(pairs, old, new)
            self._matching.show()
            yield from iterate_differing_rows(
                self._db, self._tally, has_bags=self._matching.has_bags
            )

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        return self._engine.db

    @property
    def _where(self) -> str:
        return f" WHERE {self._condition}" if self._condition else ""

    def _view(self, side: SideName, rows: pa.Table) -> None:
        self._db.register(f"{side}_rows", rows)
        slots = [f"{c.sql(side)} AS {c.slot}" for c in [*self._keys, *self._compared]]
        others = [name for name in rows.column_names if not name.startswith("c")]
        self._db.execute(
            f"CREATE OR REPLACE TEMP VIEW {side} AS "
            f"SELECT {', '.join([*others, *slots])} FROM {side}_rows{self._where}"
        )

    def _count_rows(self, raw: _Sides) -> tuple[int, int]:
        """Add the rows of both views to the tally; gives how many they are."""
        old, new = (dict(self._rows_of(side, raw)) for side in _SIDES)
        for partition, count in old.items():
            self._tally.at(partition).old_rows += count
        for partition, count in new.items():
            self._tally.at(partition).new_rows += count
        return sum(old.values()), sum(new.values())

    def _counts(self, relation: str) -> list[tuple[int, int]]:
        query = f"SELECT {PARTITION_SLOT}, count(*) FROM {relation} GROUP BY {PARTITION_SLOT}"
        return self._db.execute(query).fetchall()

    def _rows_of(self, side: SideName, raw: _Sides) -> Iterable[tuple[int, int]]:
        return (
            rows_by_partition_number(raw[side][PARTITION_SLOT]).items()
            if raw
            else self._counts(side)
        )

    def _add_filled(self) -> None:
        coming = [column for column in self._tally.columns if column.name in self._tally.coming]
        if not coming:
            return
        counts = ", ".join(f"count({column.slot})" for column in coming)
        found = self._db.execute(f"SELECT {counts} FROM new_rows{self._where}").fetchall()[0]
        names = [column.name for column in coming]
        self._tally.filled.update(dict(zip(names, map(int, found), strict=True)))

    @contextmanager
    def _translated(self, text: str | None = None) -> Iterator[None]:
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
                state="nothing was changed",
                fix="leave the column out with `ignore`, or compare on Spark",
            ) from error
