"""maintain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.cli.render.page import TextPage, format_moment, format_size

Data = Mapping[str, Any]
_RETENTION_COLUMNS = ("kind", "name", "owner", "until", "because")


def render_maintain(page: TextPage, data: Data) -> None:
    """Draw what was let go, what is kept and why, and what is left to clean up."""
    retired, kept = list(data["retired"]), list(data["kept"])
    if not retired:
        page.line("nothing is to be let go; nothing was changed")
    title = "would be let go; nothing was changed" if data.get("dry_run") else "let go"
    page.table(title, _RETENTION_COLUMNS, [_retention_row(item) for item in retired], most=50)
    page.table("kept", _RETENTION_COLUMNS, [_retention_row(item) for item in kept], most=50)
    rows = [
        (
            one["shadow"],
            format_size(one["size_bytes"]),
            one["command"] or "later: another shadow is left",
        )
        for one in data.get("left", ())
    ]
    page.table("left to orphan clean-up", ("shadow", "bytes", "in Spark, then without dry_run"),
               rows, most=None, is_copied=True)  # fmt: skip


def _retention_row(item: Data) -> tuple[Any, ...]:
    until = item.get("until")
    return (
        item.get("kind"), item.get("name"), item.get("owner"),
        format_moment(until) if until else None, item.get("because"),
    )  # fmt: skip
