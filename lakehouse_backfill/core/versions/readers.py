"""What readers get now of the partitions that a run published, compared with its rows.

Only metadata is read: the head of the table and, if others committed since, the manifests of these
partitions. A row in the control tables is what was accepted; it does not prove what readers get.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.core.versions.reserve import publication_tags
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.errors import (
    EnvironmentDown,
    HistoryGone,
    LostFile,
    NotFound,
    TargetChanged,
    Unsupported,
)


@dataclass(frozen=True)
class ReaderView:
    """Partitions by what readers get: the rows of the publication, other rows, or not known.

    `heads` are the snapshots that were looked at, by table. `changed` and `unknown` give the reason
    of each partition.
    """

    heads: dict[str, int | None] = field(default_factory=dict)
    same: tuple[str, ...] = ()
    changed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def exceptions(self) -> str:
        """Describe the partitions that readers do not get, or may not get; empty without any."""
        texts = [
            f"{lead} {partitions.describe_labels(labels)}: {reason}"
            for lead, reasons in (("not", self.changed), ("it is not known for", self.unknown))
            for reason, labels in _labels_by_reason(reasons).items()
        ]
        return "; ".join(texts)


def _labels_by_reason(reasons: dict[str, str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for label, reason in reasons.items():
        groups[reason] = (*groups.get(reason, ()), label)
    return groups


def look_at_readers(context: Context, history: tuple[Publication, ...], run_id: str) -> ReaderView:
    """Compare the head of the table with the rows by which the run is visible, or is not any more.

    Of a published run these are its own rows; of partitions that were rolled back, the rows of the
    rollback. Partitions that another run has replaced since are left out. Commits of the product's
    own history are no difference, nor are compactions.
    """
    own = frozenset(row.snapshot_id for row in history)
    view = ReaderView()
    for row, labels in _rows_by_partition(history, run_id):
        view = _joined(view, _compare_row(context, row, labels, own, history[-1].table))
    return view


def why_not_restorable(
    context: Context, history: tuple[Publication, ...], run_id: str, *, is_pinned: bool = False
) -> str:
    """Return why what the run replaced cannot be restored; empty if its snapshots are held.

    `is_pinned`: readers get the snapshot of a pointer; earlier versions are tables of their own.
    """
    for row in history:
        if (row.action, row.run_id) != ("publish", run_id):
            continue
        held = _superseded_row(history, row) if is_pinned else row
        if held is None:
            continue  # nothing was replaced
        snapshot_id = held.snapshot_id if is_pinned else held.before_snapshot_id
        if snapshot_id is None:
            continue
        fault = _metadata_fault(context, held.table, snapshot_id, row.scope)
        if fault:
            return fault
        tag = publication_tags(row)["before"]
        if not is_pinned and context.pins.pinned(row.table, tag) != snapshot_id:
            return f"tag {tag}, which keeps snapshot {snapshot_id} of {row.table}, is gone"
    return ""


def _superseded_row(history: tuple[Publication, ...], row: Publication) -> Publication | None:
    accepted = (one for one in history if one.action in pointer.ACCEPTED_ACTIONS)
    return next((one for one in accepted if one.version == row.supersedes), None)


def _rows_by_partition(
    history: tuple[Publication, ...], run_id: str
) -> Iterable[tuple[Publication, tuple[str, ...]]]:
    """Yield the rows that decide on the run's partitions now, newest first, each with its labels.

    A rollback is compared with what it restored by its own snapshot.
    """
    seen = pointer.run_visibility(history, run_id)
    rolled_back = seen.published - seen.visible - seen.replaced
    wanted = (("publish", seen.visible), ("rollback", rolled_back))
    for action, labels in wanted:
        left = set(labels)
        for row in history:
            is_own = row.run_id == run_id or action == "rollback"
            if row.action != action or not is_own or row.scope is None:
                continue
            mine = tuple(label for label in row.scope.partitions if label in left)
            left -= set(mine)
            if mine:
                yield row, mine


def _compare_row(
    context: Context,
    row: Publication,
    labels: tuple[str, ...],
    own: frozenset[int | None],
    target: str,
) -> ReaderView:
    try:
        info = context.tables.describe(row.table)
    except NotFound as error:
        return ReaderView(changed=dict.fromkeys(labels, error.problem))
    except EnvironmentDown as error:
        return ReaderView(unknown=dict.fromkeys(labels, error.problem))
    if info is None:
        return ReaderView(changed=dict.fromkeys(labels, f"{row.table} does not exist any more"))
    heads = {row.table: info.snapshot_id}
    if row.scope is None or row.snapshot_id is None:
        return ReaderView(heads=heads, same=labels)
    scope = Scope(field=row.scope.field, partitions=labels)
    if row.table != target or info.snapshot_id == row.snapshot_id:
        fault = _metadata_fault(context, row.table, row.snapshot_id, scope)
        if fault:
            return ReaderView(heads=heads, changed=dict.fromkeys(labels, fault))
        return ReaderView(heads=heads, same=labels)
    changed, unknown = _compare_partitions(context, row, scope, own)
    same = tuple(label for label in labels if label not in {**changed, **unknown})
    return ReaderView(heads, same, changed, unknown)


def _metadata_fault(context: Context, table: str, snapshot_id: int, scope: Scope | None) -> str:
    """Return why a snapshot's partitions cannot be read, as far as its metadata says; else empty.

    Its manifest list and the manifests that may list files of the partitions are opened. In a table
    of its own (a kept version, correction events) later commits take nothing from the snapshot.
    """
    try:
        context.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
        if scope is not None:
            context.stored.files(table, snapshot_id, scope)
    except Unsupported:
        return ""  # a file with rows of other partitions, too
    except (NotFound, EnvironmentDown) as error:
        return error.problem
    return ""


def _compare_partitions(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return, by partition, what changed its rows, and why that cannot be known."""
    changed: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for label in _touched_labels(context, row, scope, own):
        part = Scope(field=scope.field, partitions=(label,))
        try:
            drifts = _foreign_drifts(context, row, part, own)
        except (LostFile, TargetChanged) as error:
            known = unknown if isinstance(error, HistoryGone) else changed
            known[label] = error.problem
        except NotFound as error:
            unknown[label] = error.problem
        else:
            if drifts:
                changed[label] = f"{drifts[-1]} changed its rows since"
    return changed, unknown


def _foreign_drifts(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None]
) -> list[Drift]:
    drifts = context.publisher.drifts(row.table, scope, row.snapshot_id)
    return [drift for drift in drifts if drift.snapshot_id not in own]


def _touched_labels(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None]
) -> tuple[str, ...]:
    """Return the partitions to look at one by one: all of them if no commit can be named."""
    with suppress(TargetChanged, NotFound):
        drifts = _foreign_drifts(context, row, scope, own)
        touched = {label for drift in drifts for label in drift.partitions}
        return tuple(label for label in scope.partitions if label in touched)
    return scope.partitions


def _joined(left: ReaderView, right: ReaderView) -> ReaderView:
    return ReaderView(
        heads=left.heads | right.heads,
        same=left.same + right.same,
        changed=left.changed | right.changed,
        unknown=left.unknown | right.unknown,
    )
