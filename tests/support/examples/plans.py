"""A small, complete plan, for tests that need one."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

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
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, RunState
from lakehouse_backfill.domain.tables.table import Column

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


def columns_of(types: dict[str, str]) -> tuple[Column, ...]:
    """Columns by name and type, with field ids from 1."""
    return tuple(
        Column(field_id=number, name=name, type=kind)
        for number, (name, kind) in enumerate(types.items(), start=1)
    )


def estimate(**known: Any) -> Estimate:
    """Nothing is known of a run but what is given."""
    blank = {name: None for name, field in Estimate.model_fields.items() if field.is_required()}
    counts = {"input_files": 0, "input_rows": 0, "input_bytes": 0, "basis": "no history"}
    return Estimate(**(blank | counts | known))


def plan_of(resolved: ResolvedManifest, **changes: Any) -> Plan:
    """A plan without conflicts, checklist and notes, unless they are given."""
    fields: dict[str, Any] = {
        "run_id": "bf-1", "revises": None, "created_at": NOON, "created_by": "ann",
        "resolved": resolved, "manifest_hash": resolved.manifest_hash, "estimate": estimate(),
        "conflicts": (), "checklist": (), "notes": (),
    }  # fmt: skip
    return Plan(**(fields | changes))


def with_fields(value: Any, **changes: Any) -> Any:
    """A copy with other fields; `a__b` is the field `b` of the field `a`."""
    for path, changed in changes.items():
        name, _, rest = path.partition("__")
        inner = with_fields(getattr(value, name), **{rest: changed}) if rest else changed
        value = value.model_copy(update={name: inner})
    return value


def a_plan(
    run_id: str = "bf-1", product: str = "silver.arrivals_daily", reason: str = "fix"
) -> Plan:
    """A plan for two days of `product` in two chunks."""
    days = ("2013-02-15", "2013-02-16")
    resolved = ResolvedManifest(
        manifest=_manifest(product, reason),
        contract=_contract(product),
        scope=Scope(
            field=ScopeField(column="arrival_date", transform="identity", type="date"),
            partitions=days,
        ),
        chunks=tuple(Chunk(chunk_id=f"c{n}", partitions=(day,)) for n, day in enumerate(days, 1)),
        sources=(
            SourcePin(
                name="flights", role="source", table="bronze.flights", requested="", mode="tag",
                snapshot_id=8_700_000_000_000_000_001, range=RANGE, warm_up_days=1,
            ),
        ),
        target=TargetPin(
            table=product, uuid="u", snapshot_id=7, schema_id=0, spec_id=0, format_version=2
        ),
        code_hash="c" * 64,
        git_commit=None,
        lock_hash=None,
    )  # fmt: skip
    return plan_of(
        resolved, run_id=run_id, estimate=estimate(input_files=1, input_rows=10, input_bytes=100),
        notes=("one note",), manifest_file="jobs/arrivals_daily/fix.yaml",
        shadow_table="lakehouse_backfill_shadow.arrivals_daily_bf_1",
    )  # fmt: skip


def an_event(
    run_id: str, seq: int, old: RunState, new: RunState | None = None, **changes: Any
) -> Event:
    """The event number `seq` of a run; a note, unless it moves the run."""
    fields: dict[str, Any] = {
        "at": NOON, "actor": "ann", "verb": f"note {seq}", "mode": "backfill",
    }  # fmt: skip
    return Event(run_id=run_id, seq=seq, from_state=old, to_state=new or old, **(fields | changes))


def a_first_event(plan: Plan, actor: str = "ann") -> Event:
    """The event that registers `plan`."""
    detail = {"manifest_hash": plan.manifest_hash}
    states = RunState.DRAFT, RunState.PLANNED
    return an_event(plan.run_id, 1, *states, actor=actor, verb="plan", detail=detail)


def a_publication(version: int, action: str = "publish", **fields: Any) -> Publication:
    """One row of the pointer table."""
    known = {
        "product": "a.b", "version": version, "token": f"t{version}", "action": action,
        "run_id": None, "table": "a.b", "snapshot_id": version, "before_snapshot_id": None,
        "scope": None, "supersedes": None, "at": NOON, "by": "ann",
    }  # fmt: skip
    return Publication.model_validate(known | fields)


RANGE = InputRange(column="time_hour", from_=date(2013, 2, 14), to=date(2013, 2, 17))


def _manifest(product: str, reason: str) -> RunManifest:
    return RunManifest(
        api_version="lakehouse-backfill/v1",
        run=RunIntent(requested_by="ann", reason=reason, reason_code="bug_fix"),
        product=product,
        transform=TransformRef(name="arrivals", version="1.2.0", file="jobs/a/transform.py"),
        sources={"flights": Source(table="bronze.flights", range=RANGE)},
        target=Target(
            partitions=PartitionRange(
                column="arrival_date", from_=date(2013, 2, 15), to=date(2013, 2, 17)
            )
        ),
    )


def _contract(product: str) -> Contract:
    return Contract(
        api_version="lakehouse-backfill/v1", product=product, table=product,
        description="Arrivals by day.", owner="ann", key=("arrival_date",),
        partitioning=(ContractPartition(column="arrival_date", transform="identity"),),
        columns=(
            ContractColumn(name="arrival_date", type="date", required=True),
            ContractColumn(name="flights", type="long"),
        ),
    )  # fmt: skip
