"""Swaps by rows are fenced like every other writer: a table that was fenced is not written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.commits.row_rewrite import SparkRewrites, translate_conflicts
from lakehouse_backfill.adapters.spark.dataframes import TABLE_MOVED_MARKER, SparkTables
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.tables.commits import InspectedState, PartitionContent, SwapCommit
from lakehouse_backfill.errors import TooBusy

EPOCH, FENCE_UUID = "lakehouse-backfill.epoch", "lakehouse-backfill.fence-uuid"
SCOPE = Scope(
    field=ScopeField(column="d", transform="identity", type="date"), partitions=("2024-01-01",)
)
ORDER = SwapCommit(
    base=InspectedState("shadow.r1", "u1", 7, schema_id=0, spec_id=0, last_column_id=1),
    token="t",
    contents=(PartitionContent(scope=SCOPE, table="shadow.r2", snapshot_id=8),),
)


class _Opened(BaseException):
    """The looks at the table are over, and its rows are asked for."""


class _Spark:
    """A session of which a table shows these properties."""

    def __init__(self, **shown: str) -> None:
        self.shown = [{"key": key, "value": value} for key, value in shown.items()]
        self.catalog = SimpleNamespace(refreshTable=lambda name: None)

    def table(self, name: str) -> Any:
        return SimpleNamespace(limit=lambda rows: None)

    @property
    def read(self) -> Any:
        raise _Opened

    def sql(self, text: str) -> Any:
        return SimpleNamespace(collect=lambda: self.shown)


def _prepare(**shown: str) -> None:
    session: Any = _Spark(**shown)
    SparkRewrites(lambda: SparkTables(session, "lake")).prepare(ORDER)


@pytest.mark.req("X9")
def test_a_table_that_was_fenced_since_it_was_inspected_is_not_written_by_rows() -> None:
    head = {"current-snapshot-id": "7"}
    with pytest.raises(TooBusy, match=r"shadow\.r1 was fenced since it was inspected"):
        _prepare(**head, **{EPOCH: "2", FENCE_UUID: "u2"})
    with pytest.raises(TooBusy, match=r"shadow\.r1 moved since it was inspected"):
        _prepare(**{EPOCH: "1", FENCE_UUID: "u1", "current-snapshot-id": "8"})


@pytest.mark.parametrize(
    "marks",
    [{}, {EPOCH: "1", FENCE_UUID: "u1"}, {FENCE_UUID: "of what it was cloned from"}],
    ids=["never fenced", "fenced for us", "a clone"],
)
def test_a_table_as_it_was_inspected_is(marks: dict[str, str]) -> None:
    with pytest.raises(_Opened):
        _prepare(**{"current-snapshot-id": "7"}, **marks)


@pytest.mark.req("X9")
@pytest.mark.parametrize(
    "said", ["[TABLE_ID_MISMATCH] it was dropped", "UUID does not match: u2", TABLE_MOVED_MARKER]
)
def test_a_fence_during_the_write_makes_it_look_again(said: str) -> None:
    with pytest.raises(TooBusy), translate_conflicts("shadow.r1"):
        raise RuntimeError(said)
