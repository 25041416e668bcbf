"""Commands that compare: diff, attribute, reconcile, dual-read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill import results
from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import NotFound
from lakehouse_backfill.project.base import ProjectBase

if TYPE_CHECKING:
    from lakehouse_backfill.core.comparison.diff import DiffOptions, TableSides
    from lakehouse_backfill.ports.comparison import DiffRequest
    from lakehouse_backfill.results import comparison, publications


class DiffCommands(ProjectBase):
    """Two states of a table, or a candidate and what it replaces."""

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
        context = self.wiring.context
        compared = diff.compare_states(context, request, engine, limit)
        done = results.comparison.DiffResult.of(compared.diff, compared.choice)
        return replace(done, proof_limit=context.proof_limit() or None)

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
        context = self.wiring.context
        done = results.comparison.DiffPreviewResult.of(
            *diff.preview_diff(context, request, engine, limit)
        )
        return replace(done, proof_limit=context.proof_limit() or None)

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

    def _sides(self, old: str, new: str) -> TableSides:
        from lakehouse_backfill.config.contracts import find_contract_of_table
        from lakehouse_backfill.core.comparison.diff import TableSides

        try:
            left, right = TableRef.parse(old), TableRef.parse(new)
        except ValueError as error:
            raise NotFound(str(error), fix="write namespace.table@snapshot-or-tag") from error
        contract = find_contract_of_table(self.wiring.folder, right.table, left.table)
        return TableSides(left, right, contract)

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
