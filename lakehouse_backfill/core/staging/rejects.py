"""Keep what a transform rejected of a chunk: counts in the ledger, records in their own table.

Values of restricted columns are hidden, also where a transform wrote one into a reason: a reason is
kept only if it stands in the job's code, word for word, as a string.

Each row of `reject_record` bears a seal, and the chunk's ledger row bears one over all of them,
which is archived when the run is accepted: an edited, added or removed row is found. A chunk whose
staging was cut off has rows of several attempts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from lakehouse_backfill.core.planning.job_code import archived_texts, code_texts
from lakehouse_backfill.core.planning.target.publish_modes import is_externally_written
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import EventChains
from lakehouse_backfill.domain.guards.privacy import HIDDEN
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan, has_restricted_columns
from lakehouse_backfill.domain.run import (
    ChunkRecord,
    RejectedCount,
    RejectedGroup,
    Rejects,
    RunState,
)
from lakehouse_backfill.domain.serialization import canonical_json, digest, to_json_value
from lakehouse_backfill.ports.compute import Staging
from lakehouse_backfill.ports.control import Audit


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
    seal = rows_seal(row["seal"] for row in rows)
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


def with_earlier_rejects(
    context: Context, ledgers: dict[str, dict[str, ChunkRecord]], carried: ChunkRecord
) -> ChunkRecord:
    """Return a carried chunk's row with what the run that computed the chunk rejected.

    `ledgers` holds the chunks of runs that were read, and gets those that are read now.
    """
    run_id = carried.carried_from
    if run_id not in ledgers:
        ledgers[run_id] = {one.chunk_id: one for one in context.runs.chunks(run_id)}
    computed = ledgers[run_id].get(carried.chunk_id)
    if computed is None or computed.partitions != carried.partitions:
        return carried  # Only a part of that chunk is carried over.
    counts = {"rejected_rows", "reject_reasons"}
    return carried.model_copy(update={name: getattr(computed, name) for name in counts})


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
    return [row | {"seal": row_seal(row)} for row in rows]


_SEALED_FIELDS = (
    "run_id", "chunk_id", "source", "record_key", "reason", "record", "rejected_at",
)  # fmt: skip
#: States after the last chunk was recorded: no attempt to stage can be under way, or cut off.
_STAGED_STATES = frozenset(
    {
        RunState.STAGED,
        RunState.VALIDATED,
        RunState.ACCEPTED,
        RunState.PUBLISHING,
        RunState.PUBLISH_HALTED,
        RunState.PUBLISHED,
        RunState.ROLLED_BACK,
    }
)


def row_seal(row: Mapping[str, Any]) -> str:
    """Return the seal of a row of `reject_record`: SHA-256 of its other columns."""
    at = row["rejected_at"]
    stamp = at.astimezone(timezone.utc).isoformat() if isinstance(at, datetime) else at
    return digest({name: row.get(name) for name in _SEALED_FIELDS} | {"rejected_at": stamp})


def rows_seal(seals: Iterable[str]) -> str:
    """Return the seal over the rows of one attempt at a chunk, in any order."""
    return digest(sorted(seals))


def group_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[RejectedGroup, ...]:
    """Return the stored rows by run, chunk and attempt; their seals are worked out again."""
    seals: dict[tuple[str, str, datetime], list[str]] = {}
    edited: dict[tuple[str, str, datetime], str] = {}
    for row in rows:
        place = row["run_id"], row["chunk_id"] or "", row["rejected_at"]
        seal = row_seal(row)
        seals.setdefault(place, []).append(seal)
        # Rows of older releases have no seal.
        if row.get("seal") not in (None, seal):
            edited.setdefault(place, row["record_key"] or "")
    return tuple(
        RejectedGroup(
            run_id=run_id, chunk_id=chunk_id, rejected_at=at, rows=len(found),
            seal=rows_seal(found), edited_key=edited.get((run_id, chunk_id, at)),
        )
        for (run_id, chunk_id, at), found in seals.items()
    )  # fmt: skip


def audit(stored: Audit, chains: EventChains) -> dict[str, str]:
    """Return, by run, what is wrong with the stored rejected rows; `chains` were read before."""
    # Counts are read first: the rows of a chunk are stored before its count.
    counts = stored.rejected_counts()
    return find_faults(chains, counts, stored.rejected_groups())


def find_faults(
    chains: EventChains, counts: Iterable[RejectedCount], groups: Iterable[RejectedGroup]
) -> dict[str, str]:
    """Return, by run, what is wrong with its rejected rows beside what its ledger counts."""
    by_chunk: dict[tuple[str, str], list[RejectedGroup]] = {}
    for group in groups:
        by_chunk.setdefault((group.run_id, group.chunk_id), []).append(group)
    counted = {(one.run_id, one.chunk_id): one for one in counts}
    faults: dict[str, str] = {}
    for place in sorted(by_chunk.keys() | counted.keys()):
        run_id, chunk_id = place
        if run_id not in chains:
            faults.setdefault(
                run_id, f"{run_id} has rows in reject_record, and no event in the log of runs"
            )
            continue
        is_staged = chains[run_id][-1].to_state in _STAGED_STATES
        found = _chunk_faults(by_chunk.get(place, []), counted.get(place), is_staged=is_staged)
        fault = next(found, None)
        if fault is not None:
            faults.setdefault(run_id, f"reject_record, chunk {chunk_id} of {run_id}: {fault}")
    return faults


def _chunk_faults(
    groups: list[RejectedGroup], count: RejectedCount | None, *, is_staged: bool
) -> Iterator[str]:
    for group in groups:
        if group.edited_key is not None:
            yield f"the row with the key {group.edited_key} was edited since"
    newest = max(groups, key=lambda group: group.rejected_at, default=None)
    stored = newest.rows if newest else 0
    if count is None:
        if stored and is_staged:
            yield f"{stored} rows are stored, and the chunk ledger counts none"
    elif count.seal is None:
        if stored > count.rows:
            yield f"{stored} rows are stored, and the chunk ledger counts {count.rows}"
    elif not _is_sealed(groups, newest, count.seal, is_staged=is_staged):
        yield (
            f"the {stored} rows stored are not those that were stored with the chunk, which "
            f"rejected {count.rows}: some were edited, added or removed"
        )


def _is_sealed(
    groups: list[RejectedGroup], newest: RejectedGroup | None, seal: str, *, is_staged: bool
) -> bool:
    """Return whether the counted rows are stored; once the run is staged, they are the newest."""
    if newest is None or is_staged:
        return (newest.seal if newest else rows_seal(())) == seal
    return seal == rows_seal(()) or any(group.seal == seal for group in groups)
