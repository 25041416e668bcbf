"""Views of plan and of the set-up commands: init, doctor, demo, product add, new, schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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

Data = Mapping[str, Any]


def render_plan(page: TextPage, data: Data) -> None:
    """Draw the plan; what needs an eye stands last, right above the next command."""
    state = data.get("state")
    page.line(f"{data.get('run_id')}  {state or 'not registered (dry run)'}", "bold")
    page.facts(_intent_facts(data))
    _pins(page, data.get("pins") or ())
    _estimate(page, data.get("estimate") or {})
    _consumers(page, data.get("consumers") or ())
    _checklist(page, data.get("checklist") or ())
    _warm_up_note(page, data.get("warm_up_proof"))
    page.line()
    for note in data.get("notes") or ():
        page.line(f"- {note}")
    _conflicts(page, data.get("conflicts") or ())
    page.next_command(_command_after_plan(data))


def _intent_facts(data: Data) -> list[tuple[str, Any]]:
    partitions, chunks = list(data.get("partitions") or ()), list(data.get("chunks") or ())
    field = data.get("partition_field") or {}
    return [
        ("product", data.get("product")),
        ("changes", f"{format_partitions(partitions)} of {field.get('column')}, and nothing else"),
        ("rows", data.get("rows") and f"with {data['rows']}; all others are carried over"),
        ("columns", ", ".join(data.get("schema_change") or ()) or None),
        ("publication", (mode := data.get("publish_mode")) and f"{mode}: {data['publishing']}"),
        ("target", data.get("target")),
        ("way", (way := data.get("way")) and f"{way['way']}: {way['why']}"),
        ("chunks", f"{len(chunks):,}, each one commit to the shadow table"),
        ("shadow", data.get("shadow_table")),
        ("revises", data.get("revises")),
        ("manifest hash", data.get("manifest_hash")),
        ("undo", data.get("undo")),
    ]


def _pins(page: TextPage, pins: Sequence[Any]) -> None:
    rows = [
        (
            pin.get("name"),
            pin.get("role"),
            pin.get("requested"),
            format_identity(pin.get("snapshot_id")),
            pin.get("mode"),
        )
        for pin in pins
    ]
    page.table("pinned", ("name", "role", "as asked for", "snapshot", "pin"), rows)


def _estimate(page: TextPage, estimate: Mapping[str, Any]) -> None:
    if not estimate:
        return
    cost, duration = estimate.get("cost_usd"), estimate.get("duration_s")
    reads = (
        f"{estimate.get('input_rows') or 0:,} rows in {estimate.get('input_files') or 0:,} files, "
        f"{format_size(estimate.get('input_bytes') or 0)}"
    )
    written = estimate.get("output_rows")
    page.line()
    page.line("estimate", "bold")
    page.facts(
        (
            ("reads", reads),
            ("writes", None if written is None else f"about {written:,} rows"),
            (
                "duration",
                "no history" if duration is None else f"about {format_duration(duration)}",
            ),
            ("cost", "no prices, or no history" if cost is None else f"about {cost:,.2f} USD"),
            ("basis", estimate.get("basis")),
        )
    )


def _consumers(page: TextPage, consumers: Sequence[Any]) -> None:
    rows = []
    for item in consumers:
        tolerates = item.get("tolerates_restatement")
        verdict = Text("tolerates") if tolerates else Text("DOES NOT tolerate", style=BAD)
        rows.append((item.get("name"), verdict, item.get("contact") or None))
    page.table("consumers", ("name", "restatement", "contact"), rows)


def _conflicts(page: TextPage, conflicts: Sequence[Any]) -> None:
    rows = [
        (
            item.get("run_id"),
            item.get("state"),
            format_partitions(list(item.get("partitions") or ())),
        )
        for item in conflicts
    ]
    page.table("overlaps with open runs", ("run", "state", "in"), rows)


def _checklist(page: TextPage, checklist: Sequence[Any]) -> None:
    rows = []
    for item in checklist:
        answer = item.get("answer")
        how = f"; {item['how']}" if item.get("how") else ""
        missing = f"NOT ANSWERED: blocks approval{how}"
        shown = format_cell(answer) if answer else Text(missing, style=BAD)
        rows.append((item.get("number"), item.get("question"), shown))
    page.table("checklist", ("", "question", "answer"), rows, most=None)


def _warm_up_note(page: TextPage, proof: Any) -> None:
    if not isinstance(proof, Mapping):
        return
    same = "gives the same rows" if proof.get("equal") else "gives OTHER rows: widen it"
    page.line(f"warm-up: twice as much input for {proof.get('partition')} {same}")


def _command_after_plan(data: Data) -> str:
    if data.get("state") is None:
        return "the same command without --dry-run"
    return f"lakehouse-backfill approve {data.get('run_id')} --by WHO"


def render_init(page: TextPage, data: Data) -> None:
    """Draw the files that were made."""
    page.line(f"made {len(data['files'])} files in {data['project']}")
    for name in data["files"]:
        page.line(f"  {name}")
    page.next_command(f"cd {shlex.quote(str(data['project']))} && {command_line('doctor')}")


def render_doctor(page: TextPage, data: Data) -> None:
    """Draw each check, a failed one with what to do; then what the catalog was seen to do."""
    page.table(
        "",
        ("", "check", "what was found"),
        [
            (verdict_mark(is_good=check["ok"]), check["name"], check.get("detail", ""))
            for check in data["checks"]
        ],
        most=None,
    )
    _capabilities(page, data.get("capabilities") or {})
    for check in data["checks"]:
        if not check["ok"] and check.get("fix"):
            page.line(f"{check['name']}: {check['fix']}")


def _capabilities(page: TextPage, found: Data) -> None:
    seen = found.get("seen", {})
    rows = [
        (name, "yes" if does else "no", seen.get(name, ""))
        for name, does in found.items()
        if name != "seen"
    ]
    if rows:
        page.table("the catalog", ("capability", "", "what was answered"), rows, most=None)


def render_demo(page: TextPage, data: Data) -> None:
    """Draw how long each step took, and where everything lies."""
    rows = [
        (verdict_mark(is_good=step["ok"]), step["name"], f"{step['seconds']:.1f}")
        for step in data.get("steps", ())
    ]
    page.table("steps", ("", "step", "seconds"), rows, most=None)
    page.facts((("project", data.get("project")), ("evidence", data.get("report"))))


def render_draft(page: TextPage, data: Data) -> None:
    """Draw where the draft lies and what a person has to answer in it."""
    file = relative_path(str(data["file"]))
    page.line(f"drafted {file}")
    if data.get("suite"):
        page.line(
            f"        {relative_path(str(data['suite']))}: its key and required columns; add to it"
        )
    questions = list(data.get("questions", ()))
    if questions:
        page.line()
        page.line("answer in it:")
        page.facts(
            (f"{number}.", format_cell(text)) for number, text in enumerate(questions, start=1)
        )
    if Path(file).parent.name == "contracts":
        page.next_command(f"{command_line('new', Path(file).stem)} --from P --to P --reason TEXT")
    else:
        page.next_command(f"{plan_command(file)} --dry-run")


def render_schema(page: TextPage, data: Data) -> None:
    """Write the schema itself, so that it can be sent to a file."""
    page.stream.write(json.dumps(data["schema"], indent=2) + "\n")
