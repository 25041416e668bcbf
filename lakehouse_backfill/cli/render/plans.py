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
    format_partitions,
    format_size,
    read_fields,
    relative_path,
    verdict_mark,
)
from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.results.base import to_plain

if TYPE_CHECKING:
    from lakehouse_backfill.domain.contract import Consumer
    from lakehouse_backfill.domain.plan import ChecklistQuestion, Estimate
    from lakehouse_backfill.results import proof
    from lakehouse_backfill.results.runs import PlanResult


#: Lines of a kind that a short plan shows.
_MAX_SHORT = 3


def render_plan(page: TextPage, result: PlanResult) -> None:
    """Draw the plan so that it fits a screen: what changes, what it costs, what needs an eye."""
    page.line(f"{result.run_id}  {result.state or 'not registered (dry run)'}", "bold")
    read = ", ".join(pin.name for pin in result.pins if pin.role != "target")
    page.facts(
        (
            *_what_changes(result),
            ("reads", f"{_read_text(result.estimate)}, pinned: {read or 'nothing'}"),
            ("writes", _written_text(result.estimate)),
            ("takes", f"{_duration_text(result.estimate)}; {_cost_text(result.estimate)}"),
            ("consumers", _consumers_text(result.consumers)),
            ("checklist", _checklist_text(result.checklist)),
            ("notes", f"{len(result.notes)} in the whole plan" if result.notes else None),
            ("revises", result.revises),
            ("undo", result.undo),
        )
    )
    _proofs(page, result)
    _what_needs_an_eye(page, result)
    page.line()
    whole = command_line("show", result.run_id) if result.state else "the same command with --full"
    page.other_command("the whole plan", whole)
    _next_command(page, result)


def _what_changes(plan: PlanResult) -> tuple[tuple[str, Any], ...]:
    return tuple(fact for fact in _intent_facts(plan) if fact[0] in _SHORT_FACTS)


#: Facts of the intent that a short plan shows.
_SHORT_FACTS = ("product", "changes", "last partition", "rows", "columns", "publication")


def _what_needs_an_eye(page: TextPage, result: PlanResult) -> None:
    """Draw, in a few lines of each kind, what blocks the run or may make it wrong."""
    open_questions = [one for one in result.checklist if not one.answer]
    overlaps = [f"overlaps with {one.run_id} ({one.state})" for one in result.conflicts]
    doubts = [f"{one.file}:{one.line}: {one.found}, allowed" for one in result.findings]
    for lines in (
        [
            f"NOT ANSWERED, blocks approval: {one.question}{one.how and f' ({one.how})'}"
            for one in open_questions
        ],
        overlaps,
        doubts,
    ):
        for line in lines[:_MAX_SHORT]:
            page.line(f"- {line}", BAD if lines is not doubts else "")
        if len(lines) > _MAX_SHORT:
            page.line(f"- … and {len(lines) - _MAX_SHORT:,} more of these")


def _consumers_text(consumers: Sequence[Consumer]) -> str | None:
    if not consumers:
        return None
    against = [one.name for one in consumers if not one.tolerates_restatement]
    count = f"{len(consumers):,}"
    return f"{count}; {', '.join(against)} DOES NOT tolerate a restatement" if against else count


def _checklist_text(checklist: Sequence[ChecklistQuestion]) -> str | None:
    answered = sum(bool(one.answer) for one in checklist)
    return f"{answered} of {len(checklist)} questions answered" if checklist else None


def render_whole_plan(page: TextPage, result: PlanResult) -> None:
    """Draw the whole plan; what needs an eye stands last, right above the next command."""
    page.line(f"{result.run_id}  {result.state or 'not registered (dry run)'}", "bold")
    page.facts(_intent_facts(result))
    pins = "name | role | as asked for: requested | snapshot: snapshot_id | pin: mode"
    page.records("pinned", pins, result.pins)
    _estimate(page, result.estimate)
    page.records(
        "consumers", "name | restatement | contact", result.consumers,
        restatement=_tolerance_text, contact=lambda one: one.contact or None,
    )  # fmt: skip
    questions = ": number | question | answer"
    page.records("checklist", questions, result.checklist, most=None, answer=_answer_cell)
    _proofs(page, result)
    page.line()
    for note in result.notes:
        page.line(f"- {note}")
    columns = "file | line | found | kind | allowed because: allowed"
    page.records("non-determinism that does not block", columns, result.findings)
    overlaps = "run: run_id | state | in: partitions"
    page.records("overlaps with open runs", overlaps, result.conflicts)
    _next_command(page, result)


def _proofs(page: TextPage, result: PlanResult) -> None:
    if result.warm_up_proof:
        proof = result.warm_up_proof
        same = "gives the same rows" if proof["equal"] else "gives OTHER rows: widen it"
        page.line(f"warm-up: twice as much input for {proof['partition']} {same}")
    if result.determinism_proof:
        partition = result.determinism_proof["partition"]
        page.line(f"determinism: {partition} came out the same from rows in another order")


def _next_command(page: TextPage, result: PlanResult) -> None:
    approve = command_line("approve", result.run_id)
    page.next_command(result.next_command or (approve if result.state else None))


def _intent_facts(plan: PlanResult) -> tuple[tuple[str, Any], ...]:
    scope = f"{format_partitions(plan.partitions)} of {plan.partition_field.column}"
    last = "shadow: shadow_table | revises | manifest hash: manifest_hash | undo"
    return (
        ("product", plan.product),
        ("changes", f"{scope}, and nothing else"),
        ("last partition", plan.last_partition),
        ("rows", plan.rows and f"with {plan.rows}; all others are carried over"),
        ("only", plan.columns and f"columns {', '.join(plan.columns)}; all others stay"),
        ("columns", ", ".join(plan.schema_change) or None),
        ("publication", f"{plan.publish_mode}: {plan.publishing}"),
        ("target", plan.target),
        ("way", plan.way and f"{plan.way.way}: {plan.way.why}"),
        ("chunks", f"{len(plan.chunks):,}, each one commit to the shadow table"),
        *read_fields(plan, last),
    )


def _estimate(page: TextPage, estimate: Estimate) -> None:
    page.line()
    page.line("estimate", "bold")
    page.facts(
        (
            ("reads", _read_text(estimate)),
            ("writes", _written_text(estimate)),
            ("duration", _duration_text(estimate)),
            ("cost", _cost_text(estimate)),
            ("basis", estimate.basis),
        )
    )


def _read_text(estimate: Estimate) -> str:
    reads = f"{estimate.input_rows:,} rows in {estimate.input_files:,} files"
    return f"{reads}, {format_size(estimate.input_bytes)}"


def _written_text(estimate: Estimate) -> str | None:
    return None if estimate.output_rows is None else f"about {estimate.output_rows:,} rows"


def _duration_text(estimate: Estimate) -> str:
    duration = estimate.duration_s
    return "no history" if duration is None else f"about {format_duration(duration)}"


def _cost_text(estimate: Estimate) -> str:
    cost = estimate.cost_usd
    return "no prices, or no history" if cost is None else f"about {cost:,.2f} USD"


def _tolerance_text(consumer: Consumer) -> Text:
    if consumer.tolerates_restatement:
        return Text("tolerates")
    return Text("DOES NOT tolerate", style=BAD)


def _answer_cell(question: ChecklistQuestion) -> Text:
    if question.answer:
        return format_cell(question.answer)
    how = f"; {question.how}" if question.how else ""
    return Text(f"NOT ANSWERED: blocks approval{how}", style=BAD)


def render_init(page: TextPage, result: proof.InitResult) -> None:
    """Draw the files that were made."""
    page.line(f"made {len(result.files)} files in {result.project}")
    for name in result.files:
        page.line(f"  {name}")
    page.next_command(f"cd {shlex.quote(result.project)} && {command_line('doctor')}")


def render_doctor(page: TextPage, result: proof.DoctorResult) -> None:
    """Draw each check, a failed one with what to do; then what the catalog was seen to do."""
    columns = ": ok | check: name | what was found: detail"
    page.records("", columns, result.checks, most=None, ok=lambda o: verdict_mark(is_good=o.ok))
    if result.capabilities:
        found = dict(to_plain(result.capabilities))
        seen = found.pop("seen", {})
        rows = [(name, "yes" if does else "no", seen.get(name, "")) for name, does in found.items()]
        page.table("the catalog", ("capability", "", "what was answered"), rows, most=None)
    for one in result.checks:
        if not one.ok and one.fix:
            page.line(f"{one.name}: {one.fix}")


def render_session(page: TextPage, result: proof.SessionResult) -> None:
    """Draw whether there is a warm session, and whether commands use it."""
    if result.is_on and result.idle_minutes:
        use = "in use by a command" if result.is_used else "ready"
        page.line(
            f"warm session: {use}; it ends with this shell, or after "
            f"{result.idle_minutes:g} minutes without a command"
        )
    else:
        page.line("warm session: none")
    if result.unusable:
        page.line(f"commands given here do not use it: {result.unusable}")
    if result.unusable and result.is_on:
        page.next_command(command_line("session", "stop"))
    elif not result.is_on:
        page.next_command(command_line("session", "start"))


def render_demo(page: TextPage, result: proof.DemoResult) -> None:
    """Draw how long each step took, and where everything lies."""
    page.records(
        "steps", ": ok | step: name | seconds", result.steps, most=None,
        ok=lambda step: verdict_mark(is_good=step["ok"]),
        seconds=lambda step: f"{step['seconds']:.1f}",
    )  # fmt: skip
    page.facts(read_fields(result, "project | evidence: report"))


def render_product_draft(page: TextPage, result: proof.ProductDraft) -> None:
    """Draw where the drafted contract and suite lie, and what a person has to answer."""
    file = relative_path(result.file)
    page.line(f"drafted {file}")
    if result.suite:
        suite = relative_path(result.suite)
        page.line(f"        {suite}: its key and required columns; add to it")
    _questions(page, result.questions)
    page.next_command(f"{command_line('new', Path(file).stem)} --from P --to P --reason TEXT")


def render_manifest_draft(page: TextPage, result: proof.ManifestDraft) -> None:
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


def render_schema(page: TextPage, result: proof.SchemaResult) -> None:
    """Write the schema itself, so that it can be sent to a file."""
    page.stream.write(json.dumps(result.schema, indent=2) + "\n")
