"""The state as of a point does not depend on the order, or on copies, of the changes."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.adapters.sources.change_records import read_change_lines
from lakehouse_backfill.change_log import arrow_state_as_of, change_position
from lakehouse_backfill.domain.sources.declaration import ChangeLog
from tests.support.sources.changes import Change, envelope, lines, oracle

LOG = ChangeLog(key=("id",), position=("lsn",))
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("v", pa.int64()), ("change_op", pa.string()),
        ("change_position", pa.decimal128(38, 0)), ("change_at", pa.timestamp("us", tz="UTC")),
        ("change_snapshot", pa.string()), ("change_hash", pa.string()),
    ]
)  # fmt: skip
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def raw(log: list[Change]) -> pa.Table:
    return read_change_lines(lines(map(envelope, log)), LOG, SCHEMA)


def state(log: list[Change], as_of: Any = None) -> dict[int, int | None]:
    rows = arrow_state_as_of(raw(log), ["id"], as_of).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Make a log in order: changes of five keys, snapshots that are whole or lost their end."""
    truth: dict[int, int] = {}
    log: list[Change] = []
    lsn = 0
    for number in range(draw(st.integers(1, 12))):
        lsn += draw(st.integers(1, 3))
        key, kind = draw(st.integers(1, 5)), draw(st.integers(0, 9))
        if kind == 0 and truth:
            if draw(st.booleans()):  # a deletion that the log lost
                truth.pop(draw(st.sampled_from(sorted(truth))))
            marks = ["true"] * len(truth)
            if marks and draw(st.booleans()):
                marks[0], marks[-1] = "first", "last_in_data_collection"
            log += [
                Change(lsn, "r", one, truth[one], mark)
                for one, mark in zip(sorted(truth), marks, strict=True)
            ]
        elif kind == 1:
            log.append(Change(lsn, "r", key, number, "incremental"))
            truth[key] = number
        elif key in truth and kind < 5:
            log.append(Change(lsn, "d", key, truth.pop(key)))
        else:
            log.append(Change(lsn, "u" if key in truth else "c", key, number))
            truth[key] = number
    return log


@pytest.mark.req("S3")
@settings(deadline=None)
@given(histories(), st.randoms(use_true_random=False), st.integers(0, 40))
def test_any_order_and_any_copies_give_the_state_that_the_log_gives_in_order(
    log: list[Change], chance: random.Random, as_of: int
) -> None:
    came = [one for one in log for _ in range(chance.randint(1, 3))]
    chance.shuffle(came)
    assert state(came) == oracle(log)
    assert state(came, as_of) == oracle(log, as_of)
    assert state(came, AT + timedelta(milliseconds=as_of)) == oracle(log, as_of)


@pytest.mark.req("S3")
def test_a_late_change_resurrects_nothing_and_a_new_snapshot_buries_lost_deletions() -> None:
    log = [Change(1, "c", 1, 10), Change(2, "c", 2, 20), Change(3, "d", 1, 10)]
    assert state([log[2], log[1], log[0]]) == {2: 20}
    again = [Change(9, "r", 3, 30, "first"), Change(9, "r", 4, 40, "last")]
    assert state([*again, *log]) == {3: 30, 4: 40}
    # A snapshot whose begin or end is not there deletes nothing.
    for part in (again[:1], again[1:] and [Change(9, "r", 3, 30, "true"), again[1]]):
        assert state([*part, *log])[2] == 20
    assert state([Change(9, "r", 3, 30, "last"), *log]) == {3: 30}
    # What came after the snapshot counts, whenever it was met.
    assert state([Change(10, "u", 3, 31), *again, Change(10, "c", 1, 11)]) == {3: 31, 4: 40, 1: 11}


@pytest.mark.req("S3")
def test_deleted_keys_are_kept_with_their_position_for_a_merge() -> None:
    log = [
        Change(1, "c", 1, 10), Change(2, "c", 2, 20), Change(3, "d", 1, 10),
        Change(9, "r", 3, 30, "last"),
    ]  # fmt: skip
    found = arrow_state_as_of(raw(log), ["id"], keep_deleted=True).to_pylist()
    wanted = [(1, "d", Decimal(9)), (2, "d", Decimal(9)), (3, "r", Decimal(9))]
    assert sorted((r["id"], r["change_op"], r["change_position"]) for r in found) == wanted
    found = arrow_state_as_of(raw(log), ["id"], 3, keep_deleted=True).to_pylist()
    wanted = [(1, "d", Decimal(3)), (2, "c", Decimal(2))]
    assert sorted((r["id"], r["change_op"], r["change_position"]) for r in found) == wanted


@pytest.mark.req("S3")
def test_two_changes_at_one_position_with_other_content_are_an_error_that_counts_keys() -> None:
    log = [Change(1, "c", 77, 1), Change(1, "c", 77, 2), Change(2, "c", 78, 1), Change(2, "d", 78)]
    with pytest.raises(ValueError, match=r"^2 key\(s\) have two changes at one position") as caught:
        state(log)
    assert "77" not in str(caught.value)
    # A snapshot's row at the position of a change lies before it.
    assert state([Change(1, "u", 1, 2), Change(1, "r", 1, 1, "true")]) == {1: 2}


def test_positions_order_like_the_log_of_their_database() -> None:
    parts = [
        ("mysql-bin.000009", 900, 0), ("mysql-bin.000009", 900, 1), ("mysql-bin.000010", 4, 0),
        ("mysql-bin.1000000", 4, 0),
    ]  # fmt: skip
    numbers = [change_position(*one) for one in parts]
    assert numbers == sorted(set(numbers))
    assert change_position(24023128) == change_position("24023128") == 24023128
    for wrong in ((), (-1,), (True,), ("0/16B3748",), (1, 2, 3, 4), (10**38,), (10**18, 1)):
        with pytest.raises(ValueError, match="position"):
            change_position(*wrong)


def test_a_key_and_an_instant_are_checked() -> None:
    with pytest.raises(ValueError, match="columns of the key"):
        arrow_state_as_of(raw([]), "id")
    with pytest.raises(ValueError, match="needs its zone"):
        state([Change(1, "c", 1, 1)], datetime(2026, 1, 1))  # noqa: DTZ001 (what is refused)
