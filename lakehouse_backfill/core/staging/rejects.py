"""Keep what a transform rejected of a chunk: counts in the ledger, records in their own table.

Values of restricted columns are hidden, also where a transform wrote one into a reason: a reason
is kept only if it stands in the job's code, word for word, as a string.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from lakehouse_backfill.core.planning.job_code import archived_texts, code_texts
from lakehouse_backfill.core.planning.target.publish_modes import is_externally_written
from lakehouse_backfill.core.runs import rejected_rows
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.privacy import HIDDEN
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan, has_restricted_columns
from lakehouse_backfill.domain.run import ChunkRecord, Rejects
from lakehouse_backfill.domain.serialization import canonical_json, to_json_value
from lakehouse_backfill.ports.compute import Staging


def record_rejects(
    context: Context, staging: Staging, plan: Plan, chunk: Chunk, record: ChunkRecord
) -> ChunkRecord:
    """Store the rejected rows of a chunk, and return its ledger row with their number.

    They are stored before the ledger row. The same again stores them once more, with a newer time:
    readers take the newest of a chunk.
    """
    if is_externally_written(plan):
        return record
    rejects = staging.rejects(plan, chunk)
    if rejects is None:
        return record
    shown = _reason_filter(context, plan)
    # A record would outlast the person that a later tombstone names.
    is_kept = not plan.resolved.contract.tombstones
    rows = _rows(context, plan, chunk, rejects, shown) if is_kept else []
    if rows:
        context.runs.record_rejects(plan.run_id, record.epoch, rows)
    seal = rejected_rows.rows_seal(row["seal"] for row in rows)
    return _with_counts(record, rejects, shown).model_copy(update={"rejects_seal": seal})


def count_rejects(
    context: Context, plan: Plan, record: ChunkRecord, rejects: Rejects | None
) -> ChunkRecord:
    """Return a chunk's ledger row with the number of its rejected rows, and of each reason."""
    if rejects is None:
        return record
    return _with_counts(record, rejects, _reason_filter(context, plan))


def _with_counts(record: ChunkRecord, rejects: Rejects, shown: Callable[[str], str]) -> ChunkRecord:
    counts = Counter[str]()
    for reason, count in rejects.reasons.items():
        counts[shown(reason)] += count
    return record.model_copy(
        update={
            "rejected_rows": rejects.rows,
            "reject_reasons": tuple(f"{count:,} {reason}" for reason, count in counts.items()),
        }
    )


def _reason_filter(context: Context, plan: Plan) -> Callable[[str], str]:
    """Return what gives a reason as reports may show it."""
    if not has_restricted_columns(plan):
        return lambda reason: reason
    texts = [str(one["text"] or "") for one in archived_texts(context, plan.run_id)]
    texts = texts or list(code_texts(context, plan.resolved).values())
    return lambda reason: reason if _is_literal(reason, texts) else HIDDEN


def _is_literal(reason: str, texts: list[str]) -> bool:
    return any(f"{quote}{reason}{quote}" in text for text in texts for quote in "\"'")


def _rows(
    context: Context, plan: Plan, chunk: Chunk, rejects: Rejects, shown: Callable[[str], str]
) -> list[dict[str, Any]]:
    redaction = context.redaction(plan.resolved.contract)
    sources = ", ".join(pin.name for pin in plan.resolved.sources if pin.role == "source")
    now = context.clock.now()
    rows: list[dict[str, Any]] = [
        {
            "run_id": plan.run_id,
            "chunk_id": chunk.chunk_id,
            "source": sources,
            "record_key": canonical_json(to_json_value(redaction.row(row.key))),
            "reason": shown(row.reason),
            "record": canonical_json(to_json_value(redaction.row(row.record))),
            "rejected_at": now,
        }
        for row in rejects.records
    ]
    return [row | {"seal": rejected_rows.row_seal(row)} for row in rows]
