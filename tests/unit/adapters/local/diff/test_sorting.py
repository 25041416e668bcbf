"""Rows matched by sorting their keys: the pairs that a look at every key gives, or none at all."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from lakehouse_backfill.adapters.local.diff import sort_merge
from lakehouse_backfill.adapters.local.diff.columns import as_large_type, resolve_diff_columns
from lakehouse_backfill.adapters.local.diff.sort_merge import are_sortable, sorted_pairs
from lakehouse_backfill.adapters.local.parquet import thread_pool

WIDEST = 2**63 - 1
SCHEMA = Schema(
    NestedField(1, "k", LongType(), required=False),
    NestedField(2, "m", LongType(), required=False),
    NestedField(3, "x", DoubleType(), required=False),
    NestedField(4, "s", StringType(), required=False),
)
COLUMNS = resolve_diff_columns(SCHEMA, SCHEMA, ("k", "m"), (), ())
NUMBERS = st.one_of(
    st.integers(-3, 3), st.sampled_from([-WIDEST - 1, WIDEST, 2**31, -(2**40)]), st.none()
)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        NUMBERS,
        st.integers(-2, 2),
        st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
        st.sampled_from([None, "", "a"]),
    ),
    max_size=12,
)


def table(rows: list[tuple[Any, ...]], size: int) -> pa.Table:
    types = (pa.int32(), pa.int64(), pa.int64(), pa.float64(), pa.string())
    arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
    whole = pa.table(arrays, names=["p", "c0", "c1", "c2", "c3"])
    return pa.Table.from_batches(whole.to_batches(max_chunksize=size), whole.schema)


def said(value: Any) -> Any:
    """NaN is equal to itself here, and -0.0 to 0.0."""
    return "nan" if value != value else 0.0 if value == 0 and value != "" else value


def expected(old: list[tuple[Any, ...]], new: list[tuple[Any, ...]]) -> list[int]:
    places = [{row[:3]: at + 1 for at, row in enumerate(side)} for side in (old, new)]
    pairs = []
    for key in {*places[0], *places[1]}:
        mine, theirs = (side.get(key, 0) for side in places)
        rows = [side[at - 1][3:] if at else None for side, at in ((old, mine), (new, theirs))]
        if None in rows or [*map(said, rows[0] or ())] != [*map(said, rows[1] or ())]:
            pairs.append((mine << 32) | theirs)
    return sorted(pairs)


def _keys(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    return Counter(row[:3] for row in rows)


@pytest.mark.req("Q5")
@settings(max_examples=300, deadline=None)
@given(old=ROWS, new=ROWS, size=st.sampled_from([1, 3, 100]), few=st.sampled_from([1, 256]))
def test_sorting_pairs_the_rows_that_differ_or_leaves_them_to_the_join(old, new, size, few) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort_merge, "_MIN_ROWS_PER_SLICE", few)
        found = sorted_pairs(table(old, size), table(new, size), COLUMNS)
    keys = [row[:3] for side in (old, new) for row in side]
    repeats = any(
        max(Counter(row[:3] for row in side).values(), default=0) > 1 for side in (old, new)
    )
    if repeats or not keys or any(key[1] is None for key in keys):
        assert found is None
        return
    places = 1
    for values in zip(*keys, strict=True):
        places *= max(values) - min(values) + 1
    if places.bit_length() > 63:
        assert found is None
    else:
        assert found.tolist() == expected(old, new)


def test_very_wide_rows_are_left_to_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table([(0, 1, 1, 0.0, "a")], 1)
    assert sorted_pairs(rows, rows, COLUMNS) is not None
    monkeypatch.setattr(sort_merge, "_MAX_BYTES", 2 * rows.nbytes - 1)
    assert sorted_pairs(rows, rows, COLUMNS) is None


def test_more_than_two_gibibytes_of_text_have_room() -> None:
    texts = pa.chunked_array([pa.array(["a", None]), pa.array(["b"])])
    for values in (texts, texts.dictionary_encode(), texts.cast(pa.large_string())):
        assert as_large_type(values).type == pa.large_string()
        assert as_large_type(values).to_pylist() == ["a", None, "b"]
    assert as_large_type(texts.cast(pa.binary())).type == pa.large_binary()


@pytest.mark.req("Q5")
@settings(deadline=None)
@given(
    gone=st.sets(st.integers(0, 1999), max_size=2),
    come=st.sets(st.integers(0, 1999), max_size=2),
    moved=st.sets(st.integers(0, 1999), max_size=2),
    sizes=st.tuples(st.integers(900, 2500), st.integers(900, 2500)),
)
def test_texts_of_rows_in_the_order_of_their_key_are_compared_as_they_lie(gone, come, moved, sizes):
    rows = [(0, at, 0, None, None if at % 7 == 0 else f"text {at % 5}") for at in range(2000)]
    old = [row for row in rows if row[1] not in come]
    new = [(*row[:4], "else") if row[1] in moved else row for row in rows if row[1] not in gone]
    found = sorted_pairs(table(old, sizes[0]), table(new, sizes[1]), COLUMNS)
    assert found.tolist() == expected(old, new)


@pytest.mark.parametrize("key", [(), ("s",), ("k", "s"), ("x",)])
def test_only_keys_of_whole_numbers_are_sorted(key: tuple[str, ...]) -> None:
    assert are_sortable(COLUMNS)
    assert not are_sortable(resolve_diff_columns(SCHEMA, SCHEMA, key, (), ()))


def test_threads_stay_but_not_beyond_a_fork() -> None:
    assert thread_pool("file", 2) is thread_pool("file", 2)
    assert thread_pool("file", 2).submit(os.getpid).result() == os.getpid()
    child = os.fork()
    if not child:
        is_alive = thread_pool("file", 2).submit(os.getpid).result(timeout=20) == os.getpid()
        os._exit(0 if is_alive else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
