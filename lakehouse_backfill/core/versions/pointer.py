"""Decisions about the accepted-version pointer: reserve, finish, release, roll back.

Histories are tuples of publications, the newest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import ExcludedRows
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.grains import whole_grains_of
from lakehouse_backfill.domain.labels.spans import are_apart
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.tables.commits import PartitionRestore, RequiredRewrite
from lakehouse_backfill.errors import Blocked, NotFound, PointerMoved, Unsupported

ACCEPTED_ACTIONS = ("baseline", "publish", "rollback")


def accepted_rows(history: Iterable[Publication]) -> tuple[Publication, ...]:
    """Return the rows that made a version accepted."""
    return tuple(row for row in history if row.action in ACCEPTED_ACTIONS)


def published_rows(history: Iterable[Publication], run_id: str) -> tuple[Publication, ...]:
    """Return the rows by which a run was published; a run in steps has several."""
    return tuple(row for row in history if (row.action, row.run_id) == ("publish", run_id))


def require_pinned_base(
    pointer: Pointer, wanted: Publication, head: int | None, base: tuple[str, int | None]
) -> None:
    """Raise PointerMoved unless readers of a pinned product see the state that a run starts from.

    Before the first publication that state is the product's own table, at `head`.
    """
    accepted = pointer.accepted
    seen = (accepted.table, accepted.snapshot_id) if accepted else (wanted.table, head)
    if seen != base:
        winner = ""
        if accepted is not None:
            run = f", run {accepted.run_id}" if accepted.run_id else ""
            winner = f" (version {accepted.version}, {accepted.action} by {accepted.by}{run})"
        raise PointerMoved(
            f"{wanted.product}: {wanted.run_id} starts from {base[0]}@{base[1]}, but readers see "
            f"{seen[0]}@{seen[1]} by now{winner}, which the run does not contain",
            state="nothing was published; the shadow table is kept",
            fix=plan_command(revise=str(wanted.run_id)),
        )


def baseline_publication(
    draft: Publication, head: int | None, scope: Scope | None, at: datetime
) -> Publication:
    """Return version 0: the state before the first publication of a product."""
    return draft.model_copy(
        update={
            "version": 0,
            "token": f"{draft.token}-baseline",
            "action": "baseline",
            "run_id": None,
            "snapshot_id": head,
            "before_snapshot_id": head,
            "scope": scope,
            "supersedes": None,
            "at": at,
            "reason": "state before the first accepted run",
            "approved_by": (),
            "accepted_by": (),
            "manifest_hash": None,
            "result_digest": None,
            "evidence_digest": None,
            "signature": "",
        }
    )


@dataclass(frozen=True)
class RollbackTarget:
    """Where a rollback leads: the version, the partitions to restore, and the undone publications.

    `undone` is newest first; `publication` is the row of the version. `changes` are those of
    `undone` that changed the partitions as they are now; without those that an earlier rollback
    undid, where these are of other partitions or tuples. Readers no longer see the output of
    `runs_rolled_back`, and see the output of `runs_reinstated` again.
    """

    version: int
    is_partial: bool
    scope: Scope
    restores: tuple[PartitionRestore, ...]
    undone: tuple[Publication, ...]
    changes: tuple[Publication, ...]
    publication: Publication
    runs_rolled_back: tuple[str, ...]
    runs_reinstated: tuple[str, ...]
    #: Number of expired versions when the target was resolved.
    expirations: int = 0
    #: Partitions whose own files cannot be restored; set later, from the table.
    rewrites: tuple[RequiredRewrite, ...] = ()
    #: Rows that were deleted since and are not restored; set with `rewrites`.
    excluded_rows: ExcludedRows | None = None

    @property
    def run_id(self) -> str | None:
        """The newest run that is taken back, else the first that readers see again."""
        undone = (row.run_id for row in self.undone if row.run_id is not None)
        return next(undone, next(iter(self.runs_reinstated), None))


def runs_by_version(history: tuple[Publication, ...]) -> dict[int, frozenset[str]]:
    """Return, for each accepted version, the runs whose output readers see at it."""
    visible: dict[int, frozenset[str]] = {}
    current: frozenset[str] = frozenset()
    for row in reversed(accepted_rows(history)):
        if row.action == "publish" and row.run_id is not None:
            current |= {row.run_id}
        # A rollback to a version shows the runs of that version. A partial one is a new version.
        current = visible.get(row.version, current) if row.action == "rollback" else current
        visible[row.version] = current
    return visible


def newest_published_run(history: tuple[Publication, ...]) -> str | None:
    """Return the run that was published last, also if it was rolled back since."""
    return next((row.run_id for row in history if row.action == "publish"), None)


def visible_publication(history: tuple[Publication, ...], run_id: str) -> Publication | None:
    """Return the publication by which readers see the run's output now; None if they do not."""
    accepted = accepted_rows(history)
    if not accepted or run_id not in runs_by_version(history)[accepted[0].version]:
        return None
    return next(iter(published_rows(history, run_id)), None)


class RunVisibility(NamedTuple):
    """The partitions that a run published, those that are visible, and those that others replaced.

    `version` is its newest output version; 0 before the first.
    """

    version: int
    published: frozenset[str]
    visible: frozenset[str]
    replaced: frozenset[str]


def run_visibility(history: tuple[Publication, ...], run_id: str) -> RunVisibility:
    """Replay the history of a product for one run.

    A rollback of some partitions makes a version of its own; a rollback to an existing version
    restores what readers saw at that version. Tuples that the run did not write change nothing.
    """
    nothing: frozenset[str] = frozenset()
    own = next((row.scope for row in published_rows(history, run_id) if row.scope), None)
    state_at: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
    version, published, visible, replaced = 0, nothing, nothing, nothing
    for row in reversed(accepted_rows(history)):
        labels = frozenset(changed_labels(row, own.field if own else None))
        if row.action == "publish" and row.run_id == run_id:
            # A run that is published in steps has one such row for each step.
            version, published = row.version, published | labels
            visible, replaced = visible | labels, replaced - labels
        elif row.action == "publish":
            replaced |= labels  # the output of another run replaced it, which is no rollback
        elif row.action == "rollback":
            visible, replaced = state_at.get(row.version, (visible - labels, replaced - labels))
        state_at[row.version] = visible, replaced
    return RunVisibility(version, published, visible, replaced)


def changed_labels(row: Publication, field: ScopeField | None) -> tuple[str, ...]:
    """Return the partitions that a row changed; with `field`, those that share tuples with it."""
    if row.scope is None or (field is not None and are_apart(row.scope.field, field)):
        return ()
    return row.scope.partitions


def runs_by_partition(
    history: Iterable[Publication],
    is_partial: Callable[[str], bool],
    field: ScopeField | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return, for each partition, the runs whose rows readers see in it, the newest last.

    A run replaces the rows of its partitions, unless `is_partial`: then it only changes some. With
    `field`, runs of other tuples are left out.
    """
    state_at: dict[int, dict[str, tuple[str, ...]]] = {}
    current: dict[str, tuple[str, ...]] = {}
    for row in reversed(accepted_rows(history)):
        labels = changed_labels(row, field)
        if row.action == "publish" and row.run_id is not None:
            before = current if is_partial(row.run_id) else {}
            made = {label: (*before.get(label, ()), row.run_id) for label in labels}
            current = {**current, **made}
        elif row.action == "rollback" and row.version in state_at:
            current = state_at[row.version]
        elif row.action == "rollback":
            earlier = state_at.get(row.returns_to or 0, {})
            current = {**current, **{label: earlier.get(label, ()) for label in labels}}
        state_at[row.version] = current
    return {label: runs for label, runs in current.items() if runs}


def live_windows(
    rows: Iterable[Publication], labels: Iterable[str], end: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the snapshots between which live commits may have changed some partitions.

    A window lies between two publications or rollbacks that touched them; the last one ends at
    `end`. `rows` are oldest first.
    """
    wanted = set(labels)
    touching = [row for row in rows if row.scope and wanted & {*row.scope.partitions}]
    starts = [row.snapshot_id for row in touching]
    ends = [*(row.before_snapshot_id for row in touching[1:]), end]
    for start, stop in zip(starts, ends, strict=False):
        if start is not None and stop is not None and start != stop:
            yield start, stop


def restored_windows(rows: Sequence[Publication], label: str) -> tuple[tuple[int, int], ...]:
    """Return the windows of live commits to a partition whose rows an earlier rollback restored.

    `rows` are oldest first. A window lies between two of them that touched the partition; readers
    see its rows again once a rollback has undone the later ones. The window up to the head is none.
    """
    before: list[tuple[tuple[int, int], ...]] = []
    now: tuple[tuple[int, int], ...] = ()
    last: Publication | None = None
    touching: list[int] = []
    for number, row in enumerate(rows):
        is_touched = label in changed_labels(row, None)
        start, stop = last.snapshot_id if last else None, row.before_snapshot_id
        if is_touched and start is not None and stop is not None and start != stop:
            now = (*now, (start, stop))
        before.append(now)
        if not is_touched:
            continue
        to = row.version if row.returns_to is None else row.returns_to
        kept = next((n for n in reversed(range(number)) if rows[n].version == to), -1)
        undone = [n for n in touching if n > kept]
        now = before[undone[0]] if row.action == "rollback" and undone else ()
        last = row
        touching.append(number)
    return now


def rolled_back_since(history: tuple[Publication, ...], run_id: str) -> tuple[int, tuple[str, ...]]:
    """Return the run's newest output version, and its partitions that were rolled back since."""
    seen = run_visibility(history, run_id)
    return seen.version, tuple(sorted(seen.published - seen.visible - seen.replaced))


def is_same_rollback(pending: Publication, wanted: Publication, *, is_partial: bool) -> bool:
    """Return whether a pending rollback is the requested one, interrupted or in progress."""
    was_partial = pending.returns_to is not None and pending.returns_to != pending.version
    held = (pending.run_id, pending.scope, pending.supersedes, pending.returns_to, was_partial)
    return held == (None, wanted.scope, wanted.supersedes, wanted.returns_to, is_partial)


def resolve_rollback(
    history: tuple[Publication, ...], product: str, to: int | None, only: tuple[str, ...]
) -> RollbackTarget:
    """Resolve the rollback to version `to` (None: the version that was superseded last).

    Each partition gets its content right before the first publication after `to` that touched it.
    The commit refuses it later if a live commit changed the partition since the last such
    publication. Raises NotFound, Blocked, Unsupported.
    """
    accepted = accepted_rows(history)
    if not accepted:
        raise NotFound(f"{product} has no accepted version", fix="lakehouse-backfill status --all")
    target = to if to is not None else _previous_version(accepted, product)
    undone = _undone_publications(accepted, product, target)
    scopes = [row.scope for row in undone if row.scope is not None]
    changes = tuple(undone)
    if len(_fields(scopes)) > 1:
        # What a rollback put back since was of other partitions, or other tuples of values.
        changes = effective_publications(undone)
        scopes = [row.scope for row in changes if row.scope is not None]
    changed = {label for scope in scopes for label in scope.partitions}
    target_row = accepted[len(undone)]
    unknown = [label for label in only if label not in changed]
    if unknown:
        raise NotFound(
            f"{product}: {unknown[0]} was not changed since version {target}",
            fix=f"choose among {partitions.describe_labels(tuple(sorted(changed)))}",
        )
    selected = changed & set(only) if only else changed
    field = _require_one_field(scopes, product, target)
    is_partial = selected != changed
    before, after = (runs_by_version(history)[row.version] for row in (undone[0], target_row))
    labels = tuple(sorted(selected, key=partitions.label_sort_key(field)))
    return RollbackTarget(
        version=target,
        is_partial=is_partial,
        scope=Scope(field=field, partitions=labels),
        # Correction events are in another table: nothing of the product's table is restored.
        restores=_group_restores(
            [row for row in changes if row.table == accepted[-1].table], labels
        ),
        undone=tuple(undone),
        changes=changes,
        publication=target_row,
        runs_rolled_back=() if is_partial else tuple(sorted(before - after)),
        runs_reinstated=() if is_partial else tuple(sorted(after - before)),
    )


def require_whole_grains_back(contract: Contract, way: RollbackTarget) -> None:
    """Raise Unsupported when a rollback of chosen partitions leaves a part of a grain as it is.

    Without a choice all that the undone runs changed goes back, and they changed whole grains.
    """
    if not way.is_partial:
        return
    changed = {label for row in way.changes if row.scope for label in row.scope.partitions}
    whole = whole_grains_of(contract, way.scope.field, way.scope.partitions)
    chosen = frozenset(way.scope.partitions)
    if left := tuple(label for label in whole if label in changed and label not in chosen):
        options = ",".join(one for one in whole if one in changed)
        raise Unsupported(
            f"{contract.product} aggregates over more than a partition: "
            f"{partitions.describe_labels(left)} belong to the same grain, and would stay",
            state="nothing was changed",
            fix=f"roll back whole grains: --partitions {options}; or leave --partitions out",
        )


def effective_publications(undone: Sequence[Publication]) -> tuple[Publication, ...]:
    """Return the publications without those that an earlier rollback undid, and that rollback.

    `undone` is newest first, as a rollback lists it.
    """
    effective: list[Publication] = []
    index = 0
    while index < len(undone):
        row = undone[index]
        index += 1
        if row.action == "rollback" and row.returns_to == row.version:
            matches = (n for n in range(index, len(undone)) if undone[n].version == row.version)
            restored_index = next(matches, None)
            if restored_index is not None:
                index = restored_index
                continue
        effective.append(row)
    return tuple(effective)


def _require_one_field(scopes: list[Scope], product: str, target: int) -> ScopeField:
    """Return the partition field that all scopes have; raises Unsupported when they differ.

    Labels do not carry their field: a rollback by one field would miss the labels of another.
    """
    fields = _fields(scopes)
    if len(fields) > 1:
        raise Unsupported(
            f"{product}: since version {target} partitions of {' and of '.join(fields)} were "
            "restated; one rollback can only undo one of them",
            fix="choose a later version with --to, or restate the partitions",
        )
    return scopes[0].field


def _fields(scopes: list[Scope]) -> list[str]:
    """Return the different partition fields as text; of tuples of values, with the values."""
    return list({(str(one.field.whole), one.field.only): str(one.field) for one in scopes}.values())


def _previous_version(accepted: tuple[Publication, ...], product: str) -> int:
    version = accepted[0].version
    # A rollback row repeats the number of the version that it restored. The row that first made
    # the version says which one it superseded.
    maker = next((row for row in reversed(accepted) if row.version == version), None)
    if maker is None or maker.supersedes is None:
        raise Blocked(
            f"{product} has no earlier version to go back to",
            fix=f"lakehouse-backfill versions {product}",
        )
    return maker.supersedes


def _undone_publications(
    accepted: tuple[Publication, ...], product: str, target: int
) -> list[Publication]:
    undone: list[Publication] = []
    for row in accepted:
        if row.version == target:
            if not undone:
                raise Blocked(
                    f"{product} is at version {target} already",
                    fix=f"lakehouse-backfill versions {product}",
                )
            return undone
        undone.append(row)
    known = ", ".join(map(str, sorted({row.version for row in accepted}))) or "none"
    raise NotFound(
        f"{product} has no accepted version {target}; there are: {known}",
        fix=f"lakehouse-backfill versions {product}",
    )


def _group_restores(
    undone: list[Publication], labels: tuple[str, ...]
) -> tuple[PartitionRestore, ...]:
    groups: dict[tuple[int | None, int], list[str]] = {}
    for label in labels:
        touching = [row for row in undone if row.scope and label in row.scope.partitions]
        if not touching:
            continue
        newest, oldest = touching[0], touching[-1]
        if newest.snapshot_id is None:
            raise Blocked(f"version {newest.version} left no snapshot to compare with")
        groups.setdefault((oldest.before_snapshot_id, newest.snapshot_id), []).append(label)
    return tuple(
        PartitionRestore(
            partitions=tuple(group), restore_snapshot_id=restore, since_snapshot_id=since
        )
        for (restore, since), group in groups.items()
    )


def require_pointer_unmoved(pointer: Pointer, seen: Publication) -> None:
    """Raise PointerMoved when the accepted publication is not `seen`."""
    accepted = pointer.accepted
    if accepted is None or accepted.token != seen.token:
        now = f"version {accepted.version} by {accepted.by}" if accepted else "nothing"
        raise PointerMoved(
            f"{seen.product} moved meanwhile: {now} is accepted now",
            state="nothing was rolled back",
            fix=f"lakehouse-backfill versions {seen.product}",
        )
