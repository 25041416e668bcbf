"""reproduce: execute the archived code on the pinned inputs again, and compare with the accepted.

Into a scratch table: readers, the run and its shadow stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.approval.decide import logged_validation, trusted_events
from lakehouse_backfill.core.evidence.recompute import open_scratch_table
from lakehouse_backfill.core.planning.code_identity import code_files
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.value import digest
from lakehouse_backfill.errors import ApprovalMissing


@dataclass(frozen=True)
class ReproducedPartition:
    """One partition: the checksum that was accepted, and the one that came out again."""

    partition: str
    accepted: str
    again: str
    equal: bool


@dataclass(frozen=True)
class ReproduceResult:
    """What came out again; `code` is the digest of the files that were executed."""

    run_id: str
    code: str
    scratch_table: str
    partitions: tuple[ReproducedPartition, ...]
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every partition came out as it was accepted."""
        return all(one.equal for one in self.partitions)


def reproduce(bench: Context, run_id: str) -> ReproduceResult:
    """Compute all chunks of a run again and compare each partition's checksum.

    Lineage columns are left out. Raises NotFound when pins are gone, ApprovalMissing when nothing
    was validated, Unsupported for a run of another engine.
    """
    plan = bench.runs.plan(run_id)
    events = trusted_events(bench, bench.runs.status(run_id))
    found = logged_validation(bench, events, run_id)
    if found is None:
        raise ApprovalMissing(
            f"{run_id} has no result that could come out again",
            fix=f"lakehouse-backfill validate {run_id}",
        )
    chunks = plan.resolved.chunks
    with open_scratch_table(bench, plan, "again") as again:
        bench.progress.start("reproduce", len(chunks), "chunks")
        for chunk in chunks:
            record = again.compute(chunk)
            bench.progress.advance(1, record.output_rows)
        bench.progress.finish()
        added = rules_schema_change.added_column_names(
            rules_schema_change.declared_schema_change(plan)
        )
        sums = again.checksums(plan.resolved.scope.partitions, tuple(added))
        return ReproduceResult(
            run_id=run_id,
            code=digest(code_files(plan.resolved)),
            scratch_table=again.table,
            partitions=_compare_checksums(
                found[1], {label: one.text for label, one in sums.items()}
            ),
            notes=_carry_over_notes(plan),
        )


def _compare_checksums(
    validation: ValidationResult, again: dict[str, str]
) -> tuple[ReproducedPartition, ...]:
    found = []
    for one in validation.balances:
        # A partition without rows has no checksum of its own.
        came = again.get(one.partition, one.new_checksum if not one.new_count else "no rows")
        found.append(
            ReproducedPartition(
                one.partition, one.new_checksum, came, equal=came == one.new_checksum
            )
        )
    return tuple(found)


def _carry_over_notes(plan: Plan) -> tuple[str, ...]:
    carried = plan.resolved.catch_up.carried if plan.resolved.catch_up else ()
    runs = sorted({one.run_id for one in carried})
    if not runs:
        return ()
    return (f"chunks carried over from {', '.join(runs)} were computed from what that run read",)
