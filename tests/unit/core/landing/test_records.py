"""Records of an API: what is landed of them, and which were deleted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.landing.records import (
    JudgedRecord,
    KnownRecord,
    deleted_ids,
    is_overtaken,
    judge_record,
)

RECORDS = st.builds(
    lambda key, value, version: {"id": key, "v": value, "version": version},
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3),
)  # fmt: skip


@given(st.lists(st.lists(RECORDS, max_size=6), max_size=5))
def test_the_newest_landed_rows_are_the_newest_states_and_no_state_is_landed_twice_in_a_row(
    readings: list[list[dict[str, Any]]],
) -> None:
    known: dict[str, KnownRecord] = {}
    landed: list[JudgedRecord] = []
    newest: dict[str, dict[str, Any]] = {}
    for reading in readings:
        seen = set()
        for record in reading:
            seen.add(str(record["id"]))
            newest[str(record["id"])] = record
            judged = judge_record(record, "id", "version", known)
            landed += [judged] if judged is not None else []
        for gone in deleted_ids(known, list(known), frozenset(seen)):
            landed.append(JudgedRecord(gone, "deletion", known[gone].record_hash, {}))
            known[gone] = known[gone]._replace(is_deleted=True)
            del newest[gone]
    state: dict[str, JudgedRecord] = {}
    for row in landed:
        before = state.get(row.record_id)
        is_live = before is not None and before.change != "deletion"
        assert (row.change == "insert") is not is_live
        if before is not None and is_live and row.change != "deletion":
            assert before.record_hash != row.record_hash
            is_same_version = before.record["version"] == row.record["version"]
            assert row.change == ("correction" if is_same_version else "update")
        state[row.record_id] = row
    live = {one: dict(row.record) for one, row in state.items() if row.change != "deletion"}
    assert live == newest


def test_without_a_version_every_change_is_an_update() -> None:
    known: dict[str, KnownRecord] = {}
    for value, wanted in ((1, "insert"), (1, None), (2, "update")):
        judged = judge_record({"id": 1, "v": value}, "id", None, known)
        assert (judged.change if judged else None) == wanted


@pytest.mark.parametrize(
    ("version", "landed", "is_deleted", "overtaken"),
    [
        (9, "10", False, True), (10, "10", False, False), (10, "10", True, True),
        (11, "10", True, False), ("9.5", "10", False, True), (None, "10", False, False),
        (1, None, False, False), ("2026-01-01T00:00Z", "2026-01-02T00:00Z", False, True),
        ("2026-01-02T00:00Z", "2026-01-01T00:00Z", False, False), ("nan", "1", False, False),
        ("b", "a", False, False),
        # The same clock, written with and without a fraction, or in two zones.
        ("2026-01-01T00:00:00.500Z", "2026-01-01T00:00:00Z", False, False),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.500Z", False, True),
        ("2026-01-01T00:30:00+00:00", "2026-01-01T01:00:00+01:00", False, False),
    ],
)  # fmt: skip
def test_a_request_that_comes_late_is_known_by_its_version(
    version: Any, landed: str | None, *, is_deleted: bool, overtaken: bool
) -> None:
    known = {"1": KnownRecord("h", landed, is_deleted)}
    assert is_overtaken({"id": 1, "v": version}, "id", "v", known) is overtaken
    assert not is_overtaken({"id": 2, "v": version}, "id", "v", known)
    assert not is_overtaken({"id": 1, "v": version}, "id", None, known)


def test_a_record_that_was_landed_without_a_version_is_older_than_each_version() -> None:
    known: dict[str, KnownRecord] = {}
    judge_record({"id": 1, "v": None}, "id", "v", known)
    assert not is_overtaken({"id": 1, "v": "2026-01-01"}, "id", "v", known)
    assert not is_overtaken({"id": 1, "v": 7}, "id", "v", known)
