"""Landings as text and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.cli.render.page import TextPage

if TYPE_CHECKING:
    from lakehouse_backfill.results.sources import LandPreviewResult, LandResult, ReceiveResult


def render_land_preview(page: TextPage, result: LandPreviewResult) -> None:
    """Draw what `land` would read."""
    page.line(f"{result.source} ({result.kind}) would be landed in {result.table}")
    if result.parts:
        rows = [(part.name, part.action, part.because) for part in result.parts]
        page.table("", ("part", "action", "because"), rows)
    else:
        page.line("there is nothing to land")
    if result.throughput:
        page.line(result.throughput)


def render_land(page: TextPage, result: LandResult) -> None:
    """Draw what a landing has brought in."""
    if result.landing_id is None:
        page.line(f"{result.source}: nothing new; {result.table} stays as it is")
        return
    again = ", continued" if result.resumed else ""
    page.line(f"{result.source}: {result.landing_id}{again}: {result.rows:,} rows landed")
    page.line(f"input for a run manifest: {{table: {result.table}, at: {result.tag}}}")
    if result.files:
        rows = [
            (one.path, one.status, one.attempt, one.row_count, one.business_date, one.reason)
            for one in result.files
        ]
        head = ("file", "status", "attempt", "rows", "business date", "reason")
        page.table("", head, rows)


def render_receive(page: TextPage, result: ReceiveResult) -> None:
    """Draw what the receiver of a webhook has brought in."""
    page.line(
        f"{result.source}: {result.requests:,} requests received, {result.repeated:,} known "
        f"deliveries, {result.refused:,} refused; {result.rows:,} rows landed in {result.table}"
    )
    if result.tag is not None:
        page.line(f"input for a run manifest: {{table: {result.table}, at: {result.tag}}}")
    if result.waiting:
        page.line(f"{result.waiting:,} requests wait: the next `land` lands them")
