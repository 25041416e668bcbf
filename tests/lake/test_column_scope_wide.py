"""Restated columns of wide and of random tables: other columns keep their bytes, by other code.

The oracles read the files by PyIceberg into Arrow: bytes of sorted columns, DuckDB, plain Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.staging.compose import ChunkComposer
from lakehouse_backfill.core.validation.column_scope import column_checks
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.manifest import Target
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import ChecksFailed
from tests.support.spark.lake import DAYS, Lake, PlanMaker
from tests.support.spark.modes import LakeProject

pytestmark = pytest.mark.lake

#: Of each type 8 columns: 48, and d and k.
KINDS = {
    "long": "bigint", "double": "double", "string": "string", "decimal": "decimal(12,2)",
    "instant": "timestamp", "list": "array<struct<a: int, b: map<string, double>>>",
}  # fmt: skip
WIDE = [(f"{kind}_{number}", KINDS[kind]) for kind in KINDS for number in range(8)]
JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="wide", version="1.0.0", inputs=("src",))
def job(context, src):
    return src.select("d", "k", *context.config["give"])
"""


class Wide(LakeProject):
    transform = "wide"


def _value(kind: str, seed: int) -> Any:
    """Make a value of a kind: nulls, NaN, -0.0, empty and odd texts among them."""
    if seed % 7 == 3:
        return None
    odd = {0: float("nan"), 1: -0.0, 2: float("inf")}
    pairs = [(f"é{seed}", odd.get(seed % 5, seed / 3)), ("", None)]
    return {
        "long": seed * 2**40, "double": odd.get(seed % 5, seed / 7),
        "string": "" if seed % 5 == 1 else f"ß{seed}", "decimal": Decimal(seed) / 100,
        "instant": datetime(2024, 1, 1, 0, 0, 0, seed % 1000, tzinfo=timezone.utc),
        "list": [{"a": seed, "b": dict(pairs)}, {"a": None, "b": {}}],
    }[kind]  # fmt: skip


def _table(seed: int, days: int = 4, keys: int = 6) -> list[tuple[Any, ...]]:
    places = [(day, key) for day in range(1, days + 1) for key in range(keys)]
    return [
        (date(2024, 1, day), key,
         *(_value(name.partition("_")[0], seed + at * 13 + day * 5 + key)
           for at, (name, _) in enumerate(WIDE)))
        for day, key in places
    ]  # fmt: skip


@pytest.fixture
def wide(lake: Lake) -> Wide:
    """A product of 50 columns; its source says another value in each of them."""
    kinds = {"bigint": "long", "timestamp": "timestamptz", "decimal(12,2)": "decimal(12, 2)"}
    # What contracts cannot name, nested columns, the table has beside them.
    named = [("d", "date"), ("k", "long")]
    named += [(name, kinds.get(kind, kind)) for name, kind in WIDE if not name.startswith("list")]
    columns = ", ".join(f"{name} {kind}" for name, kind in [("d", "date"), ("k", "bigint"), *WIDE])
    for short, seed in (("out", 0), ("src", 1000)):
        lake.sql(f"CREATE TABLE {{ns}}.{short} ({columns}) PARTITIONED BY (d)")
        rows = lake.spark.createDataFrame(_table(seed), columns)
        rows.writeTo(f"{lake.name}.{lake.table(short)}").append()
    return Wide(lake, JOB, named, lineage_columns=False)


def _arrow(lake: Lake, short: str = "out") -> pa.Table:
    """Read the table by PyIceberg, in the order of its key."""
    found = lake.catalog.load_table(lake.table(short)).scan().to_arrow()
    return found.sort_by([("d", "ascending"), ("k", "ascending")]).combine_chunks()


def _bytes_by_column(table: pa.Table, day: date) -> dict[str, str]:
    """Hash the bytes of each column's values in one partition, nulls and NaN as they lie there."""
    part = table.filter(pa.compute.equal(table["d"], day)).combine_chunks()
    hashes = {}
    for name in part.column_names:
        sink = pa.BufferOutputStream()
        column = part.select([name]).combine_chunks()
        with pa.ipc.new_stream(sink, column.schema) as stream:
            stream.write_table(column)
        hashes[name] = hashlib.sha256(sink.getvalue()).hexdigest()
    return hashes


@pytest.mark.req("P9")
def test_of_50_columns_two_are_restated_and_48_keep_their_bytes(wide: Wide) -> None:
    lake, restated = wide.lake, ("double_3", "string_1")
    before = _arrow(lake)
    run_id = wide.plan(config={"give": list(restated)}, target={"columns": list(restated)})
    done = wide.project.run(run_id, "ann").to_dict()
    assert done["state"] == "validated", [c for c in done["checks"] if not c["passed"]]
    wide.project.accept(run_id, by="lead")
    wide.project.publish(run_id, by="lead")
    after, source = _arrow(lake), _arrow(lake, "src")
    assert (len(before.column_names), after.schema.names) == (50, before.schema.names)
    for day in (date(2024, 1, number) for number in range(1, 5)):
        old, new, wanted = (_bytes_by_column(one, day) for one in (before, after, source))
        is_in_run = day in (date(2024, 1, 2), date(2024, 1, 3))
        expected = {
            name: wanted[name] if is_in_run and name in restated else old[name] for name in old
        }
        assert new == expected, day
    others = [name for name, _ in WIDE if name not in restated]
    differs = " OR ".join(f"a.{name} IS DISTINCT FROM b.{name}" for name in others)
    connection = duckdb.connect()
    connection.register("a", before)
    connection.register("b", after)
    found = connection.sql(
        f"SELECT count(*), count_if(a.k IS NULL OR b.k IS NULL OR {differs}), "
        f"count_if(a.string_1 IS DISTINCT FROM b.string_1) FROM a FULL JOIN b USING (d, k)"
    ).fetchall()
    assert [row[:2] for row in found] == [(24, 0)]
    assert found[0][2] > 0


@pytest.mark.req("P9")
def test_another_column_of_any_type_that_changes_stops_the_run(wide: Wide) -> None:
    before = wide.lake.head("out")
    for other in ("double_0", "decimal_7", "list_5"):
        run_id = wide.plan(config={"give": ["string_1", other]}, target={"columns": ["string_1"]})
        with pytest.raises(
            ChecksFailed, match=rf"another column \({other} in \d+\): d=2024-01-02 k="
        ):
            wide.project.run(run_id, "ann")
        wide.project.cancel(run_id, by="lead")
    assert wide.lake.head("out") == before


@pytest.mark.req("P9")
def test_all_columns_may_be_given_as_they_are(wide: Wide) -> None:
    """NaN, -0.0, nulls, and maps whose entries have no order, are equal to themselves."""
    lake = wide.lake
    lake.sql("INSERT OVERWRITE {ns}.src SELECT * FROM {ns}.out")
    lake.sql("UPDATE {ns}.src SET long_4 = 7")
    config = {"give": [name for name, _ in WIDE]}
    run_id = wide.plan(config=config, target={"columns": ["long_4"]})
    done = wide.project.run(run_id, "ann").to_dict()
    assert done["state"] == "validated", [c for c in done["checks"] if not c["passed"]]


#: Slow jobs: few examples, which are many cases.
FEW = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
FREE = ("a", "b", "c", "e")
SHAPE = "d date, k bigint, a bigint, b string, c double, e array<bigint>"
_numbers, _texts = st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "x"])
_floats = st.none() | st.sampled_from([0.0, float("nan"), 1.5])
_lists = st.none() | st.lists(_numbers, max_size=2)
_cells = st.tuples(_numbers, _texts, _floats, _lists)
#: Keys may repeat, and be missing, on each side.
_sides = st.lists(st.tuples(st.integers(0, 9), _cells), max_size=8)


@pytest.fixture
def day(lake: Lake) -> Plan:
    """A plan over one day of a table without rows."""
    for short in ("src", "out", "shadow"):
        lake.sql(f"CREATE TABLE {{ns}}.{short} ({SHAPE}) PARTITIONED BY (d)")
    lake.sql("INSERT INTO {ns}.src (d, k) VALUES (date'2024-01-05', 1)")
    return PlanMaker(lake, partitions=DAYS[4:5], contract={"lineage_columns": False}).make()


def _over(lake: Lake, plan: Plan, columns: list[str], rows: list[dict[str, Any]]) -> Plan:
    """The plan for these columns, over a base that holds exactly these rows."""
    _write(lake, "out", plan, rows)
    days = {"column": "d", "values": [DAYS[4]]}
    wanted = Target.model_validate({"partitions": days, "columns": columns})
    manifest = plan.resolved.manifest.model_copy(update={"target": wanted})
    target = plan.resolved.target.model_copy(update={"snapshot_id": lake.head("out")})
    resolved = plan.resolved.model_copy(update={"manifest": manifest, "target": target})
    return plan.model_copy(update={"resolved": resolved})


def _write(lake: Lake, short: str, plan: Plan, rows: list[dict[str, Any]]) -> None:
    where = dataframes.range_filter(partitions.scope_row_ranges(plan.resolved.scope))
    frame = lake.spark.createDataFrame(rows, SHAPE)
    frame.writeTo(f"{lake.name}.{lake.table(short)}").overwrite(where)


def _rows(found: Any) -> list[dict[str, Any]]:
    then = date.fromisoformat(DAYS[4])
    return [{"d": then, "k": key, **dict(zip(FREE, cells, strict=True))} for key, cells in found]


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def _model(
    base: list[dict[str, Any]], job: list[dict[str, Any]], restated: list[str], given: list[str]
) -> list[dict[str, Any]] | None:
    """What the partition must hold; None: the run must be stopped."""
    keys, theirs = [row["k"] for row in base], [row["k"] for row in job]
    if sorted(keys) != sorted(theirs) or len(set(keys)) != len(keys):
        return None
    by_key = {row["k"]: row for row in job}
    kept = [name for name in given if name not in restated]
    if any(not _same(row[name], by_key[row["k"]][name]) for row in base for name in kept):
        return None
    return [row | {name: by_key[row["k"]][name] for name in restated} for row in base]


@contextmanager
def _composed(lake: Lake, plan: Plan, job: Any) -> Iterator[Any]:
    schema = lake.spark.table(f"{lake.name}.{lake.table('out')}").schema
    composer = ChunkComposer(lake.tables)
    with composer.compose(plan, plan.resolved.scope, job, schema) as done:
        yield done


@pytest.mark.req("P9")
def test_random_tables_come_out_as_a_model_says_or_are_stopped(lake: Lake, day: Plan) -> None:
    subsets = st.lists(st.sampled_from(FREE), min_size=1, unique=True)

    @FEW
    @given(_sides, _sides, subsets, subsets, st.booleans(), st.booleans())
    def check(
        held: Any, said: Any, restated: list[str], more: list[str],
        has_equal_keys: bool, keeps_others: bool,
    ) -> None:  # fmt: skip
        base, job = _rows(held), _rows(said)
        if has_equal_keys:
            base = list({row["k"]: row for row in base}.values())
            given_rows = [cells for _, cells in said] or [(None,) * len(FREE)]
            job = _rows((row["k"], given_rows[at % len(given_rows)]) for at, row in enumerate(base))
        if has_equal_keys and keeps_others:
            pairs = zip(base, job, strict=True)
            job = [old | {name: new[name] for name in restated} for old, new in pairs]
        columns = [name for name in FREE if name in {*restated, *more}]
        wanted = _model(base, job, restated, columns)
        plan = _over(lake, day, restated, base)
        frame = lake.spark.createDataFrame(job, SHAPE).select("d", "k", *columns)
        if wanted is None:
            with pytest.raises(ChecksFailed), _composed(lake, plan, frame):
                pass
            return
        with _composed(lake, plan, frame) as done:
            found = [row.asDict(recursive=True) for row in done.rows.collect()]
            assert sorted(map(repr, found)) == sorted(map(repr, wanted))

    check()


@pytest.mark.req("P9")
def test_the_gates_find_what_came_into_the_shadow_by_another_way(lake: Lake, day: Plan) -> None:
    """By real checksums: one value of another column, a lost row, a doubled row."""
    from types import SimpleNamespace

    from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
    from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring

    base = _rows((key, (key, "x", 1.5, [key])) for key in range(4))
    plan = _over(lake, day, ["a"], base)
    compute: Any = SimpleNamespace(measuring=SparkMeasuring(lake.tables))
    diff: Any = SimpleNamespace(columns=())

    def passed(rows: list[dict[str, Any]]) -> list[bool]:
        _write(lake, "shadow", plan, rows)
        shadow = IcebergTables(lake.catalog).describe(plan.shadow_table)
        assert shadow is not None
        return [check.passed for check in column_checks(compute, plan, shadow, diff)]

    restated = [row | {"a": 7} for row in base]
    assert passed(restated) == [True, True, True]
    assert passed([restated[0] | {"e": [9]}, *restated[1:]]) == [False, True, True]
    assert passed([restated[0] | {"c": None}, *restated[1:]]) == [False, True, True]
    assert passed(restated[1:]) == [False, False, True]
    assert passed([*restated, restated[0]]) == [False, False, True]
    assert passed([restated[0] | {"k": 99}, *restated[1:]]) == [False, False, True]
