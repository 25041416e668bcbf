"""Views of plan and of the set-up commands: init, doctor, demo, product add, new, schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakehouse_backfill.cli.progress import format_duration
from lakehouse_backfill.cli.render.page import (
    BAD,
    TextPage,
    format_cell,
    format_identity,
    format_partitions,
    format_size,
    relative_path,
    verdict_mark,
)
from lakehouse_backfill.errors import command_line, plan_command
from lakehouse_backfill.results.base import to_plain

if TYPE_CHECKING:
    from lakehouse_backfill.domain.plan import ChecklistQuestion, Estimate
    from lakehouse_backfill.results.proof import (
        DemoResult,
        DoctorResult,
        InitResult,
        ManifestDraft,
        ProductDraft,
        SchemaResult,
    )
    from lakehouse_backfill.results.runs import PlanResult


def render_plan(page: TextPage, result: PlanResult) -> None:
    """Draw the plan; what needs an eye stands last, right above the next command."""
    page.line(f"{result.run_id}  {result.state or 'not registered (dry run)'}", "bold")
    page.facts(_intent_facts(result))
    pins = [
        (pin.name, pin.role, pin.requested, format_identity(pin.snapshot_id), pin.mode)
        for pin in result.pins
    ]
    page.table("pinned", ("name", "role", "as asked for", "snapshot", "pin"), pins)
    _estimate(page, result.estimate)
    consumers = [
        (one.name, _tolerance_text(tolerates=one.tolerates_restatement), one.contact or None)
        for one in result.consumers
    ]
    page.table("consumers", ("name", "restatement", "contact"), consumers)
    questions = [(one.number, one.question, _answer_cell(one)) for one in result.checklist]
    page.table("checklist", ("", "question", "answer"), questions, most=None)
    if result.warm_up_proof:
        proof = result.warm_up_proof
        same = "gives the same rows" if proof["equal"] else "gives OTHER rows: widen it"
        page.line(f"warm-up: twice as much input for {proof['partition']} {same}")
    page.line()
    for note in result.notes:
        page.line(f"- {note}")
    conflicts = [
        (one.run_id, one.state, format_partitions(one.partitions)) for one in result.conflicts
    ]
    page.table("overlaps with open runs", ("run", "state", "in"), conflicts)
    page.next_command(
        command_line("approve", result.run_id, "--by", "WHO")
        if result.state
        else "the same command without --dry-run"
    )


def _intent_facts(plan: PlanResult) -> tuple[tuple[str, Any], ...]:
    scope = f"{format_partitions(plan.partitions)} of {plan.partition_field.column}"
    return (
        ("product", plan.product),
        ("changes", f"{scope}, and nothing else"),
        ("rows", plan.rows and f"with {plan.rows}; all others are carried over"),
        ("columns", ", ".join(plan.schema_change) or None),
        ("publication", f"{plan.publish_mode}: {plan.publishing}"),
        ("target", plan.target),
        ("way", plan.way and f"{plan.way.way}: {plan.way.why}"),
        ("chunks", f"{len(plan.chunks):,}, each one commit to the shadow table"),
        ("shadow", plan.shadow_table),
        ("revises", plan.revises),
        ("manifest hash", plan.manifest_hash),
        ("undo", plan.undo),
    )


def _estimate(page: TextPage, estimate: Estimate) -> None:
    cost, duration, written = estimate.cost_usd, estimate.duration_s, estimate.output_rows
    page.line()
    page.line("estimate", "bold")
    page.facts(
        (
            (
                "reads",
                f"{estimate.input_rows:,} rows in {estimate.input_files:,} files, "
                f"{format_size(estimate.input_bytes)}",
            ),
            ("writes", None if written is None else f"about {written:,} rows"),
            (
                "duration",
                "no history" if duration is None else f"about {format_duration(duration)}",
            ),
            ("cost", "no prices, or no history" if cost is None else f"about {cost:,.2f} USD"),
            ("basis", estimate.basis),
        )
    )


def _tolerance_text(*, tolerates: bool) -> Text:
    return Text("tolerates") if tolerates else Text("DOES NOT tolerate", style=BAD)


def _answer_cell(question: ChecklistQuestion) -> Text:
    if question.answer:
        return format_cell(question.answer)
    how = f"; {question.how}" if question.how else ""
    return Text(f"NOT ANSWERED: blocks approval{how}", style=BAD)


def render_init(page: TextPage, result: InitResult) -> None:
    """Draw the files that were made."""
    page.line(f"made {len(result.files)} files in {result.project}")
    for name in result.files:
        page.line(f"  {name}")
    page.next_command(f"cd {shlex.quote(result.project)} && {command_line('doctor')}")


def render_doctor(page: TextPage, result: DoctorResult) -> None:
    """Draw each check, a failed one with what to do; then what the catalog was seen to do."""
    checks = [(verdict_mark(is_good=one.ok), one.name, one.detail) for one in result.checks]
    page.table("", ("", "check", "what was found"), checks, most=None)
    if result.capabilities:
        found = dict(to_plain(result.capabilities))
        seen = found.pop("seen", {})
        rows = [(name, "yes" if does else "no", seen.get(name, "")) for name, does in found.items()]
        page.table("the catalog", ("capability", "", "what was answered"), rows, most=None)
    for one in result.checks:
        if not one.ok and one.fix:
            page.line(f"{one.name}: {one.fix}")


def render_demo(page: TextPage, result: DemoResult) -> None:
    """Draw how long each step took, and where everything lies."""
    rows = [
        (verdict_mark(is_good=step["ok"]), step["name"], f"{step['seconds']:.1f}")
        for step in result.steps
    ]
    page.table("steps", ("", "step", "seconds"), rows, most=None)
    page.facts((("project", result.project), ("evidence", result.report)))


def render_product_draft(page: TextPage, result: ProductDraft) -> None:
    """Draw where the drafted contract and suite lie, and what a person has to answer."""
    file = relative_path(result.file)
    page.line(f"drafted {file}")
    if result.suite:
        suite = relative_path(result.suite)
        page.line(f"        {suite}: its key and required columns; add to it")
    _questions(page, result.questions)
    page.next_command(f"{command_line('new', Path(file).stem)} --from P --to P --reason TEXT")


def render_manifest_draft(page: TextPage, result: ManifestDraft) -> None:
    """Draw where the drafted run manifest lies, and what a person has to answer."""
    file = relative_path(result.file)
    page.line(f"drafted {file}")
    _questions(page, result.questions)
    page.next_command(f"{plan_command(file)} --dry-run")


def _questions(page: TextPage, questions: Sequence[str]) -> None:
    if questions:
        page.line()
        page.line("answer in it:")
        page.facts((f"{number}.", text) for number, text in enumerate(questions, start=1))


def render_schema(page: TextPage, result: SchemaResult) -> None:
    """Write the schema itself, so that it can be sent to a file."""
    page.stream.write(json.dumps(result.schema, indent=2) + "\n")
