"""Judge the pinned input, and each staged chunk.

The pinned input is judged before staging costs anything (Q0). Each chunk is judged when it is
staged, before the next one is computed; the first bad one halts the run (Q9).

Gates that also judge the whole result have the same names here, so that what a run manifest says of
them (`validation.gates`) holds for chunks too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.guards.privacy import rules
from lakehouse_backfill.core.planning.inputs.completeness import (
    check_completeness,
    completeness_period,
    expected_periods,
)
from lakehouse_backfill.core.planning.inputs.pins import base_files
from lakehouse_backfill.core.planning.scope import key_chunks
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import chunk_sort_key
from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.core.validation.suites import (
    PreparedSuite,
    declared_suites,
    judge_input_by_counts,
    judge_rows_by_counts,
    prepare_suite,
    rules_of,
    suite_parameters,
)
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Assumption, SuiteRef
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.domain.run import ChunkFacts, ChunkRecord
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.errors import ChecksFailed
from lakehouse_backfill.ports.compute import ComputePorts


def judge_chunk(
    plan: Plan, record: ChunkRecord, facts: ChunkFacts, rows_before: int, emptied: tuple[str, ...]
) -> list[CheckResult]:
    """Return the built-in gates of a chunk; `rows_before` is what earlier chunks wrote.

    `emptied` are its partitions without rows that hold some in what readers see. With a warm-up or
    cool-down, a job computes rows outside by design; without one, a job that hits nothing is wrong.
    """
    resolved, stored, computed = plan.resolved, sum(facts.rows.values()), record.output_rows
    reads_more = _reads_beside_partitions(resolved)
    results = [
        gate_registry.gate_result(
            "chunk rows are all stored",
            passed=stored == computed,
            detail=f"{computed:,} computed, {stored:,} stored",
            observed=stored,
            limit=computed,
        ),
        gates.check_row_count(plan, rows_before + computed, is_whole=False),
        *gates.check_rejects(plan, (record,)),
        gates.check_none_emptied(emptied),
        _check_rows_outside(
            record,
            reads_more=reads_more,
            is_part=key_chunks.is_by_key(resolved.chunks),
        ),
    ]
    if record.stray_rows is not None:
        results.append(
            gate_registry.gate_result(
                "rows are those of the row predicate",
                passed=not record.stray_rows or reads_more,
                detail=f"{record.stray_rows:,} rows of the partitions are others, and left out; "
                f"{record.carried_rows:,} carried over",
                observed=record.stray_rows,
                limit=None if reads_more else 0,
            )
        )
    if key := resolved.contract.key:
        nulls = [f"{rows:,} rows without {name}" for name, rows in facts.null_keys.items() if rows]
        detail = ", ".join(nulls) or f"{', '.join(key)} are never null"
        rows_without = sum(facts.null_keys.values())
        results += [
            gate_registry.fault_count_result("keys have no nulls", rows_without, detail),
            gates.check_keys_unique(facts.duplicate_keys, "chunk"),
        ]
    return results


def _check_rows_outside(record: ChunkRecord, *, reads_more: bool, is_part: bool) -> CheckResult:
    """Judge the rows outside a chunk; of one that was found in the shadow they are not known.

    A row outside a part of a table (`is_part`) would be lost: the chunk of its key doesn't read it.
    """
    outside = f"{record.outside_rows:,} outside and left out"
    is_unknown = record.recovered and not is_part
    if is_unknown:
        outside = "those outside are not known: it landed before they were recorded"
    return gate_registry.gate_result(
        "rows lie inside the chunk",
        passed=not record.outside_rows or (reads_more and not is_part),
        detail=f"{record.output_rows:,} inside, {outside}",
        observed=None if is_unknown else record.outside_rows,
        limit=None if reads_more else 0,
        blocking=record.output_rows == 0 or is_part,
    )


def _reads_beside_partitions(resolved: ResolvedManifest) -> bool:
    """Return whether a chunk reads more than its partitions: also what follows a kept state."""
    is_stateful = resolved.manifest.stateful is not None
    return is_stateful or any(pin.warm_up_days or pin.cool_down_days for pin in resolved.sources)


def _check_documents(checks: Iterable[CheckResult]) -> list[Any]:
    return [to_json_value(check.model_dump(mode="json")) for check in checks]


CHUNK_CHECKS = "chunk-checks"
#: So many verdicts make a document. A full one is never written again, so that a chunk costs the
#: same however many were judged before it; after a kill at most these chunks are judged again.
_VERDICTS_PER_DOCUMENT = 32


def stored_verdicts(context: Context, run_id: str) -> list[dict[str, Any]]:
    """Return the stored verdicts on a run's chunks, each one's newest, in the order of chunks."""
    found: dict[str, dict[str, Any]] = {}
    for document in context.evidence.all_of(run_id, CHUNK_CHECKS):
        found |= {item["chunk_id"]: item for item in document["chunks"]}
    return [found[name] for name in sorted(found, key=chunk_sort_key)]


@dataclass(frozen=True)
class _EarlierVerdicts:
    """What earlier attempts stored: checksums of judged chunks, and the document to go on with."""

    checksums: dict[str, str | None]
    open_document: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, documents: Iterable[dict[str, Any]]) -> _EarlierVerdicts:
        checksums: dict[str, str | None] = {}
        newest: list[dict[str, Any]] = []
        for document in documents:
            newest = document["chunks"]
            checksums |= {item["chunk_id"]: item.get("checksum") for item in newest}
        is_full = len(newest) >= _VERDICTS_PER_DOCUMENT
        return cls(checksums, {} if is_full else {item["chunk_id"]: item for item in newest})


@dataclass
class ChunkChecks:
    """Judges the chunks of one staging, from what the shadow holds of them."""

    context: Context
    compute: ComputePorts
    plan: Plan
    waived: tuple[decisions.Waiver, ...]
    #: The checks of the chunk that was judged last, with its id.
    _newest: tuple[str, list[CheckResult]] = ("", [])
    #: The verdicts of the newest document, by chunk.
    _open: dict[str, dict[str, Any]] = field(default_factory=dict)
    _has_unstored: bool = False

    def judge(self, chunk: Chunk, record: ChunkRecord, rows_before: int, epoch: int) -> ChunkRecord:
        """Return the chunk's row for the ledger: done, or failed with its problem."""
        plan = self.plan
        with self.context.journal.bind(**plan.labels).span("check chunk", chunk_id=chunk.chunk_id):
            suites = self._row_suites
            rules = tuple(rule for suite in suites for rule in rules_of(suite.of_rows))
            facts = self.compute.inspecting.chunk(plan, chunk, record.snapshot_id, rules)
            # A chunk by key may be empty: whether the table becomes so is judged on the result.
            whole = () if chunk.keys else record.partitions
            empty = [label for label in whole if not facts.rows.get(label)]
            emptied = tuple(label for label in empty if label in self._partitions_with_rows)
            results = judge_chunk(plan, record, facts, rows_before, emptied)
            results += self._row_suite_results(chunk, record, facts)
        checks = gate_registry.apply_gate_choices(results, plan.resolved.manifest.validation.gates)
        failed = decisions.failed_blocking_checks(checks)
        closed = decisions.unwaived_failures(checks, decisions.chunk_subject(record), self.waived)
        problem = ""
        if shown := closed or failed:
            problem = (
                f"chunk {chunk.chunk_id} ({key_chunks.describe_chunk(chunk)}) failed "
                f"{len(shown)} of its checks: {gate_registry.describe_checks(shown)}"
            )
        status = "failed" if closed else "done"
        if failed and not closed:
            problem = f"waived: {problem}"
        judged = record.model_copy(update={"status": status, "problem": problem, "epoch": epoch})
        self._add_verdict(judged, checks, epoch)
        return judged

    def _add_verdict(self, judged: ChunkRecord, checks: list[CheckResult], epoch: int) -> None:
        if not self._newest[0]:
            self._open = dict(self._earlier.open_document)
        if len(self._open) >= _VERDICTS_PER_DOCUMENT and judged.chunk_id not in self._open:
            self._open = {}
        self._newest = judged.chunk_id, checks
        self._open[judged.chunk_id] = {
            "chunk_id": judged.chunk_id,
            "checksum": judged.checksum,
            "status": judged.status,
            "checks": _check_documents(checks),
        }
        self._has_unstored = True
        if len(self._open) >= _VERDICTS_PER_DOCUMENT:
            self._store_verdicts(epoch)

    def results_of(self, chunk_id: str) -> tuple[CheckResult, ...]:
        """Return the checks of the chunk that was judged last; raises KeyError for another one."""
        judged_id, checks = self._newest
        if judged_id != chunk_id:
            raise KeyError(chunk_id)
        return tuple(checks)

    def require_passed(self, record: ChunkRecord) -> None:
        """Raise ChecksFailed, naming chunk, gates, numbers and what to type, for a failed one."""
        if record.status == "done":
            return
        judged, run_id = decisions.chunk_subject(record), record.run_id
        checks = self.results_of(record.chunk_id)
        closed = decisions.unwaived_failures(checks, judged, self.waived)
        raise ChecksFailed(
            record.problem,
            state="the run is halted: this chunk stays in the shadow, later ones were not "
            "computed; readers see what they saw before",
            fix=f"correct job or input: {plan_command(self.plan.manifest_file, run_id)}; "
            f"or let it pass, for the record: {decisions.waive_instructions(run_id, closed)}",
            stop=decisions.stop_detail(judged, self._store_verdicts(record.epoch), closed),
        )

    def is_verdict_stored(self, record: ChunkRecord) -> bool:
        """Return whether the verdict on a chunk is stored; not if its process was killed."""
        return self._earlier.checksums.get(record.chunk_id) == record.checksum

    @cached_property
    def _earlier(self) -> _EarlierVerdicts:
        return _EarlierVerdicts.of(self.context.evidence.all_of(self.plan.run_id, CHUNK_CHECKS))

    def finish(self, epoch: int) -> None:
        """Store what was judged; nothing when every chunk had been before."""
        if self._has_unstored:
            self._store_verdicts(epoch)

    def _store_verdicts(self, epoch: int) -> str:
        """Store the verdicts that make the newest document; give its digest."""
        found = [self._open[name] for name in sorted(self._open, key=chunk_sort_key)]
        document: dict[str, Any] = {"chunks": found}
        if left := [name for suite in self._row_suites for name in suite.of_whole]:
            document["judged_on_result"] = left
        self._has_unstored = False
        return self.context.evidence.record(self.plan.run_id, CHUNK_CHECKS, document, epoch)

    def _row_suite_results(
        self, chunk: Chunk, record: ChunkRecord, facts: ChunkFacts
    ) -> list[CheckResult]:
        """Judge single rows of the chunk by the suites of the output, from what was counted."""
        scope = self.plan.chunk_rows(chunk)
        counts, rows = iter(facts.broken), sum(facts.rows.values())
        results: list[CheckResult] = []
        for suite in self._row_suites:
            broken = tuple(islice(counts, len(rules_of(suite.of_rows))))
            results += judge_rows_by_counts(
                self.compute,
                suite,
                (rows, broken),
                lambda: self.compute.measuring.frame(
                    self.plan.shadow_table, record.snapshot_id, scope
                ),
                self.context.redaction(self.plan.resolved.contract),
            )
        return results

    @cached_property
    def _row_suites(self) -> tuple[PreparedSuite, ...]:
        """Return the suites that single rows of chunks are held to; read once."""
        suites = [suite for suite in declared_suites(self.plan) if suite.on == "output"]
        if self.plan.resolved.manifest.validation.chunk_checks == "counts" or not suites:
            return ()
        shadow = self.context.tables.describe(self.plan.shadow_table)
        types = {column.name: column.type for column in shadow.columns} if shadow else {}
        parameters: dict[str, list[Any]] = {}
        return tuple(
            prepare_suite(
                self.compute,
                suite,
                suite_parameters(self.compute, self.plan, suite, parameters),
                types,
            )
            for suite in suites
        )

    @cached_property
    def _partitions_with_rows(self) -> frozenset[str]:
        """Return the partitions in which readers see rows; read from metadata on first use."""
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
        results = check_inputs(compute, plan)
    if results:
        document = {"checks": _check_documents(results)}
        digest = context.evidence.record(plan.run_id, INPUT_CHECKS, document, epoch)
        closed = decisions.unwaived_failures(results, judged, waived)
        if closed:
            replan = plan_command(plan.manifest_file, plan.run_id)
            raise ChecksFailed(
                f"the pinned input failed {len(closed)} of {len(results)} checks: "
                f"{gate_registry.describe_checks(closed)}",
                state="nothing was staged; readers see what they saw before",
                fix=f"pin a corrected input: {replan}; or let it pass, for the record: "
                f"{decisions.waive_instructions(plan.run_id, closed)}",
                stop=decisions.stop_detail(judged, digest, closed),
            )


def check_inputs(compute: ComputePorts, plan: Plan) -> tuple[CheckResult, ...]:
    """Return the results on the pinned input: completeness, suites and assumptions."""
    return (
        *_completeness_results(compute, plan),
        *_input_suite_results(compute, plan),
        *(_assumption_result(compute, plan, one) for one in plan.resolved.contract.assumptions),
    )


def _completeness_results(compute: ComputePorts, plan: Plan) -> Iterator[CheckResult]:
    for pin in plan.resolved.sources:
        source = plan.resolved.manifest.sources.get(pin.name)
        if source is None or pin.range is None:
            continue
        unit = completeness_period(source)
        wanted = expected_periods(pin, plan.resolved.scope, unit)
        found = compute.inspecting.periods(plan, pin.name, unit)
        yield check_completeness(pin.name, source, wanted, found)


def _input_suite_results(compute: ComputePorts, plan: Plan) -> Iterator[CheckResult]:
    for suite in declared_suites(plan):
        if suite.on == "output":
            continue
        for result in _judge_input(compute, plan, suite):
            # Two inputs may be held to the same expectation: a waiver is for one of them.
            yield result.model_copy(update={"name": f"{suite.on}: {result.name}"})


def _judge_input(
    compute: ComputePorts, plan: Plan, suite: SuiteRef | Assumption
) -> Sequence[CheckResult]:
    """Judge a pinned input by a suite: by counts where they tell all, else Great Expectations."""
    frame = compute.measuring.input(plan, suite.on)
    parameters = suite_parameters(compute, plan, suite)
    hidden = rules.input_redaction(plan, suite.on)
    columns = next((pin.columns for pin in plan.resolved.sources if pin.name == suite.on), ())
    if types := {column.name: column.type for column in columns}:
        prepared = prepare_suite(compute, suite, parameters, types)
        counted = judge_input_by_counts(compute, prepared, frame, hidden)
        if counted is not None:
            return counted
    return compute.judge.judge(frame, suite.file, parameters, "input", redaction=hidden)


def _assumption_result(compute: ComputePorts, plan: Plan, assumption: Assumption) -> CheckResult:
    """Judge an assumption as one gate under its own words: they are what people decide on."""
    results = _judge_input(compute, plan, assumption)
    failed = decisions.failed_blocking_checks(results)
    return CheckResult(
        name=assumption.text,
        group="input",
        passed=not failed,
        detail=f"assumed of {assumption.on}: {gate_registry.describe_checks(failed or results)}",
        observed=len(failed),
        limit=0,
    )
