"""The program: `lakehouse-backfill`, or `lhb`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.commands import after, before, during, events, proof, repair, sources
from lakehouse_backfill.cli.group import PHASES, BackfillGroup
from lakehouse_backfill.cli.session import (
    Session,
    begin_session,
    keep_freed_memory,
    open_and_freeze,
    open_project,
    tune_gc,
    use_system_memory,
)
from lakehouse_backfill.command_lines import PROFILE_VARIABLE, PROJECT_VARIABLE
from lakehouse_backfill.results.base import Result

app = typer.Typer(
    cls=BackfillGroup,
    name="lakehouse-backfill",
    # One paragraph, without an epilog: the list of commands fits a screen.
    help=(
        "Restate partitions of Apache Iceberg tables safely. "
        "Exit codes: 0 done, 1 bug, 2 usage, 3 blocked, 4 conflict, 5 unknown, 6 down."
    ),
    # Plain help: it fits any terminal, and drawing boxes would load rich for every --help.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help_text(command: Callable[..., Result]) -> str:
    """Keep the lines of the examples: the mark tells typer not to wrap what follows."""
    return inspect.cleandoc(command.__doc__ or "").replace("\nExamples:", "\n\b\nExamples:")


def _show_version(wanted: bool) -> None:  # noqa: FBT001 (typer calls it with the flag)
    if wanted:
        from lakehouse_backfill import __version__

        sys.stdout.write(f"lakehouse-backfill {__version__}\n")
        raise typer.Exit


@app.callback()
def program(
    context: typer.Context,
    *,
    project: Annotated[
        Path,
        typer.Option(metavar="DIR", envvar=PROJECT_VARIABLE, help="Folder."),
    ] = Path(),
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar=PROFILE_VARIABLE,
            help="Name of the lake.",
        ),
    ] = None,
    sign_with: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="LAKEHOUSE_BACKFILL_SIGNING_KEY",
            show_envvar=False,
            help="Key that signs decisions, or oidc.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
    debug: Annotated[  # noqa: ARG001 (read by the group, which also ends errors of parsing)
        bool, typer.Option("--debug", help="Show tracebacks.")
    ] = False,
    version: Annotated[  # noqa: ARG001 (its callback prints and exits)
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Keep the program's options for the command; `app(obj=…)` may open projects in another way."""
    opener = context.obj or open_project
    context.obj = Session(
        folder=project,
        profile=profile,
        json=json,
        quiet=quiet,
        opener=opener,
        sign_with=sign_with,
        command=context.invoked_subcommand or "",
    )
    begin_session(context.obj)


def _add(group: typer.Typer, name: str, command: Callable[..., Result], phase: str = "") -> None:
    group.command(name, help=_help_text(command), rich_help_panel=phase or None)(command)


#: Commands whose names are words of Python.
_COMMAND_NAMES = {"try_manifest": "try", "list_runs": "list"}
_BEFORE, _DURING, _AFTER, _REPAIR = PHASES
for _phase, _commands in (
    (_BEFORE, (before.init, before.doctor, before.demo)),
    (_BEFORE, (sources.land, before.new, before.schema, before.try_manifest, before.plan)),
    (_BEFORE, (events.replay, events.rebuild)),
    (_BEFORE, (before.show, before.rehearse, before.approve, proof.stale)),
    (_DURING, (during.run, during.stage, during.validate, during.status)),
    (_DURING, (during.list_runs, during.log, during.chunks, during.pause)),
    (_DURING, (during.unpause, during.cancel)),
    (_AFTER, (after.diff,)),
    (_AFTER, (after.reconcile, after.waive, after.accept, after.reject, after.publish, after.note)),
    (_AFTER, (after.dual_read, after.versions, after.evidence)),
    (_AFTER, (proof.lineage, proof.why, proof.verify, proof.reproduce)),
    (_REPAIR, (repair.rollback, repair.recover, repair.maintain)),
):
    for _command in _commands:
        _name = _COMMAND_NAMES.get(_command.__name__, _command.__name__.replace("_", "-"))
        _add(app, _name, _command, _phase)
_GROUPS: tuple[tuple[str, str, str, dict[str, Callable[..., Result]]], ...] = (
    (
        "product", _BEFORE, "Bring a product in: product add, product migrate.",
        {"add": before.product_add, "migrate": sources.migrate},
    ),
    (
        "session", _BEFORE, "Keep a warm Spark: session start, session stop, session status.",
        {
            "start": before.session_start, "stop": before.session_stop,
            "status": before.session_status,
        },
    ),
    (
        "shadow", _DURING, "Let another engine write: shadow open, shadow close.",
        {"open": during.shadow_open, "close": during.shadow_close},
    ),
    (
        "audit", _AFTER, "Check log and promises: audit verify, audit guarantees.",
        {"verify": proof.audit_verify, "guarantees": proof.audit_guarantees},
    ),
)  # fmt: skip
for _name, _phase, _summary, _members in _GROUPS:
    _group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    for _word, _member in _members.items():
        _add(_group, _word, _member)
    app.add_typer(_group, name=_name, help=_summary, rich_help_panel=_phase)


def run() -> None:
    """Run the program; the entry point of both console scripts."""
    tune_gc()
    use_system_memory()
    keep_freed_memory()
    app(prog_name="lakehouse-backfill", obj=open_and_freeze)
