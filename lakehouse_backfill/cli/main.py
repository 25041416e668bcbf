"""The program: `lakehouse-backfill`, or `lhb`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.commands import after, before, during, proof, repair
from lakehouse_backfill.cli.group import PHASES, BackfillGroup
from lakehouse_backfill.cli.session import Session, disable_huge_pages, open_project, tune_gc

app = typer.Typer(
    cls=BackfillGroup,
    name="lakehouse-backfill",
    help=(
        "Restate partitions of Apache Iceberg tables safely: plan, approve, stage, validate, "
        "accept, publish, roll back."
    ),
    epilog=(
        "Exit codes: 0 done, 1 bug, 2 usage or configuration, 3 checks or approval block it, "
        "4 conflict, 5 outcome unknown, 6 environment down, 130 interrupted."
    ),
    # Plain help: it fits any terminal, and drawing boxes would load rich for every --help.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
product_commands = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
audit_commands = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
shadow_commands = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


def _help_text(command: Callable[..., None]) -> str:
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
        typer.Option(
            metavar="DIR", envvar="LAKEHOUSE_BACKFILL_PROJECT", help="The project's folder."
        ),
    ] = Path(),
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="LAKEHOUSE_BACKFILL_PROFILE",
            help="The lake, as catalog/profiles.yaml names it.",
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
    context.obj = Session(folder=project, profile=profile, json=json, quiet=quiet, opener=opener)


_BEFORE, _DURING, _AFTER, _REPAIR = PHASES
for _phase, _commands in (
    (_BEFORE, (before.init, before.doctor, before.demo)),
    (_BEFORE, (before.new, before.schema, before.plan, before.approve)),
    (_DURING, (during.run, during.stage, during.validate, during.status, during.log)),
    (_DURING, (during.chunks, during.cancel)),
    (_AFTER, (after.diff,)),
    (_AFTER, (after.reconcile, after.waive, after.accept, after.reject, after.publish)),
    (_AFTER, (after.dual_read, after.versions, after.evidence)),
    (_AFTER, (proof.verify, proof.reproduce)),
    (_REPAIR, (repair.rollback, repair.recover, repair.maintain)),
):
    for _command in _commands:
        app.command(help=_help_text(_command), rich_help_panel=_phase)(_command)
product_commands.command("add", help=_help_text(before.product_add))(before.product_add)
app.add_typer(
    product_commands,
    name="product",
    help="Draft a contract: product add.",
    rich_help_panel=_BEFORE,
)
shadow_commands.command("open", help=_help_text(during.shadow_open))(during.shadow_open)
shadow_commands.command("close", help=_help_text(during.shadow_close))(during.shadow_close)
app.add_typer(
    shadow_commands, name="shadow", help="Let another engine write: shadow open, shadow close.",
    rich_help_panel=_DURING,
)  # fmt: skip
audit_commands.command("verify", help=_help_text(proof.audit_verify))(proof.audit_verify)
audit_commands.command("guarantees", help=_help_text(proof.audit_guarantees))(
    proof.audit_guarantees
)
app.add_typer(
    audit_commands, name="audit", help="Check log and promises: audit verify, audit guarantees.",
    rich_help_panel=_AFTER,
)  # fmt: skip


def run() -> None:
    """Run the program; the entry point of both console scripts."""
    tune_gc()
    disable_huge_pages()
    app(prog_name="lakehouse-backfill")
