"""The folder of a project, what all its commands share, and how a method becomes a command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial, wraps
from inspect import isfunction, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import (
    release_memory,
    require_valid_reason,
    resolve_actor,
)
from lakehouse_backfill.errors import BackfillError, ChecksFailed, EnvironmentDown, Tampered
from lakehouse_backfill.fault_points import forget_commits
from lakehouse_backfill.results.base import complete_commands
from lakehouse_backfill.wiring.adapters import Adapters

if TYPE_CHECKING:
    from lakehouse_backfill.core.planning.plan import DeclaredRun
    from lakehouse_backfill.core.runs.context import Context
    from lakehouse_backfill.domain.run import RunStatus
    from lakehouse_backfill.report.page import EvidencePages
    from lakehouse_backfill.results import runs
    from lakehouse_backfill.results.base import Result

    AnyResult = TypeVar("AnyResult", bound=Result)
    Decision = Callable[[Context, str, str, str], RunStatus]

Found = TypeVar("Found")

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


def begins_commands(project: type[_Class]) -> type[_Class]:
    """Make each public method of all parts a command, unless it is called inside another one.

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

    for name, method in _commands(project).items():
        setattr(project, name, as_command(method))
    return project


def _commands(project: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class and of its parts, in the order of the parts."""
    found: dict[str, Callable[..., Any]] = {}
    for part in project.__mro__:
        for name, member in vars(part).items():
            if isfunction(member) and not name.startswith("_"):
                found.setdefault(name, member)
    return found


class ProjectBase:
    """What every command works with: profile, ports, pages of evidence."""

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

    def _one_view(self) -> AbstractContextManager[None]:
        """Load each table once until the block ends; commits to control tables stay fresh."""
        from lakehouse_backfill.adapters.iceberg.metadata import one_view

        return one_view(self.wiring.catalog)

    def _parsing_once(self) -> AbstractContextManager[None]:
        """Parse each metadata file of a table once until the block ends; each load is fresh."""
        from lakehouse_backfill.adapters.iceberg.parsed_metadata import parsing_once

        return parsing_once(self.wiring.catalog)

    def _declared(self, manifest_file: str | Path) -> DeclaredRun:
        """Read a manifest; what is computed for it is computed where it says."""
        from lakehouse_backfill.wiring.places import expect_place

        declared = self.wiring.load_declaration(Path(manifest_file))
        expect_place(self.wiring, declared.manifest.compute)
        return declared

    def _context(self, *, take_over: bool, check_files: bool | None = None) -> Context:
        context = replace(self.wiring.context, take_over=take_over)
        return context if check_files is None else replace(context, check_files=check_files)

    def _load_engine(self, run: str | None = None) -> None:
        if run is not None:
            from lakehouse_backfill.wiring.engine import expect_run

            expect_run(self.wiring, run)
        self.wiring.require_java()
        self.wiring.preload_suites()

    def _computed(
        self, compute: Callable[[Context, str, str], Found], run: str, by: str, *, take_over: bool
    ) -> Found:
        """Call a verb that computes; when it fails, an existing page of the run says so."""
        self._load_engine(run)
        with self._pages.written_on_error(run, only_existing=True), self._parsing_once():
            return compute(self._context(take_over=take_over), run, resolve_actor(by))

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
        from lakehouse_backfill.core.evidence.document import approval_records, waiver_records

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

    def _close_with_note(self, run: str, by: str, note: str) -> str | None:
        """Add the note that a person gave as they closed a run; else return its command."""
        from lakehouse_backfill.core.runs.notes import add_note, note_command

        context = self.wiring.context
        if note:
            add_note(context, run, resolve_actor(by), note)
        return note_command(context.runs.status(run), context.runs.events(run))

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

    def _record_accepted_files(self, *runs: str) -> None:
        """Name published runs in the ledger of the files whose rows they read."""
        from lakehouse_backfill.wiring.sources import record_accepted_files

        record_accepted_files(self.wiring, runs)


def _with_warnings(done: Any, problems: Iterable[str]) -> Any:
    """Return a result that also says what went wrong beside its command."""
    added = tuple(problems)
    return replace(done, warnings=(*done.warnings, *added)) if added else done
