"""plan: resolve what floats, pin it, estimate it, register the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import ValidationError

from lakehouse_backfill.core.planning import (
    catching_up,
    checklist,
    code_identity,
    completeness,
    estimates,
    estimating,
    external,
    kinds,
    lineage,
    merging,
    mode_plan,
    pinning,
    placing,
    resolve,
    revising,
    schema_refusals,
)
from lakehouse_backfill.core.planning.keeping_code import archive_code, require_code_of_version
from lakehouse_backfill.core.runs import gate_names, lifecycle
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import corrections, rollout
from lakehouse_backfill.domain import partitions, rules_schema_change, unbuilt
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.defaults import PIN_DAYS
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.plan import ConflictingRun, Plan, ResolvedManifest, TargetPin
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.domain.scope import ColumnType, PartitionTransform, ScopeField
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.domain.value import digest
from lakehouse_backfill.errors import (
    ChecksFailed,
    ConfigError,
    NotFound,
    Unsupported,
    attach_error_field,
)


@dataclass(frozen=True)
class DeclaredRun:
    """What the files of a project say about one run."""

    manifest: RunManifest
    contract: Contract
    manifest_file: str
    code_hash: str
    git_commit: str | None
    lock_hash: str | None
    files: dict[str, str] = field(default_factory=dict)


def make_plan(
    bench: Context,
    declared: DeclaredRun,
    by: str,
    revise: str | None,
    amend: Callable[[ResolvedManifest], ResolvedManifest] | None = None,
) -> Plan:
    """Work out the plan without changing anything; `amend` has the last word on what is resolved.

    Raises ConfigError, NotFound, IllegalMove (the run to revise), Unsupported, LimitExceeded.
    """
    manifest = declared.manifest
    unbuilt.require_supported(manifest)
    kinds.check_publish_mode(manifest, declared.contract)
    catching_up.require_catch_up_possible(manifest)
    external.require_no_edge_check(manifest)
    gate_names.require_known_gates(manifest)
    revising.require_revisable(bench, manifest.product, revise)
    code_identity.require_committed(declared.git_commit, bench.profile.environment)
    base = _base(bench, declared.contract)
    scope = resolve.resolve_scope(_scope_field(bench, declared, base), manifest.target.partitions)
    mode_plan.require_fitting_mode(manifest, declared.contract, base, scope.field.column)
    schema_refusals.require_possible_schema_change(manifest, declared.contract, base)
    sources = pinning.resolve_sources(bench, manifest)
    notes = resolve.check_input_ranges(manifest, scope, sources)
    notes += completeness.completeness_notes(manifest, declared.contract, sources)
    notes += rollout.check_progressive(manifest, declared.contract, scope)
    notes += corrections.check_corrections(manifest, declared.contract)
    resolved = ResolvedManifest(
        manifest=manifest,
        contract=lineage.resolve_lineage_columns(declared.contract, base),
        scope=scope,
        chunks=resolve.cut_chunks(
            scope, merging.chunk_partition_limit(manifest, declared.contract, scope)
        ),
        sources=sources,
        target=_target_pin(declared.contract, base),
        code_hash=declared.code_hash,
        git_commit=declared.git_commit,
        lock_hash=declared.lock_hash,
        config_hash=digest(manifest.transform.config),
        files=declared.files,
        environment=bench.profile.environment,
        tombstones=pinning.resolve_tombstones(bench, declared.contract),
    )
    resolved = amend(resolved) if amend else resolved
    require_code_of_version(bench, resolved)
    notes += _target_notes(resolved) + mode_plan.publish_mode_notes(bench, resolved)
    notes += rules_schema_change.schema_change_notes(
        manifest.target.schema_change, declared.contract
    )
    return _complete_plan(bench, resolved, declared, by, revise, notes)


def register_plan(bench: Context, plan: Plan, by: str) -> tuple[Plan, RunStatus]:
    """Pin the snapshots and register the run; the same open plan again changes nothing.

    Order: pins, code, run, then the run that this one revises is superseded.
    """
    known = _find_status(bench, plan.run_id)
    if known is not None and known.state in lifecycle.OPEN_STATES:
        return bench.runs.plan(plan.run_id), known
    pinning.pin_snapshots(bench, plan)
    archive_code(bench, plan)
    now = bench.clock.now()
    draft = RunStatus(run_id=plan.run_id, product=plan.product, state=RunState.DRAFT, seq=0, at=now)
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
        revising.supersede_revised_run(bench, plan, by)
    return plan, status


def prove_warm_up(bench: Context, plan: Plan) -> dict[str, Any]:
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


def _complete_plan(
    bench: Context,
    resolved: ResolvedManifest,
    declared: DeclaredRun,
    by: str,
    revise: str | None,
    notes: tuple[str, ...],
) -> Plan:
    places = placing.resolve_spec_partitions(bench, resolved)
    found = estimating.estimate_run(bench, resolved)
    estimate = found.estimate
    notes = kinds.check_run_kind(resolved.manifest, estimate.output_rows) + notes
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
        places=places,
        way=mode_plan.resolve_write_path(bench, resolved),
        conflicts=find_conflicting_runs(bench, resolved, {run_id, revise}),
        checklist=checklist.answer_checklist(resolved, estimate),
        notes=notes + placing.partition_spec_notes(places),
        warnings=estimating.estimate_warnings(bench, resolved, found),
        manifest_file=declared.manifest_file,
        shadow_table=f"{bench.profile.shadow_namespace}.{name}__{run_id.replace('-', '_')}",
    )


def find_conflicting_runs(
    bench: Context, resolved: ResolvedManifest, ignore: set[str | None]
) -> tuple[ConflictingRun, ...]:
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
                ConflictingRun(
                    run_id=status.run_id, state=status.state.value, partitions=tuple(overlap)
                )
            )
    return tuple(found)


def _base(bench: Context, contract: Contract) -> TableInfo | None:
    """Readers of a pinned product read the accepted snapshot, so that is what a run starts from."""
    if contract.publication == "pinned":
        accepted = bench.versions.pointer(contract.product).accepted
        if accepted is not None:
            info = bench.tables.describe(accepted.table)
            return info and info.model_copy(update={"snapshot_id": accepted.snapshot_id})
    return bench.tables.describe(contract.table)


def _scope_field(bench: Context, declared: DeclaredRun, base: TableInfo | None) -> ScopeField:
    column = declared.manifest.target.partitions.column
    if base is not None:
        with attach_error_field("target.partitions.column"):
            return bench.tables.scope_field(base, column)
    wanted = next((item for item in declared.contract.partitioning if item.column == column), None)
    found = next((item for item in declared.contract.columns if item.name == column), None)
    if wanted is None or found is None:
        raise ConfigError(
            f"{declared.contract.product} is not partitioned by {column}",
            fix="name a column of the contract's partitioning: "
            + ", ".join(item.column for item in declared.contract.partitioning),
            field="target.partitions.column",
        )
    try:
        return ScopeField.model_validate(
            {"column": column, "transform": wanted.transform, "type": found.type}
        )
    except ValidationError as error:
        raise Unsupported(
            f"{declared.contract.product} cannot be restated by {wanted.transform}({column}) of "
            f"type {found.type}",
            state=unbuilt.NOTHING_PLANNED,
            fix=f"use a column of type {', '.join(get_args(ColumnType))}, partitioned by one of "
            f"{', '.join(get_args(PartitionTransform))}",
            field="target.partitions.column",
        ) from error


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


def _target_notes(resolved: ResolvedManifest) -> tuple[str, ...]:
    scope = resolved.scope
    notes = [
        f"{partitions.describe_labels(scope.partitions)} of {scope.field.column}, as declared",
        f"{len(resolved.chunks)} chunks of at most "
        f"{max(len(chunk.partitions) for chunk in resolved.chunks)} partitions, each one commit",
        f"pinned snapshots are kept until {PIN_DAYS} days after acceptance",
    ]
    if resolved.target.uuid is None:
        notes.append(f"{resolved.target.table} does not exist: it is created empty when staged")
    return tuple(notes)


def _find_status(bench: Context, run_id: str) -> RunStatus | None:
    try:
        return bench.runs.status(run_id)
    except NotFound:
        return None


def _free_run_id(bench: Context, wanted: str) -> str:
    """The same intent on the same snapshots is the same run while it is open, else a new one."""
    run_id, number = wanted, 1
    while (known := _find_status(bench, run_id)) and known.state not in lifecycle.OPEN_STATES:
        number += 1
        run_id = f"{wanted}-{number}"
    return run_id
