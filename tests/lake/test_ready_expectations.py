"""Ready expectations: each passes rows that are right, and fails rows that are wrong (Q3)."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakehouse_backfill.adapters.quality.judge import ExpectationsJudge
from tests.support.examples.ready_expectations import READY_EXPECTATIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.lake, pytest.mark.req("Q3")]
SCHEMA = (
    "order_id long, line int, quantity int, state string, customer string, region string, "
    "ordered_at timestamp, note string, balance_seq long, amount decimal(10, 2), currency string, "
    "sent_at string"
)
KNOWN = {"customers": ["c1", "c2"], "regions": ["EU", "US"]}
START = datetime(2024, 1, 1, 10, tzinfo=timezone.utc)


def row(number: int, **changes: Any) -> dict[str, Any]:
    """One order line that is right, but for the changes."""
    usual = {
        "order_id": number, "line": 1, "quantity": 5, "state": "open", "customer": "c1",
        "region": "EU", "ordered_at": START + timedelta(days=number), "note": None,
        "balance_seq": number, "amount": Decimal("1.50"), "currency": "EUR",
        "sent_at": "2024-01-01T10:00:00Z",
    }  # fmt: skip
    return usual | changes


RIGHT = (
    row(1, note="call back 2024-01-05", quantity=0),
    row(1, line=2, sent_at="2024-01-02 10:00:00.5+00:00", balance_seq=1),
    row(2, customer="c2", region="US", quantity=1000, amount=None, currency=None),
)
#: Each rule, and a row beside the right ones that breaks it.
WRONG = {
    "unique": row(1),
    "filled": row(3, order_id=None),
    "between": row(4, quantity=-1),
    "one_of": row(5, state="lost"),
    "refers_to": row(6, customer="c9"),
    "mapped": row(7, region=None),
    "dated_between": row(8, ordered_at=datetime(2030, 1, 1, tzinfo=timezone.utc)),
    "no_personal_data": row(9, note="write to ana.b@example.com"),
    "increasing": row(10, balance_seq=1),
    "rows_per": row(1, line=2),
    "one_currency": row(1, line=3, currency="USD"),
    "in_utc": row(11, sent_at="2024-01-01T10:00:00+02:00"),
}
PERSONAL = [
    "ana.b@example.com", "DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111", "+49 170 1234567",
    "10.1.2.3",
]  # fmt: skip


def frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame([tuple(each.values()) for each in rows], SCHEMA)


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ready")
    for name, ready in READY_EXPECTATIONS.items():
        text = json.dumps({"name": name, "expectations": ready.entries})
        (folder / f"{name}.json").write_text(text)
    return folder


def verdicts(folder: Path, rows: DataFrame) -> dict[str, bool]:
    """Judge by all ready suites over one read."""
    wanted = tuple((f"{name}.json", KNOWN) for name in READY_EXPECTATIONS)
    found = iter(ExpectationsJudge(folder).judge_all(rows, wanted, "quality"))  # type: ignore[arg-type]
    passed = {
        name: [next(found).passed for _ in ready.entries]
        for name, ready in READY_EXPECTATIONS.items()
    }
    return {name: all(each) for name, each in passed.items()}


def test_rows_that_are_right_pass_each_of_them(spark: SparkSession, suites: Path) -> None:
    found = verdicts(suites, frame(spark, *RIGHT))
    assert [name for name, passed in found.items() if not passed] == []


def test_each_of_them_fails_for_a_row_that_is_wrong(spark: SparkSession, suites: Path) -> None:
    found = verdicts(suites, frame(spark, *RIGHT, *WRONG.values()))
    assert [name for name, passed in found.items() if passed] == []
    assert set(WRONG) == set(READY_EXPECTATIONS)


def test_each_pattern_of_personal_data_is_found(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "pii.json").write_text(
        json.dumps({"expectations": READY_EXPECTATIONS["no_personal_data"].entries})
    )
    rows = spark.createDataFrame([(f"see {text} there",) for text in PERSONAL], "note string")
    (check,) = ExpectationsJudge(tmp_path).judge(rows, "pii.json", {}, "quality")
    assert check.observed == len(PERSONAL)


def test_a_query_reads_only_the_columns_that_it_names(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(
        json.dumps({"expectations": READY_EXPECTATIONS["one_currency"].entries})
    )
    rows = spark.sql("SELECT 1 AS order_id, 2.0 AS amount, 'EUR' AS currency, "
                     "assert_true(false) AS never_read")  # fmt: skip
    found = ExpectationsJudge(tmp_path).judge(rows, "q.json", {}, "quality")
    assert [(check.name, check.passed) for check in found] == [
        ("each amount has a currency", True),
        ("one currency for each order_id", True),
    ]
