"""Rows that a transform rejects, told by a column of its output: never written, but kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from lakehouse_backfill.errors import ChecksFailed
from tests.support.spark.lake import DAYS, Lake, PlanMaker, copy_job
from tests.support.spark.modes import Make

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
            ("odd amount", "14", "14"), ("odd amount", "24", "24"), ("late", "35", "35"),
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


@pytest.mark.req("X5")
def test_a_row_whose_partition_is_wrong_or_unknown_counts_and_is_read_as_text(
    lake: Lake, daily: Daily
) -> None:
    """Python has no date of the year 12023, and a reason may be as long as it likes."""
    day = "CASE k WHEN 14 THEN date'+12023-01-01' WHEN 24 THEN NULL ELSE d END AS d"
    reason = "CASE WHEN k IN (14, 24) THEN repeat('x', 5000) END AS _reject_reason"
    plan = daily(copy_job(f'return src.selectExpr("{day}", "k", "v", "{reason}")')).make()
    staging = lake.staging()
    staging.stage(plan, plan.resolved.chunks[0], 1)
    found = staging.rejects(plan, plan.resolved.chunks[0])
    assert found is not None
    assert (found.rows, found.reasons) == (2, {"x" * 200: 2})
    assert [row.key["d"] for row in found.records] == [None, "+12023-01-01"]


@pytest.mark.req("X5", "Q1")
def test_a_run_halts_at_the_first_rejected_row_unless_the_manifest_allows_its_share(
    make: Make,
) -> None:
    modes = make()
    modes.transform = "rejecting"
    modes.lake.job(
        """-- name: rejecting
-- version: 1.0.0
-- inputs: src
SELECT d, k, tenant, v, ver, IF(v < 0, 'negative', NULL) AS _reject_reason FROM {src}
""",
        "jobs/job.sql",
    )
    transform = {"file": "jobs/job.sql"}
    modes.source("2, 1, A, 10, 1", "2, 2, A, -5, 1", "3, 3, A, 30, 1", "3, 4, B, 40, 1")
    with pytest.raises(ChecksFailed, match=r"1 of 4 rows rejected \(25.00%\), .*: 1 negative"):
        modes.validated(transform=transform)
    (halted,) = [one for one in modes.project.status().runs if one.product == modes.product]
    modes.project.cancel(halted.run_id, "lead", "its rows are allowed")
    _, found = modes.validated(transform=transform, safety={"max_rejected_share": 0.25})
    assert found["state"] == "validated"
    assert modes.gate(found, "rejected rows are in range")[0]
