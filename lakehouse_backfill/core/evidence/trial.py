"""Trial of a run manifest: one partition computed in a scratch table, judged and compared.

It comes before any approval. Nothing is registered, pinned or recorded: no run, no evidence, no
fingerprint. So no verb that publishes can name what was computed. The scratch table and its files
are removed at the end; what a killed process leaves is removed by the next trial or by `maintain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.comparison.diff import candidate_request, compute_diff
from lakehouse_backfill.core.comparison.fingerprints import partition_balances
from lakehouse_backfill.core.guards.determinism import require_none_blocking
from lakehouse_backfill.core.guards.outside.sinks import effective_policy
from lakehouse_backfill.core.guards.privacy.column_flow import (
    copied_columns,
    require_declared_flow,
    restricted_flow,
)
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.planning.scope import resolve
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import gate_registry, roles, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.checks import ChunkChecks, check_inputs
from lakehouse_backfill.core.staging.determinism import (
    NOT_LOOKED_AT,
    find_in_chunk,
    require_declared_reads,
)
from lakehouse_backfill.core.staging.rejects import count_rejects
from lakehouse_backfill.core.staging.scratch import (
    DRIVER_PROPERTY,
    SCRATCH_EPOCH,
    ScratchTable,
    open_scratch_table,
    remove_with_files,
)
from lakehouse_backfill.core.validation import column_scope, gates
from lakehouse_backfill.core.validation.validate import mask_checks
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal
from lakehouse_backfill.domain.comparison.diff import Diff
from lakehouse_backfill.domain.partitions import Chunk, describe_labels
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.retention import TRIAL, TRIAL_TABLE
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkRecord
from lakehouse_backfill.domain.serialization import Value
from lakehouse_backfill.domain.tables.schema_change import added_column_names

#: Differing rows of each kind that are shown.
_SAMPLES = 5
_NOTHING_DONE = "nothing was registered or computed"


class TrialOutcome(Value):
    """The partition, its rows and checks, the diff with what readers see, and what was not judged.

    `notes` are sentences about the trial itself, such as files that could not be removed.
    """

    partition: str
    record: ChunkRecord
    checks: tuple[CheckResult, ...]
    diff: Diff
    totals: tuple[MeasureTotal, ...]
    not_judged: tuple[str, ...]
    notes: tuple[str, ...] = ()


def try_partition(context: Context, plan: Plan, partition: str | None, by: str) -> TrialOutcome:
    """Compute one partition of the plan, by default its first, and judge and compare it.

    `plan` is not registered. Raises NotFound for a partition that the plan does not have,
    Unsupported where a trial would act or has nothing to compute, NotAllowed when the contract lets
    others see candidates, and what the job's code raises.
    """
    roles.require_validator(plan.resolved.contract, by)
    _require_possible(context, plan)
    limited = limit_to_partition(plan, partition)
    chunk = limited.resolved.chunks[0]
    trial = _Trial(context, limited, chunk)
    trial.notes += remove_abandoned_trials(context)
    context.progress.start(f"try {chunk.partitions[0]}", 4, "steps")
    context.compute().staging.load(limited)
    context.progress.advance()
    with open_scratch_table(context, limited, TRIAL, by, trial.remove) as scratch:
        trial.compute(scratch)
        found = trial.judge(scratch)
    context.progress.finish()
    return found.model_copy(update={"notes": tuple(trial.notes)})


def limit_to_partition(plan: Plan, partition: str | None) -> Plan:
    """Return the plan of one partition, under an id that is no run's.

    Raises NotFound, with the partitions that there are; Unsupported for one that needs a state
    which is not kept.
    """
    labels = plan.resolved.scope.partitions
    chosen = labels[0] if partition is None else partition
    if chosen not in labels:
        raise errors.NotFound(
            f"{plan.manifest_file} does not restate partition {chosen}",
            state=_NOTHING_DONE,
            fix=f"--partition with one of its own: {describe_labels(labels)}",
        )
    start = plan.resolved.state_start
    if start is not None and start.kept is None and not start.warm_up and chosen != labels[0]:
        raise errors.Unsupported(
            f"{chosen} is computed from the state that the partitions before it leave, and a trial "
            "computes one partition",
            state=_NOTHING_DONE,
            fix=f"--partition {labels[0]}, which starts without a state",
        )
    scope = plan.resolved.scope.model_copy(update={"partitions": (chosen,)})
    chunks = resolve.cut_chunks(scope, 1)
    resolved = plan.resolved.model_copy(update={"scope": scope, "chunks": chunks})
    run_id = f"{TRIAL}-{plan.manifest_hash[:10]}"
    return plan.model_copy(update={"run_id": run_id, "resolved": resolved})


def _require_possible(context: Context, plan: Plan) -> None:
    """Raise Unsupported for what needs an approval, has an effect, or has no base to clone."""
    resolved, because = plan.resolved, ""
    waivers = resolved.manifest.safety.waivers
    sinks = [
        sink.name
        for sink in resolved.contract.sinks
        if effective_policy(resolved.manifest, sink) != "forbid"
    ]
    if publish_modes.is_externally_written(plan):
        because = "another engine computes its rows: there is no job to execute"
    elif sinks:
        because = f"its job sends messages ({', '.join(sinks)}), and nobody approved that"
    elif waivers and signers.is_signature_required(context.profile, plan):
        because = f"it waives rules (safety.{', safety.'.join(waivers)}), and nobody approved that"
    elif resolved.target.uuid is None:
        because = f"{resolved.target.table} does not exist yet, and a trial creates no table"
    if because:
        raise errors.Unsupported(
            f"{plan.manifest_file} cannot be tried: {because}",
            state=_NOTHING_DONE,
            fix=plan_command(plan.manifest_file),
        )


@dataclass
class _Trial:
    """One trial: what it computes, and its notes."""

    context: Context
    plan: Plan
    chunk: Chunk
    notes: list[str] = field(default_factory=list)
    records: list[ChunkRecord] = field(default_factory=list)
    copies: dict[str, str] | None = None

    def remove(self, name: str) -> None:
        """Remove the scratch table and its files; note what stays."""
        self.notes += _remove(self.context, name)

    def compute(self, scratch: ScratchTable) -> None:
        """Compute the partition into the scratch table, once its analysed plan was judged."""
        staging, plan = self.context.compute().staging, scratch.plan
        texts = job_code.code_texts(self.context, plan.resolved)
        text = staging.analysed_plan(plan, self.chunk)
        state = "no row was written; nothing was registered"
        require_declared_flow(plan.resolved, restricted_flow(plan.resolved, text), state=state)
        self.copies = copied_columns(plan.resolved, text)
        found = find_in_chunk(text, plan, texts)
        if found is None:
            self.notes.append(NOT_LOOKED_AT)
        require_none_blocking(found or (), state=state)
        require_declared_reads(plan, staging.tables_read(plan, self.chunk), state=state)
        record = scratch.compute(self.chunk)
        rejects = staging.rejects(plan, self.chunk)
        self.records.append(count_rejects(self.context, plan, record, rejects))
        self.context.progress.advance(1, self.records[-1].output_rows)

    def judge(self, scratch: ScratchTable) -> TrialOutcome:
        """Judge the stored partition, and compare it with what readers see."""
        context, plan, compute = self.context, scratch.plan, self.context.compute()
        resolved, (record,) = plan.resolved, self.records
        scope, target, change = resolved.scope, resolved.target, declared_schema_change(plan)
        info = context.tables.describe(scratch.table)
        if info is None:
            raise errors.NotFound(f"{scratch.table} was dropped meanwhile", fix="try again")
        chunk_checks = ChunkChecks(context, compute, plan, ())
        chunk_checks.judge(self.chunk, record, 0, SCRATCH_EPOCH)
        diff = compute_diff(context, candidate_request(context, plan, info.snapshot_id, _SAMPLES))
        measured = compute.measuring.measure(
            (target.table, target.snapshot_id), (scratch.table, info.snapshot_id), scope,
            resolved.contract.measures, (*LINEAGE_NAMES, *added_column_names(change)), change,
        )  # fmt: skip
        context.progress.advance()
        balances = partition_balances(scope.partitions, measured.old, measured.new)
        checks = [
            *check_inputs(compute, plan),
            *gates.check_schema_kept(resolved.contract, info, change),
            *chunk_checks.results_of(self.chunk.chunk_id),
            gates.check_diff_adds_up(diff, balances),
            *column_scope.column_checks(compute, plan, info, diff),
            *mask_checks(context, plan, info.snapshot_id, self.copies),
        ]
        context.progress.advance()
        return TrialOutcome(
            partition=self.chunk.partitions[0],
            record=record,
            checks=tuple(
                gate_registry.apply_gate_choices(checks, resolved.manifest.validation.gates)
            ),
            diff=diff,
            totals=measured.totals,
            not_judged=_gates_of_whole_runs(plan),
        )


def _gates_of_whole_runs(plan: Plan) -> tuple[str, ...]:
    """Name what only a whole result shows, as far as this run would be judged by it."""
    contract, manifest = plan.resolved.contract, plan.resolved.manifest
    there = {
        "rows beyond the edges of the range": not publish_modes.why_no_edge_check(plan),
        "golden rows": bool(manifest.validation.golden),
        "totals against the sources": bool(contract.source_totals),
        "thresholds of totals": bool(contract.thresholds),
        "expectations that need all rows": bool(contract.suites or manifest.validation.suites),
        "rows deleted since": bool(plan.resolved.tombstones),
    }
    return tuple(name for name, is_declared in there.items() if is_declared)


def remove_abandoned_trials(context: Context) -> list[str]:
    """Remove scratch tables of trials whose process is dead; return notes on what is left.

    A process elsewhere counts as alive: `maintain` removes its table a day later.
    """
    notes: list[str] = []
    for name in filter(TRIAL_TABLE.fullmatch, context.shadows.list()):
        try:
            info = context.tables.describe(name)
        except (errors.LostFile, errors.Unsupported):
            continue  # `maintain` names it.
        driver = info.properties.get(DRIVER_PROPERTY) if info else None
        if driver is None or context.is_alive(driver):
            continue
        notes += [f"removed {name}, which a killed try left behind"]
        notes += _remove(context, name)
    return notes


def _remove(context: Context, name: str) -> list[str]:
    left = remove_with_files(context, name)
    return [f"files of the trial stay at {left.location}: {left.because}"] if left else []
