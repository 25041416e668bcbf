"""A restatement end to end through a real Spark Connect server, forth and back.

The program is a client of the server and of nothing else of Spark's: tables of format 3, and
equality deletes, are published by rows there; a table of format 2 by PyIceberg.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.spark.session import session as client
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import Blocked, ConfigError, EnvironmentDown
from lakehouse_backfill.project import Project
from tests.stack.servers import HOST, free_port
from tests.support.spark.declared import CATALOG
from tests.support.spark.reading import Rows
from tests.support.spark.restating import DAYS, SCOPE, RestateLab, expected_checksums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 60
BESIDE = tuple(day for day in DAYS if day not in SCOPE)
#: A row of a day of the run, and one beside it.
HIDDEN = ((DAYS[1], 1), (DAYS[4], 4))


@dataclass(frozen=True)
class Kind:
    """A table that a run restates, and how it is expected to be published."""

    version: int
    way: str
    job: str
    hide: Callable[[RestateLab], object]
    back: Callable[[RestateLab], object]
    hidden: tuple[tuple[str, int], ...] = HIDDEN
    has_checks: bool = False
    compared: str = "whole partitions in "


def _by_vectors(lab: RestateLab) -> None:
    lab.sql("DELETE FROM {ns}.out WHERE id IN (1, 4)")


def _by_equality(lab: RestateLab) -> None:
    for day, key in HIDDEN:
        lab.hide_equal(key, day)


def _back(lab: RestateLab) -> None:
    lab.project.rollback(lab.table("out"), to=0, reason="wrong", by="ana")


def _back_by_a_command(lab: RestateLab) -> None:
    """A process of its own has a session of its own."""
    lab.command("rollback", lab.table("out"), "--to", "0", "--reason", "wrong", "--by", "ana")


KINDS = {
    "format 3 with deletion vectors": Kind(
        3, "rewrite", "function.py", _by_vectors, _back_by_a_command, has_checks=True
    ),
    "format 2 with equality deletes": Kind(
        2, "rewrite", "query.sql", _by_equality, _back, compared="rows grouped by key: "
    ),
    "format 2": Kind(2, "pyiceberg", "plain.py", lambda lab: None, _back, ()),
}


def restated(before: Rows) -> Rows:
    """What the job makes of the days of the run, and the others as they were."""
    days = {(DAYS[n % 5], n, n * 10) for n in range(50) if DAYS[n % 5] in SCOPE}
    return {row for row in before if row[0] not in SCOPE} | days


def staged(project: Project, *, has_checks: bool) -> str:
    run = str(project.plan("jobs/run.yaml", by="ana", prove_warm_up=has_checks).run_id)
    project.approve(run, "ana")
    project.stage(run, "ana")
    validated = project.validate(run, "ana")
    failed = [one for one in validated.checks if one.blocking and not one.passed]
    assert not failed
    return run


@pytest.mark.req("U1", "U12", "E3", "X7")
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_restatement_through_spark_connect_goes_forth_and_back(
    kind: Kind, lab: RestateLab
) -> None:
    project = lab.declare(kind.job, has_checks=kind.has_checks)
    made = lab.fill(kind.version)
    kind.hide(lab)
    before = {row for row in made if row[:2] not in kind.hidden}
    assert lab.rows() == before
    beside = lab.files(*BESIDE)
    run = staged(project, has_checks=kind.has_checks)
    assert project.wiring.context.runs.plan(run).way.way == kind.way
    assert lab.checksums(run) == expected_checksums(1 if kind.has_checks else 2)
    assert lab.rows() == before
    compared = project.diff(run, engine="spark")
    told = compared.summary
    assert compared.how.startswith(kind.compared)
    assert (told.changed, told.added, told.removed) == (
        (20, 0, 0) if not kind.hidden else (19, 1, 0)
    )
    project.accept(run, "ana")

    project.publish(run, "ana")
    assert lab.rows() == restated(before)
    head = lab.head()
    project.publish(run, "ana")

    assert lab.head() == head
    assert lab.files(*BESIDE) == beside
    assert project.verify(run, deep=kind.has_checks).intact

    lab.sql("INSERT INTO {ns}.out VALUES (1000, date'2024-01-05', 1)")
    kind.back(lab)

    assert lab.rows() == before | {(DAYS[4], 1000, 1)}
    assert beside.items() <= lab.files(*BESIDE).items()


@pytest.mark.req("X7", "X3")
def test_chunks_side_by_side_through_spark_connect_come_to_the_same(lab: RestateLab) -> None:
    """The first chunk opens the window; the other two can only be committed together."""
    project = lab.declare("function.py")
    partitions = {"column": "d", "from": DAYS[0], "to": DAYS[3]}
    limits = {"partitions_per_chunk": 1, "parallel": 2}
    lab.amend(target={"partitions": partitions}, limits=limits)
    lab.fill(2)
    run = str(project.plan("jobs/run.yaml", by="ana").run_id)
    project.approve(run, "ana")
    both, commits = threading.Barrier(2), itertools.count(1)

    def meet(point: str) -> None:
        if point == "Spark.overwrite:committing" and next(commits) > 1:
            both.wait(PATIENCE_S)

    fault_points.install_hook(meet)
    try:
        project.stage(run, "ana")
    finally:
        fault_points.install_hook(None)
    assert next(commits) == 4
    assert lab.checksums(run) == expected_checksums(1, DAYS[:3])
    assert project.validate(run, "ana").passed
    project.accept(run, "ana")
    project.publish(run, "ana")
    assert lab.rows() == {(DAYS[n % 5], n, n * 10) for n in range(50)}


def test_what_the_server_says_of_a_job_names_its_file(lab: RestateLab) -> None:
    project = lab.declare("broken.py")
    lab.fill(2)
    run = str(project.plan("jobs/run.yaml", by="ana").run_id)
    project.approve(run, "ana")

    with pytest.raises(
        ConfigError, match=r"failed at jobs/broken\.py: AnalysisException: .*missing"
    ):
        project.stage(run, "ana")


def test_doctor_asks_the_server_and_not_this_machine(lab: RestateLab) -> None:
    checks = {one.name: one for one in lab.declare("plain.py").doctor().checks}

    assert not {"java", "jars"} & checks.keys()
    told = checks["spark connect"]
    assert (told.ok, told.detail) == (
        True, f"Spark {lab.spark.version} answers, and reads catalog lake",
    )  # fmt: skip


def test_a_server_that_does_not_answer_is_said_so_soon(
    lake_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark would try for minutes, and say nothing."""
    monkeypatch.setattr(client, "_CONNECT_TIMEOUT_S", 0.5)
    address = f"sc://{HOST}:{free_port()}"
    profile = Profile(catalog=CATALOG, spark={"spark.remote": address})

    with pytest.raises(EnvironmentDown, match=f"{address} does not answer: nothing came in 0.5 s"):
        client.connect_to_server(SparkSettings.from_profile(profile, lake_folder))


@pytest.mark.req("E7")
def test_a_server_that_keeps_a_log_is_refused_for_restricted_columns(spark: SparkSession) -> None:
    # Its master is local, so that nothing is wanted of executors.
    with pytest.raises(Blocked) as refused:
        client.require_silent_server(spark.conf.get)
    assert refused.value.fix == "start the server with --conf spark.log.level=OFF"
