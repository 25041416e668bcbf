"""Commands before a run: set up, declare, plan, try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.config.faults import locate_errors
from lakehouse_backfill.errors import BackfillError, ConfigError
from lakehouse_backfill.project.base import ProjectBase

if TYPE_CHECKING:
    from lakehouse_backfill.domain.plan import Plan
    from lakehouse_backfill.results import plans, proof, runs


class PlanCommands(ProjectBase):
    """`doctor`, `session`, `product add`, `new`, `plan`, `show`, `try`, `rehearse`."""

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
        from lakehouse_backfill.core.planning.scope import corruption_window as windows
        from lakehouse_backfill.core.planning.scope import dry_run as dry_runs

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
        place = type(self)(adapters_at(wiring, profile))
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


def _repeated_plan(plan: Plan, window: str | None, subset: tuple[str, ...] | None) -> str:
    """Return the command that makes a plan again as it was looked at."""
    options = [f"--window={window}"] if window else []
    options += [f"--subset={label}" for label in subset or ()]
    return plan_command(plan.manifest_file, plan.revises or "", *options)
