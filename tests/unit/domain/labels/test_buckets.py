"""Buckets of values, as PyIceberg computes them."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DecimalType, IcebergType, LongType, StringType, TimestamptzType
from pyiceberg.utils.datetime import datetime_to_micros

from lakehouse_backfill.domain.labels.values import bucket_number

KINDS = {
    "long": (LongType(), st.integers(-(2**63), 2**63 - 1)),
    "string": (StringType(), st.text()),
    "timestamptz": (TimestamptzType(), st.datetimes(timezones=st.just(timezone.utc))),
}


@pytest.mark.req("U16")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), buckets=st.integers(1, 2**31 - 1))
def test_a_value_is_in_the_bucket_that_pyiceberg_finds(kind: str, data: Any, buckets: int) -> None:
    known, values = KINDS[kind]
    value = data.draw(values)
    assert bucket_number(f"bucket[{buckets}]", kind, value) == _found(known, buckets, value)


def _found(kind: IcebergType, buckets: int, value: Any) -> int | None:
    stored = datetime_to_micros(value) if isinstance(value, datetime) else value
    return BucketTransform(buckets).transform(kind)(stored)


#: Of Iceberg's specification, appendix B: its 32-bit hashes without their sign, of 2**31 buckets.
SPECIFIED = {
    "int": (34, 2017239379),
    "decimal(9, 2)": (Decimal("14.20"), -500754589),
    "date": (date(2017, 11, 16), -653330422),
    "timestamp": (datetime(2017, 11, 16, 22, 31, 8), -2047944441),  # noqa: DTZ001 (without a zone)
    "timestamptz": (datetime(2017, 11, 16, 22, 31, 8, tzinfo=timezone.utc), -2047944441),
    "string": ("iceberg", 1210000089),
    "binary": (b"\x00\x01\x02\x03", -188683207),
}


@pytest.mark.req("U16")
@pytest.mark.parametrize("kind", SPECIFIED)
def test_hashes_are_those_of_the_specification(kind: str) -> None:
    value, signed = SPECIFIED[kind]
    assert bucket_number(f"bucket[{2**31}]", kind, value) == signed & 0x7FFFFFFF


@pytest.mark.req("U16")
@pytest.mark.parametrize("value", [Decimal("-1." + "9" * 37), Decimal("128"), Decimal("-128"),
                                   Decimal("0.00"), Decimal("9" * 36 + ".99")])  # fmt: skip
def test_decimals_of_all_lengths_are_in_the_bucket_that_pyiceberg_finds(value: Decimal) -> None:
    scale = -int(value.as_tuple().exponent)
    found = _found(DecimalType(38, scale), 1000, value)
    assert bucket_number("bucket[1000]", f"decimal(38, {scale})", value) == found


def test_what_is_no_bucket_has_no_number() -> None:
    for transform, value in (("identity", 1), ("truncate[2]", 1), ("bucket[2]", True)):
        with pytest.raises(ValueError):
            bucket_number(transform, "long", value)
