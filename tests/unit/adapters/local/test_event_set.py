"""Rules of the order of events, of what is one event, and of going on behind a place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.adapters.local.event_set import DuckEventSet
from lakehouse_backfill.domain.sources.events import (
    AggregateState,
    ReplayPosition,
    ReplayRequest,
    StoredEvent,
)

Row = dict[str, Any]
SCHEMA = pa.schema(
    {
        "event_id": pa.string(),
        "aggregate_id": pa.string(),
        "aggregate_type": pa.string(),
        "event_type": pa.string(),
        "payload": pa.large_binary(),
        "sequence_num": pa.int64(),
        "occurred_us": pa.int64(),
        "created_us": pa.int64(),
    }
)
#: Few values, so that instants and prefixes of ids are often equal; also before 1970.
_INSTANTS = st.sampled_from([-(2**55), -1, 0, 1, 10, 2**57])


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Consistent events of a few aggregates, some of them delivered again, in any order."""
    ids = draw(st.lists(st.text(max_size=3), unique=True, min_size=1, max_size=9))
    numbers: dict[str, int] = {}
    rows = []
    for event_id in ids:
        name = draw(st.sampled_from(["", "A", "Ä", "B"]))
        numbers[name] = numbers.get(name, 0) + 1
        row: Row = {
            "event_id": event_id,
            "aggregate_id": name,
            "event_type": draw(st.sampled_from(["x", "y"])),
            "payload": b"{}",
            "sequence_num": numbers[name],
            "occurred_us": draw(_INSTANTS),
        }
        rows += [row] * draw(st.integers(1, 2))
    return draw(st.permutations(rows))


def opened(rows: list[Row]) -> DuckEventSet:
    return DuckEventSet([pa.Table.from_pylist(rows, schema=SCHEMA)], first_sequence=1)


def ordered(rows: list[Row]) -> list[str]:
    """Return the ids in their order: each behind the latest pair of instant and id before it."""
    once = {row["event_id"]: row for row in rows}.values()
    places = {}
    for row in once:
        before = [
            (one["occurred_us"], one["event_id"])
            for one in once
            if one["aggregate_id"] == row["aggregate_id"]
            and one["sequence_num"] <= row["sequence_num"]
        ]
        places[row["event_id"]] = (max(before), row["sequence_num"])
    return sorted(places, key=places.__getitem__)


def ids_of(batches: Any) -> list[str]:
    return [event.event_id for batch in batches for event in batch]


@settings(max_examples=30, deadline=None)
@given(histories(), st.integers(1, 4), st.data())
def test_a_replay_that_goes_on_anywhere_neither_skips_nor_repeats_an_event(
    rows: list[Row], size: int, data: st.DataObject
) -> None:
    events = opened(rows)
    found = events.findings()
    assert (found.faults, found.gaps, found.rows) == ((), (), len(rows))
    assert events.select(ReplayRequest(), None) == found.events
    whole: list[StoredEvent] = [one for batch in events.batches(None, size) for one in batch]
    assert [one.event_id for one in whole] == ordered(rows)
    stop = data.draw(st.integers(0, len(whole)))
    place = ReplayPosition(whole[stop - 1].rank, whole[stop - 1].sequence_num) if stop else None
    rest = ids_of(events.batches(place, size))
    assert [one.event_id for one in whole[:stop]] + rest == ordered(rows)
    for name in {one.aggregate_id for one in whole}:
        numbers = [one.sequence_num for one in whole if one.aggregate_id == name]
        assert numbers == list(range(1, len(numbers) + 1))
    events.close()


@settings(max_examples=15, deadline=None)
@given(histories(), st.integers(0, 8))
def test_what_is_handled_is_not_chosen_again_and_states_follow_the_last_handled(
    rows: list[Row], count: int
) -> None:
    order = ordered(rows)
    by_id = {row["event_id"]: row for row in rows}
    done = [by_id[name] for name in order[:count]]
    ledger = pa.Table.from_pylist(
        [{**{key: row[key] for key in ("event_id", "aggregate_id", "sequence_num")},
          "state": str(row["sequence_num"])} for row in done],
        schema=pa.schema({"event_id": pa.string(), "aggregate_id": pa.string(),
                          "sequence_num": pa.int64(), "state": pa.string()}),
    )  # fmt: skip
    events = opened(rows)
    assert events.select(ReplayRequest(), lambda: iter([ledger])) == len(order[count:])
    assert ids_of(events.batches(None, 3)) == order[count:]
    assert events.behind() == (0, "")
    last = {row["aggregate_id"]: row["sequence_num"] for row in done}
    wanted = {name: AggregateState(number, number, str(number)) for name, number in last.items()}
    assert events.states(["", "A", "Ä", "B", "none"]) == wanted
    newer = {name: AggregateState(99, 99, "{}") for name in last}
    if newer:
        events.keep_states(newer)
    assert events.states(list(last)) == newer
    events.close()


def test_a_selection_is_half_open_in_time_and_by_type() -> None:
    rows = [
        {"event_id": f"e{n}", "aggregate_id": "A", "event_type": "xy"[n % 2], "payload": b"",
         "sequence_num": n + 1, "occurred_us": n * 1_000_000}
        for n in range(4)
    ]  # fmt: skip
    first, stop = "1970-01-01T00:00:01Z", "1970-01-01T00:00:03Z"
    cases = {
        ReplayRequest(from_=first, to=stop): ["e1", "e2"],
        ReplayRequest(event_types=("x",)): ["e0", "e2"],
        ReplayRequest(aggregate="a"): [],
    }
    for request, wanted in cases.items():
        events = opened(rows)
        events.select(request, None)
        assert ids_of(events.batches(None, 9)) == wanted
        events.close()


def test_rows_without_a_value_are_counted_and_ids_in_findings_are_cut() -> None:
    row = {"event_id": "e" * 500, "aggregate_id": "A", "event_type": "x", "payload": b"",
           "sequence_num": 1, "occurred_us": 0}  # fmt: skip
    events = opened([row, {**row, "payload": b"2"}, {**row, "event_id": None}])
    lacking, conflict = events.findings().faults
    assert lacking == "1 rows lack a value that each event has"
    assert conflict == f"1 event ids have more than one content: {'e' * 80!r}"
    events.close()


def event(event_id: str, sequence: int, name: str = "A", kind: str = "order") -> Row:
    return {
        "event_id": event_id, "aggregate_id": name, "aggregate_type": kind, "event_type": "x",
        "payload": b"", "sequence_num": sequence, "occurred_us": 0,
    }  # fmt: skip


@pytest.mark.req("S6")
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([event("a", 1), event("b", 1)], "1 sequence numbers have more than one event: 'A 1'"),
        ([event("a", 1), event("a", 1, "B")], "1 event ids have more than one content: 'a'"),
        ([event("b", 2)], "1 aggregates miss sequence numbers: 'A'"),
        ([event("a", 1), event("z", 0)], "1 events have a sequence number below 1: 'z'"),
        (
            [event("a", 1), event("b", 2, kind="account")],
            "1 aggregates have events of several types of aggregate: 'A'",
        ),
    ],
)
def test_events_that_contradict_each_other_are_found(rows: list[Row], text: str) -> None:
    events = opened(rows)
    found = events.findings()
    assert (*found.faults, *found.gaps) == (text,)
    events.close()


def _ledger(*rows: tuple[str, str, int, str | None]) -> pa.Table:
    names = ["event_id", "aggregate_id", "sequence_num", "state"]
    kinds = [pa.string(), pa.string(), pa.int64(), pa.string()]
    return pa.table(
        [pa.array(one, kind) for one, kind in zip(zip(*rows, strict=True), kinds, strict=True)],
        names=names,
    )


@pytest.mark.req("S6", "E2")
@pytest.mark.parametrize(
    ("rows", "handled", "chosen", "texts"),
    [
        # Another aggregate's event has the id of one that was handled.
        ([event("a", 1, "B")], [("a", "A", 1, "{}")], ["a"], ["handled as another event: 'a'"]),
        # The event that was handled with this number is gone, and another one has its place.
        ([event("b", 1)], [("a", "A", 1, "{}")], ["b"], ["handled as another event: 'b'"]),
        # The row with the state after the last handled event was deleted.
        (
            [event("a", 1), event("b", 2), event("c", 3)],
            [("a", "A", 1, "{}"), ("b", "A", 2, None)],
            ["c"],
            ["after their last handled event are gone: 'A'"],
        ),
        ([event("a", 1)], [("a", "A", 1, None)], [], []),
        ([event("a", 1), event("b", 2)], [("a", "A", 1, "null")], ["b"], []),
    ],
)
def test_a_ledger_that_does_not_fit_the_events_is_found(
    rows: list[Row], handled: list[Any], chosen: list[str], texts: list[str]
) -> None:
    events = opened(rows)
    events.select(ReplayRequest(), lambda: iter([_ledger(*handled)]))
    assert ids_of(events.batches(None, 9)) == chosen
    found = events.ledger_faults()
    assert len(found) == len(texts)
    assert all(text in one for text, one in zip(texts, found, strict=True))
    events.close()


@pytest.mark.req("S6")
def test_an_event_that_was_handled_with_another_content_is_found() -> None:
    rows = [event("a", 1), event("b", 2), event("c", 3)]
    before = opened(rows)
    hashes = {one.event_id: one.content_hash for one in before.in_sequence()}
    before.close()
    assert len(set(hashes.values())) == 3
    ledger = [
        {
            "event_id": name,
            "aggregate_id": "A",
            "sequence_num": number,
            "state": "{}",
            "content_hash": hashes[name],
        }
        for number, name in enumerate("ab", start=1)
    ]
    for changes, faults in (
        ({}, 0),
        ({"payload": b'{"cents": 2}'}, 1),
        ({"payload": None}, 1),
        ({"event_type": "y"}, 1),
        ({"occurred_us": 7}, 1),
        ({"created_us": 7}, 0),
    ):
        after = opened([rows[0], {**rows[1], **changes}, rows[2]])
        after.select(ReplayRequest(), lambda: iter([pa.Table.from_pylist(ledger)]))
        found = after.ledger_faults()
        assert len(found) == faults
        assert all("handled with another content than they have now: 'b'" in one for one in found)
        after.close()


def test_the_hash_of_a_content_never_changes() -> None:
    found = opened([event("a", 1)])
    assert [one.content_hash for one in found.in_sequence()] == ["59989c98a7b20b89be31fdfeb6ed7b3c"]
    found.close()


@pytest.mark.parametrize(("moment", "bad"), [
    (253_402_300_799_999_999, 0), (253_402_300_800_000_000, 1),
    (-62_135_596_800_000_000, 0), (-62_135_596_800_000_001, 1),
])  # fmt: skip
def test_an_event_outside_the_calendar_is_a_fault_that_names_it(moment: int, bad: int) -> None:
    events = opened([{**event("a", 1), "occurred_us": moment}])
    faults = events.findings().faults
    assert len(faults) == bad
    assert all("years 1 to 9999, which no calendar has: 'a'" in one for one in faults)
    events.close()


def test_events_of_one_instant_are_in_order_whatever_their_ids() -> None:
    events = opened([event("b", 1), event("a", 2), {**event("c", 3), "occurred_us": -1}])
    assert events.findings().held_back == 1
    events.close()


def test_what_a_time_range_leaves_out_before_its_events_is_counted() -> None:
    rows = [{**event(f"e{n}", n), "occurred_us": (1, 9, 2, 3)[n - 1] * 10**6} for n in range(1, 5)]
    rows.append({**event("x", 5), "event_type": "y", "occurred_us": 99 * 10**6})
    stop = "1970-01-01T00:00:05Z"
    for request, wanted in {
        # The clock of e2 is wrong: e3 and e4 would be handled without it.
        ReplayRequest(to=stop): (3, 2),
        ReplayRequest(to=stop, event_types=("y",)): (0, 0),
        ReplayRequest(event_types=("y",)): (1, 0),
        ReplayRequest(aggregate="Z"): (0, 0),
    }.items():
        events = opened(rows)
        events.select(request, None)
        assert events.selected(request) == wanted
        events.close()
