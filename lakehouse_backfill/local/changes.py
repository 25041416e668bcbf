"""Adding what a matched batch holds to a tally: its changes by partition and column, and samples.

Rows lie in `pairs` by key; in `bags` (made only where keys repeat, or there are none) as multisets.
"""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, …)
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse_backfill.local.rows import PARTITION
from lakehouse_backfill.local.tally import Kind, Tally

if TYPE_CHECKING:
    import duckdb

_WHOLE: tuple[tuple[Kind, str], ...] = (("added", "n"), ("removed", "o"))


class Changes:
    """The rows of a batch that differ."""

    def __init__(self, db: duckdb.DuckDBPyConnection, tally: Tally, *, has_bags: bool) -> None:
        self._db = db
        self._tally = tally
        self._has_bags = has_bags
        self._keys = [column for column in tally.columns if column.use == "key"]
        self._compared = [column for column in tally.columns if column.use == "compared"]

    def count(self) -> None:
        """Count rows by partition and kind, and the changed ones by column."""
        slots = [column.slot for column in self._compared]
        changed = [f"count(*) FILTER (d_{slot})" for slot in slots]
        query = f"SELECT {', '.join([PARTITION, 'kind', 'count(*)', *changed])} FROM pairs"
        for partition, kind, count, *counts in self._db.execute(
            f"{query} GROUP BY {PARTITION}, kind"
        ).fetchall():
            self._add(partition, kind, count)
            if kind == "changed":
                cells = ((partition, slot) for slot in slots)
                self._tally.changed.update(dict(zip(cells, counts, strict=True)))
        if self._has_bags:
            self._count_bags()

    def sample(self) -> None:
        """Keep the first rows of each kind by partition and key, up to the tally's limit."""
        if self._has_bags:
            for kind, side in _WHOLE:
                self._sample_whole(kind, side)
            self._sample_pairs(("changed",))
        else:
            self._sample_pairs(("added", "removed", "changed"))

    def _count_bags(self) -> None:
        query = f"SELECT {PARTITION}, sum(added), sum(removed) FROM bags GROUP BY {PARTITION}"
        for partition, added, removed in self._db.execute(query).fetchall():
            self._add(partition, "added", added)
            self._add(partition, "removed", removed)

    def _add(self, partition: int, kind: Kind, count: int) -> None:
        rows = self._tally.at(partition)
        setattr(rows, kind, getattr(rows, kind) + int(count))

    def _sample_pairs(self, kinds: tuple[Kind, ...]) -> None:
        limit = max(self._tally.wanted(kind) for kind in kinds)
        if limit <= 0:
            return
        order = ", ".join(f"{c} NULLS FIRST" for c in [PARTITION, *(k.slot for k in self._keys)])
        # Only the few rows that are kept are looked at whole.
        firsts = f"row_number() OVER (PARTITION BY kind ORDER BY {order}) <= {limit}"
        for row in self._rows(
            f"SELECT * FROM pairs WHERE rowid IN (SELECT rowid FROM pairs QUALIFY {firsts}) "
            f"ORDER BY {order}"
        ):
            if row["kind"] in kinds:
                self._add_sample(row)

    def _add_sample(self, row: dict[str, Any]) -> None:
        kind: Kind = row["kind"]
        shown = [c for c in self._compared if kind != "changed" or row[f"d_{c.slot}"]]
        old, new = ({c.name: row[f"{side}_{c.slot}"] for c in shown} for side in ("o", "n"))
        self._tally.sample(
            kind,
            self._key(row),
            None if kind == "added" else old,
            None if kind == "removed" else new,
        )

    def _sample_whole(self, kind: Kind, side: str) -> None:
        """Keep rows of one side, those of repeated keys as often as they are there."""
        limit = self._tally.wanted(kind)
        if limit <= 0:
            return
        keys = [key.slot for key in self._keys]
        slots = [column.slot for column in self._compared]
        paired = ", ".join([PARTITION, *keys, *(f"{side}_{slot} AS {slot}" for slot in slots)])
        bagged = ", ".join([PARTITION, *keys, *slots])
        # All columns, so that rows of a duplicate key have one order too.
        order = ", ".join(f"{c} NULLS FIRST" for c in [PARTITION, *keys, *slots])
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
        rows: list[dict[str, Any]] = self._db.sql(query).to_arrow_table().to_pylist()
        return rows
