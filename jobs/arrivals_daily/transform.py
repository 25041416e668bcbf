"""`silver.arrivals_daily`: the flights that reached a destination on one of its local days.

One row for each (arrival_date, dest, carrier). Three releases of the same table:

- 1.0.0 dates a flight by the local day at its destination.
- 1.1.0 dated it by the scheduled New York departure day: the defect that is restated.
- 1.2.0 is the fix, and counts what 1.0.0 counted.

Choices that the column names do not tell: `total_delay` and `flown_minutes` are 0 in a group where
no flight arrived, `mean_delay` is null there. A half of a hundredth in `mean_delay` rounds away
from zero (SQL's and Java's HALF_UP). A flight whose destination has no time zone in `airports`
keeps its row, under a null `arrival_date`: it must show, not vanish in an inner join.

The session time zone must be UTC: days and clock times are cut from UTC-rendered timestamps.
"""

# Every transform is handed a context and all inputs; these need not use each one.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.transforms import transform

_NEW_YORK = "America/New_York"

_DAY = 86_400  # seconds


@transform(name="arrivals_daily", version="1.0.0", inputs=("flights", "airports"))
def arrivals_daily_1_0_0(context: Any, flights: DataFrame, airports: DataFrame) -> DataFrame:
    """Returns arrivals by the local day at the destination."""
    return _summary(_dated_by_destination(flights, airports))


@transform(name="arrivals_daily", version="1.1.0", inputs=("flights", "airports"))
def arrivals_daily_1_1_0(context: Any, flights: DataFrame, airports: DataFrame) -> DataFrame:
    """Returns arrivals by the scheduled New York departure day (wrong, kept for the record)."""
    departed = F.from_utc_timestamp(_scheduled_departure(), _NEW_YORK)
    return _summary(flights.withColumn("arrival_date", F.to_date(departed)))


@transform(name="arrivals_daily", version="1.2.0", inputs=("flights", "airports"))
def arrivals_daily_1_2_0(context: Any, flights: DataFrame, airports: DataFrame) -> DataFrame:
    """Returns arrivals by the local day at the destination, as 1.0.0 did."""
    return _summary(_dated_by_destination(flights, airports))


def _dated_by_destination(flights: DataFrame, airports: DataFrame) -> DataFrame:
    """Returns the flights with `arrival_date`, the local day at which each one arrives.

    From a departure on, the destination's clock keeps the offset from UTC that it has then, or
    changes once, to the one that it has two days later. So the arrival is one of three instants:
    the next that shows the clock time under the first offset, and the next two under the second.
    One that the clock really shows is asked back from the time zone; the earliest of those counts.
    That holds where a clock time is skipped (spring) and where it shows twice (autumn).
    """
    zones = airports.select(F.col("faa").alias("dest"), F.col("tzone").alias("zone"))
    landed = F.col("arr_time").isNotNull()
    actual = F.timestamp_add("MINUTE", F.col("dep_delay"), _scheduled_departure())
    departure = F.when(landed, actual).otherwise(_scheduled_departure())
    clock = F.when(landed, F.col("arr_time")).otherwise(F.col("sched_arr_time"))
    timed = (
        flights.join(zones, "dest", "left")
        .withColumns({"departure": F.unix_seconds(departure), "clock": _second_of_day(clock)})
        .withColumns({"offset": _offset(F.col("departure"))})
        .withColumns({"next_offset": _offset(F.col("departure") + 2 * _DAY)})
        .withColumns({"hit": _next(F.col("offset")), "next_hit": _next(F.col("next_offset"))})
    )
    arrival = F.least(  # least() passes over nulls
        _if_shown(F.col("hit"), F.col("offset")),
        _if_shown(F.col("next_hit"), F.col("next_offset")),
        _if_shown(F.col("next_hit") + _DAY, F.col("next_offset")),
    )
    arrival_date = F.to_date(_local(arrival))
    # Exploding an array of one keeps every row and its value. A filter on the result stays above
    # it; Spark would push it down otherwise, with all the time zone work written out many times.
    return timed.withColumn("arrival_date", F.explode(F.array(arrival_date)))


def _scheduled_departure() -> Column:
    """Returns the instant of the scheduled departure."""
    return F.timestamp_add("MINUTE", F.col("minute"), F.col("time_hour"))


def _second_of_day(clock: Column) -> Column:
    """Returns the second of the day that a clock time such as 517 or 2400 (midnight) names."""
    return (F.floor(clock / 100) * 3600 + clock % 100 * 60) % _DAY


def _local(instant: Column) -> Column:
    """Returns what the destination's clock shows at `instant`, in seconds since 1970 in UTC."""
    return F.from_utc_timestamp(F.timestamp_seconds(instant), F.col("zone"))


def _offset(instant: Column) -> Column:
    """Returns by how many seconds the destination's clock is ahead of UTC at `instant`."""
    return F.unix_seconds(_local(instant)) - instant


def _next(offset: Column) -> Column:
    """Returns the first instant after the departure that shows the clock time under `offset`."""
    earliest = F.col("departure") + 1
    return earliest + F.pmod(F.col("clock") - earliest - offset, F.lit(_DAY))


def _if_shown(instant: Column, offset: Column) -> Column:
    """Returns `instant` when the destination's clock has that offset then, else null."""
    return F.when(_offset(instant) == offset, instant)


def _summary(flights: DataFrame) -> DataFrame:
    """Returns one row for each day, destination and carrier, in the product's column order."""
    grouped = flights.groupBy("arrival_date", "dest", "carrier").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count("arr_delay").alias("arrived"),
        _count(F.col("arr_time").isNotNull() & F.col("arr_delay").isNull()).alias("diverted"),
        _count(F.col("dep_time").isNull()).alias("cancelled"),
        _count(F.col("arr_delay") > 15).alias("delayed"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).cast("bigint").alias("total_delay"),
        F.coalesce(F.sum("air_time"), F.lit(0)).cast("bigint").alias("flown_minutes"),
    )
    return grouped.select(
        "arrival_date",
        "dest",
        "carrier",
        "flights",
        "arrived",
        "diverted",
        "cancelled",
        "delayed",
        "total_delay",
        _mean_delay().alias("mean_delay"),
        "flown_minutes",
    )


def _count(condition: Column) -> Column:
    """Returns how many rows meet `condition`."""
    return F.count(F.when(condition, F.lit(1)))


def _mean_delay() -> Column:
    """Returns the mean delay over arrived flights in exact decimals, null when none arrived."""
    total = F.col("total_delay").cast("decimal(18,0)")
    arrived = F.nullif(F.col("arrived"), F.lit(0)).cast("decimal(18,0)")
    return F.round(total / arrived, 2).cast("decimal(10,2)")
