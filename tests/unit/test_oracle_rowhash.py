"""The oracle of the row hash: XXH64 as published, and what the definition has to notice.

tests/lake/test_row_hash_oracle.py holds Spark against it, row by row.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracles.row_hash import checksum, row_hash, xxh64

COLUMNS: dict[str, Any] = {
    "a": "long",
    "b": "long",
    "c": "string",
    "d": "double",
    "e": ("list", ("struct", {"p": "long", "q": "string"})),
    "f": ("map", "string", "long"),
}
longs = st.one_of(st.none(), st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1))
texts = st.one_of(st.none(), st.text(max_size=40))
values: dict[str, st.SearchStrategy[Any]] = {
    "a": longs,
    "b": longs,
    "c": texts,
    "d": st.one_of(st.none(), st.floats()),
    "e": st.one_of(
        st.none(),
        st.lists(st.one_of(st.none(), st.fixed_dictionaries({"p": longs, "q": texts})), max_size=3),
    ),
    "f": st.one_of(st.none(), st.dictionaries(st.text(max_size=3), longs, max_size=3)),
}
rows = st.fixed_dictionaries(values)
bags = st.lists(rows, max_size=6)
many = settings(max_examples=200, deadline=None)


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"", 1, 0xD5AFBA1336A3BE4B),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"as", 0, 0x1C330FB2D66BE179),
        (b"asd", 0, 0x631C37CE72A97393),
        (b"asdf", 0, 0x415872F599CEA71E),
        (b"Call me Ishmael. Some years ago--never mind how long precisely-", 0, 0x02A2E85470D6FD96),
    ],
)
def test_xxh64_is_the_published_one(data: bytes, seed: int, expected: int) -> None:
    assert xxh64(data, seed) == expected


@pytest.mark.req("Q4", "T8")
@many
@given(bag=bags, other=bags, data=st.data())
def test_checksums_add_up_in_any_order(bag, other, data) -> None:
    mixed = data.draw(st.permutations(bag + other))
    parts = [checksum(COLUMNS, each) for each in (bag, other)]
    count, xor, total = (sum(part[0] for part in parts), parts[0][1] ^ parts[1][1], 0)
    total = (parts[0][2] + parts[1][2]) % 2**64
    assert checksum(COLUMNS, mixed) == (count, xor, total)


@pytest.mark.req("Q4", "T8")
@many
@given(row=rows, data=st.data())
def test_any_single_change_of_a_row_changes_its_hash(row, data) -> None:
    name = data.draw(st.sampled_from(sorted(COLUMNS)))
    other = data.draw(values[name])
    changed = {**row, name: other}
    is_same = _canonical(other) == _canonical(row[name])
    assert (row_hash(COLUMNS, changed) == row_hash(COLUMNS, row)) == is_same


def _canonical(value: Any) -> Any:
    """Give what tells values apart: zero has no sign, every NaN is one."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value + 0.0)
    return value


@pytest.mark.req("Q4", "T8")
@many
@given(value=st.integers(-(2**63), 2**63 - 1), width=st.integers(2, 130), data=st.data())
def test_a_value_that_moves_to_another_null_column_is_noticed(value, width, data) -> None:
    places = data.draw(st.lists(st.integers(0, width - 1), min_size=2, max_size=2, unique=True))
    columns = {f"c{place:03d}": "long" for place in range(width)}
    found = {
        row_hash(columns, {**dict.fromkeys(columns), f"c{place:03d}": value}) for place in places
    }
    assert len(found) == 2


@pytest.mark.req("Q4", "T8")
@many
@given(bag=st.lists(rows, min_size=1, max_size=5), data=st.data())
def test_rows_that_are_lost_doubled_or_swapped_for_another_are_noticed(bag, data) -> None:
    place = data.draw(st.integers(0, len(bag) - 1))
    row = bag[place]
    found = [
        checksum(COLUMNS, bag),
        checksum(COLUMNS, bag[:place] + bag[place + 1 :]),
        checksum(COLUMNS, [*bag, row]),
        checksum(COLUMNS, [*bag, row, row]),
        checksum(COLUMNS, [*bag[:place], {**row, "a": (row["a"] or 0) // 2 + 1, "b": 7, "c": "!"},
                           *bag[place + 1 :]]) if row["c"] != "!" else (-1, 0, 0),
    ]  # fmt: skip
    assert len(set(found)) == len(found)


@pytest.mark.req("Q4")
def test_the_scale_of_a_decimal_is_told_by_the_shape_and_its_value_by_the_hash() -> None:
    found = [
        row_hash({"m": kind}, {"m": Decimal(text)})
        for kind in ("decimal18:2", "decimal38:2")
        for text in ("0.01", "-0.01", "1.00", "327.68", "-327.68", "-1.28", "1.28")
    ]
    assert len(set(found)) == len(found)
