"""Ranges of a table of PostgreSQL: rows that are in none of them are seen. No database runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.local.measuring.partition_sums import ArrowSums
from lakehouse_backfill.adapters.sources.postgres.reader import PostgresPlace
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain.sources.migration import PostgresTable
from lakehouse_backfill.errors import Blocked, RejectedInput

TABLE = Schema(NestedField(1, "id", LongType()))


class TwoRanges(PostgresPlace):
    """A table with two ranges, of which the first one has a bad value."""

    #: Rows of the table, and of its first range.
    rows_of_table = 5
    rows_of_bad = 3

    def _describe(self) -> tuple[int, str]:
        self._types = {"id": "bigint"}
        return self.rows_of_table, "1:1:"

    def _bounds(self) -> list[str]:
        return ["3", "5"]

    def _rows(self, after: str | None, last: str) -> Iterator[pa.RecordBatch]:
        if after is None:
            raise RejectedInput("bad", state="nothing", fix="mend it")
        yield pa.record_batch({"id": pa.array([4, 5], pa.int64())})

    def _fetch(self, text: str, values: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        assert text.startswith("SELECT count(*)")
        assert values == ("3",)
        return [(self.rows_of_bad,)]


def place() -> TwoRanges:
    declared = PostgresTable(dsn="DSN", table="public.trips", key="id")
    schema = pa.schema([("id", pa.int64())])
    sums = ArrowSums(TABLE, PartitionSpec())
    return TwoRanges(declared, schema, frozenset(), lambda: sums, NullProgress())


@pytest.mark.req("T10")
def test_rows_in_no_range_are_seen_although_a_range_is_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survey = place().survey()
    assert [part.action for part in survey.parts] == ["reject", "rewrite"]
    monkeypatch.setattr(TwoRanges, "rows_of_table", 6)
    with pytest.raises(Blocked, match="has 6 rows, and its ranges of id 5"):
        place().survey()
