"""Rollbacks of several products by one commit.

Pinned products go back by one commit of the pointer table (U2), followed ones by one commit of the
catalog. What `recover` finishes goes back product by product.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill.core.approval import signatures
from lakehouse_backfill.core.publication import rollback_content
from lakehouse_backfill.core.publication.expose import is_rollback_of_events
from lakehouse_backfill.core.publication.rollback import (
    Rollback,
    apply_rollback,
    plan_rollback,
    publication_group,
    require_kept_history,
)
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import reserve
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.partitions import describe_labels
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.errors import BackfillError, Unsupported

Ways = tuple[tuple[Contract, RollbackTarget], ...]


def rollback_together(
    context: Context, ways: Ways, reason: str, by: str
) -> tuple[Publication, ...]:
    """Take several products, all pinned or all followed, back by one commit.

    Raises Unsupported for products of both kinds and where one commit cannot do it, PointerMoved
    when one of the pointers moved, TargetChanged when one of the tables did.
    """
    for contract, way in ways:
        roles.require_role(contract, "rollback", by, context.profile.environment)
        require_kept_history(context, contract.product, way)
    return _take_back(context, ways, reason, by)


def accepted_members(context: Context, group: tuple[str, ...]) -> tuple[str, ...]:
    """Return the runs of a group that readers see as they were published with it."""
    found = []
    for run_id in group:
        row = context.versions.pointer(context.runs.plan(run_id).product).accepted
        is_seen = row is not None and (row.run_id, row.action) == (run_id, "publish")
        # One that was published again since, alone or with others, is another publication.
        if is_seen and set(publication_group(context, run_id)) == set(group):
            found.append(run_id)
    return tuple(found)


def roll_back_group(context: Context, group: tuple[str, ...], reason: str, by: str) -> None:
    """Roll back what was published together; products whose pointer moved on stay.

    Followed products that one commit cannot restore go back by a commit each: one that is refused
    does not keep the others, and its error is raised at the end.
    """
    ways = []
    for plan in map(context.runs.plan, accepted_members(context, group)):
        row = context.versions.pointer(plan.product).accepted
        target = plan_rollback(context, plan.product, row.supersedes if row else None, ())
        ways.append((plan.resolved.contract, target))
    acts = {
        contract.product: Rollback(context, contract, way, reason, by) for contract, way in ways
    }
    try:
        if any(contract.publication == "follow" for contract, _ in ways):
            _require_one_commit(context, acts)
    except Unsupported:
        refused: list[BackfillError] = []
        for contract, way in ways:
            try:
                apply_rollback(context, contract, way, reason, by)
            except reserve.REFUSALS as error:
                refused.append(error)
        if refused:
            raise refused[0] from None
    else:
        _take_back(context, tuple(ways), reason, by)


def _take_back(context: Context, ways: Ways, reason: str, by: str) -> tuple[Publication, ...]:
    kinds = {contract.publication for contract, _ in ways}
    for contract, way in ways:
        if way.is_partial:
            raise _alone_error(contract.product, "only some of its partitions would")
        if len(kinds) > 1:
            raise _alone_error(contract.product, "one is followed, and another pinned")
        signatures.require_rollback_allowed(context, contract.product, way)
    acts = {
        contract.product: Rollback(context, contract, way, reason, by) for contract, way in ways
    }
    rows = _restore_tables(context, acts) if kinds == {"follow"} else _move_pointers(context, acts)
    for product, act in acts.items():
        act.follow_up(rows[product])
    return tuple(rows[product] for product in acts)


def _alone_error(product: str, reason: str) -> Unsupported:
    return Unsupported(
        f"{product} cannot go back together with others: {reason}",
        state="nothing was rolled back",
        fix=f"lakehouse-backfill rollback {product} --reason TEXT",
    )


def _move_pointers(context: Context, acts: Mapping[str, Rollback]) -> dict[str, Publication]:
    rows = {}
    for product, act in acts.items():
        swap = act.pointer_only_swap()
        rows[product] = act.signed(reserve.with_swap(act.draft(), swap, "rollback"))

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        for product, act in acts.items():
            act.require_current_target(pointers[product])
        return tuple(rows.values())

    moved = reserve.when_pointers_are_free(context, tuple(rows), decide)
    return {product: moved[product].accepted or row for product, row in rows.items()}


def _restore_tables(context: Context, acts: Mapping[str, Rollback]) -> dict[str, Publication]:
    """Reserve all rollbacks, restore all tables by one commit, and move the pointers."""
    _require_one_commit(context, acts)
    drafts = {product: act.draft() for product, act in acts.items()}
    for product, act in acts.items():
        act.replace_unsigned(drafts[product])

    def is_mine(pending: Publication) -> bool:
        return acts[pending.product].is_same(drafts[pending.product], pending)

    def decide(pointers: dict[str, Pointer]) -> tuple[Publication, ...]:
        for product, act in acts.items():
            act.require_current_target(pointers[product])
        return tuple(
            act.signed(drafts[product])
            for product, act in acts.items()
            if pointers[product].pending is None
        )

    moved = reserve.when_pointers_are_free(context, tuple(acts), decide, is_mine)
    rows = {product: reserve.require_pending(product, moved[product]) for product in acts}
    requests = {product: act.revert_request(rows[product]) for product, act in acts.items()}
    try:
        swaps = context.publisher.revert_together(tuple(requests.values()))
    except reserve.REFUSALS as error:
        _release_unless_landed(context, rows, drafts, error)
        raise
    return {
        product: reserve.finalise_version(context, rows[product], swap, "rollback")
        for product, swap in zip(acts, swaps, strict=True)
    }


def _require_one_commit(context: Context, acts: Mapping[str, Rollback]) -> None:
    """Raise Unsupported unless one commit, of metadata alone, can restore all the tables.

    What a rollback that was interrupted has restored already is not looked at.
    """
    context.publisher.require_one_commit(
        tuple((act.contract.table, act.way.scope) for act in acts.values())
    )
    for product, act in acts.items():
        begun = context.versions.pointer(product).pending
        if begun is not None and context.publisher.find(begun.table, begun.token) is not None:
            continue
        if is_rollback_of_events(act.way, act.contract.table):
            raise _alone_error(product, "its correction events are taken back by events")
        way = rollback_content.plan_rewrites(context, act.contract, act.way)
        labels = tuple(label for rewrite in way.rewrites for label in rewrite.partitions)
        if labels:
            raise _alone_error(product, f"{describe_labels(labels)} have to be rewritten")


def _release_unless_landed(
    context: Context,
    rows: Mapping[str, Publication],
    drafts: Mapping[str, Publication],
    error: BackfillError,
) -> None:
    """Give the rollbacks back; those that have landed stay reserved, for `recover` to finish."""
    landed = {
        product
        for product, row in rows.items()
        if context.publisher.find(row.table, row.token) is not None
    }
    if landed:
        error.state = f"{', '.join(sorted(landed))} are rolled back, and no other"
        error.fix = "lakehouse-backfill recover --all"
    for product, row in rows.items():
        if product not in landed and reserve.may_release(row, drafts[product], error):
            reserve.release_version(context, row, row.epoch)
