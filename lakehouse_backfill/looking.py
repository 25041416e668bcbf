"""The reading half of the Python API: verbs that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill import errors
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.errors import BackfillError, ConfigError, NotFound
from lakehouse_backfill.report import results
from lakehouse_backfill.wiring.adapters import Adapters

if TYPE_CHECKING:
    from lakehouse_backfill.core.comparison.diff import TableSides

Result = dict[str, Any]


class Looking:
    """What a project tells about its lake."""

    def __init__(self, wiring: Adapters) -> None:
        """Use `Project.open`."""
        self.wiring = wiring
        self.folder = wiring.folder

    def status(self, run: str | None = None, all: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Say where one run stands, or list the open runs, those that wait for people first."""
        from lakehouse_backfill.core.evidence import status

        bench = self.wiring.bench
        if run:
            one = bench.runs.status(run)
            gates = status.stopping_gates(bench, one)
            events = bench.runs.events(run)
            stands = status.summarise_run_safety(
                bench, one, was_empty=status.run_has_no_old_rows(bench, events, run)
            )
            line = results.run_line(one, stands, gates, status.waiver_records(events))
            told: Result = {"runs": [line | status.rollout_records(bench, run, events)]}
            return self._noted(told, run)
        found = status.list_runs(bench, everything=all)
        return {
            "runs": [
                results.run_line(item, status.summarise_run_safety(bench, item)) for item in found
            ]
        }

    def log(self, run: str) -> Result:
        """The run's events, oldest first."""
        self.wiring.bench.runs.status(run)
        return {"events": [results.plain(event) for event in self.wiring.bench.runs.events(run)]}

    def audit_verify(self) -> Result:
        """Check that the logs of all runs are as they were written; else `first_bad` says where."""
        from lakehouse_backfill.core.evidence.verify import audit_verify

        return results.audit_result(audit_verify(self.wiring.bench))

    def chunks(self, run: str) -> Result:
        """The run's chunk ledger; chunks that are not staged yet are pending."""
        bench = self.wiring.bench
        return results.chunk_lines(bench.runs.plan(run), bench.ledger.chunks(run))

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
        preview: bool = False,  # noqa: FBT001, FBT002
    ) -> Result:
        """Compare two table states, or a run's candidate with what it replaces (`new` absent).

        `tolerance` holds texts such as `amount=0.01` or `amount=1%`. With `preview` no row is read:
        it says what is proven to be the same, and what would be read.
        """
        from lakehouse_backfill.core.comparison import conditions, diff
        from lakehouse_backfill.core.publication import dual_read

        bench = self.wiring.bench
        limits = conditions.parse_tolerances(tolerance)
        asked = diff.DiffOptions(tuple(key or ()), where, samples, tuple(ignore), limits)
        if new is None:
            dual_read.require_candidate_access(bench, old, by)
            request = diff.request_for_run(bench, old, asked)
        else:
            request = diff.request_for_states(bench, self._sides(old, new), asked)
        limit = None if local_limit_mib is None else local_limit_mib * diff.MEBIBYTE
        if preview:
            return results.preview_result(*diff.preview_diff(bench, request, engine, limit))
        return results.compared_result(diff.compare_states(bench, request, engine, limit))

    def reconcile(self, old: str, new: str) -> Result:
        """Count and checksum of each partition of two table states."""
        from lakehouse_backfill.core.comparison.diff import reconcile

        rows = reconcile(self.wiring.bench, self._sides(old, new))
        return {
            "partitions": [results.plain(row) for row in rows],
            "equal": all(row.equal for row in rows),
        }

    def versions(self, product: str) -> Result:
        """The accepted versions of a product, newest first."""
        from lakehouse_backfill.core.evidence import status

        try:
            rows = status.accepted_versions(self.wiring.bench, product)
        except NotFound:
            self.wiring.contract(product)  # a name that is no product's is the likelier mistake
            raise
        return {"product": product, "versions": [results.version_line(row) for row in rows]}

    def evidence(self, run: str, export: str | Path | None = None) -> Result:
        """Write the evidence page and archive of a run and say where they are."""
        folder = Path(export) if export else None
        if folder is not None and (file := _blocking_file(folder)) is not None:
            raise ConfigError(
                f"{file} is a file, not a folder that page and archive can be written into",
                state="nothing was written",
                fix="name a folder: --export DIR",
            )
        report = self._write_report(run, folder)
        return {"report": str(report), "archive": str(report.with_suffix(".json"))}

    def evidence_document(self, run: str) -> Result:
        """Everything that shows why a run was (or was not) accepted, as one document."""
        from lakehouse_backfill.core.evidence import status

        return status.evidence_document(self.wiring.bench, run)

    def accepted(
        self,
        product: str,
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        strict: bool = True,
    ) -> Any:
        """Give what consumers of a product read: Spark DataFrame, Arrow table, DuckDB relation.

        Raises NotFound, and TargetChanged when `strict` and the accepted partitions have changed.
        """
        from lakehouse_backfill.core.versions.accepted import resolve_accepted

        contract = self.wiring.contract(product)
        found = resolve_accepted(self.wiring.bench, contract, strict=strict)
        return self.wiring.read(engine, found.table, found.snapshot_id)

    def candidate(
        self,
        run: str,
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        by: str | None = None,
    ) -> Any:
        """Give what a run would publish, before anybody else sees it, as `accepted` does.

        Raises NotFound (nothing is staged), NotAllowed (`roles.validators` names others).
        """
        from lakehouse_backfill.core.publication.dual_read import candidate

        found = candidate(self.wiring.bench, run, by)
        return self.wiring.read(engine, found.table, found.snapshot_id)

    def accepted_together(
        self,
        products: tuple[str, ...],
        engine: Literal["spark", "arrow", "duckdb"] = "arrow",
        *,
        strict: bool = True,
    ) -> dict[str, Any]:
        """Give what consumers of several products read, all as accepted at one moment.

        Pinned products that were published together are seen together: old or new, never a mix.
        """
        from lakehouse_backfill.core.versions.accepted import resolve_accepted_together

        contracts = tuple(self.wiring.contract(product) for product in products)
        found = resolve_accepted_together(self.wiring.bench, contracts, strict=strict)
        return {
            product: self.wiring.read(engine, one.table, one.snapshot_id)
            for product, one in found.items()
        }

    def rejudge(
        self, product: str, suites: tuple[str, ...] = (), partitions: tuple[str, ...] = ()
    ) -> Result:
        """Run suites on what readers of a product get now; nothing in the lake is changed."""
        from lakehouse_backfill.core.validation.suites import validate_accepted

        self.wiring.require_java()
        self.wiring.expect_suites()
        contract = self.wiring.contract(product)
        found = validate_accepted(self.wiring.bench, contract, tuple(suites), tuple(partitions))
        return results.rejudged(product, found)

    def _sides(self, old: str, new: str) -> TableSides:
        from lakehouse_backfill.core.comparison.diff import TableSides

        try:
            left, right = TableRef.parse(old), TableRef.parse(new)
        except ValueError as error:
            raise NotFound(str(error), fix="write namespace.table@snapshot-or-tag") from error
        contracts = self.wiring.valid_contracts()
        return TableSides(left, right, next((c for c in contracts if c.table == right.table), None))

    def _noted(self, done: Result, run: str) -> Result:
        """Add what the files of the run's code are by now, where that is not what runs."""
        from lakehouse_backfill.core.planning.job_code import changed_code_notes

        found = changed_code_notes(self.wiring.bench, run)
        return done | ({"warnings": [*done.get("warnings", ()), *found]} if found else {})

    def _write_report(self, run: str, export: Path | None = None) -> Path:
        return self.wiring.write_report(self.evidence_document(run), export)

    def _paged(self, done: Result, *runs: str) -> Result:
        """Add to what was done where the pages of the runs are; why not is a warning only."""
        written, warnings = self._write_pages(*runs)
        added: Result = {"report": written[0]} if len(written) == 1 else {}
        if warnings:
            added["warnings"] = [*done.get("warnings", ()), *warnings]
        return done | added

    def _repaged(self, done: Result, run: str) -> Result:
        """Do the same for a run that may not have come as far as to have a page."""
        return self._paged(done, run) if self._has_page(run) else done

    def _has_page(self, run: str) -> bool:
        return (self.wiring.evidence_folder / f"{run}.html").exists()

    @contextmanager
    def _paged_on_error(self, *runs: str, only_again: bool = False) -> Iterator[None]:
        """Write the pages of the runs (`only_again`: that are there) also when the act fails."""
        try:
            yield
        except Exception:
            self._write_pages(*(run for run in runs if not only_again or self._has_page(run)))
            raise

    def _write_pages(self, *runs: str) -> tuple[list[str], list[str]]:
        """Write what can be written; give the pages, and a sentence for each that is missing."""
        written, warnings = [], []
        for run in runs:
            try:
                written.append(str(self._write_report(run)))
            except Exception as error:  # noqa: BLE001 (what was done is done, whatever a page says)
                problem = error.problem if isinstance(error, BackfillError) else repr(error)
                fix = errors.command_line("evidence", run)
                warnings.append(f"the page of {run} is not up to date: {problem}; later: {fix}")
                self.wiring.bench.journal.log("page not written", run_id=run, problem=problem)
        return written, warnings


def _blocking_file(folder: Path) -> Path | None:
    """Give what stands in the way of the folder: itself, or one above it, that is none."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    return None if there is None or there.is_dir() else there
