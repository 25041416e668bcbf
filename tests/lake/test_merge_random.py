"""Random histories of keys: Spark's merge gives what a model in plain Python gives, row by row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row as SparkRow

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.staging.compose import ChunkComposer
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.manifest import Target
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import ChecksFailed
from tests.support.oracles.merging import Clash, merge
from tests.support.spark.lake import DAYS, Lake, PlanMaker

pytestmark = pytest.mark.lake

#: Keys of one example: each has a history of its own, so that one job decides on all of them.
KEYS = 60
#: Slow jobs: few examples, which are many cases.
FEW = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

one_version = st.tuples(st.integers(1, 4), st.integers(0, 2), st.booleans())
#: Of each key: its row in the table (version, content) if any, and what changes say.
histories = st.lists(
    st.tuples(
        st.none() | st.tuples(st.integers(1, 4), st.integers(0, 2)),
        st.lists(one_version, max_size=3),
    ),
    min_size=KEYS,
    max_size=KEYS,
)
Daily = Callable[..., PlanMaker]
COLUMNS = ("d", "k", "ver", "v")
TABLE = "d date, k bigint, ver bigint, v bigint"


def with_target(plan: Plan, **target: Any) -> Plan:
    """The same plan with another target in its manifest."""
    days = {"column": "d", "values": [DAYS[4]]}
    wanted = Target.model_validate({"partitions": days, **target})
    manifest = plan.resolved.manifest.model_copy(update={"target": wanted})
    resolved = plan.resolved.model_copy(update={"manifest": manifest})
    return plan.model_copy(update={"resolved": resolved})


def rows_of(found: list[SparkRow]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in COLUMNS) for row in found)


@pytest.fixture
def day(lake: Lake) -> Plan:
    """A plan over one day of a table (d, k, ver, v) without rows."""
    for short in ("src", "out", "shadow"):
        lake.sql(f"CREATE TABLE {{ns}}.{short} ({TABLE}) PARTITIONED BY (d)")
    lake.sql("INSERT INTO {ns}.src VALUES (date'2024-01-05', 1, 1, 1)")
    return PlanMaker(lake, partitions=DAYS[4:5]).make()


def base_of(lake: Lake, rows: list[dict[str, Any]]) -> int | None:
    """Let the table hold exactly these rows."""
    lake.spark.createDataFrame(rows or [], TABLE).writeTo(
        f"{lake.name}.{lake.table('out')}"
    ).overwrite(
        dataframes.range_filter(
            partitions.scope_row_ranges(Scope(field=_FIELD, partitions=DAYS[4:5]))
        )
    )
    return lake.head("out")


_FIELD = PlanMaker.scope_field


def at(plan: Plan, snapshot_id: int | None) -> Plan:
    target = plan.resolved.target.model_copy(update={"snapshot_id": snapshot_id})
    return plan.model_copy(update={"resolved": plan.resolved.model_copy(update={"target": target})})


@pytest.mark.long
@pytest.mark.req("U4")
def test_a_merge_gives_what_the_model_gives(lake: Lake, day: Plan) -> None:
    merged = with_target(day, publish_mode="merge", merge={"version": "ver", "deleted": "gone"})
    scope, schema = day.resolved.scope, lake.spark.table(f"{lake.name}.{lake.table('out')}").schema

    @FEW
    @given(histories)
    def check(found: list[Any]) -> None:
        then = date.fromisoformat(DAYS[4])
        base = [
            {"d": then, "k": key, "ver": old[0], "v": old[1]}
            for key, (old, _) in enumerate(found)
            if old is not None
        ]
        changes = [
            {"d": then, "k": key, "ver": ver, "v": v, "gone": gone}
            for key, (_, said) in enumerate(found)
            for ver, v, gone in said
        ]
        keys = ("d", "k")
        clashes: set[Any] = set()
        try:
            merge(base, changes, keys, "ver", "gone")
        except Clash as clash:
            clashes = clash.keys
        plan = at(merged, base_of(lake, base))
        frame = lake.spark.createDataFrame(changes, f"{TABLE}, gone boolean")
        composing = ChunkComposer(lake.tables)
        if clashes:
            with (
                pytest.raises(ChecksFailed, match=rf"{len(clashes)} keys with an equal version"),
                composing.compose(plan, scope, frame, schema),
            ):
                pass
        # Without the keys that contradict themselves the others are merged.
        left = [row for row in changes if (row["d"], row["k"]) not in clashes]
        wanted, counts = merge(base, left, keys, "ver", "gone")
        frame = lake.spark.createDataFrame(left, f"{TABLE}, gone boolean")
        with composing.compose(plan, scope, frame, schema) as done:
            assert rows_of(done.rows.collect()) == sorted(
                tuple(row[name] for name in COLUMNS) for row in wanted
            )
            assert (done.counts, done.outside_rows) == (counts, 0)

    check()


values = st.none() | st.integers(0, 3)


@pytest.mark.req("U1b")
def test_carried_rows_are_those_that_the_predicate_does_not_name(lake: Lake, day: Plan) -> None:
    """Whatever the values and however many rows are equal: nothing is lost, doubled or changed."""
    scope, schema = day.resolved.scope, lake.spark.table(f"{lake.name}.{lake.table('out')}").schema
    rows = st.lists(st.tuples(values, values), max_size=40)
    named = st.dictionaries(
        st.sampled_from(["k", "v"]), st.lists(values, min_size=1, max_size=3), min_size=1
    )

    @FEW
    @given(rows, rows, named)
    def check(held: Any, computed: Any, predicate: dict[str, list[Any]]) -> None:
        then = date.fromisoformat(DAYS[4])

        def made(pairs: Any, ver: int) -> list[dict[str, Any]]:
            return [{"d": then, "k": k, "ver": ver, "v": v} for k, v in pairs]

        def is_named(row: dict[str, Any]) -> bool:
            return all(row[name] in wanted for name, wanted in predicate.items())

        base, job = made(held, 1), made(computed, 2)
        plan = at(with_target(day, row_predicate=predicate), base_of(lake, base))
        kept = [row for row in base if not is_named(row)]
        mine = [row for row in job if is_named(row)]
        frame = lake.spark.createDataFrame(job, TABLE)
        with ChunkComposer(lake.tables).compose(plan, scope, frame, schema) as done:
            found = [tuple(row[name] for name in COLUMNS) for row in done.rows.collect()]
            expected = [tuple(row[name] for name in COLUMNS) for row in kept + mine]
            assert sorted(found, key=repr) == sorted(expected, key=repr)
            assert done.counts.known == {
                "carried_rows": len(kept), "stray_rows": len(job) - len(mine),
            }  # fmt: skip

    check()
