"""Migrations as text and tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakehouse_backfill.cli.render.page import TextPage

if TYPE_CHECKING:
    from lakehouse_backfill.results.migrations import (
        MigratedPartRecord,
        MigratePreviewResult,
        MigrateResult,
        MigrationUndoneResult,
    )

#: Good files that are drawn; the bad ones are all drawn, and `--json` has all of both.
_SHOWN = 20


def render_migrate_preview(page: TextPage, result: MigratePreviewResult) -> None:
    """Draw what `migrate` would do."""
    page.line(
        f"{result.migration}: {result.rows:,} rows would become {result.table}: "
        f"{result.adopted:,} files stay where they are, {result.rewritten:,} are written again, "
        f"{result.rejected:,} are bad"
    )
    _parts(page, "bad", [part for part in result.parts if part.action == "reject"])
    _parts(page, "written again", [p for p in result.parts if p.action == "rewrite"][:_SHOWN])


def render_migrate(page: TextPage, result: MigrateResult) -> None:
    """Draw what a migration has done."""
    again = ", continued" if result.resumed else ""
    if result.blocked:
        page.line(f"{result.migration}: nothing was migrated")
    else:
        page.line(
            f"{result.migration}: {result.migration_id}{again}: {result.rows:,} rows in "
            f"{result.partitions:,} partitions have the same counts and checksums on both sides"
        )
        page.line(f"{result.adopted:,} files adopted, {result.rewritten:,} written again")
        seen = f"version 0 of {result.product}" if result.accepted else "not accepted yet"
        page.line(f"{result.table}: {seen}")
    for answer in result.readers:
        page.line(f"reader {answer['reader']}: the same answer from both sides")
    if result.keeps_files:
        page.line("adopted files lie in the old place: who deletes them there breaks the table")
    _parts(page, "bad", result.rejected_parts)
    _parts(page, "written again", result.rewritten_parts[:_SHOWN])


def render_migration_undone(page: TextPage, result: MigrationUndoneResult) -> None:
    """Draw what was taken back."""
    if result.migration_id is None:
        page.line(f"{result.migration}: there is no table {result.table}: nothing to take back")
        return
    page.line(
        f"{result.migration}: {result.migration_id} is taken back: {result.table} is not in the "
        "catalog any more, and no file was deleted"
    )


def _parts(page: TextPage, title: str, parts: Iterable[MigratedPartRecord]) -> None:
    rows = [(part.name, part.because) for part in parts]
    if rows:
        page.table(title, ("part", "because"), rows)
