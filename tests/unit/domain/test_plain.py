"""Cell values as JSON."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from lakehouse_backfill.domain.serialization import to_json_value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (2**60, 2**60),
        (-0.0, 0.0),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal("1E+2"), "100"),
        (Decimal("1.50"), "1.50"),
        (date(2024, 1, 2), "2024-01-02"),
        (datetime(2024, 1, 2, 3, tzinfo=timezone.utc), "2024-01-02T03:00:00+00:00"),
        (time(1, 2), "01:02:00"),
        (b"\x00\xff", "AP8="),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"a": [Decimal(1), {"b": b"x"}]}, {"a": ["1", {"b": "eA=="}]}),
    ],
)
def test_a_value_becomes_what_json_holds(value: Any, plain: Any) -> None:
    assert to_json_value(value) == plain
    assert json.loads(json.dumps(to_json_value(value), allow_nan=False)) == plain
    assert str(to_json_value(value)) == str(plain)
