"""The driver is killed wherever Spark itself commits: by Iceberg's Java API, or by a statement.

PyIceberg cannot write the table, so that each commit to it is made in Java.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session.settings import TINY_QUERIES
from lakehouse_backfill.errors import Blocked
from tests.chaos.forked_driver import ForkedDrivers
from tests.support.spark.declared import QUICK_JAVA
from tests.support.spark.reading import Rows
from tests.support.spark.restating import SCOPE, RestateLab

BY = ("--by", "ana")
#: As the program chooses them for a run of so few rows. What Java commits is the same.
SETTINGS = {
    "spark.master": "local[2]",
    **TINY_QUERIES,
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}
#: In the order in which one command after the other gets that far: each goes on with what is there.
KILLS = {
    "plan": ("Pins.tag",),
    "stage": (
        "Spark.create_view", "Shadows.metadata_file", "Shadows.evolve", "Shadows.fence",
        "Spark.overwrite",
    ),
    "publish": ("Publisher.swap", "Spark.create_view"),
    "rollback": ("Publisher.swap",),
    "maintain": ("Pins.expire",),
}  # fmt: skip


class JavaLab(RestateLab):
    """A lab whose commands are run by drivers that may be killed."""

    drivers: ForkedDrivers

    def sql(self, text: str) -> list[list[Any]]:
        return self.drivers.sql(text.replace("{ns}", f"lake.{self.namespace}"))

    def filled(self) -> tuple[Rows, Rows]:
        """Fill the tables; give the target's rows before and after the restatement."""
        before = self.fill(3)
        return before, {row if row[0] not in SCOPE else (*row[:2], row[1] * 10) for row in before}

    def run(self) -> str:
        """The only run."""
        (run,) = (one.run_id for one in self.project.status().runs)
        return str(run)

    @property
    def back(self) -> tuple[str, ...]:
        return self.table("out"), "--to", "0", "--reason", "wrong"

    def shown(self) -> Rows:
        """What the view shows."""
        return {
            (day, key, value) for key, day, value in self.sql("SELECT id, d, v FROM {ns}.shown")
        }

    def killed(self, point: str, *command: str) -> None:
        code = self.drivers.command(*command, *BY, point=point)
        assert code == -signal.SIGKILL, (point, command, code, self.drivers.log())

    def done(self, *command: str) -> None:
        assert self.drivers.command(*command, *BY) == 0, self.drivers.log()

    def commands(self, verb: str, *words: str) -> list[Rows]:
        """Kill the command at all its points, then let it end; give what readers saw after each."""
        seen = []
        for place in KILLS.get(verb, ()):
            for point in (f"{place}:committing", f"{place}:committed"):
                self.killed(point, verb, *words)
                seen.append(self.rows())
        self.done(verb, *words)
        return [*seen, self.rows()]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedDrivers]:
    folder = tmp_path_factory.mktemp("java kills") / "my lake"
    folder.mkdir()
    JavaLab(folder, SETTINGS).declare("plain.py")
    made = ForkedDrivers(folder)
    yield made
    made.stop()


@pytest.fixture
def lab(drivers: ForkedDrivers) -> JavaLab:
    made = JavaLab(drivers.folder, SETTINGS)
    made.drivers = drivers
    return made


@pytest.mark.timeout(900)
@pytest.mark.req("T3", "T4", "U12", "U13", "X2")
def test_whoever_is_killed_where_java_commits_goes_on_and_nothing_is_lost_or_doubled(
    lab: JavaLab,
) -> None:
    lab.declare("noted.py", view=lab.table("shown"))
    before, restated = lab.filled()
    assert all(rows == before for rows in lab.commands("plan", "jobs/run.yaml"))
    run = lab.run()
    lab.project.approve(run, "ana")
    for verb in ("stage", "validate", "accept"):
        assert all(rows == before for rows in lab.commands(verb, run))
    assert all(one.status == "done" for one in lab.project.chunks(run).chunks)

    seen = lab.commands("publish", run)
    assert seen == [before, *[restated] * (len(seen) - 1)]
    assert lab.state(run) == "published"
    assert lab.shown() == restated
    assert lab.project.verify(run).intact

    seen = lab.commands("rollback", *lab.back)
    assert seen == [restated, *[before] * (len(seen) - 1)]
    assert (lab.state(run), lab.shown()) == ("rolled_back", before)
    assert len(lab.tokens()) == len(set(lab.tokens())) == 2

    lab.commands("maintain", "--erasure", lab.table("out"), "--reason", "gone")
    assert set(lab.catalog.load_table(lab.table("out")).metadata.refs) == {"main"}
    assert lab.rows() == before


@pytest.mark.timeout(900)
@pytest.mark.req("T3", "U2", "U13")
def test_the_view_of_a_rollback_that_was_cut_off_is_shown_by_recover(lab: JavaLab) -> None:
    lab.declare("plain.py", publication="pinned", view=lab.table("shown"))
    before, restated = lab.filled()
    lab.done("plan", "jobs/run.yaml")
    run = lab.run()
    lab.project.approve(run, "ana")
    for verb in ("stage", "validate", "accept", "publish"):
        lab.done(verb, run)
    assert (lab.rows(), lab.shown()) == (before, restated)

    lab.killed("Spark.create_view:committing", "rollback", *lab.back)
    assert lab.shown() == restated
    assert lab.drivers.command("rollback", *lab.back, *BY) == Blocked.exit_code
    lab.killed("Spark.create_view:committed", "recover", run)
    assert (lab.state(run), lab.shown()) == ("published", before)
    lab.done("recover", run)
    assert (lab.state(run), lab.shown()) == ("rolled_back", before)
