"""The story of the demo, told step by step: what, why, one number, how to undo it."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakehouse_backfill.adapters.spark.session.java import require_java
from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.config.profiles import EMBEDDED_PROFILE
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.demo.lake import PRODUCT, DemoLake, copy_project, require_demo_data
from lakehouse_backfill.errors import BackfillError, ChecksFailed
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.plans import PlanResult
from lakehouse_backfill.results.proof import DemoResult

Echo = Callable[[str], None]
DEMO_PERSON = "ana"


@dataclass
class Narrator:
    """Tells each step and keeps how long it took."""

    echo: Echo
    steps: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str, why: str) -> Iterator[Callable[..., None]]:
        """Print one step; the block reports its number and how to undo it."""
        self.echo(f"\n{len(self.steps) + 1}. {name}\n   why:    {why}")
        told: dict[str, str] = {}

        def tell(number: str, undo: str) -> None:
            told.update(number=number, undo=undo)

        started = time.monotonic()
        yield tell
        seconds = round(time.monotonic() - started, 1)
        self.echo(f"   number: {told['number']}\n   undo:   {told['undo']}\n   took:   {seconds} s")
        self.steps.append({"name": name, "ok": True, "seconds": seconds})


def run_demo(folder: Path, echo: Echo) -> DemoResult:
    """Run the whole demo in `folder` (absent or empty), and leave a project to work in.

    Every claim is checked on the way: a wrong number raises BackfillError.
    """
    folder = folder.resolve()
    narrator = Narrator(echo)
    require_demo_data()
    require_java()
    copy_project(folder)
    # By name: a variable of the environment may name a profile that the demo does not have.
    project = Project.open(folder, EMBEDDED_PROFILE)
    lake = DemoLake(project)
    _build(narrator, lake, folder)
    first = _try_short_range(narrator, project)
    second = _try_incomplete_input(narrator, project, first)
    run_id = _plan(narrator, project, second)
    _stage_and_validate(narrator, project, run_id)
    outside = _live_job(narrator, lake)
    _publish(narrator, project, lake, run_id, outside)
    _compare_and_roll_back(narrator, project, lake, run_id)
    report = str(project.evidence(run_id).report)
    _echo_next_steps(echo, folder, report, run_id)
    return DemoResult(
        project=str(folder), report=report, run_id=run_id, steps=tuple(narrator.steps)
    )


def _build(narrator: Narrator, lake: DemoLake, folder: Path) -> None:
    undo = f"delete the folder {folder.name}"
    with narrator.step("Load 2013's flights from New York into a lake", "a real table") as tell:
        flights = lake.build_bronze()
        tell(f"{flights:,} flights in bronze.flights", undo)
    why = "release 1.1.0 dated flights by their New York departure day for 45 partitions"
    with narrator.step("Build the history that a bad release left behind", why) as tell:
        lake.build_history()
        counted = lake.count_flights()
        require(counted == 336_786, f"the history counts {counted} flights")
        tell(f"{PRODUCT} counts {counted:,} flights: {counted - flights} too many", undo)


def _try_short_range(narrator: Narrator, project: Project) -> str:
    why = "the first attempt declares one day too few on each side"
    with narrator.step("Plan, approve, stage, validate a range that is too short", why) as tell:
        run_id = _plan_and_approve(project, "1-range-too-short", None).run_id
        project.stage(run_id, DEMO_PERSON)
        project.validate(run_id, DEMO_PERSON)
        checks = project.evidence_document(run_id)["validation"]
        edge = next(check for check in checks["checks"] if check["group"] == "edge")
        require(not edge["passed"], "the edge check let an open range pass")
        closing = checks["edge"]
        tell(
            f"stopped: restate from {closing['closing_from']} to {closing['closing_to']} instead",
            "nothing to undo: the target was never touched",
        )
    return run_id


def _try_incomplete_input(narrator: Narrator, project: Project, revises: str) -> str:
    why = "the second attempt pins airports that lack four destinations"
    with narrator.step("Plan again, with incomplete reference data", why) as tell:
        run_id = _plan_and_approve(project, "2-incomplete-airports", revises).run_id
        try:
            project.stage(run_id, DEMO_PERSON)
        except ChecksFailed as error:
            tell(error.problem, "nothing to undo: not a row was staged")
        else:
            require(False, "the input suite let unknown airports pass")  # noqa: FBT003
    return run_id


def _plan(narrator: Narrator, project: Project, revises: str) -> str:
    why = "snapshots are pinned, the range is explicit, the evening before is read as warm-up"
    with narrator.step(
        "Plan the right range on the complete airports, and approve it", why
    ) as tell:
        planned = _plan_and_approve(project, "3-restate", revises)
        tell(
            f"{len(planned.partitions)} partitions in {len(planned.chunks)} chunks; "
            f"reads at most {planned.estimate.input_rows:,} rows",
            command_line("cancel", planned.run_id),
        )
    return planned.run_id


def _stage_and_validate(narrator: Narrator, project: Project, run_id: str) -> None:
    why = "the output goes to a shadow table; readers see nothing of it"
    with narrator.step("Stage in chunks", why) as tell:
        staged = project.stage(run_id, DEMO_PERSON)
        tell(f"{staged.rows:,} rows in {staged.chunks_done} chunks", command_line("cancel", run_id))
    why = "accepted because checks passed, not because a job finished"
    with narrator.step("Validate and accept", why) as tell:
        result = project.validate(run_id, DEMO_PERSON)
        failed = gate_registry.describe_checks(one for one in result.checks if not one.passed)
        quiet = sum(1 for one in result.checks if one.passed)
        require(result.passed, f"validation failed: {failed}")
        project.accept(run_id, DEMO_PERSON)
        found = result.diff.summary
        tell(
            f"{quiet} checks found nothing wrong; {found.changed:,} rows change, "
            f"{found.added:,} come, {found.removed:,} go, {found.unchanged:,} stay",
            command_line("reject", run_id, "--reason", "TEXT"),
        )


def _live_job(narrator: Narrator, lake: DemoLake) -> set[str]:
    why = "life goes on: other partitions change between pin and publication"
    with narrator.step("Meanwhile a live job writes 2013-12-31 and 2014-01-01", why) as tell:
        lake.run_live_job()
        tell(f"the table counts {lake.count_flights():,} flights", "that is the live job's affair")
    return lake.files_outside_range()


def _publish(
    narrator: Narrator, project: Project, lake: DemoLake, run_id: str, outside: set[str]
) -> None:
    why = "one metadata-only commit: readers see all 45 partitions change at once"
    with narrator.step("Publish", why) as tell:
        published = project.publish(run_id, DEMO_PERSON)
        counted = lake.count_flights()
        require(counted == 336_776, f"{counted} flights after publication")
        require(lake.files_outside_range() == outside, "files outside the partitions changed")
        tell(
            f"version {published.version} in {published.seconds} s; the table counts "
            f"{counted:,} flights, and the live job's files are untouched",
            f"lakehouse-backfill rollback {PRODUCT} --reason TEXT",
        )


def _compare_and_roll_back(
    narrator: Narrator, project: Project, lake: DemoLake, run_id: str
) -> None:
    outside = lake.files_outside_range()
    with narrator.step("Compare old and new by time travel", "every change can be seen") as tell:
        rows = project.versions(PRODUCT).versions
        old, new = rows[1].snapshot_id, rows[0].snapshot_id
        found = project.diff(f"{PRODUCT}@{old}", f"{PRODUCT}@{new}")
        differing = sum(1 for row in found.partitions if row.added or row.removed or row.changed)
        tell(f"{differing} partitions differ; {found.files.shared} files are shared", "none")
    with narrator.step(
        "Roll back, then publish again", "a way back that is never used is none"
    ) as tell:
        project.rollback(PRODUCT, reason="demo: show the way back", by=DEMO_PERSON)
        back = lake.count_flights()
        require(back == 336_786, f"{back} flights after rollback")
        require(lake.files_outside_range() == outside, "the rollback lost live files")
        again = project.publish(run_id, DEMO_PERSON)
        counted = lake.count_flights()
        require(counted == 336_776, f"{counted} flights in the end")
        tell(
            f"{back:,} after rollback, {counted:,} as version {again.version}; "
            "the live partitions survived both",
            f"lakehouse-backfill rollback {PRODUCT} --reason TEXT",
        )


def _plan_and_approve(project: Project, manifest: str, revises: str | None) -> PlanResult:
    file = f"jobs/arrivals_daily/{manifest}.yaml"
    planned = project.plan(file, revise=revises, by=DEMO_PERSON)
    project.approve(planned.run_id, DEMO_PERSON)
    return planned


def _echo_next_steps(echo: Echo, folder: Path, report: str, run_id: str) -> None:
    name = program_name()
    echo(f"\nThe evidence page: {report}")
    echo(
        "\nThe project stays; try next:\n"
        f"  cd {shlex.quote(str(folder))}\n"
        f"  {name} status {run_id}\n"
        f"  {name} versions {PRODUCT}\n"
        f"  {name} diff {run_id}"
    )
    echo(
        "\nFor a table of your own:\n"
        f"  {name} init my-project    # then edit catalog/profiles.yaml\n"
        f"  {name} product add NAMESPACE.TABLE\n"
        f"  {name} new NAMESPACE.TABLE --from 2026-01-01 --to 2026-02-01 --reason TEXT"
    )


def program_name() -> str:
    """Name the program as this user can type it from another folder."""
    if shutil.which("lakehouse-backfill"):
        return "lakehouse-backfill"
    here = Path(sys.executable).with_name("lakehouse-backfill")
    return shlex.quote(str(here)) if here.is_file() else "lakehouse-backfill"


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 (an assertion)
    """Raise BackfillError where a claim of the story does not hold."""
    if not holds:
        raise BackfillError(f"the demo is broken: {otherwise}", fix="please report this")
