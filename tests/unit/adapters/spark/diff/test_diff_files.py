"""Which files Spark need not compare: those that both sides list alike."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.diff.files import File, Files, Layout, Part, split
from lakehouse_backfill.domain.checks import SharedFiles
from lakehouse_backfill.domain.partitions import ScopeField

DAYS = Layout(ScopeField(column="d", transform="identity", type="date"), (Part("d", "identity"),))


def file(path: str, label: str = "a") -> File:
    return File(path, 10, 100, label, (1, label))


def found(old: list[File], new: list[File], **options: Any) -> Any:
    return split(Files(tuple(old)), Files(tuple(new)), DAYS, None, reads_alike=True, **options)


@pytest.mark.req("Q5")
def test_a_file_that_a_side_lists_more_often_is_read() -> None:
    one, other = file("1"), file("2", "b")
    seen = found([one, other], [one, one, other])
    assert seen.files == SharedFiles(shared=1, old_only=1, new_only=2)
    assert (seen.skipped, seen.touched, seen.differing_bytes) == ({"2"}, {"a"}, 300)
    both = found([one, one], [one, one])
    assert (both.files.shared, both.skipped, both.unchanged) == (2, {"1"}, {"a": 20})


@pytest.mark.req("Q5")
def test_a_file_that_lies_in_another_partition_is_read() -> None:
    seen = found([file("1"), file("2")], [file("1", "b"), file("2")])
    assert seen.files == SharedFiles(shared=1, old_only=1, new_only=1)
    assert (seen.skipped, seen.touched) == ({"2"}, {"a", "b"})


@pytest.mark.req("Q5")
def test_a_partition_known_to_be_equal_is_read_where_a_file_of_it_lies_elsewhere_too() -> None:
    """Rows are skipped by the file's path, which would take them away there as well."""
    old, new = [file("1"), file("3", "c")], [file("2"), file("1", "b"), file("4", "c")]
    seen = found(old, new, known_equal=frozenset("ac"))
    assert (seen.skipped, seen.touched) == ({"3", "4"}, {"a", "b"})
