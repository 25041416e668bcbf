"""The command that lets go of what nobody needs any more."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.options import ByOption, DryRunOption
from lakehouse_backfill.cli.session import acting_person, current_session


def maintain(
    context: typer.Context,
    product: Annotated[
        str | None, typer.Option(metavar="PRODUCT", help="Only what belongs to one product.")
    ] = None,
    erasure: Annotated[
        str | None,
        typer.Option(
            metavar="PRODUCT",
            help="Let all but the accepted version of a product go now, as rows were erased.",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; recorded with an erasure.")
    ] = "",
    *,
    by: ByOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Let go of shadows, pins and old versions that nothing needs; say what is kept, and why.

    By metadata alone: no data file is deleted. What an open run, a lease, or an accepted version
    that can be gone back to needs is kept. A second maintain finds nothing to do.

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
    found = current_session(context).project().maintain(who, erasure or product, reason, dry_run)
    current_session(context).show(context, found)
