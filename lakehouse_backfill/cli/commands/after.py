"""Commands on a result: diff, reconcile, dual-read, accept, reject, waive, publish, versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse_backfill.cli.session import (
    TABLE_STATE_HELP,
    ByOption,
    DryRunOption,
    NoteOption,
    ProductArgument,
    ReasonOption,
    RunArgument,
    RunOrCascadeArgument,
    TakeOverOption,
    acting_person,
    current_project,
    names_cascade,
    open_in_browser,
    split_list,
)
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.results.base import Result

if TYPE_CHECKING:
    from lakehouse_backfill.results.comparison import DiffPreviewResult, DiffResult


def reconcile(
    old: Annotated[str, typer.Argument(metavar="OLD", help=TABLE_STATE_HELP)],
    new: Annotated[str, typer.Argument(metavar="NEW", help=TABLE_STATE_HELP)],
) -> Result:
    """Compare count and checksum of each partition.

    Examples:
      lakehouse-backfill reconcile silver.orders@before-fix silver.orders
    """
    return current_project(computes=True).reconcile(old, new)


def accept(run: RunOrCascadeArgument, by: ByOption = None, reason: ReasonOption = "") -> Result:
    """Accept the result of a run, before it is published.

    The acceptance is bound to the digest of checks and diff: staging again invalidates it.

    Examples:
      lakehouse-backfill accept bf-4f1c09a2d7 --by ana
      lakehouse-backfill accept cx-4f1c09a2d7 --by ana
    """
    if names_cascade(run):
        return current_project().accept_cascade(run, acting_person(by), reason)
    return current_project().accept(run, acting_person(by), reason)


def reject(
    run: RunOrCascadeArgument, reason: ReasonOption, by: ByOption = None, note: NoteOption = ""
) -> Result:
    """Reject a run; nothing is deleted.

    Examples:
      lakehouse-backfill reject bf-4f1c09a2d7 --reason "SJU is missing"
    """
    if names_cascade(run):
        if note:
            raise typer.BadParameter("--note goes with one run")
        return current_project().reject_cascade(run, acting_person(by), reason)
    return current_project().reject(run, acting_person(by), reason, note=note)


def note(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What was learned from the run.")],
    by: ByOption = None,
) -> Result:
    """Add a note to a run, which the product's next plan shows.

    The note is an event of the run's log. It changes neither the run's state nor any data.

    Examples:
      lakehouse-backfill note bf-4f1c09a2d7 "airports come late: plan after the 5th"
    """
    return current_project().note(run, text, acting_person(by))


def waive(
    run: RunArgument,
    gate: Annotated[
        str | None, typer.Argument(metavar="[GATE]", help="The failed gate, by its whole name.")
    ] = None,
    by: ByOption = None,
    reason: ReasonOption = "",
    *,
    show: Annotated[bool, typer.Option("--list", help="List the failed gates only.")] = False,
) -> Result:
    """Record that a failed gate does not stop a run.

    The waiver is bound to exactly what was judged: another input, chunk or result needs another
    waiver. Gates that protect the data itself cannot be waived.

    Examples:
      lakehouse-backfill waive bf-4f1c09a2d7 --list
      lakehouse-backfill waive bf-4f1c09a2d7 "spot checks" --by ana --reason "4711 was refunded"
    """
    if gate is None and not show:
        raise ConfigError("no gate is named", fix=f"lakehouse-backfill waive {run} --list")
    named = None if show else gate
    return current_project().waive(run, named, acting_person(by), reason)


CheckFilesOption = Annotated[
    bool | None,
    typer.Option(
        "--check-files/--no-check-files",
        help="Hash the staged files before; the default is yes in prod profiles.",
    ),
]


TogetherOption = Annotated[
    bool,
    typer.Option("--together", help="Of a cascade: followed products by one commit as well."),
]


def publish(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…", help="The run, or a cascade; several become visible by one commit."
        ),
    ],
    *,
    by: ByOption = None,
    note: NoteOption = "",
    dry_run: DryRunOption = False,
    together: TogetherOption = False,
    take_over: TakeOverOption = False,
    check_files: CheckFilesOption = None,
) -> Result:
    """Make an accepted result visible to readers.

    One metadata-only commit: all of the run's partitions, or none. Live commits in other partitions
    are kept. A second publish changes nothing. Several runs become visible at once: of pinned
    products, or of followed ones where the catalog takes one commit of several tables (doctor:
    multi_table_commit).

    Examples:
      lakehouse-backfill publish bf-4f1c09a2d7 --dry-run
      lakehouse-backfill publish bf-4f1c09a2d7
      lakehouse-backfill publish bf-4f1c09a2d7 bf-77aa01b2c3
      lakehouse-backfill publish cx-4f1c09a2d7
      lakehouse-backfill publish cx-4f1c09a2d7 --together
    """
    project, who, is_group = current_project(), acting_person(by), len(runs) > 1
    if note and (dry_run or is_group):
        raise typer.BadParameter("--note goes with the publication of one run")
    if any(map(names_cascade, runs)):
        if is_group or dry_run:
            raise typer.BadParameter("a cascade is published alone, and without --dry-run")
        return project.publish_cascade(
            runs[0], who, together=together, take_over=take_over, check_files=check_files
        )
    if together:
        raise typer.BadParameter("--together is for a cascade; several runs go together anyway")
    if is_group and dry_run:
        raise typer.BadParameter("--dry-run takes one run")
    if dry_run:
        return project.preview_publish(runs[0], who)
    if is_group:
        group = tuple(runs)
        return project.publish_together(group, who, take_over=take_over, check_files=check_files)
    return project.publish(runs[0], who, take_over=take_over, check_files=check_files, note=note)


def versions(product: ProductArgument) -> Result:
    """List the accepted output versions of a product, newest first.

    Examples:
      lakehouse-backfill versions silver.orders
    """
    return current_project().versions(product)


def evidence(
    run: RunArgument,
    export: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where page and archive are written.")
    ] = None,
    *,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> Result:
    """Write the evidence page and the archive of a run.

    Beside them lies index.html: all runs, with links to their pages.

    Examples:
      lakehouse-backfill evidence bf-4f1c09a2d7
      lakehouse-backfill evidence bf-4f1c09a2d7 --open
      lakehouse-backfill evidence bf-4f1c09a2d7 --export audit/
    """
    found = current_project().evidence(run, export)
    if not show or open_in_browser(Path(found.report or "")):
        return found
    warning = "no browser could be started; open the page by hand"
    return replace(found, warnings=(*found.warnings, warning))


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
    typer.Option(metavar="COL=0.01", help="Numbers this close are equal; also COL=1%."),
]
LocalLimitOption = Annotated[
    int | None, typer.Option(min=0, metavar="MIB", help="Up to this size, auto uses no Spark.")
]
PreviewOption = Annotated[
    bool, typer.Option("--preview", help="Only show what would be read; reads no row.")
]
FailOnDifferenceOption = Annotated[
    bool, typer.Option("--fail-on-difference", help="Exit with 3 unless both are equal.")
]
AttributeOption = Annotated[
    bool, typer.Option("--attribute", help="Of a run: explain why rows differ, on a sample.")
]
PartitionsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="With --attribute: most partitions sampled.")
]


def diff(
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
) -> Result:
    """Compare old and new rows by key.

    For a run: its candidate against what it replaces. Files that both sides share are not read.
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
    project = current_project(computes=attribute or engine == "spark")
    who, ignored, limits = acting_person(by), split_list(ignore), split_list(tolerance)
    found: DiffResult | DiffPreviewResult
    if attribute:
        if any((new, key, where, preview, ignore, tolerance)):
            raise typer.BadParameter("--attribute takes a run, and no other choice of rows")
        found = project.attribute(old, partitions, engine, samples, who)
    elif preview:
        found = project.preview_diff(
            old, new, columns, where, engine, who, ignored, limits, local_limit
        )
    else:
        found = project.diff(
            old, new, columns, where, engine, samples, who, ignored, limits, local_limit
        )
    return replace(found, must_be_equal=fail_on_difference or None)


def dual_read(
    run: RunArgument,
    reader: Annotated[
        str, typer.Option(metavar="NAME", help="The reader, as the manifest names it.")
    ],
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
        typer.Option(metavar="REASON", help="Record that a difference was reviewed and is right."),
    ] = None,
    by: ByOption = None,
) -> Result:
    """Compare a reader's query on old and candidate rows.

    Runs it twice in DuckDB, which reaches nothing but the relation `product`; starts no JVM. The
    comparison is bound to exactly this candidate and is part of the evidence.

    Examples:
      lakehouse-backfill dual-read bf-4f1c09a2d7 --reader finance --sql readers/finance.sql
      lakehouse-backfill dual-read bf-4f1c09a2d7 --reader app --columns order_id,amount
      lakehouse-backfill dual-read bf-1 --reader app --sql app.sql --accept-difference "was wrong"
    """
    project = current_project()
    return project.dual_read(
        run, reader, sql, split_list(columns), tolerance, accept_difference, acting_person(by)
    )
