"""plan: resolve what floats, pin it, estimate it, register the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.errors import ChecksFailed, ConfigError, NotFound
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.manifest import RunManifest
from lakehouse_backfill.model.plan import (
    ConflictWith,
    Estimate,
    Plan,
    Resolved,
    SourcePin,
    TargetPin,
)
from lakehouse_backfill.model.run import Event, RunStatus, State
from lakehouse_backfill.model.scope import RowRange, ScopeField
from lakehouse_backfill.model.table import TableInfo
from lakehouse_backfill.rules import (
    checklist,
    estimates,
    kinds,
    lifecycle,
    partitions,
    resolve,
    windows,
)
from lakehouse_backfill.stages import pinning, revising
from lakehouse_backfill.stages.workbench import Workbench


@dataclass(frozen=True)
class Declared:
    """What the files of a project say about one run."""

    manifest: RunManifest
    contract: Contract
    manifest_file: str
    code_hash: str
    git_commit: str | None
    lock_hash: str | None


def make_plan(bench: Workbench, declared: Declared, by: str, revise: str | None) -> Plan:
    """Work out the plan without changing anything.

    Raises ConfigError, NotFound, IllegalMove (the run to revise), Unsupported, LimitExceeded.
    """
    revising.require_revisable(bench, declared.manifest.product, revise)
    base = _base(bench, declared.contract)
    field = _scope_field(bench, declared, base)
    scope = resolve.resolve_scope(field, declared.manifest.target.partitions)
    sources = pinning.resolve_sources(bench, declared.manifest)
    notes = resolve.check_input_ranges(declared.manifest, scope, sources)
    resolved = Resolved(
        manifest=declared.manifest,
        contract=declared.contract,
        scope=scope,
        chunks=resolve.cut_chunks(scope, declared.manifest.limits.partitions_per_chunk),
        sources=sources,
        target=_target_pin(declared.contract, base),
        code_hash=declared.code_hash,
        git_commit=declared.git_commit,
        lock_hash=declared.lock_hash,
    )
    return _finish(bench, resolved, declared, by, revise, notes + _target_notes(resolved))


def register_plan(bench: Workbench, plan: Plan, by: str) -> tuple[Plan, RunStatus]:
    """Pin the snapshots and register the run; the same open plan again changes nothing.

    Order: pins, run, then the run that this one revises is superseded.
    """
    known = _known(bench, plan.run_id)
    if known is not None and known.state in lifecycle.OPEN:
        return bench.runs.plan(plan.run_id), known
    pinning.pin(bench, plan)
    now = bench.clock.now()
    draft = RunStatus(run_id=plan.run_id, product=plan.product, state=State.DRAFT, seq=0, at=now)
    event: Event = lifecycle.next_event(
        draft,
        "plan",
        actor=by,
        mode=plan.resolved.manifest.run.mode,
        at=now,
        detail={"manifest_hash": plan.manifest_hash, "revises": plan.revises},
    )
    status = bench.runs.register(plan, event)
    bench.journal.bind(**plan.labels).log(
        "run planned", partitions=len(plan.resolved.scope.partitions)
    )
    if plan.revises:
        revising.supersede(bench, plan, by)
    return plan, status


def prove_warm_up(bench: Workbench, plan: Plan) -> dict[str, Any]:
    """Compute the first partition with the declared warm-up and with twice as much.

    Raises ChecksFailed when they differ: then the declared warm-up is too short.
    """
    label = plan.resolved.scope.partitions[0]
    once, twice = bench.compute().staging.prove_warm_up(plan, label)
    if once != twice:
        raise ChecksFailed(
            f"partition {label} comes out differently with twice the warm-up: {once.rows} rows "
            f"({once.text}) against {twice.rows} ({twice.text})",
            state="nothing was registered",
            fix="raise warm_up_days of the sources until the proof holds",
        )
    return {"partition": label, "declared": once.text, "doubled": twice.text, "equal": True}


def _finish(
    bench: Workbench,
    resolved: Resolved,
    declared: Declared,
    by: str,
    revise: str | None,
    notes: tuple[str, ...],
) -> Plan:
    estimate = _estimate(bench, resolved)
    notes = kinds.check_kind(resolved.manifest, estimate.output_rows) + notes
    estimates.check_limits(resolved.manifest, estimate, bench.clock.now())
    manifest_hash = resolved.manifest_hash
    run_id = _free_run_id(bench, f"bf-{manifest_hash[:10]}")
    name = resolved.contract.table.rpartition(".")[2]
    return Plan(
        run_id=run_id,
        revises=revise,
        created_at=bench.clock.now(),
        created_by=by,
        resolved=resolved,
        manifest_hash=manifest_hash,
        estimate=estimate,
        conflicts=find_conflicts(bench, resolved, {run_id, revise}),
        checklist=checklist.answer(resolved, estimate),
        notes=notes,
        manifest_file=declared.manifest_file,
        shadow_table=f"{bench.profile.shadow_namespace}.{name}__{run_id.replace('-', '_')}",
    )


def find_conflicts(
    bench: Workbench, resolved: Resolved, ignore: set[str | None]
) -> tuple[ConflictWith, ...]:
    """Name the open runs of the product whose partitions overlap."""
    found = []
    wanted = set(resolved.scope.partitions)
    for status in bench.runs.list(open_only=True):
        if status.run_id in ignore or status.product != resolved.manifest.product:
            continue
        other = bench.runs.plan(status.run_id)
        overlap = sorted(wanted & set(other.resolved.scope.partitions))
        if overlap:
            found.append(
                ConflictWith(
                    run_id=status.run_id, state=status.state.value, partitions=tuple(overlap)
                )
            )
    return tuple(found)


def _base(bench: Workbench, contract: Contract) -> TableInfo | None:
    """Readers of a pinned product read the accepted snapshot, so that is what a run starts from."""
    if contract.publication == "pinned":
        accepted = bench.versions.pointer(contract.product).accepted
        if accepted is not None:
            info = bench.tables.describe(accepted.table)
            return info and info.model_copy(update={"snapshot_id": accepted.snapshot_id})
    return bench.tables.describe(contract.table)


def _scope_field(bench: Workbench, declared: Declared, base: TableInfo | None) -> ScopeField:
    column = declared.manifest.target.partitions.column
    if base is not None:
        return bench.tables.scope_field(base, column)
    wanted = next((item for item in declared.contract.partitioning if item.column == column), None)
    found = next((item for item in declared.contract.columns if item.name == column), None)
    if wanted is None or found is None:
        raise ConfigError(
            f"{declared.contract.product} is not partitioned by {column}",
            fix="name a column of the contract's partitioning",
        )
    return ScopeField.model_validate(
        {"column": column, "transform": wanted.transform, "type": found.type}
    )


def _target_pin(contract: Contract, base: TableInfo | None) -> TargetPin:
    if base is None:
        return TargetPin(
            table=contract.table, uuid=None, snapshot_id=None, schema_id=None, spec_id=None,
            format_version=None,
        )  # fmt: skip
    return TargetPin(
        table=base.table,
        uuid=base.uuid,
        snapshot_id=base.snapshot_id,
        schema_id=base.schema_id,
        spec_id=base.spec_id,
        format_version=base.format_version,
    )


def _target_notes(resolved: Resolved) -> tuple[str, ...]:
    scope = resolved.scope
    notes = [
        f"{partitions.describe(scope.partitions)} of {scope.field.column}, as declared",
        f"{len(resolved.chunks)} chunks of at most "
        f"{resolved.manifest.limits.partitions_per_chunk} partitions, each one commit",
    ]
    if resolved.target.uuid is None:
        notes.append(f"{resolved.target.table} does not exist: it is created empty when staged")
    return tuple(notes)


def _estimate(bench: Workbench, resolved: Resolved) -> Estimate:
    inputs = []
    for pin in resolved.sources:
        rows: tuple[RowRange, ...] = ()
        if pin.range is not None:
            first, last = windows.rows_to_read(pin, resolved.scope)
            rows = windows.as_ranges(_column_type(bench, pin), pin.range.column, first, last)
        inputs.append(bench.tables.estimate(pin.table, pin.snapshot_id, rows))
    target, replaced = resolved.target, None
    if target.uuid is not None:
        wanted = set(resolved.scope.partitions)
        live = bench.tables.files(target.table, target.snapshot_id, resolved.scope.field)
        replaced = tuple(file for file in live if file.partition in wanted)
    return estimates.estimate(tuple(inputs), replaced, bench.profile.prices)


def _column_type(bench: Workbench, pin: SourcePin) -> str:
    info = bench.tables.describe(pin.table)
    column = info.column(pin.range.column) if info and pin.range else None
    if column is None or column.type not in windows.TIME_TYPES:
        raise ConfigError(
            f"sources.{pin.name}.range.column is no date or timestamp of {pin.table}",
            fix="name the column by which the input is cut",
        )
    return column.type


def _known(bench: Workbench, run_id: str) -> RunStatus | None:
    try:
        return bench.runs.status(run_id)
    except NotFound:
        return None


def _free_run_id(bench: Workbench, wanted: str) -> str:
    """The same intent on the same snapshots is the same run while it is open, else a new one."""
    run_id, number = wanted, 1
    while (known := _known(bench, run_id)) and known.state not in lifecycle.OPEN:
        number += 1
        run_id = f"{wanted}-{number}"
    return run_id
