"""Results of the methods that plan, stage, compare, validate and list runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain import plan as plans
from lakehouse_backfill.domain.checks import (
    AnomalyReport,
    CheckResult,
    EdgeReport,
    MeasureTotal,
    PartitionBalance,
    ValidationResult,
)
from lakehouse_backfill.domain.comparison.diff import PartitionDiff
from lakehouse_backfill.domain.guards.outside import HookCall
from lakehouse_backfill.domain.run import ChunkRecord, Event, RunState, RunStatus
from lakehouse_backfill.domain.tables.branch_shadow import parse_branch_shadow
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import BackfillError, ChecksFailed
from lakehouse_backfill.results.base import Record, Result, RunResult, optional
from lakehouse_backfill.results.comparison import DiffResult

if TYPE_CHECKING:
    from lakehouse_backfill.core.approval.decisions import FailedGate
    from lakehouse_backfill.core.evidence.status import SafetySummary
    from lakehouse_backfill.core.evidence.trial import TrialOutcome
    from lakehouse_backfill.core.monitoring.alerts import SentAlert
    from lakehouse_backfill.core.runs.notes import Attention
    from lakehouse_backfill.core.staging.pause import ChunkPreview
    from lakehouse_backfill.core.validation.suites import AcceptedValidation


class StageResult(RunResult):
    """What was staged; `chunks_before` were done when the call began."""

    chunks_done: int
    chunks_redone: int
    rows: int
    chunks_before: int | None = optional()


class ShadowOpenResult(RunResult):
    """The table that another engine is to write, the partitions, and the lineage of their rows."""

    table: str
    location: str
    base_snapshot_id: int | None
    scope_column: str
    partitions: tuple[str, ...]
    lineage: Mapping[str, Any]
    next: str

    @classmethod
    def of(cls, status: RunStatus, table: TableInfo, plan: plans.Plan) -> ShadowOpenResult:
        """Describe the open shadow of a run."""
        return cls(
            **run_fields(status),
            table=_written_table(table),
            location=table.location,
            base_snapshot_id=plan.resolved.target.snapshot_id,
            scope_column=plan.resolved.scope.field.column,
            partitions=plan.resolved.scope.partitions,
            lineage=publish_modes.expected_lineage(plan),
            next=command_line("shadow", "close", plan.run_id),
        )


def _written_table(shadow: TableInfo) -> str:
    """Return what the other engine is to name; a branch as Spark names it."""
    branches = parse_branch_shadow(shadow.table)
    if branches is None:
        return shadow.table
    epoch = int(shadow.properties.get("lakehouse-backfill.epoch", 0))
    return f"{branches.target}.`branch_{branches.branch(epoch)}`"


def run_fields(status: RunStatus) -> dict[str, Any]:
    """Return the fields that all results of one run have."""
    return {"run_id": status.run_id, "product": status.product, "state": status.state.value}


class DecisionResult(RunResult):
    """The decisions and waivers in force after a decision.

    `proof_limit`: what checks and diff of an accepted run could not prove on this catalog.
    """

    approvals: tuple[Mapping[str, Any], ...]
    waivers: tuple[Mapping[str, Any], ...]
    manifest_file: str
    note_command: str | None = optional()
    proof_limit: str | None = optional()


class WaiveResult(RunResult):
    """The gates that stopped a run, which were waived, and how the others can be."""

    gates: tuple[FailedGate, ...]

    @classmethod
    def of(cls, status: RunStatus, gates: tuple[FailedGate, ...]) -> WaiveResult:
        """Describe the gates of a run."""
        can_go_on = status.state is RunState.HALTED and _all_waived(gates)
        return cls(
            **run_fields(status),
            gates=gates,
            next_command=command_line("run", status.run_id) if can_go_on else None,
        )


def _all_waived(gates: tuple[FailedGate, ...]) -> bool:
    return bool(gates) and all(gate.waived_by for gate in gates)


class ValidateResult(RunResult):
    """What every gate found; `passed`: no blocking gate is closed, or all of them are waived."""

    passed: bool
    digest: str
    checks: tuple[CheckResult, ...]
    diff: DiffResult
    partitions: tuple[PartitionBalance, ...]
    totals: tuple[MeasureTotal, ...]
    anomalies: tuple[AnomalyReport, ...]
    edge: EdgeReport | None
    spent: Mapping[str, float | None] | None
    moved_tables: Mapping[str, Any] | None
    manifest_file: str

    @classmethod
    def of(
        cls,
        status: RunStatus,
        validation: ValidationResult,
        digest: str,
        manifest_file: str,
        events: tuple[Event, ...],
    ) -> ValidateResult:
        """Describe a validation; gates that were waived for this result do not stop it."""
        from lakehouse_backfill.core.validation.movements import newest_movements
        from lakehouse_backfill.core.validation.suites import newest_validation_timing

        timing = newest_validation_timing(events)
        return cls(
            **run_fields(status),
            passed=status.state is RunState.VALIDATED,
            digest=digest,
            checks=validation.checks,
            diff=DiffResult.of(validation.diff),
            partitions=validation.balances,
            totals=validation.totals,
            anomalies=validation.anomalies,
            edge=validation.edge,
            spent=timing.json_form if timing else None,
            moved_tables=newest_movements(events),
            manifest_file=manifest_file,
        )

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when the result did not pass."""
        if self.passed:
            return None
        return closed_gates_error(self.run_id, self.checks, self.manifest_file)


class TryResult(Result):
    """One partition, computed and judged before any approval; nothing of it is kept.

    `outside_rows` were computed for other partitions, and left out. `not_judged` names what only
    the whole result of a run shows.
    """

    product: str
    manifest_file: str
    partition: str
    input_rows: int
    output_rows: int
    outside_rows: int
    seconds: float
    passed: bool
    checks: tuple[CheckResult, ...]
    diff: DiffResult
    totals: tuple[MeasureTotal, ...]
    not_judged: tuple[str, ...]

    @classmethod
    def of(cls, product: str, manifest_file: str, found: TrialOutcome) -> TryResult:
        """Describe a trial."""
        record = found.record
        return cls.from_fields(
            found,
            product=product,
            manifest_file=manifest_file,
            input_rows=record.input_rows,
            output_rows=record.output_rows,
            outside_rows=record.outside_rows,
            seconds=record.seconds,
            passed=not _closed_gates(found.checks),
            diff=DiffResult.of(found.diff),
            warnings=found.notes,
        )

    @property
    def command(self) -> str:
        """Return the command that tries the partition again."""
        return command_line("try", self.manifest_file, "--partition", self.partition)

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when the partition failed a blocking check."""
        if self.passed:
            return None
        return ChecksFailed(
            f"{self.product} {self.partition}, as tried: "
            f"{_describe_closed(_closed_gates(self.checks))}",
            state="nothing was registered or published; the scratch table is removed",
            fix=f"correct the job or its input, then {self.command}",
        )


class RejudgeResult(Result):
    """What suites found of an accepted version."""

    product: str
    version: int | None
    table: str
    snapshot_id: int | None
    changed_since: tuple[str, ...]
    passed: bool
    checks: tuple[CheckResult, ...]

    @classmethod
    def of(cls, product: str, found: AcceptedValidation) -> RejudgeResult:
        """Describe the checks of an accepted version."""
        return cls.from_fields(
            found.accepted,
            product=product,
            changed_since=tuple(found.accepted.drifted),
            passed=found.passed,
            checks=found.checks,
        )

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when a blocking check failed."""
        if self.passed:
            return None
        closed = _closed_gates(self.checks)
        return ChecksFailed(
            f"{self.product} as published: {_describe_closed(closed)}",
            state="readers go on seeing it; nothing was changed",
            fix=f"restate it: {command_line('new', self.product)} --from P --to P --reason TEXT",
        )


class RunProgressResult(RunResult):
    """What `run` did, up to the next decision of a person."""

    chunks_done: int
    chunks_redone: int
    rows: int
    chunks_before: int | None = optional()
    checks: tuple[CheckResult, ...] | None = optional()
    #: Rows that change, and totals of the run's partitions; absent: nothing was validated now.
    changes: PartitionDiff | None = optional()
    totals: tuple[MeasureTotal, ...] | None = optional()
    manifest_file: str

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when gates stopped the run."""
        if self.state not in ("rejected", "halted", "publish_halted"):
            return None
        return closed_gates_error(self.run_id, self.checks or (), self.manifest_file)


def _closed_gates(checks: tuple[CheckResult, ...]) -> list[CheckResult]:
    return [check for check in checks if not check.passed and check.blocking]


def _describe_closed(closed: list[CheckResult]) -> str:
    if not closed:
        return "gates are closed"
    count = "1 gate is" if len(closed) == 1 else f"{len(closed)} gates are"
    return f"{count} closed: {', '.join(map(gate_registry.check_title, closed))}"


def closed_gates_error(
    run: str, checks: tuple[CheckResult, ...], manifest_file: str
) -> ChecksFailed:
    """Build the error of a run that gates stopped; its fix names the evidence and the way on."""
    closed = _closed_gates(checks)
    return ChecksFailed(
        f"{run}: {_describe_closed(closed)}",
        state="nothing was published; the shadow table is kept",
        fix=f"{command_line('evidence', run)}, then "
        f"{plan_command(manifest_file, run)}" + _waive_hint(run, closed),
    )


def _waive_hint(run: str, closed: list[CheckResult]) -> str:
    """Offer a waiver for gates that may be waived; a gate that guards data may not."""
    if not closed:
        return f"; which gates: {command_line('status', run)}"
    if not all(check.waivable for check in closed):
        return ""
    waive = command_line("waive", run, gate_registry.check_title(closed[0]), "--reason", "TEXT")
    return f"; or, for the record: {waive}"


class RunLine(Record):
    """One run of `status`: whether data is safe, what readers see, and the next command, first.

    `gates` are those that stopped it; `approvals` and `waivers` are the decisions in force;
    `messages_lost` say what sinks lack of a run that readers get.
    """

    is_safe: str
    readers_see: str
    next_command: str
    run_id: str
    product: str
    state: str
    at: datetime
    driver: str | None
    approvals: tuple[Mapping[str, Any], ...] | None = optional()
    waivers: tuple[Mapping[str, Any], ...] | None = optional()
    gates: tuple[FailedGate, ...] | None = optional()
    dual_reads: tuple[Mapping[str, Any], ...] | None = optional()
    steps: tuple[Mapping[str, Any], ...] | None = optional()
    messages_lost: tuple[str, ...] | None = optional()
    notes: tuple[str, ...] | None = optional()
    note_command: str | None = optional()

    @classmethod
    def of(
        cls,
        status: RunStatus,
        summary: SafetySummary,
        gates: tuple[FailedGate, ...] = (),
        **records: Any,
    ) -> RunLine:
        """Describe a run; `records` are its waivers, dual reads and steps."""
        lines: dict[str, Any] = {name: tuple(each) or None for name, each in records.items()}
        next_command = summary.next_command
        if _all_waived(gates):
            next_command = command_line("run", status.run_id)
        return cls.from_fields(
            summary,
            next_command=next_command,
            **run_fields(status),
            at=status.at,
            driver=status.driver,
            gates=gates or None,
            **lines,
        )


class StatusResult(Result):
    """One run, or the runs of the lake: those that wait for a person come first."""

    runs: tuple[RunLine, ...]
    attention: tuple[Attention, ...] | None = optional()

    def _repr_html_(self) -> str:
        """Draw the runs in a notebook."""
        from lakehouse_backfill.results.base import status_html

        return status_html(self)


class AlertLine(Record):
    """One alert: its cause and run, since when, why, and the command that goes on.

    `calls` are the hooks that were called for it now.
    """

    cause: str
    run_id: str
    product: str
    since: datetime
    text: str
    next_command: str
    calls: tuple[HookCall, ...]


class AlertsResult(Result):
    """The alerts of the lake, one for each run and cause."""

    alerts: tuple[AlertLine, ...]

    @classmethod
    def of(cls, sent: tuple[SentAlert, ...]) -> AlertsResult:
        """List the alerts; a hook that failed is a warning."""
        failed = (
            f"hook {call.hook} failed for {one.alert.cause} of {one.alert.run_id}: {call.detail}"
            for one in sent
            for call in one.calls
            if not call.is_ok
        )
        lines = tuple(AlertLine.from_fields(one.alert, calls=one.calls) for one in sent)
        return cls(alerts=lines, warnings=tuple(failed))


class MetricsResult(Result):
    """All metrics of the lake in the text format of Prometheus."""

    text: str


class ListResult(StatusResult):
    """Open and closed runs, the last moved first."""


class LogResult(Result):
    """The events of a run, oldest first."""

    events: tuple[Event, ...]


class PendingChunk(Record):
    """A chunk that is not staged yet."""

    chunk_id: str
    partitions: tuple[str, ...]
    status: str = "pending"
    input_rows: int | None = None
    output_rows: int | None = None
    checksum: str | None = None
    seconds: float | None = None


class RunPreviewResult(RunResult):
    """What `run` would do: with each chunk, and then."""

    dry_run: bool = True
    chunks: tuple[ChunkPreview, ...]
    then: str

    @classmethod
    def of(
        cls, status: RunStatus, chunks: tuple[ChunkPreview, ...], then: str, next_command: str
    ) -> RunPreviewResult:
        """Describe what was found."""
        return cls(**run_fields(status), chunks=chunks, then=then, next_command=next_command)


class ChunksResult(Result):
    """The chunks of a run: those in the ledger, and the pending ones."""

    run_id: str
    chunks: tuple[ChunkRecord | PendingChunk, ...]

    @classmethod
    def of(cls, plan: plans.Plan, records: tuple[ChunkRecord, ...]) -> ChunksResult:
        """List the plan's chunks with what the ledger holds of them."""
        recorded = {record.chunk_id: record for record in records}
        return cls(
            run_id=plan.run_id,
            chunks=tuple(
                recorded.get(chunk.chunk_id)
                or PendingChunk(chunk_id=chunk.chunk_id, partitions=chunk.partitions)
                for chunk in plan.resolved.chunks
            ),
        )
