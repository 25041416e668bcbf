"""Views of plan and of the set-up commands: init, doctor, demo, product add, new, schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lakehouse_backfill.cli.render import plan_tree
from lakehouse_backfill.cli.render.page import (
    BAD,
    TextPage,
    format_cell,
    format_partitions,
    read_fields,
    relative_path,
    verdict_mark,
)
from lakehouse_backfill.cli.render.plan_tree import draw_plan_tree
from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.results.base import to_plain

if TYPE_CHECKING:
    from lakehouse_backfill.domain.plan import (
        ChecklistQuestion,
        CorruptionWindow,
        Estimate,
        WindowSource,
    )
    from lakehouse_backfill.results import proof
    from lakehouse_backfill.results.plans import PlanResult, RehearsalResult


#: Lines of a kind that a short plan shows.
_MAX_SHORT = 3
#: Commits of a source, and partitions of a topic, that a corruption window draws.
_MAX_WINDOW_COMMITS = 8
_NOT_OVER = "not over yet: the live job still reads rows of it"


def render_plan(page: TextPage, result: PlanResult) -> None:
    """Draw the plan so that it fits a screen: what changes, what it costs, what needs an eye."""
    page.line(f"{result.run_id}  {result.state or 'not registered (dry run)'}", "bold")
    shown = replace(result, conflicts=result.conflicts[:_MAX_SHORT])
    draw_plan_tree(page, shown, is_whole=False)
    _proofs(page, result)
    _render_window(page, result.window)
    _what_needs_an_eye(page, result)
    page.line()
    whole = command_line("show", result.run_id) if result.state else "the same command with --full"
    page.other_command("the whole plan", whole)
    _next_command(page, result)


def _what_needs_an_eye(page: TextPage, result: PlanResult) -> None:
    """Draw, in a few lines of each kind, what blocks the run or may make it wrong."""
    open_questions = [one for one in result.checklist if not one.answer]
    overlaps = [
        f"overlaps with {one.run_id} ({one.state})" for one in result.conflicts[_MAX_SHORT:]
    ]
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


def render_whole_plan(page: TextPage, result: PlanResult) -> None:
    """Draw the whole plan; what needs an eye stands last, right above the next command."""
    page.line(f"{result.run_id}  {result.state or 'not registered (dry run)'}", "bold")
    draw_plan_tree(page, result, is_whole=True)
    page.line()
    page.facts(_identity_facts(result))
    pins = "name | role | as asked for: requested | snapshot: snapshot_id | pin: mode"
    page.records("pinned", pins, result.pins)
    _estimate(page, result.estimate)
    _render_window(page, result.window)
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


def _identity_facts(plan: PlanResult) -> tuple[tuple[str, Any], ...]:
    shadow = "shadow: shadow_table | manifest hash: manifest_hash"
    return (
        ("target", plan.target),
        ("way", plan.way and f"{plan.way.way}: {plan.way.why}"),
        *read_fields(plan, shadow),
    )


def _estimate(page: TextPage, estimate: Estimate) -> None:
    page.line()
    page.line("estimate", "bold")
    page.facts(
        (
            ("reads", plan_tree.read_text(estimate)),
            ("writes", plan_tree.written_text(estimate)),
            ("duration", plan_tree.duration_text(estimate)),
            ("core-hours", estimate.core_hours),
            ("cost", plan_tree.cost_text(estimate)),
            ("basis", estimate.basis),
        )
    )


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


def render_rehearsal(page: TextPage, result: RehearsalResult) -> None:
    """Draw what held, step by step, and what the real place has otherwise."""
    verdict = "held" if result.held else "did not hold"
    page.line(f"rehearsal of {result.manifest_file} in {result.profile}: {verdict}", "bold")
    page.line(f"{result.run_id}; the real run {result.manifest_hash[:12]} was not registered")
    steps = "step | held | seen"
    page.records("what was done", steps, result.steps, most=None, held=_held_cell)
    title = "what the real place has otherwise, so that it is not proven"
    parts = "what | real | rehearsal | so: why"
    page.records(title, parts, result.differences, most=None)
    page.line()
    page.other_command("its evidence", result.command)
    page.next_command(result.next_command)


def _held_cell(step: Any) -> Text:
    return verdict_mark(is_good=step.held)


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


def _render_window(page: TextPage, window: CorruptionWindow | None) -> None:
    """Draw which partitions and commits a window of wrong rows reaches, and how far to replay."""
    if window is None:
        return
    good = window.last_good
    state = "none is known: a cold start; warm-up alone builds what a chunk needs"
    if good is not None:
        version = f"version {good.version}, " if good.version is not None else ""
        state = f"{version}{good.table}@{good.snapshot_id} of {good.at:%Y-%m-%d %H:%M} UTC"
    is_late = any(one.topic is not None and not one.topic.is_closed for one in window.sources)
    why = "not closed: later events are to be landed" if is_late else _NOT_OVER
    closed = "" if window.is_closed else f"; {why}"
    page.line()
    page.line("wrong rows", "bold")
    page.facts(
        (
            ("event times", f"{window.first:%Y-%m-%d %H:%M} to {window.stop:%Y-%m-%d %H:%M} UTC"),
            ("reach", format_partitions(window.partitions)),
            ("last good state", state),
            ("replay", f"through {window.closes_with}, which closes the window{closed}"),
            *((f"in {one.name}", _window_source_text(one)) for one in window.sources),
        )
    )
    commits = [commit for one in window.sources for commit in one.commits]
    columns = "snapshot: snapshot_id | at | operation | writer | partitions"
    page.records("commits that carried them", columns, commits, most=_MAX_WINDOW_COMMITS)
    for one in window.sources:
        if one.topic is not None:
            title = f"where they are in the topic {one.topic.topic}"
            columns = "partition | first | last | records"
            page.records(title, columns, one.topic.offsets, most=_MAX_WINDOW_COMMITS)


def _window_source_text(source: WindowSource) -> str:
    if source.unknown:
        return f"not known: {source.unknown}"
    count = len(source.commits)
    if not source.partitions:
        return f"rows of {source.table}, by statistics of its files from {count:,} commits"
    return f"{format_partitions(source.partitions)} of {source.table}, by {count:,} commits"
