"""Rows that a transform rejects, told by a column of its output: never written, but kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from lakehouse_backfill.errors import ChecksFailed
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job

Daily = Callable[..., PlanMaker]
REASONS = "CASE WHEN k IN (13, 14, 24) THEN 'odd amount' WHEN k = 35 THEN 'late' END"
REJECTING = copy_job(f'return src.selectExpr("d", "k", "v", "{REASONS} AS _reject_reason")')
#: Of the days 5 and 6: their rows are 4, 14, 24, 34 and 5, 15, 25, 35.
WRITTEN = [
    (date(2024, 1, 5), 4, 4), (date(2024, 1, 5), 34, 34),
    (date(2024, 1, 6), 15, 15), (date(2024, 1, 6), 25, 25), (date(2024, 1, 6), 5, 5),
]  # fmt: skip


def of_days(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row in rows if str(row[0]) in DAYS[4:6]]


@pytest.mark.req("X5")
def test_rejected_rows_are_counted_and_kept_and_never_written(lake: Lake, daily: Daily) -> None:
    plan = daily(REJECTING, warm_up_days=1).make()
    chunk, staging = plan.resolved.chunks[0], lake.staging()
    record = staging.stage(plan, chunk, 1)
    assert sorted(of_days(lake.rows("shadow"))) == sorted(WRITTEN)
    assert record.output_rows == 5
    # The input of the warm-up has one more, of the day before.
    for one in (staging, lake.staging()):
        found = one.rejects(plan, chunk)
        assert found is not None
        assert (found.rows, found.reasons) == (3, {"odd amount": 2, "late": 1})
        assert [(row.reason, row.key["k"], row.record["v"]) for row in found.records] == [
            ("odd amount", 14, 14), ("odd amount", 24, 24), ("late", 35, 35),
        ]  # fmt: skip


@pytest.mark.req("X5")
def test_a_chunk_without_rejected_rows_is_not_computed_again(lake: Lake, daily: Daily) -> None:
    none = REJECTING.replace("13, 14, 24", "99").replace("k = 35", "k = 98")
    plan = daily(none).make()
    staging = lake.staging()
    staging.stage(plan, plan.resolved.chunks[0], 1)
    (lake.project / plan.resolved.manifest.transform.file).unlink()
    found = staging.rejects(plan, plan.resolved.chunks[0])
    assert found is not None
    assert found.rows == 0


def test_a_transform_without_the_column_rejects_nothing(lake: Lake, daily: Daily) -> None:
    plan = daily().make()
    staging = lake.staging()
    staging.stage(plan, plan.resolved.chunks[0], 1)
    assert staging.rejects(plan, plan.resolved.chunks[0]) is None
    assert lake.staging().rejects(plan, plan.resolved.chunks[0]) is None


def test_a_reason_that_is_no_text_is_refused_before_anything_is_written(
    lake: Lake, daily: Daily
) -> None:
    plan = daily(copy_job('return src.selectExpr("d", "k", "v", "k AS _reject_reason")')).make()
    head = lake.head("shadow")
    with pytest.raises(ChecksFailed, match="_reject_reason of the transform's output is bigint"):
        lake.stage(plan)
    assert lake.head("shadow") == head
