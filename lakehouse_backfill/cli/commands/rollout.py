"""dual-read: readers compare before the switch."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.options import ByOption, RunArgument
from lakehouse_backfill.cli.session import acting_person, current_session, split_list


def dual_read(
    context: typer.Context,
    run: RunArgument,
    reader: Annotated[str, typer.Option(metavar="NAME", help="Who reads, as the manifest says.")],
    sql: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File of the project: one SELECT over `product`."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Instead: these columns of all rows.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="By which decimals and floats may differ.")
    ] = 0.0,
    accept_difference: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Record that a difference was looked at and is right."),
    ] = None,
    by: ByOption = None,
) -> None:
    """Compare a reader's query on the accepted version and on the candidate.

    Runs it twice in DuckDB, which reaches nothing but the relation `product`; starts no JVM. The
    comparison is bound to exactly this candidate and is part of the evidence.

    Examples:
      lakehouse-backfill dual-read bf-4f1c09a2d7 --reader finance --sql readers/finance.sql
      lakehouse-backfill dual-read bf-4f1c09a2d7 --reader app --columns order_id,amount
      lakehouse-backfill dual-read bf-1 --reader app --sql app.sql --accept-difference "was wrong"
    """
    project = current_session(context).project()
    done = project.dual_read(
        run, reader, sql, split_list(columns), tolerance, accept_difference, acting_person(by)
    )
    current_session(context).show(context, done)
