"""Commands on a result: compare, accept or reject, publish, look back; and rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.options import By, DryRun, Product, Reason, Run
from lakehouse_backfill.cli.session import session, split_list, whoami

PHASE = "after"
REPAIR = "repair"
_STATE = "namespace.table, with @snapshot-id, @tag, @branch or @timestamp"


def diff(
    context: typer.Context,
    old: Annotated[str, typer.Argument(metavar="RUN|OLD", help=f"A run, or {_STATE}.")],
    new: Annotated[str | None, typer.Argument(metavar="[NEW]", help="The newer state.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="A,B", help="Key columns; the contract's if left out.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Only rows for which this holds.")
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, local or spark")] = "auto",
    samples: Annotated[int, typer.Option(min=0, max=1000, help="Rows shown of each kind.")] = 5,
) -> None:
    """Compare old and new rows by key.

    Of a run: its candidate against what it replaces. Files that both sides share are not read.

    Examples:
      lakehouse-backfill diff bf-4f1c09a2d7
      lakehouse-backfill diff silver.orders@before-fix silver.orders --key order_id
    """
    columns = split_list([key]) if key else None
    project = session(context).project(computes=True)
    session(context).show(context, project.diff(old, new, columns, where, engine, samples))


def reconcile(
    context: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help=_STATE)],
    new: Annotated[str, typer.Argument(metavar="NEW", help=_STATE)],
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


def publish(context: typer.Context, run: Run, *, by: By = None, dry_run: DryRun = False) -> None:
    """Make an accepted result what readers see.

    One metadata-only commit: all of the run's partitions, or none. Live commits elsewhere survive.
    Publishing twice changes nothing.

    Examples:
      lakehouse-backfill publish bf-4f1c09a2d7 --dry-run
      lakehouse-backfill publish bf-4f1c09a2d7
    """
    session(context).show(context, session(context).project().publish(run, whoami(by), dry_run))


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


def rollback(
    context: typer.Context,
    product: Product,
    reason: Reason,
    to: Annotated[
        int | None, typer.Option(metavar="VERSION", help="The one before the newest if left out.")
    ] = None,
    partitions: Annotated[
        list[str] | None, typer.Option(metavar="P", help="Only these; may be repeated, or P,Q.")
    ] = None,
    *,
    by: By = None,
    dry_run: DryRun = False,
) -> None:
    """Go back to an accepted output version.

    Only the partitions of the restatement go back; later live commits elsewhere survive.

    Examples:
      lakehouse-backfill rollback silver.orders --reason "wrong rates" --dry-run
      lakehouse-backfill rollback silver.orders --to 3 --reason "wrong rates"
      lakehouse-backfill rollback silver.orders --partitions 2026-01-07 --reason "one day"
    """
    project, only = session(context).project(), split_list(partitions)
    back = project.rollback(product, to, only, reason, whoami(by), dry_run)
    session(context).show(context, back)
