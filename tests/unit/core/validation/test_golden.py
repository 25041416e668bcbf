"""Golden rows and spot checks: typed comparison, and which cells are named."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from lakehouse_backfill.core.validation.golden import check_rows, typed_cell
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.errors import ConfigError

TYPES = {"day": "date", "dest": "string", "flights": "long", "mean": "decimal(10, 2)"}
KEY = ("day", "dest")
ACTUAL = [
    {"day": date(2013, 2, 15), "dest": "ATL", "flights": 3, "mean": Decimal("1.50")},
    {"day": date(2013, 2, 16), "dest": "ATL", "flights": 4, "mean": None},
]


def golden(*rows: dict[str, str | None]) -> CheckResult:
    return check_rows("golden rows", [(KEY, row) for row in rows], ACTUAL, TYPES)


@pytest.mark.req("Q5", "T7")
def test_expected_rows_are_compared_as_values_of_their_types() -> None:
    found = golden(
        {"day": "2013-02-15", "dest": "ATL", "flights": "3", "mean": "1.5"},
        {"day": "2013-02-16", "dest": "ATL", "mean": None},
    )
    assert found == CheckResult(
        name="golden rows", group="golden", passed=True,
        detail="2 expected rows found as expected", observed=0, limit=0,
    )  # fmt: skip


@pytest.mark.req("Q5", "T7")
def test_the_first_differing_cells_are_named() -> None:
    found = golden(
        {"day": "2013-02-15", "dest": "ATL", "flights": "4", "mean": None},
        {"day": "2013-02-17", "dest": "ATL", "flights": "4", "mean": None},
    )
    assert not found.passed
    assert found.observed == 3
    assert found.detail == (
        "day=2013-02-15, dest=ATL: flights is 3, expected 4; "
        "day=2013-02-15, dest=ATL: mean is 1.50, expected null; "
        "day=2013-02-17, dest=ATL: no such row"
    )


@pytest.mark.req("Q5", "T7")
def test_no_more_than_five_cells_are_named() -> None:
    rows = [{"day": f"2014-01-{day:02d}", "dest": "ATL"} for day in range(1, 8)]
    found = golden(*rows)
    assert found.detail.endswith("no such row; and 2 more")
    assert found.observed == 7


@pytest.mark.req("Q5", "T7")
def test_a_key_that_two_rows_hold_fails() -> None:
    row = {"day": "2013-02-15", "dest": "ATL"}
    found = check_rows("golden rows", [(KEY, row)], [ACTUAL[0], ACTUAL[0]], TYPES)
    assert found.detail == "day=2013-02-15, dest=ATL: 2 rows, not one"


@pytest.mark.req("Q5", "T7")
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"dest": "ATL"}, "lacks key"),
        ({"day": "2013-02-15", "dest": "ATL", "fligths": "1"}, "unknown columns"),
        (
            {"day": "2013-02-15", "dest": "ATL", "flights": "many"},
            "column flights: 'many' is no long",
        ),
        ({"day": "2013-02-15", "dest": "ATL", "flights": "1.5"}, "column flights"),
        ({"day": "soon", "dest": "ATL"}, "column day"),
    ],
)
def test_a_file_that_does_not_fit_the_table_is_refused(row: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        golden(row)


@pytest.mark.req("Q5")
def test_each_expected_row_has_a_key_of_its_own() -> None:
    good = (KEY, {"day": date(2013, 2, 15), "dest": "ATL", "mean": 1.5})
    bad = (("flights",), {"flights": 4, "dest": "BOS"})
    assert check_rows("spot checks", [good], ACTUAL, TYPES).passed
    found = check_rows("spot checks", [good, bad], ACTUAL, TYPES)
    assert found.passed is False
    assert found.detail == "flights=4: dest is ATL, expected BOS"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.1", "float", 0.10000000149011612),
        ("TRUE", "boolean", True),
        ("2024-01-01T00:00:00Z", "timestamptz", datetime(2024, 1, 1, tzinfo=timezone.utc)),
        ("2024-01-01T01:00:00+01:00", "timestamptz", datetime(2024, 1, 1, tzinfo=timezone.utc)),
        ("00ff", "fixed[2]", b"\x00\xff"),
        ("1e2", "decimal(5, 0)", Decimal(100)),
        ("", "string", ""),
    ],
)
def test_texts_are_read_as_their_type(text: str, kind: str, value: Any) -> None:
    assert typed_cell(text, kind) == value
