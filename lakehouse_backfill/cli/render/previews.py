"""What a diff would read, and which engine compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.cli.render.page import TextPage

Data = Mapping[str, Any]


def engine_text(data: Data) -> str:
    """Name the engine, and why it was chosen."""
    choice = data.get("engine_choice")
    return f"{choice['engine']}: {choice['why']}" if choice else str(data.get("engine"))


def render_preview(page: TextPage, data: Data) -> None:
    """Draw what is proven to be the same, then what would be read of each side."""
    page.line(f"{data['old']}  ->  {data['new']}", "bold")
    verdict = "identical" if data["identical"] else "not proven: rows have to be compared"
    page.facts(
        [
            ("by metadata alone", verdict),
            ("same files", _load_text(data["shared"])),
            ("equal by fingerprint", _load_text(data["equal_by_fingerprint"])),
            ("old, to read", _load_text(data["old_to_read"])),
            ("new, to read", _load_text(data["new_to_read"])),
            ("the same, to count", _load_text(data["shared_to_count"])),
            ("key", ", ".join(data["key"]) or "none: rows are compared as a multiset"),
            ("engine", engine_text(data)),
        ]
    )
    parts = data["partitions"]
    rows = [
        (one["partition"], *(_load_text(one[side]) for side in ("old", "new")))
        for one in parts
        if one["proven_by"] is None
    ]
    title = f"{len(rows):,} of {len(parts):,} partitions would be read"
    page.table(title, ("partition", "old", "new"), rows)


def _load_text(load: Data) -> str:
    return f"{load['files']:,} files, {load['rows']:,} rows, {load['bytes'] / 2**20:,.1f} MiB"
