"""The Python API: one method for each command, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial, wraps
from importlib import import_module
from inspect import isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lakehouse_backfill.adapters.system.process import (
    release_memory,
    require_valid_reason,
    resolve_actor,
)
from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.config.faults import locate_errors
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.errors import (
    BackfillError,
    ChecksFailed,
    ConfigError,
    EnvironmentDown,
    NotFound,
    Tampered,
)
from lakehouse_backfill.fault_points import forget_commits
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.results.base import complete_commands
from lakehouse_backfill.wiring.adapters import STATE_FOLDER, Adapters
from lakehouse_backfill.wiring.engine import end_run, remember_rows

if TYPE_CHECKING:
    from lakehouse_backfill import results
    from lakehouse_backfill.core.cascade.plan import Cascade
    from lakehouse_backfill.core.comparison.diff import DiffOptions, TableSides
    from lakehouse_backfill.core.migration.migrate import MigrationPorts
    from lakehouse_backfill.core.planning.plan import DeclaredRun
    from lakehouse_backfill.core.runs.context import Context
    from lakehouse_backfill.core.versions.pointer import RollbackTarget
    from lakehouse_backfill.domain.contract import Contract
    from lakehouse_backfill.domain.plan import Plan
    from lakehouse_backfill.domain.run import RunStatus
    from lakehouse_backfill.domain.sources.migration import MigrationDeclaration
    from lakehouse_backfill.ports.comparison import DiffRequest
    from lakehouse_backfill.report.page import EvidencePages
    from lakehouse_backfill.results import (
        cascades,
        comparison,
        events,
        migrations,
        origins,
        plans,
        proof,
        publications,
        runs,
        sources,
    )
    from lakehouse_backfill.results.base import Result

    AnyResult = TypeVar("AnyResult", bound=Result)
    Decision = Callable[[Context, str, str, str], RunStatus]

Found = TypeVar("Found")


class _LateResults:
    """The modules of results, each loaded when it is first named.

    So a command loads only the results, and with them the parts of the core, that it needs.
    """

    def __getattr__(self, name: str) -> ModuleType:
        return import_module(f"lakehouse_backfill.results.{name}")


if not TYPE_CHECKING:
    results = _LateResults()

_Class = TypeVar("_Class")
#: Verbs after which the metrics are others; while the long ones work, they can be scraped.
_LONG = frozenset({"run", "stage", "validate", "run_cascade"})
_EXPORTING = _LONG | frozenset(
    {
        "plan", "approve", "accept", "reject", "cancel", "publish", "publish_together",
        "publish_cascade", "rollback", "rollback_together", "rollback_cascade", "recover",
        "maintain",
    }
)  # fmt: skip


def _begins_commands(project: type[_Class]) -> type[_Class]:
    """Make each public method a command of its own, unless it is called inside another one.

    The commands in its result, or in its error, reach the same project and profile.
    """
    depth = 0

    def as_command(method: Callable[..., Any]) -> Callable[..., Any]:
        takes_run = tuple(signature(method).parameters)[1:2] == ("run",)

        @wraps(method)
        def command(self: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal depth
            if depth:
                return method(self, *arguments, **named)
            forget_commits()
            depth += 1
            exported = self._metrics_exported(method.__name__)
            run = named.get("run", (*arguments, None)[0]) if takes_run else None
            complete = partial(self.wiring.invocation.complete, run=run or "")
            try:
                with exported as problems:
                    done = method(self, *arguments, **named)
                done = _with_warnings(done, problems)
                return complete_commands(done, complete)
            except BackfillError as error:
                error.complete_commands(complete)
                raise
            finally:
                depth -= 1
                if depth == 0:
                    release_memory()

        return command

    for name, method in vars(project).items():
        if isfunction(method) and not name.startswith("_"):
            setattr(project, name, as_command(method))
    return project


@_begins_commands
class Project:
    """A folder with profiles, contracts, suites and jobs, opened against one lake."""

    def __init__(self, wiring: Adapters) -> None:
        """Use `Project.open`."""
        self.wiring = wiring
        self.folder = wiring.folder
        self._export = wiring.profile.monitoring.metrics

    @cached_property
    def _pages(self) -> EvidencePages:
        from lakehouse_backfill.report.page import EvidencePages

        profile = self.wiring.invocation.profile
        context, folder = (lambda: self.wiring.context), self.wiring.evidence_folder
        return EvidencePages(context, folder, profile, self._one_view)

    @staticmethod
    def open(
        folder: Path | str = ".", profile: str | None = None, *, progress: Progress | None = None
    ) -> Project:
        """Open the project in `folder`. Reads its profiles only; connects on first use.

        Without a `profile`, the environment variable LAKEHOUSE_BACKFILL_PROFILE names it, or the
        profiles' own `default`. Raises ConfigError when the profiles are wrong, or when there is no
        such profile.
        """
        return Project(Adapters.open(Path(folder), profile, progress))

    def sign_with(self, key: str) -> None:
        """Sign decisions of this project object with a key file, or as a CI job with `oidc`."""
        self.wiring.signing_key = key
        # The ports of a context are fixed: the next command makes them with the key.
        self.wiring.__dict__.pop("context", None)

    def export_metrics(
        self, file: str | None = None, push: str | None = None, port: int | None = None
    ) -> None:
        """Export metrics of this project object also to these places, besides the profile's."""
        given = {"file": file, "push": push, "port": port}
        update = {name: value for name, value in given.items() if value is not None}
        self._export = self._export.model_copy(update=update)

    @contextmanager
    def _metrics_exported(self, verb: str) -> Iterator[Iterable[str]]:
        """Export metrics while a verb that changes runs works; yield what went wrong."""
        if verb not in _EXPORTING or not self._export.is_on:
            yield ()
            return
        from lakehouse_backfill.wiring.metrics import ExportedMetrics

        is_long = verb in _LONG
        export = self._export if is_long else self._export.model_copy(update={"port": None})
        metrics = ExportedMetrics(self.wiring.context, export)
        try:
            with metrics:
                yield metrics.problems
        except BackfillError:
            for problem in metrics.problems:
                self.wiring.progress.say(problem)
            raise

    def metrics(self) -> runs.MetricsResult:
        """Return all metrics as of now, and write or push them where that is asked for.

        Nothing in the lake is changed. What could not be written or pushed is a warning.
        """
        from lakehouse_backfill.wiring.metrics import ExportedMetrics

        metrics = ExportedMetrics(self.wiring.context, self._export)
        text = metrics.export_once()
        return results.runs.MetricsResult(text=text, warnings=tuple(metrics.problems))

    def send_alerts(self) -> runs.AlertsResult:
        """Call the `on_alert` hooks for alerts that they did not get yet; return all alerts.

        Each call is recorded at its run. A hook that failed is a warning, and is called again by
        the next call.
        """
        from lakehouse_backfill.core.monitoring.alerts import send_alerts

        return results.runs.AlertsResult.of(send_alerts(self.wiring.context))

    def watch(self, run: str, every_seconds: float = 2.0) -> runs.StatusResult:
        """Show the progress of a run that another process works on, until it ends or waits.

        Nothing is changed. Returns its status then. Raises NotFound.
        """
        from lakehouse_backfill.core.monitoring.alerts import watch

        watch(self.wiring.context, run, every_seconds)
        return self.status(run)

    def doctor(self, *, spark: bool = False) -> proof.DoctorResult:
        """Check Java, jars, catalog and permissions, and try out what the catalog keeps.

        With `spark`, a session is started and reads the catalog too.
        """
        from lakehouse_backfill.onboarding import run_doctor

        return run_doctor(self.wiring, with_spark=spark)

    def start_session(self, idle_minutes: float = 30.0) -> proof.SessionResult:
        """Start a warm session: a Spark that later commands of this shell use.

        It ends with the shell, by `stop_session`, or once nobody has used it for `idle_minutes`.
        """
        from lakehouse_backfill.wiring.warm_session import warm_sessions

        state = warm_sessions(self.wiring).start(idle_minutes, self.wiring.progress)
        return results.proof.SessionResult(**vars(state))

    def stop_session(self) -> proof.SessionResult:
        """End the warm session; a command that uses it is let finish."""
        from lakehouse_backfill.wiring.warm_session import warm_sessions

        return results.proof.SessionResult(**vars(warm_sessions(self.wiring).stop()))

    def session_status(self) -> proof.SessionResult:
        """Return whether there is a warm session, and whether commands given here use it."""
        from lakehouse_backfill.wiring.warm_session import warm_sessions

        return results.proof.SessionResult(**vars(warm_sessions(self.wiring).state()))

    def add_product(self, table: str, owner: str | None = None) -> proof.ProductDraft:
        """Draft a contract from an existing table, with tested key candidates."""
        from lakehouse_backfill import onboarding

        return onboarding.add_product(self.wiring, table, resolve_actor(owner))

    def new_manifest(
        self,
        product: str,
        from_: str | None,
        to: str | None,
        reason: str,
        reason_code: str,
        requested_by: str,
        *,
        columns: Sequence[str] = (),
    ) -> proof.ManifestDraft:
        """Draft a run manifest for a product and a half-open range of partitions.

        Without a range, of the whole table of a product without partitions. Raises ConfigError for
        half a range. With `columns` the run restates only these: `target.columns`.
        """
        from lakehouse_backfill import onboarding

        extent, who = onboarding.whole_range(from_, to), resolve_actor(requested_by)
        return onboarding.add_manifest(
            self.wiring,
            product,
            extent,
            require_valid_reason(reason),
            reason_code,
            who,
            columns=columns,
        )

    def land(
        self,
        source: str,
        from_: str | None = None,
        to: str | None = None,
        *,
        reconcile: bool = False,
    ) -> sources.LandResult:
        """Bring what is new in a source into its raw table, each row once, as a pinned snapshot.

        What the webhook of an API has received and not landed yet is landed first. With `reconcile`
        an API is read whole, or the whole range of it: what it does not have any more is landed as
        deletions, what it changed silently as corrections. A landing that was cut off is continued.
        Raises NotFound, ConfigError, Blocked (the source is incomplete), Conflict (another process
        lands it), SourceDown.
        """
        from lakehouse_backfill.config.sources import find_source, landing_request
        from lakehouse_backfill.core.landing.land import land
        from lakehouse_backfill.wiring.receiver import land_left_over
        from lakehouse_backfill.wiring.sources import landing_ports

        declared = find_source(self.folder, source)
        request = landing_request(from_, to, reconcile=reconcile)
        notes = land_left_over(self.wiring, declared)
        done = land(landing_ports(self.wiring, declared, looks=False), declared, request)
        return results.sources.LandResult.of(declared, done, notes)

    def receive(
        self,
        source: str,
        port: int,
        host: str = "127.0.0.1",
        seconds: float | None = None,
    ) -> sources.ReceiveResult:
        """Take the requests of a webhook until SIGINT or SIGTERM, or for `seconds`.

        Each request is kept durably before it is acknowledged, and landed in a commit with others.
        Raises NotFound, ConfigError, Conflict (another process receives for the source on this
        machine).
        """
        from lakehouse_backfill.config.sources import find_source
        from lakehouse_backfill.wiring.receiver import Address, run_receiver

        declared = find_source(self.folder, source)
        return run_receiver(self.wiring, declared, Address(host, port), seconds)

    def preview_landing(
        self,
        source: str,
        from_: str | None = None,
        to: str | None = None,
        *,
        reconcile: bool = False,
    ) -> sources.LandPreviewResult:
        """Return what `land` would read; nothing is changed."""
        from lakehouse_backfill.config.sources import find_source, landing_request
        from lakehouse_backfill.core.landing.land import preview_landing
        from lakehouse_backfill.wiring.sources import landing_ports

        declared = find_source(self.folder, source)
        request = landing_request(from_, to, reconcile=reconcile)
        ports = landing_ports(self.wiring, declared, looks=True)
        survey = preview_landing(ports, declared, request)
        return results.sources.LandPreviewResult.of(declared, survey)

    def migrate(self, migration: str, by: str) -> migrations.MigrateResult:
        """Bring what an old place holds into a product's table, proven before readers see it.

        A migration that was cut off is continued; one that is accepted stays as it is. Raises
        NotFound, ConfigError, Blocked (sides that differ), Conflict (the old place changed).
        """
        from lakehouse_backfill.core.migration.migrate import migrate

        declared, contract, ports = self._migration(migration)
        done = migrate(self.wiring.context, ports, declared, contract, resolve_actor(by))
        return results.migrations.MigrateResult.of(declared, contract.table, done)

    def preview_migration(self, migration: str) -> migrations.MigratePreviewResult:
        """Return what `migrate` would do with each part of the old place; nothing is changed."""
        from lakehouse_backfill.core.migration.migrate import preview_migration

        declared, contract, ports = self._migration(migration, looks=True)
        survey = preview_migration(ports, contract)
        return results.migrations.MigratePreviewResult.of(declared, contract.table, survey)

    def undo_migration(self, migration: str, by: str) -> migrations.MigrationUndoneResult:
        """Take a migration back: pointer and table go, no file is deleted.

        Raises Blocked once a run was published, or the table holds other rows.
        """
        from lakehouse_backfill.core.migration.migrate import undo_migration

        declared, contract, ports = self._migration(migration)
        state = undo_migration(self.wiring.context, ports, declared, contract, resolve_actor(by))
        return results.migrations.MigrationUndoneResult.of(declared, contract.table, state)

    def _migration(
        self, name: str, *, looks: bool = False
    ) -> tuple[MigrationDeclaration, Contract, MigrationPorts]:
        from lakehouse_backfill.config.migrations import find_migration
        from lakehouse_backfill.wiring.migrations import migration_ports

        declared = find_migration(self.folder, name)
        contract = self.wiring.contract(declared.product)
        ports = migration_ports(self.wiring, declared, contract, looks=looks)
        return declared, contract, ports

    def check_events(
        self,
        store: str,
        handler: str | None = None,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.EventCheckResult:
        """Return what the newest events of a store are like, and how many a replay would handle.

        The code of upcasters, and that of a named handler, is loaded too. Nothing is changed.
        Raises NotFound, ConfigError, WriteForbidden, Unsupported (a table without the columns of
        events, schemas that are not compatible).
        """
        from lakehouse_backfill.config.events.event_stores import find_event_store, replay_request
        from lakehouse_backfill.core.replay.check import missing_links
        from lakehouse_backfill.core.replay.preview import check_events
        from lakehouse_backfill.wiring.event_stores import (
            load_handler,
            load_upcasters,
            replay_ports,
        )

        declared = find_event_store(self.folder, store)
        request = replay_request(aggregate, from_, to, event_types)
        upcasters = load_upcasters(self.wiring, declared)
        loaded = None if handler is None else load_handler(self.wiring, declared, handler)
        found = check_events(replay_ports(self.wiring, declared), declared, request, loaded)
        links = missing_links(upcasters, found.findings)
        return results.events.EventCheckResult.of(declared, found, links)

    def replay(
        self,
        store: str,
        handler: str | None,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.ReplayResult:
        """Let a handler process the selected events that it has not processed, each once, in order.

        A replay that was cut off is continued. Raises NotFound, ConfigError, RejectedInput (events
        that are not consistent), Blocked (events that come too late), Conflict (another process
        replays, or a replay of another selection was cut off), Unsupported.
        """
        from lakehouse_backfill.config.events.event_stores import find_event_store, replay_request
        from lakehouse_backfill.core.replay.replay import replay
        from lakehouse_backfill.wiring.event_stores import load_handler, replay_ports

        declared = find_event_store(self.folder, store)
        if handler is None:
            raise ConfigError(
                f"nothing says which handler of {store} processes the events",
                fix=f"lakehouse-backfill replay {store} --handler NAME; it has: "
                f"{', '.join(declared.handlers) or 'none'}",
            )
        request = replay_request(aggregate, from_, to, event_types)
        loaded = load_handler(self.wiring, declared, handler)
        done = replay(replay_ports(self.wiring, declared), declared, loaded, request)
        return results.events.ReplayResult.of(declared, handler, done)

    def replay_into_topic(
        self,
        store: str,
        topic: str,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.TopicReplayResult:
        """Send the selected events that a topic of the store lacks, each once, in order.

        A replay that was cut off is continued. Raises NotFound, ConfigError (a topic that is
        landed), RejectedInput (events that are not consistent), Blocked (topics are switched off; a
        live topic; events that come too late), Conflict (another process sends), SourceDown.
        """
        from lakehouse_backfill.config.events.event_stores import (
            find_store_of_topic,
            replay_request,
        )
        from lakehouse_backfill.core.replay.topic import replay_into_topic
        from lakehouse_backfill.wiring.event_stores import topic_replay_ports

        declared = find_store_of_topic(self.folder, store, topic)
        request = replay_request(aggregate, from_, to, event_types)
        done = replay_into_topic(topic_replay_ports(self.wiring), declared, topic, request)
        return results.events.TopicReplayResult.of(declared, topic, done)

    def check_topic(
        self,
        store: str,
        topic: str,
        *,
        aggregate: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        event_types: tuple[str, ...] = (),
    ) -> events.EventCheckResult:
        """Return what `replay_into_topic` would meet, and how many events it would send.

        The topic is read; nothing is sent. Raises as `replay_into_topic`.
        """
        from lakehouse_backfill.config.events.event_stores import (
            find_store_of_topic,
            replay_request,
        )
        from lakehouse_backfill.core.replay.topic import check_topic
        from lakehouse_backfill.wiring.event_stores import topic_replay_ports

        declared = find_store_of_topic(self.folder, store, topic)
        request = replay_request(aggregate, from_, to, event_types)
        found = check_topic(topic_replay_ports(self.wiring), declared, topic, request)
        return results.events.EventCheckResult.of(declared, found, ())

    def rebuild(
        self, store: str, handler: str, aggregate: str, good_before: str | None = None
    ) -> events.RebuildResult:
        """Compute the state of one aggregate from its newest kept state and the events after it.

        `good_before`, a date or an instant: the newest state that was made of earlier events only,
        as later ones were wrong. Nothing is written. Raises NotFound, ConfigError, RejectedInput.
        """
        from lakehouse_backfill.config.events.event_stores import find_event_store, replay_request
        from lakehouse_backfill.core.replay.rebuild import rebuild
        from lakehouse_backfill.wiring.event_stores import load_handler, replay_ports

        declared = find_event_store(self.folder, store)
        loaded = load_handler(self.wiring, declared, handler)
        since = replay_request(None, good_before, None, ()).from_
        found = rebuild(replay_ports(self.wiring, declared), declared, loaded, aggregate, since)
        done = results.events.RebuildResult.of(declared, handler, aggregate, found)
        return replace(done, good_before=since)

    def plan(
        self,
        manifest_file: str | Path | None = None,
        revise: str | None = None,
        by: str | None = None,
        *,
        dry_run: bool = False,
        prove_warm_up: bool = False,
        prove_determinism: bool = False,
        window: str | None = None,
        subset: tuple[str, ...] | None = None,
    ) -> plans.PlanResult:
        """Resolve, pin, estimate and register a run; with `dry_run` nothing is written.

        Without a file, the file of the run to `revise` is planned again, with its window. `window`
        names event times whose rows were wrong, `T1..T2`: the plan says what follows, and must
        restate all of it. With a `subset` of the partitions it is a dry run: checked alike, never
        published; it takes the place of no run.

        Raises ConfigError, NotFound, Unsupported, LimitExceeded, NonDeterministic, ChecksFailed (a
        proof).
        """
        from lakehouse_backfill.core.planning import job_code
        from lakehouse_backfill.core.planning import plan as stage
        from lakehouse_backfill.core.planning import window as windows
        from lakehouse_backfill.core.planning.target import dry_run as dry_runs

        who, context = resolve_actor(by), self.wiring.context
        dry_runs.require_subset(subset, revise)
        manifest_file = self._file_to_plan(manifest_file, revise)
        span = windows.planned_window(context, window, revise)
        declared = self._declared(manifest_file)
        with locate_errors(self.folder / declared.manifest_file, self.folder), self._one_view():
            amend = partial(dry_runs.restrict_to_dry_run, labels=subset) if subset else None
            plan = stage.make_plan(context, declared, who, revise, amend)
            plan = windows.examine_window(context, plan, span) if span is not None else plan
        proof = job_code.prove_warm_up(context, plan) if prove_warm_up else None
        repeated = job_code.prove_determinism(context, plan) if prove_determinism else None
        status = None
        if not dry_run:
            plan, status = stage.register_plan(context, plan, who)
        done = results.plans.PlanResult.of(plan, status, proof, repeated)
        if status is None:
            command = _repeated_plan(plan, window, subset)
        else:
            command = self._next_command(plan.run_id, look=True)
        done = replace(done, next_command=command)
        if dry_run or not plan.revises:
            return done
        return self._pages.add_existing_link(done, plan.revises)

    def _declared(self, manifest_file: str | Path) -> DeclaredRun:
        """Read a manifest; what is computed for it is computed where it says."""
        from lakehouse_backfill.wiring.places import expect_place

        declared = self.wiring.load_declaration(Path(manifest_file))
        expect_place(self.wiring, declared.manifest.compute)
        return declared

    def _one_view(self) -> AbstractContextManager[None]:
        """Load each table once until the block ends; commits to control tables stay fresh."""
        from lakehouse_backfill.adapters.iceberg.metadata import one_view

        return one_view(self.wiring.catalog)

    def _file_to_plan(self, manifest_file: str | Path | None, revise: str | None) -> str | Path:
        """Return the run manifest to plan: the named one, else that of the run to revise."""
        if revise is not None:
            from lakehouse_backfill.core.cascade.plan import require_no_member

            revised = self.wiring.context.runs.plan(revise)
            require_no_member(revised)
            return manifest_file or revised.manifest_file
        if manifest_file is None:
            raise ConfigError("no run manifest is named", fix="name its file")
        return manifest_file

    def plan_cascade(
        self, manifest_file: str | Path, by: str | None = None, *, dry_run: bool = False
    ) -> cascades.CascadePlanResult:
        """Plan a run and everything downstream of its product, each on the results before it.

        With `dry_run` nothing is written. Raises what `plan` does; ConfigError (a cycle, a mapping,
        a read that is not declared), Conflict (another open cascade), Unsupported.
        """
        from lakehouse_backfill.core.cascade import plan as stage
        from lakehouse_backfill.wiring.adapters import cascade_files

        who, context = resolve_actor(by), self.wiring.context
        files = cascade_files(self.wiring)
        declared = self.wiring.load_declaration(Path(manifest_file), files.contracts)
        with self._one_view():
            found = stage.make_cascade(context, declared, files, who)
        if not dry_run:
            found = replace(stage.register_cascade(context, found, who), notes=found.notes)
        return results.cascades.CascadePlanResult.of(found, is_registered=not dry_run)

    def cascade(self, cascade: str) -> cascades.CascadeResult:
        """Describe where a cascade and its runs stand."""
        return self._cascade_result(cascade)

    def approve_cascade(self, cascade: str, by: str, reason: str = "") -> cascades.CascadeResult:
        """Approve the intent of all runs of a cascade; each approval is bound to its hash."""
        from lakehouse_backfill.core.cascade.steps import approve_cascade

        return self._decided_cascade(approve_cascade, cascade, by, reason)

    def run_cascade(
        self, cascade: str, by: str, *, take_over: bool = False
    ) -> cascades.CascadeResult:
        """Stage and validate the runs of a cascade from wherever it stopped."""
        from lakehouse_backfill.core.cascade.plan import load_cascade
        from lakehouse_backfill.core.cascade.steps import run_cascade

        self._load_engine()
        found = load_cascade(self.wiring.context, cascade)
        with self._pages.written_on_error(*found.run_ids, only_existing=True):
            run_cascade(self._context(take_over=take_over), found, resolve_actor(by))
        return self._pages.add_links(self._cascade_result(cascade), *found.run_ids)

    def accept_cascade(self, cascade: str, by: str, reason: str = "") -> cascades.CascadeResult:
        """Accept the results of all runs of a cascade, once all of them are validated."""
        from lakehouse_backfill.core.cascade.steps import accept_cascade

        return self._decided_cascade(accept_cascade, cascade, by, reason, keeps_heads=True)

    def reject_cascade(self, cascade: str, by: str, reason: str) -> cascades.CascadeResult:
        """Reject the runs of a cascade; nothing is deleted."""
        from lakehouse_backfill.core.cascade.steps import reject_cascade

        return self._decided_cascade(reject_cascade, cascade, by, reason, keeps_heads=True)

    def cancel_cascade(self, cascade: str, by: str, reason: str = "") -> cascades.CascadeResult:
        """Close the runs of a cascade before publication."""
        from lakehouse_backfill.core.cascade.steps import cancel_cascade

        return self._decided_cascade(cancel_cascade, cascade, by, reason)

    def publish_cascade(
        self, cascade: str, by: str, *, take_over: bool = False, check_files: bool | None = None
    ) -> cascades.CascadeResult:
        """Make all results of a cascade visible: pinned products by one commit."""
        from lakehouse_backfill.core.cascade.plan import load_cascade
        from lakehouse_backfill.core.cascade.steps import publish_cascade

        context = self._context(take_over=take_over, check_files=check_files)
        found = load_cascade(context, cascade)
        runs = found.run_ids
        with (
            self._pages.written_on_error(*runs, only_existing=True),
            self._anchored_on_error(*runs),
        ):
            publish_cascade(context, found, resolve_actor(by))
        linked = self._pages.add_links(self._cascade_result(cascade), *runs)
        self._keep_heads(*runs, products=(plan.product for plan in found.plans))
        self._record_accepted_files(*runs)
        return linked

    def rollback_cascade(
        self, cascade: str, reason: str, by: str | None = None
    ) -> cascades.CascadeResult:
        """Take all published products of a cascade back: pinned ones by one commit."""
        from lakehouse_backfill.core.cascade.plan import load_cascade
        from lakehouse_backfill.core.cascade.steps import products_to_roll_back

        context = self.wiring.context
        for products in products_to_roll_back(context, load_cascade(context, cascade)):
            if len(products) > 1:
                self.rollback_together(products, reason, by)
            else:
                self.rollback(products[0], reason=reason, by=by)
        return self._cascade_result(cascade)

    def _cascade_result(self, cascade: str) -> cascades.CascadeResult:
        from lakehouse_backfill.core.cascade.plan import load_cascade
        from lakehouse_backfill.core.cascade.steps import cascade_members

        context = self.wiring.context
        found = load_cascade(context, cascade)
        pointers = context.versions.pointers(tuple(plan.product for plan in found.plans))
        versions = {name: one.accepted.version for name, one in pointers.items() if one.accepted}
        members = cascade_members(context, found)
        return results.cascades.CascadeResult.of(found, members, versions)

    def _decided_cascade(
        self,
        decide: Callable[[Context, Cascade, str, str], None],
        cascade: str,
        by: str,
        reason: str,
        *,
        keeps_heads: bool = False,
    ) -> cascades.CascadeResult:
        """Decide on the runs of a cascade, and write their pages again."""
        from lakehouse_backfill.core.cascade.plan import load_cascade

        context = self.wiring.context
        found = load_cascade(context, cascade)
        decide(context, found, resolve_actor(by), require_valid_reason(reason))
        linked = self._pages.add_links(self._cascade_result(cascade), *found.run_ids)
        if keeps_heads:
            self._keep_heads(*found.run_ids)
        return linked

    def show(self, run: str) -> plans.ShowResult:
        """Describe the plan of a registered run, as it was planned."""
        context = self.wiring.context
        shown = results.plans.ShowResult.of(context.runs.plan(run), context.runs.status(run), None)
        return replace(shown, next_command=self._next_command(run))

    def try_partition(
        self, manifest_file: str | Path, partition: str | None = None, by: str | None = None
    ) -> runs.TryResult:
        """Compute one partition of a run manifest in a scratch table; judge, compare, remove it.

        Nothing is registered, so what was computed can never be published. Raises what `plan`
        raises, NotFound (no such partition), Unsupported (nothing to try).
        """
        from lakehouse_backfill.core.evidence.trial import try_partition
        from lakehouse_backfill.core.planning.plan import make_plan

        who, context = resolve_actor(by), self.wiring.context
        declared = self._declared(manifest_file)
        with locate_errors(self.folder / declared.manifest_file, self.folder):
            plan = make_plan(context, declared, who, None)
        self._load_engine()
        found = try_partition(context, plan, partition, who)
        return results.runs.TryResult.of(plan.product, plan.manifest_file, found)

    def rehearse(
        self, manifest_file: str | Path, profile: str, by: str | None = None
    ) -> plans.RehearsalResult:
        """Plan, approve, run, accept, publish, verify and roll back, on copies in another lake.

        `profile` names that lake: not of prod, and with a catalog of another name. The tables of
        this one are only read. Raises ConfigError, NotAllowed and Conflict before anything is
        copied, and what the verbs of the path raise.
        """
        from lakehouse_backfill.core.rehearsal import rehearse as stage
        from lakehouse_backfill.wiring.rehearsal import adapters_at, rehearsal_place

        who, wiring = resolve_actor(by), self.wiring
        declared = wiring.load_declaration(Path(manifest_file))
        place = Project(adapters_at(wiring, profile))
        place._load_engine()
        with locate_errors(self.folder / declared.manifest_file, self.folder):
            try:
                found = stage.rehearse(
                    wiring.context, rehearsal_place(wiring, place.wiring), declared, who
                )
            except BackfillError as error:
                error.complete_commands(place.wiring.invocation.complete)
                raise
        again = place.wiring.invocation.complete(command_line("evidence", found.plan.run_id))
        done = results.plans.RehearsalResult.of(found, profile, again)
        return place._pages.add_links(done, found.plan.run_id)

    def approve(self, run: str, by: str, reason: str = "") -> runs.DecisionResult:
        """Approve the intent; the decision is bound to the manifest hash."""
        from lakehouse_backfill.core.approval import decisions

        decided = self._decided(decisions.approve, run, by, reason, is_page_new=False)
        plan = self.wiring.context.runs.plan(decided.run_id)
        remember_rows(self.wiring, decided.run_id, plan.estimate.input_rows)
        return decided

    def stage(self, run: str, by: str, *, take_over: bool = False) -> runs.StageResult:
        """Compute the chunks that are not staged yet into the run's shadow table."""
        from lakehouse_backfill.core.staging.stage import stage

        status, numbers = self._computed(stage, run, by, take_over=take_over)
        with self._one_view():
            done = results.runs.StageResult(
                **results.runs.run_fields(status), **numbers, next_command=self._next_command(run)
            )
            return self._pages.add_existing_link(self._noted(done, run), run)

    def shadow_open(self, run: str, by: str, *, take_over: bool = False) -> runs.ShadowOpenResult:
        """Make the shadow table that another engine is to write; name it and where it lies."""
        from lakehouse_backfill.core.staging.external import shadow_open

        status, table = self._computed(shadow_open, run, by, take_over=take_over)
        plan = self.wiring.context.runs.plan(run)
        return self._pages.add_existing_link(
            results.runs.ShadowOpenResult.of(status, table, plan), run
        )

    def shadow_close(self, run: str, by: str, *, take_over: bool = False) -> runs.StageResult:
        """Fingerprint what another engine wrote into the shadow; the run is staged then."""
        from lakehouse_backfill.core.staging.external import shadow_close

        status, numbers = self._computed(shadow_close, run, by, take_over=take_over)
        done = results.runs.StageResult(
            **results.runs.run_fields(status), **numbers, next_command=self._next_command(run)
        )
        return self._pages.add_existing_link(done, run)

    def validate(self, run: str, by: str, *, take_over: bool = False) -> runs.ValidateResult:
        """Run every gate; `passed` tells whether all blocking ones did."""
        from lakehouse_backfill.core.validation.validate import validate

        self._load_engine(run)
        status, validation, digest = validate(
            self._context(take_over=take_over), run, resolve_actor(by)
        )
        with self._one_view():
            file = self.wiring.context.runs.plan(run).manifest_file
            events = self.wiring.context.runs.events(run)
            found = results.runs.ValidateResult.of(status, validation, digest, file, events)
            return self._pages.add_links(replace(found, next_command=self._next_command(run)), run)

    def rejudge(
        self, product: str, suites: tuple[str, ...] = (), partitions: tuple[str, ...] = ()
    ) -> runs.RejudgeResult:
        """Run suites on what readers of a product get now; nothing in the lake is changed."""
        from lakehouse_backfill.core.validation.suites import validate_accepted

        self._load_engine()
        contract = self.wiring.contract(product)
        found = validate_accepted(self.wiring.context, contract, tuple(suites), tuple(partitions))
        return results.runs.RejudgeResult.of(product, found)

    def run(self, run: str, by: str, *, take_over: bool = False) -> runs.RunProgressResult:
        """Stage and validate from wherever the run stopped, and publish if that is not manual."""
        from lakehouse_backfill.core.publication.publish import run_until_decision

        self._load_engine(run)
        with self._pages.written_on_error(run), self._anchored_on_error(run):
            done = run_until_decision(self._context(take_over=take_over), run, resolve_actor(by))
        end_run(self.wiring, run)
        found = results.runs.RunProgressResult(**done)
        if found.run_id != run:
            self._pages.update_existing(run)
        found = replace(found, next_command=self._next_command(found.run_id))
        linked = self._pages.add_links(self._noted(found, run), found.run_id)
        if found.state == "published":
            self._keep_heads(found.run_id, products=(found.product,))
            self._record_accepted_files(found.run_id)
        return linked

    def preview_run(self, run: str) -> runs.RunPreviewResult:
        """Describe what `run` would do with each chunk, and then; nothing is changed."""
        from lakehouse_backfill.core.staging.pause import preview_run

        found = preview_run(self.wiring.context, run)
        return results.runs.RunPreviewResult.of(*found, self._next_command(run))

    def status(self, run: str | None = None, *, all: bool = False) -> runs.StatusResult:
        """Describe one run, or list the open runs, those that wait for people first."""
        from lakehouse_backfill.core.evidence import status
        from lakehouse_backfill.core.guards.outside.effect_log import messages_lost
        from lakehouse_backfill.core.runs.notes import needs_attention, note_command

        context = self.wiring.context
        if run:
            one = context.runs.status(run)
            gates = status.stopping_gates(context, one)
            events = context.runs.events(run)
            stands = status.summarise_run_safety(
                context, one, was_empty=status.run_has_no_old_rows(context, events, run), look=True
            )
            line = results.runs.RunLine.of(
                one, status.with_log_fault(stands, one, events), gates,
                approvals=status.decision_records(events),
                waivers=status.waiver_records(events),
                messages_lost=messages_lost(context, one),
                notes=status.note_texts(events),
                **status.rollout_records(context, run, events),
            )  # fmt: skip
            line = replace(line, note_command=note_command(one, events))
            return self._noted(results.runs.StatusResult(runs=(line,)), run)
        found = status.list_runs(context, everything=all)
        lines = [
            results.runs.RunLine.of(item, status.summarise_run_safety(context, item))
            for item in found
        ]
        attention = needs_attention(context) or None
        return results.runs.StatusResult(runs=tuple(lines), attention=attention)

    def list_runs(
        self,
        product: str | None = None,
        states: tuple[str, ...] = (),
        environment: str | None = None,
        since: str | None = None,
    ) -> runs.ListResult:
        """List runs, also closed ones: of a product, in some states, moved since a day or instant.

        Raises ConfigError for a state, a day or an instant that there is not.
        """
        from lakehouse_backfill.config.manifests import parse_run_filter
        from lakehouse_backfill.core.evidence.run_filter import find_runs
        from lakehouse_backfill.core.evidence.status import summarise_run_safety

        context = self.wiring.context
        found = find_runs(context, parse_run_filter(product, tuple(states), environment, since))
        line = results.runs.RunLine.of
        return results.runs.ListResult(
            runs=tuple(line(one, summarise_run_safety(context, one)) for one in found)
        )

    def stale(
        self, product: str | None = None, by: str | None = None, *, draft: bool = False
    ) -> origins.StaleResult:
        """Find partitions whose inputs or code changed since a run made them, and missing ones.

        With `draft` a run manifest is written for each product that repairs exactly these. Only
        metadata is read. What is wrong with one of all products is its note, and `error()` names
        it; of a single product it is raised. Raises NotFound (the product), ConfigError.
        """
        from lakehouse_backfill import onboarding
        from lakehouse_backfill.config.contracts import list_contracts
        from lakehouse_backfill.config.project_files import code_versions
        from lakehouse_backfill.core.evidence import staleness

        wiring, versions = self.wiring, partial(code_versions, self.folder)
        if product is None:
            names = list_contracts(self.folder)
            all_products = staleness.find_stale_products(
                wiring.context, names, wiring.contract, versions
            )
            found = tuple(all_products)
        else:
            found = (staleness.find_stale(wiring.context, wiring.contract(product), versions),)
        drafts = {}
        if draft:
            who = resolve_actor(by)
            drafts = onboarding.add_repairs(wiring, found, who)
        return results.origins.StaleResult.of(found, drafts, is_drafted=draft)

    def lineage(
        self,
        target: str,
        partition: str | None = None,
        openlineage: str | Path | None = None,
    ) -> origins.LineageResult:
        """Say what a table's partitions were computed from, and what was computed from them.

        `target` is a product, its table, or an input of one. Only metadata is read. `openlineage`
        is a file: it gets the events of these runs. Raises NotFound when no published run computed
        or read the table, ConfigError when its own contract is wrong.
        """
        from lakehouse_backfill.config.contracts import list_broken_contracts
        from lakehouse_backfill.core.evidence.lineage import find_lineage, runs_of_lineage

        wiring, broken = self.wiring, list_broken_contracts(self.folder)
        contracts = [wiring.contract(target)] if target in broken else wiring.valid_contracts()
        found = find_lineage(wiring.context, contracts, target, partition, broken)
        if openlineage is None:
            return results.origins.LineageResult.of(found)
        from lakehouse_backfill import __version__
        from lakehouse_backfill.report.openlineage import write_events

        runs = runs_of_lineage(wiring.context, found)
        catalog = wiring.context.profile.catalog.get("name", "lake")
        count = write_events(runs, catalog, __version__, Path(openlineage))
        return results.origins.LineageResult.of(found, str(openlineage), count)

    def why(self, table: str, partition: str | None = None) -> origins.WhyResult:
        """Tell the story of a partition, or of a product's newest publication.

        Raises NotFound without a contract, when no run of the product is published, and for a
        partition that has no rows and no run; ConfigError for a text that is no partition.
        """
        from lakehouse_backfill.config.contracts import find_contract_of_table
        from lakehouse_backfill.config.project_files import code_versions
        from lakehouse_backfill.core.evidence import story
        from lakehouse_backfill.core.evidence.staleness import find_stale

        context = self.wiring.context
        contract = find_contract_of_table(self.folder, table)
        if contract is None:
            story.require_no_input(context, self.wiring.valid_contracts(), table)
            contract = self.wiring.contract(table)
        found = story.tell_story(context, contract, partition)
        if partition is None:
            return results.origins.WhyResult.of(found, None)
        product = find_stale(context, contract, partial(code_versions, self.folder))
        status = next((one for one in product.partitions if one.partition == partition), None)
        if status is None and not found.acts and not found.written_since:
            raise story.no_story_error(context, contract.product, partition)
        return results.origins.WhyResult.of(found, status)

    def log(self, run: str) -> runs.LogResult:
        """List the run's events, oldest first."""
        self.wiring.context.runs.status(run)
        return results.runs.LogResult(events=tuple(self.wiring.context.runs.events(run)))

    def chunks(self, run: str) -> runs.ChunksResult:
        """List the run's chunks from the ledger; those that are not staged yet are pending."""
        context = self.wiring.context
        return results.runs.ChunksResult.of(context.runs.plan(run), context.runs.chunks(run))

    def diff(
        self,
        old: str,
        new: str | None = None,
        key: tuple[str, ...] | None = None,
        where: str | None = None,
        engine: str = "auto",
        samples: int = 5,
        by: str | None = None,
        ignore: tuple[str, ...] = (),
        tolerance: tuple[str, ...] = (),
        local_limit_mib: int | None = None,
    ) -> comparison.DiffResult:
        """Compare two table states, or a run's candidate with what it replaces (`new` absent).

        `tolerance` holds texts such as `amount=0.01` or `amount=1%`.
        """
        from lakehouse_backfill.core.comparison import diff
        from lakehouse_backfill.core.comparison.conditions import parse_tolerances

        limits = parse_tolerances(tolerance)
        options = diff.DiffOptions(tuple(key or ()), where, samples, tuple(ignore), limits)
        request = self._diff_request(old, new, by, options)
        limit = local_limit_mib and local_limit_mib * 2**20
        compared = diff.compare_states(self.wiring.context, request, engine, limit)
        return results.comparison.DiffResult.of(compared.diff, compared.choice)

    def preview_diff(
        self,
        old: str,
        new: str | None = None,
        key: tuple[str, ...] | None = None,
        where: str | None = None,
        engine: str = "auto",
        by: str | None = None,
        ignore: tuple[str, ...] = (),
        tolerance: tuple[str, ...] = (),
        local_limit_mib: int | None = None,
    ) -> comparison.DiffPreviewResult:
        """Describe what is proven to be the same, and what `diff` would read; no row is read."""
        from lakehouse_backfill.core.comparison import diff
        from lakehouse_backfill.core.comparison.conditions import parse_tolerances

        limits = parse_tolerances(tolerance)
        options = diff.DiffOptions(tuple(key or ()), where, 0, tuple(ignore), limits)
        request = self._diff_request(old, new, by, options)
        limit = local_limit_mib and local_limit_mib * 2**20
        return results.comparison.DiffPreviewResult.of(
            *diff.preview_diff(self.wiring.context, request, engine, limit)
        )

    def _diff_request(
        self, old: str, new: str | None, by: str | None, options: DiffOptions
    ) -> DiffRequest:
        from lakehouse_backfill.core.comparison import diff
        from lakehouse_backfill.core.publication import dual_read

        context = self.wiring.context
        if new is not None:
            return diff.request_for_states(context, self._sides(old, new), options)
        dual_read.require_candidate_access(context, old, by)
        return diff.request_for_run(context, old, options)

    def attribute(
        self,
        run: str,
        partitions: int = 4,
        engine: str = "auto",
        samples: int = 5,
        by: str | None = None,
    ) -> comparison.DiffResult:
        """Compare as `diff` does, and say why rows differ in up to so many sampled partitions.

        Only those are computed again; the result is kept as evidence and shown on the page.
        """
        from lakehouse_backfill.core.evidence import attribution
        from lakehouse_backfill.core.publication import dual_read

        context = self.wiring.context
        dual_read.require_candidate_access(context, run, by)
        keys = {one.table: one.key for one in self.wiring.valid_contracts() if one.key}
        asked = attribution.AttributionOptions(partitions, engine, samples, keys)
        compared, found = attribution.attribute_changes(context, run, asked, resolve_actor(by))
        done = results.comparison.DiffResult.of(compared.diff, compared.choice)
        return self._pages.add_existing_link(replace(done, attribution=found.data()), run)

    def reconcile(self, old: str, new: str) -> comparison.ReconcileResult:
        """Compare count and checksum of each partition of two table states."""
        from lakehouse_backfill.core.comparison.diff import reconcile

        rows = reconcile(self.wiring.context, self._sides(old, new))
        return results.comparison.ReconcileResult(
            partitions=tuple(rows), equal=all(row.equal for row in rows)
        )

    def dual_read(
        self,
        run: str,
        reader: str,
        sql: str | None = None,
        columns: tuple[str, ...] = (),
        tolerance: float = 0.0,
        accept_difference: str | None = None,
        by: str | None = None,
    ) -> publications.DualReadResult:
        """Compare a reader's query on old and candidate, for the record; no JVM."""
        from lakehouse_backfill.config.project_files import load_reader_query
        from lakehouse_backfill.core.publication.dual_read import dual_read

        query = load_reader_query(self.folder, reader, sql, tuple(columns), tolerance)
        reason = None if accept_difference is None else require_valid_reason(accept_difference)
        done = dual_read(self.wiring.context, run, query, resolve_actor(by), reason)
        return self._pages.add_links(results.publications.DualReadResult.of(done), run)

    def candidate(
        self,
        run: str,
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        by: str | None = None,
    ) -> Any:
        """Return what a run would publish, before anybody else sees it, as `accepted` does.

        Raises NotFound (nothing is staged), NotAllowed (`roles.validators` names others).
        """
        from lakehouse_backfill.core.publication.dual_read import candidate

        return self.wiring.read_snapshot(engine, *candidate(self.wiring.context, run, by))

    def accept(self, run: str, by: str, reason: str = "") -> runs.DecisionResult:
        """Accept the result; the decision is bound to the digest of checks and diff."""
        from lakehouse_backfill.core.approval import decisions

        done = self._decided(decisions.accept, run, by, reason)
        self._keep_heads(run)
        return done

    def reject(self, run: str, by: str, reason: str, *, note: str = "") -> runs.DecisionResult:
        """Refuse the result; nothing is deleted. `note` is what `note` would add."""
        from lakehouse_backfill.core.approval import decisions
        from lakehouse_backfill.core.runs import notes

        notes.require_note(note)
        done = self._decided(decisions.reject, run, by, reason)
        self._keep_heads(run)
        return replace(done, note_command=self._close_with_note(run, by, note))

    def cancel(
        self, run: str, by: str, reason: str = "", *, take_over: bool = False, note: str = ""
    ) -> runs.DecisionResult:
        """Close a run before publication, also one that a living process stages: that stops.

        One that a living process judges, with `take_over`.
        `note` is what `note` would add.
        """
        from lakehouse_backfill.core.approval import decisions
        from lakehouse_backfill.core.runs import notes

        notes.require_note(note)
        done = self._decided(decisions.cancel, run, by, reason, take_over=take_over)
        return replace(done, note_command=self._close_with_note(run, by, note))

    def pause(
        self, run: str, by: str, reason: str = "", *, now: bool = False
    ) -> runs.DecisionResult:
        """Stop the staging of a run, from any process; `now` cuts the chunk in flight off.

        A run that is paused stays so. Raises IllegalMove once it is staged, NotAllowed.
        """
        from lakehouse_backfill.core.staging.pause import pause

        done = self._decided(partial(pause, now=now), run, by, reason)
        return replace(done, next_command=self._next_command(run))

    def unpause(self, run: str, by: str, reason: str = "") -> runs.DecisionResult:
        """Let a paused run go on; `run` computes what is left."""
        from lakehouse_backfill.core.staging.pause import unpause

        done = self._decided(unpause, run, by, reason)
        return replace(done, next_command=self._next_command(run))

    def note(self, run: str, text: str, by: str) -> publications.NoteResult:
        """Add to a run's log what was learned from it; the product's next plan shows it.

        The same text of the same person again changes nothing. Raises NotFound, IllegalMove.
        """
        from lakehouse_backfill.core.runs import notes

        context = self.wiring.context
        status = notes.add_note(context, run, resolve_actor(by), text)
        done = results.publications.NoteResult(
            **results.runs.run_fields(status), notes=notes.run_notes(context.runs.events(run))
        )
        return self._pages.add_existing_link(done, run)

    def _close_with_note(self, run: str, by: str, note: str) -> str | None:
        """Add the note that a person gave as they closed a run; else return its command."""
        from lakehouse_backfill.core.runs.notes import add_note, note_command

        context = self.wiring.context
        if note:
            add_note(context, run, resolve_actor(by), note)
        return note_command(context.runs.status(run), context.runs.events(run))

    def waive(
        self, run: str, gate: str | None = None, by: str | None = None, reason: str = ""
    ) -> runs.WaiveResult:
        """Record that a failed gate does not stop a run; without `gate`: list the failed ones."""
        from lakehouse_backfill.core.approval import decisions as stage

        context = self.wiring.context
        if gate is not None:
            stage.waive(context, run, gate, resolve_actor(by), require_valid_reason(reason))
        status = context.runs.status(run)
        found = results.runs.WaiveResult.of(status, stage.failed_gates(context, run))
        return found if gate is None else self._pages.add_links(found, run)

    def preview_publish(self, run: str, by: str) -> publications.PublishPreviewResult:
        """Describe what `publish` would do, with its checks; nothing is changed."""
        from lakehouse_backfill.core.approval.decisions import trusted_events
        from lakehouse_backfill.core.publication.publication import check_publishable

        context, plan = self.wiring.context, self.wiring.context.runs.plan(run)
        events = trusted_events(context, context.runs.status(run))
        check_publishable(context, plan, events, resolve_actor(by))
        return results.publications.PublishPreviewResult.of(
            plan, context.versions.pointer(plan.product)
        )

    def publish(
        self,
        run: str,
        by: str,
        *,
        take_over: bool = False,
        check_files: bool | None = None,
        note: str = "",
    ) -> publications.PublishResult:
        """Make an accepted run what readers see; the same again changes nothing.

        With `check_files` the staged files are hashed before; None: in `prod` profiles. `note` is
        what `note` would add.
        """
        from lakehouse_backfill.core.publication import post_publish
        from lakehouse_backfill.core.publication.publish import publish_with_catch_up
        from lakehouse_backfill.core.runs import notes

        context = self._context(take_over=take_over, check_files=check_files)
        by, note = resolve_actor(by), notes.require_note(note)
        with self._pages.written_on_error(run, only_existing=True), self._anchored_on_error(run):
            published = publish_with_catch_up(context, run, by)
        done = published.publication.run_id or run
        followed = post_publish.post_publish_outcome(
            context, context.runs.plan(done), published.publication
        )
        warnings: tuple[str, ...] = ()
        if done != run:
            self._pages.update_existing(run)
            warnings = (f"live commits came: {done} caught up with them and replaces {run}",)
        found = results.publications.PublishResult.of(
            context.runs.status(done), published, followed, warnings
        )
        command = self._close_with_note(done, by, note)
        linked = self._pages.add_links(replace(found, note_command=command), done)
        self._keep_heads(done, products=(published.publication.product,))
        self._record_accepted_files(done)
        return linked

    def publish_together(
        self,
        runs: tuple[str, ...],
        by: str,
        *,
        take_over: bool = False,
        check_files: bool | None = None,
    ) -> publications.PublishTogetherResult:
        """Make accepted runs of several pinned products visible by one commit."""
        from lakehouse_backfill.core.publication.publish import publish_together

        context = self._context(take_over=take_over, check_files=check_files)
        with (
            self._pages.written_on_error(*runs, only_existing=True),
            self._anchored_on_error(*runs),
        ):
            done = publish_together(context, tuple(runs), resolve_actor(by))
        found = [
            results.publications.PublishResult.of(context.runs.status(run), one)
            for run, one in done.items()
        ]
        linked = self._pages.add_links(
            results.publications.PublishTogetherResult(published=tuple(found)), *runs
        )
        self._keep_heads(*done, products=(one.publication.product for one in done.values()))
        self._record_accepted_files(*done)
        return linked

    def versions(self, product: str) -> publications.VersionsResult:
        """List the accepted versions of a product, newest first."""
        from lakehouse_backfill.core.evidence import status

        try:
            rows = status.accepted_versions(self.wiring.context, product)
        except NotFound:
            self.wiring.contract(product)  # a name that is no product's is the likelier mistake
            raise
        return results.publications.VersionsResult(
            product=product,
            versions=tuple(
                results.publications.VersionLine.of(row, is_accepted=number == 0)
                for number, row in enumerate(rows)
            ),
        )

    def accepted(
        self,
        product: str,
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        strict: bool = True,
    ) -> Any:
        """Return what consumers of a product read: Spark DataFrame, Arrow table, DuckDB relation.

        Raises NotFound, and TargetChanged when `strict` and the accepted partitions have changed.
        """
        from lakehouse_backfill.core.versions.readers import resolve_accepted

        contract = self.wiring.contract(product)
        found = resolve_accepted(self.wiring.context, contract, strict=strict)
        return self.wiring.read_snapshot(engine, found.table, found.snapshot_id)

    def accepted_together(
        self,
        products: tuple[str, ...],
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        strict: bool = True,
    ) -> dict[str, Any]:
        """Return what consumers of several products read, all as accepted at one moment.

        Pinned products that were published together are seen together: old or new, never a mix.
        """
        from lakehouse_backfill.core.versions.readers import resolve_accepted_together

        contracts = tuple(self.wiring.contract(product) for product in products)
        found = resolve_accepted_together(self.wiring.context, contracts, strict=strict)
        return {
            product: self.wiring.read_snapshot(engine, one.table, one.snapshot_id)
            for product, one in found.items()
        }

    def evidence(self, run: str, export: str | Path | None = None) -> publications.EvidenceResult:
        """Write the evidence page and archive of a run and say where they are."""
        folder = Path(export) if export else None
        if folder is not None and (file := _blocking_file(folder)) is not None:
            raise ConfigError(
                f"{file} is a file, not a folder that page and archive can be written into",
                state="nothing was written",
                fix="name a folder: --export DIR",
            )
        report = self._pages.write(run, folder)
        return results.publications.EvidenceResult(
            report=str(report),
            archive=str(report.with_suffix(".json")),
            index=str(report.with_name("index.html")),
        )

    def evidence_document(self, run: str) -> dict[str, Any]:
        """Return what shows why a run was (or was not) accepted, as one document."""
        from lakehouse_backfill.core.evidence import status

        return status.evidence_document(self.wiring.context, run)

    def preview_rollback(
        self,
        product: str,
        to: int | None = None,
        partitions: tuple[str, ...] = (),
        by: str | None = None,
    ) -> publications.RollbackPreviewResult:
        """Describe what `rollback` by this person would do; nothing is changed.

        Raises what `rollback` raises before it changes anything, such as NotAllowed.
        """
        from lakehouse_backfill.core.cascade.steps import require_whole_rollback
        from lakehouse_backfill.core.publication.rollback import plan_rollback
        from lakehouse_backfill.core.publication.rollback_preview import preview_rollback

        context, contract = self.wiring.context, self.wiring.contract(product)
        target = plan_rollback(context, product, to, tuple(partitions))
        require_whole_rollback(context, {product: target})
        with self._way_back(contract, target):
            found = preview_rollback(context, contract, target, resolve_actor(by))
        return results.publications.RollbackPreviewResult.of(product, found)

    def rollback(
        self,
        product: str,
        to: int | None = None,
        partitions: tuple[str, ...] = (),
        reason: str = "",
        by: str | None = None,
    ) -> publications.RollbackResult:
        """Go back to an accepted version, keeping later live writes elsewhere."""
        from lakehouse_backfill.core.cascade.steps import require_whole_rollback
        from lakehouse_backfill.core.publication import rollback as stage

        context, contract = self.wiring.context, self.wiring.contract(product)
        target = stage.plan_rollback(context, product, to, tuple(partitions))
        require_whole_rollback(context, {product: target})
        undone = {row.run_id for row in target.undone if row.run_id}
        runs = sorted(undone.union(target.runs_rolled_back, target.runs_reinstated))
        way_back = self._way_back(contract, target)
        with way_back, self._pages.written_on_error(*runs):
            done = stage.rollback(
                context, contract, target, require_valid_reason(reason), resolve_actor(by)
            )
        columns = stage.remaining_column_changes(context, target)
        result = results.publications.RollbackResult.of(done, columns)
        linked = self._pages.add_links(result, *runs)
        self._keep_heads(*runs, products=(product,))
        return linked

    def _way_back(self, contract: Contract, target: RollbackTarget) -> AbstractContextManager[None]:
        """Let a rollback that an edited plan stops name a way that needs no plan."""
        from lakehouse_backfill.report.break_glass import name_way_back

        if contract.publication == "pinned":  # Its table is not changed by a rollback.
            return nullcontext()
        return name_way_back(self.folder / STATE_FOLDER, target)

    def rollback_together(
        self,
        products: tuple[str, ...],
        reason: str,
        by: str | None = None,
        *,
        dry_run: bool = False,
    ) -> publications.RollbackTogetherResult:
        """Move several pinned products back to their previous version by one commit."""
        from lakehouse_backfill.core.cascade.steps import require_whole_rollback
        from lakehouse_backfill.core.guards.outside.effect_log import messages_not_sent_again
        from lakehouse_backfill.core.publication import rollback
        from lakehouse_backfill.core.publication.rollback_preview import preview_rollback

        context = self.wiring.context
        contracts = [self.wiring.contract(product) for product in dict.fromkeys(products)]
        targets = tuple(
            (found, rollback.plan_rollback(context, found.product, None, ())) for found in contracts
        )
        require_whole_rollback(context, {found.product: one for found, one in targets})
        if dry_run:
            who = resolve_actor(by)
            would = tuple(
                results.publications.RollbackPreviewResult.of(
                    found.product, preview_rollback(context, found, target, who)
                )
                for found, target in targets
            )
            return results.publications.RollbackTogetherResult(rolled_back=would)
        runs = {run for _, one in targets for run in (*one.runs_rolled_back, *one.runs_reinstated)}
        with self._pages.written_on_error(*sorted(runs)):
            rows = rollback.rollback_together(
                context, targets, require_valid_reason(reason), resolve_actor(by)
            )
        lost = {
            found.product: messages_not_sent_again(context, one.runs_reinstated)
            for found, one in targets
        }
        done = tuple(
            results.publications.RollbackResult.of_pointer(row, lost.get(row.product, ()))
            for row in rows
        )
        linked = self._pages.add_links(
            results.publications.RollbackTogetherResult(rolled_back=done), *sorted(runs)
        )
        self._keep_heads(*sorted(runs), products=(row.product for row in rows))
        return linked

    def recover(
        self,
        run: str | None,
        by: str,
        *,
        dry_run: bool = False,
        take_over: bool = False,
    ) -> publications.RecoverResult:
        """Finish or undo what stopped half way: one run and its product, or everything (None)."""
        from lakehouse_backfill.core.publication.recover import recover

        context, by = self._context(take_over=take_over), resolve_actor(by)
        seen = {} if dry_run else self._pages.run_marks()
        try:
            found = recover(context, run, by, dry_run=dry_run)
        except Exception:
            self._pages.write_all(*self._pages.changed_since(seen))
            raise
        done = results.publications.RecoverResult(actions=tuple(found), dry_run=dry_run)
        return done if dry_run else self._pages.add_links(done, *self._pages.changed_since(seen))

    def give_up_topic(self, run: str, by: str, reason: str) -> publications.RecoverResult:
        """Record that the correction events that a topic of the run's product lacks are never sent.

        Raises NotFound when it lacks none, NotAllowed.
        """
        from lakehouse_backfill.core.publication.recover import RecoveryOutcome
        from lakehouse_backfill.core.versions.correction_topic import give_up

        by, reason = resolve_actor(by), require_valid_reason(reason)
        found = give_up(self.wiring.context, run, by, reason)
        actions = (
            RecoveryOutcome(run, "give up", one, "never sent", is_done=True) for one in found
        )
        return results.publications.RecoverResult(actions=tuple(actions), dry_run=False)

    def maintain(
        self, by: str, product: str | None = None, erasure: str = "",
        *,
        dry_run: bool = False,
    ) -> publications.MaintainResult:  # fmt: skip
        """Remove what nothing needs; with a reason in `erasure`, all old versions too."""
        from lakehouse_backfill.core.retention.maintain import maintain

        contracts = {one.product: one for one in self.wiring.valid_contracts()}
        done = maintain(
            self.wiring.context,
            contracts,
            resolve_actor(by),
            product=product,
            erasure=require_valid_reason(erasure),
            dry_run=dry_run,
        )
        return results.publications.MaintainResult.of(done, dry_run=dry_run)

    def verify(
        self,
        run: str,
        *,
        deep: bool = False,
        evidence: str | Path | None = None,
    ) -> proof.VerifyResult:
        """Compare what is stored with what was accepted; with `deep` data files are read too.

        `evidence` is a folder that page and archive were exported to; the project's own if absent.
        """
        from lakehouse_backfill.core.evidence.verify import verify
        from lakehouse_backfill.domain.table import StoredCheck
        from lakehouse_backfill.report import page

        found = verify(self.wiring.context, run, deep=deep)
        folder = Path(evidence) if evidence else self.wiring.evidence_folder
        try:
            files = page.check_evidence_files(folder, self.evidence_document(run))
        except Tampered as error:
            because = f"the lake gives no document to compare with: {error.problem}"
            files = (StoredCheck(name="evidence files", ok=None, because=because),)
        return results.proof.VerifyResult.of(found, files, deep=deep)

    def reproduce(self, run: str, by: str | None = None) -> proof.ReproduceResult:
        """Execute a run's archived code on its pinned inputs again; compare checksums."""
        from lakehouse_backfill.core.evidence.reproduce import reproduce

        self._load_engine(run)
        return results.proof.ReproduceResult.of(
            reproduce(self.wiring.context, run, resolve_actor(by))
        )

    def audit_verify(
        self, against: str | Path | None = None, *, anchor: bool = False
    ) -> proof.AuditVerifyResult:
        """Check that the logs of all runs are as they were written; else `first_bad` says where.

        Signatures are verified too. With `anchor`, the heads that the profile's anchor holds are
        looked for.

        `against` is a file with the JSON of an earlier result, kept where nobody who writes to the
        lake can: a log that was rewritten as a whole is found with it, and not without.
        """
        from lakehouse_backfill.config.project_files import read_kept_heads
        from lakehouse_backfill.core.evidence.verify import audit_all

        kept = read_kept_heads(Path(against)) if against else None
        found = audit_all(self.wiring.context, kept, with_anchor=anchor)
        return results.proof.AuditVerifyResult.of(found)

    def audit_guarantees(
        self, product: str | None = None, by: str | None = None
    ) -> proof.AuditGuaranteesResult:
        """Test determinism, idempotence, pins and fences on a sampled chunk of published runs."""
        from lakehouse_backfill.core.evidence.reproduce import audit_guarantees

        self.wiring.require_java()
        return results.proof.AuditGuaranteesResult.of(
            audit_guarantees(self.wiring.context, product, resolve_actor(by))
        )

    def _record_accepted_files(self, *runs: str) -> None:
        """Name published runs in the ledger of the files whose rows they read."""
        from lakehouse_backfill.wiring.sources import record_accepted_files

        record_accepted_files(self.wiring, runs)

    def _keep_heads(self, *runs: str, products: Iterable[str] = ()) -> None:
        """Keep the heads of logs outside the lake, where the profile names an anchor."""
        from lakehouse_backfill.core.runs import anchors

        anchors.keep_heads(self.wiring.context, runs, products)

    @contextmanager
    def _anchored_on_error(self, *runs: str) -> Iterator[None]:
        """Keep heads when checks failed, which may be after a publication."""
        try:
            yield
        except ChecksFailed as error:
            for run in runs:
                try:
                    product = self.wiring.context.runs.status(run).product
                    self._keep_heads(run, products=(product,))
                except EnvironmentDown as down:
                    error.fix = f"{error.fix}; and {down.fix}"
            raise

    def _decided(
        self,
        decide: Decision,
        run: str,
        by: str,
        reason: str,
        *,
        is_page_new: bool = True,
        take_over: bool = False,
    ) -> runs.DecisionResult:
        """Decide on a run; write its page, or only write it again where it may not exist yet."""
        context = self._context(take_over=take_over)
        decided = decide(context, run, resolve_actor(by), require_valid_reason(reason)).run_id
        with self._one_view():
            return self._decision(context, decided, is_page_new=is_page_new)

    def _decision(self, context: Context, run: str, *, is_page_new: bool) -> runs.DecisionResult:
        from lakehouse_backfill.core.approval import decisions
        from lakehouse_backfill.core.evidence.status import approval_records, waiver_records

        status = context.runs.status(run)
        try:
            plan = context.runs.plan(run)
        except Tampered as fault:  # only `cancel` decides on such a run
            return results.runs.DecisionResult(
                **results.runs.run_fields(status), approvals=(), waivers=(), manifest_file="",
                warnings=(fault.problem,),
            )  # fmt: skip
        events = context.runs.events(run)
        found = decisions.logged_validation_document(context, events, run)
        done = results.runs.DecisionResult(
            **results.runs.run_fields(status),
            approvals=tuple(approval_records(events, plan, found[0] if found else None)),
            waivers=tuple(waiver_records(events)),
            manifest_file=plan.manifest_file,
        )
        link = self._pages.add_links if is_page_new else self._pages.add_existing_link
        return link(replace(done, next_command=self._next_command(run)), run)

    def _computed(
        self, compute: Callable[[Context, str, str], Found], run: str, by: str, *, take_over: bool
    ) -> Found:
        """Call a verb that computes; when it fails, an existing page of the run says so."""
        self._load_engine(run)
        with self._pages.written_on_error(run, only_existing=True):
            return compute(self._context(take_over=take_over), run, resolve_actor(by))

    def _load_engine(self, run: str | None = None) -> None:
        if run is not None:
            from lakehouse_backfill.wiring.engine import expect_run

            expect_run(self.wiring, run)
        self.wiring.require_java()
        self.wiring.preload_suites()

    def _sides(self, old: str, new: str) -> TableSides:
        from lakehouse_backfill.config.contracts import find_contract_of_table
        from lakehouse_backfill.core.comparison.diff import TableSides

        try:
            left, right = TableRef.parse(old), TableRef.parse(new)
        except ValueError as error:
            raise NotFound(str(error), fix="write namespace.table@snapshot-or-tag") from error
        contract = find_contract_of_table(self.wiring.folder, right.table, left.table)
        return TableSides(left, right, contract)

    def _next_command(self, run: str, *, look: bool = False) -> str:
        """Return what to type next for a run, by where it stands now; `look`: also in the lake."""
        from lakehouse_backfill.core.evidence.status import summarise_run_safety

        context = self.wiring.context
        return summarise_run_safety(context, context.runs.status(run), look=look).next_command

    def _noted(self, done: AnyResult, run: str) -> AnyResult:
        """Add what the files of the run's code are by now, where that is not what runs."""
        from lakehouse_backfill.core.planning.job_code import changed_code_notes

        found = changed_code_notes(self.wiring.context, run)
        return replace(done, warnings=(*done.warnings, *found)) if found else done

    def _context(self, *, take_over: bool, check_files: bool | None = None) -> Context:
        context = replace(self.wiring.context, take_over=take_over)
        return context if check_files is None else replace(context, check_files=check_files)


def _with_warnings(done: Any, problems: Iterable[str]) -> Any:
    """Return a result that also says what went wrong beside its command."""
    added = tuple(problems)
    return replace(done, warnings=(*done.warnings, *added)) if added else done


def _repeated_plan(plan: Plan, window: str | None, subset: tuple[str, ...] | None) -> str:
    """Return the command that makes a plan again as it was looked at."""
    options = [f"--window={window}"] if window else []
    options += [f"--subset={label}" for label in subset or ()]
    return plan_command(plan.manifest_file, plan.revises or "", *options)


def _blocking_file(folder: Path) -> Path | None:
    """Return what stands in the way of the folder: itself, or one above it, that is none."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    return None if there is None or there.is_dir() else there


def accepted(
    product: str,
    engine: Literal["spark", "arrow", "duckdb"] = "arrow",
    *,
    folder: Path | str = ".",
    profile: str | None = None,
    strict: bool = True,
) -> Any:
    """Return what consumers of a product read; see `Project.accepted`."""
    return Project.open(folder, profile).accepted(product, engine, strict=strict)
