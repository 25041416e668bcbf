"""What is computed from `silver.case_sla`: open breaches, and the monthly report."""

# Every transform is handed a context and all inputs; these need not use each one.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse_backfill.transforms import transform


@transform(name="open_breaches", version="1.0.0", inputs=("case_sla",))
def open_breaches(context: Any, case_sla: DataFrame) -> DataFrame:
    """Returns open cases and those past their deadline, by day and jurisdiction."""
    is_open = F.col("state") != "decided"
    return case_sla.groupBy("as_of", "jurisdiction").agg(
        _count(is_open).alias("open_cases"),
        _count(is_open & F.col("breached").isNotNull()).alias("open_breaches"),
    )


@transform(name="regulator_report", version="1.0.0", inputs=("case_sla", "open_breaches"))
def regulator_report(context: Any, case_sla: DataFrame, open_breaches: DataFrame) -> DataFrame:
    """Returns decisions of each month by jurisdiction, and the breaches open at its end."""
    month = F.to_date(F.trunc("as_of", "month")).alias("month")
    is_decided = F.col("state") == "decided"
    decisions = case_sla.groupBy(month, "jurisdiction").agg(
        _count(is_decided).alias("decided"),
        _count(is_decided & F.col("breached").isNotNull()).alias("decided_late"),
        F.count_distinct(F.when(F.col("breached").isNotNull(), F.col("case_id"))).alias("breaches"),
    )
    at_end = open_breaches.where("as_of = last_day(as_of)").select(
        month, "jurisdiction", F.col("open_breaches").alias("open_at_end")
    )
    return decisions.join(at_end, ["month", "jurisdiction"], "left").fillna(0, ["open_at_end"])


@transform(name="regulator_feed", version="1.0.0", inputs=("census", "case_sla"))
def regulator_feed(context: Any, census: DataFrame, case_sla: DataFrame) -> DataFrame:
    """Returns each decision of a counted case as it is filed with the regulator."""
    counted = case_sla.join(census, ["as_of", "case_id"], "left_semi")
    return counted.where("state = 'decided'").select(
        "decided_on",
        "case_id",
        "jurisdiction",
        "opened_on",
        "due_on",
        F.col("breached").isNotNull().alias("is_late"),
    )


def _count(condition: Column) -> Column:
    """Returns how many rows meet `condition`."""
    return F.count(F.when(condition, F.lit(1)))
