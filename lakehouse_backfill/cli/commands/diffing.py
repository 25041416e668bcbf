"""diff: old against new, why rows differ, or only what would be read."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse_backfill.cli.options import TABLE_STATE_HELP, ByOption
from lakehouse_backfill.cli.session import acting_person, current_session, split_list

OldArgument = Annotated[
    str, typer.Argument(metavar="RUN|OLD", help=f"A run, or {TABLE_STATE_HELP}.")
]
NewArgument = Annotated[str | None, typer.Argument(metavar="[NEW]", help="The newer state.")]
KeyOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Key columns; the contract's if left out.")
]
WhereOption = Annotated[
    str | None, typer.Option(metavar="EXPR", help="Only rows for which this holds.")
]
EngineOption = Annotated[str, typer.Option(help="auto, local or spark")]
SamplesOption = Annotated[int, typer.Option(min=0, max=1000, help="Rows shown of each kind.")]
IgnoreOption = Annotated[
    list[str] | None, typer.Option(metavar="A,B", help="Columns that are not compared.")
]
ToleranceOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COL=0.01", help="Numbers as near as this are equal; also COL=1%."),
]
LocalLimitOption = Annotated[
    int | None, typer.Option(min=0, metavar="MIB", help="Up to this size auto needs no Spark.")
]
PreviewOption = Annotated[
    bool, typer.Option("--preview", help="Only say what would be read; reads no row.")
]
FailOnDifferenceOption = Annotated[
    bool, typer.Option("--fail-on-difference", help="Exit with 3 unless both are equal.")
]
AttributeOption = Annotated[
    bool, typer.Option("--attribute", help="Of a run: say why rows differ, on a sample.")
]
PartitionsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="With --attribute: most partitions sampled.")
]


def diff(
    context: typer.Context,
    old: OldArgument,
    new: NewArgument = None,
    key: KeyOption = None,
    where: WhereOption = None,
    engine: EngineOption = "auto",
    samples: SamplesOption = 5,
    by: ByOption = None,
    *,
    ignore: IgnoreOption = None,
    tolerance: ToleranceOption = None,
    local_limit: LocalLimitOption = None,
    preview: PreviewOption = False,
    fail_on_difference: FailOnDifferenceOption = False,
    attribute: AttributeOption = False,
    partitions: PartitionsOption = 4,
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
    project = current_session(context).project(computes=attribute or engine == "spark")
    if attribute:
        if any((new, key, where, preview, ignore, tolerance)):
            raise typer.BadParameter("--attribute takes a run, and no other choice of rows")
        found = project.attribute(old, partitions, engine, samples, acting_person(by))
    else:
        found = project.diff(
            old, new, columns, where, engine, samples, acting_person(by),
            split_list(ignore), split_list(tolerance), local_limit, preview,
        )  # fmt: skip
    must = {"must_be_equal": True} if fail_on_difference else {}
    current_session(context).show(context, found | must)
