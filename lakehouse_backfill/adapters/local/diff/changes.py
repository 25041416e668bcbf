"""Adding what a matched batch holds to a tally: its changes by partition and column, and samples.

Rows lie in `pairs` by key; in `bags` (made only where keys repeat, or there are none) as multisets.
"""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, …)
from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse_backfill.adapters.local.diff.plain_pairs import CHANGE_KINDS
from lakehouse_backfill.adapters.local.diff.rows import PARTITION_SLOT
from lakehouse_backfill.adapters.local.diff.tally import ChangeKind, Tally
from lakehouse_backfill.adapters.local.diff.value_counts import rows_by_number

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.local.diff.matching import HashJoin
    from lakehouse_backfill.adapters.local.engine import LazyDuckDB

_WHOLE_ROW_KINDS: tuple[tuple[ChangeKind, str], ...] = (("added", "n"), ("removed", "o"))


class ChangeCollector:
    """The rows of a batch that differ."""

    def __init__(self, engine: LazyDuckDB, tally: Tally, matched: HashJoin) -> None:
        self._engine = engine
        self._tally = tally
        self._matched = matched
        self._pairs, self._has_bags = matched.pairs, matched.has_bags
        self._keys = [column for column in tally.columns if column.use == "key"]
        self._compared = [column for column in tally.columns if column.use == "compared"]

    def count(self) -> None:
        """Count rows by partition and kind, and the changed ones by column."""
        partitions, kinds = self._pairs[PARTITION_SLOT].to_numpy(), self._kinds
        for place, kind in enumerate(CHANGE_KINDS):
            for partition, count in rows_by_number([partitions[kinds == place]]).items():
                self._add(partition, kind, count)
        is_changed = kinds == CHANGE_KINDS.index("changed")
        for slot in (column.slot for column in self._compared):
            flags = self._pairs[f"d_{slot}"].to_numpy() & is_changed
            for partition, count in rows_by_number([partitions[flags]]).items():
                self._tally.changed[partition, slot] += count
        if self._has_bags:
            self._count_bags()

    def sample(self) -> None:
        """Keep the first rows of each kind by partition and key, up to the tally's limit."""
        if self._has_bags:
            self._matched.show()
            for kind, side in _WHOLE_ROW_KINDS:
                self._sample_whole(kind, side)
            self._sample_pairs("changed")
        else:
            for kind in CHANGE_KINDS:
                self._sample_pairs(kind)

    @cached_property
    def _kinds(self) -> np.ndarray:
        """Give the place of each pair's kind in KINDS."""
        found = pc.index_in(self._pairs["kind"], pa.array(CHANGE_KINDS, self._pairs["kind"].type))
        return np.asarray(found.to_numpy())

    def _count_bags(self) -> None:
        query = (
            f"SELECT {PARTITION_SLOT}, sum(added), sum(removed) FROM bags GROUP BY {PARTITION_SLOT}"
        )
        for partition, added, removed in self._engine.db.execute(query).fetchall():
            self._add(partition, "added", added)
            self._add(partition, "removed", removed)

    def _add(self, partition: int, kind: ChangeKind, count: int) -> None:
        rows = self._tally.at(partition)
        setattr(rows, kind, getattr(rows, kind) + int(count))

    def _sample_pairs(self, kind: ChangeKind) -> None:
        limit = self._tally.wanted(kind)
        if limit <= 0:
            return
        places = np.flatnonzero(self._kinds == CHANGE_KINDS.index(kind))
        partitions = self._pairs[PARTITION_SLOT].to_numpy()[places]
        if len(places) > limit:
            # Partitions are few: what comes first lies in the first ones.
            places = places[partitions <= np.partition(partitions, limit - 1)[limit - 1]]
        narrow = self._pairs.select([PARTITION_SLOT, *(key.slot for key in self._keys)]).take(
            places
        )
        for row in self._pairs.take(places[_sorted_positions(narrow)[:limit]]).to_pylist():
            self._add_sample(row)

    def _add_sample(self, row: dict[str, Any]) -> None:
        kind: ChangeKind = row["kind"]
        shown = [c for c in self._compared if kind != "changed" or row[f"d_{c.slot}"]]
        old, new = ({c.name: row[f"{side}_{c.slot}"] for c in shown} for side in ("o", "n"))
        self._tally.sample(
            kind,
            self._key(row),
            None if kind == "added" else old,
            None if kind == "removed" else new,
        )

    def _sample_whole(self, kind: ChangeKind, side: str) -> None:
        """Keep rows of one side, those of repeated keys as often as they are there."""
        limit = self._tally.wanted(kind)
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
        for row in self._rows(f"SELECT * FROM ({query}) ORDER BY {order} LIMIT {limit}"):
            values = {column.name: row[column.slot] for column in self._compared}
            old, new = (None, values) if kind == "added" else (values, None)
            for _ in range(min(int(row["times"]), limit)):
                self._tally.sample(kind, self._key(row), old, new)

    def _key(self, row: dict[str, Any]) -> dict[str, Any]:
        return {key.name: row[key.slot] for key in self._keys}

    def _rows(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._engine.db.sql(query).to_arrow_table().to_pylist()
        return rows


def _sorted_positions(rows: pa.Table) -> np.ndarray:
    """Give the places of rows by their columns, nulls first and NaN last."""
    order = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if column.null_count:
            rows = rows.append_column(f"{name}_valid", column.is_valid())
            order.append((f"{name}_valid", "ascending"))
        order.append((name, "ascending"))
    return np.asarray(pc.sort_indices(rows, sort_keys=order))
