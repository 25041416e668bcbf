"""Commands that prove something about accepted runs: verify, reproduce, audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.session import RunArgument, current_session


def audit_verify(context: typer.Context) -> None:
    """Check that the log of runs was not edited.

    Finds events that were edited, forged, moved or deleted. Keep the printed heads elsewhere:
    only a comparison with them finds a log that was rewritten as a whole.

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
    another chunk is sampled each day. Readers and runs are not changed.

    Examples:
      lakehouse-backfill audit guarantees
      lakehouse-backfill audit guarantees silver.orders --json
    """
    found = current_session(context).project(computes=True).audit_guarantees(product)
    current_session(context).show(context, found)


def verify(
    context: typer.Context,
    run: RunArgument,
    evidence: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where page and archive were exported to."),
    ] = None,
    *,
    deep: Annotated[bool, typer.Option("--deep", help="Read the data files too.")] = False,
) -> None:
    """Check that the stored data is what was accepted.

    Sizes of data files, hashes of metadata, log, ledger, pointer, archive, evidence files; no data
    is read. With --deep also the bytes of all data files, and the rows of all partitions; Spark
    starts only for partitions whose rows the file bytes do not prove.

    Examples:
      lakehouse-backfill verify bf-4f1c09a2d7
      lakehouse-backfill verify bf-4f1c09a2d7 --deep --json
      lakehouse-backfill verify bf-4f1c09a2d7 --evidence audit/
    """
    project = current_session(context).project(computes=deep)
    current_session(context).show(context, project.verify(run, deep=deep, evidence=evidence))


def reproduce(context: typer.Context, run: RunArgument) -> None:
    """Run the archived code of a run on its pinned inputs again.

    Writes a scratch table, which is never published and is dropped at the end. Each partition
    must have the accepted checksum; lineage columns are not compared.

    Examples:
      lakehouse-backfill reproduce bf-4f1c09a2d7
      lakehouse-backfill reproduce bf-4f1c09a2d7 --json
    """
    current_session(context).show(
        context, current_session(context).project(computes=True).reproduce(run)
    )
