"""Views of gates: of a validation, of a stopped run, of dual reads and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from lakehouse_backfill.cli.group import clean_text
from lakehouse_backfill.cli.render.page import (
    BAD,
    TextPage,
    format_moment,
    format_partitions,
    verdict_mark,
)


def render_failed_gates(page: TextPage, gates: Sequence[Mapping[str, Any]]) -> None:
    """Draw each failed gate, and the commands that waive them, each on a line to be copied."""
    rows = [(_gate_verdict(gate), gate["scope"], gate["name"], gate["detail"]) for gate in gates]
    page.table("failed gates", ("", "of", "gate", "what was seen"), rows, most=None)
    for gate in gates:
        if gate.get("why_not"):
            page.line(f"{gate['name']} cannot be waived: {gate['why_not']}", BAD)
    commands = [str(gate["command"]) for gate in gates if gate.get("command")]
    if commands:
        page.line()
        page.line("to let it pass all the same, for the record:")
    for command in dict.fromkeys(commands):
        page.draw(Text(f"  {clean_text(command)}"), is_whole=True)


def _gate_verdict(gate: Mapping[str, Any]) -> Text:
    if gate.get("waived_by"):
        return Text(clean_text(f"waived by {gate['waived_by']}"), style="yellow")
    return verdict_mark(is_good=False)


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
    """Describe how much of the run's time the suites took."""
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
