"""Chunks on every kind of boundary: each row of the scope is in exactly one, none is split."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import PrimitiveType
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, LongType, StringType

from lakehouse_backfill.core.planning.inputs.pins import own_rows, own_rows_notes
from lakehouse_backfill.core.planning.scope.resolve import cut_chunks
from lakehouse_backfill.domain.partitions import (
    WHOLE_TABLE_FIELD,
    RowRange,
    Scope,
    ScopeField,
    label_sort_key,
    partition_label,
    scope_row_ranges,
)
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.errors import ConfigError
from tests.support.examples.plans import columns_of

#: Column, transform, type: as a product declares its partitions; values of its rows.
BOUNDARIES: dict[str, tuple[ScopeField, PrimitiveType, st.SearchStrategy[Any]]] = {
    "date": (
        ScopeField(column="d", transform="identity", type="date"), DateType(),
        st.dates(date(1960, 1, 1), date(2030, 1, 1)),
    ),
    "month": (
        ScopeField(column="d", transform="month", type="date"), DateType(),
        st.dates(date(1960, 1, 1), date(2030, 1, 1)),
    ),
    "tenant": (
        ScopeField(column="tenant", transform="identity", type="string"), StringType(),
        st.sampled_from(["acme", "b ltd", "ACME", "é", "null", "a=b/c"]),
    ),
    "jurisdiction": (
        ScopeField(column="country", transform="truncate[2]", type="string"), StringType(),
        st.sampled_from(["DE-BY", "DE-HH", "FR-75", "US-CA", "U"]),
    ),
    "id range": (
        ScopeField(column="id", transform="truncate[1000]", type="long"), LongType(),
        st.integers(-(2**40), 2**40) | st.integers(-3_000, 3_000),
    ),
    "Kafka offsets": (
        ScopeField(column="kafka_offset", transform="truncate[500]", type="long"), LongType(),
        st.integers(0, 2**40) | st.integers(0, 3_000),
    ),
    "bucket": (
        ScopeField(column="id", transform="bucket[8]", type="long"), LongType(),
        st.integers(-(2**40), 2**40),
    ),
}  # fmt: skip


def _partition_of(field: ScopeField, kind: PrimitiveType) -> Callable[[Any], Any]:
    transform: Any = parse_transform(field.transform).transform(kind)

    def stored(value: Any) -> Any:
        if isinstance(value, date):
            value = (value - date(1970, 1, 1)).days
        return transform(value)

    return stored


def _label(field: ScopeField, kind: PrimitiveType, value: Any) -> str:
    """Label the partition that PyIceberg puts a value into."""
    stored = _partition_of(field, kind)(value)
    if isinstance(value, date):
        return partition_label(field, value)
    return partition_label(field, stored)


def _holds(rows: RowRange, value: Any, bucket: Any) -> bool:
    if rows.buckets is not None:
        return bool(bucket == rows.equals)
    if rows.prefix is not None:
        return str(value).startswith(rows.prefix)
    if rows.equals is not None:
        return bool(value == rows.equals)
    assert not rows.is_null
    above = rows.lower is None or value >= rows.lower
    return above and (rows.upper is None or value < rows.upper)


@pytest.mark.req("P3")
@pytest.mark.parametrize("boundary", BOUNDARIES)
@given(data=st.data())
def test_each_row_is_in_exactly_one_chunk_and_no_partition_in_two(
    boundary: str, data: st.DataObject
) -> None:
    field, kind, values = BOUNDARIES[boundary]
    rows = data.draw(st.lists(values, min_size=1, max_size=30))
    per_chunk = data.draw(st.integers(1, 5))
    labels = {_label(field, kind, value) for value in rows}
    scope = Scope(field=field, partitions=tuple(sorted(labels, key=label_sort_key(field))))
    chunks = cut_chunks(scope, per_chunk)

    listed = [label for chunk in chunks for label in chunk.partitions]
    assert tuple(listed) == scope.partitions
    assert len({chunk.chunk_id for chunk in chunks}) == len(chunks)
    assert all(1 <= len(chunk.partitions) <= per_chunk for chunk in chunks)
    assert [chunk.chunk_id for chunk in chunks] == sorted(chunk.chunk_id for chunk in chunks)
    ranges = [scope_row_ranges(Scope(field=field, partitions=chunk.partitions)) for chunk in chunks]
    for value in rows:
        bucket = _partition_of(field, kind)(value)
        held = [at for at, one in enumerate(ranges) if any(_holds(r, value, bucket) for r in one)]
        assert held == [
            at for at, chunk in enumerate(chunks) if _label(field, kind, value) in chunk.partitions
        ]
        assert len(held) == 1


@pytest.mark.req("P3")
def test_days_of_one_chunk_are_one_range_of_rows() -> None:
    """So that Iceberg reads and replaces neighbours by one filter."""
    field = BOUNDARIES["date"][0]
    days = tuple(str(date(2024, 1, 1) + timedelta(days=n)) for n in range(10))
    for chunk in cut_chunks(Scope(field=field, partitions=days), 4):
        (rows,) = scope_row_ranges(Scope(field=field, partitions=chunk.partitions))
        assert str(rows.lower) == chunk.partitions[0]


def a_pin(kind: str) -> SourcePin:
    return SourcePin(
        name="s", role="source", table="bronze.s", requested="bronze.s", snapshot_id=1, mode="tag",
        columns=columns_of({"own": kind}), partition_column="own",
    )  # fmt: skip


@pytest.mark.req("P3")
@pytest.mark.parametrize("boundary", sorted(BOUNDARIES.keys() - {"date", "month"}))
@given(data=st.data())
def test_what_chunks_read_of_a_source_that_is_cut_by_them_overlaps_nowhere(
    boundary: str, data: st.DataObject
) -> None:
    field, kind, values = BOUNDARIES[boundary]
    rows = data.draw(st.lists(values, min_size=1, max_size=30))
    labels = {_label(field, kind, value) for value in rows}
    scope = Scope(field=field, partitions=tuple(sorted(labels, key=label_sort_key(field))))
    pin = a_pin(field.type)
    assert own_rows(pin.model_copy(update={"partition_column": None}), scope) == ()
    assert "only rows whose own is in its own partitions" in own_rows_notes(scope, (pin,))[0]
    for value in rows:
        read = [
            chunk.partitions
            for chunk in cut_chunks(scope, data.draw(st.integers(1, 5)))
            for part in own_rows(pin, Scope(field=field, partitions=chunk.partitions))
            if part.column == "own" and _holds(part, value, _partition_of(field, kind)(value))
        ]
        assert len(read) == 1
        assert _label(field, kind, value) in read[0]


@pytest.mark.parametrize(
    ("column", "scope", "problem"),
    [
        ("nope", BOUNDARIES["tenant"][0], "nope of bronze.s is no column of it"),
        ("own", BOUNDARIES["id range"][0], "own of bronze.s is string, and the target's id is l"),
        ("own", BOUNDARIES["date"][0], "scoped by d, which is a time"),
        ("own", WHOLE_TABLE_FIELD, "scoped by the whole table"),
    ],
)
def test_a_source_that_cannot_be_cut_by_the_partitions_is_refused(
    column: str, scope: ScopeField, problem: str
) -> None:
    pin = a_pin("string").model_copy(update={"partition_column": column})
    with pytest.raises(ConfigError, match=re.escape(problem)) as error:
        own_rows_notes(Scope(field=scope, partitions=("a",)), (pin,))
    assert error.value.field == "sources.s.partition_column"
    assert error.value.fix
