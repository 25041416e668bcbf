"""The model of a merge is itself right, on examples that a person can follow."""

from __future__ import annotations

import pytest

from lakehouse_backfill.domain.run import ChunkCounts
from tests.support.oracles.merging import Clash, merge

pytestmark = pytest.mark.req("U4")

BASE = [{"k": 1, "v": 10, "ver": 5}, {"k": 2, "v": 20, "ver": 5}, {"k": 3, "v": 30, "ver": 5}]


def test_each_key_ends_with_its_newest_row() -> None:
    changes = [
        {"k": 1, "v": 11, "ver": 6, "gone": False},
        {"k": 1, "v": 9, "ver": 4, "gone": False},
        {"k": 2, "v": 0, "ver": 6, "gone": True},
        {"k": 3, "v": 30, "ver": 5, "gone": False},
        {"k": 4, "v": 40, "ver": 1, "gone": False},
        {"k": 5, "v": 0, "ver": 1, "gone": True},
    ]
    rows, counts = merge(BASE, changes, ("k",), "ver", "gone")
    assert sorted(rows, key=lambda row: row["k"]) == [
        {"k": 1, "v": 11, "ver": 6}, {"k": 3, "v": 30, "ver": 5}, {"k": 4, "v": 40, "ver": 1},
    ]  # fmt: skip
    assert counts == ChunkCounts(
        carried_rows=1, inserted_rows=1, updated_rows=1, deleted_rows=1, ignored_rows=3
    )


def test_an_equal_version_with_other_content_is_a_clash() -> None:
    for changes in (
        [{"k": 1, "v": 11, "ver": 5}],
        [{"k": 1, "v": 11, "ver": 7}, {"k": 1, "v": 12, "ver": 7}],
    ):
        with pytest.raises(Clash) as found:
            merge(BASE, changes, ("k",), "ver")
        assert found.value.keys == {(1,)}
