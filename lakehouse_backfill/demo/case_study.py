"""The case study, told step by step: a year of regulatory deadlines is restated.

    python -m lakehouse_backfill.demo.case_study --dir case-study --cases 2000

`docs/case-study.md` has the rules of the cases, and which test proves which sentence.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lakehouse_backfill.adapters.spark.session.java import require_java
from lakehouse_backfill.case_histories import CaseHistory
from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.config.profiles import EMBEDDED_PROFILE
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.demo.case_lake import (
    CASCADE_PRODUCTS,
    CASE_FILES,
    CASES_PRODUCT,
    CORRECTIONS_TABLE,
    FEED_PRODUCT,
    REPORT_PRODUCT,
    CaseLake,
)
from lakehouse_backfill.demo.lake import copy_project
from lakehouse_backfill.demo.story import DEMO_PERSON, Echo, Narrator, require
from lakehouse_backfill.errors import BackfillError, ChecksFailed, ConfigError
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.cascades import CascadeResult
from lakehouse_backfill.results.proof import DemoResult

_MONTHS = 12
OWNER = "olga"
REVIEW = "reviewed with compliance: decided on local dates, late holidays count"


@dataclass
class CaseStudy:
    """The case study in one folder; each method is a step of the story."""

    project: Project
    lake: CaseLake
    narrator: Narrator
    explained_partitions: int = 12
    runs: dict[str, str] = field(default_factory=dict)

    def tell(self) -> str:
        """Tell all steps; return the run of the restated case table."""
        self.build()
        first = self.publish_first()
        self.find_bug()
        cascade = self.plan_restatement()
        self.stage_and_review(cascade)
        self.explain()
        self.publish(cascade)
        self.roll_back_and_publish_again(cascade, first)
        self.correct_feed()
        return self.runs[CASES_PRODUCT]

    def build(self) -> None:
        """Load the sources."""
        with self.narrator.step("Load case events and calendars", "the sources of truth") as tell:
            events = self.lake.build_bronze()
            self.lake.create_products()
            tell(f"{events:,} events of {self.lake.cases:,} cases", "drop the tables")

    def publish_first(self) -> str:
        """Publish 2025 as release 2.4.1 computes it; return the cascade."""
        why = "release 2.4.1 publishes the year, and what is computed from it, by one commit"
        with self.narrator.step("Publish 2025 with release 2.4.1", why) as tell:
            planned = self.project.plan_cascade("jobs/case_sla/1-publish-2025.yaml", by=DEMO_PERSON)
            cascade = planned.cascade_id
            self.project.approve_cascade(cascade, DEMO_PERSON)
            self._run(cascade)
            self.project.accept_cascade(cascade, DEMO_PERSON)
            self.project.publish_cascade(cascade, DEMO_PERSON)
            filed = self.lake.file_decisions()
            tell(
                f"{len(CASCADE_PRODUCTS)} products published; {filed:,} decisions filed",
                command_line("rollback", cascade, "--reason", "TEXT"),
            )
        return cascade

    def find_bug(self) -> None:
        """Show a deadline that is counted from the wrong day."""
        why = "an evening in New York or Los Angeles is already tomorrow in UTC"
        with self.narrator.step("Find the bug", why) as tell:
            late = list(self.lake.late_deadlines())
            require(bool(late), "no case was opened on another day in UTC")
            one = late[0]
            tell(
                f"{len(late):,} openings are a day later in UTC; case {one['case_id']} "
                f"({one['jurisdiction']}) opened on {one['local']:%Y-%m-%d %H:%M} local time, "
                f"counted from {one['occurred_at']:%Y-%m-%d}",
                "nothing was changed",
            )

    def plan_restatement(self) -> str:
        """Plan and approve the restatement of 2025; return the cascade."""
        why = "December 2024, and what open cases need, is read as warm-up and never published"
        with self.narrator.step("Plan the restatement with release 3.1.0", why) as tell:
            planned = self.project.plan_cascade("jobs/case_sla/2-restate-2025.yaml", by=DEMO_PERSON)
            require(
                {node.product for node in planned.nodes if node.partitions}
                == set(CASCADE_PRODUCTS),
                "the cascade is not the case table and what follows from it",
            )
            self.project.approve_cascade(planned.cascade_id, DEMO_PERSON)
            tell(
                f"{planned.partitions_to_compute} partitions of {len(CASCADE_PRODUCTS)} products "
                f"in one plan; reads at most {planned.input_rows:,} rows; "
                "calendar v2026-06 as corrected truth",
                command_line("cancel", planned.cascade_id),
            )
        return planned.cascade_id

    def stage_and_review(self, cascade: str) -> None:
        """Stage and validate; the owner reviews what changes by more than the threshold."""
        why = "counts by jurisdiction and month, durations, due dates, 100 disputed cases, the diff"
        with self.narrator.step("Stage, validate, and let the owner review", why) as tell:
            self.runs = _run_ids(self.project.cascade(cascade))
            run = self.runs[CASES_PRODUCT]
            reviewed: list[str] = []
            try:
                self._run(cascade)
            except ChecksFailed:
                reviewed = self._review(run)
                self._run(cascade)
            self.project.accept_cascade(cascade, DEMO_PERSON)
            found = self.project.diff(run).summary
            require(found.added == found.removed == 0, "a restatement of deadlines moved cases")
            tell(
                f"{found.changed:,} case days change, {found.unchanged:,} stay, none come or go; "
                f"{OWNER} reviewed: {'; '.join(reviewed) or 'nothing to review'}",
                command_line("reject", cascade, "--reason", "TEXT"),
            )

    def _review(self, run: str) -> list[str]:
        """Record the owner's review of thresholds; any other failed gate is a fault."""
        failed = [gate.name for gate in self.project.waive(run).gates]
        for name in failed:
            require("breaches changes" in name, f"a gate failed that no owner reviews: {name}")
            self.project.waive(run, name, OWNER, REVIEW)
        return failed

    def explain(self) -> None:
        """Attribute every changed row, or those of the months that are asked for."""
        why = "each changed row is computed again with the old code, or the old calendar"
        with self.narrator.step("Explain the changed rows", why) as tell:
            run, months = self.runs[CASES_PRODUCT], self.explained_partitions
            found = self.project.attribute(run, partitions=months).attribution or {}
            counts = found["counts"]
            require(set(counts) <= {"code", "reference", "several"}, f"unexplained: {counts}")
            causes = ", ".join(f"{rows:,} by {cause}" for cause, rows in sorted(counts.items()))
            explained = sum(counts.values())
            require(explained == found["sampled_rows"], "rows were explained that do not change")
            tell(
                f"{explained:,} of {found['changed_rows']:,} changed rows, in "
                f"{len(found['sampled'])} months: {causes}, none unexplained",
                "nothing was changed",
            )

    def publish(self, cascade: str) -> None:
        """Publish the three products by one commit."""
        why = "one commit of the pointer table: readers see all three products change at once"
        with self.narrator.step("Publish", why) as tell:
            done = self.project.publish_cascade(cascade, DEMO_PERSON)
            tell(
                f"{done.readers_see}",
                command_line("rollback", cascade, "--reason", "TEXT"),
            )

    def roll_back_and_publish_again(self, cascade: str, first: str) -> None:
        """Take the restatement back, and publish it again."""
        why = "a way back that is never used is none; no version is lost"
        with self.narrator.step("Roll back, then publish again", why) as tell:
            new = self.late_decisions()
            self.project.rollback_cascade(cascade, "case study: show the way back", DEMO_PERSON)
            old = self.late_decisions()
            require(old != new, "the rollback changed nothing")
            self.project.publish_cascade(cascade, DEMO_PERSON)
            require(self.late_decisions() == new, "the second publication differs from the first")
            tell(
                f"late decisions of the year: {new}, after the rollback {old}, now {new} again; "
                f"the versions of {first} are kept",
                command_line("rollback", cascade, "--reason", "TEXT"),
            )

    def late_decisions(self) -> int:
        """Sum up the late decisions that the regulator's report shows now."""
        table = self.project.accepted(REPORT_PRODUCT)
        return int(sum(table.column("decided_late").to_pylist()))

    def correct_feed(self) -> None:
        """Write the corrections of what was filed with the regulator."""
        why = "the regulator keeps a copy, and gets events that correct it"
        with self.narrator.step("Write correction events for the regulator", why) as tell:
            run = self.project.plan("jobs/case_sla/regulator-feed.yaml", by=DEMO_PERSON).run_id
            self.runs[FEED_PRODUCT] = run
            self.project.approve(run, DEMO_PERSON)
            self.project.stage(run, DEMO_PERSON)
            result = self.project.validate(run, DEMO_PERSON)
            failed = gate_registry.describe_checks(one for one in result.checks if not one.passed)
            require(result.passed, f"validation failed: {failed}")
            self.project.accept(run, DEMO_PERSON)
            self.project.publish(run, DEMO_PERSON)
            events = self.lake.catalog.load_table(CORRECTIONS_TABLE).scan().count()
            require(events > 0, "no correction events were written")
            tell(
                f"{events:,} events in {CORRECTIONS_TABLE}",
                command_line("rollback", FEED_PRODUCT, "--reason", "TEXT"),
            )

    def _run(self, cascade: str) -> None:
        state = self.project.run_cascade(cascade, DEMO_PERSON).state
        require(state == "validated", f"cascade {cascade} is {state}")


def _run_ids(cascade: CascadeResult) -> dict[str, str]:
    return {line.product: line.run_id for line in cascade.members if line.run_id}


@dataclass(frozen=True)
class CaseStudyOptions:
    """What the case study can be told; `profile` names the lake of a cluster, in `profiles`."""

    cases: int = 2_000
    profile: str = EMBEDDED_PROFILE
    explained_partitions: int = 12
    #: A file of profiles that takes the place of `catalog/profiles.yaml`.
    profiles: Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for what cannot be told, before anything is made."""
        CaseHistory(self.cases)
        if not 1 <= self.explained_partitions <= _MONTHS:
            raise ConfigError(
                f"{self.explained_partitions} months cannot be explained",
                fix=f"name 1 to {_MONTHS} months of the year",
                field="explain",
            )
        if self.profiles is not None and not self.profiles.is_file():
            raise ConfigError(
                f"there is no file {self.profiles}",
                fix="name a file like catalog/profiles.yaml",
                field="profiles",
            )


def run_case_study(folder: Path, echo: Echo, options: CaseStudyOptions) -> DemoResult:
    """Run the whole case study in `folder` (absent or empty), and leave a project to work in.

    Every claim is checked on the way: a wrong number raises BackfillError.
    """
    folder = folder.resolve()
    require_java()
    copy_project(folder, CASE_FILES)
    if options.profiles is not None:
        shutil.copyfile(options.profiles, folder / CASE_FILES[0])
    project = Project.open(folder, options.profile)
    lake = CaseLake(project, options.cases)
    lake.require_free_names()
    study = CaseStudy(project, lake, Narrator(echo), options.explained_partitions)
    run_id = study.tell()
    report = str(project.evidence(run_id).report)
    echo(f"\nThe evidence page: {report}")
    return DemoResult(
        project=str(folder), report=report, run_id=run_id, steps=tuple(study.narrator.steps)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the case study as a program; return its exit code."""
    parser = argparse.ArgumentParser(prog="case-study", description=__doc__.split("\n", 1)[0])
    defaults = CaseStudyOptions()
    parser.add_argument("--dir", type=Path, default=Path("case-study"), help="a new folder")
    parser.add_argument("--cases", type=int, default=defaults.cases, help="number of cases")
    parser.add_argument("--profile", default=defaults.profile, help="a lake of the profiles")
    parser.add_argument("--profiles", type=Path, help="a file, instead of catalog/profiles.yaml")
    parser.add_argument(
        "--explain", type=int, default=defaults.explained_partitions, metavar="MONTHS",
        help="how many months are explained row by row",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    try:
        options = CaseStudyOptions(given.cases, given.profile, given.explain, given.profiles)
        run_case_study(given.dir, lambda line: _write(line), options)
    except BackfillError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
