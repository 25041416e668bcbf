"""Decisions about the accepted-version pointer: reserve, finish, release, go back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.catch_up import ExcludedRows
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import (
    PartitionRestore,
    Pointer,
    Publication,
    RequiredRewrite,
)
from lakehouse_backfill.errors import Blocked, NotFound, PointerMoved, Unsupported

ACCEPTED_ACTIONS = ("baseline", "publish", "rollback")


def require_no_pending(pointer: Pointer, product: str, run_id: str | None) -> None:
    """Raise PointerMoved, with the winner's name, when another publication is under way."""
    pending = pointer.pending
    if pending is not None and (run_id is None or pending.run_id != run_id):
        what = f"version {pending.version} is being published"
        if pending.run_id is None:
            what = f"it is being rolled back to version {pending.returns_to}"
        raise PointerMoved(
            f"{product}: {what} by {pending.by} "
            f"({pending.run_id or pending.reason}) since {pending.at:%Y-%m-%d %H:%M:%S}Z",
            state="nothing was changed; what was staged is kept",
            fix="wait for it, then try again; if it was cut off: lakehouse-backfill recover "
            + (pending.run_id or "--all"),
        )


def resume_reservation(pending: Publication, by: Publication) -> tuple[Publication, ...]:
    """Give the row by which a later lease takes up a reservation; none when it holds it already.

    An earlier lease that finds it taken up can neither finish nor release it.
    """
    if pending.epoch == by.epoch:
        return ()
    event_log.require_current_epoch(str(pending.run_id), by.epoch, pending.epoch)
    return (pending.model_copy(update={"epoch": by.epoch, "driver": by.driver, "at": by.at}),)


def finished_elsewhere_error(row: Publication, pointer: Pointer) -> PointerMoved:
    """Make the error for an act that somebody else finished, or released, meanwhile."""
    now = f"version {pointer.accepted.version}" if pointer.accepted else "nothing"
    return PointerMoved(
        f"{row.product}: another process finished or released version {row.version} meanwhile; "
        f"{now} is accepted now",
        state="this process moved no pointer",
        fix=f"lakehouse-backfill versions {row.product}",
    )


def require_pinned_base(
    pointer: Pointer,
    wanted: Publication,
    head: int | None,
    base: tuple[str, int | None],
) -> None:
    """Raise PointerMoved unless readers of a pinned product see the state that a run starts from.

    Before the first publication that is the product's own table, at `head`.
    """
    accepted = pointer.accepted
    seen = (accepted.table, accepted.snapshot_id) if accepted else (wanted.table, head)
    if seen != base:
        who = (
            ""
            if accepted is None
            else (
                f" (version {accepted.version}, {accepted.action} by {accepted.by}"
                + (f", run {accepted.run_id})" if accepted.run_id else ")")
            )
        )
        raise PointerMoved(
            f"{wanted.product}: {wanted.run_id} starts from {base[0]}@{base[1]}, but readers see "
            f"{seen[0]}@{seen[1]} by now{who}, which the run does not contain",
            state="nothing was published; the shadow table is kept",
            fix=f"lakehouse-backfill plan MANIFEST --revise {wanted.run_id}",
        )


def baseline_publication(
    draft: Publication, head: int | None, scope: Scope | None, at: datetime
) -> Publication:
    """Give version 0: the state that the first publication of a product found."""
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
        }
    )


@dataclass(frozen=True)
class RollbackTarget:
    """Where a rollback leads: the version, the partitions with their old contents, rows undone.

    `leaving` and `returning` are the runs whose output readers see no more, and see again.
    """

    version: int
    is_partial: bool
    scope: Scope
    restores: tuple[PartitionRestore, ...]
    undone: tuple[Publication, ...]
    publication: Publication
    runs_rolled_back: tuple[str, ...]
    runs_reinstated: tuple[str, ...]
    #: How many versions had been let go when this was worked out.
    expirations: int = 0
    #: Partitions that cannot go back by their own files; found later, by looking at the table.
    rewrites: tuple[RequiredRewrite, ...] = ()
    #: What names rows that were deleted since, and do not come back; found with them.
    excluded_rows: ExcludedRows | None = None


def runs_by_version(history: tuple[Publication, ...]) -> dict[int, frozenset[str]]:
    """Name, for each accepted version, the runs whose output readers see at it."""
    found: dict[int, frozenset[str]] = {}
    seen: frozenset[str] = frozenset()
    for row in reversed(history):
        if row.action not in ACCEPTED_ACTIONS:
            continue
        if row.action == "publish" and row.run_id is not None:
            seen |= {row.run_id}
        # Back to a version: what was seen at it. Partly back is a version of its own.
        seen = found.get(row.version, seen) if row.action == "rollback" else seen
        found[row.version] = seen
    return found


def newest_published_run(history: tuple[Publication, ...]) -> str | None:
    """Name the run that was published last, also if it was rolled back since."""
    return next((row.run_id for row in history if row.action == "publish"), None)


def visible_publication(history: tuple[Publication, ...], run_id: str) -> Publication | None:
    """Give the publication by which readers see the run's output now, None when they do not."""
    newest = next((row for row in history if row.action in ACCEPTED_ACTIONS), None)
    if newest is None or run_id not in runs_by_version(history)[newest.version]:
        return None
    made = (row for row in history if row.action == "publish" and row.run_id == run_id)
    return next(made, None)


def rolled_back_since(history: tuple[Publication, ...], run_id: str) -> tuple[int, tuple[str, ...]]:
    """Give the run's newest output version, and which of its partitions went back since.

    A rollback of some partitions makes a version of its own; one to a version that was there before
    leads to what readers saw then.
    """
    nothing: frozenset[str] = frozenset()
    at: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
    made, mine, seen, others = 0, nothing, nothing, nothing
    for row in reversed([row for row in history if row.action in ACCEPTED_ACTIONS]):
        labels = frozenset(row.scope.partitions) if row.scope else nothing
        if row.action == "publish" and row.run_id == run_id:
            # Each step of a run that is published in steps is such a row.
            made, mine, seen, others = row.version, mine | labels, seen | labels, others - labels
        elif row.action == "publish":
            others |= labels  # another run's output is no rollback
        elif row.action == "rollback":
            seen, others = at.get(row.version, (seen - labels, others - labels))
        at[row.version] = seen, others
    return made, tuple(sorted(mine - seen - others))


def is_same_rollback(pending: Publication, wanted: Publication, *, is_partial: bool) -> bool:
    """Tell whether a pending rollback is the one that is wanted: it was cut off, and goes on."""
    was_partial = pending.returns_to is not None and pending.returns_to != pending.version
    held = (pending.run_id, pending.scope, pending.supersedes, pending.returns_to, was_partial)
    return held == (None, wanted.scope, wanted.supersedes, wanted.returns_to, is_partial)


def resolve_rollback(
    history: tuple[Publication, ...], product: str, to: int | None, only: tuple[str, ...]
) -> RollbackTarget:
    """Work out the rollback to version `to` (the one superseded last if None).

    For each partition: the content right before the first act that came after `to`; refused later
    if a live commit changed it since the last such act. Raises NotFound, Blocked.
    """
    accepted = [row for row in history if row.action in ACCEPTED_ACTIONS]
    if not accepted:
        raise NotFound(f"{product} has no accepted version", fix="lakehouse-backfill status --all")
    target = to if to is not None else _previous_version(accepted, product)
    undone = _undone_publications(accepted, product, target)
    scopes = [row.scope for row in undone if row.scope is not None]
    everything = {label for scope in scopes for label in scope.partitions}
    established = accepted[len(undone)]
    unknown = [label for label in only if label not in everything]
    if unknown:
        raise NotFound(
            f"{product}: {unknown[0]} was not changed since version {target}",
            fix=f"choose among {partitions.describe_labels(tuple(sorted(everything)))}",
        )
    wanted = everything & set(only) if only else everything
    field = _require_one_field(scopes, product, target)
    is_partial = wanted != everything
    before, after = (runs_by_version(history)[row.version] for row in (undone[0], established))
    labels = tuple(sorted(wanted, key=partitions.label_sort_key(field)))
    return RollbackTarget(
        version=target,
        is_partial=is_partial,
        scope=Scope(field=field, partitions=labels),
        # Correction events went to a table of their own: nothing of the product's is put back.
        restores=_group_restores(
            [row for row in undone if row.table == accepted[-1].table], labels
        ),
        undone=tuple(undone),
        publication=established,
        runs_rolled_back=() if is_partial else tuple(sorted(before - after)),
        runs_reinstated=() if is_partial else tuple(sorted(after - before)),
    )


def _require_one_field(scopes: list[Scope], product: str, target: int) -> ScopeField:
    """Labels of two partition fields are not told apart: by one, the other's are missed."""
    fields = list(dict.fromkeys(f"{s.field.transform}({s.field.column})" for s in scopes))
    if len(fields) > 1:
        raise Unsupported(
            f"{product}: since version {target} partitions of {' and of '.join(fields)} were "
            "restated; one rollback can only undo one of them",
            fix="choose a later version with --to, or restate the partitions",
        )
    return scopes[0].field


def _previous_version(accepted: list[Publication], product: str) -> int:
    version = accepted[0].version
    # A rollback row repeats the number of the version that it went back to: what came before that
    # version is written in the row that first made it.
    maker = next((row for row in reversed(accepted) if row.version == version), None)
    if maker is None or maker.supersedes is None:
        raise Blocked(
            f"{product} has no earlier version to go back to",
            fix=f"lakehouse-backfill versions {product}",
        )
    return maker.supersedes


def _undone_publications(
    accepted: list[Publication], product: str, target: int
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
            partitions=tuple(found), restore_snapshot_id=restore, since_snapshot_id=since
        )
        for (restore, since), found in groups.items()
    )


def require_pointer_unmoved(pointer: Pointer, seen: Publication) -> None:
    """Raise PointerMoved when the accepted publication is not the one that was looked at."""
    accepted = pointer.accepted
    if accepted is None or accepted.token != seen.token:
        now = f"version {accepted.version} by {accepted.by}" if accepted else "nothing"
        raise PointerMoved(
            f"{seen.product} moved meanwhile: {now} is accepted now",
            state="nothing was rolled back",
            fix=f"lakehouse-backfill versions {seen.product}",
        )
