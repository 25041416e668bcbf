"""The program: `lakehouse-backfill`, or `lhb`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.commands import (
    after,
    audit,
    before,
    diffing,
    during,
    proof,
    repair,
    rollout,
    shadow,
    upkeep,
)
from lakehouse_backfill.cli.group import BackfillGroup
from lakehouse_backfill.cli.light import collect_seldom, take_small_pages
from lakehouse_backfill.cli.session import Session, open_project

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
products = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
audits = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
shadows = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


def _help(command: Callable[..., None]) -> str:
    """Keep the lines of the examples: the mark tells typer not to wrap what follows."""
    return inspect.cleandoc(command.__doc__ or "").replace("\nExamples:", "\n\b\nExamples:")


def _version(wanted: bool) -> None:  # noqa: FBT001 (typer calls it with the flag)
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep the program's options for the command; `app(obj=…)` may open projects in another way."""
    opener = context.obj or open_project
    context.obj = Session(folder=project, profile=profile, json=json, quiet=quiet, opener=opener)


for _module, _commands in (
    (before, (before.init, before.doctor, before.demo)),
    (before, (before.new, before.schema, before.plan, before.approve)),
    (during, (during.run, during.stage, during.validate, during.status, during.log)),
    (during, (during.chunks, during.cancel)),
    (diffing, (diffing.diff,)),
    (after, (after.reconcile, after.waive, after.accept, after.reject, after.publish)),
    (rollout, (rollout.dual_read,)),
    (after, (after.versions, after.evidence)),
    (proof, (proof.verify, proof.reproduce)),
    (repair, (repair.rollback, repair.recover)),
    (upkeep, (upkeep.maintain,)),
):
    for _command in _commands:
        app.command(help=_help(_command), rich_help_panel=_module.PHASE)(_command)
products.command("add", help=_help(before.product_add))(before.product_add)
app.add_typer(
    products, name="product", help="Draft a contract: product add.", rich_help_panel=before.PHASE
)
shadows.command("open", help=_help(shadow.shadow_open))(shadow.shadow_open)
shadows.command("close", help=_help(shadow.shadow_close))(shadow.shadow_close)
app.add_typer(
    shadows, name="shadow", help="Let another engine write: shadow open, shadow close.",
    rich_help_panel=shadow.PHASE,
)  # fmt: skip
audits.command("verify", help=_help(audit.audit_verify))(audit.audit_verify)
audits.command("guarantees", help=_help(audit.audit_guarantees))(audit.audit_guarantees)
app.add_typer(
    audits, name="audit", help="Check log and promises: audit verify, audit guarantees.",
    rich_help_panel=audit.PHASE,
)  # fmt: skip


def run() -> None:
    """Run the program; the entry point of both console scripts."""
    collect_seldom()
    take_small_pages()
    app(prog_name="lakehouse-backfill")
