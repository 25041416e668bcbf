"""Commands that repair and clean up: rollback, recover, maintain."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.session import (
    ByOption,
    DryRunOption,
    ReasonOption,
    TakeOverOption,
    acting_person,
    current_project,
    names_cascade,
    split_list,
)
from lakehouse_backfill.results.base import Result


def rollback(
    products: Annotated[
        list[str],
        typer.Argument(
            metavar="PRODUCT…", help="The product, or a cascade; several go back by one commit."
        ),
    ],
    reason: ReasonOption,
    to: Annotated[
        int | None, typer.Option(metavar="VERSION", help="The one before the newest if left out.")
    ] = None,
    partitions: Annotated[
        list[str] | None, typer.Option(metavar="P", help="Only these; may be repeated, or P,Q.")
    ] = None,
    *,
    by: ByOption = None,
    dry_run: DryRunOption = False,
) -> Result:
    """Go back to an accepted output version.

    Only the partitions of the restatement go back; later live commits in other partitions are
    kept. Several products, all pinned or all followed, go back a version by one commit.

    Examples:
      lakehouse-backfill rollback silver.orders --reason "wrong rates" --dry-run
      lakehouse-backfill rollback silver.orders --to 3 --reason "wrong rates"
      lakehouse-backfill rollback silver.orders --partitions 2026-01-07 --reason "one day"
      lakehouse-backfill rollback gold.daily gold.monthly --reason "wrong rates"
      lakehouse-backfill rollback cx-4f1c09a2d7 --reason "wrong rates"
    """
    project, only = current_project(), split_list(partitions)
    if any(map(names_cascade, products)):
        if len(products) > 1 or to is not None or only or dry_run:
            raise typer.BadParameter("a cascade is rolled back alone, and as a whole")
        return project.rollback_cascade(products[0], reason, acting_person(by))
    if len(products) > 1:
        if to is not None or only:
            raise typer.BadParameter("--to and --partitions take one product")
        return project.rollback_together(
            tuple(products), reason, acting_person(by), dry_run=dry_run
        )
    if dry_run:
        return project.preview_rollback(products[0], to, only, acting_person(by))
    return project.rollback(products[0], to, only, reason, acting_person(by))


def recover(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Everything in the lake.")] = False,
    give_up_topic: Annotated[
        str, typer.Option(metavar="TEXT", help="Never send the events that a topic lacks.")
    ] = "",
    by: ByOption = None,
    take_over: TakeOverOption = False,
    dry_run: DryRunOption = False,
) -> Result:
    """Finish or undo interrupted work.

    Reads the lake first, then acts: interrupted publications and rollbacks are finished, or
    released when they are refused now; an interrupted staging ends as failed and keeps its
    finished chunks. A second recover changes nothing. With --give-up-topic the correction events
    that a topic lacks count as sent, so that the product can be published again.

    Examples:
      lakehouse-backfill recover bf-4f1c09a2d7
      lakehouse-backfill recover --all --dry-run
      lakehouse-backfill recover bf-4f1c09a2d7 --give-up-topic "the topic was deleted"
    """
    if (run is None) is not everything:
        raise typer.BadParameter("name a run, or give --all")
    if give_up_topic:
        if run is None or dry_run:
            raise typer.BadParameter("--give-up-topic needs a run, and no --dry-run")
        return current_project().give_up_topic(run, acting_person(by), give_up_topic)
    return current_project().recover(run, acting_person(by), dry_run=dry_run, take_over=take_over)


def maintain(
    product: Annotated[
        str | None, typer.Option(metavar="PRODUCT", help="Only what belongs to one product.")
    ] = None,
    erasure: Annotated[
        str | None,
        typer.Option(
            metavar="PRODUCT",
            help="Remove all versions of a product but the accepted one now, as rows were erased.",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; recorded with an erasure.")
    ] = "",
    *,
    by: ByOption = None,
    dry_run: DryRunOption = False,
) -> Result:
    """Remove expired shadows, pins and versions; list what is kept.

    Deletes the files of runs that were never published, once no table reaches them; no file of a
    product. What an open run, a lease, or a version that can be rolled back to needs is kept. A
    second maintain finds nothing to do.

    Examples:
      lakehouse-backfill maintain --dry-run
      lakehouse-backfill maintain --product silver.orders
      lakehouse-backfill maintain --erasure silver.orders --reason "request 4711" --by ana
    """
    if erasure and not reason.strip():
        raise typer.BadParameter("an erasure needs --reason TEXT: it is recorded")
    if reason and not erasure:
        raise typer.BadParameter("--reason goes with --erasure PRODUCT")
    if erasure and product not in (None, erasure):
        raise typer.BadParameter("--product and --erasure name different products")
    who = acting_person(by)
    return current_project().maintain(who, erasure or product, reason, dry_run=dry_run)
