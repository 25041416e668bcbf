"""Results of `plan` and `show`: what a run would do, in full."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.planning.other_runs import repeats_published_rows
from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.planning.stages import Stage, plan_stages
from lakehouse_backfill.core.planning.target import publish_modes, row_changes
from lakehouse_backfill.domain import plan as plans
from lakehouse_backfill.domain.contract import Consumer
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.guards.safety import PublishWindow
from lakehouse_backfill.domain.partitions import Chunk, ScopeField
from lakehouse_backfill.domain.run import RunStatus
from lakehouse_backfill.domain.sources.topic_offsets import TopicPin
from lakehouse_backfill.domain.tables.files import SpecPartitions
from lakehouse_backfill.domain.tables.schema_change import describe_schema_step
from lakehouse_backfill.errors import BackfillError, ChecksFailed
from lakehouse_backfill.results.base import Record, Result, optional

if TYPE_CHECKING:
    from typing_extensions import Self

    from lakehouse_backfill.core.rehearsal.rehearse import (
        Difference,
        RehearsalOutcome,
        RehearsedStep,
    )


class PlannedPin(Record):
    """A snapshot that the run reads or changes; `mode` says how it is kept from expiring."""

    name: str
    role: str
    table: str
    requested: str
    snapshot_id: int | None
    schema_id: int | None
    mode: str | None
    topic: TopicPin | None = optional()


class PlanResult(Result):
    """What `plan` resolved; `state` is None for a dry run.

    `stages` is all that the run does, in order. `nothing_to_do`: readers see already what it would
    compute, and its code is deterministic as far as is known. `skipped` are partitions inside the
    range that stay as they are. `waivers` are those that stand in the run manifest.
    """

    run_id: str
    product: str
    state: str | None
    manifest_hash: str
    revises: str | None
    target: str
    shadow_table: str
    publish_mode: str
    publishing: str
    rows: str | None
    schema_change: tuple[str, ...]
    partitions: tuple[str, ...]
    last_partition: str
    partition_field: ScopeField
    places: tuple[SpecPartitions, ...]
    chunks: tuple[Chunk, ...]
    pins: tuple[PlannedPin, ...]
    stages: tuple[Stage, ...]
    nothing_to_do: bool
    skipped: tuple[str, ...]
    skipped_because: str | None
    deadline: datetime | None
    publish_window: PublishWindow | None
    waivers: tuple[str, ...]
    estimate: plans.Estimate
    consumers: tuple[Consumer, ...]
    conflicts: tuple[plans.ConflictingRun, ...]
    checklist: tuple[plans.ChecklistQuestion, ...]
    way: plans.ChosenWritePath | None
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    undo: str
    warm_up_proof: Mapping[str, Any] | None
    determinism_proof: Mapping[str, Any] | None
    columns: tuple[str, ...] | None = optional()
    window: plans.CorruptionWindow | None = optional()
    next_command: str | None = optional()

    @classmethod
    def of(
        cls,
        plan: plans.Plan,
        status: RunStatus | None,
        proof: Mapping[str, Any] | None,
        repeated: Mapping[str, Any] | None = None,
    ) -> Self:
        """Describe a plan, its registered run, and the proofs of warm-up and determinism."""
        resolved, target = plan.resolved, plan.resolved.manifest.target
        undo = command_line("cancel", plan.run_id)
        if not publish_modes.is_never_published(plan):
            back = command_line("rollback", plan.product, "--reason", "TEXT")
            undo = f"{undo}; after publication: {back}"
        return cls.from_fields(
            plan,
            state=status.state.value if status else None,
            target=resolved.target.table,
            publish_mode=target.publish_mode,
            publishing=publish_modes.describe_publication(plan),
            rows=row_changes.describe_row_predicate(target) or None,
            columns=target.columns,
            schema_change=tuple(describe_schema_step(step) for step in target.schema_change),
            partitions=resolved.scope.partitions,
            last_partition=resolve.describe_in_words(resolved.scope),
            partition_field=resolved.scope.field,
            chunks=resolved.chunks,
            stages=plan_stages(plan),
            nothing_to_do=repeats_published_rows(plan),
            skipped=resolve.skipped_labels(resolved.scope.field, target.partitions),
            skipped_because=target.partitions.except_because,
            deadline=resolved.manifest.run.deadline,
            publish_window=resolved.manifest.safety.publish_window,
            waivers=tuple(
                f"{name}, in the name of {by}"
                for name, by in resolved.manifest.safety.waivers.items()
            ),
            pins=_planned_pins(resolved),
            undo=undo,
            warm_up_proof=proof,
            determinism_proof=repeated,
        )

    def _repr_html_(self) -> str:
        """Draw the plan in a notebook."""
        from lakehouse_backfill.results.base import plan_html

        return plan_html(self)


class ShowResult(PlanResult):
    """The plan of a registered run, with everything in it."""


def _planned_pins(resolved: plans.ResolvedManifest) -> tuple[PlannedPin, ...]:
    target = resolved.target
    mode = "tag" if target.snapshot_id is not None else None
    return (
        *map(PlannedPin.from_fields, resolved.sources),
        PlannedPin.from_fields(
            target, name="target", role="target", requested=target.table, mode=mode
        ),
    )


class RehearsalResult(Result):
    """What a rehearsal showed, step by step, and what it could not show.

    `manifest_hash` is that of the real run, which is not registered. `copies` are the tables that
    the rehearsal worked on, in the lake of `profile`; `differences` name what the real place has
    otherwise.
    """

    run_id: str
    product: str
    profile: str
    manifest_hash: str
    manifest_file: str
    copies: tuple[str, ...]
    held: bool
    steps: tuple[RehearsedStep, ...]
    differences: tuple[Difference, ...]
    next_command: str
    command: str

    @classmethod
    def of(cls, outcome: RehearsalOutcome, profile: str, command: str) -> RehearsalResult:
        """Describe a rehearsal; `command` shows its evidence, and the next one plans for real."""
        real = outcome.real_plan
        return cls(
            run_id=outcome.plan.run_id,
            product=real.product,
            profile=profile,
            manifest_hash=real.manifest_hash,
            manifest_file=real.manifest_file,
            copies=outcome.copies,
            held=all(step.held for step in outcome.steps),
            steps=outcome.steps,
            differences=outcome.differences,
            next_command=plan_command(real.manifest_file),
            command=command,
        )

    def error(self) -> BackfillError | None:
        """Return ChecksFailed when a step did not hold."""
        wrong = [f"{one.step} ({one.seen})" for one in self.steps if not one.held]
        if not wrong:
            return None
        return ChecksFailed(
            f"the rehearsal {self.run_id} did not hold: {'; '.join(wrong)}",
            state="the real tables were only read; the copies are as the rehearsal left them",
            fix=f"{self.command}, which shows what was stored",
        )
