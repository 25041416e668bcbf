"""Judge the analysed plan of each chunk before it is written (D1).

What the engine makes of the code shows what no reading of the code can: types, orders, reads that
are put together at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse_backfill.core.guards.analysed_plan import find_in_plan
from lakehouse_backfill.core.guards.code_lines import locate_facts
from lakehouse_backfill.core.guards.findings import require_none_blocking, with_allowances
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.determinism import Finding
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.ports.compute import ComputePorts

#: Evidence of a run in whose plans something was found, or couldn't be looked for.
DETERMINISM = "determinism"
NOT_LOOKED_AT = (
    "the analysed plan was not looked at: the engine doesn't give it (Spark Connect, or a plan too "
    "deep to write out); types, orders and reads that are put together at run time are not judged"
)


@dataclass
class PlanJudge:
    """Judges the chunks of one staging; what is found is evidence."""

    context: Context
    compute: ComputePorts
    plan: Plan
    epoch: int
    _judged: set[str] = field(default_factory=set)
    _recorded: set[Finding] = field(default_factory=set)
    _is_noted: bool = False

    def judge(self, chunk: Chunk) -> None:
        """Record what is found; raise NonDeterministic for what the manifest doesn't allow."""
        if chunk.chunk_id in self._judged:
            return
        self._judged.add(chunk.chunk_id)
        text = self.compute.staging.analysed_plan(self.plan, chunk)
        if text is None:
            self._note_not_looked_at()
            return
        facts = find_in_plan(text)
        if not facts:
            return
        manifest = self.plan.resolved.manifest
        kept = job_code.archived_code(self.context, self.plan.code_of or self.plan.run_id)
        texts = {one["file"]: one["text"] for one in kept if one["text"] is not None}
        found = with_allowances(locate_facts(facts, texts, manifest.transform), manifest)
        if new := [one for one in found if one not in self._recorded]:
            self._recorded.update(new)
            findings = [one.model_dump(mode="json") for one in new]
            self._record({"chunk_id": chunk.chunk_id, "findings": findings})
        require_none_blocking(found, state="no row was written; readers see what they saw before")

    def _note_not_looked_at(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._record({"findings": [], "note": NOT_LOOKED_AT})

    def _record(self, document: dict[str, object]) -> None:
        self.context.evidence.record(self.plan.run_id, DETERMINISM, document, self.epoch)
