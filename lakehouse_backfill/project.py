"""The Python API: the same verbs as the CLI, with the same results."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.errors import NotFound
from lakehouse_backfill.model.table import TableRef
from lakehouse_backfill.ports.progress import Progress
from lakehouse_backfill.report import data as results
from lakehouse_backfill.wiring import Wiring

if TYPE_CHECKING:
    from lakehouse_backfill.stages.compare import Sides

Result = dict[str, Any]


class Project:
    """A folder with profiles, contracts, suites and jobs, opened against one lake."""

    def __init__(self, wiring: Wiring) -> None:
        """Use `Project.open`."""
        self.wiring = wiring
        self.folder = wiring.folder

    @staticmethod
    def open(
        folder: Path | str = ".", profile: str | None = None, *, progress: Progress | None = None
    ) -> Project:
        """Open the project in `folder`. Reads its profiles only; connects on first use.

        Raises ConfigError when the profiles are wrong or `profile` is not among them.
        """
        return Project(Wiring.open(Path(folder), profile, progress))

    def doctor(self) -> Result:
        """Check Java, jars, catalog, permissions and what the catalog keeps; changes nothing."""
        from lakehouse_backfill.doctor import examine

        return {"checks": examine(self.wiring)}

    def add_product(self, table: str, owner: str | None = None) -> Result:
        """Draft a contract from an existing table, with tested key candidates."""
        from lakehouse_backfill import drafting

        return drafting.add_product(self.wiring, table, owner or getpass.getuser())

    def new_manifest(
        self, product: str, from_: str, to: str, reason: str, reason_code: str, requested_by: str
    ) -> Result:
        """Draft a run manifest for a product and a half-open range of partitions."""
        from lakehouse_backfill import drafting

        extent = (from_, to)
        return drafting.new_manifest(
            self.wiring, product, extent, reason, reason_code, requested_by
        )

    def plan(
        self,
        manifest_file: str | Path,
        revise: str | None = None,
        by: str | None = None,
        dry_run: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
        prove_warm_up: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
    ) -> Result:
        """Resolve, pin, estimate and register a run; with `dry_run` nothing is written.

        Raises ConfigError, NotFound, Unsupported, LimitExceeded.
        """
        from lakehouse_backfill.stages import plan as stage

        who, bench = by or getpass.getuser(), self.wiring.bench
        declared = self.wiring.declare(Path(manifest_file))
        plan = stage.make_plan(bench, declared, who, revise)
        proof = stage.prove_warm_up(bench, plan) if prove_warm_up else None
        status = None
        if not dry_run:
            plan, status = stage.register_plan(bench, plan, who)
        return results.plan_result(plan, status, proof)

    def approve(self, run: str, by: str, reason: str = "") -> Result:
        """Decide on the intent, bound to the manifest hash."""
        from lakehouse_backfill.stages import decide

        return self._decided(decide.approve(self.wiring.bench, run, by, reason).run_id)

    def accept(self, run: str, by: str, reason: str = "") -> Result:
        """Decide on the result, bound to the digest of checks and diff."""
        from lakehouse_backfill.stages import decide

        return self._decided(decide.accept(self.wiring.bench, run, by, reason).run_id)

    def reject(self, run: str, by: str, reason: str) -> Result:
        """Say no; nothing is deleted."""
        from lakehouse_backfill.stages import decide

        return self._decided(decide.reject(self.wiring.bench, run, by, reason).run_id)

    def cancel(self, run: str, by: str, reason: str = "") -> Result:
        """Close a run before publication."""
        from lakehouse_backfill.stages import decide

        return self._decided(decide.cancel(self.wiring.bench, run, by, reason).run_id)

    def stage(self, run: str, by: str) -> Result:
        """Compute the chunks that are not staged yet into the run's shadow table."""
        from lakehouse_backfill.stages.stage import stage

        self.wiring.expect_suites()
        status, numbers = stage(self.wiring.bench, run, by)
        return results.state(status) | numbers

    def validate(self, run: str, by: str) -> Result:
        """Run every gate; `passed` tells whether all blocking ones did."""
        from lakehouse_backfill.stages.validate import validate

        self.wiring.expect_suites()
        status, validation, digest = validate(self.wiring.bench, run, by)
        report = self._write_report(run)
        return results.validation_result(status, validation, digest) | {"report": str(report)}

    def publish(self, run: str, by: str, dry_run: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Make an accepted run what readers see; the same again changes nothing."""
        from lakehouse_backfill.stages import publish as stage

        bench = self.wiring.bench
        if dry_run:
            plan = bench.runs.plan(run)
            stage.check_publishable(bench, plan, bench.runs.events(run), by)
            return results.publish_preview(plan, bench.versions.pointer(plan.product))
        published = stage.publish(bench, run, by)
        return results.publish_result(bench.runs.status(run), published)

    def run(self, run: str, by: str) -> Result:
        """Stage and validate from wherever the run stopped, and publish if that is not manual."""
        from lakehouse_backfill.stages.drive import drive

        self.wiring.expect_suites()
        done = drive(self.wiring.bench, run, by)
        return done | {"report": str(self._write_report(run))}

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
        from lakehouse_backfill.stages import rollback as stage

        bench, contract = self.wiring.bench, self.wiring.contract(product)
        way = stage.plan_rollback(bench, product, to, tuple(partitions))
        if dry_run:
            return results.rollback_preview(product, way)
        done = stage.rollback(bench, contract, way, reason, by or getpass.getuser())
        return results.rollback_result(done)

    def status(self, run: str | None = None, all: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Say where one run stands, or list the open runs, those that wait for people first."""
        from lakehouse_backfill.stages import look

        bench = self.wiring.bench
        found = [bench.runs.status(run)] if run else look.open_runs(bench, everything=all)
        return {"runs": [results.run_line(item, look.run_standing(bench, item)) for item in found]}

    def log(self, run: str) -> Result:
        """The run's events, oldest first."""
        self.wiring.bench.runs.status(run)
        return {"events": [results.plain(event) for event in self.wiring.bench.runs.events(run)]}

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
    ) -> Result:
        """Compare two table states, or a run's candidate with what it replaces (`new` absent)."""
        from lakehouse_backfill.stages import compare

        if new is None:
            return results.diff_result(
                compare.diff_run(self.wiring.bench, old, where, engine, samples)
            )
        found = compare.diff(
            self.wiring.bench,
            self._sides(old, new),
            key=tuple(key or ()),
            where=where,
            engine=engine,
            samples=samples,
        )
        return results.diff_result(found)

    def reconcile(self, old: str, new: str) -> Result:
        """Count and checksum of each partition of two table states."""
        from lakehouse_backfill.stages import compare

        rows = compare.reconcile(self.wiring.bench, self._sides(old, new))
        return {
            "partitions": [results.plain(row) for row in rows],
            "equal": all(row.equal for row in rows),
        }

    def versions(self, product: str) -> Result:
        """The accepted versions of a product, newest first."""
        from lakehouse_backfill.stages import look

        rows = look.accepted_rows(self.wiring.bench, product)
        return {"product": product, "versions": [results.version_line(row) for row in rows]}

    def evidence(self, run: str, export: str | Path | None = None) -> Result:
        """Write the evidence page and archive of a run and say where they are."""
        report = self._write_report(run, Path(export) if export else None)
        return {"report": str(report), "archive": str(report.with_suffix(".json"))}

    def evidence_document(self, run: str) -> Result:
        """Everything that shows why a run was (or was not) accepted, as one document."""
        from lakehouse_backfill.stages import look

        return look.evidence(self.wiring.bench, run)

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
        from lakehouse_backfill.stages.accepted import resolve_accepted

        contract = self.wiring.contract(product)
        found = resolve_accepted(self.wiring.bench, contract, strict=strict)
        return self.wiring.read(engine, found.table, found.snapshot_id)

    def _decided(self, run: str) -> Result:
        from lakehouse_backfill.stages import look

        bench = self.wiring.bench
        status, plan = bench.runs.status(run), bench.runs.plan(run)
        newest = bench.evidence.newest(run, "validation")
        events = bench.runs.events(run)
        return results.state(status) | {
            "approvals": look.approvals(events, plan, newest[0] if newest else None)
        }

    def _sides(self, old: str, new: str) -> Sides:
        from lakehouse_backfill.stages.compare import Sides

        try:
            left, right = TableRef.parse(old), TableRef.parse(new)
        except ValueError as error:
            raise NotFound(str(error), fix="write namespace.table@snapshot-or-tag") from error
        contracts = self.wiring.valid_contracts()
        return Sides(left, right, next((c for c in contracts if c.table == right.table), None))

    def _write_report(self, run: str, export: Path | None = None) -> Path:
        return self.wiring.write_report(self.evidence_document(run), export)


def accepted(
    product: str,
    engine: Literal["spark", "arrow", "duckdb"] = "arrow",
    *,
    folder: Path | str = ".",
    profile: str | None = None,
    strict: bool = True,
) -> Any:
    """Give what consumers of a product read; see `Project.accepted`."""
    return Project.open(folder, profile).accepted(product, engine, strict=strict)
