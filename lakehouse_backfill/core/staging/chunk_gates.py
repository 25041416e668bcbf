"""What the numbers of one staged chunk mean, before the next chunk is computed (Q9).

Gates that also judge the whole result have the same names here, so that what a run manifest says of
them (`validation.gates`) holds for chunks too.
"""

from __future__ import annotations

from lakehouse_backfill.core.validation import gates
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.inspection import ChunkFacts
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord


def judge_chunk(
    plan: Plan, record: ChunkRecord, facts: ChunkFacts, rows_before: int, emptied: tuple[str, ...]
) -> tuple[CheckResult, ...]:
    """Give the built-in gates of a chunk; `rows_before` is what earlier chunks wrote.

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
    """Say which gates a chunk failed, with their numbers."""
    said = "; ".join(f"{check.name}: {check.detail}" for check in failed)
    return (
        f"chunk {chunk.chunk_id} ({partitions.describe_labels(chunk.partitions)}) failed "
        f"{len(failed)} of its checks: {said}"
    )


def _check_rows_stored(record: ChunkRecord, facts: ChunkFacts) -> CheckResult:
    rows = sum(facts.rows.values())
    return CheckResult(
        name="chunk rows are all stored",
        group="technical",
        passed=rows == record.output_rows,
        detail=f"{record.output_rows} computed, {rows} stored",
        observed=rows,
        limit=record.output_rows,
        waivable=False,
    )


def _check_rows_so_far(plan: Plan, rows: int) -> CheckResult:
    limit = plan.resolved.manifest.safety.max_rows
    return CheckResult(
        name="row count is in range",
        group="technical",
        passed=limit is None or rows <= limit,
        detail=f"{rows} rows up to this chunk" + (f", at most {limit}" if limit else ""),
        observed=rows,
        limit=limit,
    )


def _check_rows_inside(plan: Plan, record: ChunkRecord) -> CheckResult:
    """Rows of a warm-up fall outside by design; without one, a job that hits nothing is wrong."""
    outside = record.outside_rows
    reads_more = any(pin.warm_up_days or pin.cool_down_days for pin in plan.resolved.sources)
    return CheckResult(
        name="rows lie inside the chunk",
        group="technical",
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
        CheckResult(
            name="rows are those of the row predicate",
            group="technical",
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
        CheckResult(
            name="keys have no nulls",
            group="technical",
            passed=not nulls,
            detail=", ".join(nulls) or f"{', '.join(plan.resolved.contract.key)} are never null",
            observed=sum(facts.null_keys.values()),
            limit=0,
        ),
        gates.check_keys_unique(facts.duplicate_keys, "chunk"),
    )
