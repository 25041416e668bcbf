"""Validation of a run: all gates over the candidate; `accept` is bound to the result.

Order: measure both sides, judge, store the result under its digest, move the run. The base is
looked up in metadata first, so that rows with known checksums are not read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.comparison.diff import candidate_request
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.guards.privacy import masks, rules
from lakehouse_backfill.core.guards.privacy.column_flow import copies_of_run
from lakehouse_backfill.core.planning.job_code import require_approved_files
from lakehouse_backfill.core.planning.target import publish_modes, row_changes
from lakehouse_backfill.core.runs import gate_registry, lifecycle, roles
from lakehouse_backfill.core.runs.context import Context, RenewedLease
from lakehouse_backfill.core.validation import (
    anomalies,
    column_scope,
    deletions,
    edges,
    gates,
    movements,
)
from lakehouse_backfill.core.validation.golden import golden_checks
from lakehouse_backfill.core.validation.sides import (
    SidesReading,
    lineage_counts,
    look_up_base,
)
from lakehouse_backfill.core.validation.suites import suite_checks, timing_until_now
from lakehouse_backfill.domain.checks import (
    CheckResult,
    EdgeReport,
    MeasureTotal,
    PartitionBalance,
    ValidationResult,
)
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.comparison.diff import Diff
from lakehouse_backfill.domain.guards.privacy import MaskSources
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkCounts, Event, RunStatus
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.domain.tables.schema_change import added_column_names
from lakehouse_backfill.domain.tables.table import CatalogMovements, TableInfo
from lakehouse_backfill.errors import ChecksFailed, ConfigError, NotFound, Tampered
from lakehouse_backfill.ports.compute import ComputePorts


def publish_mode_checks(
    context: Context,
    compute: ComputePorts,
    plan: Plan,
    shadow: TableInfo,
    balances: tuple[PartitionBalance, ...],
) -> list[CheckResult]:
    """Check that rows which the run does not name are unchanged, and that changes add up."""
    checks = []
    if plan.resolved.manifest.target.row_predicate:
        checks.append(_check_other_rows(compute, plan, shadow))
    # Chunks carried over from an earlier shadow were counted there.
    records = [
        one for one in context.runs.chunks(plan.run_id) if ChunkCounts.from_record(one).known
    ]
    merged = {label for record in records for label in record.partitions}
    counts = reduce(ChunkCounts.__add__, map(ChunkCounts.from_record, records), ChunkCounts())
    old = sum(balance.old_count for balance in balances if balance.partition in merged)
    new = sum(balance.new_count for balance in balances if balance.partition in merged)
    sum_check = row_changes.check_changes_add_up(plan, counts, old, new)
    return [*checks, *([sum_check] if sum_check else [])]


def _check_other_rows(compute: ComputePorts, plan: Plan, shadow: TableInfo) -> CheckResult:
    """Compare the rows outside the predicate, with all columns, base against candidate."""
    target, scope = plan.resolved.target, plan.resolved.scope
    types = {column.name: column.type for column in shadow.columns}
    other_rows = row_changes.resolve_row_predicate(plan.resolved.manifest.target, types)
    checksums = compute.measuring.checksums
    old = checksums(target.table, target.snapshot_id, scope, (), other_rows)
    new = checksums(shadow.table, shadow.snapshot_id, scope, (), other_rows)
    return row_changes.check_other_rows_unchanged(scope, old, new)


def validate(
    context: Context, run_id: str, by: str, replayer: str | None = None
) -> tuple[RunStatus, ValidationResult, str]:
    """Run all gates, store the result under its digest, and move the run.

    A failed gate moves the run to rejected; it never raises. Gates that were waived for exactly
    this result let it pass. Raises ApprovalMissing when a person rejected the run, and for other
    code than was approved: the edges are computed with it; NotAllowed when `replayer`, by default
    who acts, may not replay the input.
    """
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    lifecycle.require_legal_move(status, "pass validation")
    events = decisions.trusted_events(context, status)
    roles.require_approval(events, plan)
    require_approved_files(context, plan)
    rules.require_permission_now(context, plan, replayer or by)
    status = context.drive(status, plan, "begin validation", by)
    started = context.clock.now()
    with RenewedLease(context, plan, status), context.journal.bind(**plan.labels).span("validate"):
        with effect_log.record_attempts(context, run_id, status.epoch):
            judged, moved, suites_s = _judge(context, plan, events)
        # JSON has no NaN, and totals may hold one.
        document = to_json_value(judged.model_dump(mode="json"))
    result = ValidationResult.model_validate(document)
    digest = context.evidence.record(run_id, decisions.VALIDATION, document, status.epoch)
    verb = "pass validation" if result.passed else "fail validation"
    failed = [check.name for check in decisions.failed_blocking_checks(result.checks)]
    # Time and commits of others are not in the document: the same result has the same digest.
    beside: dict[str, Any] = {
        "spent": timing_until_now(context, run_id, started, suites_s).json_form,
        "moved_tables": movements.describe_movements(plan, moved),
    }
    status = context.move(status, plan, verb, by, digest=digest, failed=failed, **beside)
    if failed:
        # Waivers of an equal result hold for this one.
        status = decisions.pass_by_waiver(context, status, plan, by)
    journal = context.journal.bind(**plan.labels)
    for sample in result.diff.samples:
        journal.log("record_trace", **dict(sample))
    return status, result, digest


@dataclass(frozen=True)
class _Measurements:
    """What was measured on both sides: files, checksums by partition, diff, totals, edges."""

    shadow: TableInfo
    old_files: list[LiveFile]
    new_files: list[LiveFile]
    old: dict[str, Checksum]
    new: dict[str, Checksum]
    #: Checksums of the new side with the added columns, which `old` cannot have.
    stored: dict[str, Checksum]
    diff: Diff
    totals: tuple[MeasureTotal, ...]
    lineage: tuple[MeasureTotal, ...]
    edge: EdgeReport | None
    #: Rows and measures of earlier partitions, by label.
    earlier: anomalies.MeasuresByLabel


def _judge(
    context: Context, plan: Plan, events: tuple[Event, ...]
) -> tuple[ValidationResult, CatalogMovements, float]:
    """Return the result, what moved in the catalog meanwhile, and the seconds of the suites."""
    context.progress.start("validate", 5, "steps")
    compute = context.compute()
    measured, suite_results, suites_s = _measure_beside_suites(context, compute, plan, events)
    labels = plan.resolved.scope.partitions
    balances = fingerprints.partition_balances(labels, measured.old, measured.new)
    checks = [
        *_technical(context, plan, measured),
        *_lineage(plan, measured),
        *gates.check_schema_kept(
            plan.resolved.contract, measured.shadow, declared_schema_change(plan)
        ),
        gates.check_diff_adds_up(measured.diff, balances),
        *publish_mode_checks(context, compute, plan, measured.shadow, balances),
        *column_scope.column_checks(compute, plan, measured.shadow, measured.diff),
        *deletions.deletion_checks(context, plan, measured.shadow.snapshot_id),
        *mask_checks(context, plan, measured.shadow.snapshot_id, copies_of_run(context, plan)),
        gates.check_keys_unique(_duplicates(context, plan, measured)),
        *_totals(compute, plan, measured),
        edges.check_edges(
            measured.edge, plan.resolved.manifest.validation, publish_modes.why_no_edge_check(plan)
        ),
        *golden_checks(context, plan, measured.shadow),
    ]
    reports = anomalies.report_run_anomalies(plan, balances, measured.totals, measured.earlier)
    checks += anomalies.watch_checks(plan, reports, measured.diff.columns)
    context.progress.advance()
    checks += suite_results
    # Last: the edges and the suites of this run are part of what may have written.
    moved = movements.movements_since_staging(context, plan, events)
    checks.append(_only_shadow_written(context, compute, plan, moved))
    checks = gate_registry.apply_gate_choices(checks, plan.resolved.manifest.validation.gates)
    context.progress.advance()
    context.progress.finish()
    result = ValidationResult(
        run_id=plan.run_id,
        manifest_hash=plan.manifest_hash,
        shadow_snapshot_id=measured.shadow.snapshot_id,
        checks=tuple(checks),
        diff=measured.diff,
        balances=balances,
        totals=measured.totals,
        edge=measured.edge,
        anomalies=tuple(anomalies.keep_worst_anomalies(report) for report in reports),
    )
    return result, moved, suites_s


def _measure_beside_suites(
    context: Context, compute: ComputePorts, plan: Plan, events: tuple[Event, ...]
) -> tuple[_Measurements, list[CheckResult], float]:
    """Return what was measured, the results of the suites, and the seconds that they took."""
    # Suites keep an engine busy, and most of the measuring is done in this process.
    with ThreadPoolExecutor(1, thread_name_prefix="suites") as pool:
        suites_future = pool.submit(suite_checks, context, compute, plan)
        measured = _measure(context, compute, plan, events)
        return measured, *suites_future.result()


def _only_shadow_written(
    context: Context, compute: ComputePorts, plan: Plan, moved: CatalogMovements
) -> CheckResult:
    found = movements.check_only_shadow_written(
        plan,
        moved,
        compute.staging.application(),
        is_shared="spark.remote" in context.profile.spark,
        tried=effect_log.recorded_attempts(context, plan.run_id),
    )
    rows = (chunk.output_rows for chunk in context.runs.chunks(plan.run_id))
    searched = movements.describe_secret_search(plan, rows)
    return found.model_copy(update={"detail": f"{found.detail}; {searched}"})


def _require_shadow(context: Context, plan: Plan) -> TableInfo:
    """Return the shadow; raises ChecksFailed when another engine wrote it after it was closed."""
    shadow = context.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(
            f"shadow {plan.shadow_table} is gone", fix=f"lakehouse-backfill stage {plan.run_id}"
        )
    if publish_modes.is_externally_written(plan):
        closed = {record.snapshot_id for record in context.runs.chunks(plan.run_id)}
        if closed != {shadow.snapshot_id}:
            raise ChecksFailed(
                f"{plan.shadow_table} was written after it was closed",
                state="nothing was validated; readers see what they saw before",
                fix=f"lakehouse-backfill shadow close {plan.run_id}",
            )
    return shadow


def _measure(
    context: Context, compute: ComputePorts, plan: Plan, events: tuple[Event, ...]
) -> _Measurements:
    shadow = _require_shadow(context, plan)
    scope, change = plan.resolved.scope, declared_schema_change(plan)
    measures, lineage = plan.resolved.contract.measures, lineage_counts(plan)
    known = look_up_base(context, plan, measures + lineage)
    base, new_side = known.base, (shadow.table, shadow.snapshot_id)
    # The candidate is always read: it is what people accept.
    candidate = fingerprints.look_up_fingerprints(context, *new_side, scope, rely=False)
    reading = SidesReading(plan, known, shadow, measures + lineage)
    with ThreadPoolExecutor(2, thread_name_prefix="validate") as pool:
        diff_future, sides_future = reading.start(context, compute.measuring, pool)
        edge = edges.probe_run_edges(context, compute.staging, plan, events)
        context.progress.advance()
        measured, diff = sides_future.result(), diff_future.result().diff
        context.progress.advance()
    by_file = measured.new_files
    if added_column_names(change) and shadow.snapshot_id is not None:
        by_file = compute.measuring.by_file(shadow.table, shadow.snapshot_id, scope, LINEAGE_NAMES)
    context.progress.advance()
    fingerprints.record_fingerprints(
        context, [(base, measured.old_files), (candidate, by_file)], plan.run_id
    )
    return _Measurements(
        shadow=shadow,
        old_files=base.files,
        new_files=candidate.files,
        old=base.known.checksums if known.is_fully_known else measured.old,
        new=measured.new,
        stored=fingerprints.checksums_by_label(by_file),
        diff=diff,
        totals=measured.totals[: len(measured.totals) - len(lineage)],
        lineage=measured.totals[len(measured.totals) - len(lineage) :],
        edge=edge,
        earlier=known.earlier_measures(measures, measured.earlier),
    )


def _technical(context: Context, plan: Plan, seen: _Measurements) -> tuple[CheckResult, ...]:
    chunks = context.runs.chunks(plan.run_id)
    shape = fingerprints.checksum_shape(seen.stored, seen.new, seen.old)
    return (
        gates.check_chunks_complete(plan, chunks),
        gates.check_row_count(plan, sum(chunk.output_rows for chunk in chunks)),
        *gates.check_rejects(plan, chunks),
        gates.check_none_emptied(
            [
                label
                for label in plan.resolved.scope.partitions
                if label in seen.old and label not in seen.new
            ]
        ),
        gates.check_outside_unchanged(seen.old_files, seen.new_files, plan),
        gates.check_file_sizes(plan, seen.new_files, seen.shadow),
        gates.check_stored_as_computed(plan, chunks, seen.stored, shape),
    )


def mask_checks(
    context: Context, plan: Plan, snapshot_id: int | None, copies: dict[str, str] | None
) -> list[CheckResult]:
    """Judge the stored values of masked columns; no check where nothing is masked.

    `copies` are the columns of inputs that those of the output copy; None: that is not known.
    """
    if not plan.resolved.contract.masked_columns:
        return []
    sources = mask_sources(context, plan, copies)
    return [gates.check_masks(context.compute().measuring.masked(plan, snapshot_id, sources))]


def mask_sources(context: Context, plan: Plan, copies: dict[str, str] | None) -> MaskSources:
    """Return what stored masks are compared with, and why some are not computed again."""
    resolved = plan.resolved
    raw, followed = rules.raw_origins(resolved.contract, resolved.sources), resolved.catch_up
    # Chunks by key are all of one partition.
    ours = {
        label: None
        for chunk in resolved.chunks
        if followed is None or followed.origin(chunk.chunk_id) is None
        for label in chunk.partitions
    }
    unseen, taken = "", len(resolved.scope.partitions) - len(ours)
    try:
        masks.require_same_key(plan, context.secrets)
    except (ConfigError, Tampered):
        unseen = "the secret of the plan is not at hand"
    if copies is None:
        unseen = "the analysed plan of the rows was not looked at"
    if publish_modes.carries_base_rows(plan):
        unseen = "rows of the base are among them"
    if unseen or copies is None:
        return MaskSources(raw=raw, unseen=unseen)
    if taken:
        unseen = f"{taken:,} partitions are of an earlier run"
    return MaskSources(raw=raw, copies=copies, partitions=tuple(ours), unseen=unseen)


def _duplicates(context: Context, plan: Plan, seen: _Measurements) -> int:
    """Count the candidate's own duplicate keys; the diff counts those of both sides."""
    if not seen.diff.duplicate_keys:
        return 0
    request = candidate_request(context, plan, seen.shadow.snapshot_id, samples=0)
    new_only = replace(request, old_table=request.new_table, old_snapshot_id=None)
    return context.differ(seen.diff.engine).diff(new_only).duplicate_keys


def _lineage(plan: Plan, seen: _Measurements) -> list[CheckResult]:
    if not plan.resolved.contract.lineage_columns:
        return []
    rows = sum(partition.rows for partition in seen.new.values())
    old_rows = sum(partition.rows for partition in seen.old.values())
    # A run that restates columns writes its lineage into every row.
    is_carried = publish_modes.carries_base_rows(plan) and not publish_modes.restates_columns(plan)
    carried_of = old_rows if is_carried else None
    return [gates.check_lineage_complete(seen.lineage, rows, carried_of)]


def _totals(compute: ComputePorts, plan: Plan, seen: _Measurements) -> list[CheckResult]:
    contract = plan.resolved.contract
    results: list[CheckResult] = []
    if contract.source_totals:
        results += compute.measuring.source_totals(
            plan, contract.source_totals, contract.measures, seen.totals
        )
    old_rows = sum(partition.rows for partition in seen.old.values())
    return [*results, *gates.check_thresholds(contract.thresholds, seen.totals, old_rows)]
