"""Commands about what runs recorded: what is stale, and whether it is still what was accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.session import (
    ByOption,
    RunArgument,
    acting_person,
    current_project,
)
from lakehouse_backfill.results.base import Result


def stale(
    product: Annotated[
        str | None, typer.Argument(metavar="[PRODUCT]", help="One product; all if left out.")
    ] = None,
    *,
    draft: Annotated[
        bool, typer.Option("--draft", help="Write the run manifest that repairs exactly that.")
    ] = False,
    by: ByOption = None,
) -> Result:
    """Find partitions whose inputs or code changed since.

    Late rows, restated or deleted input, newer code, newer reference data; and partitions that are
    missing although their inputs have rows. Only metadata is read. Compactions change nothing.

    Examples:
      lakehouse-backfill stale
      lakehouse-backfill stale silver.orders --draft
    """
    if by is not None and not draft:
        raise typer.BadParameter("--by names who drafts: it goes with --draft")
    project = current_project()
    return project.stale(product, acting_person(by) if draft else None, draft=draft)


PartitionOption = Annotated[
    str | None, typer.Option("--partition", metavar="P", help="One partition; else all.")
]


def lineage(
    target: Annotated[str, typer.Argument(metavar="TABLE", help="A product, or an input table.")],
    partition: PartitionOption = None,
    openlineage: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write these runs as OpenLineage events."),
    ] = None,
) -> Result:
    """Show what a table came from, and what came from it.

    By run: partitions, snapshots and instants of each input; one step each way. Columns are those
    that a SQL transform names: information, no proof. OpenLineage events are JSON lines.

    Examples:
      lakehouse-backfill lineage silver.orders --partition 2026-01-17
      lakehouse-backfill lineage bronze.orders --partition 2026-01-17
      lakehouse-backfill lineage silver.orders --openlineage lineage.ndjson
    """
    return current_project().lineage(target, partition, openlineage)


def why(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A product, or its table.")],
    partition: PartitionOption = None,
) -> Result:
    """Tell why a partition is as it is, on one screen.

    Who changed it last and why, who approved and accepted, input, code, rows, checks, side effects,
    and whether it is stale. Without a partition: the newest publication.

    Examples:
      lakehouse-backfill why silver.orders --partition 2026-01-17
    """
    return current_project().why(table, partition)


def audit_verify(
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Output of an earlier audit verify --json."),
    ] = None,
    *,
    anchor: Annotated[
        bool, typer.Option("--anchor", help="Compare with the profile's anchor, too.")
    ] = False,
) -> Result:
    """Check that the log of runs was not edited.

    Finds events that were edited, forged, moved or deleted, and wrong signatures. A log that was
    rewritten as a whole is found by --anchor, or with a JSON that you kept where nobody who writes
    to the lake can change it.

    Examples:
      lakehouse-backfill audit verify
      lakehouse-backfill --profile prod audit verify --anchor
      lakehouse-backfill --json audit verify > heads.json
      lakehouse-backfill audit verify --against heads.json
    """
    return current_project().audit_verify(against, anchor=anchor)


def audit_guarantees(
    product: Annotated[
        str | None, typer.Argument(metavar="[PRODUCT]", help="One product; all if left out.")
    ] = None,
    by: ByOption = None,
) -> Result:
    """Test determinism, idempotence, pins and fences on a sample.

    One chunk of the newest published run is computed twice into a scratch table, which is dropped;
    another chunk is sampled each day. Readers and runs are not changed.

    Examples:
      lakehouse-backfill audit guarantees
      lakehouse-backfill audit guarantees silver.orders --json
    """
    return current_project(computes=True).audit_guarantees(product, by)


def verify(
    run: RunArgument,
    evidence: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where page and archive were exported to."),
    ] = None,
    *,
    deep: Annotated[bool, typer.Option("--deep", help="Read the data files too.")] = False,
) -> Result:
    """Check that the stored data is what was accepted.

    Sizes of data files, hashes of metadata, log, ledger, pointer, archive, evidence files; no data
    is read. With --deep also the bytes of all data files, and the rows of all partitions; Spark
    starts only for partitions whose rows the file bytes do not prove.

    Examples:
      lakehouse-backfill verify bf-4f1c09a2d7
      lakehouse-backfill verify bf-4f1c09a2d7 --deep --json
      lakehouse-backfill verify bf-4f1c09a2d7 --evidence audit/
    """
    project = current_project(computes=deep)
    return project.verify(run, deep=deep, evidence=evidence)


def reproduce(run: RunArgument, by: ByOption = None) -> Result:
    """Run the archived code of a run on its pinned inputs again.

    Writes a scratch table, which is never published and is dropped at the end. Each partition
    must have the accepted checksum; lineage columns are not compared.

    Examples:
      lakehouse-backfill reproduce bf-4f1c09a2d7
      lakehouse-backfill reproduce bf-4f1c09a2d7 --json
    """
    return current_project(computes=True).reproduce(run, by)
