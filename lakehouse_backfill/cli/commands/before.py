"""Commands before a run: set up, declare, plan, approve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakehouse_backfill.cli.session import (
    ByOption,
    DryRunOption,
    ProductArgument,
    ReasonCodeOption,
    ReasonOption,
    RunArgument,
    RunOrCascadeArgument,
    acting_person,
    current_project,
    current_session,
    names_cascade,
    split_list,
)
from lakehouse_backfill.results.base import Result


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new project's folder.")],
) -> Result:
    """Create the files of a new project.

    Existing files are not overwritten.

    Examples:
      lakehouse-backfill init restatements
    """
    from lakehouse_backfill.config.scaffold import create_project as make
    from lakehouse_backfill.results.proof import InitResult

    return InitResult(project=str(folder), files=tuple(make(folder)))


def doctor(
    *,
    spark: Annotated[
        bool, typer.Option("--spark", help="Start Spark too, and read the catalog by it.")
    ] = False,
) -> Result:
    """Check Java, jars, catalog and permissions.

    Each fault is printed with its fix. Exit code 6 when there is one.

    Examples:
      lakehouse-backfill doctor
      lakehouse-backfill --profile prod doctor --spark
    """
    return current_project(computes=spark).doctor(spark=spark)


def session_start(
    *,
    idle: Annotated[
        float, typer.Option(min=0.1, metavar="MINUTES", help="End it when unused for so long.")
    ] = 30.0,
) -> Result:
    """Keep a warm Spark for the commands of this shell.

    They start in seconds. It ends with the shell, or when nobody has used it.

    Examples:
      lakehouse-backfill session start
      lakehouse-backfill session start --idle 120
    """
    return current_project().start_session(idle)


def session_stop() -> Result:
    """End the warm Spark; a command that uses it is let finish.

    Examples:
      lakehouse-backfill session stop
    """
    return current_project().stop_session()


def session_status() -> Result:
    """Show whether there is a warm Spark, and whether commands given here use it.

    Examples:
      lakehouse-backfill session status
    """
    return current_project().session_status()


def demo(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the demo creates its project.")
    ] = Path("lakehouse-demo"),
) -> Result:
    """Run a guided restatement of a real table.

    The project folder is kept, so that you can continue in it.

    Examples:
      lakehouse-backfill demo
      lakehouse-backfill demo --dir /tmp/demo
    """
    from lakehouse_backfill.demo import story

    return story.run_demo(folder, current_session().echo)


def product_add(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="namespace.table")],
    owner: Annotated[str | None, typer.Option(metavar="WHO", help="Who owns the product.")] = None,
) -> Result:
    """Draft the contract of an existing table.

    Columns and partitions come from its metadata; key candidates are tested on its data.

    Examples:
      lakehouse-backfill product add silver.orders --owner ana
    """
    return current_project(computes=True).add_product(table, owner)


def new(
    product: ProductArgument,
    reason: ReasonOption,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="P", help="First partition.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="P", help="First partition not restated.")
    ] = None,
    reason_code: ReasonCodeOption = "bug_fix",
    by: ByOption = None,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Restate only these columns.")
    ] = None,
) -> Result:
    """Draft a run manifest for a product.

    The range is half-open: --to is the first partition that is not restated. A product
    without partitions is restated as a whole, without a range.

    Examples:
      lakehouse-backfill new silver.customers --reason "wrong countries"
      lakehouse-backfill new silver.orders --from 2026-01-01 --to 2026-02-01
          --reason "rates of January were late" --reason-code late_data
      lakehouse-backfill new silver.orders --from 2026-01-01 --to 2026-02-01
          --columns margin --reason "margin is new" --reason-code new_field
    """
    return current_project().new_manifest(
        product, from_, to, reason, reason_code, acting_person(by), columns=split_list(columns)
    )


def schema(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="manifest, contract, profiles or defaults")
    ] = "manifest",
) -> Result:
    """Print the JSON Schema of a declaration, for editors.

    Examples:
      lakehouse-backfill schema contract > schemas/contract.json
    """
    from lakehouse_backfill.config.scaffold import json_schema
    from lakehouse_backfill.results.proof import SchemaResult

    return SchemaResult(kind=kind, schema=json_schema(kind))


def try_manifest(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The run manifest's file.")],
    partition: Annotated[
        str | None,
        typer.Option(metavar="P", help="The partition; the first one if left out."),
    ] = None,
    by: ByOption = None,
) -> Result:
    """Compute one partition and compare it with what readers see.

    Needs no approval: the scratch table can never be published, and is removed. Exit code 3 when
    a check fails.

    Examples:
      lakehouse-backfill try jobs/orders/january.yaml
      lakehouse-backfill try jobs/orders/january.yaml --partition 2026-01-17
    """
    project = current_project(computes=True)
    file = manifest.resolve() if manifest.is_file() else manifest
    return project.try_partition(file, partition, acting_person(by))


WindowOption = Annotated[
    str | None,
    typer.Option(metavar="T1..T2", help="Event times, both included, whose rows were wrong."),
]
SubsetOption = Annotated[
    list[str] | None,
    typer.Option(metavar="P", help="A dry run of these partitions only; may be repeated."),
]
ReviseOption = Annotated[
    str | None, typer.Option(metavar="RUN", help="The run that this plan replaces.")
]
CascadeOption = Annotated[
    bool, typer.Option("--cascade", help="Also everything that is computed from the product.")
]
WarmUpOption = Annotated[
    bool,
    typer.Option("--prove-warm-up", help="Compute the first partition with twice the warm-up."),
]
DeterminismOption = Annotated[
    bool,
    typer.Option(
        "--prove-determinism", help="Compute the first partition twice, in another row order."
    ),
]
FullOption = Annotated[bool, typer.Option("--full", help="Show everything, as show RUN does.")]


def plan(
    manifest: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MANIFEST]", help="The run manifest's file; with --revise, the run's own."
        ),
    ] = None,
    revise: ReviseOption = None,
    *,
    cascade: CascadeOption = False,
    prove_warm_up: WarmUpOption = False,
    prove_determinism: DeterminismOption = False,
    window: WindowOption = None,
    subset: SubsetOption = None,
    dry_run: DryRunOption = False,
    full: FullOption = False,
    by: ByOption = None,
) -> Result:
    """Resolve, pin and estimate a run, and register it.

    Shows what would change, what is read, the cost, the consumers, and how to undo the run.
    Pinned snapshots do not expire while the run needs them. No data is changed.

    Examples:
      lakehouse-backfill plan jobs/orders/january.yaml
      lakehouse-backfill plan jobs/orders/january.yaml --dry-run
      lakehouse-backfill plan --revise bf-4f1c09a2d7
      lakehouse-backfill plan jobs/orders/january.yaml --window 2026-01-03..2026-01-05
      lakehouse-backfill plan jobs/orders/january.yaml --cascade --dry-run
      lakehouse-backfill plan jobs/orders/january.yaml --subset 2026-01-17,2026-01-18
    """
    if manifest is None and revise is None:
        raise typer.BadParameter("name the run manifest's file, or a run with --revise")
    project = current_project(computes=prove_warm_up or prove_determinism)
    file = manifest.resolve() if manifest and manifest.is_file() else manifest
    if cascade:
        if file is None or any((revise, prove_warm_up, prove_determinism, full, window, subset)):
            raise typer.BadParameter("--cascade takes a run manifest's file, and --dry-run only")
        return project.plan_cascade(file, acting_person(by), dry_run=dry_run)
    found = project.plan(
        file,
        revise,
        acting_person(by),
        dry_run=dry_run,
        prove_warm_up=prove_warm_up,
        prove_determinism=prove_determinism,
        window=window,
        subset=split_list(subset) or None,
    )
    return show_everything(found) if full else found


def show_everything(plan: Result) -> Result:
    """Return the plan as a result of which everything is drawn."""
    from lakehouse_backfill.results.plans import ShowResult

    return ShowResult.from_fields(plan)


def rehearse(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The run manifest's file.")],
    *,
    in_: Annotated[
        str, typer.Option("--in", metavar="PROFILE", help="The lake to rehearse in; not of prod.")
    ],
    by: ByOption = None,
) -> Result:
    """Publish a run and roll it back on copies, in another lake.

    Plans, approves, stages, validates, accepts, publishes, verifies and rolls back, with the real
    manifest, code, checks and snapshots. The real tables are only read. Hooks are not called.
    Prints what held, and what the real place has otherwise.

    Examples:
      lakehouse-backfill rehearse jobs/orders/january.yaml --in rehearsal
      lakehouse-backfill --profile prod rehearse jobs/orders/january.yaml --in rehearsal --by ana
    """
    file = manifest.resolve() if manifest.is_file() else manifest
    return current_project(computes=True).rehearse(file, in_, acting_person(by))


def show(run: RunArgument) -> Result:
    """Show the whole plan of a run: pins, estimate, checklist, notes.

    Examples:
      lakehouse-backfill show bf-4f1c09a2d7
    """
    return current_project().show(run)


def approve(run: RunOrCascadeArgument, by: ByOption = None, reason: ReasonOption = "") -> Result:
    """Approve the intent of a run, before it stages.

    The approval is bound to the manifest hash: another plan needs another approval. Of a cascade,
    all runs are approved, each by its hash.

    Examples:
      lakehouse-backfill approve bf-4f1c09a2d7 --by ana
      lakehouse-backfill --sign-with ~/.ssh/id_ed25519 approve bf-4f1c09a2d7 --by ana
      lakehouse-backfill approve cx-4f1c09a2d7 --by ana
    """
    if names_cascade(run):
        return current_project().approve_cascade(run, acting_person(by), reason)
    return current_project().approve(run, acting_person(by), reason)
