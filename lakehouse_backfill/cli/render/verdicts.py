"""What a validation found: gates, what changed, totals, edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from lakehouse_backfill.cli.render.page import BAD, TextPage, verdict_mark

Data = Mapping[str, Any]


def render_gates(page: TextPage, checks: Sequence[Any]) -> None:
    """Draw each gate, closed ones first."""
    closed_first = sorted(checks, key=lambda check: bool(check.get("passed")))
    rows = [
        (
            verdict_mark(is_good=True) if check.get("passed") else _failed_mark(check),
            check.get("group"),
            check.get("name"),
            check.get("detail"),
        )
        for check in closed_first
    ]
    page.table("gates", ("", "group", "gate", "what was seen"), rows, most=40)


def _failed_mark(check: Mapping[str, Any]) -> Text:
    return (
        verdict_mark(is_good=False) if check.get("blocking", True) else Text("warn", style="yellow")
    )


def render_row_counts(page: TextPage, data: Data) -> None:
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


def render_suite_time(page: TextPage, data: Data) -> None:
    """Say how much of the run's time the suites took."""
    took = data.get("spent")
    if took and took["suites_s"]:
        share = took.get("suites_share")
        part = f", {share:.0%} of the run's {took['run_s']:.1f} s" if share is not None else ""
        page.facts(
            [("suites", f"{took['suites_s']:.1f} s of {took['validate_s']:.1f} s here{part}")]
        )


def render_totals(page: TextPage, totals: Sequence[Any]) -> None:
    """Draw the measures of both sides."""
    rows = [(item.get("name"), item.get("old"), item.get("new")) for item in totals]
    page.table("totals over the run's partitions", ("measure", "old", "new"), rows)


def render_edge(page: TextPage, edge: Mapping[str, Any]) -> None:
    """Draw an open edge, and the range that closes it."""
    if not edge or edge.get("is_closed"):
        return
    first, stop = edge.get("closing_from"), edge.get("closing_to")
    page.line("the range is open: rows beyond its edges would change too", BAD)
    if first and stop:
        page.line(f"  this range closes it: from: {first}, to: {stop}")
