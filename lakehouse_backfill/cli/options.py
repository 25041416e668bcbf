"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

RunArgument = Annotated[str, typer.Argument(help="The run, as plan names it.", metavar="RUN")]
ProductArgument = Annotated[
    str, typer.Argument(help="The product, as its contract names it.", metavar="PRODUCT")
]
ByOption = Annotated[
    str | None, typer.Option(help="Who acts; you if left out.", metavar="WHO", show_default=False)
]
#: What names a state of a table.
TABLE_STATE_HELP = "namespace.table, with @snapshot-id, @tag, @branch or @timestamp"
ReasonOption = Annotated[str, typer.Option(help="Why, in a sentence.", metavar="TEXT")]
#: As in the model, which takes 0.3 s to import: too long for --help.
REASON_CODES = (
    "new_field",
    "bug_fix",
    "missing_source",
    "late_data",
    "schema_evolution",
    "new_product",
    "compliance",
    "migration",
)


def check_reason_code(code: str) -> str:
    """Give the code back; raises typer.BadParameter when it is none."""
    if code not in REASON_CODES:
        raise typer.BadParameter(f"{code!r} is not one of {', '.join(REASON_CODES)}")
    return code


ReasonCodeOption = Annotated[
    str,
    typer.Option(
        callback=check_reason_code, metavar="CODE", help=f"One of {', '.join(REASON_CODES)}."
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take the run from a process that is dead or stuck; it can write nothing any more.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen; change nothing.")
]
