"""Commands on a result: compare, accept or reject, publish, look back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.options import STATE, By, DryRun, Product, Reason, Run, TakeOver
from lakehouse_backfill.cli.session import session, whoami
from lakehouse_backfill.errors import ConfigError

PHASE = "after"


def reconcile(
    context: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help=STATE)],
    new: Annotated[str, typer.Argument(metavar="NEW", help=STATE)],
) -> None:
    """Compare count and checksum of each partition.

    Examples:
      lakehouse-backfill reconcile silver.orders@before-fix silver.orders
    """
    session(context).show(context, session(context).project(computes=True).reconcile(old, new))


def accept(context: typer.Context, run: Run, by: By = None, reason: Reason = "") -> None:
    """Accept the result of a run, before it is published.

    The decision is bound to the digest of checks and diff: staging again voids it.

    Examples:
      lakehouse-backfill accept bf-4f1c09a2d7 --by ana
    """
    session(context).show(context, session(context).project().accept(run, whoami(by), reason))


def reject(context: typer.Context, run: Run, reason: Reason, by: By = None) -> None:
    """Say no to a run; nothing is deleted.

    Examples:
      lakehouse-backfill reject bf-4f1c09a2d7 --reason "SJU is missing"
    """
    session(context).show(context, session(context).project().reject(run, whoami(by), reason))


def waive(
    context: typer.Context,
    run: Run,
    gate: Annotated[
        str | None, typer.Argument(metavar="[GATE]", help="The failed gate, by its whole name.")
    ] = None,
    by: By = None,
    reason: Reason = "",
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
    session(context).show(context, session(context).project().waive(run, named, whoami(by), reason))


def publish(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="The run; several of pinned products go together."),
    ],
    *,
    by: By = None,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
) -> None:
    """Make an accepted result what readers see.

    One metadata-only commit: all of the run's partitions, or none. Live commits elsewhere survive.
    Publishing twice changes nothing. Several runs of pinned products become visible at once.

    Examples:
      lakehouse-backfill publish bf-4f1c09a2d7 --dry-run
      lakehouse-backfill publish bf-4f1c09a2d7
      lakehouse-backfill publish bf-4f1c09a2d7 bf-77aa01b2c3
    """
    project = session(context).project()
    if len(runs) == 1:
        session(context).show(context, project.publish(runs[0], whoami(by), dry_run, take_over))
        return
    if dry_run:
        raise typer.BadParameter("--dry-run takes one run")
    session(context).show(context, project.publish_together(tuple(runs), whoami(by), take_over))


def versions(context: typer.Context, product: Product) -> None:
    """List the accepted output versions of a product, newest first.

    Examples:
      lakehouse-backfill versions silver.orders
    """
    session(context).show(context, session(context).project().versions(product))


def evidence(
    context: typer.Context,
    run: Run,
    export: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where page and archive are written.")
    ] = None,
) -> None:
    """Write down why a run was accepted: a page and an archive.

    Examples:
      lakehouse-backfill evidence bf-4f1c09a2d7
      lakehouse-backfill evidence bf-4f1c09a2d7 --export audit/
    """
    session(context).show(context, session(context).project().evidence(run, export))
