"""What a validation found: gates, what changed, totals, edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from lakehouse_backfill.cli.render.page import BAD, Page, mark

Data = Mapping[str, Any]


def gates(page: Page, checks: Sequence[Any]) -> None:
    """Draw each gate, closed ones first."""
    closed_first = sorted(checks, key=lambda check: bool(check.get("passed")))
    rows = [
        (
            mark(is_good=True) if check.get("passed") else _closed(check),
            check.get("group"),
            check.get("name"),
            check.get("detail"),
        )
        for check in closed_first
    ]
    page.table("gates", ("", "group", "gate", "what was seen"), rows, most=40)


def _closed(check: Mapping[str, Any]) -> Text:
    return mark(is_good=False) if check.get("blocking", True) else Text("warn", style="yellow")


def summary(page: Page, data: Data) -> None:
    """Draw how many rows changed."""
    summary = (data.get("diff") or {}).get("summary")
    if summary:
        page.facts(
            [
                (
                    "rows",
                    f"{summary['old_rows']:,} old, {summary['new_rows']:,} new: "
                    f"{summary['added']:,} added, {summary['removed']:,} removed, "
                    f"{summary['changed']:,} changed, {summary['unchanged']:,} unchanged",
                )
            ]
        )


def spent(page: Page, data: Data) -> None:
    """Say how much of the run's time the suites took."""
    took = data.get("spent")
    if took and took["suites_s"]:
        share = took.get("suites_share")
        part = f", {share:.0%} of the run's {took['run_s']:.1f} s" if share is not None else ""
        page.facts(
            [("suites", f"{took['suites_s']:.1f} s of {took['validate_s']:.1f} s here{part}")]
        )


def totals(page: Page, totals: Sequence[Any]) -> None:
    """Draw the measures of both sides."""
    rows = [(item.get("name"), item.get("old"), item.get("new")) for item in totals]
    page.table("totals over the run's partitions", ("measure", "old", "new"), rows)


def edge(page: Page, edge: Mapping[str, Any]) -> None:
    """Draw an open edge, and the range that closes it."""
    if not edge or edge.get("is_closed"):
        return
    first, stop = edge.get("closing_from"), edge.get("closing_to")
    page.line("the range is open: rows beyond its edges would change too", BAD)
    if first and stop:
        page.line(f"  this range closes it: from: {first}, to: {stop}")
