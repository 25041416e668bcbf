"""What an event does to the status of its run, its seal and its lease."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.run import Event, Lease, RunState, RunStatus
from lakehouse_backfill.errors import RunMoved
from tests.support.examples.plans import NOON, a_first_event, a_plan

LATER = NOON + timedelta(minutes=5)
LEASE = Lease(holder="here:1", until=LATER)


def begun() -> RunStatus:
    return event_log.apply_first_event(a_plan(), a_first_event(a_plan()))[1]


def an_event(
    seq: int, source: RunState = RunState.PLANNED, to: RunState | None = None, **detail: Any
):
    return Event(
        run_id="bf-1", seq=seq, at=NOON, actor="ann", verb="do", from_state=source,
        to_state=to or source, mode="backfill", detail=detail,
    )  # fmt: skip


@pytest.mark.req("V4")
def test_each_event_is_sealed_onto_the_one_before():
    first, status = event_log.apply_first_event(a_plan(), a_first_event(a_plan()))
    second, after = event_log.apply_event(status, an_event(2), None)
    assert (first.previous, first.hash) == ("", event_log.event_seal(first))
    assert (second.previous, second.hash) == (first.hash, event_log.event_seal(second))
    assert (status.head, after.head) == (first.hash, second.hash)
    assert first.product == second.product == a_plan().product


CHANGES: dict[str, Any] = {
    "run_id": "bf-2", "seq": 3, "at": NOON + timedelta(microseconds=1), "actor": "eve",
    "verb": "approve", "from_state": RunState.DRAFT, "to_state": RunState.APPROVED, "mode": "live",
    "detail": {"n": 2}, "product": "gold.x", "driver": "there:2", "epoch": 1, "previous": "ab",
}  # fmt: skip


@pytest.mark.req("V4")
def test_every_field_of_an_event_is_in_its_hash():
    sealed, _ = event_log.apply_event(begun(), an_event(2, n=1), LEASE)
    assert set(CHANGES) == set(Event.model_fields) - {"hash"}
    for name, value in CHANGES.items():
        assert event_log.event_seal(sealed.model_copy(update={name: value})) != sealed.hash, name


@pytest.mark.req("V4")
def test_the_hash_does_not_depend_on_how_the_same_instant_is_written():
    event = an_event(2)
    elsewhere = event.at.astimezone(timezone(timedelta(hours=2)))
    assert event_log.event_seal(event) == event_log.event_seal(
        event.model_copy(update={"at": elsewhere})
    )


@pytest.mark.req("V4")
def test_a_sealed_detail_holds_what_will_be_read_again():
    odd = {"at": datetime(2026, 1, 1, tzinfo=timezone.utc), "amount": Decimal("1.5"), "who": ("a",)}
    sealed, _ = event_log.apply_event(begun(), an_event(2, **odd), None)
    assert sealed.detail == {"at": "2026-01-01 00:00:00+00:00", "amount": "1.5", "who": ["a"]}
    assert Event.model_validate_json(sealed.model_dump_json()) == sealed
    assert event_log.event_seal(sealed) == sealed.hash


@pytest.mark.req("V4")
@given(
    detail=st.dictionaries(
        st.text(max_size=5), st.one_of(st.text(), st.integers(), st.floats(allow_nan=False,
        allow_infinity=False), st.none(), st.booleans(), st.lists(st.integers())), max_size=3,
    ),
    actor=st.text(),
)  # fmt: skip
def test_a_seal_survives_being_written_and_read(detail: dict[str, Any], actor: str):
    sealed, _ = event_log.apply_event(begun(), an_event(2).model_copy(
        update={"detail": detail, "actor": actor}), LEASE)  # fmt: skip
    assert event_log.event_seal(Event.model_validate_json(sealed.model_dump_json())) == sealed.hash


@pytest.mark.req("V4")
def test_events_without_hashes_get_those_that_they_would_have():
    first, status = event_log.apply_first_event(a_plan(), a_first_event(a_plan()))
    second, after = event_log.apply_event(status, an_event(2), None)
    third, _ = event_log.apply_event(after, an_event(3), None)
    bare = [one.model_copy(update={"hash": "", "previous": ""}) for one in (first, second)]
    assert event_log.chain_events([*bare, third]) == (first, second, third)
    assert event_log.chain_events([first, bare[1], third]) == (first, bare[1], third)
    assert event_log.chain_events([]) == ()


@pytest.mark.req("X9")
def test_the_holder_of_a_lease_becomes_the_driver_and_the_number_of_the_event_the_epoch():
    status = event_log.apply_event(begun(), an_event(2), LEASE)[1]
    assert (status.driver, status.epoch, status.lease_until) == ("here:1", 2, LATER)
    noted = event_log.apply_event(status, an_event(3), None)[1]
    assert (noted.driver, noted.epoch, noted.lease_until) == ("here:1", 2, LATER)
    moved = event_log.apply_event(noted, an_event(4, to=RunState.APPROVED), None)[1]
    assert (moved.driver, moved.epoch, moved.lease_until) == (None, 2, None)
    again = event_log.apply_event(moved, an_event(5), Lease(holder="there:2", until=LATER))[1]
    assert (again.driver, again.epoch) == ("there:2", 5)


@pytest.mark.req("X9")
def test_only_the_lease_of_the_driver_of_an_open_run_is_renewed():
    status = event_log.apply_event(begun(), an_event(2), LEASE)[1]
    until = LATER + timedelta(minutes=1)
    longer = event_log.extend_lease(status, 2, until)
    assert longer == status.model_copy(update={"lease_until": until})
    for state, epoch in (
        (status, 1),
        (status, 3),
        (begun(), 0),
        (status.model_copy(update={"state": RunState.CANCELLED}), 2),
    ):
        with pytest.raises(RunMoved, match="taken over"):
            event_log.extend_lease(state, epoch, until)


@pytest.mark.req("X9")
def test_an_epoch_is_refused_only_below_the_fence():
    event_log.require_current_epoch("bf-1", 3, 3)
    event_log.require_current_epoch("bf-1", 4, 3)
    with pytest.raises(RunMoved, match=r"bf-1 was taken over .* \(lease 2, now 3\)"):
        event_log.require_current_epoch("bf-1", 2, 3)


def test_chunk_ids_are_sorted_by_their_numbers():
    assert sorted(["c10", "c9", "c1-b", "c1-a"], key=event_log.chunk_sort_key) == [
        "c1-a", "c1-b", "c9", "c10",
    ]  # fmt: skip
