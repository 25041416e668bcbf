"""init, doctor, demo, product add, new, schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakehouse_backfill.cli.render.page import TextPage, format_cell, relative_path, verdict_mark
from lakehouse_backfill.commands import command_line, plan_command

Data = Mapping[str, Any]


def render_init(page: TextPage, data: Data) -> None:
    """Draw the files that were made."""
    page.line(f"made {len(data['files'])} files in {data['project']}")
    for name in data["files"]:
        page.line(f"  {name}")
    page.next(f"cd {shlex.quote(str(data['project']))} && {command_line('doctor')}")


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
        page.next(f"{command_line('new', Path(file).stem)} --from P --to P --reason TEXT")
    else:
        page.next(f"{plan_command(file)} --dry-run")


def render_schema(page: TextPage, data: Data) -> None:
    """Write the schema itself, so that it can be sent to a file."""
    page.stream.write(json.dumps(data["schema"], indent=2) + "\n")
