"""How Spark cuts tasks while a chunk is written: never coarser than it would by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehouse_backfill.adapters.spark.write_tasks import TaskSizes, group_sizes
from lakehouse_backfill.core.planning.target.file_sizes import GROUPED, WriteDistribution

_COALESCE = "spark.sql.adaptive.coalescePartitions"
BUCKETS, LEAST = f"{_COALESCE}.initialPartitionNum", f"{_COALESCE}.minPartitionNum"
SHUFFLE, FIRST = "spark.sql.shuffle.partitions", f"{_COALESCE}.parallelismFirst"
GROUPING = "spark.sql.iceberg.planning.preserve-data-grouping"


class Settings:
    """Settings of a session, by name."""

    def __init__(self, **known: str) -> None:
        self.known = known

    def get(self, key: str, default: str | None) -> str | None:
        return self.known.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.known[key] = value

    def unset(self, key: str) -> None:
        self.known.pop(key, None)


def in_force(conf: Settings, cores: int, buckets: int) -> tuple[str | None, str | None]:
    """Return both settings while chunks are written, once others are written beside."""
    spark = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=cores))
    before, sizes = dict(conf.known), TaskSizes(cast("Any", SimpleNamespace(spark=spark)))
    with sizes.in_force(WriteDistribution("hash", buckets=buckets)):
        with sizes.in_force(WriteDistribution("hash", buckets=buckets + 1)):
            found = conf.get(BUCKETS, None), conf.get(LEAST, None)
        assert found == (conf.get(BUCKETS, None), conf.get(LEAST, None))
    assert conf.known == before
    return found


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("known", "cores", "wanted"),
    [
        pytest.param({}, 2, ("200", "12"), id="few cores"),
        pytest.param({SHUFFLE: "8"}, 2, ("200", "12"), id="few partitions of a shuffle"),
        pytest.param({SHUFFLE: "200"}, 400, ("200", "400"), id="a cluster keeps its cores busy"),
        pytest.param({SHUFFLE: "200", FIRST: "false"}, 400, ("200", "12"), id="few tasks wanted"),
        pytest.param(
            {SHUFFLE: "200", BUCKETS: "5000", LEAST: "64"}, 2, ("5000", "64"), id="the user's own"
        ),
        pytest.param({SHUFFLE: "auto"}, 2, ("200", "12"), id="a vendor's Spark"),
    ],
)
def test_what_is_computed_before_the_write_is_cut_no_coarser_than_without_it(
    known: dict[str, str], cores: int, wanted: tuple[str, str]
) -> None:
    assert in_force(Settings(**known), cores, 12) == wanted


@pytest.mark.req("P2")
def test_a_setting_that_the_session_refuses_leaves_none_of_the_others() -> None:
    class Refusing(Settings):
        def set(self, key: str, value: str) -> None:
            if key == LEAST:
                raise ValueError("cannot modify")
            super().set(key, value)

    conf = Refusing(**{SHUFFLE: "8"})
    with pytest.raises(ValueError, match="cannot modify"):
        in_force(conf, 2, 12)
    assert conf.known == {SHUFFLE: "8"}


@pytest.mark.req("P2")
def test_chunks_that_are_cut_in_different_ways_side_by_side_each_have_their_settings() -> None:
    conf = Settings(**{SHUFFLE: "8"})
    spark = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=2))
    sizes = TaskSizes(cast("Any", SimpleNamespace(spark=spark)))
    with sizes.in_force(WriteDistribution("hash", buckets=12)):
        with sizes.in_force(GROUPED), sizes.in_force(GROUPED):
            assert (conf.known[GROUPING], conf.known[BUCKETS]) == ("true", "200")
        assert GROUPING not in conf.known
        assert conf.known[BUCKETS] == "200"
    assert conf.known == {SHUFFLE: "8"}


@pytest.mark.req("P2")
def test_rows_are_moved_on_spark_connect_which_gives_no_plan() -> None:
    frame = cast("Any", SimpleNamespace())
    assert group_sizes(frame, frame) is None


@pytest.mark.req("P2")
@pytest.mark.parametrize(("dynamic", "cores"), [("false", 2), ("true", None)])
def test_cores_that_come_and_go_are_not_counted(dynamic: str, cores: int | None) -> None:
    conf = Settings(**{"spark.dynamicAllocation.enabled": dynamic})
    spark = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=2))
    assert TaskSizes(cast("Any", SimpleNamespace(spark=spark))).cores() == cores
