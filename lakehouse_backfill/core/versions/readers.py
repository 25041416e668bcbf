"""What readers get now of the partitions that a run published, compared with its rows.

Only metadata is read: the head of the table and, if others committed since, the manifests of these
partitions. A row in the control tables is what was accepted; it does not prove what readers get.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from lakehouse_backfill import errors
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import Drift
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.table import TableRef


@dataclass
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
        texts = []
        for lead, reasons in (("not", self.changed), ("it is not known for", self.unknown)):
            for reason in dict.fromkeys(reasons.values()):
                labels = tuple(label for label, other in reasons.items() if other == reason)
                texts.append(f"{lead} {partitions.describe_labels(labels)}: {reason}")
        return "; ".join(texts)


def look_at_readers(context: Context, history: tuple[Publication, ...], run_id: str) -> ReaderView:
    """Compare the head of the table with the rows by which the run is visible, or is not any more.

    Of a published run these are its own rows; of partitions that were rolled back, the rows of the
    rollback. Partitions that another run has replaced since are left out. Commits of the product's
    own history are no difference, nor are compactions.
    """
    own = frozenset(row.snapshot_id for row in history)
    view = ReaderView()
    for row, labels in _rows_by_partition(history, run_id):
        _compare_row(context, row, labels, own, view, is_target=row.table == history[-1].table)
    return view


def why_not_restorable(
    context: Context, history: tuple[Publication, ...], run_id: str, *, is_pinned: bool = False
) -> str:
    """Return why what the run replaced cannot be restored; empty if its snapshots are held.

    `is_pinned`: readers get the snapshot of a pointer; earlier versions are tables of their own.
    """
    for row in pointer.published_rows(history, run_id):
        held: Publication | None = row
        if is_pinned:
            accepted = pointer.accepted_rows(history)
            held = next((one for one in accepted if one.version == row.supersedes), None)
        if held is None:
            continue  # nothing was replaced
        snapshot_id = held.snapshot_id if is_pinned else held.before_snapshot_id
        if snapshot_id is None:
            continue
        fault = _metadata_fault(context, held.table, snapshot_id, row.scope)
        if fault:
            return fault
        tag = row.tags["before"]
        if not is_pinned and context.pins.pinned(row.table, tag) != snapshot_id:
            return f"tag {tag}, which keeps snapshot {snapshot_id} of {row.table}, is gone"
    return ""


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
    view: ReaderView,
    *,
    is_target: bool,
) -> None:
    """Add to `view` what readers get of the partitions that `row` published or restored."""
    try:
        info = context.tables.describe(row.table)
    except errors.EnvironmentDown as error:
        view.unknown |= dict.fromkeys(labels, error.problem)
        return
    except errors.NotFound as error:
        view.changed |= dict.fromkeys(labels, error.problem)
        return
    if info is None:
        view.changed |= dict.fromkeys(labels, f"{row.table} does not exist any more")
        return
    view.heads[row.table] = info.snapshot_id
    if row.scope is not None and row.snapshot_id is not None:
        scope = Scope(field=row.scope.field, partitions=labels)
        if is_target and info.snapshot_id != row.snapshot_id:
            _compare_partitions(context, row, scope, own, view)
        elif fault := _metadata_fault(context, row.table, row.snapshot_id, scope):
            view.changed |= dict.fromkeys(labels, fault)
    differing = {**view.changed, **view.unknown}
    view.same += tuple(label for label in labels if label not in differing)


def _metadata_fault(context: Context, table: str, snapshot_id: int, scope: Scope | None) -> str:
    """Return why a snapshot's partitions cannot be read, as far as its metadata says; else empty.

    Its manifest list and the manifests that may list files of the partitions are opened. In a table
    of its own (a kept version, correction events) later commits take nothing from the snapshot.
    """
    try:
        context.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
        if scope is not None:
            context.stored_files.files(table, snapshot_id, scope)
    except errors.Unsupported:
        return ""  # a file with rows of other partitions, too
    except (errors.NotFound, errors.EnvironmentDown) as error:
        return error.problem
    return ""


def _compare_partitions(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None], view: ReaderView
) -> None:
    """Add, by partition, what changed its rows, or why that cannot be known."""
    for label in _touched_labels(context, row, scope, own):
        part = Scope(field=scope.field, partitions=(label,))
        try:
            drifts = _foreign_drifts(context, row, part, own)
        except (errors.LostFile, errors.TargetChanged) as error:
            known = view.unknown if isinstance(error, errors.HistoryGone) else view.changed
            known[label] = error.problem
        except errors.NotFound as error:
            view.unknown[label] = error.problem
        else:
            if drifts:
                view.changed[label] = f"{drifts[-1]} changed its rows since"


def _foreign_drifts(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None]
) -> list[Drift]:
    drifts = context.publisher.drifts(row.table, scope, row.snapshot_id)
    return [drift for drift in drifts if drift.snapshot_id not in own]


def _touched_labels(
    context: Context, row: Publication, scope: Scope, own: frozenset[int | None]
) -> tuple[str, ...]:
    """Return the partitions to look at one by one: all of them if no commit can be named."""
    with suppress(errors.TargetChanged, errors.NotFound):
        drifts = _foreign_drifts(context, row, scope, own)
        touched = {label for drift in drifts for label in drift.partitions}
        return tuple(label for label in scope.partitions if label in touched)
    return scope.partitions
