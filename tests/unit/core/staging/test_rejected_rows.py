"""Rejected rows that were edited, added or removed are found; what was cut off is no fault."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.staging import rejects
from lakehouse_backfill.domain.run import RejectedCount, RunState
from tests.support.examples.plans import NOON, an_event

RUN = "bf-1"
Rows = list[dict[str, Any]]


def row(key: int, *, attempt: int = 0, chunk: str = "c1", run: str = RUN) -> dict[str, Any]:
    made = {
        "run_id": run, "chunk_id": chunk, "source": "raw", "record_key": f'{{"k":{key}}}',
        "reason": "late", "record": f'{{"k":{key}}}',
        "rejected_at": NOON + timedelta(seconds=attempt),
    }  # fmt: skip
    return made | {"seal": rejects.row_seal(made)}


def count(rows: Rows | None, number: int = 2) -> RejectedCount:
    seal = None if rows is None else rejects.rows_seal(one["seal"] for one in rows)
    return RejectedCount(run_id=RUN, chunk_id="c1", rows=number, seal=seal)


def faults(
    stored: Rows, counted: RejectedCount | None, state: RunState = RunState.PUBLISHED
) -> str | None:
    chains = {RUN: (an_event(RUN, 1, state),)}
    counts = () if counted is None else (counted,)
    found = rejects.find_faults(chains, counts, rejects.group_rows(stored))
    return found.get(RUN)


WHOLE = [row(1), row(2)]
EDITED = WHOLE[0] | {"reason": "early"}
RESEALED = EDITED | {"seal": rejects.row_seal(EDITED)}
UNSEALED = [{name: value for name, value in one.items() if name != "seal"} for one in WHOLE]


def test_rows_as_they_were_stored_are_no_fault_in_any_order() -> None:
    assert faults(WHOLE, count(WHOLE)) is None
    assert faults(WHOLE[::-1], count(WHOLE)) is None
    assert faults([], count([])) is None
    assert faults(UNSEALED, count(None)) is None


@pytest.mark.parametrize(
    ("stored", "counted", "expected"),
    [
        ([EDITED, WHOLE[1]], count(WHOLE), 'the row with the key {"k":1} was edited since'),
        ([RESEALED, WHOLE[1]], count(WHOLE), "are not those that were stored with the chunk"),
        (WHOLE[:1], count(WHOLE), "some were edited, added or removed"),
        ([], count(WHOLE), "the 0 rows stored are not those"),
        ([*WHOLE, row(3)], count(WHOLE), "the 3 rows stored are not those"),
        ([*WHOLE, row(1, attempt=9)], count(WHOLE), "the 1 rows stored are not those"),
        (WHOLE, count([]), "the 2 rows stored are not those"),
        (WHOLE, None, "the chunk ledger counts none"),
        ([*UNSEALED, row(3)], count(None), "3 rows are stored, and the chunk ledger counts 2"),
    ],
    ids=["edited", "sealed again", "removed", "all removed", "added", "newer", "kept none",
         "not counted", "older"],
)  # fmt: skip
def test_other_rows_than_those_that_were_stored_are_named(
    stored: Rows, counted: RejectedCount | None, expected: str
) -> None:
    found = faults(stored, counted)
    assert found is not None
    assert found.startswith(f"reject_record, chunk c1 of {RUN}: ")
    assert expected in found


def test_an_attempt_that_was_cut_off_before_its_count_is_no_fault_until_the_run_is_staged() -> None:
    again = [*WHOLE, row(1, attempt=9)]
    for state in (RunState.STAGING, RunState.FAILED, RunState.CANCELLED):
        assert faults(again, count(WHOLE), state) is None
        assert faults(WHOLE, None, state) is None
    assert faults(again, count(WHOLE), RunState.STAGED) is not None
    assert faults([row(1, attempt=9)], count(WHOLE), RunState.STAGING) is not None


def test_rows_of_a_run_that_the_log_does_not_know_are_named() -> None:
    found = rejects.find_faults({}, (), rejects.group_rows([row(1, run="bf-9")]))
    assert found == {"bf-9": "bf-9 has rows in reject_record, and no event in the log of runs"}


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 5), max_size=6))
def test_rows_are_sealed_as_a_multiset(old: list[int], new: list[int]) -> None:
    stored = [row(key) for key in old]
    found = faults([row(key) for key in new], count(stored, len(old)))
    assert (found is None) == (sorted(old) == sorted(new))
