"""Commands on cascades: a run and everything downstream of its product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.project.repair import RepairCommands

if TYPE_CHECKING:
    from lakehouse_backfill.core.cascade.plan import Cascade
    from lakehouse_backfill.core.runs.context import Context
    from lakehouse_backfill.results import cascades


class CascadeCommands(RepairCommands):
    """The verbs of a run, for all runs of a cascade at once."""

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
        self,
        cascade: str,
        by: str,
        *,
        together: bool = False,
        take_over: bool = False,
        check_files: bool | None = None,
    ) -> cascades.CascadeResult:
        """Make all results of a cascade visible: pinned products by one commit.

        With `together`, followed ones as well, by another.
        """
        from lakehouse_backfill.core.cascade.plan import load_cascade
        from lakehouse_backfill.core.cascade.steps import publish_cascade

        context = self._context(take_over=take_over, check_files=check_files)
        found = load_cascade(context, cascade)
        runs = found.run_ids
        with (
            self._pages.written_on_error(*runs, only_existing=True),
            self._anchored_on_error(*runs),
        ):
            publish_cascade(context, found, resolve_actor(by), together=together)
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
        acts = products_to_roll_back(context, load_cascade(context, cascade))
        with context.progress.within(f"rollback {cascade}", sum(map(len, acts)), "products"):
            for products in acts:
                if len(products) > 1:
                    self.rollback_together(products, reason, by)
                else:
                    self.rollback(products[0], reason=reason, by=by)
                context.progress.advance(len(products))
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
