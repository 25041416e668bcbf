"""Commands that repair and clean up: rollback, recover, maintain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.errors import Tampered
from lakehouse_backfill.project.base import ProjectBase
from lakehouse_backfill.wiring.adapters import STATE_FOLDER

if TYPE_CHECKING:
    from lakehouse_backfill.core.versions.pointer import RollbackTarget
    from lakehouse_backfill.domain.contract import Contract
    from lakehouse_backfill.results import publications


class RepairCommands(ProjectBase):
    """What goes back, what finishes or undoes what stopped, what cleans up."""

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
        from lakehouse_backfill.core.cascade.visibility import require_whole_rollback
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
        from lakehouse_backfill.core.cascade.visibility import require_whole_rollback
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

    @contextmanager
    def _way_back(self, contract: Contract, target: RollbackTarget) -> Iterator[None]:
        """Let a rollback that an edited plan stops name a way that needs no plan."""
        try:
            yield
        except Tampered as error:
            if contract.publication != "pinned":  # else its table is not changed by a rollback
                from lakehouse_backfill.report.break_glass import name_way_back

                name_way_back(error, self.folder / STATE_FOLDER, target)
            raise

    def rollback_together(
        self,
        products: tuple[str, ...],
        reason: str,
        by: str | None = None,
        *,
        dry_run: bool = False,
    ) -> publications.RollbackTogetherResult:
        """Take several products, all pinned or all followed, back a version by one commit."""
        from lakehouse_backfill.core.cascade.visibility import require_whole_rollback
        from lakehouse_backfill.core.guards.outside.effect_log import messages_not_sent_again
        from lakehouse_backfill.core.publication import rollback
        from lakehouse_backfill.core.publication.groups import rollbacks
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
            rows = rollbacks.rollback_together(
                context, targets, require_valid_reason(reason), resolve_actor(by)
            )
        lost = {
            found.product: messages_not_sent_again(context, one.runs_reinstated)
            for found, one in targets
        }
        of_pointer = results.publications.RollbackResult.of_pointer
        done = tuple(of_pointer(row, lost.get(row.product, ())) for row in rows)
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
