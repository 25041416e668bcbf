"""The rows that a comparison found to differ, one after the other."""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, …)
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.local.diff.columns import DiffColumn
from lakehouse_backfill.adapters.local.diff.rows import PARTITION_SLOT
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.domain.plain import to_json_value
from lakehouse_backfill.domain.rollout import DifferingRow

if TYPE_CHECKING:
    import duckdb

_BATCH_ROWS = 20_000


def iterate_differing_rows(
    db: duckdb.DuckDBPyConnection, tally: Tally, *, has_bags: bool
) -> Iterator[DifferingRow]:
    """Yield what the tables `pairs` and `bags` hold: changed, added and removed rows."""
    keys = [column for column in tally.columns if column.use == "key"]
    values = [column for column in tally.columns if column.use == "compared"]
    for row in _iterate_rows(db, "pairs", [PARTITION_SLOT, *(key.slot for key in keys)]):
        key = _values_by_name(row, keys)
        old, new = ({**key, **_values_by_name(row, values, f"{side}_")} for side in ("o", "n"))
        yield DifferingRow(
            partition=tally.labels[row[PARTITION_SLOT]],
            key=key,
            old=None if row["kind"] == "added" else old,
            new=None if row["kind"] == "removed" else new,
        )
    columns = [*keys, *values]
    if not has_bags:
        return
    for row in _iterate_rows(db, "bags", [PARTITION_SLOT, *(column.slot for column in columns)]):
        whole = _values_by_name(row, columns)
        label, key = (
            tally.labels[row[PARTITION_SLOT]],
            _values_by_name(row, keys) if keys else whole,
        )
        for _ in range(int(row["removed"])):
            yield DifferingRow(partition=label, key=key, old=whole, new=None)
        for _ in range(int(row["added"])):
            yield DifferingRow(partition=label, key=key, old=None, new=whole)


def _values_by_name(
    row: dict[str, Any], columns: list[DiffColumn], prefix: str = ""
) -> dict[str, Any]:
    return {column.name: to_json_value(row[f"{prefix}{column.slot}"]) for column in columns}


def _iterate_rows(
    db: duckdb.DuckDBPyConnection, name: str, order: list[str]
) -> Iterator[dict[str, Any]]:
    by = ", ".join(f"{column} NULLS FIRST" for column in order)
    reader = db.sql(f"SELECT * FROM {name} ORDER BY {by}").to_arrow_reader(_BATCH_ROWS)
    for batch in reader:
        yield from batch.to_pylist()
