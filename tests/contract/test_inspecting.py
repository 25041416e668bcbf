"""Few rows are counted in this process, as Spark would count them; many are left to Spark."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse_backfill.adapters.local import inspecting
from lakehouse_backfill.adapters.local.inspecting import (
    InspectingBySize,
    LocalInspector,
    SparkCounts,
)
from lakehouse_backfill.domain.checks import Matches, NotNull, OneOf, Unique, Within
from lakehouse_backfill.domain.manifest import InputRange
from lakehouse_backfill.domain.partitions import WHOLE_TABLE_FIELD, Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.run import ChunkFacts
from lakehouse_backfill.domain.tables.table import Column
from lakehouse_backfill.errors import Unsupported
from tests.support.examples.plans import a_plan
from tests.support.lakes.tables import TARGET, Kit, field_of, row

FIRST, SECOND, THIRD = "2024-01-30", "2024-01-31", "2024-02-01"


def plan(field: ScopeField, labels: tuple[str, ...], key: tuple[str, ...] = (), **pin: Any) -> Plan:
    """A plan whose shadow, and whose source, is the kit's table."""
    made = a_plan()
    resolved = made.resolved
    contract = resolved.contract.model_copy(update={"key": key})
    source = resolved.sources[0].model_copy(update={"name": "src", "table": TARGET, **pin})
    changes = {
        "scope": Scope(field=field, partitions=labels), "contract": contract, "sources": (source,)
    }  # fmt: skip
    return made.model_copy(
        update={"shadow_table": TARGET, "resolved": resolved.model_copy(update=changes)}
    )


def looked_at(kit: Kit, of: Plan, at: int | None = None) -> ChunkFacts:
    chunk = Chunk(chunk_id="c1", partitions=of.resolved.scope.partitions)
    return LocalInspector(kit.catalog).chunk(of, chunk, at or kit.head())


@pytest.mark.req("Q9")
def test_rows_nulls_and_keys_that_stand_twice_are_counted_in_the_chunk_alone(kit: Kit) -> None:
    kit.create(("d", "identity"))
    kit.append(row(1, FIRST), row(2, FIRST), row(2, FIRST), row(1, SECOND, region=None))
    kit.append(row(1, THIRD), row(7, None))
    days = (FIRST, SECOND)
    assert looked_at(kit, plan(field_of("d"), days, ("id",))) == ChunkFacts(
        rows={FIRST: 3, SECOND: 1}, null_keys={}, duplicate_keys=2
    )
    assert looked_at(kit, plan(field_of("d"), days, ("d", "id", "region"))) == ChunkFacts(
        rows={FIRST: 3, SECOND: 1}, null_keys={"region": 1}, duplicate_keys=1
    )
    assert looked_at(kit, plan(field_of("d"), days)).duplicate_keys == 0
    assert looked_at(kit, plan(field_of("d"), ("null",))).rows == {"null": 1}


@pytest.mark.req("Q9")
def test_a_chunk_is_looked_at_as_it_was_committed(kit: Kit) -> None:
    kit.create(("ts", "hour"))
    kit.append(row(1, FIRST, hour=7), row(2, FIRST, hour=8))
    head = kit.head()
    kit.append(row(3, FIRST, hour=8))
    of = plan(field_of("ts", "hour"), (f"{FIRST}T08",), ("id",))
    assert looked_at(kit, of, head).rows == {f"{FIRST}T08": 1}
    assert looked_at(kit, of).rows == {f"{FIRST}T08": 2}


@pytest.mark.req("P3", "Q9")
def test_of_a_chunk_by_key_only_the_files_of_its_own_commit_are_read(kit: Kit) -> None:
    """Those of other chunks are not even opened, so that n chunks do not cost n times n reads."""
    kit.create()
    commits = []
    for rows in ((row(1, FIRST), row(3, FIRST)), (row(2, FIRST), row(2, FIRST)), ()):
        kit.append(*rows)
        commits.append(kit.head())
    of = plan(WHOLE_TABLE_FIELD, ("all",), ("id",))
    keys = Scope(
        field=ScopeField(column="id", transform="bucket[3]", type="long"), partitions=("1",)
    )
    chunk = Chunk(chunk_id="c0002-bucket-1-of-3", partitions=("all",), keys=keys)
    first = kit.catalog.load_table(TARGET).scan(snapshot_id=commits[0]).plan_files()
    for task in first:
        Path(task.file.file_path.removeprefix("file://")).unlink()
    near = LocalInspector(kit.catalog)
    found = [near.chunk(of, chunk, at) for at in commits[1:]]
    assert [(facts.rows, facts.duplicate_keys) for facts in found] == [({"all": 2}, 1), ({}, 0)]


@pytest.mark.req("Q9")
def test_files_of_a_coarser_spec_are_counted_by_their_rows(kit: Kit) -> None:
    kit.create(("d", "month"))
    kit.append(row(1, FIRST), row(2, SECOND), row(2, SECOND), row(3, THIRD))
    assert looked_at(kit, plan(field_of("d", "day"), (SECOND,), ("id",))) == ChunkFacts(
        rows={SECOND: 2}, null_keys={}, duplicate_keys=1
    )


@pytest.mark.req("Q0")
def test_the_periods_of_an_input_are_those_with_a_row_where_the_run_reads_it(kit: Kit) -> None:
    kit.create(("d", "month"))
    kit.append(row(1, FIRST), row(2, THIRD), row(3, "2024-02-03"))
    declared = InputRange.model_validate(
        {"column": "d", "from": date(2024, 1, 1), "to": date(2024, 3, 1)}
    )
    of = plan(
        field_of("d", "day"), (SECOND, THIRD), range=declared, warm_up_days=1, cool_down_days=0,
        snapshot_id=kit.head(), columns=(Column(field_id=2, name="d", type="date"),),
    )  # fmt: skip
    near = LocalInspector(kit.catalog)
    assert near.periods(of, "src", "day") == (FIRST, THIRD)
    assert near.periods(of, "src", "month") == ("2024-01", "2024-02")
    with pytest.raises(Unsupported, match="no hours"):
        near.periods(of, "src", "hour")


@pytest.mark.req("Q9")
def test_rows_that_break_rules_are_counted_in_the_chunk_alone_by_the_same_read(kit: Kit) -> None:
    kit.create(("d", "identity"))
    kit.append(row(1, FIRST, region="EU"), row(2, FIRST, region=None), row(2, FIRST, region="US"))
    kit.append(row(99, THIRD, region="XX"))
    rules = (NotNull("region"), OneOf("region", ("EU",)), Within("id", 2, None), Unique("id"))
    of = plan(field_of("d"), (FIRST,), ("id",))
    chunk = Chunk(chunk_id="c1", partitions=(FIRST,))
    found = LocalInspector(kit.catalog).chunk(of, chunk, kit.head(), rules)
    assert found == ChunkFacts(rows={FIRST: 3}, null_keys={}, duplicate_keys=1, broken=(1, 1, 1, 2))


@pytest.mark.req("Q9")
def test_a_rule_that_arrow_may_count_otherwise_is_left_to_spark_alone(kit: Kit) -> None:
    kit.create(("d", "identity"))
    kit.append(row(1, FIRST, region="EU"), row(2, FIRST, region="US\n"))
    rules = (Matches("region", "^[A-Z]+$"), NotNull("region"))
    of, chunk = plan(field_of("d"), (FIRST,)), Chunk(chunk_id="c1", partitions=(FIRST,))
    near = LocalInspector(kit.catalog)
    with pytest.raises(Unsupported, match="counted by Spark"):
        near.chunk(of, chunk, kit.head(), rules)
    found = InspectingBySize(near, _as_port(_Spark())).chunk(of, chunk, kit.head(), rules)
    assert (found.rows, found.broken) == ({FIRST: 2}, (70, 0))


class _Spark:
    """Answers so that one can tell who did."""

    def broken(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: Any
    ) -> tuple[int, ...]:
        return (70,) * len(rules)

    def periods(self, plan: Plan, name: str, unit: str) -> tuple[str, ...]:
        return ("spark",)

    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: Any = ()
    ) -> ChunkFacts:
        return ChunkFacts(rows={"spark": 1}, null_keys={}, duplicate_keys=0)


@pytest.mark.req("Q9", "Q0")
def test_many_rows_and_what_arrow_counts_otherwise_are_left_to_spark(kit: Kit) -> None:
    kit.create(("d", "identity"))
    kit.append(row(1, FIRST), row(2, FIRST))
    of = plan(field_of("d"), (FIRST,), ("id",), range=None, snapshot_id=kit.head())
    chunk, spark = of.resolved.chunks[0].model_copy(update={"partitions": (FIRST,)}), _Spark()
    found = {
        most: InspectingBySize(LocalInspector(kit.catalog, max_values=most), _as_port(spark)).chunk(
            of, chunk, kit.head()
        )
        # Two rows of two columns.
        for most in (3, 4)
    }
    assert [one.rows for one in found.values()] == [{"spark": 1}, {FIRST: 2}]
    short = InspectingBySize(LocalInspector(kit.catalog, max_bytes=9), _as_port(spark))
    assert short.chunk(of, chunk, kit.head()).rows == {"spark": 1}
    near = InspectingBySize(LocalInspector(kit.catalog), _as_port(spark))
    assert near.periods(of, "src", "day") == ("spark",)


def _as_port(spark: Any) -> SparkCounts:
    port: SparkCounts = spark
    return port


def test_pins_of_older_plans_do_not_say_the_types_of_columns(kit: Kit) -> None:
    kit.create(("d", "identity"))
    kit.append(row(1, FIRST))
    declared = InputRange.model_validate(
        {"column": "d", "from": date(2024, 1, 1), "to": date(2024, 3, 1)}
    )
    of = plan(field_of("d"), (FIRST,), range=declared, columns=(), snapshot_id=kit.head())
    assert isinstance(of.resolved.sources[0], SourcePin)
    with pytest.raises(Unsupported, match="as far as the plan tells"):
        LocalInspector(kit.catalog).periods(of, "src", "day")


@pytest.mark.req("Q9")
def test_keys_that_share_a_hash_are_no_duplicates(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def same_for_all(rows: pa.Table) -> Any:
        return np.zeros(rows.num_rows, np.uint64)

    monkeypatch.setattr(inspecting, "table_hashes", same_for_all)
    kit.create(("d", "identity"))
    kit.append(row(1, FIRST), row(2, FIRST))
    kit.append(row(3, FIRST), row(3, FIRST))
    of = plan(field_of("d"), (FIRST,), ("id",))
    assert looked_at(kit, of) == ChunkFacts(rows={FIRST: 4}, null_keys={}, duplicate_keys=1)


@pytest.mark.req("Q9")
def test_many_rows_of_repeated_keys_are_left_to_spark(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "_MAX_REPEATED_ROWS", 3)
    kit.create(("d", "identity"))
    kit.append(*(row(1, FIRST) for _ in range(4)))
    with pytest.raises(Unsupported, match="repeated keys"):
        looked_at(kit, plan(field_of("d"), (FIRST,), ("id",)))
