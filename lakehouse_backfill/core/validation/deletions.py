"""Rows deleted live or named by tombstones must not come back.

Rows that were deleted where readers see them must not be brought back: block, or reapply.

Looking for rows that were deleted, or named by tombstones, since a run or version was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.core.planning import publish_modes
from lakehouse_backfill.core.planning.catch_up import (
    drifted_partitions,
    drifts_as_json,
    excluded_rows,
)
from lakehouse_backfill.core.planning.pins import head_snapshot_id
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import (
    DeletedRows,
    Drift,
    Erasure,
    ExcludedRows,
    TableState,
    TombstonedRows,
    TombstonePin,
)
from lakehouse_backfill.domain.checks import CheckResult, ValidationResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import TargetChanged

MAX_SAMPLE_KEYS = 3
_SECRET = ("confidential", "restricted")
_STATE = "nothing was changed for readers: the deleted rows stay deleted"


def may_reapply_deletions(contract: Contract) -> bool:
    """Tell whether deleted rows are left out of a result, instead of stopping it."""
    return contract.deletions == "reapply" and bool(contract.key)


def displayable_keys(contract: Contract, keys: Iterable[dict[str, Any]]) -> list[Any]:
    """Give keys as they may be shown: hashed, unless the product's rows are no secret."""
    if contract.classification is None or contract.classification in _SECRET:
        return [f"sha256:{digest(key)[:16]}" for key in keys]
    return [{name: str(value) for name, value in key.items()} for key in keys]


def deletions_blocked_error(
    contract: Contract, found: DeletedRows, drifts: Iterable[Any], what: str = "published"
) -> TargetChanged:
    """Make the error for rows that were deleted and would be brought back."""
    commits = tuple(drifts)
    who = "; ".join(str(drift) for drift in commits) or "live commits"
    count = f"{found.rows} rows" if contract.key else "rows"
    why = "`deletions: block`" if contract.key else "no key, by which they could be left out"
    keys = displayable_keys(contract, found.samples)
    shown = f", e.g. {keys[0]}" if keys else ""
    return TargetChanged(
        f"{contract.table} cannot be {what}: {count} of "
        f"{partitions.describe_labels(found.partitions)} were deleted since{shown}, by {who}; the "
        f"contract says {why}",
        state=_STATE,
        fix="restate on top of the deletion: lakehouse-backfill plan MANIFEST --revise RUN; or "
        "write `deletions: reapply` in the contract, and plan again",
        data={
            "conflicts": drifts_as_json(commits),
            "deletions": {"rows": found.rows, "partitions": found.partitions, "keys": keys},
        },
    )


def check_no_deleted_rows(named: TombstonedRows, left_out_rows: int) -> CheckResult:
    """No row of the candidate is one that tombstones or deletions name."""
    where = f" in {partitions.describe_labels(named.partitions)}" if named.rows else ""
    return CheckResult(
        name="no deleted row is written",
        group="technical",
        passed=not named.rows,
        detail=f"{named.rows} rows{where}; {left_out_rows} were left out",
        observed=named.rows,
        limit=0,
        waivable=False,
    )


def tombstones_blocked_error(
    contract: Contract, rows: int, labels: tuple[str, ...], what: str
) -> TargetChanged:
    """Make the error for rows that tombstones name."""
    return TargetChanged(
        f"{contract.table} cannot be {what}: tombstones name {rows} rows of "
        f"{partitions.describe_labels(labels)}, and the contract says `deletions: {contract.deletions}`",
        state=_STATE,
        fix="lakehouse-backfill plan MANIFEST --revise RUN: staging leaves them out; or write "
        "`deletions: reapply` in the contract, and plan again",
        data={"tombstones": {"rows": rows, "partitions": labels}},
    )


@dataclass(frozen=True)
class LiveChanges:
    """What came since a run was pinned: partitions that only lose rows, and those to make again."""

    drifts: tuple[Drift, ...]
    erased: tuple[str, ...]
    recomputed: tuple[str, ...]
    erasures: tuple[Erasure, ...]


def require_no_tombstoned_rows(
    context: Context, plan: Plan, shadow_snapshot_id: int | None
) -> None:
    """Raise TargetChanged when tombstones that came since the pin name rows of the candidate.

    Only metadata is read while nothing came.
    """
    named = newly_tombstoned_rows(context, plan, shadow_snapshot_id)
    if named.rows:
        raise tombstones_blocked_error(
            plan.resolved.contract, named.rows, named.partitions, "published"
        )


def require_no_deleted_rows(context: Context, plan: Plan, shadow_snapshot_id: int | None) -> None:
    """Raise TargetChanged when the candidate holds rows that were deleted live since its pin.

    A deletion on what another act made visible is undone with that act: the partition is as it was
    pinned, and its files do not tell. Nothing is read unless such acts came since.
    """
    resolved, target = plan.resolved, plan.resolved.target
    names = tuple(c.name for c in resolved.contract.columns if c.name not in LINEAGE_NAMES)
    key = resolved.contract.key or names
    found: list[Erasure] = []
    gone: dict[str, DeletedRows] = {}
    for before, after, label in _live_windows(context, plan):
        old, new = (TableState(table=target.table, snapshot_id=at) for at in (before, after))
        scope = Scope(field=resolved.scope.field, partitions=(label,))
        lost = context.erasing.gone(old, new, scope, key)
        if lost.rows:
            gone[label] = lost
            found.append(
                Erasure(
                    table=target.table, before_snapshot_id=before, after_snapshot_id=after,
                    partitions=(label,), key=key,
                )
            )  # fmt: skip
    if not found:
        return
    state = TableState(table=plan.shadow_table, snapshot_id=shadow_snapshot_id)
    left_out = ExcludedRows(field=resolved.scope.field, erasures=tuple(found))
    if context.erasing.named(state, resolved.scope.partitions, left_out).rows:
        raise deletions_blocked_error(resolved.contract, _sum_deleted(gone), ())


def _live_windows(context: Context, plan: Plan) -> Iterator[tuple[int, int, str]]:
    """Give the live commits between acts on the run's partitions since it was planned."""
    if publish_modes.is_pinned_product(plan):
        return
    first = plan
    while first.resolved.catch_up is not None:  # what it took over was computed back then
        first = context.runs.plan(first.resolved.catch_up.of)
    acts = [
        row
        for row in reversed(context.versions.history(plan.product))
        if row.action in pointer.ACCEPTED_ACTIONS
        and row.table == plan.resolved.target.table
        and row.at >= first.created_at
    ]
    for number, row in enumerate(acts):
        for label in row.scope.partitions if row.scope and row.action != "baseline" else ():
            if label not in plan.resolved.scope.partitions:
                continue
            later = (x for x in acts[number + 1 :] if x.scope and label in x.scope.partitions)
            end = next(later, None)
            start, stop = row.snapshot_id, end.before_snapshot_id if end else None
            if start is not None and stop is not None and start != stop:
                yield start, stop, label


def newly_tombstoned_rows(
    context: Context, plan: Plan, shadow_snapshot_id: int | None
) -> TombstonedRows:
    """Count the candidate's rows that tombstones name by now."""
    moved = tuple(
        pin.model_copy(update={"snapshot_id": head})
        for pin in plan.resolved.tombstones
        if (head := head_snapshot_id(context, pin.table)) != pin.snapshot_id
    )
    if not moved:
        return TombstonedRows(rows=0, partitions=())
    scope = plan.resolved.scope
    state = TableState(table=plan.shadow_table, snapshot_id=shadow_snapshot_id)
    return context.erasing.named(
        state, scope.partitions, ExcludedRows(field=scope.field, tombstones=moved)
    )


def live_changes(
    context: Context, plan: Plan, head: int | None, error: TargetChanged
) -> LiveChanges:
    """Say what came to the run's partitions up to `head`; raises when the run may not follow it.

    That is `error` itself, with the commits in its `data`, or one that tells of deleted rows.
    """
    resolved = plan.resolved
    contract, scope, target = resolved.contract, resolved.scope, resolved.target
    try:
        drifts = context.publisher.drifts(target.table, scope, target.snapshot_id)
    except TargetChanged:
        raise error from None
    named = newly_tombstoned_rows(context, plan, _shadow_head(context, plan))
    labels = drifted_partitions(scope, drifts)
    error.data |= {"conflicts": drifts_as_json(drifts)}
    if not labels and not named.rows:
        raise error
    found = _deleted_by_partition(context, plan, labels, head)
    lost = tuple(label for label in labels if label in found and found[label].rows)
    if lost and not may_reapply_deletions(contract):
        raise deletions_blocked_error(contract, _sum_deleted(found), drifts) from error
    if named.rows and not may_reapply_deletions(contract):
        raise error
    only = {label for label in lost if found[label].is_only_deletion}
    fresh = tuple(label for label in labels if label not in only)
    if fresh and resolved.manifest.safety.on_conflict != "catch_up":
        raise error
    erased = only | set(named.partitions) - set(fresh)
    return LiveChanges(
        drifts=drifts,
        erased=tuple(label for label in scope.partitions if label in erased),
        recomputed=fresh,
        erasures=_erasures(plan, lost, head),
    )


def deletion_checks(
    context: Context, plan: Plan, shadow_snapshot_id: int | None
) -> list[CheckResult]:
    """Prove that what tombstones and deletions name is not in the candidate; none named: nothing.

    Judged on the stored rows, by another engine than the one that left them out.
    """
    left_out = excluded_rows(plan.resolved)
    if left_out.is_empty:
        return []
    state = TableState(table=plan.shadow_table, snapshot_id=shadow_snapshot_id)
    named = context.erasing.named(state, plan.resolved.scope.partitions, left_out)
    counts = [record.left_out_rows or 0 for record in context.ledger.chunks(plan.run_id)]
    return [check_no_deleted_rows(named, sum(counts))]


def inexact_partitions(context: Context, plan: Plan, result: ValidationResult) -> tuple[str, ...]:
    """Name the partitions that lost more, or other, rows than those that were deleted.

    Of each chunk taken over without some rows, what is left must be the accepted rows less exactly
    those that tombstones and deletions name, and none of these may be left.
    """
    catch_up = plan.resolved.catch_up
    if catch_up is None or not catch_up.erased:
        return ()
    left_out = excluded_rows(plan.resolved)
    counts = {one.partition: one.new_count for one in result.balances}
    wrong: list[str] = []
    for chunk in plan.resolved.chunks:
        source = catch_up.erased_chunk(chunk.chunk_id)
        if source is None:
            continue
        before = TableState(table=source.shadow_table, snapshot_id=source.shadow_snapshot_id)
        after = TableState(table=plan.shadow_table, snapshot_id=result.shadow_snapshot_id)
        named = context.erasing.named(before, chunk.partitions, left_out)
        left = context.erasing.named(after, chunk.partitions, left_out)
        rows = sum(counts[label] for label in chunk.partitions)
        scope = Scope(field=left_out.field, partitions=chunk.partitions)
        gone = context.erasing.gone(before, after, scope, plan.resolved.contract.key)
        is_exact = gone.is_only_deletion and source.rows - rows == named.rows and not left.rows
        wrong += () if is_exact else chunk.partitions
    return tuple(wrong)


def _deleted_by_partition(
    context: Context, plan: Plan, labels: tuple[str, ...], head: int | None
) -> dict[str, DeletedRows]:
    """Look into each changed partition for keys that readers do not see any more."""
    resolved = plan.resolved
    base, table, key = resolved.target.snapshot_id, resolved.target.table, resolved.contract.key
    if base is None:
        return {}
    if not key:
        return _deleted_without_key(context, plan, labels)
    old, new = TableState(table=table, snapshot_id=base), TableState(table=table, snapshot_id=head)
    return {
        label: context.erasing.gone(
            old, new, Scope(field=resolved.scope.field, partitions=(label,)), key
        )
        for label in labels
    }


def _deleted_without_key(
    context: Context, plan: Plan, labels: tuple[str, ...]
) -> dict[str, DeletedRows]:
    """Without a key only commits that removed rows and added none tell of deletions."""
    resolved = plan.resolved
    drifts = context.publisher.drifts(
        resolved.target.table, resolved.scope, resolved.target.snapshot_id
    )
    lost = {label for drift in drifts if drift.only_deletes for label in drift.partitions}
    return {
        label: DeletedRows(rows=1, partitions=(label,), samples=(), is_only_deletion=True)
        for label in labels
        if label in lost
    }


def _erasures(plan: Plan, labels: tuple[str, ...], head: int | None) -> tuple[Erasure, ...]:
    target, key = plan.resolved.target, plan.resolved.contract.key
    if not labels or target.snapshot_id is None or head is None:
        return ()
    return (
        Erasure(
            table=target.table,
            before_snapshot_id=target.snapshot_id,
            after_snapshot_id=head,
            partitions=labels,
            key=key,
        ),
    )


def _sum_deleted(found: dict[str, DeletedRows]) -> DeletedRows:
    lost = [one for one in found.values() if one.rows]
    return DeletedRows(
        rows=sum(one.rows for one in lost),
        partitions=tuple(label for label, one in found.items() if one.rows),
        samples=tuple(key for one in lost for key in one.samples)[:MAX_SAMPLE_KEYS],
        is_only_deletion=all(one.is_only_deletion for one in lost),
    )


def current_tombstones(context: Context, contract: Contract) -> tuple[TombstonePin, ...]:
    """Give the contract's tombstone tables as they are now."""
    return tuple(
        TombstonePin(
            table=item.table,
            snapshot_id=head_snapshot_id(context, item.table),
            columns=item.columns,
        )
        for item in contract.tombstones
    )


def _shadow_head(context: Context, plan: Plan) -> int | None:
    return head_snapshot_id(context, plan.shadow_table)
