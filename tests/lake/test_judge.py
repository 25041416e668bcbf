"""Great Expectations on Spark: what a suite file may say, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.adapters.quality.judge import ExpectationsJudge
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.lake

IN_SET = {
    "type": "expect_column_values_to_be_in_set",
    "kwargs": {"column": "dest", "value_set": {"$PARAMETER": "known"}},
}
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "flights"}}
UNIQUE = {
    "type": "expect_compound_columns_to_be_unique",
    "kwargs": {"column_list": ["dest", "day"]},
}
FEW = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "flights", "min_value": 0, "max_value": 3},
    "severity": "warning",
}
ROWS = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}


@pytest.fixture
def flights(spark: SparkSession) -> DataFrame:
    rows = [("ATL", 1, 2), ("SJU", 1, 9), ("SJU", 2, 3), ("BQN", 2, None)]
    return spark.createDataFrame(rows, "dest string, day int, flights int")


def judge(
    folder: Path, frame: DataFrame, *entries: Any, rows_only: bool = False, **known: list[Any]
) -> tuple[CheckResult, ...]:
    suite = {"name": "arrivals", "expectations": list(entries)}
    (folder / "suite.json").write_text(json.dumps(suite), encoding="utf-8")
    judging = ExpectationsJudge(folder)
    if not rows_only:
        return judging.judge(frame, "suite.json", known, "quality")
    types = dict.fromkeys(frame.columns, "unknown")
    of_rows = [one.number for one in judging.entries("suite.json", known, types) if one.is_of_rows]
    found = judging.judge_entries(frame, "suite.json", known, of_rows, "quality")
    assert list(found) == of_rows
    return tuple(found.values())


@pytest.mark.req("Q3")
@pytest.mark.parametrize(("most", "engine"), [(50_000, "pandas"), (0, "")])
def test_each_expectation_gives_one_result_in_the_order_of_the_file(
    flights: DataFrame, tmp_path: Path, most: int, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_backfill.adapters.quality.few_rows.MAX_ROWS", most)
    found = judge(tmp_path, flights, IN_SET, NOT_NULL, UNIQUE, FEW, ROWS, known=["ATL", "BQN"])
    expected = [
        ("expect_column_values_to_be_in_set(dest)", False, 2,
         "2 of 4 rows unexpected (50 %), e.g. SJU", {"value_set": "known (2 values)"}),
        ("expect_column_values_to_not_be_null(flights)", False, 1,
         "1 of 4 rows unexpected (25 %)", None),
        ("expect_compound_columns_to_be_unique(dest, day)", True, 0, "4 rows", None),
        ("expect_column_values_to_be_between(flights)", False, 1,
         "1 of 4 rows unexpected (33.3 %), e.g. 9", {"min_value": 0, "max_value": 3}),
        ("expect_table_row_count_to_be_between()", True, 4, "observed 4", {"min_value": 1}),
    ]  # fmt: skip
    assert found == tuple(
        CheckResult(
            name=name, group="quality", passed=passed, detail=detail, observed=observed,
            limit=limit, blocking="between(flights)" not in name, engine=engine,
        )
        for name, passed, observed, detail, limit in expected
    )  # fmt: skip


@pytest.mark.req("Q3")
def test_an_empty_frame_passes_what_is_said_of_rows_and_fails_a_row_count(
    flights: DataFrame, tmp_path: Path
) -> None:
    found = judge(tmp_path, flights.limit(0), IN_SET, UNIQUE, ROWS, known=["ATL"])
    assert [(check.passed, check.observed) for check in found] == [(True, 0), (True, 0), (False, 0)]


@pytest.mark.req("Q3")
def test_only_the_columns_that_the_suite_names_are_read(
    spark: SparkSession, flights: DataFrame, tmp_path: Path
) -> None:
    # Reading `broken` would raise.
    frame = flights.selectExpr("dest", "assert_true(dest IS NULL) AS broken")
    assert judge(tmp_path, frame, IN_SET, known=["ATL", "SJU", "BQN"])[0].passed


@pytest.mark.req("Q3")
def test_the_frame_does_not_stay_cached(flights: DataFrame, tmp_path: Path) -> None:
    judge(tmp_path, flights, NOT_NULL)
    assert not flights.select("flights").is_cached


@pytest.mark.req("Q3")
def test_nothing_is_printed(
    flights: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(tmp_path, flights, NOT_NULL, ROWS)
    assert capsys.readouterr() == ("", "")


@pytest.mark.req("Q3")
def test_an_expectation_that_cannot_be_evaluated_fails_and_says_why(
    flights: DataFrame, tmp_path: Path
) -> None:
    odd = {
        "type": "expect_column_values_to_match_regex",
        "kwargs": {"column": "dest", "regex": "("},
    }
    (check,) = judge(tmp_path, flights, odd)
    assert not check.passed
    assert check.detail.startswith("could not be judged: ")


FAULTS = [
    pytest.param({**IN_SET, "type": "expect_column_values_to_be_in_sett"},
                 "is unknown (write expect_column_values_to_be_in_set)", id="type"),
    pytest.param({**IN_SET, "kwargs": {"column": "dset", "value_set": ["ATL"]}},
                 "the data has no column dset (write dest)", id="column"),
    pytest.param({**IN_SET, "kwargs": {"column": "dest", "value_set": {"$PARAMETER": "kown"}}},
                 "parameter kown is not given (declare it beside the suite",
                 id="parameter"),
    pytest.param({**FEW, "kwargs": {"column": "flights", "min_valu": 1}},
                 "extra fields not permitted", id="argument"),
    pytest.param({**FEW, "severity": "high"}, "severity 'high' is unknown", id="severity"),
    pytest.param({"kwargs": {}}, "it has no type", id="no type"),
    pytest.param({"type": "expect_column_to_exist"}, "it has no kwargs", id="no kwargs"),
]  # fmt: skip


@pytest.mark.req("Q3")
@pytest.mark.parametrize(("entry", "words"), FAULTS)
def test_a_faulty_expectation_is_refused_and_never_dropped(
    flights: DataFrame, tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        judge(tmp_path, flights, NOT_NULL, entry, known=["ATL"])
    assert words in str(caught.value)
    assert caught.value.faults[0].field.startswith("expectations[2]")


@pytest.mark.req("Q3")
@pytest.mark.parametrize("text", ["{", "[]", '{"expectations": []}'])
def test_an_unreadable_suite_is_refused(flights: DataFrame, tmp_path: Path, text: str) -> None:
    (tmp_path / "suite.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"suite\.json"):
        ExpectationsJudge(tmp_path).judge(flights, "suite.json", {}, "quality")


@pytest.mark.req("Q3")
def test_a_missing_suite_is_refused(flights: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ExpectationsJudge(tmp_path).judge(flights, "none.json", {}, "quality")


@pytest.mark.req("Q9")
def test_of_a_part_of_the_rows_only_what_every_part_must_meet_is_judged(
    flights: DataFrame, tmp_path: Path
) -> None:
    mostly = {**NOT_NULL, "kwargs": {"column": "flights", "mostly": 0.5}}
    alone = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "dest"}}
    rows = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "day", "min_value": 9}}
    pair = {
        "type": "expect_column_pair_values_a_to_be_greater_than_b",
        "kwargs": {"column_A": "flights", "column_B": "day"},
    }
    ranked = {
        "type": "expect_column_value_z_scores_to_be_less_than",
        "kwargs": {"column": "flights", "threshold": 3, "double_sided": True},
    }
    entries = [IN_SET, mostly, UNIQUE, alone, FEW, ROWS, rows, pair, ranked]
    judged = judge(tmp_path, flights, *entries, rows_only=True, known=["ATL", "SJU", "BQN"])
    assert {check.name: check.passed for check in judged} == {
        "expect_column_values_to_be_in_set(dest)": True,
        "expect_column_values_to_be_unique(dest)": False,
        "expect_column_pair_values_a_to_be_greater_than_b(flights, day)": True,
    }


@pytest.mark.req("Q9")
def test_a_suite_that_says_nothing_of_rows_reads_nothing(
    flights: DataFrame, tmp_path: Path
) -> None:
    # Reading `broken` would raise.
    frame = flights.selectExpr("dest", "assert_true(dest IS NULL) AS broken")
    assert judge(tmp_path, frame, ROWS, rows_only=True) == ()
