"""Commands on sources: what lies outside the lake comes into it."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.session import ByOption, DryRunOption, acting_person, current_project
from lakehouse_backfill.results.base import Result

ListenOption = Annotated[
    int | None,
    typer.Option(
        metavar="PORT", min=0, max=65535,
        help="Take the requests of the API's webhook; 0: a free port.",
    ),
]  # fmt: skip
HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
ForOption = Annotated[
    float | None,
    typer.Option("--for", metavar="SECONDS", min=0, help="Listen for so long; else without end."),
]


def land(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A source of catalog/sources.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="DATE", help="First date or instant; all if left out."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="DATE", help="First one that is left out again.")
    ] = None,
    *,
    reconcile: Annotated[
        bool,
        typer.Option(
            "--reconcile", help="Read an API whole: find deletions and silent corrections."
        ),
    ] = False,
    listen: ListenOption = None,
    host: HostOption = "127.0.0.1",
    for_: ForOption = None,
    dry_run: DryRunOption = False,
) -> Result:
    """Bring a source into the lake as a pinned snapshot.

    What is new is appended to the raw table of the source, each row exactly once. A landing that
    was cut off is continued by the same command. With --listen it keeps and lands what the vendor
    sends, until it is interrupted.

    Examples:
      lakehouse-backfill land trips --dry-run
      lakehouse-backfill land trips
      lakehouse-backfill land trips --from 2026-01-01 --to 2026-02-01
      lakehouse-backfill land orders --from 2026-01-01 --to 2026-02-01 --reconcile
      lakehouse-backfill land orders --listen 8080
    """
    project = current_project()
    if listen is not None:
        _refuse_range(from_, to, reconcile=reconcile, dry_run=dry_run)
        return project.receive(source, listen, host, for_)
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


def _refuse_range(from_: str | None, to: str | None, *, reconcile: bool, dry_run: bool) -> None:
    """Raise BadParameter for options that say what to read: a receiver reads nothing."""
    if from_ or to or reconcile or dry_run:
        raise typer.BadParameter("--listen goes with --host and --for only")
