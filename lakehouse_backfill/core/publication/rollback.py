"""Rollback of one product to an accepted version.

A rollback keeps all live commits in other partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from lakehouse_backfill.core.approval import signatures
from lakehouse_backfill.core.guards.outside.effect_log import messages_not_sent_again, undo_messages
from lakehouse_backfill.core.publication import rollback_content
from lakehouse_backfill.core.publication.expose import (
    is_rollback_of_events,
    write_compensating_events,
)
from lakehouse_backfill.core.publication.notice import record_notice
from lakehouse_backfill.core.runs import anchors, hooks, roles, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import (
    correction_topic,
    pointer,
    reserve,
    retention,
    steps,
)
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.plan import declared_schema_change
from lakehouse_backfill.domain.publication import MODE_PROPERTY, Pointer, Publication
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.domain.tables.commits import CommitResult, RevertRequest
from lakehouse_backfill.domain.tables.schema_change import describe_schema_step
from lakehouse_backfill.errors import Blocked, NotFound, RunMoved, Unsupported


@dataclass(frozen=True)
class RollbackOutcome:
    """The publication row of a rollback, and its swap.

    `messages_lost` are those of runs that readers get again, which their sinks lack.
    """

    publication: Publication
    swap: CommitResult
    messages_lost: tuple[str, ...] = ()


def plan_rollback(
    context: Context, product: str, to: int | None, partitions: tuple[str, ...]
) -> RollbackTarget:
    """Resolve the target of a rollback; nothing is changed.

    Raises NotFound, Blocked, Tampered (the pointer is not the one of its rows), Unsupported.
    """
    context.versions.whole_pointer(product)
    history = context.versions.history(product)
    try:
        target = pointer.resolve_rollback(history, product, to, partitions)
    except Blocked as error:
        left = _runs_not_told(context, history)
        if left:
            error.problem = f"{error.problem}; that rollback was cut off: {left} was not told of it"
            error.fix = f"lakehouse-backfill recover {left}"
        raise
    retention.require_version_kept(history, product, target.version)
    return replace(target, expirations=retention.count_expirations(history))


def _runs_not_told(context: Context, history: tuple[Publication, ...]) -> str:
    """Return a run that counts as published though a rollback hid its rows; else nothing."""
    if history[0].action != "rollback":
        return ""
    published = {row.run_id for row in history if row.action == "publish" and row.run_id}
    hidden = (run for run in published if pointer.visible_publication(history, run) is None)
    is_left = (run for run in hidden if context.runs.status(run).state is RunState.PUBLISHED)
    return next(is_left, "")


def remaining_column_changes(context: Context, way: RollbackTarget) -> tuple[str, ...]:
    """List the column changes of the undone runs: a rollback restores rows, not columns."""
    plans = [context.runs.plan(row.run_id) for row in reversed(way.undone) if row.run_id]
    steps = [step for plan in plans for step in declared_schema_change(plan)]
    return tuple(dict.fromkeys(map(describe_schema_step, steps)))


def rollback(
    context: Context, contract: Contract, way: RollbackTarget, reason: str, by: str
) -> RollbackOutcome:
    """Restore the partitions by one metadata-only commit and move the pointer.

    Live commits in other partitions survive; one in the same partitions is named and refused.
    Partitions that metadata alone cannot restore are rewritten into a shadow before. Order: version
    reserved; shadow, if any; swap; pointer moved; view refreshed; undone runs moved; hooks. The
    same call finishes a rollback that was interrupted.
    """
    require_rollback_role(context, contract, by)
    pointer.require_whole_grains_back(contract, way)
    require_kept_history(context, contract.product, way)
    return apply_rollback(context, contract, way, reason, by)


def require_rollback_role(context: Context, contract: Contract, by: str) -> None:
    """Raise NotAllowed without the role, ApprovalMissing without a key where one is required."""
    roles.require_role(contract, "rollback", by, context.profile.environment)
    pending = context.versions.pointer(contract.product).pending
    if pending is None:  # a rollback that was interrupted is signed by who began it
        signers.require_signer(context.identity, context.profile, "rollback")


def require_kept_history(context: Context, product: str, way: RollbackTarget) -> None:
    """Raise Tampered when the anchor knows of another history; `anchors.require_kept_history`."""
    runs = [row.run_id for row in (way.publication, *way.undone) if row.run_id]
    anchors.require_kept_history(context, product, runs, "rolled back")


def apply_rollback(
    context: Context, contract: Contract, way: RollbackTarget, reason: str, by: str
) -> RollbackOutcome:
    """Roll back like `rollback`, but ask neither role nor anchor: the caller has done so.

    After failed checks of a publication, which asked the anchor, no dead anchor may keep its rows.
    """
    require_rollback_allowed(context, contract, way)
    act = Rollback(context, contract, way, reason, by)
    draft = act.draft()
    act.replace_unsigned(draft)
    row = act.reserve(draft)
    swap = act.restore_or_release(row, draft)
    rollback_content.drop_rollback_shadow(context, row)
    publication = reserve.finalise_version(context, row, swap, "rollback")
    context.journal_of(way.run_id).log(
        "rolled back", product=contract.product, version=publication.version, reason=reason
    )
    act.follow_up(publication)
    lost = messages_not_sent_again(context, way.runs_reinstated)
    return RollbackOutcome(publication, swap, lost)


def require_rollback_allowed(context: Context, contract: Contract, way: RollbackTarget) -> None:
    """Raise Unsupported for some partitions of a pinned product, NotAllowed by signatures."""
    if way.is_partial and contract.publication == "pinned":
        raise Unsupported(
            f"{contract.product} is pinned: its pointer moves for all partitions at once",
            fix="roll the whole version back, or restate some partitions",
        )
    signatures.require_rollback_allowed(context, contract.product, way)


def call_after_rollback_hooks(context: Context, row: Publication) -> None:
    """Send reverse events to a topic, and call the hooks of the newest run; each once."""
    correction_topic.send_pending(context, row.product)
    run_id = pointer.newest_published_run(context.versions.history(row.product))
    if run_id is not None:
        plan, epoch = context.runs.plan(run_id), context.runs.status(run_id).epoch
        told = record_notice(context, plan, row, epoch)
        hooks.call_hooks(
            context, plan, "after_rollback", row.token, epoch,
            outcome="rolled back", version=row.version, reason=row.reason, **told,
        )  # fmt: skip


@dataclass(frozen=True)
class Rollback:
    """The rollback of one product to a target."""

    context: Context
    contract: Contract
    way: RollbackTarget
    reason: str
    by: str

    def draft(self) -> Publication:
        """Build the row to reserve; the reservation of a partial rollback sets `version`."""
        way, newest = self.way, self.way.undone[0]
        # The table that changes: what an earlier rollback undid may belong to another table.
        effective = pointer.effective_publications(way.undone)
        return Publication(
            product=self.contract.product,
            version=way.version,
            token=uuid4().hex,
            action="reserve",
            run_id=None,
            table=effective[0].table if effective else newest.table,
            snapshot_id=None,
            before_snapshot_id=None,
            scope=way.scope,
            supersedes=newest.version,
            at=self.context.clock.now(),
            by=self.by,
            reason=self.reason,
            returns_to=way.version,
            driver=self.context.driver,
        )

    def require_current_target(self, current: Pointer) -> None:
        """Raise PointerMoved when the pointer moved, or versions expired, since the decision."""
        pointer.require_pointer_unmoved(current, self.way.undone[0])
        retention.require_none_expired_since(current, self.way.expirations, self.contract.product)

    def signed(self, row: Publication) -> Publication:
        """Return the row, signed by who rolls back, where they have a key."""
        context, at = self.context, reserve.act_time(self.context, row)
        table = partial(reserve.acted_table, context, row)
        return signers.sign_publication(context.identity, context.profile, row, at, table)

    def reserve(self, draft: Publication) -> Publication:
        """Reserve the version, or resume the same rollback of any process."""

        def decide(current: Pointer) -> tuple[Publication, ...]:
            self.require_current_target(current)
            if current.pending is not None:
                return ()
            version = current.last_version + 1 if self.way.is_partial else self.way.version
            return (self.signed(draft.model_copy(update={"version": version})),)

        # The same rollback by any process: it was interrupted, or it is still in progress.
        return reserve.when_pointer_is_free(
            self.context, draft.product, decide, partial(self.is_same, draft)
        )

    def is_same(self, draft: Publication, pending: Publication) -> bool:
        """Return whether a pending row is this rollback, begun by any process."""
        return pointer.is_same_rollback(pending, draft, is_partial=self.way.is_partial)

    def replace_unsigned(self, draft: Publication) -> None:
        """Release the same rollback that somebody began and nobody vouches for.

        One that has landed is signed anew instead, by this process. Raises ApprovalMissing without
        a key, NotAllowed without the role; what has not landed is released all the same.
        """
        context, contract = self.context, self.contract
        begun = context.versions.pointer(draft.product).pending
        if begun is None or not self.is_same(draft, begun):
            return
        fault = signatures.pending_rollback_fault(context, contract, begun)
        if not fault:
            return
        has_landed = context.publisher.find(begun.table, begun.token) is not None
        if not has_landed:
            reserve.release_version(context, begun, begun.epoch)
        try:
            signers.require_signer(context.identity, context.profile, "rollback")
            roles.require_role(contract, "rollback", self.by, context.profile.environment)
        except Blocked as error:
            error.state = f"{begun.table} is rolled back; no version was accepted"
            if not has_landed:
                error.state = "nothing was rolled back; what was begun is released"
            raise
        if has_landed:
            kept = {"version": begun.version, "token": begun.token, "epoch": begun.epoch}
            row = self.signed(draft.model_copy(update=kept))
            context.versions.move(
                draft.product,
                lambda now: (row,) if now.pending and now.pending.token == row.token else (),
            )

    def restore_or_release(self, row: Publication, draft: Publication) -> CommitResult:
        """Restore the partitions; release the reserved version when that is refused."""
        context = self.context
        try:
            return self._restore(row)
        except reserve.REFUSALS as error:
            # Another process may have finished the same rollback and dropped its shadow.
            landed = context.publisher.find(row.table, row.token)
            if landed is not None:
                return landed
            if reserve.may_release(row, draft, error):
                reserve.name_state(error, "nothing was rolled back")
                rollback_content.drop_rollback_shadow(context, row)
                reserve.release_version(context, row, row.epoch)
            raise

    def _restore(self, row: Publication) -> CommitResult:
        context, contract, way = self.context, self.contract, self.way
        if contract.publication == "pinned":
            return self.pointer_only_swap()
        if is_rollback_of_events(way, contract.table):
            return write_compensating_events(context, way, row)
        rewritten = None
        if context.publisher.find(contract.table, row.token) is None:
            way = rollback_content.plan_rewrites(context, contract, way)
            rewritten = rollback_content.write_rollback_shadow(context, way, row)
        request = replace(self, way=way).revert_request(row)
        return context.publisher.revert(request.model_copy(update={"rewritten": rewritten}))

    def revert_request(self, row: Publication) -> RevertRequest:
        """Ask for the earlier contents of the partitions, without those that are rewritten."""
        return RevertRequest(
            target=self.contract.table,
            scope=self.way.scope,
            restores=self.way.restores,
            token=row.token,
            tags=row.tags,
            properties={
                "lakehouse-backfill.rollback-to": str(self.way.version),
                "lakehouse-backfill.reason": row.reason,
                MODE_PROPERTY: self.context.mode_of(self.way.run_id),
                **signers.binding_mark(self.context.profile, self.contract.table),
            },
        )

    def pointer_only_swap(self) -> CommitResult:
        """Return the swap of a pinned product: the table and snapshot of the version."""
        row = self.way.publication
        if row.snapshot_id is None:
            raise NotFound(f"version {row.version} of {row.product} had no snapshot")
        rollback_content.require_no_tombstoned_rollback(self.context, self.contract, self.way)
        before = self.way.undone[0].snapshot_id
        return CommitResult.of_pointer(row.table, row.snapshot_id, before)

    def follow_up(self, row: Publication) -> None:
        """Show the view, move the runs to their new states, undo messages and call the hooks."""
        left, returned = self.way.runs_rolled_back, self.way.runs_reinstated
        show_and_align(self.context, self.contract, left, returned, self.by, self.reason)
        for run_id in left:
            undo_messages(self.context, run_id)
        call_after_rollback_hooks(self.context, row)


def show_and_align(
    context: Context,
    contract: Contract,
    leaving: Iterable[str],
    returning: Iterable[str],
    by: str,
    reason: str,
) -> None:
    """Show the view, then tell the runs of the pointer (`align_run_states`).

    In this order, as `recover` finds a rollback that was cut off by its runs. Where the catalog has
    no views, the runs are told all the same.
    """
    try:
        reserve.refresh_view(context, contract)
    except Unsupported:
        align_run_states(context, leaving, returning, by, reason)
        raise
    align_run_states(context, leaving, returning, by, reason)


def align_run_states(
    context: Context, leaving: Iterable[str], returning: Iterable[str], by: str, reason: str
) -> None:
    """Roll back runs that are no longer visible, and reinstate runs that are visible again.

    The current pointer decides: it may have moved on. A run that has the right state already, or
    that is being published, stays as it is.
    """
    for run_id in returning:
        verbs = {RunState.ROLLED_BACK: "reinstate", RunState.ACCEPTED: "reinstate"}
        _align_run_state(context, run_id, verbs, by, reason)
    for run_id in leaving:
        # A run that crashed between the pointer move and its last event counts as published.
        _align_run_state(context, run_id, {RunState.PUBLISHING: "finish publishing"}, by, reason)
        verbs = {RunState.PUBLISHED: "roll back", RunState.PUBLISH_HALTED: "roll back"}
        _align_run_state(context, run_id, verbs, by, reason)


def _align_run_state(
    context: Context, run_id: str, verbs: dict[RunState, str], by: str, reason: str
) -> None:
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    verb = verbs.get(status.state)
    pending = context.versions.pointer(status.product).pending
    if verb is None or (pending is not None and pending.run_id == run_id):
        return
    history = context.versions.history(status.product)
    is_visible = pointer.visible_publication(history, run_id) is not None
    if is_visible is (verb == "reinstate"):
        hidden = {*plan.resolved.scope.partitions} - steps.visible_partitions(history, run_id)
        if verb == "reinstate" and steps.is_stepwise(plan) and hidden:
            verb = "reinstate in part"
        with suppress(RunMoved):  # another process moved the run first
            context.move(status, plan, verb, by, reason=reason)


#: Detail of a run's "begin publishing" event that names the runs published with it.
GROUP_DETAIL = "together"


def publication_group(context: Context, run_id: str) -> tuple[str, ...]:
    """Return the runs that are published together with a run; empty when it is published alone."""
    events = [event for event in context.runs.events(run_id) if event.verb == "begin publishing"]
    return tuple(events[-1].detail.get(GROUP_DETAIL, ())) if events else ()


#: From these states a publication goes on that began before.
_GOES_ON = frozenset({RunState.PUBLISHING, RunState.PUBLISH_HALTED})


def is_taken_back(context: Context, status: RunStatus) -> bool:
    """Return whether a run in state publishing became visible and was rolled back since.

    Both processes crashed then: the run was not moved, neither to published nor to rolled back.
    """
    begun = [
        event.seq
        for event in context.runs.events(status.run_id)
        if event.verb == "begin publishing" and event.from_state not in _GOES_ON
    ]
    history = context.versions.history(status.product)
    own = pointer.published_rows(history, status.run_id)
    # Rows of an earlier publication have the epoch of that one.
    is_of_this = bool(begun and own) and own[0].epoch >= begun[-1]
    return is_of_this and pointer.visible_publication(history, status.run_id) is None
