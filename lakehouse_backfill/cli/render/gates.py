"""Views of gates: of a validation, of a stopped run, of dual reads and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakehouse_backfill.cli.group import clean_text
from lakehouse_backfill.cli.render.page import BAD, GOOD, WEAK, TextPage, verdict_mark

if TYPE_CHECKING:
    from lakehouse_backfill.core.approval.decisions import FailedGate
    from lakehouse_backfill.domain import checks
    from lakehouse_backfill.domain.catch_up import TableState
    from lakehouse_backfill.domain.comparison.diff import PartitionDiff
    from lakehouse_backfill.domain.rollout import QueryAnswer
    from lakehouse_backfill.results.publications import DualReadResult


def render_failed_gates(page: TextPage, gates: Sequence[FailedGate]) -> None:
    """Draw each failed gate, and the commands that waive them, each on a line to be copied."""
    columns = ": waived_by | of: scope | check: question | what was seen: detail"
    page.records("failed gates", columns, gates, most=None, waived_by=_gate_verdict)
    for gate in gates:
        if gate.why_not:
            page.line(f"{gate.question} cannot be waived: {gate.why_not}", BAD)
    commands = [gate.command for gate in gates if gate.command]
    if commands:
        page.line()
        page.line("to let it pass all the same, for the record:")
    for command in dict.fromkeys(commands):
        page.draw(Text(f"  {clean_text(command)}"), is_whole=True)


def _gate_verdict(gate: FailedGate) -> Text:
    if gate.waived_by:
        return Text(clean_text(f"waived by {gate.waived_by}"), style="yellow")
    return Text("failed", style=BAD)


def render_dual_read(page: TextPage, result: DualReadResult) -> None:
    """Draw one comparison, then where all readers stand."""
    found, is_equal = result.comparison, result.equal
    page.line(
        f"{found.reader}: the results are {'equal' if is_equal else 'DIFFERENT'}",
        "bold" if is_equal else "bold red",
    )
    took = found.seconds or (None, None)
    page.facts(
        (
            ("accepted", _answer_text(found.old, found.old_answer, took[0])),
            ("candidate", _answer_text(found.new, found.new_answer, took[1])),
            ("tolerance", found.tolerance or None),
        )
    )
    rows = [("old", str(row)) for row in found.only_old]
    rows += [("new", str(row)) for row in found.only_new]
    page.table("rows of one side only", ("side", "row"), rows)
    render_readers(page, [vars(one) for one in result.readers])


def _answer_text(state: TableState, answer: QueryAnswer, seconds: float | None) -> str:
    text = f"{state.table}@{state.snapshot_id}, {answer.rows:,} rows"
    return text if seconds is None else f"{text} in {seconds:.2f} s"


def render_readers(page: TextPage, found: Sequence[Any]) -> None:
    """Draw where the readers of a run stand."""
    page.records(
        "readers that compare",
        ": is_good | reader | result: outcome | by | at | reason",
        found,
        is_good=lambda item: verdict_mark(is_good=item["outcome"] in ("equal", "accepted")),
    )


def render_steps(page: TextPage, found: Sequence[Any]) -> None:
    """Draw the steps that were checked."""
    page.records(
        "published in steps", ": passed | step | partitions | version", found, most=None,
        passed=lambda item: verdict_mark(is_good=bool(item["passed"])),
        step=lambda item: f"{item['step']} of {item['of']}",
    )  # fmt: skip


def render_gates(
    page: TextPage, found: Sequence[checks.CheckResult], *, is_short: bool = False
) -> None:
    """Draw how many checks passed, and what each asked and found, failed ones first.

    In short only those that did not pass are drawn.
    """
    from lakehouse_backfill.core.runs import gate_registry

    if not found:
        return
    verdicts = list(map(gate_registry.find_verdict, found))
    page.records(
        f"checks: {gate_registry.count_verdicts(verdicts)}",
        "verdict: passed | group | check: name | what was seen: detail",
        [
            check
            for check in sorted(found, key=lambda check: check.passed)
            if not is_short or gate_registry.find_verdict(check) != "passed"
        ],
        most=40,
        passed=lambda check: _verdict_cell(gate_registry.find_verdict(check)),
        name=gate_registry.check_title,
    )


_VERDICT_STYLES = {"passed": GOOD, "failed": BAD, "not judged": WEAK}


def _verdict_cell(verdict: str) -> Text:
    return Text(verdict, style=_VERDICT_STYLES.get(verdict, "yellow"))


def render_row_counts(page: TextPage, summary: PartitionDiff) -> None:
    """Draw how many rows changed."""
    text = (
        f"{summary.old_rows:,} old, {summary.new_rows:,} new: {summary.added:,} added, "
        f"{summary.removed:,} removed, {summary.changed:,} changed, {summary.unchanged:,} unchanged"
    )
    page.facts((("rows", text),))


def render_suite_time(page: TextPage, took: Mapping[str, Any] | None) -> None:
    """Describe how much of the run's time the suites took."""
    if took and took["suites_s"]:
        share = took["suites_share"]
        part = f", {share:.0%} of the run's {took['run_s']:.1f} s" if share is not None else ""
        text = f"{took['suites_s']:.1f} s of {took['validate_s']:.1f} s here{part}"
        page.facts((("suites", text),))


def render_edge(page: TextPage, edge: checks.EdgeReport | None) -> None:
    """Draw an open edge, and the range that closes it."""
    if edge is None or edge.is_closed:
        return
    page.line("the range is open: rows beyond its edges would change too", BAD)
    if edge.closing_from and edge.closing_to:
        page.line(f"  this range closes it: from: {edge.closing_from}, to: {edge.closing_to}")
