"""Commands on a result: compare, accept or reject, publish, look back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.options import (
    TABLE_STATE_HELP,
    ByOption,
    DryRunOption,
    ProductArgument,
    ReasonOption,
    RunArgument,
    TakeOverOption,
)
from lakehouse_backfill.cli.session import acting_person, current_session
from lakehouse_backfill.errors import ConfigError


def reconcile(
    context: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help=TABLE_STATE_HELP)],
    new: Annotated[str, typer.Argument(metavar="NEW", help=TABLE_STATE_HELP)],
) -> None:
    """Compare count and checksum of each partition.

    Examples:
      lakehouse-backfill reconcile silver.orders@before-fix silver.orders
    """
    current_session(context).show(
        context, current_session(context).project(computes=True).reconcile(old, new)
    )


def accept(
    context: typer.Context, run: RunArgument, by: ByOption = None, reason: ReasonOption = ""
) -> None:
    """Accept the result of a run, before it is published.

    The decision is bound to the digest of checks and diff: staging again voids it.

    Examples:
      lakehouse-backfill accept bf-4f1c09a2d7 --by ana
    """
    current_session(context).show(
        context, current_session(context).project().accept(run, acting_person(by), reason)
    )


def reject(
    context: typer.Context, run: RunArgument, reason: ReasonOption, by: ByOption = None
) -> None:
    """Say no to a run; nothing is deleted.

    Examples:
      lakehouse-backfill reject bf-4f1c09a2d7 --reason "SJU is missing"
    """
    current_session(context).show(
        context, current_session(context).project().reject(run, acting_person(by), reason)
    )


def waive(
    context: typer.Context,
    run: RunArgument,
    gate: Annotated[
        str | None, typer.Argument(metavar="[GATE]", help="The failed gate, by its whole name.")
    ] = None,
    by: ByOption = None,
    reason: ReasonOption = "",
    *,
    show: Annotated[bool, typer.Option("--list", help="List the failed gates only.")] = False,
) -> None:
    """Let a run pass a failed gate, for the record.

    Bound to exactly what was judged: another input, chunk or result needs another waiver. Gates
    that guard the data itself cannot be waived.

    Examples:
      lakehouse-backfill waive bf-4f1c09a2d7 --list
      lakehouse-backfill waive bf-4f1c09a2d7 "spot checks" --by ana --reason "4711 was refunded"
    """
    if gate is None and not show:
        raise ConfigError("no gate is named", fix=f"lakehouse-backfill waive {run} --list")
    named = None if show else gate
    current_session(context).show(
        context, current_session(context).project().waive(run, named, acting_person(by), reason)
    )


def publish(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="The run; several of pinned products go together."),
    ],
    *,
    by: ByOption = None,
    dry_run: DryRunOption = False,
    take_over: TakeOverOption = False,
) -> None:
    """Make an accepted result what readers see.

    One metadata-only commit: all of the run's partitions, or none. Live commits elsewhere survive.
    Publishing twice changes nothing. Several runs of pinned products become visible at once.

    Examples:
      lakehouse-backfill publish bf-4f1c09a2d7 --dry-run
      lakehouse-backfill publish bf-4f1c09a2d7
      lakehouse-backfill publish bf-4f1c09a2d7 bf-77aa01b2c3
    """
    project = current_session(context).project()
    if len(runs) == 1:
        current_session(context).show(
            context, project.publish(runs[0], acting_person(by), dry_run, take_over)
        )
        return
    if dry_run:
        raise typer.BadParameter("--dry-run takes one run")
    current_session(context).show(
        context, project.publish_together(tuple(runs), acting_person(by), take_over)
    )


def versions(context: typer.Context, product: ProductArgument) -> None:
    """List the accepted output versions of a product, newest first.

    Examples:
      lakehouse-backfill versions silver.orders
    """
    current_session(context).show(context, current_session(context).project().versions(product))


def evidence(
    context: typer.Context,
    run: RunArgument,
    export: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where page and archive are written.")
    ] = None,
) -> None:
    """Write down why a run was accepted: a page and an archive.

    Examples:
      lakehouse-backfill evidence bf-4f1c09a2d7
      lakehouse-backfill evidence bf-4f1c09a2d7 --export audit/
    """
    current_session(context).show(context, current_session(context).project().evidence(run, export))
