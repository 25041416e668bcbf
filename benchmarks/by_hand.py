"""The same safety by hand, as a careful team writes it around an overwrite.

The rows go to a branch of the table. A suite of Great Expectations judges them there, rows are
counted and hashed by month on both sides, and both sides are compared by EXCEPT ALL. Then the table
is fast-forwarded to the branch.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks import workload
from benchmarks.ratios import seconds
from benchmarks.workload import BARE, SOURCE, name
from lakehouse_backfill.project import Project

SUITE = "expectations/lines.json"
_BRANCH = "by_hand"


def _between(column: str, low: float, high: float) -> dict[str, Any]:
    kwargs = {"column": column, "min_value": low, "max_value": high}
    return {"type": "expect_column_values_to_be_between", "kwargs": kwargs}


_KEYS = ["l_orderkey", "l_linenumber"]
_EXPECTATIONS: list[dict[str, Any]] = [
    {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}},
    *(
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": column}}
        for column in (*_KEYS, "l_shipdate", "l_comment")
    ),
    {"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": _KEYS}},
    _between("l_linenumber", 1, 7),
    _between("l_suppkey", 0, 10_000),
    {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "l_returnflag", "value_set": ["A", "N", "R"]},
    },
    {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "l_linestatus", "value_set": ["F", "O"]},
    },
]


def write_suite(project: Project) -> None:
    """Write the suite that both are held to."""
    path = project.folder / SUITE
    path.parent.mkdir(parents=True, exist_ok=True)
    suite = {"name": "lines", "expectations": _EXPECTATIONS}
    path.write_text(json.dumps(suite), encoding="utf-8")


def restate(project: Project) -> float:
    """Restate the months by hand; return its seconds. The table is wrong again then."""
    spark, table = project.wiring.spark, project.wiring.catalog.load_table(BARE)
    before = table.metadata.current_snapshot_id
    took = seconds(lambda: _restate(spark))
    spark.sql(f"CALL lake.system.set_current_snapshot('{BARE}', {before})")
    spark.sql(f"ALTER TABLE {name(BARE)} DROP BRANCH {_BRANCH}")
    return took


def _restate(spark: Any) -> None:
    target = name(BARE)
    spark.sql(f"ALTER TABLE {target} CREATE BRANCH {_BRANCH}")
    rows = spark.table(name(SOURCE)).where(workload.MONTHS)
    rows.writeTo(f"{target}.branch_{_BRANCH}").overwritePartitions()
    new = spark.read.option("branch", _BRANCH).table(target).where(workload.MONTHS)
    old = spark.table(target).where(workload.MONTHS)
    assert _judged(new), "the rows are right"
    assert len(_sums(old)) == len(_sums(new))
    for first, second in ((old, new), (new, old)):
        first.exceptAll(second).count()
    spark.sql(f"CALL lake.system.fast_forward('{BARE}', 'main', '{_BRANCH}')")


def _sums(rows: Any) -> Any:
    columns = ", ".join(rows.columns)
    month, mark = "trunc(l_shipdate, 'MM')", f"xxhash64({columns})"
    sums = ("count(1) AS n", f"bit_xor({mark}) AS x")
    from pyspark.sql import functions as F

    return rows.groupBy(F.expr(month)).agg(*map(F.expr, sums)).collect()


def _judged(rows: Any) -> bool:
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    source = context.data_sources.add_spark("spark")
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("whole")
    suite = gx.ExpectationSuite(name="lines", expectations=_EXPECTATIONS)
    definition = gx.ValidationDefinition(name="lines", data=batch, suite=suite)
    context.suites.add(suite)
    return bool(definition.run(batch_parameters={"dataframe": rows}).success)
