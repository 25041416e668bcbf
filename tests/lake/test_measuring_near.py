"""Few rows are measured in this process: the same checksums and totals as Spark computes."""

from __future__ import annotations

from datetime import date

import pytest

from lakehouse_backfill.adapters.local.measuring.measuring import LocalMeasurer, MeasuringBySize
from lakehouse_backfill.adapters.local.scan import PinnedCounts, count_rows
from lakehouse_backfill.adapters.spark.dataframes import range_filter
from lakehouse_backfill.adapters.spark.measuring.measuring import SparkMeasuring
from lakehouse_backfill.domain.contract import Measure
from lakehouse_backfill.domain.partitions import RowRange, Scope, ScopeField
from lakehouse_backfill.errors import Unsupported
from tests.support.spark.lake import Lake

MONTH = ScopeField(column="d", transform="month", type="date")
MEASURES = (
    Measure(name="rows", count="k"),
    Measure(name="money", sum="m"),
    Measure(name="number", sum="k"),
    Measure(name="texts", counts_by="s"),
    Measure(name="lost", count="absent"),
)
#: Each number makes one row: nulls, negative values, texts of all lengths, one long.
_ROWS = """SELECT
    date_add(date'2023-12-20', cast(id % 70 as int)) AS d,
    if(id % 7 = 0, null, id * 1000003 - 5000000) AS k,
    cast(if(id % 5 = 0, null, (id - 150) * 1.37) as decimal(15,2)) AS m,
    element_at(array('null', '=x', 'é€', '', null), cast(id % 5 + 1 as int)) AS s,
    if(id = 40, repeat(sha1('long'), 2000), if(id % 3 = 0, null,
        substring(repeat(sha1(string(id)), 3), 1, cast(id % 101 as int)))) AS t,
    cast(unhex(sha1(string(id))) as binary) AS b,
    cast(if(id % 4 = 0, -0.0, if(id % 9 = 0, 'NaN', id / 3)) as double) AS x,
    cast(id / 7 as float) AS y, id % 2 = 0 AS f, cast(id as int) AS i,
    timestamp_micros(id * 1234567890123) AS at,
    cast(timestamp_micros(-id * 987654321) as timestamp_ntz) AS local
FROM range({rows})"""


def make(lake: Lake, name: str, rows: int, *more: str) -> tuple[str, int | None]:
    lake.sql(
        f"CREATE TABLE {{ns}}.{name} USING iceberg PARTITIONED BY (months(d)) "
        "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read') AS "
        + _ROWS.format(rows=rows)
    )
    for statement in more:
        lake.sql(statement)
    return lake.table(name), lake.head(name)


@pytest.mark.req("Q4", "Q6")
def test_both_sides_by_partition_and_file_are_measured_as_spark_measures_them(lake: Lake) -> None:
    old = make(lake, "near_old", 400, "DELETE FROM {ns}.near_old WHERE k < 0")
    new = make(lake, "near_new", 300, "INSERT INTO {ns}.near_new SELECT * FROM {ns}.near_old")
    near, spark = LocalMeasurer(lake.catalog), SparkMeasuring(lake.tables)
    scope = Scope(field=MONTH, partitions=("2024-01", "2024-02", "2024-05"))
    for ignore in ((), ("t", "at")):
        for measures in (MEASURES, ()):
            expected = spark.measure(old, new, scope, measures, ignore, earlier=("2023-12",))
            assert near.measure(old, new, scope, measures, ignore, earlier=("2023-12",)) == expected
    files = spark.by_file(*new, scope, ("x",))
    skip = frozenset([next(path for _, path in files)])
    assert near.by_file(*new, scope, ("x",)) == files
    assert near.by_file(*new, scope, ("x",), skip) == spark.by_file(*new, scope, ("x",), skip)
    by_day = Scope(
        field=ScopeField(column="d", transform="day", type="date"),
        partitions=("2024-01-05", "2024-02-01"),
    )
    assert near.by_file(*new, by_day) == spark.by_file(*new, by_day)
    counts = {"2024-01": (5, 5), "2024-02": (1, 1)}
    two = (MEASURES[0], MEASURES[4])
    for pair in ((old, new), (old, (new[0], None)), ((old[0], None), new)):
        found = [
            each.measure(*pair, scope, two, old_is_known=True, old_measures=counts)
            for each in (near, spark)
        ]
        assert found[0] == found[1]


@pytest.mark.req("Q4")
def test_what_may_differ_from_spark_and_what_is_many_is_measured_by_spark(lake: Lake) -> None:
    place = make(lake, "near_large", 40)
    scope = Scope(field=MONTH, partitions=("2024-01",))
    spark = SparkMeasuring(lake.tables)
    few = LocalMeasurer(lake.catalog, max_values=100)
    with pytest.raises(Unsupported, match="more than 100"):
        few.by_file(*place, scope)
    floats = (Measure(name="y", sum="y"),)
    with pytest.raises(Unsupported, match="summed by Spark"):
        LocalMeasurer(lake.catalog).measure(place, place, scope, floats)
    by_size = MeasuringBySize(few, spark)
    assert by_size.by_file(*place, scope) == spark.by_file(*place, scope)
    assert by_size.measure(place, place, scope, floats) == spark.measure(
        place, place, scope, floats
    )
    assert by_size.checksums(*place, scope) == spark.checksums(*place, scope)


@pytest.mark.req("Q4")
def test_metadata_counts_the_rows_of_ranges_or_says_that_they_must_be_read(lake: Lake) -> None:
    whole = make(lake, "near_counted", 200)
    cut = make(
        lake, "near_cut", 200, "DELETE FROM {ns}.near_cut WHERE k BETWEEN 8000000 AND 12000000"
    )
    by_month, by_day = (
        RowRange("d", date(2024, 1, first), date(2024, 3, 1)) for first in (1, 5)
    )  # fmt: skip
    pinned = PinnedCounts(lake.catalog)
    for place, rows, is_known in (
        (whole, (), True), (whole, (by_month,), True), (whole, (by_day,), False),
        (cut, (), False), (cut, (by_month,), False),
        (cut, (RowRange("d", date(2024, 2, 1), date(2024, 3, 1)),), True),
    ):  # fmt: skip
        frame = lake.tables.read(*place)
        frame = frame.where(range_filter(rows)) if rows else frame
        expected = frame.count() if is_known else None
        asked = str(place[0]), place[1] or 0, rows
        assert count_rows(lake.catalog, *asked) == pinned.count(*asked) == expected
