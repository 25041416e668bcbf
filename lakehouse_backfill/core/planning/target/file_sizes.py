"""How staged rows are spread over files, and how many files a partition may have.

A chunk is written so that its files reach the table's target size: `choose_distribution`. What was
written is counted by `allowed_files`, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

#: Iceberg's default of write.target-file-size-bytes.
DEFAULT_FILE_BYTES: Final = 512 * 1024 * 1024
#: A partition of few rows may still have so many files.
ALWAYS_ALLOWED_FILES: Final = 8
TARGET_SIZE_PROPERTY: Final = "write.target-file-size-bytes"
MODE_PROPERTY: Final = "write.distribution-mode"
#: How many bytes of a shuffle make one byte of a Parquet file, as Iceberg takes it by default.
_SHUFFLE_RATIO: Final = 3
#: Spark's default of the size of a task behind a shuffle.
_LEAST_TASK_BYTES: Final = 64 * 1024 * 1024
#: Few partitions of a chunk share a bucket then, so that no task is left with several at the end.
_BUCKETS_PER_PARTITION: Final = 4
_MOST_BUCKETS: Final = 1024
#: The largest of the tasks that are left as they are has at most this part of a core's share, so
#: that the last one ends at most a third later than all would together.
_SHARE_OF_A_TASK: Final = 3


class WriteDistribution(NamedTuple):
    """How the rows of a chunk are brought together before they are written.

    `mode` is Iceberg's: rows of a partition go to one task (hash), or are sorted over all tasks
    (range). `rebalance`: Iceberg has no mode for tables without partitions, so that Spark makes
    tasks of `task_bytes`; where it cannot measure them, of the number `tasks`. `buckets`: into so
    many, or more, the rows of a large chunk are hashed, so that its partitions make tasks of like
    size. `grouped`: each task reads and computes the rows of one partition, so that none is moved.
    """

    mode: Literal["hash", "range", "rebalance", "none", "grouped"]
    task_bytes: int | None = None
    tasks: int | None = None
    buckets: int | None = None


class Expected(NamedTuple):
    """What is written at a time: the bytes that a run's partitions hold now, and those written.

    `run_bytes` is None where nobody knows.
    """

    run_bytes: int | None = None
    partitions: int = 1


NOTHING_KNOWN: Final = Expected()


GROUPED: Final = WriteDistribution("grouped")


def may_be_grouped(instead_of: WriteDistribution, expected: Expected, cores: int) -> bool:
    """Return whether it is worth to ask if the tasks of a chunk have one partition each.

    So it is of large chunks whose partitions would be brought together, and suffice for all cores.
    """
    is_large = instead_of.mode == "hash" and instead_of.buckets is not None
    return is_large and expected.partitions >= _SHARE_OF_A_TASK * cores


def may_stay(sizes: Sequence[int], cores: int, properties: Mapping[str, str]) -> bool:
    """Return whether tasks of these bytes keep all cores at work nearly to the end.

    None of them reads more than the target size of a file: larger ones Spark had better cut.
    """
    largest = max(sizes, default=0)
    is_even = largest * _SHARE_OF_A_TASK * cores <= sum(sizes)
    return is_even and 0 < largest <= target_file_bytes(properties)


def choose_distribution(
    properties: Mapping[str, str],
    *,
    has_partitions: bool,
    is_adaptive: bool,
    expected: Expected = NOTHING_KNOWN,
) -> WriteDistribution:
    """Return how a chunk is written so that it leaves no small files.

    `properties` are those of the shadow, which has them from the target: a declared `none` leaves
    as many files in each partition as there are tasks, so that it is not followed. A declared
    order of rows is.
    """
    expected_bytes, partitions = expected
    is_sorted = "sort-order" in properties or properties.get(MODE_PROPERTY) == "range"
    if is_sorted and properties.get(MODE_PROPERTY, "range") == "range":
        return WriteDistribution("range")
    if has_partitions:
        is_worth = is_adaptive and partitions > 1 and (expected_bytes or 0) >= _LEAST_TASK_BYTES
        buckets = min(_BUCKETS_PER_PARTITION * partitions, _MOST_BUCKETS) if is_worth else None
        return WriteDistribution("hash", buckets=buckets)
    target = target_file_bytes(properties)
    if is_adaptive:
        return WriteDistribution(
            "rebalance", task_bytes=max(_SHUFFLE_RATIO * target, _LEAST_TASK_BYTES)
        )
    if expected_bytes is None:
        return WriteDistribution("none")
    return WriteDistribution("rebalance", tasks=max(1, -(-expected_bytes // target)))


def target_file_bytes(properties: Mapping[str, str]) -> int:
    """Return the size that a table's files shall have, in bytes."""
    return int(properties.get(TARGET_SIZE_PROPERTY, DEFAULT_FILE_BYTES))


def allowed_files(size_bytes: int, target_bytes: int) -> int:
    """Return how many files a partition of this size may have: twice what it needs, or a few."""
    return max(ALWAYS_ALLOWED_FILES, 2 * -(-size_bytes // target_bytes))


def describe_small_chunks(sizes: Sequence[int], properties: Mapping[str, str]) -> str:
    """Describe that chunks by key leave more files than a table of their size may have; or nothing.

    `sizes` are those of the chunks, in bytes; a chunk leaves at least one file.
    """
    target, total = target_file_bytes(properties), sum(sizes)
    if not total or len(sizes) <= allowed_files(total, target):
        return ""
    few = max(1, -(-total // target))
    return (
        f"each of the {len(sizes):,} chunks by key leaves a file, of about "
        f"{total // len(sizes):,} bytes where the table's target is {target:,}: "
        f"{few:,} {'chunk reaches' if few == 1 else 'chunks reach'} it"
    )
