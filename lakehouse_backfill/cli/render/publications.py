"""publish, rollback, versions, evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse_backfill.cli.render.page import (
    TextPage,
    format_identity,
    format_moment,
    format_partitions,
)
from lakehouse_backfill.cli.render.runs import next_command

Data = Mapping[str, Any]


def render_publish(page: TextPage, data: Data) -> None:
    """Draw what became visible, or would."""
    if "published" in data:
        _group_table(page, "became visible by one commit", data["published"])
        return
    _publication_facts(page, data, "published")
    _post_publish_table(page, data)
    page.next(_command_after_dry_run(data) or next_command(data))


def _post_publish_table(page: TextPage, data: Data) -> None:
    """Draw the checks and hooks that followed, each with how it ended."""
    rows = [
        ("check", check["name"], "passed" if check["passed"] else "FAILED", check["detail"])
        for check in data.get("checks_after") or ()
    ]
    rows += [
        (f"hook {call['on']}", call["hook"], "done" if call["is_ok"] else "FAILED", call["detail"])
        for call in data.get("hooks") or ()
    ]
    if rows:
        page.table("around it", ("what", "name", "ended", "detail"), rows)


def render_rollback(page: TextPage, data: Data) -> None:
    """Draw what came back, or would."""
    if "rolled_back" in data:
        _group_table(page, "went back by one commit", data["rolled_back"])
        return
    _publication_facts(page, data, "rolled back to")
    for item in data.get("rewritten") or ():
        page.line(f"rewritten: {format_partitions(item['partitions'])}, because {item['because']}")
    if columns := data.get("columns_stay"):
        page.line(f"columns stay: {', '.join(columns)}; old rows read null in new columns")
    page.next(f"lakehouse-backfill versions {data['product']}" if data.get("product") else None)


def _group_table(page: TextPage, title: str, items: Sequence[Data]) -> None:
    rows = [
        (
            item["product"],
            item.get("run_id"),
            item["version"],
            format_identity(item.get("snapshot_id")),
        )
        for item in items
    ]
    page.table(title, ("product", "run", "output version", "snapshot"), rows)


def render_versions(page: TextPage, data: Data) -> None:
    """Draw the accepted versions, newest first."""
    rows = [
        (
            format_identity(row.get("version")),
            row.get("action"),
            row.get("run_id"),
            format_identity(row.get("snapshot_id")),
            format_moment(row.get("accepted_at")),
            row.get("accepted_by"),
            row.get("partitions"),
            format_identity(row.get("supersedes")),
        )
        for row in data["versions"]
    ]
    names = (
        "version",
        "action",
        "run",
        "snapshot",
        "accepted at",
        "by",
        "partitions",
        "supersedes",
    )
    page.table(str(data.get("product", "")), names, rows, most=50, is_copied=True)


def render_evidence(page: TextPage, data: Data) -> None:
    """Draw where the page and the archive lie."""
    page.facts((("page", data.get("report")), ("archive", data.get("archive"))))


def _publication_facts(page: TextPage, data: Data, done: str) -> None:
    version = data.get("version")
    if data.get("dry_run"):
        page.line(f"would be {done} version {version}; nothing was changed", "bold")
    elif data.get("was_published"):
        page.line(f"was {done} version {version} before; nothing was changed", "bold")
        page.facts((("product", data.get("product")), ("run", data.get("run_id"))))
        return
    else:
        page.line(f"{done} version {version}", "bold")
    partitions = data.get("partitions")
    page.facts(
        (
            ("product", data.get("product")),
            ("run", data.get("run_id")),
            (
                "partitions",
                format_partitions(partitions) if isinstance(partitions, list | tuple) else None,
            ),
            ("table", data.get("table")),
            ("snapshot", format_identity(data["snapshot_id"]) if data.get("snapshot_id") else None),
            ("files in", data.get("files_added")),
            ("files out", data.get("files_removed")),
            ("rows in", data.get("rows_added")),
            ("rows out", data.get("rows_removed")),
            ("seconds", data.get("seconds")),
            ("runs undone", data.get("runs_undone")),
            ("reason", data.get("reason") or None),
            ("supersedes", format_identity(data["supersedes"]) if "supersedes" in data else None),
        )
    )


def _command_after_dry_run(data: Data) -> str | None:
    if data.get("dry_run") and data.get("run_id"):
        return f"lakehouse-backfill publish {data['run_id']}"
    return None
