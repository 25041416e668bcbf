"""Runs compute in a pool and a scratch place that they name, and never in those of a live job."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.domain.guards.compute import (
    ComputePlaces,
    describe_place,
    pool_settings,
    require_apart,
)
from lakehouse_backfill.domain.manifest import Compute
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import Blocked, ConfigError
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.steps import approved_run

pytestmark = pytest.mark.req("X3")

YARN = {"spark.master": "yarn", "spark.executor.memory": "8g"}
POOLS = {"night": {"spark.yarn.queue": "night"}, "server": {"spark.remote": "sc://h:1/;token=t"}}
SCRATCH = {"spare": "/mnt/spare", "theirs": "/mnt/live/tmp", "all": "/mnt", "none": "/"}
LIVE = {
    "name": "ingest", "scratch": ["/mnt/live"],
    "spark": {"spark.master": "yarn", "spark.yarn.queue": "default"},
}  # fmt: skip


def places(**changes: Any) -> ComputePlaces:
    fields = {"pools": POOLS, "scratch": SCRATCH, "live": [LIVE]} | changes
    return ComputePlaces.model_validate(fields)


@pytest.mark.parametrize(
    ("spark", "pool", "scratch", "problem"),
    [
        pytest.param(YARN, "default", "default", "pool default is where", id="Spark's default"),
        pytest.param(YARN | POOLS["night"], "default", "theirs", "/mnt/live/tmp", id="inside"),
        pytest.param(YARN, "night", "all", "scratch place all", id="around"),
        pytest.param(YARN, "night", "none", "scratch place none", id="around all"),
        pytest.param(
            YARN | {"spark.local.dir": "/mnt/x, /mnt/live/a"}, "night", "default", "/mnt/live/a",
            id="a folder of the profile",
        ),
        pytest.param(YARN, "noon", "default", "compute.pool is noon", id="no such pool"),
        pytest.param(YARN, "night", "attic", "compute.scratch is attic", id="no such place"),
        pytest.param(YARN, "server", "spare", "its own place", id="place of a server"),
    ],
)  # fmt: skip
def test_a_place_of_a_live_job_or_of_no_name_is_refused(
    spark: dict[str, str], pool: str, scratch: str, problem: str
) -> None:
    with pytest.raises((Blocked, ConfigError)) as refused:
        require_apart(spark, places(), pool, scratch)
    assert problem in refused.value.problem
    assert refused.value.state == "nothing was planned, computed or changed"


@pytest.mark.parametrize("path", ["link/tmp", "spare/../live", "live"])
def test_a_scratch_place_that_leads_to_that_of_a_live_job_is_refused(
    path: str, tmp_path: Path
) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "live")
    own = {"spare": f"{tmp_path}/{path}"}
    live = LIVE | {"scratch": [f"file://{tmp_path}/live"]}
    with pytest.raises(Blocked, match="scratch place spare"):
        require_apart(YARN, places(scratch=own, live=[live]), "night", "spare")


def test_the_default_scratch_place_may_be_that_of_a_live_job() -> None:
    live = LIVE | {"scratch": [tempfile.gettempdir()]}
    with pytest.raises(Blocked, match="scratch place default"):
        require_apart(YARN, places(live=[live]), "night", "default")


@pytest.mark.parametrize("variable", ["SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS"])
def test_a_folder_of_the_environment_may_be_that_of_a_live_job(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes it where no scratch place is named, whatever its settings say."""
    monkeypatch.setenv(variable, "/mnt/x,/mnt/live/a")
    spark = YARN | {"spark.local.dir": "/mnt/own"}
    with pytest.raises(Blocked, match=r"scratch place default \(/mnt/live/a\)"):
        require_apart(spark, places(), "night", "default")
    assert "temporary data in /mnt/x,/mnt/live/a" in describe_place(spark, places())
    named = require_apart(spark, places(), "night", "spare")
    assert "temporary data in /mnt/spare" in describe_place(named, places())


def test_java_has_its_own_folder_for_temporary_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/mnt/python")
    for folder in ("/tmp", "/mnt/python"):
        with pytest.raises(Blocked, match=folder):
            require_apart(YARN, places(live=[LIVE | {"scratch": [folder]}]), "night", "default")


def test_settings_of_a_pool_win_and_a_run_has_one_engine() -> None:
    found = require_apart(YARN, places(), "night", "spare")
    assert found == YARN | {"spark.yarn.queue": "night", "spark.local.dir": "/mnt/spare"}
    assert pool_settings(YARN, places(), "server") == {
        "spark.executor.memory": "8g", **POOLS["server"]
    }  # fmt: skip
    assert "token" not in describe_place(POOLS["server"], places())


def _profile(**compute: Any) -> Profile:
    return Profile.model_validate({"catalog": {"name": "l"}, "spark": YARN, "compute": compute})


def test_a_plan_says_where_its_run_computes_and_what_that_was_told_apart_from() -> None:
    profile = _profile(pools=POOLS, scratch=SCRATCH, live=[LIVE])
    found = context(lake(), profile=profile)
    with pytest.raises(Blocked, match="live job ingest computes"):
        make_plan(found, declared(), "bob", None)
    named = declared(compute={"pool": "night", "scratch": "spare"})
    notes = make_plan(found, named, "bob", None).notes
    assert [note for note in notes if note.startswith("computes in")] == [
        "computes in pool night, scratch place spare: spark.master=yarn, spark.yarn.queue=night, "
        "temporary data in /mnt/spare; apart from live jobs: ingest"
    ]
    unlisted = context(lake(), profile=_profile(pools=POOLS, scratch=SCRATCH))
    assert any("declares no live jobs" in n for n in make_plan(unlisted, named, "b", None).notes)


def test_staging_computes_only_in_the_place_that_the_run_names() -> None:
    """A live job that moved into the pool since, and a process of another pool, stop it."""
    found = context(lake(), profile=_profile(pools=POOLS, scratch=SCRATCH, live=[LIVE]))
    run_id = approved_run(found, declared(compute={"pool": "night", "scratch": "spare"}))
    with pytest.raises(Blocked, match="this process computes in pool default") as other:
        stage(found, run_id, "bob")
    assert "nothing was computed" in other.value.state
    moved = LIVE | {"spark": POOLS["night"]}
    profile = _profile(pools=POOLS, scratch=SCRATCH, live=[moved])
    with pytest.raises(Blocked, match="pool night is where the live job ingest computes"):
        stage(dataclasses.replace(found, profile=profile), run_id, "bob")
    place = Compute(pool="night", scratch="spare")
    stage(dataclasses.replace(found, place=lambda: place), run_id, "bob")
    begun = [e.detail for e in found.runs.events(run_id) if e.detail.get("engine")][-1]
    assert (begun["pool"], begun["scratch"]) == ("night", "spare")


def test_a_session_has_a_folder_of_its_own_in_a_scratch_place_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    from lakehouse_backfill.adapters.spark.session import place
    from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
    from lakehouse_backfill.domain.guards.compute import PLACE_SETTING

    names = {PLACE_SETTING: "night spare", "spark.local.dir": str(tmp_path)}
    settings = SparkSettings(catalog="lake", options=names)
    with place.own_scratch(settings) as own:
        (folder,) = tmp_path.iterdir()
        assert own.options["spark.local.dir"] == str(folder)
        assert own.options["spark.sql.warehouse.dir"] == f"{folder}/warehouse"
    place.drop_scratch()
    with pytest.raises(RuntimeError), place.own_scratch(settings):
        raise RuntimeError("Spark did not start")
    assert list(tmp_path.iterdir()) == []
    missing = SparkSettings(catalog="lake", options=names | {"spark.local.dir": "/nowhere/at/all"})
    with pytest.raises(ConfigError, match=r"scratch place spare \(/nowhere/at/all\) cannot be"):
        place.own_scratch(missing).__enter__()
