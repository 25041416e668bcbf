"""Protection of deleted rows: rows deleted live or named by tombstones must not come back.

A contract either blocks such a result (`deletions: block`) or leaves the rows out of it
(`deletions: reapply`, which needs a key). The functions here find rows that were deleted, or named
by tombstones, since a run or a version was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.command_lines import RUN_PLACEHOLDER, plan_command
from lakehouse_backfill.core.planning.inputs.pins import head_snapshot_id
from lakehouse_backfill.core.planning.target import catch_up, publish_modes
from lakehouse_backfill.core.runs import gate_registry
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
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import TargetChanged

MAX_SAMPLE_KEYS = 3
_SECRET = ("confidential", "restricted")
_STATE = "nothing was changed for readers: the deleted rows stay deleted"


def may_reapply_deletions(contract: Contract) -> bool:
    """Return whether deleted rows are left out of a result, instead of blocking it."""
    return contract.deletions == "reapply" and bool(contract.key)


def displayable_keys(contract: Contract, keys: Iterable[dict[str, Any]]) -> list[Any]:
    """Return keys for display: hashed, unless the product is declared as not confidential.

    Restricted columns are left out first: a hash of few possible values is no secret.
    """
    redaction = Redaction.of(contract.restricted_columns)
    keys = [redaction.row(key) for key in keys]
    if contract.classification is None or contract.classification in _SECRET:
        return [f"sha256:{digest(key)[:16]}" for key in keys]
    return [{name: str(value) for name, value in key.items()} for key in keys]


def _restate_fix(what: str) -> str:
    """Return how the partitions get their new rows without the deleted ones."""
    if what != "published":
        return "restate the partitions instead: staging leaves these rows out"
    return f"restate without them: {plan_command(revise=RUN_PLACEHOLDER)}"


def deletions_blocked_error(
    contract: Contract, found: DeletedRows, drifts: Iterable[Any], what: str = "published"
) -> TargetChanged:
    """Build the error for deleted rows that the result would bring back."""
    commits = tuple(drifts)
    authors = "; ".join(str(drift) for drift in commits) or "live commits"
    count = f"{found.rows} rows" if contract.key else "rows"
    reason = "`deletions: block`" if contract.key else "no key, by which they could be left out"
    keys = displayable_keys(contract, found.samples)
    example = f", e.g. {keys[0]}" if keys else ""
    return TargetChanged(
        f"{contract.table} cannot be {what}: {count} of "
        f"{partitions.describe_labels(found.partitions)} were deleted since{example}, "
        f"by {authors}; the contract says {reason}",
        state=_STATE,
        fix=f"{_restate_fix(what)}; or write `deletions: reapply` in the contract, and plan again",
        data={
            "conflicts": catch_up.drifts_as_json(commits),
            "deletions": {"rows": found.rows, "partitions": found.partitions, "keys": keys},
        },
    )


def tombstones_blocked_error(
    contract: Contract, rows: int, labels: tuple[str, ...], what: str
) -> TargetChanged:
    """Build the error for rows that tombstones name."""
    return TargetChanged(
        f"{contract.table} cannot be {what}: tombstones name {rows} rows of "
        f"{partitions.describe_labels(labels)}, and the contract says "
        f"`deletions: {contract.deletions}`",
        state=_STATE,
        fix=f"{_restate_fix(what)}; or write `deletions: reapply` in the contract, and plan again",
        data={"tombstones": {"rows": rows, "partitions": labels}},
    )


@dataclass(frozen=True)
class LiveChanges:
    """What changed since a run was pinned.

    `erased` partitions only lose rows, `recomputed` ones must be computed again.
    """

    drifts: tuple[Drift, ...]
    erased: tuple[str, ...]
    recomputed: tuple[str, ...]
    erasures: tuple[Erasure, ...]


def require_no_tombstoned_rows(
    context: Context, plan: Plan, shadow_snapshot_id: int | None
) -> None:
    """Raise TargetChanged when tombstones added since the pin name rows of the candidate.

    Only metadata is read while no tombstone was added.
    """
    named = newly_tombstoned_rows(context, plan, shadow_snapshot_id)
    if named.rows:
        raise tombstones_blocked_error(
            plan.resolved.contract, named.rows, named.partitions, "published"
        )


def require_no_deleted_rows(context: Context, plan: Plan, shadow_snapshot_id: int | None) -> None:
    """Raise TargetChanged when the candidate holds rows that were deleted live since its pin.

    A rollback of another publication also reverts a deletion made on top of it: the partition is as
    it was pinned, and its files do not show the deletion. Nothing is read unless pointer actions
    happened since.
    """
    resolved, target = plan.resolved, plan.resolved.target
    names = tuple(
        column.name for column in resolved.contract.columns if column.name not in LINEAGE_NAMES
    )
    key = resolved.contract.key or names
    erasures: list[Erasure] = []
    deleted: dict[str, DeletedRows] = {}
    for before, after, label in _live_windows(context, plan):
        old, new = (TableState(table=target.table, snapshot_id=at) for at in (before, after))
        scope = Scope(field=resolved.scope.field, partitions=(label,))
        lost_rows = context.row_reader.deleted_rows(old, new, scope, key)
        if lost_rows.rows:
            deleted[label] = lost_rows
            erasures.append(_erasure(plan, before, after, (label,), key))
    if not erasures:
        return
    state = TableState(table=plan.shadow_table, snapshot_id=shadow_snapshot_id)
    left_out = ExcludedRows(field=resolved.scope.field, erasures=tuple(erasures))
    if context.row_reader.tombstoned_rows(state, resolved.scope.partitions, left_out).rows:
        raise deletions_blocked_error(resolved.contract, sum_deleted(deleted.values()), ())


def _live_windows(context: Context, plan: Plan) -> Iterator[tuple[int, int, str]]:
    """Yield the live commits between pointer actions on the run's partitions since its plan."""
    if publish_modes.is_pinned_product(plan):
        return
    first = plan
    # What a catch-up run carried over was computed by the run before it.
    while first.resolved.catch_up is not None:
        first = context.runs.plan(first.resolved.catch_up.of)
    actions = [
        row
        for row in reversed(context.versions.history(plan.product))
        if row.action in ("publish", "rollback")
        and row.table == plan.resolved.target.table
        and row.at >= first.created_at
    ]
    for label in plan.resolved.scope.partitions:
        for start, stop in pointer.live_windows(actions, (label,)):
            yield start, stop, label


def newly_tombstoned_rows(
    context: Context, plan: Plan, shadow_snapshot_id: int | None
) -> TombstonedRows:
    """Count the candidate's rows that tombstones added since the pin name."""
    changed = tuple(
        pin.model_copy(update={"snapshot_id": head})
        for pin in plan.resolved.tombstones
        if (head := head_snapshot_id(context, pin.table)) != pin.snapshot_id
    )
    if not changed:
        return TombstonedRows(rows=0, partitions=())
    scope = plan.resolved.scope
    state = TableState(table=plan.shadow_table, snapshot_id=shadow_snapshot_id)
    return context.row_reader.tombstoned_rows(
        state, scope.partitions, ExcludedRows(field=scope.field, tombstones=changed)
    )


def live_changes(
    context: Context, plan: Plan, head: int | None, error: TargetChanged
) -> LiveChanges:
    """Return what changed in the run's partitions up to `head`.

    Raises `error`, with the commits in its `data`, when the run may not follow the changes; raises
    the error of `deletions_blocked_error` when rows were deleted that the contract does not
    reapply.
    """
    resolved = plan.resolved
    contract, scope, target = resolved.contract, resolved.scope, resolved.target
    try:
        drifts = context.publisher.drifts(target.table, scope, target.snapshot_id)
    except TargetChanged:
        raise error from None
    named = newly_tombstoned_rows(context, plan, head_snapshot_id(context, plan.shadow_table))
    labels = catch_up.drifted_partitions(scope, drifts)
    error.data |= {"conflicts": catch_up.drifts_as_json(drifts)}
    if not labels and not named.rows:
        raise error
    deleted = _deleted_by_partition(context, plan, labels, head, drifts)
    lost = tuple(label for label in labels if label in deleted and deleted[label].rows)
    if lost and not may_reapply_deletions(contract):
        raise deletions_blocked_error(contract, sum_deleted(deleted.values()), drifts) from error
    if named.rows and not may_reapply_deletions(contract):
        raise error
    only_deleted = {label for label in lost if deleted[label].is_only_deletion}
    recomputed = tuple(label for label in labels if label not in only_deleted)
    if recomputed and resolved.manifest.safety.on_conflict != "catch_up":
        raise error
    erased = only_deleted | set(named.partitions) - set(recomputed)
    erasures: tuple[Erasure, ...] = ()
    if lost and target.snapshot_id is not None and head is not None:
        erasures = (_erasure(plan, target.snapshot_id, head, lost, contract.key),)
    return LiveChanges(
        drifts=drifts,
        erased=tuple(label for label in scope.partitions if label in erased),
        recomputed=recomputed,
        erasures=erasures,
    )


def _erasure(
    plan: Plan, before: int, after: int, labels: tuple[str, ...], key: tuple[str, ...]
) -> Erasure:
    return Erasure(
        table=plan.resolved.target.table,
        before_snapshot_id=before,
        after_snapshot_id=after,
        partitions=labels,
        key=key,
    )


def deletion_checks(
    context: Context, plan: Plan, shadow_snapshot_id: int | None
) -> list[CheckResult]:
    """Check that no row named by tombstones or deletions is in the candidate.

    No check where nothing is named. The stored rows are judged by another engine than the one that
    left the rows out.
    """
    left_out = catch_up.excluded_rows(plan.resolved)
    if left_out.is_empty:
        return []
    state = TableState(table=plan.shadow_table, snapshot_id=shadow_snapshot_id)
    named = context.row_reader.tombstoned_rows(state, plan.resolved.scope.partitions, left_out)
    where = f" in {partitions.describe_labels(named.partitions)}" if named.rows else ""
    left_out_rows = sum(chunk.left_out_rows or 0 for chunk in context.runs.chunks(plan.run_id))
    detail = f"{named.rows:,} rows{where}; {left_out_rows:,} were left out"
    return [gate_registry.fault_count_result("no deleted row is written", named.rows, detail)]


def inexact_partitions(context: Context, plan: Plan, result: ValidationResult) -> tuple[str, ...]:
    """List the partitions that lost more, or other, rows than those that were deleted.

    For each chunk carried over without some rows, the remaining rows must be the accepted rows
    minus exactly those that tombstones and deletions name, and none of these may remain.
    """
    revision = plan.resolved.catch_up
    if revision is None or not revision.erased:
        return ()
    left_out = catch_up.excluded_rows(plan.resolved)
    counts = {balance.partition: balance.new_count for balance in result.balances}
    inexact: list[str] = []
    for chunk in plan.resolved.chunks:
        source = revision.erased_chunk(chunk.chunk_id)
        if source is None:
            continue
        before = TableState(table=source.shadow_table, snapshot_id=source.shadow_snapshot_id)
        after = TableState(table=plan.shadow_table, snapshot_id=result.shadow_snapshot_id)
        named = context.row_reader.tombstoned_rows(before, chunk.partitions, left_out)
        remaining = context.row_reader.tombstoned_rows(after, chunk.partitions, left_out)
        rows = sum(counts[label] for label in chunk.partitions)
        scope = Scope(field=left_out.field, partitions=chunk.partitions)
        lost = context.row_reader.deleted_rows(before, after, scope, plan.resolved.contract.key)
        is_exact = lost.is_only_deletion and source.rows - rows == named.rows and not remaining.rows
        inexact += () if is_exact else chunk.partitions
    return tuple(inexact)


def _deleted_by_partition(
    context: Context,
    plan: Plan,
    labels: tuple[str, ...],
    head: int | None,
    drifts: tuple[Drift, ...],
) -> dict[str, DeletedRows]:
    """Find, in each changed partition, the keys that readers do not see any more.

    Without a key, only commits that removed rows and added none count as deletions.
    """
    resolved = plan.resolved
    base, table, key = resolved.target.snapshot_id, resolved.target.table, resolved.contract.key
    if base is None:
        return {}
    if not key:
        deleted = {label for drift in drifts if drift.only_deletes for label in drift.partitions}
        return {
            label: DeletedRows(rows=1, partitions=(label,), samples=(), is_only_deletion=True)
            for label in labels
            if label in deleted
        }
    old, new = TableState(table=table, snapshot_id=base), TableState(table=table, snapshot_id=head)
    return {
        label: context.row_reader.deleted_rows(
            old, new, Scope(field=resolved.scope.field, partitions=(label,)), key
        )
        for label in labels
    }


def sum_deleted(found: Iterable[DeletedRows]) -> DeletedRows:
    """Sum what was deleted in several partitions or windows."""
    lost = [deleted for deleted in found if deleted.rows]
    return DeletedRows(
        rows=sum(deleted.rows for deleted in lost),
        partitions=tuple(dict.fromkeys(label for one in lost for label in one.partitions)),
        samples=tuple(key for deleted in lost for key in deleted.samples)[:MAX_SAMPLE_KEYS],
        is_only_deletion=all(deleted.is_only_deletion for deleted in lost),
    )


def current_tombstones(context: Context, contract: Contract) -> tuple[TombstonePin, ...]:
    """Return pins of the contract's tombstone tables at their current snapshots."""
    return tuple(
        TombstonePin(
            table=item.table,
            snapshot_id=head_snapshot_id(context, item.table),
            columns=item.columns,
        )
        for item in contract.tombstones
    )
