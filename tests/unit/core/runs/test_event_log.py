"""The event log of a run and its audit."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.domain.run import Event, Lease, RunState, RunStatus
from lakehouse_backfill.errors import RunMoved
from tests.support.examples import plans
from tests.support.examples.plans import NOON, a_first_event, a_plan, with_fields
from tests.support.fakes.control import FakeRuns

LATER = NOON + timedelta(minutes=5)
LEASE = Lease(holder="here:1", until=LATER)


an_event = functools.partial(plans.an_event, "bf-1", old=RunState.PLANNED)


def begun() -> RunStatus:
    return event_log.apply_first_event(a_plan(), a_first_event(a_plan()))[1]


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
    sealed, _ = event_log.apply_event(begun(), an_event(2, detail={"n": 1}), LEASE)
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
    sealed, _ = event_log.apply_event(begun(), an_event(2, detail=odd), None)
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
    sealed, _ = event_log.apply_event(begun(), an_event(2, detail=detail, actor=actor), LEASE)
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
    moved = event_log.apply_event(noted, an_event(4, new=RunState.APPROVED), None)[1]
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


pytestmark = pytest.mark.req("V4")
Chains = dict[str, tuple[Event, ...]]


def a_note(run_id: str, seq: int) -> Event:
    return plans.an_event(run_id, seq, RunState.PLANNED)


def a_log(**lengths: int) -> FakeRuns:
    """Runs with so many events each."""
    runs = FakeRuns()
    for run_id, count in lengths.items():
        runs.register(a_plan(run_id), a_first_event(a_plan(run_id)))
        for seq in range(2, count + 1):
            runs.append(a_note(run_id, seq))
    return runs


def test_an_empty_log_is_intact():
    assert event_log.verify_logs({}, None).is_intact
    assert event_log.verify_logs({}, (0, event_log.sum_hashes(()))).is_intact


def replaced(chains: Chains, run_id: str, index: int, **changes: object) -> Chains:
    events = list(chains[run_id])
    events[index] = events[index].model_copy(update=changes)
    return {**chains, run_id: tuple(events)}


def dropped(chains: Chains, run_id: str, index: int) -> Chains:
    return {**chains, run_id: chains[run_id][:index] + chains[run_id][index + 1 :]}


def resealed(chains: Chains, run_id: str, index: int) -> Chains:
    """Edit an event and give it the hash that fits."""
    edited = with_fields(chains[run_id][index], actor="eve")
    return replaced(chains, run_id, index, actor="eve", hash=event_log.event_seal(edited))


CASES: dict[str, tuple[Callable[[Chains], Chains], str]] = {
    "edited with a fitting hash": (
        lambda log: resealed(log, "a", 1),
        r"a: event 3 \('note 3'\) does not follow the event before it",
    ),
    "the newest edited with a fitting hash": (
        lambda log: resealed(log, "a", 2),
        "the newest events of the runs are not those that were written last",
    ),
    "deleted at the beginning": (lambda log: dropped(log, "a", 0), "a: event 1 is missing"),
    "a run deleted and one forged": (
        lambda log: {"a": log["a"], "x": tuple(
            with_fields(one, run_id="x") for one in log["b"])},
        r"x: event 1 \('plan'\) was edited",
    ),
    "inserted twice": (
        lambda log: {**log, "a": (*log["a"], log["a"][2])},
        "a: event 4 is missing, or not in its place",
    ),
    "one hash taken away": (
        lambda log: replaced(log, "a", 1, hash=""), r"a: event 2 \('note 2'\) has no hash",
    ),
    "all hashes taken away": (
        lambda log: {run: tuple(with_fields(one, actor="eve") for one in chain)
                     for run, chain in bare(log).items()},
        "the newest events of the runs are not those",
    ),
    "forged without a hash": (
        lambda log: {**log, "x": (with_fields(log["b"][0], run_id="x", hash="", previous=""),)},
        "5 events were written, and 6 events were there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_was_changed_is_found_and_named(case: str):
    change, expected = CASES[case]
    runs = a_log(a=3, b=2)
    found = event_log.verify_logs(change(runs.chains()), runs.seal())
    assert not found.is_intact
    assert found.first_bad is not None
    assert re.search(expected, found.first_bad)


@pytest.mark.parametrize(
    "changes",
    [{"state": RunState.APPROVED}, {"seq": 3}, {"head": "ab"}],
    ids=["state", "seq", "head"],
)
def test_a_status_that_is_not_that_of_the_log_is_found(changes: dict[str, object]):
    runs = a_log(a=2)
    forged = runs.status("a").model_copy(update=changes)
    found = event_log.verify_logs(runs.chains(), runs.seal(), [forged])
    assert found.first_bad.startswith("a: the state that commands go by")


def test_a_status_without_any_event_is_found():
    runs = a_log(a=1)
    stranger = RunStatus(run_id="x", product="p", state=RunState.ACCEPTED, seq=9, at=NOON)
    found = event_log.verify_logs(runs.chains(), runs.seal(), [stranger])
    assert found.first_bad is not None
    assert "(accepted, event 9) is not that of its log (no event at all)" in found.first_bad


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_the_seal_moved_event_by_event_is_the_seal_of_all(order: list[str]):
    runs, seal = FakeRuns(), None
    for run_id in order:
        if run_id in runs.statuses:
            previous = runs.status(run_id).head
            after = runs.append(a_note(run_id, runs.status(run_id).seq + 1))
        else:
            previous = ""
            after = runs.register(a_plan(run_id), a_first_event(a_plan(run_id)))
        seal = event_log.advance_seal(seal, previous, after.head)
    assert (seal or (0, event_log.sum_hashes(()))) == runs.seal()
    assert event_log.verify_logs(runs.chains(), seal).is_intact


# --- events that were written before there were hashes ------------------------------------------


def bare(chains: Chains) -> Chains:
    return {
        run: tuple(with_fields(one, hash="", previous="", epoch=0) for one in chain)
        for run, chain in chains.items()
    }


def test_the_first_seal_covers_the_events_that_are_there():
    runs = a_log(a=3, b=2)
    chains = bare(runs.chains())
    seal = event_log.initial_seal(chains)
    assert seal == runs.seal()
    assert event_log.verify_logs(chains, seal).is_intact
    assert not event_log.verify_logs(replaced(chains, "a", 0, actor="eve"), seal).is_intact
    assert not event_log.verify_logs(dropped(chains, "a", 2), seal).is_intact


def test_no_first_seal_is_made_where_there_was_one():
    assert event_log.initial_seal(a_log(a=1).chains()) is None
    assert event_log.initial_seal({}) == (0, event_log.sum_hashes(()))


def test_an_older_event_edited_after_newer_ones_were_written_is_found():
    runs = a_log(a=3, b=2)
    chains = {"a": bare(runs.chains())["a"][:2] + runs.chains()["a"][2:], "b": runs.chains()["b"]}
    assert event_log.verify_logs(chains, runs.seal()).unchained == 2
    assert event_log.verify_logs(chains, runs.seal()).is_intact
    found = event_log.verify_logs(replaced(chains, "a", 0, actor="eve"), runs.seal())
    assert found.first_bad == (
        "a: event 3 ('note 3') does not follow the event before it, as that one is now"
    )
