"""A small, complete plan, for tests that need one."""

from __future__ import annotations

from datetime import date, datetime, timezone

from lakehouse_backfill.domain.contract import Contract, ContractColumn, ContractPartition
from lakehouse_backfill.domain.manifest import (
    InputRange,
    PartitionRange,
    RunIntent,
    RunManifest,
    Source,
    Target,
    TransformRef,
)
from lakehouse_backfill.domain.partitions import Chunk, Scope, ScopeField
from lakehouse_backfill.domain.plan import Estimate, Plan, ResolvedManifest, SourcePin, TargetPin
from lakehouse_backfill.domain.run import Event, RunState

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


def a_plan(
    run_id: str = "bf-1", product: str = "silver.arrivals_daily", reason: str = "fix"
) -> Plan:
    """A plan for two days of `product` in two chunks."""
    resolved = ResolvedManifest(
        manifest=_manifest(product, reason),
        contract=_contract(product),
        scope=Scope(
            field=ScopeField(column="arrival_date", transform="identity", type="date"),
            partitions=("2013-02-15", "2013-02-16"),
        ),
        chunks=(
            Chunk(chunk_id="c1", partitions=("2013-02-15",)),
            Chunk(chunk_id="c2", partitions=("2013-02-16",)),
        ),
        sources=(
            SourcePin(
                name="flights",
                role="source",
                table="bronze.flights",
                requested="",
                snapshot_id=8_700_000_000_000_000_001,
                mode="tag",
                range=_range(),
                warm_up_days=1,
            ),
        ),
        target=TargetPin(
            table=product, uuid="u", snapshot_id=7, schema_id=0, spec_id=0, format_version=2
        ),
        code_hash="c" * 64,
        git_commit=None,
        lock_hash=None,
    )
    return Plan(
        run_id=run_id,
        revises=None,
        created_at=NOON,
        created_by="ann",
        resolved=resolved,
        manifest_hash=resolved.manifest_hash,
        estimate=_estimate(),
        conflicts=(),
        checklist=(),
        notes=("one note",),
        manifest_file="jobs/arrivals_daily/fix.yaml",
        shadow_table="lakehouse_backfill_shadow.arrivals_daily_bf_1",
    )


def a_first_event(plan: Plan, actor: str = "ann") -> Event:
    """The event that registers `plan`."""
    return Event(
        run_id=plan.run_id,
        seq=1,
        at=NOON,
        actor=actor,
        verb="plan",
        from_state=RunState.DRAFT,
        to_state=RunState.PLANNED,
        mode="backfill",
        detail={"manifest_hash": plan.manifest_hash},
    )


def _range() -> InputRange:
    return InputRange(column="time_hour", from_=date(2013, 2, 14), to=date(2013, 2, 17))


def _manifest(product: str, reason: str) -> RunManifest:
    return RunManifest(
        api_version="lakehouse-backfill/v1",
        run=RunIntent(requested_by="ann", reason=reason, reason_code="bug_fix"),
        product=product,
        transform=TransformRef(name="arrivals", version="1.2.0", file="jobs/a/transform.py"),
        sources={"flights": Source(table="bronze.flights", range=_range())},
        target=Target(
            partitions=PartitionRange(
                column="arrival_date", from_=date(2013, 2, 15), to=date(2013, 2, 17)
            )
        ),
    )


def _contract(product: str) -> Contract:
    return Contract(
        api_version="lakehouse-backfill/v1",
        product=product,
        table=product,
        description="Arrivals by day.",
        owner="ann",
        key=("arrival_date",),
        partitioning=(ContractPartition(column="arrival_date", transform="identity"),),
        columns=(
            ContractColumn(name="arrival_date", type="date", required=True),
            ContractColumn(name="flights", type="long"),
        ),
    )


def _estimate() -> Estimate:
    return Estimate(
        input_files=1,
        input_rows=10,
        input_bytes=100,
        output_rows=None,
        output_bytes=None,
        output_files=None,
        shuffle_bytes=None,
        duration_s=None,
        core_hours=None,
        cost_usd=None,
        basis="no history",
    )
