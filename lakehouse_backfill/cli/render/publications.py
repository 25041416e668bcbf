"""Views of publish, rollback, versions, evidence, maintain, verify, reproduce and audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse_backfill.cli.render.page import (
    TextPage,
    format_identity,
    format_moment,
    format_partitions,
    format_size,
)
from lakehouse_backfill.cli.render.runs import next_command

Data = Mapping[str, Any]


def render_audit_verify(page: TextPage, data: Data) -> None:
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
            ("older", _unchained_note(data)),
        )
    )
    rows = [(run_id, head) for run_id, head in sorted(data["heads"].items())]
    page.table("heads: keep a copy elsewhere", ("run", "newest hash"), rows, most=50)


def _unchained_note(data: Data) -> str | None:
    count = data.get("unchained", 0)
    if not count:
        return None
    return f"{count} written before events were chained: edits until then are not found"


def render_verify(page: TextPage, data: Data) -> None:
    """Draw what was compared, what differs first, and which data was read for it."""
    page.line(
        "what is stored is what was accepted"
        if data["intact"]
        else "what is stored is NOT what was accepted",
        "bold",
    )
    page.line(_depth_note(data))
    _check_table(page, data["checks"], ("name",))


def render_reproduce(page: TextPage, data: Data) -> None:
    """Draw what came out again; partitions that differ come first."""
    verdict = "came out as it was accepted" if data["equal"] else "did NOT come out as accepted"
    page.line(f"{data['run_id']} {verdict}", "bold")
    rows = sorted(data["partitions"], key=lambda one: bool(one["equal"]))
    page.table(
        "partitions",
        ("partition", "equal", "accepted", "again"),
        [
            (one["partition"], _outcome_text(one["equal"]), one["accepted"], one["again"])
            for one in rows
        ],
        most=50,
    )
    for note in data.get("notes", ()):
        page.line(note)


def render_audit_guarantees(page: TextPage, data: Data) -> None:
    """Draw what was sampled of each product, and what held."""
    page.line(
        "what is promised holds" if data["held"] else "what is promised does NOT hold", "bold"
    )
    page.table(
        "sampled",
        ("product", "run", "chunk", "why this one"),
        [
            (one["product"], one["run_id"] or "none", one["chunk_id"] or "none", one["because"])
            for one in data["sampled"]
        ],
        most=50,
    )
    _check_table(page, data["checks"], ("product", "name"))


def _depth_note(data: Data) -> str:
    if not data["deep"]:
        return "not deep: sizes, metadata and control rows were compared, no data was read"
    by_spark = data["partitions_read_by_spark"]
    return (
        f"deep: the bytes of {data['files_read']} data files were read, and the rows of {by_spark} "
        "partitions by Spark" + ("" if by_spark else ": those bytes vouch for the rows")
    )


def _check_table(page: TextPage, checks: list[Mapping[str, Any]], names: tuple[str, ...]) -> None:
    order = {False: 0, None: 1, True: 2}
    rows = [
        (*(str(one[name]) for name in names), _outcome_text(one["ok"]), str(one["because"]))
        for one in sorted(checks, key=lambda one: order[one["ok"]])
    ]
    page.table("checks", (*names, "ok", "because"), rows, most=100)


def _outcome_text(ok: bool | None) -> str:  # noqa: FBT001 (a value of the results)
    return {True: "yes", False: "NO", None: "not comparable"}[ok]


def render_publish(page: TextPage, data: Data) -> None:
    """Draw what became visible, or would."""
    if "published" in data:
        _group_table(page, "became visible by one commit", data["published"])
        return
    _publication_facts(page, data, "published")
    _post_publish_table(page, data)
    page.next_command(_command_after_dry_run(data) or next_command(data))


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
    page.next_command(
        f"lakehouse-backfill versions {data['product']}" if data.get("product") else None
    )


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
