"""The Python API: the same verbs as the CLI, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.adapters.system.process import require_valid_reason, resolve_actor
from lakehouse_backfill.config.faults import locate_errors
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.looking import Result
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.proving import Proving
from lakehouse_backfill.report import results
from lakehouse_backfill.wiring.adapters import Adapters

if TYPE_CHECKING:
    pass


class Project(Proving):
    """A folder with profiles, contracts, suites and jobs, opened against one lake."""

    @staticmethod
    def open(
        folder: Path | str = ".", profile: str | None = None, *, progress: Progress | None = None
    ) -> Project:
        """Open the project in `folder`. Reads its profiles only; connects on first use.

        Raises ConfigError when the profiles are wrong or `profile` is not among them.
        """
        return Project(Adapters.open(Path(folder), profile, progress))

    def doctor(self) -> Result:
        """Check Java, jars, catalog and permissions, and try out what the catalog keeps."""
        from lakehouse_backfill.onboarding import run_doctor

        return run_doctor(self.wiring)

    def add_product(self, table: str, owner: str | None = None) -> Result:
        """Draft a contract from an existing table, with tested key candidates."""
        from lakehouse_backfill import onboarding

        return onboarding.add_product(self.wiring, table, resolve_actor(owner))

    def new_manifest(
        self, product: str, from_: str, to: str, reason: str, reason_code: str, requested_by: str
    ) -> Result:
        """Draft a run manifest for a product and a half-open range of partitions."""
        from lakehouse_backfill import onboarding

        extent, who = (from_, to), resolve_actor(requested_by)
        return onboarding.add_manifest(
            self.wiring, product, extent, require_valid_reason(reason), reason_code, who
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
        from lakehouse_backfill.core.planning import plan as stage

        who, bench = resolve_actor(by), self.wiring.bench
        declared = self.wiring.declare(Path(manifest_file))
        with locate_errors(self.folder / declared.manifest_file, self.folder):
            plan = stage.make_plan(bench, declared, who, revise)
        proof = stage.prove_warm_up(bench, plan) if prove_warm_up else None
        status = None
        if not dry_run:
            plan, status = stage.register_plan(bench, plan, who)
        done = results.plan_result(plan, status, proof)
        return done if dry_run or not plan.revises else self._repaged(done, plan.revises)

    def approve(self, run: str, by: str, reason: str = "") -> Result:
        """Decide on the intent, bound to the manifest hash."""
        from lakehouse_backfill.core.approval import decisions

        done = decisions.approve(
            self.wiring.bench, run, resolve_actor(by), require_valid_reason(reason)
        )
        return self._repaged(self._decided(done.run_id), done.run_id)

    def accept(self, run: str, by: str, reason: str = "") -> Result:
        """Decide on the result, bound to the digest of checks and diff."""
        from lakehouse_backfill.core.approval import decisions

        done = decisions.accept(
            self.wiring.bench, run, resolve_actor(by), require_valid_reason(reason)
        )
        return self._paged(self._decided(done.run_id), done.run_id)

    def reject(self, run: str, by: str, reason: str) -> Result:
        """Say no; nothing is deleted."""
        from lakehouse_backfill.core.approval import decisions

        done = decisions.reject(
            self.wiring.bench, run, resolve_actor(by), require_valid_reason(reason)
        )
        return self._paged(self._decided(done.run_id), done.run_id)

    def cancel(self, run: str, by: str, reason: str = "") -> Result:
        """Close a run before publication."""
        from lakehouse_backfill.core.approval import decisions

        done = decisions.cancel(
            self.wiring.bench, run, resolve_actor(by), require_valid_reason(reason)
        )
        return self._paged(self._decided(done.run_id), done.run_id)

    def waive(
        self, run: str, gate: str | None = None, by: str | None = None, reason: str = ""
    ) -> Result:
        """Let a run pass a failed gate, for the record; without `gate`: list the failed ones."""
        from lakehouse_backfill.core.approval import decisions as stage

        bench = self.wiring.bench
        if gate is not None:
            stage.waive(bench, run, gate, resolve_actor(by), require_valid_reason(reason))
        status = bench.runs.status(run)
        found = results.gates_result(status, stage.failed_gates(bench, run))
        return found if gate is None else self._paged(found, run)

    def stage(self, run: str, by: str, take_over: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Compute the chunks that are not staged yet into the run's shadow table."""
        from lakehouse_backfill.core.staging.stage import stage

        self.wiring.require_java()
        self.wiring.expect_suites()
        with self._paged_on_error(run, only_again=True):
            status, numbers = stage(self._bench(take_over), run, resolve_actor(by))
        return self._repaged(self._noted(results.state(status) | numbers, run), run)

    def shadow_open(self, run: str, by: str, take_over: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Make the shadow table that another engine is to write; name it and where it lies."""
        from lakehouse_backfill.core.staging.external import shadow_open

        self.wiring.require_java()
        self.wiring.expect_suites()
        with self._paged_on_error(run, only_again=True):
            status, table = shadow_open(self._bench(take_over), run, resolve_actor(by))
        plan = self.wiring.bench.runs.plan(run)
        return self._repaged(results.shadow_opened(status, table, plan), run)

    def shadow_close(self, run: str, by: str, take_over: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Fingerprint what another engine wrote into the shadow; the run is staged then."""
        from lakehouse_backfill.core.staging.external import shadow_close

        self.wiring.require_java()
        self.wiring.expect_suites()
        with self._paged_on_error(run, only_again=True):
            status, numbers = shadow_close(self._bench(take_over), run, resolve_actor(by))
        return self._repaged(results.state(status) | numbers, run)

    def validate(self, run: str, by: str, take_over: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Run every gate; `passed` tells whether all blocking ones did."""
        from lakehouse_backfill.core.validation import suites
        from lakehouse_backfill.core.validation.validate import validate

        self.wiring.require_java()
        self.wiring.expect_suites()
        status, validation, digest = validate(self._bench(take_over), run, resolve_actor(by))
        file = self.wiring.bench.runs.plan(run).manifest_file
        took = suites.newest_validation_timing(self.wiring.bench.runs.events(run))
        found = results.validation_result(status, validation, digest, took)
        return self._paged(found | {"manifest_file": file}, run)

    def run(self, run: str, by: str, take_over: bool = False) -> Result:  # noqa: FBT001, FBT002
        """Stage and validate from wherever the run stopped, and publish if that is not manual."""
        from lakehouse_backfill.core.publication.catch_up import run_until_decision

        self.wiring.require_java()
        self.wiring.expect_suites()
        with self._paged_on_error(run):
            done = run_until_decision(self._bench(take_over), run, resolve_actor(by))
        if done["run_id"] != run:
            self._repaged({}, run)
        return self._paged(self._noted(done, run), str(done["run_id"]))

    def attribute(
        self,
        run: str,
        partitions: int = 4,
        engine: str = "auto",
        samples: int = 5,
        by: str | None = None,
    ) -> Result:
        """Compare as `diff` does, and say why rows differ in up to so many sampled partitions.

        Only those are computed again; the result is kept as evidence and shown on the page.
        """
        from lakehouse_backfill.core.evidence import attribution
        from lakehouse_backfill.core.publication import dual_read

        bench = self.wiring.bench
        dual_read.require_candidate_access(bench, run, by)
        keys = {one.table: one.key for one in self.wiring.valid_contracts() if one.key}
        asked = attribution.AttributionOptions(partitions, engine, samples, keys)
        compared, found = attribution.attribute_changes(bench, run, asked)
        return self._repaged(results.compared_result(compared) | {"attribution": found.data()}, run)

    def recover(
        self,
        run: str | None,
        by: str,
        dry_run: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
        take_over: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
    ) -> Result:
        """Finish or undo what stopped half way: one run and its product, or everything (None)."""
        from lakehouse_backfill.core.publication.recover import recover

        bench, by = self._bench(take_over), resolve_actor(by)
        seen = {} if dry_run else self._shown()
        try:
            found = recover(bench, run, by, dry_run=dry_run)
        except Exception:
            self._write_pages(*self._changed(seen))
            raise
        done = {"actions": [vars(item) for item in found], "dry_run": dry_run}
        return done if dry_run else self._paged(done, *self._changed(seen))

    def maintain(
        self, by: str, product: str | None = None, erasure: str = "",
        dry_run: bool = False,  # noqa: FBT001, FBT002 (mirrors the CLI flag)
    ) -> Result:  # fmt: skip
        """Let go of what nothing needs; with a reason in `erasure`, of all old versions."""
        from lakehouse_backfill.core.retention.maintain import maintain
        from lakehouse_backfill.report.results import maintained_result

        contracts = {one.product: one for one in self.wiring.valid_contracts()}
        done = maintain(
            self.wiring.bench, contracts, resolve_actor(by), product=product, erasure=require_valid_reason(erasure),
            dry_run=dry_run,
        )  # fmt: skip
        return maintained_result(done, dry_run=dry_run)

    def _shown(self) -> dict[str, object]:
        """Note of each run what its page says first: its log, and what of it went back since."""
        bench = self.wiring.bench
        runs = bench.runs.list(open_only=False)
        histories = {name: bench.versions.history(name) for name in {run.product for run in runs}}
        return {
            run.run_id: (
                run.seq,
                pointer.rolled_back_since(histories[run.product], run.run_id),
            )
            for run in runs
        }

    def _changed(self, seen: dict[str, object]) -> list[str]:
        return [run for run, shown in self._shown().items() if seen.get(run, shown) != shown]

    def _decided(self, run: str) -> Result:
        from lakehouse_backfill.core.approval import decisions
        from lakehouse_backfill.core.evidence.status import approval_records, waiver_records

        bench = self.wiring.bench
        status, plan = bench.runs.status(run), bench.runs.plan(run)
        events = bench.runs.events(run)
        found = decisions.logged_validation_document(bench, events, run)
        return results.state(status) | {
            "approvals": approval_records(events, plan, found[0] if found else None),
            "waivers": waiver_records(events),
            "manifest_file": plan.manifest_file,
        }


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
