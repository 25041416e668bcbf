"""Values of secrets that a job puts into rows are found: whole texts in all rows, parts in some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.staging import rejects
from lakehouse_backfill.adapters.spark.staging.staging import SparkStaging
from lakehouse_backfill.errors import WriteForbidden
from tests.support.spark.lake import Lake, PlanMaker, copy_job

#: How a job puts a secret into rows, and what is said of it.
SECRET_ROWS = {
    "a literal": ("F.lit('https://a.example/?key=' + SECRET)", "into rows", "nothing was sent"),
    "a function": ("F.udf(lambda v: SECRET)('v')", "to Python workers", "it was stopped before"),
    "rows": (
        "F.concat(F.lit(SECRET[:7]), F.lit(SECRET[7:]))",
        "into the column note",
        "rows with it stand in the run's shadow, which is not published",
    ),
    "a longer text": (
        "F.concat(F.lit('https://a.example/?key='), F.lit(SECRET[:7]), F.lit(SECRET[7:] + '&a=1'))",
        "into the column note",
        "rows with it stand in the run's shadow, which is not published",
    ),
    "a nested text": (
        "F.array(F.concat(F.lit('key ' + SECRET[:7]), F.lit(SECRET[7:])))",
        "into the column note",
        "rows with it stand in the run's shadow, which is not published",
    ),
    "bytes": (
        "F.concat(F.lit('key ' + SECRET[:7]), F.lit(SECRET[7:])).cast('binary')",
        "into the column note",
        "rows with it stand in the run's shadow, which is not published",
    ),
}


@pytest.mark.req("E1")
@pytest.mark.parametrize("way", SECRET_ROWS)
def test_the_value_of_a_secret_reaches_no_rows_unnoticed(
    lake: Lake, daily: Callable[..., PlanMaker], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LHB_TEST_SECRET", "planted-4711")
    note, what, state = SECRET_ROWS[way]
    # The job got it where nobody looks.
    above = "SECRET = ''.join(['plant', 'ed-4', '711'])"
    plan = daily(copy_job(f"return src.withColumn('note', {note})", above=above)).make()
    kind = {"a nested text": "array<string>", "bytes": "binary"}.get(way, "string")
    lake.sql(f"ALTER TABLE {{ns}}.shadow ADD COLUMN note {kind}")
    with pytest.raises(WriteForbidden) as raised:
        _judge_and_stage(lake.staging(), plan)
    attempts = raised.value.data["attempts"]
    assert [(one["sink"], one["file"]) for one in attempts] == [("secret", "jobs/job.py")]
    assert what in attempts[0]["what"]
    assert "LHB_TEST_SECRET" in attempts[0]["what"]
    assert attempts[0]["line"] == (7 if way == "a function" else 5)
    assert state in raised.value.state
    assert "planted-4711" not in f"{raised.value} {raised.value.data}"


def _judge_and_stage(staging: SparkStaging, plan: Any) -> None:
    staging.analysed_plan(plan, plan.resolved.chunks[0])
    staging.stage(plan, plan.resolved.chunks[0], 1)


@pytest.mark.req("E1")
@pytest.mark.parametrize(
    ("secret", "is_found"), [("pl4nted8", True), ("postgres", False), ("12345678", False)]
)
def test_a_short_secret_inside_a_text_is_found_unless_it_is_a_word_or_a_number(
    lake: Lake, daily: Callable[..., PlanMaker], secret: str, is_found: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("LHB_TEST_SECRET", secret)
    note = f"F.concat(F.lit('key={secret[:4]}'), F.lit('{secret[4:]}ql'))"
    plan = daily(copy_job(f"return src.withColumn('note', {note})")).make()
    lake.sql("ALTER TABLE {ns}.shadow ADD COLUMN note string")
    if not is_found:
        assert lake.stage(plan).output_rows > 0
        return
    with pytest.raises(WriteForbidden, match="value of LHB_TEST_SECRET into the column note"):
        lake.stage(plan)


def test_texts_that_only_resemble_a_secret_are_staged(
    lake: Lake, daily: Callable[..., PlanMaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LHB_TEST_SECRET", "planted-4711")
    # Shorter, within a longer text of rows that are not read whole, and with the same part of the
    # checksum.
    monkeypatch.setattr(rejects, "ROWS_READ_WHOLE", 0)
    note = "F.concat(F.lit('planted-'), F.lit('471'), F.when(F.col('k') % 2 == 0, '12'))"
    plan = daily(copy_job(f"return src.withColumn('note', {note})")).make()
    lake.sql("ALTER TABLE {ns}.shadow ADD COLUMN note string")
    monkeypatch.setattr(rejects, "_BITS", 0)
    assert lake.stage(plan).output_rows > 0
