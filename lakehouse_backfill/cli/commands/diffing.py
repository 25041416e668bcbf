"""diff: old against new, why rows differ, or only what would be read."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.options import STATE, By
from lakehouse_backfill.cli.session import session, split_list, whoami

PHASE = "after"

Old = Annotated[str, typer.Argument(metavar="RUN|OLD", help=f"A run, or {STATE}.")]
New = Annotated[str | None, typer.Argument(metavar="[NEW]", help="The newer state.")]
Key = Annotated[
    str | None, typer.Option(metavar="A,B", help="Key columns; the contract's if left out.")
]
Where = Annotated[str | None, typer.Option(metavar="EXPR", help="Only rows for which this holds.")]
Engine = Annotated[str, typer.Option(help="auto, local or spark")]
Samples = Annotated[int, typer.Option(min=0, max=1000, help="Rows shown of each kind.")]
Ignore = Annotated[
    list[str] | None, typer.Option(metavar="A,B", help="Columns that are not compared.")
]
Tolerance = Annotated[
    list[str] | None,
    typer.Option(metavar="COL=0.01", help="Numbers as near as this are equal; also COL=1%."),
]
LocalLimit = Annotated[
    int | None, typer.Option(min=0, metavar="MIB", help="Up to this size auto needs no Spark.")
]
Preview = Annotated[
    bool, typer.Option("--preview", help="Only say what would be read; reads no row.")
]
FailOnDifference = Annotated[
    bool, typer.Option("--fail-on-difference", help="Exit with 3 unless both are equal.")
]
Attribute = Annotated[
    bool, typer.Option("--attribute", help="Of a run: say why rows differ, on a sample.")
]
Partitions = Annotated[
    int, typer.Option(min=1, max=1000, help="With --attribute: most partitions sampled.")
]


def diff(
    context: typer.Context,
    old: Old,
    new: New = None,
    key: Key = None,
    where: Where = None,
    engine: Engine = "auto",
    samples: Samples = 5,
    by: By = None,
    *,
    ignore: Ignore = None,
    tolerance: Tolerance = None,
    local_limit: LocalLimit = None,
    preview: Preview = False,
    fail_on_difference: FailOnDifference = False,
    attribute: Attribute = False,
    partitions: Partitions = 4,
) -> None:
    """Compare old and new rows by key.

    Of a run: its candidate against what it replaces. Files that both sides share are not read.
    With --attribute: changed rows of sampled partitions by cause: code, late input, upstream
    restatement, reference data, deletion, live write, or unexplained.

    Examples:
      lakehouse-backfill diff bf-4f1c09a2d7
      lakehouse-backfill diff bf-4f1c09a2d7 --attribute --partitions 2
      lakehouse-backfill diff silver.orders@before-fix silver.orders --key order_id
      lakehouse-backfill diff old.orders new.orders --tolerance amount=0.01 --ignore loaded_at
      lakehouse-backfill diff silver.orders@before-fix silver.orders --preview
    """
    columns = split_list([key]) if key else None
    # Only job code, which attribution runs, and a diff that is to run on Spark may need pandas.
    project = session(context).project(computes=attribute or engine == "spark")
    if attribute:
        if any((new, key, where, preview, ignore, tolerance)):
            raise typer.BadParameter("--attribute takes a run, and no other choice of rows")
        found = project.attribute(old, partitions, engine, samples, whoami(by))
    else:
        found = project.diff(
            old, new, columns, where, engine, samples, whoami(by),
            split_list(ignore), split_list(tolerance), local_limit, preview,
        )  # fmt: skip
    must = {"must_be_equal": True} if fail_on_difference else {}
    session(context).show(context, found | must)
