"""Commands on sources: what lies outside the lake comes into it."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.session import ByOption, DryRunOption, acting_person, current_project
from lakehouse_backfill.results.base import Result


def land(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A source of catalog/sources.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="DATE", help="First date or instant; all if left out."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="DATE", help="First one that is not landed any more.")
    ] = None,
    *,
    reconcile: Annotated[
        bool,
        typer.Option(
            "--reconcile", help="Read an API whole: find deletions and silent corrections."
        ),
    ] = False,
    dry_run: DryRunOption = False,
) -> Result:
    """Bring a source into the lake as a pinned snapshot.

    What is new is appended to the raw table of the source, each row exactly once. A landing that
    was cut off is continued by the same command.

    Examples:
      lakehouse-backfill land trips --dry-run
      lakehouse-backfill land trips
      lakehouse-backfill land trips --from 2026-01-01 --to 2026-02-01
      lakehouse-backfill land orders --from 2026-01-01 --to 2026-02-01 --reconcile
    """
    project = current_project()
    if dry_run:
        return project.preview_landing(source, from_, to, reconcile=reconcile)
    return project.land(source, from_, to, reconcile=reconcile)


def migrate(
    migration: Annotated[
        str, typer.Argument(metavar="MIGRATION", help="A migration of catalog/migrations.")
    ],
    by: ByOption = None,
    *,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take it back; no file is deleted anywhere.")
    ] = False,
    dry_run: DryRunOption = False,
) -> Result:
    """Bring Parquet files, or a database table, into a product's new Iceberg table.

    Files that Iceberg can read stay where they are, others are written again. Counts and checksums
    of both sides must agree before readers see the table. A migration that was cut off is continued
    by the same command.

    Examples:
      lakehouse-backfill product migrate trips --dry-run
      lakehouse-backfill product migrate trips --by ana
      lakehouse-backfill product migrate trips --undo --by ana
    """
    project = current_project()
    if dry_run:
        return project.preview_migration(migration)
    if undo:
        return project.undo_migration(migration, acting_person(by))
    return project.migrate(migration, acting_person(by))
