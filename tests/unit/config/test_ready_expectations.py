"""The library of ready expectations, its page, and the suite that is drafted for a table (Q3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.quality.suite_files import check_suite_form
from lakehouse_backfill.config.drafts import draft_suite
from tests.support.examples.ready_expectations import READY_EXPECTATIONS

pytestmark = pytest.mark.req("Q3")
WANTED = {
    "uniqueness", "nulls", "ranges", "enums", "referential integrity", "timestamp bounds",
    "PII patterns", "monotonic columns", "join cardinality", "one currency per amount",
    "UTC normalised", "mappings total",
}  # fmt: skip


def test_there_is_one_for_each_kind_of_rule() -> None:
    assert {ready.about for ready in READY_EXPECTATIONS.values()} == WANTED


@pytest.mark.parametrize("name", READY_EXPECTATIONS)
def test_each_of_them_is_what_the_library_knows(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps({"expectations": READY_EXPECTATIONS[name].entries}))
    check_suite_form(file, file.name)


def test_a_drafted_suite_holds_the_key_and_the_required_columns() -> None:
    suite = json.loads(draft_suite("silver.orders", ("id", "line"), ("id", "amount")))
    found = [
        (entry["type"], next(iter(entry["kwargs"].values()))) for entry in suite["expectations"]
    ]
    assert found == [
        ("expect_compound_columns_to_be_unique", ["id", "line"]),
        ("expect_column_values_to_not_be_null", "id"),
        ("expect_column_values_to_not_be_null", "line"),
        ("expect_column_values_to_not_be_null", "amount"),
    ]


def test_nothing_is_drafted_where_metadata_says_nothing() -> None:
    assert draft_suite("silver.orders", (), ()) == ""
