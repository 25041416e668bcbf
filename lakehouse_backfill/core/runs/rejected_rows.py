"""Seals of rejected rows: an edited, added or removed row of `reject_record` is found.

Each row bears its own seal. The chunk's ledger row bears a seal over all of them, and is archived
when the run is accepted. A chunk whose staging was cut off has rows of several attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from lakehouse_backfill.core.runs.event_log import EventChains
from lakehouse_backfill.domain.run import RejectedCount, RejectedGroup, RunState
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.ports.control import Audit

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
