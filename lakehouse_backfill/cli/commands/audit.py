"""Audits: is the log as it was written, does what is promised hold?"""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.session import current_session


def audit_verify(context: typer.Context) -> None:
    """Check that the log of runs is as it was written.

    Finds events that were edited, forged, moved or deleted. Keep the printed heads elsewhere:
    who rewrites the whole log is found only by comparing them.

    Examples:
      lakehouse-backfill audit verify
      lakehouse-backfill audit verify --json
    """
    current_session(context).show(context, current_session(context).project().audit_verify())


def audit_guarantees(
    context: typer.Context,
    product: Annotated[
        str | None, typer.Argument(metavar="[PRODUCT]", help="One product; all if left out.")
    ] = None,
) -> None:
    """Test determinism, idempotence, pins and fences on a sample.

    One chunk of the newest published run is computed twice into a scratch table, which is dropped;
    another chunk is drawn each day. Readers and runs stay as they are.

    Examples:
      lakehouse-backfill audit guarantees
      lakehouse-backfill audit guarantees silver.orders --json
    """
    found = current_session(context).project(computes=True).audit_guarantees(product)
    current_session(context).show(context, found)
