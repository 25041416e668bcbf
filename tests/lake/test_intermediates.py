"""Intermediate results of transforms: computed once, and found while their key is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.iceberg.shadow.run_files import IcebergRunFiles
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.spark.staging.staging import SparkStaging
from lakehouse_backfill.core.staging.scratch import remove_with_files
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.retention import INTERMEDIATE_TABLE
from lakehouse_backfill.errors import ConfigError, WriteForbidden
from lakehouse_backfill.ports.compute import KeptIntermediate
from tests.support.fakes.kills import Killed, killed_at
from tests.support.spark.lake import DAYS, Lake, PlanMaker

pytestmark = pytest.mark.req("X6")

Daily = Callable[..., PlanMaker]
RESTRICTED = {
    "columns": [{"name": "d", "type": "date"}, {"name": "v", "type": "long"}],
    "privacy": {"columns": {"v": {"classification": "restricted"}}},
}
#: Two products of one file, with a result that both read; it counts how often it is computed.
JOB = """
from lakehouse_backfill.transforms import intermediate, transform
from pyspark.sql import functions as F

@intermediate(name="by_day", inputs=("rates",), config=("factor",))
def by_day(config, rates):
    {body}
    return rates.groupBy("d").agg((F.sum("v") * config["factor"]).alias("rate"))

@transform(name="copy", version="1.0.0", inputs=("src", "by_day"))
def copy(context, src, by_day):
    return src.join(by_day, "d").select("d", "k", (F.col("v") + F.col("rate")).alias("v"))

@transform(name="other", version="1.0.0", inputs=("src", "by_day"))
def other(context, src, by_day):
    return src.join(by_day, "d").select("d", "k", F.col("rate").alias("v"))
"""


@dataclasses.dataclass
class World:
    """A lake whose job reads an intermediate result of the table `rates`."""

    lake: Lake
    daily: Daily
    staging: SparkStaging

    def job(self, body: str = "pass") -> None:
        self.lake.job(JOB.replace("{body}", body))

    def plan(self, run_id: str = "bf-1", **fields: Any) -> Plan:
        values = {"references": ("rates",), "config": {"factor": 2, "beside": 1}, "per_chunk": 1}
        return PlanMaker(self.lake, **(values | fields)).make(run_id)

    def keep(self, plan: Plan) -> KeptIntermediate:
        (found,) = self.staging.keep_intermediates(plan)
        return found

    def tables(self) -> list[str]:
        namespace = f"{self.lake.namespace}_shadow"
        if not self.lake.catalog.namespace_exists(namespace):
            return []
        return [".".join(name) for name in self.lake.catalog.list_tables(namespace)]


@pytest.fixture
def world(lake: Lake, daily: Daily) -> World:
    daily()
    lake.create_daily("rates", 100)
    made = World(lake, daily, lake.staging())
    made.job()
    return made


def expected(day: str, factor: int = 2) -> set[tuple[date, int, int]]:
    """The rows of a day: the day's rates summed, times the factor, added to each value."""
    of_day = [n for n in range(40) if 1 + n % 10 == int(day[-2:])]
    rate = sum(n * 100 for n in of_day) * factor
    return {(date.fromisoformat(day), n, n + rate) for n in of_day}


def test_chunks_and_later_runs_and_other_products_read_what_was_computed_once(
    world: World,
) -> None:
    plan = world.plan()
    assert world.staging.intermediates(plan) == ("by_day",)
    kept = world.keep(plan)
    assert (kept.name, kept.was_there, kept.because) == ("by_day", False, "")
    assert INTERMEDIATE_TABLE.fullmatch(kept.table)
    for chunk in plan.resolved.chunks:
        # Its analysed plan is of all that is computed; the commit reads the kept result.
        world.staging.analysed_plan(plan, chunk)
        world.staging.stage(plan, chunk, 1)
    rows = {row for row in world.lake.rows("shadow") if str(row[0]) in DAYS[4:6]}
    assert rows == expected(DAYS[4]) | expected(DAYS[5])
    told = [one.get("lakehouse-backfill.intermediates") for one in world.lake.snapshots("shadow")]
    assert told[-2:] == [f"by_day={kept.table}@{kept.snapshot_id}"] * 2

    again = kept._replace(was_there=True)
    assert world.keep(world.plan("bf-2", config={"factor": 2, "beside": 9})) == again
    assert world.keep(world.plan("bf-3", transform=("other", "1.0.0"))) == again
    # Another process starts with nothing but the lake.
    assert dataclasses.replace(world, staging=world.lake.staging()).keep(plan) == again
    assert world.tables() == [kept.table]


def test_a_kept_result_is_read_by_chunks_of_its_run_and_by_no_proof(
    world: World,
) -> None:
    plan = world.plan()
    kept = world.keep(plan)
    first, second = plan.resolved.chunks
    reads = []
    spark_read = world.lake.tables.read

    def read(self: Any, table: str, snapshot_id: int | None, options: Any = None) -> Any:
        reads.append(table)
        return spark_read(table, snapshot_id, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.lake.tables), "read", read)
        world.staging.stage(plan, first, 1)
        assert kept.table in reads
        # A scratch table of `reproduce`, `audit` and `try` is another shadow of the same run.
        world.lake.sql("CREATE TABLE {ns}.again (d date, k bigint, v bigint) PARTITIONED BY (d)")
        proof = plan.model_copy(update={"shadow_table": world.lake.table("again")})
        for act in (
            lambda: world.staging.stage(proof, second, 1),
            lambda: world.staging.analysed_plan(plan, second),
            lambda: world.staging.prove_determinism(plan, DAYS[4]),
            lambda: world.staging.prove_warm_up(plan, DAYS[4]),
        ):
            reads.clear()
            act()
            assert reads
            assert kept.table not in reads


@pytest.mark.parametrize("change", ["snapshot", "code", "config"])
def test_a_result_of_other_snapshots_code_or_configuration_is_another_one(
    world: World, change: str
) -> None:
    before = world.keep(world.plan())
    plan, staging = world.plan("bf-2"), world.staging
    if change == "snapshot":
        world.lake.append("rates", (date(2024, 1, 5), 99, 1))
        plan = world.plan("bf-2")
    if change == "code":
        world.job("rates = rates.where('v > 0')")
        # The plan has the hash of the file.
        resolved = plan.resolved.model_copy(update={"code_hash": "1" * 64})
        plan, staging = plan.model_copy(update={"resolved": resolved}), world.lake.staging()
    if change == "config":
        plan = world.plan("bf-2", config={"factor": 3})
    kept = dataclasses.replace(world, staging=staging).keep(plan)
    assert (kept.was_there, kept.table == before.table) == (False, False)
    staging.stage(plan, plan.resolved.chunks[0], 1)
    rows = {row for row in world.lake.rows("shadow") if str(row[0]) == DAYS[4]}
    extra = {"snapshot": 2, "code": 0, "config": 0}[change]
    factor = 3 if change == "config" else 2
    assert rows == {(d, k, v + extra) for d, k, v in expected(DAYS[4], factor)}


def test_a_driver_that_is_killed_around_the_commit_leaves_nothing_or_the_whole_result(
    world: World,
) -> None:
    plan = world.plan()
    for point, was_there in (("committing", False), ("committed", True)):
        with pytest.raises(Killed), killed_at(f"Spark.keep_intermediate:{point}"):
            world.keep(plan)
        assert len(world.tables()) == was_there
    assert world.keep(plan).was_there
    assert fault_points._hook is None


def test_a_table_that_is_not_what_was_kept_is_not_read(world: World) -> None:
    plan = world.plan()
    kept = world.keep(plan)
    world.lake.catalog.load_table(kept.table).append(
        world.lake.catalog.load_table(kept.table).scan().to_arrow()
    )
    again = dataclasses.replace(world, staging=world.lake.staging()).keep(plan)
    assert (again.table, again.was_there) == ("", False)
    assert again.because


def test_restricted_values_are_not_kept_and_sources_are_refused(world: World) -> None:
    kept = world.keep(world.plan(contract=RESTRICTED))
    assert (kept.table, kept.because) == (
        "", "the run has restricted columns: their values leave nothing behind",
    )  # fmt: skip
    assert world.tables() == []
    world.lake.job(JOB.replace("{body}", "pass").replace('inputs=("rates",)', 'inputs=("src",)'))
    staging = world.lake.staging()
    with pytest.raises(ConfigError, match="by_day reads src, which is no reference data"):
        staging.keep_intermediates(world.plan())


def test_its_function_is_guarded_as_the_transform_is(world: World) -> None:
    world.job("rates.writeTo('lake.x.y').create()")
    with pytest.raises(WriteForbidden):
        world.lake.staging().keep_intermediates(world.plan())
    assert world.tables() == []


def test_maintain_removes_it_with_its_files_and_a_later_run_computes_it_again(
    world: World,
) -> None:
    plan = world.plan()
    uuid = str(world.lake.catalog.load_table(world.lake.table("out")).metadata.table_uuid)
    target = plan.resolved.target.model_copy(update={"uuid": uuid})
    resolved = plan.resolved.model_copy(update={"target": target})
    plan = plan.model_copy(update={"resolved": resolved})
    kept = world.keep(plan)
    location = world.lake.catalog.load_table(kept.table).location().removeprefix("file:")
    namespace = f"{world.lake.namespace}_shadow"
    found = _retention_context(world.lake, namespace)
    assert remove_with_files(found, kept.table) is None
    assert world.tables() == []
    assert list(Path(location).rglob("*.parquet")) == []
    again = dataclasses.replace(world, staging=world.lake.staging()).keep(plan)
    assert (again.was_there, again.table) == (False, kept.table)


def _retention_context(lake: Lake, namespace: str) -> Any:
    """What removes a table with its files."""
    return SimpleNamespace(
        tables=IcebergTables(lake.catalog),
        run_files=IcebergRunFiles(lake.catalog, namespace),
        shadows=IcebergShadows(lake.catalog, namespace),
    )
