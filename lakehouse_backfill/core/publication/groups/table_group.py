"""Several followed products are restated by one commit of the catalog, where it takes such.

Each version is reserved before, all by one commit of the pointer table, and each pointer moves
after it, as for one run. After a crash the tokens in the tables say whether the commit has landed:
then the versions are finished, else the same commit is made again, or all is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval import signatures
from lakehouse_backfill.core.planning.inputs.pins import head_snapshot_id
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.publication import expose
from lakehouse_backfill.core.publication.publication import AcceptedRun
from lakehouse_backfill.core.publication.rollback import publication_group
from lakehouse_backfill.core.runs import hooks
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import reserve, steps
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.domain.tables.commits import CommitResult

Release = Callable[[errors.BackfillError], None]


def require_one_commit(context: Context, plans: Sequence[Plan]) -> None:
    """Raise Unsupported unless one commit can make the results of all runs visible."""
    for plan in plans:
        how = ""
        if steps.is_stepwise(plan):
            how = "is published in steps"
        elif not expose.swaps_files(plan):
            how = "is published as correction events"
        if how:
            raise errors.Unsupported(
                f"{plan.run_id} of {plan.product} {how}, so it cannot become visible together "
                "with others",
                fix=f"lakehouse-backfill publish {plan.run_id}",
            )
    tables = [plan.resolved.target.table for plan in plans]
    if len(set(tables)) < len(tables):
        # Each part of the commit needs the table's head: the second would replace the first.
        raise errors.Unsupported(
            "two of the runs restate the same table", fix="publish one after the other"
        )
    context.publisher.require_one_commit(
        tuple((plan.resolved.target.table, plan.resolved.scope) for plan in plans)
    )


def require_same_group(context: Context, plans: Sequence[Plan]) -> None:
    """Raise Blocked when one of the runs is half published with others than these.

    The process that began may still commit to the tables of its own group: a refusal of another
    group would release a version that lands all the same.
    """
    ours = {plan.run_id for plan in plans}
    for plan in plans:
        state = context.runs.status(plan.run_id).state
        if state is not RunState.PUBLISHING or publish_modes.is_pinned_product(plan):
            continue
        group = set(publication_group(context, plan.run_id)) or {plan.run_id}
        left_out = [
            run_id
            for run_id in sorted(group - ours)
            if context.runs.status(run_id).state is not RunState.PUBLISHED
        ]
        if left_out or not ours <= group:
            with_others = ", ".join(sorted(group - {plan.run_id}))
            raise errors.Blocked(
                f"the publication of {plan.run_id} "
                f"{f'together with {with_others}' if with_others else 'alone'} was begun",
                state="this command changed nothing",
                fix=f"lakehouse-backfill recover {plan.run_id}, then repeat the command",
            )


def require_all_published(
    context: Context, plans: Sequence[Plan], published: Container[str]
) -> None:
    """Raise IllegalMove when runs of a group were taken back since it was begun."""
    left_out = [plan.run_id for plan in plans if plan.run_id not in published]
    if left_out:
        states = ", ".join(f"{run} is {context.runs.status(run).state.value}" for run in left_out)
        raise errors.IllegalMove(
            f"the group had been published, and not all of it any more: {states}",
            state="the others are published, and readers see them",
            fix=f"lakehouse-backfill publish {left_out[0]}, if readers are to see it again",
        )


def swap_together(
    context: Context, runs: Sequence[AcceptedRun], release: Release
) -> list[tuple[Publication, CommitResult]]:
    """Reserve the versions, swap in all files by one commit, and move the pointers.

    A refusal releases all versions and runs that have not landed.
    """
    for run in runs:
        begun = run.own_reservation
        if begun is not None and signatures.pending_publication_fault(context, run.plan, begun):
            # Nobody vouches for it, and nothing of it has landed: another one takes its place.
            reserve.release_version(context, begun, run.status.epoch)
    wanted = {run.plan.product: run.draft() for run in runs}
    reserved: dict[str, Publication] = {}
    try:
        heads = {
            run.plan.product: head_snapshot_id(context, run.plan.resolved.contract.table)
            for run in runs
        }
        reserved = reserve.reserve_versions(context, wanted, heads)
        for run in runs:
            token, version = reserved[run.plan.product].token, reserved[run.plan.product].version
            hooks.require_hooks(
                context, run.plan, "before_publish", token, run.status.epoch, version=version
            )
        members = [(run.plan, reserved[run.plan.product], run.accepted) for run in runs]
        with ExitStack() as spans:
            for plan, row, _ in members:
                journal = context.journal.bind(**plan.labels)
                facts = {"version": row.version, "publication": row.token}
                spans.enter_context(journal.span("publish", **facts))
            swaps = expose.adopt_shadows(context, members)
    except reserve.REFUSALS as error:
        if all(
            reserve.may_release(row, wanted[product], error) for product, row in reserved.items()
        ):
            reserve.name_state(error, "nothing was published; readers see what they saw before")
            release(error)
        raise
    return [
        (reserve.finalise_version(context, reserved[run.plan.product], swap, "publish"), swap)
        for run, swap in zip(runs, swaps, strict=True)
    ]
