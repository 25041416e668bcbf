"""validate: every gate over the candidate; the result is what `accept` is bound to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lakehouse_backfill.core.approval import waivers
from lakehouse_backfill.core.approval.decide import VALIDATION, trusted_events
from lakehouse_backfill.core.approval.waive import pass_by_waiver
from lakehouse_backfill.core.comparison import diffing, fingerprinting, fingerprints
from lakehouse_backfill.core.planning import modes
from lakehouse_backfill.core.planning.approved_files import require_approved_files
from lakehouse_backfill.core.runs import gate_names, lifecycle, roles
from lakehouse_backfill.core.runs.lease import RenewedLease
from lakehouse_backfill.core.runs.workbench import ComputePorts, Context
from lakehouse_backfill.core.staging.external import require_shadow_closed
from lakehouse_backfill.core.validation import (
    anomalies,
    edges,
    gates,
    mode_checks,
    reasonable,
    stages_erasing,
    unusual,
)
from lakehouse_backfill.core.validation.edge_probe import probe_run_edges
from lakehouse_backfill.core.validation.known_base import look_up_base
from lakehouse_backfill.core.validation.stages_golden import golden_checks
from lakehouse_backfill.core.validation.suite_checks import Stopwatch, suite_checks
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.checks import (
    CheckResult,
    Diff,
    EdgeReport,
    MeasureTotal,
    ValidationResult,
)
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plain import to_json_value
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunStatus
from lakehouse_backfill.domain.table import LiveFile, TableInfo
from lakehouse_backfill.errors import NotFound

#: Differing rows of each kind that are kept as examples.
MAX_DIFF_SAMPLES = 10


def validate(bench: Context, run_id: str, by: str) -> tuple[RunStatus, ValidationResult, str]:
    """Run all gates, store the result under its digest, and move the run.

    A failed gate moves the run to rejected; it never raises for that. Gates that were waived for
    exactly this result let it pass. Raises ApprovalMissing when a person rejected the run, and for
    other code than was approved: the edges are computed.
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    lifecycle.require_legal_move(status, "pass validation")
    roles.require_approval(trusted_events(bench, status), plan)
    require_approved_files(bench, plan)
    status = bench.drive(status, plan, "begin validation", by)
    watch = Stopwatch(bench.clock)
    with RenewedLease(bench, status), bench.journal.bind(**plan.labels).span("validate"):
        # What is stored is JSON, which has no NaN: totals may hold one.
        document = to_json_value(_judge(bench, plan, watch).model_dump(mode="json"))
    result = ValidationResult.model_validate(document)
    digest = bench.evidence.record(run_id, VALIDATION, document, status.epoch)
    verb = "pass validation" if result.passed else "fail validation"
    failed = [check.name for check in waivers.failed_blocking_checks(result.checks)]
    # Not in the document: the same result has the same digest, however long it took.
    spent = watch.spent(bench, run_id).plain
    status = bench.move(status, plan, verb, by, digest=digest, failed=failed, spent=spent)
    if failed:
        # The same result as one that was waived before: the waivers still hold for it.
        status = pass_by_waiver(bench, status, plan, by)
    _trace_samples(bench, plan, result)
    return status, result, digest


@dataclass(frozen=True)
class _Measurements:
    """What was measured on both sides: files, checksums by partition, diff, totals, edges."""

    shadow: TableInfo
    old_files: list[LiveFile]
    new_files: list[LiveFile]
    old: dict[str, Checksum]
    new: dict[str, Checksum]
    #: Checksums of the new side with the columns that come, which `old` cannot have.
    stored: dict[str, Checksum]
    diff: Diff
    totals: tuple[MeasureTotal, ...]
    lineage: tuple[MeasureTotal, ...]
    edge: EdgeReport | None
    #: Rows and measures of earlier partitions, by label.
    earlier: unusual.MeasuresByLabel

    @property
    def shape(self) -> str:
        """The shape of the checksums; empty when neither side holds a row."""
        return checksum_shape(self.new) or checksum_shape(self.old)


def checksum_shape(found: dict[str, Checksum]) -> str:
    """Give the shape that checksums have; empty when there is none."""
    return next((checksum.shape for checksum in found.values()), "")


def _judge(bench: Context, plan: Plan, watch: Stopwatch) -> ValidationResult:
    bench.progress.start("validate", 5, "steps")
    compute = bench.compute()
    seen = _measure(bench, compute, plan)
    balances = gates.partition_balances(
        plan.resolved.scope.partitions, seen.old, seen.new, seen.shape
    )
    checks = [
        *_technical(bench, plan, seen),
        *_lineage(plan, seen),
        *gates.check_schema_kept(
            plan.resolved.contract, seen.shadow, rules_schema_change.declared_schema_change(plan)
        ),
        gates.check_diff_adds_up(seen.diff, balances),
        *mode_checks.publish_mode_checks(bench, compute, plan, seen.shadow.snapshot_id, balances),
        *stages_erasing.deletion_checks(bench, plan, seen.shadow.snapshot_id),
        gates.check_keys_unique(_duplicates(bench, plan, seen)),
        *_totals(compute, plan, seen),
        edges.check_edges(
            seen.edge, plan.resolved.manifest.validation, modes.why_no_edge_check(plan)
        ),
        *golden_checks(bench, plan, seen.shadow),
    ]
    reports = unusual.report_run_anomalies(plan, balances, seen.totals, seen.earlier)
    checks += unusual.watch_checks(plan, reports, seen.diff.columns)
    bench.progress.advance()
    checks += suite_checks(compute, plan, watch)
    checks = gate_names.apply_gate_choices(checks, plan.resolved.manifest.validation.gates)
    bench.progress.advance()
    bench.progress.finish()
    return ValidationResult(
        run_id=plan.run_id,
        manifest_hash=plan.manifest_hash,
        shadow_snapshot_id=seen.shadow.snapshot_id,
        checks=tuple(checks),
        diff=seen.diff,
        balances=balances,
        totals=seen.totals,
        edge=seen.edge,
        anomalies=tuple(anomalies.keep_worst_anomalies(report) for report in reports),
    )


def _measure(bench: Context, compute: ComputePorts, plan: Plan) -> _Measurements:
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(
            f"shadow {plan.shadow_table} is gone", fix=f"lakehouse-backfill stage {plan.run_id}"
        )
    require_shadow_closed(bench, plan, shadow)
    scope, target = plan.resolved.scope, plan.resolved.target
    old_side, new_side = (target.table, target.snapshot_id), (shadow.table, shadow.snapshot_id)
    measures, lineage = plan.resolved.contract.measures, _lineage_counts(plan)
    request, change = (
        diffing.candidate_request(plan, shadow, MAX_DIFF_SAMPLES),
        rules_schema_change.declared_schema_change(plan),
    )
    known = look_up_base(bench, plan, measures + lineage)
    base = known.base
    # What is to be accepted is read in any case.
    candidate = fingerprinting.look_up_fingerprints(bench, *new_side, scope, rely=False)
    # None needs another's result, and each alone leaves part of the machine idle.
    with ThreadPoolExecutor(2, thread_name_prefix="validate") as pool:
        comparing = pool.submit(diffing.compute_diff, bench, request)
        measuring = pool.submit(
            compute.measuring.measure, old_side, new_side, scope, measures + lineage,
            (*LINEAGE_NAMES, *rules_schema_change.added_column_names(change)), change,
            old_is_known=known.is_whole,
            old_measures=known.counts_of(scope), earlier=known.unread if measures else (),
        )  # fmt: skip
        looks_beyond = target.snapshot_id is not None and not modes.why_no_edge_check(plan)
        edge = probe_run_edges(bench, compute.staging, plan) if looks_beyond else None
        bench.progress.advance()
        measured = measuring.result()
        bench.progress.advance()
        diff = comparing.result()
        by_file = measured.new_files
        if rules_schema_change.added_column_names(change) and shadow.snapshot_id is not None:
            by_file = compute.measuring.by_file(
                shadow.table, shadow.snapshot_id, scope, LINEAGE_NAMES
            )
        bench.progress.advance()
    fingerprinting.record_fingerprints(
        bench, [(base, measured.old_files), (candidate, by_file)], plan.run_id
    )
    return _Measurements(
        shadow=shadow,
        old_files=base.files,
        new_files=candidate.files,
        old=base.known.checksums if known.is_whole else measured.old,
        new=measured.new,
        stored=fingerprints.checksums_by_label(by_file),
        diff=diff,
        totals=measured.totals[: len(measured.totals) - len(lineage)],
        lineage=measured.totals[len(measured.totals) - len(lineage) :],
        edge=edge,
        earlier=known.history(measures, measured.earlier),
    )


def _technical(bench: Context, plan: Plan, seen: _Measurements) -> tuple[CheckResult, ...]:
    chunks = bench.ledger.chunks(plan.run_id)
    return (
        gates.check_chunks_complete(plan, chunks),
        gates.check_row_count(plan, chunks),
        gates.check_partitions_written(plan, seen.new, set(seen.old)),
        gates.check_outside_unchanged(seen.old_files, seen.new_files, plan),
        gates.check_file_sizes(plan, seen.new_files, seen.shadow),
        gates.check_stored_as_computed(
            plan, chunks, seen.stored, checksum_shape(seen.stored) or seen.shape
        ),
    )


def _duplicates(bench: Context, plan: Plan, seen: _Measurements) -> int:
    """Count the candidate's own duplicate keys; the diff counts those of either side."""
    if not seen.diff.duplicate_keys:
        return 0
    both = diffing.candidate_request(plan, seen.shadow, samples=0)
    alone = replace(both, old_table=both.new_table, old_snapshot_id=None)
    return bench.differ(seen.diff.engine).diff(alone).duplicate_keys


def _lineage_counts(plan: Plan) -> tuple[Measure, ...]:
    """Rows that carry lineage columns carry them whole: as many values as rows."""
    names = gates.REQUIRED_LINEAGE if plan.resolved.contract.lineage_columns else ()
    return tuple(Measure(name=name, count=name) for name in names)


def _lineage(plan: Plan, seen: _Measurements) -> list[CheckResult]:
    if not plan.resolved.contract.lineage_columns:
        return []
    rows = sum(partition.rows for partition in seen.new.values())
    old_rows = sum(partition.rows for partition in seen.old.values())
    carried_of = old_rows if modes.carries_base_rows(plan) else None
    return [gates.check_lineage_complete(seen.lineage, rows, carried_of)]


def _totals(compute: ComputePorts, plan: Plan, seen: _Measurements) -> list[CheckResult]:
    contract = plan.resolved.contract
    results: list[CheckResult] = []
    if contract.source_totals:
        results += compute.measuring.source_totals(
            plan, contract.source_totals, contract.measures, seen.totals
        )
    old_rows = sum(partition.rows for partition in seen.old.values())
    return [*results, *reasonable.check_thresholds(contract.thresholds, seen.totals, old_rows)]


def _trace_samples(bench: Context, plan: Plan, result: ValidationResult) -> None:
    journal = bench.journal.bind(**plan.labels)
    for sample in result.diff.samples:
        journal.log(
            "record_trace", kind=sample.kind, key=sample.key, old=sample.old, new=sample.new
        )
