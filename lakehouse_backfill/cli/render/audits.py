"""audit verify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.cli.render.page import Page

Data = Mapping[str, Any]


def verified(page: Page, data: Data) -> None:
    """Draw what was found, what it means, and the heads that are worth keeping elsewhere."""
    if data["intact"]:
        page.line("what was recorded is as it was written", "bold")
    else:
        page.line("what was recorded is NOT as it was written", "bold")
        page.line(f"first: {data['first_bad']}")
        page.line("Somebody changed it by other means. What it says of approvals proves nothing.")
    page.facts(
        (
            ("events", data["events"]),
            ("runs", data["runs"]),
            ("products", data.get("products")),
            ("older", _older(data)),
        )
    )
    rows = [(run_id, head) for run_id, head in sorted(data["heads"].items())]
    page.table("heads: keep a copy elsewhere", ("run", "newest hash"), rows, most=50)


def _older(data: Data) -> str | None:
    count = data.get("unchained", 0)
    if not count:
        return None
    return f"{count} written before events were chained: edits until then are not found"
