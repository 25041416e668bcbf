"""Each chunk is checked when it is staged; the first bad one halts the run (Q9)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.core.approval import waivers
from lakehouse_backfill.core.planning.pinning import base_files
from lakehouse_backfill.core.runs import gate_names
from lakehouse_backfill.core.runs.workbench import ComputePorts, Context
from lakehouse_backfill.core.staging import chunk_gates
from lakehouse_backfill.core.validation.suites import declared_suites, suite_parameters
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.plain import to_json_value
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.scope import Chunk
from lakehouse_backfill.errors import ChecksFailed

CHUNK_CHECKS = "chunk-checks"


class ChunkChecks:
    """Judges the chunks of one staging, from what the shadow holds of them."""

    def __init__(
        self, bench: Context, compute: ComputePorts, plan: Plan, waived: tuple[waivers.Waiver, ...]
    ) -> None:
        self._bench = bench
        self._compute = compute
        self._plan = plan
        self._waived = waived
        self._seen: dict[str, tuple[CheckResult, ...]] = {}
        self._records: dict[str, ChunkRecord] = {}
        self._parameters: dict[str, dict[str, list[Any]]] = {}

    def judge(self, chunk: Chunk, record: ChunkRecord, rows_before: int, epoch: int) -> ChunkRecord:
        """Give the chunk's row for the ledger: done, or failed with its problem."""
        plan = self._plan
        with self._bench.journal.bind(**plan.labels).span("check chunk", chunk_id=chunk.chunk_id):
            facts = self._compute.inspecting.chunk(plan, chunk, record.snapshot_id)
            empty = chunk_gates.empty_chunk_partitions(record, facts)
            emptied = tuple(label for label in empty if label in self._before)
            results = [
                *chunk_gates.judge_chunk(plan, record, facts, rows_before, emptied),
                *self._rows(chunk, record),
            ]
        checks = tuple(
            gate_names.apply_gate_choices(results, plan.resolved.manifest.validation.gates)
        )
        failed = waivers.failed_blocking_checks(checks)
        closed = waivers.unwaived_failures(checks, waivers.chunk_subject(record), self._waived)
        problem = chunk_gates.describe_failed_checks(record, closed or failed) if failed else ""
        judged = record.model_copy(
            update={
                "status": "failed" if closed else "done",
                "problem": problem if closed or not failed else f"waived: {problem}",
                "epoch": epoch,
            }
        )
        self._seen[chunk.chunk_id], self._records[chunk.chunk_id] = checks, judged
        return judged

    def require_passed(self, record: ChunkRecord) -> None:
        """Raise ChecksFailed, naming chunk, gates, numbers and what to type, for a failed one."""
        if record.status == "done":
            return
        judged, run_id = waivers.chunk_subject(record), record.run_id
        closed = waivers.unwaived_failures(self._seen[record.chunk_id], judged, self._waived)
        raise ChecksFailed(
            record.problem,
            state="the run is halted: this chunk stays in the shadow, later ones were not "
            "computed; readers see what they saw before",
            fix=f"correct job or input: {commands.plan_command(self._plan.manifest_file, run_id)}; "
            f"or let it pass, for the record: {waivers.waive_instructions(run_id, closed)}",
            stop=waivers.stop_detail(judged, self._keep(record.epoch), closed),
        )

    def is_kept(self, record: ChunkRecord) -> bool:
        """Tell whether the verdict on a chunk is stored: it is not when its process was killed."""
        earlier = self._earlier.get(record.chunk_id, {})
        return bool(earlier.get("checksum") == record.checksum)

    @cached_property
    def _earlier(self) -> dict[str, dict[str, Any]]:
        before = self._bench.evidence.newest(self._plan.run_id, CHUNK_CHECKS)
        return {item["chunk_id"]: item for item in before[1]["chunks"]} if before else {}

    def finish(self, epoch: int) -> None:
        """Store what was judged; nothing when every chunk had been before."""
        if self._seen:
            self._keep(epoch)

    def _keep(self, epoch: int) -> str:
        """Store what was judged, together with what earlier attempts did; give the digest."""
        found = {
            chunk_id: {
                "chunk_id": chunk_id,
                "checksum": self._records[chunk_id].checksum,
                "status": self._records[chunk_id].status,
                "checks": [to_json_value(check.model_dump(mode="json")) for check in checks],
            }
            for chunk_id, checks in self._seen.items()
        }
        wanted = [chunk.chunk_id for chunk in self._plan.resolved.chunks]
        if len(found) < len(wanted):
            found = self._earlier | found
        document = {"chunks": [found[name] for name in wanted if name in found]}
        return self._bench.evidence.record(self._plan.run_id, CHUNK_CHECKS, document, epoch)

    def _rows(self, chunk: Chunk, record: ChunkRecord) -> list[CheckResult]:
        """What the suites of the output say of single rows."""
        wanted = [suite for suite in declared_suites(self._plan) if suite.on == "output"]
        if self._plan.resolved.manifest.validation.chunk_checks == "counts" or not wanted:
            return []
        frame = self._compute.inspecting.rows(self._plan, chunk, record.snapshot_id)
        results: list[CheckResult] = []
        for number, suite in enumerate(wanted):
            place = f"{number} {suite.file}"
            if place not in self._parameters:
                self._parameters[place] = suite_parameters(self._compute, self._plan, suite)
            results += self._compute.judge.judge(
                frame, suite.file, self._parameters[place], "quality", rows_only=True
            )
        return results

    @cached_property
    def _before(self) -> frozenset[str]:
        """The partitions that hold rows in what readers see; from metadata, and only if asked."""
        files = base_files(self._bench, self._plan)
        return frozenset(file.partition or "" for file in files if file.rows)
