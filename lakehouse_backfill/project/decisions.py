"""What people decide about a run: approve, accept, reject, cancel, pause, waive, note."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.project.base import ProjectBase
from lakehouse_backfill.wiring.engine import remember_rows

if TYPE_CHECKING:
    from lakehouse_backfill.results import publications, runs


class DecisionCommands(ProjectBase):
    """Decisions of people; each is bound to what it was made on."""

    def approve(self, run: str, by: str, reason: str = "") -> runs.DecisionResult:
        """Approve the intent; the decision is bound to the manifest hash."""
        from lakehouse_backfill.core.approval import decisions

        decided = self._decided(decisions.approve, run, by, reason, is_page_new=False)
        plan = self.wiring.context.runs.plan(decided.run_id)
        remember_rows(self.wiring, decided.run_id, plan.estimate.input_rows)
        return decided

    def accept(self, run: str, by: str, reason: str = "") -> runs.DecisionResult:
        """Accept the result; the decision is bound to the digest of checks and diff."""
        from lakehouse_backfill.core.approval import decisions

        done = self._decided(decisions.accept, run, by, reason)
        self._keep_heads(run)
        return replace(done, proof_limit=self.wiring.context.proof_limit() or None)

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
