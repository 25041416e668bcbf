"""`silver.case_sla`: each active regulatory case on each day, and its deadline.

One row for each (as_of, case_id): from the day on which a case is opened or reopened to the
effective day of its decision. The rules are in docs/case-study.md, by number. Two releases:

- 2.4.1 counts the working days until a deadline from the UTC date of the opening: the defect.
- 3.1.0 counts from the local date in the case's jurisdiction.

The session time zone must be UTC: local days are cut from UTC-rendered timestamps.
"""

# Every transform is handed a context and all inputs; these need not use each one.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakehouse_backfill.transforms import transform

_INPUTS = ("events", "carried", "census", "calendar")
_ESCALATION_DAYS = 5
_STARTS = ("opened", "reopened")


@transform(name="case_sla", version="2.4.1", inputs=_INPUTS)
def case_sla_2_4_1(
    context: Any, events: DataFrame, carried: DataFrame, census: DataFrame, calendar: DataFrame
) -> DataFrame:
    """Returns the cases with deadlines counted from UTC dates (wrong, kept for the record)."""
    return _case_days(context, events, carried, calendar, counted_from="utc_day")


@transform(name="case_sla", version="3.1.0", inputs=_INPUTS)
def case_sla_3_1_0(
    context: Any, events: DataFrame, carried: DataFrame, census: DataFrame, calendar: DataFrame
) -> DataFrame:
    """Returns the cases with deadlines counted from local dates."""
    return _case_days(context, events, carried, calendar, counted_from="local_day")


def _case_days(
    context: Any, events: DataFrame, carried: DataFrame, calendar: DataFrame, counted_from: str
) -> DataFrame:
    known = events.unionByName(carried.drop("month"))
    rules = F.broadcast(calendar.select("jurisdiction", "zone", "sla_days").distinct())
    dated = _local_days(known, rules)
    days = _active_days(_episodes(dated, counted_from), context.publish_to)
    counted = _with_deadline(_with_pauses(days, calendar), calendar)
    is_late = F.col("as_of") > F.col("due_on")
    return counted.where(F.col("as_of") >= F.lit(context.publish_from)).select(
        "as_of",
        "case_id",
        "jurisdiction",
        F.when(F.col("as_of") == F.col("decided_on"), "decided")
        .when(F.col("is_paused"), "paused")
        .otherwise("open")
        .alias("state"),
        F.col("started_on").alias("opened_on"),
        "due_on",
        F.to_utc_timestamp(F.date_add("due_on", 1).cast("timestamp"), F.col("zone")).alias(
            "due_at"
        ),
        F.col("paused_days").cast("int").alias("paused_days"),
        F.datediff("as_of", "started_on").alias("age_days"),
        "is_escalated",
        F.when(F.col("as_of") == F.col("decided_on"), F.col("decided_on")).alias("decided_on"),
        F.when(is_late, F.col("jurisdiction")).alias("breached"),
    )


def _local_days(events: DataFrame, rules: DataFrame) -> DataFrame:
    """Returns each event once (rule 1), with its local and its UTC day (rule 2)."""
    # By case first: what follows groups by case, so that rows are exchanged once.
    once = events.repartition("case_id").drop("recorded_at").distinct()
    local = F.from_utc_timestamp("occurred_at", F.col("zone"))
    return once.join(rules, "jurisdiction").withColumns(
        {"local_day": F.to_date(local), "utc_day": F.to_date("occurred_at")}
    )


def _episodes(events: DataFrame, counted_from: str) -> DataFrame:
    """Returns one row for each opening or reopening, with what happened until the next (rule 3)."""
    by_sequence = Window.partitionBy("case_id").orderBy("sequence_num")
    is_start = F.col("kind").isin(*_STARTS)
    number = F.count(F.when(is_start, 1)).over(by_sequence)
    decision = F.when(F.col("kind").isin("decided", "amended"), F.col("sequence_num"))
    pauses = F.when(
        F.col("kind").isin("paused", "resumed"),
        F.struct("sequence_num", "local_day", (F.col("kind") == "paused").alias("is_paused")),
    )
    grouped = (
        events.withColumn("episode", number)
        .where("episode > 0")  # its opening is not read: it ended before the warm-up
        .groupBy("case_id", "jurisdiction", "zone", "sla_days", "episode")
        .agg(
            F.max(F.when(is_start, F.col("local_day"))).alias("started_on"),
            F.max(F.when(is_start, F.col(counted_from))).alias("counted_from"),
            F.max(F.col("kind") == "decided").alias("is_decided"),
            F.max_by("effective_on", decision).alias("effective_on"),
            F.min(F.when(F.col("kind") == "escalated", F.col("local_day"))).alias("escalated_on"),
            F.array_sort(F.collect_list(pauses)).alias("pauses"),
        )
    )
    by_episode = Window.partitionBy("case_id").orderBy("episode")
    effective = F.greatest("effective_on", "started_on")
    return grouped.withColumns(
        {
            "decided_on": F.when(F.col("is_decided"), effective),
            "next_start": F.lead("started_on").over(by_episode),
        }
    )


def _active_days(episodes: DataFrame, stop: Any) -> DataFrame:
    """Returns a row for each day of an episode until the last one that is wanted (rule 4)."""
    last = F.least(  # least() passes over nulls
        F.col("decided_on"), F.date_sub("next_start", 1), F.date_sub(F.lit(stop), 1)
    )
    until = F.expr("filter(pauses, one -> one.local_day <= as_of)")
    return (
        episodes.withColumn("last", last)
        .where("started_on <= last")
        .withColumn("as_of", F.explode(F.sequence("started_on", "last")))
        .withColumn("so_far", until)
        .withColumns(
            {
                "is_paused": F.expr("coalesce(try_element_at(so_far, -1).is_paused, false)"),
                "is_escalated": F.expr("coalesce(escalated_on <= as_of, false)"),
            }
        )
    )


def _with_pauses(days: DataFrame, calendar: DataFrame) -> DataFrame:
    """Returns the days with the working days that were paused up to each (rule 5)."""
    working = calendar.select("jurisdiction", F.col("day").alias("as_of"), "is_working")
    until = Window.partitionBy("case_id", "episode").orderBy("as_of")
    counts = (F.col("is_paused") & F.col("is_working")).cast("int")
    return days.join(F.broadcast(working), ["jurisdiction", "as_of"]).withColumn(
        "paused_days", F.sum(counts).over(until)
    )


def _with_deadline(days: DataFrame, calendar: DataFrame) -> DataFrame:
    """Returns the days with the deadline as it is known on each (rules 6 and 7)."""
    starts = calendar.select(
        "jurisdiction", F.col("day").alias("counted_from"), F.col("working_number").alias("begin")
    )
    ends = calendar.where("is_working").select(
        "jurisdiction", F.col("working_number").alias("number"), F.col("day").alias("due_on")
    )
    longer = F.when(F.col("is_escalated"), _ESCALATION_DAYS).otherwise(0)
    number: Column = F.col("begin") + F.col("sla_days") + F.col("paused_days") + longer
    return (
        days.join(F.broadcast(starts), ["jurisdiction", "counted_from"])
        .withColumn("number", number.cast("int"))
        .join(F.broadcast(ends), ["jurisdiction", "number"])
    )
