"""The rows that a comparison found to differ, one after the other."""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, …)
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.local.diff.columns import Column
from lakehouse_backfill.adapters.local.diff.rows import PARTITION
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.domain.plain import plain_value
from lakehouse_backfill.domain.rollout import Differing

if TYPE_CHECKING:
    import duckdb

_BATCH_ROWS = 20_000


def differing(
    db: duckdb.DuckDBPyConnection, tally: Tally, *, has_bags: bool
) -> Iterator[Differing]:
    """Yield what the tables `pairs` and `bags` hold: changed, added and removed rows."""
    keys = [column for column in tally.columns if column.use == "key"]
    values = [column for column in tally.columns if column.use == "compared"]
    for row in _rows(db, "pairs", [PARTITION, *(key.slot for key in keys)]):
        key = _named(row, keys)
        old, new = ({**key, **_named(row, values, f"{side}_")} for side in ("o", "n"))
        yield Differing(
            partition=tally.labels[row[PARTITION]],
            key=key,
            old=None if row["kind"] == "added" else old,
            new=None if row["kind"] == "removed" else new,
        )
    columns = [*keys, *values]
    if not has_bags:
        return
    for row in _rows(db, "bags", [PARTITION, *(column.slot for column in columns)]):
        whole = _named(row, columns)
        label, key = tally.labels[row[PARTITION]], _named(row, keys) if keys else whole
        for _ in range(int(row["removed"])):
            yield Differing(partition=label, key=key, old=whole, new=None)
        for _ in range(int(row["added"])):
            yield Differing(partition=label, key=key, old=None, new=whole)


def _named(row: dict[str, Any], columns: list[Column], prefix: str = "") -> dict[str, Any]:
    return {column.name: plain_value(row[f"{prefix}{column.slot}"]) for column in columns}


def _rows(db: duckdb.DuckDBPyConnection, name: str, order: list[str]) -> Iterator[dict[str, Any]]:
    by = ", ".join(f"{column} NULLS FIRST" for column in order)
    reader = db.sql(f"SELECT * FROM {name} ORDER BY {by}").to_arrow_reader(_BATCH_ROWS)
    for batch in reader:
        yield from batch.to_pylist()
