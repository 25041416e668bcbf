"""validate: every gate over the candidate; the result is what `accept` is bound to."""

from __future__ import annotations

from lakehouse_backfill.errors import NotFound
from lakehouse_backfill.model.checks import (
    CheckResult,
    EdgePartition,
    EdgeReport,
    Validation,
)
from lakehouse_backfill.model.lineage import LINEAGE_NAMES
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.run import RunStatus
from lakehouse_backfill.model.scope import Scope
from lakehouse_backfill.model.table import LiveFile
from lakehouse_backfill.rules import edges, gates, lifecycle, windows
from lakehouse_backfill.stages import compare
from lakehouse_backfill.stages.decide import VALIDATION
from lakehouse_backfill.stages.golden import golden_checks
from lakehouse_backfill.stages.stage import suite_parameters, suites
from lakehouse_backfill.stages.workbench import Compute, Workbench

#: Differing rows of each kind that are kept as examples.
SAMPLES = 10


def validate(bench: Workbench, run_id: str, by: str) -> tuple[RunStatus, Validation, str]:
    """Run all gates, store the result under its digest, and move the run.

    A failed gate moves the run to rejected; it never raises for that.
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    lifecycle.require_legal(status, "pass validation")
    with bench.journal.bind(**plan.labels).span("validate"):
        result = _judge(bench, plan)
    digest = bench.evidence.record(run_id, VALIDATION, result.model_dump(mode="json"))
    verb = "pass validation" if result.passed else "fail validation"
    failed = [check.name for check in result.checks if check.blocking and not check.passed]
    status = bench.move(status, plan, verb, by, digest=digest, failed=failed)
    _trace_samples(bench, plan, result)
    return status, result, digest


def _judge(bench: Workbench, plan: Plan) -> Validation:
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(
            f"shadow {plan.shadow_table} is gone", fix=f"lakehouse-backfill stage {plan.run_id}"
        )
    compute, scope, target = bench.compute(), plan.resolved.scope, plan.resolved.target
    bench.progress.start("validate", 6, "steps")
    new_files = bench.tables.files(plan.shadow_table, shadow.snapshot_id, scope.field)
    old_files = _base_files(bench, plan)
    new = compute.measuring.checksums(plan.shadow_table, shadow.snapshot_id, scope, LINEAGE_NAMES)
    old = compute.measuring.checksums(target.table, target.snapshot_id, scope, LINEAGE_NAMES)
    bench.progress.advance()
    shape = next(iter([*new.values(), *old.values()])).shape if new or old else ""
    balances = gates.balances(scope.partitions, old, new, shape)
    diff = compare.diff_run(bench, plan.run_id, None, "auto", SAMPLES)
    bench.progress.advance()
    totals = compute.measuring.totals(
        (target.table, target.snapshot_id),
        (plan.shadow_table, shadow.snapshot_id),
        scope,
        plan.resolved.contract.measures,
    )
    bench.progress.advance()
    edge = _edges(compute, plan) if target.snapshot_id is not None else None
    bench.progress.advance()
    chunks = bench.ledger.chunks(plan.run_id)
    tolerance = plan.resolved.manifest.validation.edge_tolerance_rows
    checks: list[CheckResult] = [
        gates.chunks_complete(plan, chunks),
        gates.row_count(plan, chunks),
        gates.partitions_written(plan, new, set(old)),
        gates.outside_unchanged(old_files, new_files, plan),
        *gates.schema_kept(plan.resolved.contract, shadow),
        gates.stored_as_computed(plan, chunks, new, shape),
        gates.diff_adds_up(diff, balances),
        gates.keys_unique(diff),
        *compute.measuring.source_totals(
            plan, plan.resolved.contract.source_totals, plan.resolved.contract.measures
        ),
        *gates.thresholds(plan.resolved.contract.thresholds, totals),
        edges.check(edge, tolerance),
        *golden_checks(bench, plan, shadow),
    ]
    bench.progress.advance()
    checks += _quality(compute, plan)
    bench.progress.advance()
    bench.progress.finish()
    return Validation(
        run_id=plan.run_id,
        manifest_hash=plan.manifest_hash,
        shadow_snapshot_id=shadow.snapshot_id,
        checks=tuple(checks),
        diff=diff,
        balances=balances,
        totals=totals,
        edge=edge,
    )


def _base_files(bench: Workbench, plan: Plan) -> list[LiveFile]:
    target = plan.resolved.target
    if target.snapshot_id is None:
        return []
    return bench.tables.files(target.table, target.snapshot_id, plan.resolved.scope.field)


def _edges(compute: Compute, plan: Plan) -> EdgeReport:
    """Look beyond the edges; while the outermost partition differs, look further out."""
    scope, count = plan.resolved.scope, plan.resolved.manifest.validation.edge_partitions
    around = edges.labels(scope, count)
    found: list[EdgePartition] = []
    if around.inside:
        found += compute.staging.edges(plan, around.inside, "inside")
    for side, labels in (("before", around.before), ("after", around.after)):
        seen: tuple[str, ...] = ()
        while labels:
            probed = compute.staging.edges(plan, labels, side)
            found += probed
            seen += labels
            by_label = {edge.partition: edge for edge in probed}
            if not by_label[labels[-1]].differing_rows:
                break
            labels = _within_reach(plan, edges.further(scope, side, seen))
    return edges.report(scope, tuple(found), plan.resolved.manifest.validation.edge_tolerance_rows)


def _within_reach(plan: Plan, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Keep the partitions that the declared input ranges still cover, nearest first."""
    reachable = []
    for label in labels:
        around = Scope(field=plan.resolved.scope.field, partitions=(label,))
        pins = [pin for pin in plan.resolved.sources if pin.range is not None]
        if not all(
            pin.range and windows.covers(pin.range, windows.needed(pin, around)) for pin in pins
        ):
            break
        reachable.append(label)
    return tuple(reachable)


def _quality(compute: Compute, plan: Plan) -> list[CheckResult]:
    wanted = [suite for suite in suites(plan) if suite.on == "output"]
    if not wanted:
        return []
    frame = compute.measuring.output(plan)
    results: list[CheckResult] = []
    for suite in wanted:
        parameters = suite_parameters(compute, plan, suite)
        results += compute.judge.judge(frame, suite.file, parameters, "quality")
    return results


def _trace_samples(bench: Workbench, plan: Plan, result: Validation) -> None:
    journal = bench.journal.bind(**plan.labels)
    for sample in result.diff.samples:
        journal.log(
            "record_trace", kind=sample.kind, key=sample.key, old=sample.old, new=sample.new
        )
