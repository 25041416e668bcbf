"""verify, reproduce, audit verify, audit guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.cli.render.page import TextPage

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
