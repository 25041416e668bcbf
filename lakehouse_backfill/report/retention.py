"""What `maintain` let go and kept, as its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse_backfill.core.retention.maintain import MaintainResult
    from lakehouse_backfill.domain.retention import RetentionItem


def maintained_result(done: MaintainResult, *, dry_run: bool) -> dict[str, Any]:
    """Give both lists, each item with its reason, and what is left to clean up by other means."""
    return {
        "dry_run": dry_run,
        "retired": [_line(item) for item in done.retired],
        "kept": [_line(item) for item in done.kept],
        "left": [one.model_dump(mode="json") for one in done.left],
        "control_files": done.litter.model_dump(mode="json"),
        "versions_let_go": [
            {"product": item.product, "version": item.version}
            for item in done.retired
            if item.kind == "version"
        ],
    }


def _line(item: RetentionItem) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        "because": item.because,
        "product": item.product or None,
        "owner": item.owner or None,
        "until": item.until.isoformat() if item.until else None,
        "snapshot_id": item.snapshot_id,
        "run_id": item.run_id or None,
    }
