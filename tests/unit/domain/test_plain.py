"""Cell values as JSON, and values of manifests back from it."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import TypeAdapter

from lakehouse_backfill.domain.manifest import RowValue
from lakehouse_backfill.domain.serialization import PartitionValue, to_json_value


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


@pytest.mark.req("U16")
@pytest.mark.parametrize(
    "value",
    [
        "12", "1.50", "-0.10", "2024", "0x0a1b", "true", "EU", "2024-01", 3, None,
        date(2024, 1, 2), datetime(2024, 1, 2, 3, tzinfo=timezone.utc),
    ],
)  # fmt: skip
def test_a_value_of_a_manifest_is_read_back_as_it_was_written(value: Any) -> None:
    """Pydantic reads digits in JSON as seconds since 1970: another hash, another partition."""
    for kind in (PartitionValue, RowValue):
        stored = TypeAdapter[Any](kind)
        found = stored.validate_json(stored.dump_json(stored.validate_python(value)))
        assert (found, type(found)) == (value, type(value)) or (
            isinstance(value, datetime) and found == value
        )


def test_a_boolean_of_a_row_predicate_is_read_back_as_one() -> None:
    stored = TypeAdapter[Any](RowValue)
    assert stored.validate_json("true") is True
