"""Commands during a run: stage, validate, run, status, log, metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import resolve_actor
from lakehouse_backfill.project.base import ProjectBase
from lakehouse_backfill.wiring.engine import end_run

if TYPE_CHECKING:
    from lakehouse_backfill.results import runs


class RunCommands(ProjectBase):
    """What computes and judges a run, and what tells how far it is."""

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
        with (
            self._pages.written_on_error(run),
            self._anchored_on_error(run),
            self._parsing_once(),
        ):
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
        from lakehouse_backfill.core.publication.catch_up import newest_revision
        from lakehouse_backfill.core.staging.pause import preview_run

        found = preview_run(self.wiring.context, newest_revision(self.wiring.context, run))
        return results.runs.RunPreviewResult.of(*found, self._next_command(found[0].run_id))

    def status(self, run: str | None = None, *, all: bool = False) -> runs.StatusResult:
        """Describe one run, or list the open runs, those that wait for people first."""
        from lakehouse_backfill.core.evidence import status
        from lakehouse_backfill.core.runs.notes import needs_attention, note_command

        context = self.wiring.context
        if run:
            from lakehouse_backfill.core.evidence import document
            from lakehouse_backfill.core.guards.outside.effect_log import messages_lost

            one = context.runs.status(run)
            gates = document.stopping_gates(context, one)
            events = context.runs.events(run)
            stands = status.summarise_run_safety(
                context,
                one,
                was_empty=document.run_has_no_old_rows(context, events, run),
                look=True,
            )
            line = results.runs.RunLine.of(
                one, status.with_log_fault(stands, one, events), gates,
                approvals=document.decision_records(events),
                waivers=document.waiver_records(events),
                messages_lost=messages_lost(context, one),
                notes=document.note_texts(events),
                **document.rollout_records(context, run, events),
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

    def watch(self, run: str, every_seconds: float = 2.0) -> runs.StatusResult:
        """Show the progress of a run that another process works on, until it ends or waits.

        Nothing is changed. Returns its status then. Raises NotFound.
        """
        from lakehouse_backfill.core.monitoring.alerts import watch

        watch(self.wiring.context, run, every_seconds)
        return self.status(run)

    def log(self, run: str) -> runs.LogResult:
        """List the run's events, oldest first."""
        self.wiring.context.runs.status(run)
        return results.runs.LogResult(events=tuple(self.wiring.context.runs.events(run)))

    def chunks(self, run: str) -> runs.ChunksResult:
        """List the run's chunks from the ledger; those that are not staged yet are pending."""
        context = self.wiring.context
        return results.runs.ChunksResult.of(context.runs.plan(run), context.runs.chunks(run))

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
