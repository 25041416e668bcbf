"""The command on the log of runs: is it as it was written?"""

from __future__ import annotations

import typer

from lakehouse_backfill.cli.session import session

PHASE = "after"


def audit_verify(context: typer.Context) -> None:
    """Check that the log of runs is as it was written.

    Finds events that were edited, forged, moved or deleted. Keep the printed heads elsewhere:
    who rewrites the whole log is found only by comparing them.

    Examples:
      lakehouse-backfill audit verify
      lakehouse-backfill audit verify --json
    """
    session(context).show(context, session(context).project().audit_verify())
