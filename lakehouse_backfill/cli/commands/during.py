"""Commands during a run: run, stage, validate, status, log, chunks, pause, cancel, shadow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehouse_backfill.cli.session import (
    ByOption,
    DryRunOption,
    NoteOption,
    ReasonOption,
    RunArgument,
    RunOrCascadeArgument,
    TakeOverOption,
    acting_person,
    current_project,
    names_cascade,
    split_list,
)
from lakehouse_backfill.results.base import Result

if TYPE_CHECKING:
    from lakehouse_backfill.project import Project

ACCEPTED_SUFFIX = "@accepted"
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Show the run's progress until it ends or waits.")
]
EveryOption = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="With --watch: look so often.")
]
SendAlertsOption = Annotated[
    bool, typer.Option("--send-alerts", help="Call on_alert hooks for alerts that are new.")
]
MetricsOption = Annotated[
    bool, typer.Option("--metrics", help="Print all metrics in the format of Prometheus.")
]
MetricsFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write all metrics to this text file.")
]
MetricsPushOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Push all metrics to this Pushgateway.")
]


def _exporting(
    project: Project, file: Path | None, push: str | None, port: int | None = None
) -> Project:
    """Return the project, which exports metrics also to these places."""
    if file is not None or push is not None or port is not None:
        project.export_metrics(str(file) if file else None, push, port)
    return project


def run(
    run: RunOrCascadeArgument,
    by: ByOption = None,
    *,
    take_over: TakeOverOption = False,
    metrics_file: MetricsFileOption = None,
    metrics_push: MetricsPushOption = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="PORT", help="Serve metrics on this port meanwhile."
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> Result:
    """Stage and validate a run, and publish it unless that is manual.

    Continues where the run stopped: finished chunks are not computed again. Of a cascade, each run
    reads the results before it, and nothing is published.

    Examples:
      lakehouse-backfill run bf-4f1c09a2d7
      lakehouse-backfill run bf-4f1c09a2d7 --dry-run    # chunks done, to do, in doubt
      lakehouse-backfill run cx-4f1c09a2d7
      lakehouse-backfill run bf-4f1c09a2d7 --metrics-port 9464
    """
    if dry_run and names_cascade(run):
        raise typer.BadParameter("--dry-run goes with one run")
    if dry_run:
        return current_project().preview_run(run)
    project = current_project(computes=True)
    _exporting(project, metrics_file, metrics_push, metrics_port)
    if names_cascade(run):
        return project.run_cascade(run, acting_person(by), take_over=take_over)
    return project.run(run, acting_person(by), take_over=take_over)


def stage(run: RunArgument, by: ByOption = None, *, take_over: TakeOverOption = False) -> Result:
    """Compute the missing chunks into the run's shadow table.

    The target is not changed. Staging a finished chunk again changes nothing.

    Examples:
      lakehouse-backfill stage bf-4f1c09a2d7
    """
    project = current_project(computes=True)
    return project.stage(run, acting_person(by), take_over=take_over)


def validate(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run, or PRODUCT@accepted with its suites.")
    ],
    suite: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="With PRODUCT@accepted: this suite; may be repeated."),
    ] = None,
    partitions: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="With PRODUCT@accepted: only these; may be repeated."),
    ] = None,
    by: ByOption = None,
    *,
    take_over: TakeOverOption = False,
) -> Result:
    """Run every gate on the staged result.

    Suites, reconciliation, keyed diff and edge check. Exit code 3 when a gate is closed.
    With PRODUCT@accepted: run suites on the published data; nothing is changed.

    Examples:
      lakehouse-backfill validate bf-4f1c09a2d7
      lakehouse-backfill validate silver.orders@accepted --suite expectations/new.json
    """
    product, is_published, _ = run.partition(ACCEPTED_SUFFIX)
    if not is_published and (suite or partitions):
        raise typer.BadParameter(f"--suite and --partitions go with PRODUCT{ACCEPTED_SUFFIX}")
    project = current_project(computes=True)
    if is_published:
        return project.rejudge(product, split_list(suite), split_list(partitions))
    return project.validate(run, acting_person(by), take_over=take_over)


def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|CASCADE]", help="One run or cascade; all open runs if left out."
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also the closed runs.")] = False,
    watch: WatchOption = False,
    every: EveryOption = 2.0,
    metrics: MetricsOption = False,
    metrics_file: MetricsFileOption = None,
    metrics_push: MetricsPushOption = None,
    send_alerts: SendAlertsOption = False,
) -> Result:
    """Show whether data is safe, what readers see, and the next command.

    Without a run: the open runs; runs that wait for a person come first. With --watch: the progress
    of a run that another process works on, in a second terminal.

    Examples:
      lakehouse-backfill status
      lakehouse-backfill status bf-4f1c09a2d7
      lakehouse-backfill status cx-4f1c09a2d7
      lakehouse-backfill status --all --json
      lakehouse-backfill status bf-4f1c09a2d7 --watch
      lakehouse-backfill status --metrics-file /var/lib/node_exporter/backfill.prom
      lakehouse-backfill status --send-alerts
    """
    wants_metrics = metrics or metrics_file is not None or metrics_push is not None
    if wants_metrics + send_alerts + watch > 1:
        raise typer.BadParameter("give one of --watch, --send-alerts and the options of metrics")
    if run is not None and (wants_metrics or send_alerts):
        raise typer.BadParameter("metrics and alerts are of the whole lake: name no run")
    if wants_metrics:
        return _exporting(current_project(), metrics_file, metrics_push).metrics()
    if send_alerts:
        return current_project().send_alerts()
    if watch:
        if run is None or names_cascade(run):
            raise typer.BadParameter("--watch needs one run")
        return current_project().watch(run, every)
    if run is not None and names_cascade(run):
        return current_project().cascade(run)
    return current_project().status(run, all=everything)


def list_runs(
    product: Annotated[str | None, typer.Option(metavar="NAME", help="Of this product.")] = None,
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help="In this state; may be repeated.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Planned for dev or prod.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DAY", help="Moved on this day (UTC) or later.")
    ] = None,
) -> Result:
    """List runs, also closed ones, the last moved first.

    Examples:
      lakehouse-backfill list --product silver.orders --since 2026-01-01
      lakehouse-backfill list --state published,rolled_back --environment prod
    """
    return current_project().list_runs(product, split_list(state), environment, since)


def log(run: RunArgument) -> Result:
    """List the events of a run, oldest first.

    Examples:
      lakehouse-backfill log bf-4f1c09a2d7
    """
    return current_project().log(run)


def chunks(run: RunArgument) -> Result:
    """List the chunks of a run with rows, checksums and seconds.

    Examples:
      lakehouse-backfill chunks bf-4f1c09a2d7
    """
    return current_project().chunks(run)


def cancel(
    run: RunOrCascadeArgument,
    by: ByOption = None,
    reason: ReasonOption = "",
    note: NoteOption = "",
    *,
    take_over: TakeOverOption = False,
) -> Result:
    """Close a run before publication.

    Readers see no change; the shadow table and the evidence are kept. A process that stages the run
    stops, and cuts the chunk in flight off. A run that a living process judges is refused without
    --take-over.

    Examples:
      lakehouse-backfill cancel bf-4f1c09a2d7 --reason "wrong month"
      lakehouse-backfill cancel cx-4f1c09a2d7 --reason "wrong month"
    """
    if names_cascade(run):
        if note:
            raise typer.BadParameter("--note goes with one run")
        return current_project().cancel_cascade(run, acting_person(by), reason)
    return current_project().cancel(run, acting_person(by), reason, take_over=take_over, note=note)


def pause(
    run: RunArgument,
    by: ByOption = None,
    reason: ReasonOption = "",
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Cut the chunk in flight off; it is computed again later.")
    ] = False,
) -> Result:
    """Stop the staging of a run, whichever process works on it.

    No further chunk starts; the one in flight is finished. Readers see no change.

    Examples:
      lakehouse-backfill pause bf-4f1c09a2d7 --reason "the live job is late"
      lakehouse-backfill pause bf-4f1c09a2d7 --now
    """
    return current_project().pause(run, acting_person(by), reason, now=now)


def unpause(run: RunArgument, by: ByOption = None, reason: ReasonOption = "") -> Result:
    """Let a paused run go on.

    Then run it: chunks that are done are not computed again.

    Examples:
      lakehouse-backfill unpause bf-4f1c09a2d7
      lakehouse-backfill run bf-4f1c09a2d7 --dry-run    # lists what it will do
    """
    return current_project().unpause(run, acting_person(by), reason)


def shadow_open(
    run: RunArgument, by: ByOption = None, *, take_over: TakeOverOption = False
) -> Result:
    """Create the run's shadow table for another engine to write.

    The manifest says transform.writer: external. The pinned input is judged first. Write only the
    printed partitions, with copy-on-write; then close the shadow.

    Examples:
      lakehouse-backfill shadow open bf-4f1c09a2d7
      lakehouse-backfill shadow open bf-4f1c09a2d7 --json
    """
    project = current_project(computes=True)
    return project.shadow_open(run, acting_person(by), take_over=take_over)


def shadow_close(
    run: RunArgument, by: ByOption = None, *, take_over: TakeOverOption = False
) -> Result:
    """Check and fingerprint what another engine wrote into the shadow.

    Shuts that engine out, proves that only the run's partitions changed, then counts, hashes and
    checks each chunk. Continue with validate, accept, publish.

    Examples:
      lakehouse-backfill shadow close bf-4f1c09a2d7
    """
    project = current_project(computes=True)
    return project.shadow_close(run, acting_person(by), take_over=take_over)
