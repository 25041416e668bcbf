"""The publishing half of the Python API: what readers see, and going back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.looking import Looking, Result
from lakehouse_backfill.report import results

if TYPE_CHECKING:
    from lakehouse_backfill.core.runs.context import Context


class Publishing(Looking):
    """The verbs of a project that change what readers see."""

    def publish(
        self,
        run: str,
        by: str,
        dry_run: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
        take_over: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
    ) -> Result:
        """Make an accepted run what readers see; the same again changes nothing."""
        from lakehouse_backfill.core.approval.decisions import trusted_events
        from lakehouse_backfill.core.publication import catch_up, post_publish
        from lakehouse_backfill.core.publication.publication import check_publishable

        bench, by = self._bench(take_over), resolve_actor(by)
        if dry_run:
            plan = bench.runs.plan(run)
            check_publishable(bench, plan, trusted_events(bench, bench.runs.status(run)), by)
            return results.publish_preview(plan, bench.versions.pointer(plan.product))
        with self._paged_on_error(run, only_again=True):
            published = catch_up.publish_with_catch_up(bench, run, by)
        done = published.publication.run_id or run
        found = results.publish_result(bench.runs.status(done), published)
        followed = post_publish.post_publish_outcome(
            bench, bench.runs.plan(done), published.publication
        )
        found |= results.followed(followed)
        if done != run:
            self._repaged({}, run)
            said = f"live commits came: {done} caught up with them, and took the place of {run}"
            found["warnings"] = [*found.get("warnings", ()), said]
        return self._paged(found, done)

    def publish_together(
        self,
        runs: tuple[str, ...],
        by: str,
        take_over: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
    ) -> Result:
        """Make accepted runs of several pinned products visible by one commit."""
        from lakehouse_backfill.core.publication.publish import publish_together

        bench = self._bench(take_over)
        with self._paged_on_error(*runs, only_again=True):
            done = publish_together(bench, tuple(runs), resolve_actor(by))
        found = [
            results.publish_result(bench.runs.status(run), published)
            for run, published in done.items()
        ]
        return self._paged({"published": found}, *runs)

    def rollback_together(
        self,
        products: tuple[str, ...],
        reason: str,
        by: str | None = None,
        dry_run: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
    ) -> Result:
        """Let several pinned products go back to the version before, by one commit."""
        from lakehouse_backfill.core.publication import rollback

        bench = self.wiring.bench
        contracts = [self.wiring.contract(product) for product in dict.fromkeys(products)]
        ways = tuple(
            (found, rollback.plan_rollback(bench, found.product, None, ())) for found in contracts
        )
        if dry_run:
            return {"rolled_back": [results.rollback_preview(c.product, w) for c, w in ways]}
        runs = {run for _, way in ways for run in (*way.leaving, *way.returning)}
        with self._paged_on_error(*sorted(runs)):
            rows = rollback.rollback_together(
                bench, ways, require_valid_reason(reason), resolve_actor(by)
            )
        return self._paged({"rolled_back": [results.returned(row) for row in rows]}, *sorted(runs))

    def dual_read(
        self,
        run: str,
        reader: str,
        sql: str | None = None,
        columns: tuple[str, ...] = (),
        tolerance: float = 0.0,
        accept_difference: str | None = None,
        by: str | None = None,
    ) -> Result:
        """Compare a reader's query on old and candidate, for the record; no JVM."""
        from lakehouse_backfill.config.project_files import load_reader_query
        from lakehouse_backfill.core.publication.dual_read import dual_read
        from lakehouse_backfill.report.summary import dual_read_result

        query = load_reader_query(self.folder, reader, sql, tuple(columns), tolerance)
        reason = None if accept_difference is None else require_valid_reason(accept_difference)
        done = dual_read(self.wiring.bench, run, query, resolve_actor(by), reason)
        return self._paged(dual_read_result(done), run)

    def rollback(
        self,
        product: str,
        to: int | None = None,
        partitions: tuple[str, ...] = (),
        reason: str = "",
        by: str | None = None,
        dry_run: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
    ) -> Result:
        """Go back to an accepted version, keeping later live writes elsewhere."""
        from lakehouse_backfill.core.publication import rollback as stage
        from lakehouse_backfill.core.publication.rollback_content import plan_rewrites

        bench, contract = self.wiring.bench, self.wiring.contract(product)
        way = stage.plan_rollback(bench, product, to, tuple(partitions))
        if dry_run:
            rewritten = plan_rewrites(bench, contract, way)
            return results.rollback_preview(
                product, rewritten, stage.remaining_column_changes(bench, way)
            )
        undone = {row.run_id for row in way.undone if row.run_id}
        runs = sorted(undone.union(way.leaving, way.returning))
        with self._paged_on_error(*runs):
            done = stage.rollback(
                bench, contract, way, require_valid_reason(reason), resolve_actor(by)
            )
        return self._paged(results.rollback_result(done), *runs)

    def _bench(self, take_over: bool) -> Context:  # noqa: FBT001
        return replace(self.wiring.bench, take_over=take_over)
