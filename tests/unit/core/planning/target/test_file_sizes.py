"""How rows are spread over files, by what a table declares; how many a partition may have."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.planning.target.file_sizes import (
    ALWAYS_ALLOWED_FILES,
    Expected,
    WriteDistribution,
    allowed_files,
    choose_distribution,
    describe_small_chunks,
    may_be_grouped,
    may_stay,
)

MIB = 1024 * 1024
MODE, SIZE = "write.distribution-mode", "write.target-file-size-bytes"
SORTED = {"sort-order": "k ASC NULLS FIRST"}
HASH, RANGE = WriteDistribution("hash"), WriteDistribution("range")
REBALANCE = partial(WriteDistribution, "rebalance")
PARTS = {"has_partitions": True}
LARGE: dict[str, Any] = {"expected": Expected(64 * MIB, 16)}


@pytest.mark.req("X10")
@pytest.mark.parametrize(
    ("properties", "facts", "chosen"),
    [
        pytest.param({}, PARTS, HASH, id="nothing declared"),
        pytest.param({MODE: "hash"}, PARTS, HASH, id="hash declared"),
        pytest.param({}, PARTS | LARGE, WriteDistribution("hash", buckets=64), id="large"),
        pytest.param(
            {}, PARTS | {"expected": Expected(64 * MIB, 9_999)},
            WriteDistribution("hash", buckets=1024), id="many partitions",
        ),
        pytest.param({}, PARTS | LARGE | {"is_adaptive": False}, HASH, id="large, not adaptive"),
        pytest.param({}, PARTS | {"expected": Expected(64 * MIB - 1, 16)}, HASH, id="small"),
        pytest.param({}, PARTS | {"expected": Expected(64 * MIB, 1)}, HASH, id="one partition"),
        pytest.param({MODE: "none"}, PARTS, HASH, id="none leaves a file for each task"),
        pytest.param({MODE: "range"}, PARTS, RANGE, id="range declared"),
        pytest.param(SORTED, PARTS, RANGE, id="sorted"),
        pytest.param(SORTED | {MODE: "none"}, PARTS, HASH, id="sorted inside of tasks only"),
        pytest.param(SORTED, {}, RANGE, id="sorted, no partitions"),
        pytest.param({}, {}, REBALANCE(3 * 512 * MIB), id="no partitions"),
        pytest.param({SIZE: str(MIB)}, {}, REBALANCE(64 * MIB), id="small files"),
        pytest.param(
            {SIZE: str(MIB)},
            {"is_adaptive": False, "expected": Expected(5 * MIB + 1)},
            REBALANCE(tasks=6),
            id="tasks that Spark cannot measure",
        ),
        pytest.param(
            {}, {"is_adaptive": False, "expected": Expected(0)}, REBALANCE(tasks=1),
            id="nothing expected",
        ),
        pytest.param({}, {"is_adaptive": False}, WriteDistribution("none"), id="nothing known"),
    ],
)  # fmt: skip
def test_a_chunk_is_written_with_the_distribution_that_fits_its_table(
    properties: dict[str, str], facts: dict[str, Any], chosen: WriteDistribution
) -> None:
    known = {"has_partitions": False, "is_adaptive": True} | facts
    assert choose_distribution(properties, **known) == chosen


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("distribution", "partitions", "cores", "may"),
    [
        pytest.param(WriteDistribution("hash", buckets=24), 6, 2, True, id="three for each core"),
        pytest.param(WriteDistribution("hash", buckets=20), 5, 2, False, id="too few partitions"),
        pytest.param(HASH, 60, 2, False, id="small"),
        pytest.param(RANGE, 60, 2, False, id="an order over all rows"),
        pytest.param(REBALANCE(64 * MIB), 60, 2, False, id="a table without partitions"),
    ],
)
def test_a_large_chunk_of_many_partitions_may_be_left_in_its_tasks(
    distribution: WriteDistribution, partitions: int, cores: int, may: bool
) -> None:
    assert may_be_grouped(distribution, Expected(64 * MIB, partitions), cores) is may


@pytest.mark.req("P2")
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.integers(1, 8))
def test_tasks_left_as_they_are_end_at_most_a_third_later_than_they_could(
    sizes: list[int], cores: int
) -> None:
    """Spark gives the next task to the core that is free first, in whatever order."""
    busy = [0] * cores
    for size in sizes:
        busy[busy.index(min(busy))] += size
    if may_stay(sizes, cores, {}):
        assert max(busy) * cores * 3 <= sum(sizes) * 4


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("sizes", "may"),
    [
        pytest.param([MIB] * 6, True, id="of the target size"),
        pytest.param([MIB + 1] * 6, False, id="larger"),
        pytest.param([0] * 6, False, id="no rows"),
        pytest.param([], False, id="not of one partition each"),
        pytest.param([MIB, *[MIB // 2] * 9], False, id="skewed"),
        pytest.param([MIB, *[MIB // 2] * 10], True, id="a little skewed"),
    ],
)
def test_tasks_are_left_as_they_are_if_all_are_small_and_even(sizes: list[int], may: bool) -> None:
    assert may_stay(sizes, 2, {SIZE: str(MIB)}) is may


@given(st.integers(0, 10**13), st.integers(1, 10**10))
def test_files_of_at_least_half_the_target_are_never_too_many(size: int, target: int) -> None:
    at_half_size = -(-2 * size // target)
    assert allowed_files(size, target) >= max(at_half_size, ALWAYS_ALLOWED_FILES)


@pytest.mark.req("X10")
@pytest.mark.parametrize(
    ("chunks", "size", "properties", "words"),
    [
        (200, 10 * MIB, {}, "200 chunks by key leaves a file, of about 10,485,760 bytes where the "
         "table's target is 536,870,912: 4 chunks reach it"),
        (9, 1, {}, "1 chunk reaches it"),
        (9, 10 * MIB, {SIZE: str(10 * MIB)}, ""),
        (8, 1, {}, ""),
        (200, 0, {}, ""),
    ],
    ids=["many", "one would do", "as large as the target", "a few", "an empty table"],
)  # fmt: skip
def test_chunks_by_key_that_leave_many_small_files_are_named_by_the_plan(
    chunks: int, size: int, properties: dict[str, str], words: str
) -> None:
    found = describe_small_chunks([size] * chunks, properties)
    assert found.endswith(words)
    assert bool(found) == bool(words)
