"""The pinned input and each staged chunk judged.

What the numbers of one staged chunk mean, before the next chunk is computed (Q9).

Gates that also judge the whole result have the same names here, so that what a run manifest says of
them (`validation.gates`) holds for chunks too.

Each chunk is checked when it is staged; the first bad one halts the run (Q9).

The pinned input is judged before staging costs anything (Q0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning import resolve
from lakehouse_backfill.core.planning.pins import base_files
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import ComputePorts, Context
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.suites import declared_suites, suite_parameters
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Assumption
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ChecksFailed


def judge_chunk(
    plan: Plan, record: ChunkRecord, facts: ChunkFacts, rows_before: int, emptied: tuple[str, ...]
) -> tuple[CheckResult, ...]:
    """Return the built-in gates of a chunk; `rows_before` is what earlier chunks wrote.

    `emptied` are its partitions without rows that hold some in what readers see.
    """
    return (
        _check_rows_stored(record, facts),
        _check_rows_so_far(plan, rows_before + record.output_rows),
        gates.check_none_emptied(emptied),
        _check_rows_inside(plan, record),
        *_check_predicate_rows(plan, record),
        *(_check_chunk_keys(plan, facts) if plan.resolved.contract.key else ()),
    )


def empty_chunk_partitions(record: ChunkRecord, facts: ChunkFacts) -> tuple[str, ...]:
    """Name the partitions of a chunk that hold no row."""
    return tuple(label for label in record.partitions if not facts.rows.get(label))


def describe_failed_checks(chunk: ChunkRecord, failed: tuple[CheckResult, ...]) -> str:
    """Describe which gates a chunk failed, with their numbers."""
    said = "; ".join(f"{check.name}: {check.detail}" for check in failed)
    return (
        f"chunk {chunk.chunk_id} ({partitions.describe_labels(chunk.partitions)}) failed "
        f"{len(failed)} of its checks: {said}"
    )


def _check_rows_stored(record: ChunkRecord, facts: ChunkFacts) -> CheckResult:
    rows = sum(facts.rows.values())
    return gate_registry.gate_result(
        "chunk rows are all stored",
        passed=rows == record.output_rows,
        detail=f"{record.output_rows} computed, {rows} stored",
        observed=rows,
        limit=record.output_rows,
    )


def _check_rows_so_far(plan: Plan, rows: int) -> CheckResult:
    limit = plan.resolved.manifest.safety.max_rows
    return gate_registry.gate_result(
        "row count is in range",
        passed=limit is None or rows <= limit,
        detail=f"{rows} rows up to this chunk" + (f", at most {limit}" if limit else ""),
        observed=rows,
        limit=limit,
    )


def _check_rows_inside(plan: Plan, record: ChunkRecord) -> CheckResult:
    """Rows of a warm-up fall outside by design; without one, a job that hits nothing is wrong."""
    outside = record.outside_rows
    reads_more = any(pin.warm_up_days or pin.cool_down_days for pin in plan.resolved.sources)
    return gate_registry.gate_result(
        "rows lie inside the chunk",
        passed=not outside or reads_more,
        detail=f"{record.output_rows} inside, {outside} outside and left out",
        observed=outside,
        limit=None if reads_more else 0,
        blocking=record.output_rows == 0,
    )


def _check_predicate_rows(plan: Plan, record: ChunkRecord) -> tuple[CheckResult, ...]:
    """With a row predicate: the job computes its rows only; a warm-up may bring others."""
    if record.stray_rows is None:
        return ()
    reads_more = any(pin.warm_up_days or pin.cool_down_days for pin in plan.resolved.sources)
    return (
        gate_registry.gate_result(
            "rows are those of the row predicate",
            passed=not record.stray_rows or reads_more,
            detail=f"{record.stray_rows} rows of the partitions are others, and left out; "
            f"{record.carried_rows} carried over",
            observed=record.stray_rows,
            limit=None if reads_more else 0,
        ),
    )


def _check_chunk_keys(plan: Plan, facts: ChunkFacts) -> tuple[CheckResult, ...]:
    nulls = [f"{count} rows without {name}" for name, count in facts.null_keys.items() if count]
    return (
        gate_registry.gate_result(
            "keys have no nulls",
            passed=not nulls,
            detail=", ".join(nulls) or f"{', '.join(plan.resolved.contract.key)} are never null",
            observed=sum(facts.null_keys.values()),
            limit=0,
        ),
        gates.check_keys_unique(facts.duplicate_keys, "chunk"),
    )


CHUNK_CHECKS = "chunk-checks"


@dataclass
class ChunkChecks:
    """Judges the chunks of one staging, from what the shadow holds of them."""

    context: Context
    compute: ComputePorts
    plan: Plan
    waived: tuple[decisions.Waiver, ...]
    _results: dict[str, tuple[CheckResult, ...]] = field(default_factory=dict)
    _records: dict[str, ChunkRecord] = field(default_factory=dict)
    _parameters: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def judge(self, chunk: Chunk, record: ChunkRecord, rows_before: int, epoch: int) -> ChunkRecord:
        """Return the chunk's row for the ledger: done, or failed with its problem."""
        plan = self.plan
        with self.context.journal.bind(**plan.labels).span("check chunk", chunk_id=chunk.chunk_id):
            facts = self.compute.inspecting.chunk(plan, chunk, record.snapshot_id)
            empty = empty_chunk_partitions(record, facts)
            emptied = tuple(label for label in empty if label in self._partitions_with_rows)
            results = [
                *judge_chunk(plan, record, facts, rows_before, emptied),
                *self._row_suite_results(chunk, record),
            ]
        checks = tuple(
            gate_registry.apply_gate_choices(results, plan.resolved.manifest.validation.gates)
        )
        failed = decisions.failed_blocking_checks(checks)
        closed = decisions.unwaived_failures(checks, decisions.chunk_subject(record), self.waived)
        problem = describe_failed_checks(record, closed or failed) if failed else ""
        judged = record.model_copy(
            update={
                "status": "failed" if closed else "done",
                "problem": problem if closed or not failed else f"waived: {problem}",
                "epoch": epoch,
            }
        )
        self._results[chunk.chunk_id], self._records[chunk.chunk_id] = checks, judged
        return judged

    def require_passed(self, record: ChunkRecord) -> None:
        """Raise ChecksFailed, naming chunk, gates, numbers and what to type, for a failed one."""
        if record.status == "done":
            return
        judged, run_id = decisions.chunk_subject(record), record.run_id
        closed = decisions.unwaived_failures(self._results[record.chunk_id], judged, self.waived)
        raise ChecksFailed(
            record.problem,
            state="the run is halted: this chunk stays in the shadow, later ones were not "
            "computed; readers see what they saw before",
            fix=f"correct job or input: {errors.plan_command(self.plan.manifest_file, run_id)}; "
            f"or let it pass, for the record: {decisions.waive_instructions(run_id, closed)}",
            stop=decisions.stop_detail(judged, self._store_verdicts(record.epoch), closed),
        )

    def is_verdict_stored(self, record: ChunkRecord) -> bool:
        """Return whether the verdict on a chunk is stored; not if its process was killed."""
        earlier = self._earlier_verdicts.get(record.chunk_id, {})
        return bool(earlier.get("checksum") == record.checksum)

    @cached_property
    def _earlier_verdicts(self) -> dict[str, dict[str, Any]]:
        before = self.context.evidence.newest(self.plan.run_id, CHUNK_CHECKS)
        return {item["chunk_id"]: item for item in before[1]["chunks"]} if before else {}

    def finish(self, epoch: int) -> None:
        """Store what was judged; nothing when every chunk had been before."""
        if self._results:
            self._store_verdicts(epoch)

    def _store_verdicts(self, epoch: int) -> str:
        """Store what was judged, together with what earlier attempts did; give the digest."""
        found = {
            chunk_id: {
                "chunk_id": chunk_id,
                "checksum": self._records[chunk_id].checksum,
                "status": self._records[chunk_id].status,
                "checks": [to_json_value(check.model_dump(mode="json")) for check in checks],
            }
            for chunk_id, checks in self._results.items()
        }
        wanted = [chunk.chunk_id for chunk in self.plan.resolved.chunks]
        if len(found) < len(wanted):
            found = self._earlier_verdicts | found
        document = {"chunks": [found[name] for name in wanted if name in found]}
        return self.context.evidence.record(self.plan.run_id, CHUNK_CHECKS, document, epoch)

    def _row_suite_results(self, chunk: Chunk, record: ChunkRecord) -> list[CheckResult]:
        """What the suites of the output say of single rows."""
        wanted = [suite for suite in declared_suites(self.plan) if suite.on == "output"]
        if self.plan.resolved.manifest.validation.chunk_checks == "counts" or not wanted:
            return []
        frame = self.compute.inspecting.rows(self.plan, chunk, record.snapshot_id)
        results: list[CheckResult] = []
        for number, suite in enumerate(wanted):
            place = f"{number} {suite.file}"
            if place not in self._parameters:
                self._parameters[place] = suite_parameters(self.compute, self.plan, suite)
            results += self.compute.judge.judge(
                frame, suite.file, self._parameters[place], "quality", rows_only=True
            )
        return results

    @cached_property
    def _partitions_with_rows(self) -> frozenset[str]:
        """The partitions that hold rows in what readers see; from metadata, and only if asked."""
        files = base_files(self.context, self.plan)
        return frozenset(file.partition or "" for file in files if file.rows)


INPUT_CHECKS = "input-checks"


def judge_inputs(
    context: Context,
    compute: ComputePorts,
    plan: Plan,
    epoch: int,
    waived: tuple[decisions.Waiver, ...],
) -> None:
    """Check completeness, suites and assumptions of the pinned input; the verdict is evidence.

    A verdict that let the run go on holds for all of it: input and checks are pinned by the
    manifest hash. Raises ChecksFailed, which names every closed gate.
    """
    judged = decisions.WaiverSubject(decisions.INPUT_SCOPE, plan.manifest_hash)
    known = context.evidence.newest(plan.run_id, INPUT_CHECKS)
    if known is not None:
        before = [CheckResult.model_validate(check) for check in known[1]["checks"]]
        if not decisions.unwaived_failures(before, judged, waived):
            return
    with context.journal.bind(**plan.labels).span("judge input"):
        results = (
            *_completeness_results(compute, plan),
            *_input_suite_results(compute, plan),
            *(_assumption_result(compute, plan, one) for one in plan.resolved.contract.assumptions),
        )
    if results:
        document = {"checks": [to_json_value(result.model_dump(mode="json")) for result in results]}
        digest = context.evidence.record(plan.run_id, INPUT_CHECKS, document, epoch)
        closed = decisions.unwaived_failures(results, judged, waived)
        if closed:
            said = "; ".join(f"{result.name}: {result.detail}" for result in closed)
            replan = errors.plan_command(plan.manifest_file, plan.run_id)
            raise ChecksFailed(
                f"the pinned input failed {len(closed)} of {len(results)} checks: {said}",
                state="nothing was staged; readers see what they saw before",
                fix=f"pin a corrected input: {replan}; or let it pass, for the record: "
                f"{decisions.waive_instructions(plan.run_id, closed)}",
                stop=decisions.stop_detail(judged, digest, closed),
            )


def _completeness_results(compute: ComputePorts, plan: Plan) -> Iterator[CheckResult]:
    for pin in plan.resolved.sources:
        source = plan.resolved.manifest.sources.get(pin.name)
        if source is None or pin.range is None:
            continue
        unit = resolve.completeness_period(source)
        wanted = resolve.expected_periods(pin, plan.resolved.scope, unit)
        found = compute.inspecting.periods(plan, pin.name, unit)
        yield resolve.check_completeness(pin.name, source, wanted, found)


def _input_suite_results(compute: ComputePorts, plan: Plan) -> Iterator[CheckResult]:
    for suite in declared_suites(plan):
        if suite.on == "output":
            continue
        frame = compute.measuring.input(plan, suite.on)
        parameters = suite_parameters(compute, plan, suite)
        for result in compute.judge.judge(frame, suite.file, parameters, "input"):
            # Two inputs may be held to the same expectation: a waiver is for one of them.
            yield result.model_copy(update={"name": f"{suite.on}: {result.name}"})


def _assumption_result(compute: ComputePorts, plan: Plan, assumption: Assumption) -> CheckResult:
    """One gate for each assumption, under its own words: they are what people decide on."""
    frame = compute.measuring.input(plan, assumption.on)
    parameters = suite_parameters(compute, plan, assumption)
    results = compute.judge.judge(frame, assumption.file, parameters, "input")
    failed = decisions.failed_blocking_checks(results)
    said = "; ".join(f"{result.name}: {result.detail}" for result in failed or results)
    return CheckResult(
        name=assumption.text,
        group="input",
        passed=not failed,
        detail=f"assumed of {assumption.on}: {said}",
        observed=len(failed),
        limit=0,
    )
