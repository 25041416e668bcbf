"""Several pinned products become visible, or go back, by one commit of the pointer table (U2).

Nothing has to be reserved: that commit is the only side effect that readers see. A process that
dies leaves the runs publishing; whoever goes on publishes all, or finds that all are visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lakehouse_backfill.core.approval.decide import trusted_events
from lakehouse_backfill.core.planning import modes
from lakehouse_backfill.core.planning.pinning import head_of
from lakehouse_backfill.core.publication import follow_up
from lakehouse_backfill.core.publication.exposing import Accepted, expose
from lakehouse_backfill.core.publication.landing import Published, draft, finish, require_accepted
from lakehouse_backfill.core.publication.moving_together import GROUP, take_turn_all
from lakehouse_backfill.core.publication.publishable import check_publishable
from lakehouse_backfill.core.runs import hooks
from lakehouse_backfill.core.runs.lease import KeptLease
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.core.versions import publications
from lakehouse_backfill.core.versions.reserving import REFUSALS
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import RunStatus, State
from lakehouse_backfill.errors import BackfillError, ChecksFailed, PointerMoved, Unsupported


@dataclass(frozen=True)
class _Member:
    """One run of the group, and what of it was accepted (None: readers see it already)."""

    plan: Plan
    status: RunStatus
    accepted: Accepted | None = None


def publish_together(bench: Workbench, run_ids: tuple[str, ...], by: str) -> dict[str, Published]:
    """Make the accepted results of several runs visible at once; a second call changes nothing.

    Readers of all these products see the old or the new versions, never some of each, when they
    resolve the pointers together. Raises Unsupported (a product that is not pinned, or twice),
    PointerMoved, and what `publish` raises; then nothing has become visible.
    """
    plans = [bench.runs.plan(run_id) for run_id in dict.fromkeys(run_ids)]
    _require_fit(plans)
    return go_on(bench, tuple(plan.run_id for plan in plans), by, {})


def go_on(
    bench: Workbench, group: tuple[str, ...], by: str, detail: dict[str, str]
) -> dict[str, Published]:
    """Publish a group, or finish it: of one that was cut off all are visible, or none is."""
    plans = [bench.runs.plan(run_id) for run_id in group]
    rows = _visible(bench, plans)
    if len(rows) == len(plans):
        for plan in plans:
            _tell(bench, plan, rows[plan.run_id], by, detail)
        _follow(bench, plans, rows, by)
        return {run_id: Published(row, None, was_published=True) for run_id, row in rows.items()}
    try:
        accepted = [_checked(bench, plan, by) for plan in plans]
    except REFUSALS as error:
        for plan in plans:
            _release(bench, plan, by, error)
        raise
    with _driven(bench, plans, accepted, by, {GROUP: list(group), **detail}) as members:
        for member in members:
            act, epoch = hooks.group_act(bench, member.plan), member.status.epoch
            hooks.require_hooks(bench, member.plan, "before_publish", act, epoch)
        rows = _move(bench, members, by)
        for member in members:
            finish(bench, member.plan, member.status, rows[member.plan.run_id], by)
    _follow(bench, plans, rows, by)
    return {run_id: Published(row, None, was_published=False) for run_id, row in rows.items()}


def _require_fit(plans: list[Plan]) -> None:
    for plan in plans:
        if not modes.is_pinned(plan):
            raise Unsupported(
                f"{plan.product} is followed: its table is restated by a commit of its own, so it "
                "cannot become visible together with others",
                fix=f"lakehouse-backfill publish {plan.run_id}; only pinned products move together",
            )
    products = [plan.product for plan in plans]
    if len(set(products)) < len(products):
        raise Unsupported(
            "two of the runs are of the same product", fix="publish one after the other"
        )


def _visible(bench: Workbench, plans: list[Plan]) -> dict[str, Publication]:
    found = {
        plan.run_id: publications.visible(bench.versions.history(plan.product), plan.run_id)
        for plan in plans
    }
    return {run_id: row for run_id, row in found.items() if row is not None}


def _tell(bench: Workbench, plan: Plan, row: Publication, by: str, detail: dict[str, str]) -> None:
    """Finish a run that readers see: it was cut off after the pointers moved, or told before."""
    status = bench.runs.status(plan.run_id)
    if status.state is State.PUBLISHING:
        status = bench.drive(status, plan, "begin publishing", by, **detail)
        finish(bench, plan, status, row, by)


def _follow(bench: Workbench, plans: list[Plan], rows: dict[str, Publication], by: str) -> None:
    """Check and tell after all of them, also when a check of one fails; raises the first."""
    failed: list[ChecksFailed] = []
    for plan in plans:
        try:
            follow_up.follow_publication(bench, plan, rows[plan.run_id], by)
            require_accepted(bench, plan, rows[plan.run_id])
        except ChecksFailed as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _checked(bench: Workbench, plan: Plan, by: str) -> Accepted:
    status = bench.runs.status(plan.run_id)
    return check_publishable(bench, plan, trusted_events(bench, status), by)


def _release(bench: Workbench, plan: Plan, by: str, error: BackfillError) -> None:
    status = bench.runs.status(plan.run_id)
    if status.state is State.PUBLISHING:
        act = hooks.group_act(bench, plan)
        hooks.tell_given_back(bench, plan, act, status.epoch, error.problem)
        bench.overtake(status, plan, "release", by, problem=error.problem)


@contextmanager
def _driven(
    bench: Workbench,
    plans: list[Plan],
    accepted: list[Accepted],
    by: str,
    detail: dict[str, object],
) -> Iterator[list[_Member]]:
    """Drive all runs of the group; what is refused inside gives all of them back."""
    members: list[_Member] = []
    with ExitStack() as leases:
        try:
            for plan, found in zip(plans, accepted, strict=True):
                status = bench.runs.status(plan.run_id)
                status = bench.drive(status, plan, "begin publishing", by, **detail)
                leases.enter_context(KeptLease(bench, status))
                members.append(_Member(plan, status, found))
            yield members
        except REFUSALS as error:
            for member in members:
                status, plan, problem = member.status, member.plan, error.problem
                act = hooks.group_act(bench, plan)
                hooks.tell_given_back(bench, plan, act, status.epoch, problem)
                bench.move(status, plan, "release", by, problem=problem)
            raise


def _move(bench: Workbench, members: list[_Member], by: str) -> dict[str, Publication]:
    """Keep the shadows' snapshots, and move all pointers in one commit."""
    rows = {member.plan.run_id: _row(bench, member, by) for member in members}
    heads = {m.plan.product: head_of(bench, m.plan.resolved.contract.table) for m in members}

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        found: list[Publication] = []
        for member in members:
            row, plan = rows[member.plan.run_id], member.plan
            pointer, target = pointers[plan.product], plan.resolved.target
            if pointer.accepted is not None and pointer.accepted.token == row.token:
                continue
            head, own = heads[plan.product], row.model_copy(update={"table": target.table})
            publications.require_base(pointer, own, head, (target.table, target.snapshot_id))
            if pointer.accepted is None:
                found.append(publications.baseline(own, head, row.scope, row.at))
            _require_number(pointer, row)
            current = pointer.accepted.version if pointer.accepted else 0
            found.append(row.model_copy(update={"supersedes": current}))
        return tuple(found)

    moved = take_turn_all(bench, tuple(heads), decide)
    accepted = {m.plan.run_id: moved[m.plan.product].accepted for m in members}
    return {run_id: row or rows[run_id] for run_id, row in accepted.items()}


def _require_number(pointer: Pointer, row: Publication) -> None:
    """What was kept for the version bears its number: another one needs to be kept anew."""
    if pointer.last_version + 1 != row.version:
        raise PointerMoved(
            f"{row.product}: version {row.version} was taken meanwhile",
            state="nothing was published",
            fix="repeat the same command",
        )


def _row(bench: Workbench, member: _Member, by: str) -> Publication:
    plan, accepted = member.plan, member.accepted
    if accepted is None:
        raise ValueError(f"{plan.run_id} was not checked")
    events = bench.runs.events(plan.run_id)
    row = draft(bench, plan, events, accepted, by)
    version = bench.versions.pointer(plan.product).last_version + 1
    row = row.model_copy(
        update={"version": version, "epoch": member.status.epoch, "driver": bench.driver}
    )
    swap = expose(bench, plan, row, accepted)
    return row.model_copy(
        update={
            "action": "publish",
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
        }
    )
