"""dual-read, and where readers and steps of a run stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lakehouse_backfill.cli.render.page import (
    TextPage,
    format_moment,
    format_partitions,
    verdict_mark,
)

Data = Mapping[str, Any]


def render_dual_read(page: TextPage, data: Data) -> None:
    """Draw one comparison, then where all readers stand."""
    found = data["comparison"]
    is_equal = bool(data["equal"])
    page.line(
        f"{found['reader']}: the results are {'equal' if is_equal else 'DIFFERENT'}",
        "bold" if is_equal else "bold red",
    )
    page.facts(
        (
            ("accepted", _answer_text(found, 0)),
            ("candidate", _answer_text(found, 1)),
            ("tolerance", found["tolerance"] or None),
        )
    )
    rows = [("old", str(row)) for row in found["only_old"]]
    rows += [("new", str(row)) for row in found["only_new"]]
    page.table("rows of one side only", ("side", "row"), rows)
    render_readers(page, data["readers"])


def render_readers(page: TextPage, found: Sequence[Any]) -> None:
    """Draw where the readers of a run stand."""
    rows = [
        (
            verdict_mark(is_good=item["outcome"] in ("equal", "accepted")),
            item["reader"],
            item["outcome"],
            item.get("by"),
            format_moment(item["at"]) if item.get("at") else None,
            item.get("reason"),
        )
        for item in found
    ]
    page.table("readers that compare", ("", "reader", "result", "by", "at", "reason"), rows)


def render_steps(page: TextPage, found: Sequence[Any]) -> None:
    """Draw the steps that were checked."""
    rows = [
        (
            verdict_mark(is_good=bool(item["passed"])),
            f"{item['step']} of {item['of']}",
            format_partitions(list(item["partitions"])),
            item["version"],
        )
        for item in found
    ]
    page.table("published in steps", ("", "step", "partitions", "version"), rows, most=None)


def _answer_text(found: Data, at: int) -> str:
    side, took = ("old", "new")[at], found.get("seconds")
    said = f"{_table_state_text(found[side])}, {found[f'{side}_answer']['rows']:,} rows"
    return f"{said} in {took[at]:.2f} s" if took else said


def _table_state_text(state: Mapping[str, Any]) -> str:
    return f"{state['table']}@{state['snapshot_id']}"
