"""Gates of the whole result that close: the run is rejected, and the gate is named."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import CheckResult, MeasurePoint, MeasureTotal
from lakehouse_backfill.domain.comparison.diff import ColumnDiff, Diff, Distribution
from lakehouse_backfill.domain.guards.privacy import MaskedColumn
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS, ChunkFacts, Rejects, RunState
from lakehouse_backfill.domain.tables.table import Column, TableInfo
from lakehouse_backfill.errors import ChecksFailed, IllegalMove
from tests.support.examples.plans import a_plan
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, contract, declared, lake
from tests.support.fakes.control import FakeRuns
from tests.support.fakes.lake import FakeLake
from tests.support.lakes.control import a_chunk

pytestmark = pytest.mark.req("Q1", "Q8")
DAY = "2020-01-02"


class _MiscountingDiff(FakeCompute):
    def diff(self, request: Any) -> Diff:
        found = super().diff(request)
        summary = found.summary.model_copy(update={"new_rows": found.summary.new_rows + 1})
        return found.model_copy(update={"summary": summary})


class _NoLineage(FakeCompute):
    def totals(self, measures: Any) -> tuple[MeasureTotal, ...]:
        return tuple(MeasureTotal(name=item.name, old=10, new=None) for item in measures)


class _LineageLake(FakeLake):
    """Its tables have the lineage columns."""

    def describe(self, table: str) -> TableInfo | None:
        found = super().describe(table)
        lineage = tuple(
            Column(field_id=number, name=name, type=kind)
            for number, (name, kind) in enumerate(LINEAGE_COLUMNS, start=100)
        )
        return found and found.model_copy(update={"columns": found.columns + lineage})


def _lose_a_chunk(found: Context, where: FakeLake, plan: Plan) -> None:
    del where, plan
    assert isinstance(found.runs, FakeRuns)
    found.runs.chunk_rows.pop()


def _fragment(found: Context, where: FakeLake, plan: Plan) -> None:
    del found
    where.write(plan.shadow_table, DAY, *(f"tiny-{number}" for number in range(9)))


def _write_live(found: Context, where: FakeLake, plan: Plan) -> None:
    del found
    where.write(plan.resolved.target.table, "2020-01-09", "live", **{"spark.app.id": "app-1"})


def _try_to_send(found: Context, where: FakeLake, plan: Plan) -> None:
    del where
    tried = {"sink": "network", "what": "socket.connect", "file": "jobs/a.py", "line": 3}
    found.evidence.record(plan.run_id, "side effects", {"attempts": [tried]}, epoch=0)


class _Spark(FakeCompute):
    def application(self) -> str:
        return "app-1"


def _write_outside(found: Context, where: FakeLake, plan: Plan) -> None:
    del found
    where.write(plan.shadow_table, "2020-01-05", "other")


def _bring_back(found: Context, where: FakeLake, plan: Plan) -> None:
    del found
    where.write(plan.shadow_table, DAY, "p1@new", "p2@new")


class _Doubling(FakeCompute):
    """Its totals double in one partition, and its columns are spread in another way."""

    def totals(self, measures: Any) -> tuple[MeasureTotal, ...]:
        series = (MeasurePoint(partition=DAY, old=10, new=20),)
        return tuple(
            MeasureTotal(name=item.name, old=100, new=100, series=series) for item in measures
        )

    def diff(self, request: Any) -> Diff:
        shifted = Distribution(test="ks", value=0.9, limit=0.1)
        amount = ColumnDiff(name="amount", changed=1, old={}, new={}, distribution=shifted)
        return super().diff(request).model_copy(update={"columns": (amount,)})


class _OtherThanSource(FakeCompute):
    """The totals of the whole candidate are not those of the source; tests/lake measures them."""

    def source_totals(self, *asked: Any) -> tuple[CheckResult, ...]:
        return tuple(
            CheckResult(
                name=f"{one.measure} of the candidate equals {one.sum} of {one.source}",
                group="reconciliation", passed=False, detail="40 against 50",
            )
            for one in asked[1]
        )  # fmt: skip


class _RawValues(FakeCompute):
    """A masked column of the candidate holds raw values; tests/lake measures them."""

    def masked(self, plan: Plan, *asked: Any) -> tuple[MaskedColumn, ...]:
        return tuple(found.model_copy(update={"raw": 1}) for found in super().masked(plan, *asked))


class _NarrowLake(FakeLake):
    """Shadows lose a column that the contract names."""

    def describe(self, table: str) -> TableInfo | None:
        found = super().describe(table)
        is_shadow = "shadow" in table
        kept = [column for column in found.columns if column.name != "amount"] if found else []
        return found.model_copy(update={"columns": tuple(kept)}) if found and is_shadow else found


def _nothing(found: Context, where: FakeLake, plan: Plan) -> None:
    del found, where, plan


AMOUNTS: dict[str, Any] = {"measures": [{"name": "amounts", "sum": "amount"}]}
EACH = {"measure": "amounts", "max_change": 0.2, "each_partition": True}


@dataclass(frozen=True)
class Case:
    """What closes a gate: an engine, a lake, a hand that changes what was staged."""

    gate: str
    engine: type[FakeCompute] = FakeCompute
    lake: type[FakeLake] = FakeLake
    change: Any = _nothing
    contract: dict[str, Any] = field(default_factory=dict)


def _planned(
    engine: type[FakeCompute], where: FakeLake, more: dict[str, Any], **manifest: Any
) -> tuple[Context, Plan]:
    """Plan and approve a run with this engine."""
    where.tables = lake().tables
    where.add("privacy.gone", all="p2")
    found = context(where, engine(where))
    wanted = declared(contract=contract(**more), **manifest)
    plan, _ = register_plan(found, make_plan(found, wanted, "bob", None), "bob")
    decisions.approve(found, plan.run_id, "ana", "")
    return found, plan


@pytest.mark.req("T13")
@pytest.mark.parametrize(
    "case",
    [
        Case("all chunks are staged", change=_lose_a_chunk),
        Case("the run wrote only its shadow", engine=_Spark, change=_write_live),
        Case("the run wrote only its shadow", change=_try_to_send),
        Case("files have a sensible size", change=_fragment),
        Case("lineage is complete", _NoLineage, _LineageLake, contract={"lineage_columns": True}),
        Case("diff and counts agree", engine=_MiscountingDiff),
        Case("nothing outside the partitions changed", change=_write_outside),
        Case("columns that consumers rely on", lake=_NarrowLake),
        Case(
            "no deleted row is written",
            change=_bring_back,
            contract={"tombstones": [{"table": "privacy.gone", "columns": {"id": "id"}}]},
        ),
        Case(
            "amounts changes by at most 20.0% in each partition",
            engine=_Doubling,
            contract=AMOUNTS | {"thresholds": [EACH]},
        ),
        Case(
            "amounts of the candidate equals amount of raw",
            engine=_OtherThanSource,
            contract=AMOUNTS
            | {"source_totals": [{"measure": "amounts", "source": "raw", "sum": "amount"}]},
        ),
        Case(
            "values are spread as before",
            engine=_Doubling,
            contract={"watch": {"distributions": "block"}},
        ),
        Case(
            "masked columns hold masked values only",
            engine=_RawValues,
            contract={"privacy": {"columns": {"amount": {"mask": "null"}}}},
        ),
    ],
    ids=lambda case: case.gate,
)
def test_a_gate_that_closes_rejects_the_run_and_is_named(case: Case) -> None:
    where = case.lake()
    found, plan = _planned(case.engine, where, {"lineage_columns": False} | case.contract)
    stage(found, plan.run_id, "bob")
    case.change(found, where, plan)
    status, result, _ = validate(found, plan.run_id, "bob")
    closed = [check.name for check in result.checks if check.blocking and not check.passed]
    assert status.state is RunState.REJECTED
    assert case.gate in closed
    before = where.tables[plan.resolved.target.table].head
    with pytest.raises(IllegalMove):
        publish(found, plan.run_id, "bob")
    assert where.tables[plan.resolved.target.table].head == before


@pytest.mark.req("Q1")
@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ({"output_rows": 10_010, "carried_rows": 10_000}, "90 of 100 rows"),
        ({"output_rows": 10_010, "updated_rows": 6, "ignored_rows": 4}, "90 of 100 rows"),
        ({"output_rows": 10, "stray_rows": 3, "left_out_rows": 7}, "90 of 110 rows"),
    ],
    ids=["row predicate", "merge", "left out"],
)
def test_the_share_of_rejected_rows_is_of_those_that_the_transform_made(
    counts: dict[str, int], share: str
) -> None:
    chunk = a_chunk("c1").model_copy(update={"rejected_rows": 90, **counts})
    (check,) = gates.check_rejects(a_plan(), [chunk])
    assert not check.passed
    assert check.detail.startswith(share)


class _LosingRows(FakeCompute):
    def chunk(
        self, plan: Plan, chunk: Chunk, snapshot_id: int | None, rules: Any = ()
    ) -> ChunkFacts:
        found = super().chunk(plan, chunk, snapshot_id, rules)
        fewer = {label: rows - 1 for label, rows in found.rows.items()}
        return found.model_copy(update={"rows": fewer})


class _Missing(FakeCompute):
    """All of its rows lie in other partitions."""

    def __init__(self, lake: FakeLake) -> None:
        super().__init__(lake, empty={DAY, "2020-01-03"})


class _Rejecting(FakeCompute):
    """Rejects rows, and nobody said that it may."""

    def __init__(self, lake: FakeLake) -> None:
        super().__init__(lake, rejected=Rejects(rows=2, reasons={"negative amount": 2}))


class _Plentiful(FakeCompute):
    """Makes more rows than the plan expected."""

    def __init__(self, lake: FakeLake) -> None:
        super().__init__(lake, keys={DAY: {"a", "b", "c"}})


@pytest.mark.req("T13")
@pytest.mark.parametrize(
    ("gate", "engine", "detail"),
    [
        ("chunk rows are all stored", _LosingRows, "10 computed, 9 stored"),
        ("rows lie inside the chunk", _Missing, "0 inside, 1 outside and left out"),
        (
            "rejected rows are in range",
            _Rejecting,
            "2 of 12 rows rejected (16.67%), at most 0.00%: 2 negative amount",
        ),
        ("row count is in range", _Plentiful, "30 rows up to this chunk, at most 20"),
    ],
)
def test_a_gate_of_a_chunk_that_closes_halts_the_run_before_the_next_chunk(
    gate: str, engine: type[FakeCompute], detail: str
) -> None:
    where = FakeLake()
    found, plan = _planned(
        engine, where, {}, safety={"max_rows": 20}, sources={"raw": {"warm_up_days": 0}}
    )
    with pytest.raises(
        ChecksFailed, match=re.escape(f"{gate_registry.gate_question(gate)} {detail}")
    ):
        stage(found, plan.run_id, "bob")
    assert found.runs.status(plan.run_id).state is RunState.HALTED
    recorded = found.evidence.newest(plan.run_id, "chunk-checks")
    assert recorded is not None
    closed = [one["name"] for one in recorded[1]["chunks"][0]["checks"] if not one["passed"]]
    assert gate in closed
    assert len(found.runs.chunks(plan.run_id)) == 1
