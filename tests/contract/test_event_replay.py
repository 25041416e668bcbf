"""Replays of events on a real lake: each event once, in order, with effect and ledger together."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse_backfill import fault_points
from lakehouse_backfill.cli.render import render_result
from lakehouse_backfill.domain.publication import MODE_PROPERTY
from lakehouse_backfill.errors import (
    Blocked,
    ConfigError,
    Conflict,
    NotFound,
    RejectedInput,
    Unsupported,
    WriteForbidden,
)
from lakehouse_backfill.project import Project
from tests.support.sources import events as cases
from tests.support.sources.events import EventCase, Made
from tests.support.sources.history_events import as_delivered

#: Late, out of order, several of one instant; each type of outcome.
EVENTS = tuple(
    Made(
        f"e{a}{n}",
        f"A{a}",
        n,
        seconds=(n * 7 + a) % 5,
        event_type=("paid", "note", "mailed")[(n + a) % 3],
        cents=n - 3,
    )
    for a in range(3)
    for n in range(1, 8)
)


@pytest.fixture
def case(tmp_path: Path) -> EventCase:
    return EventCase(tmp_path / "project")


@pytest.mark.req("S6", "E2", "V2", "T12")
def test_each_event_is_handled_once_and_the_projection_equals_that_of_one_thread(
    case: EventCase,
) -> None:
    came = as_delivered(EVENTS)
    case.append(came[9:])
    case.append(came[:9])
    done = case.replay()
    assert (done.total, done.processed, done.handled_now) == (21, 21, 21)
    assert done.duplicates == len(came) - len(EVENTS)
    assert (done.done, done.skipped, done.suppressed, done.rejected) == (5, 7, 5, 4)
    error = done.error()
    assert isinstance(error, RejectedInput)
    assert "events occurred, by their clock, before an earlier one" in done.warnings[0]
    case.require_equals_oracle(EVENTS)
    listed = [json.loads(row["suppressed"]) for row in case.rows() if row["suppressed"]]
    assert sorted(one["key"] for (one,) in listed) == sorted(
        row["event_id"] for row in case.rows() if row["outcome"] == "suppressed"
    )
    again = case.replay()
    assert (again.replay_id, again.handled_now) == (None, 0)
    case.append([Made("new", "A1", 8), Made("first", "B", 1)])
    later = case.replay()
    assert (later.total, later.done) == (2, 2)
    case.require_equals_oracle([*EVENTS, Made("new", "A1", 8), Made("first", "B", 1)])
    assert case.table().refs().keys() == {"main"}
    summaries = [one.summary for one in case.table("silver.balances").snapshots()]
    assert {one and one[MODE_PROPERTY] for one in summaries} == {"replay"}


def test_handlers_have_ledgers_of_their_own_and_a_new_version_begins_anew(case: EventCase) -> None:
    case.append(EVENTS)
    case.replay()
    assert case.replay("counts").done == 21
    assert case.states("silver.counts") == {f"A{a}": {"events": 7} for a in range(3)}
    text = cases.DECLARATION.replace(
        "version: 1.0.0, table: silver.counts", "version: 2.0.0, table: silver.counts"
    )
    case.declare(declaration=text)
    assert case.replay("counts").done == 21
    ledger = Counter(row["handler"] for row in case.control("processed_event"))
    assert ledger == {"balances@1.0.0": 21, "counts@1.0.0": 21, "counts@2.0.0": 21}


#: Between each two side effects of a replay of two checkpoints.
KILLED = (
    "HandlerTables.commit:committing 1", "HandlerTables.commit:committed 1",
    "Pins.tag:committed 1", "ControlLog.replay_job:committed 1",
    "HandlerTables.commit:committing 2", "HandlerTables.commit:committed 2",
    "ControlLog.processed_event:committed 1", "ControlLog.replay_job:committed 2",
    "HandlerTables.commit:committed 3", "HandlerTables.commit:committing 4",
    "HandlerTables.commit:committed 4", "Pins.unpin:after 2",
)  # fmt: skip


@pytest.mark.req("S6", "E2")
def test_a_replay_that_is_killed_anywhere_goes_on_and_repeats_one_checkpoint_at_most(
    case: EventCase,
) -> None:
    given = list(EVENTS[:12])
    case.append(given)
    numbers = itertools.count(8)
    case.replay()
    for moment in KILLED:
        number = next(numbers)
        more = [
            Made(f"{number}-{name}-{n}", f"{name}{number}", n, seconds=n // 2, event_type=kind)
            for name in "PQ"
            for n, kind in enumerate(("paid", "mailed", "note"), start=1)
        ]
        given += more
        case.append(more)
        cases.kill_while_replaying(case, moment)
        before = len(case.rows())
        done = case.replay()
        assert done.resumed or done.replay_id is None or moment == KILLED[0]
        assert done.processed in (0, done.total)
        assert done.handled_now == len(given) - before
        jobs = [row for row in case.control("replay_job") if row["replay_id"] == done.replay_id]
        assert jobs[-1]["status"] == "done" if jobs else done.replay_id is None
        assert [row["events"] for row in jobs] == sorted(row["events"] for row in jobs)
    case.require_equals_oracle(given)
    newest = {row["replay_id"]: row["status"] for row in case.control("replay_job")}
    assert set(newest.values()) == {"done"}
    assert case.table().refs().keys() == {"main"}


def test_of_two_processes_that_replay_one_is_refused_and_no_event_is_handled_twice(
    case: EventCase,
) -> None:
    case.append(EVENTS)
    other: list[object] = []
    outer = threading.get_ident()

    def let_another_one_replay(point: str) -> None:
        is_first = not other and threading.get_ident() == outer
        if point == "Pins.pin:after" and is_first:
            other.append(None)
            worker = threading.Thread(target=lambda: other.append(case.replay().processed))
            worker.start()
            worker.join()

    fault_points.install_hook(let_another_one_replay)
    try:
        with pytest.raises(Conflict, match=r"another process replays into silver\.balances"):
            case.replay()
    finally:
        fault_points.install_hook(None)
    assert other == [None, 21]
    case.require_equals_oracle(EVENTS)
    assert [row["status"] for row in case.control("replay_job")][-1] == "done"


def test_parts_of_the_events_are_replayed_and_the_rest_follows(case: EventCase) -> None:
    case.append([Made(f"{a}{n}", a, n, seconds=n * 3600 * 20) for a in "AB" for n in (1, 2, 3)])
    assert case.replay(aggregate="A").processed == 3
    part = case.replay(from_="2026-01-01T00:00:00Z", to="2026-01-02T12:00:00Z")
    assert (part.processed, part.warnings) == (1, ())
    assert set(case.states()) == {"A", "B"}
    assert case.replay().processed == 2
    assert case.states()["B"]["ids"] == ["B1", "B2", "B3"]


def test_events_are_never_handled_behind_later_ones_of_their_aggregate(case: EventCase) -> None:
    case.append([Made(f"A{n}", "A", n, seconds=n * 86_400) for n in (1, 2, 3)])
    assert case.replay(aggregate="Z").warnings == ("no event of the table is in the selection",)
    part = case.replay(from_="2026-01-03")
    assert part.processed == 2
    assert part.warnings[0].startswith("2 events were handled without earlier ones")
    with pytest.raises(Blocked, match=r"'A1': balances 1\.0\.0 has handled later events"):
        case.replay()
    with pytest.raises(Conflict, match="all event types"):
        case.replay(event_types=("paid",))
    assert case.replay("counts", event_types=("paid",)).processed == 3
    with pytest.raises(Conflict, match="has replayed paid before"):
        case.replay("counts")
    with pytest.raises(Unsupported, match="has replayed paid only"):
        Project.open(case.project).rebuild("orders", "counts", "A")


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (
            [Made("a", "A", 1), Made("a", "A", 1, cents=2)],
            "1 event ids have more than one content: 'a'",
        ),
        ([Made("a", "A", 1), Made("c", "A", 3)], "1 aggregates miss sequence numbers: 'A'"),
    ],
    ids=["other content", "gap"],
)
@pytest.mark.req("S6")
def test_events_that_contradict_each_other_stop_a_replay_before_it_begins(
    case: EventCase, events: list[Made], text: str
) -> None:
    case.append(events)
    with pytest.raises(RejectedInput, match=text):
        case.replay()
    assert isinstance(Project.open(case.project).check_events("orders").error(), RejectedInput)
    assert not Project.open(case.project).wiring.catalog.table_exists("silver.balances")


@pytest.mark.req("S6", "E2")
def test_an_event_that_is_replaced_after_it_was_handled_stops_the_handler_until_a_new_version(
    case: EventCase,
) -> None:
    given = [Made(f"e{n}", "A", n, seconds=n) for n in (1, 2, 3)]
    case.append(given)
    case.replay()
    # As a toolkit left it that kept no hash: the column is added again, and its rows are trusted.
    with case.table("silver.balances").update_schema() as update:
        update.delete_column("content_hash")
    assert case.replay().replay_id is None
    case.append([Made("e4", "A", 4, seconds=4)])
    assert case.replay().done == 1
    case.table().delete("sequence_num >= 3")
    case.append([Made("e3", "A", 3, seconds=3, cents=9)])
    case.append([Made("e4", "A", 4, seconds=4, cents=9)])
    with pytest.raises(Blocked, match=r"1 events were handled with another content .*: 'e4'"):
        case.replay()
    found = Project.open(case.project).check_events("orders", "balances")
    assert [("e4" in one, "e3" in one) for one in found.faults] == [(True, False)]
    assert Project.open(case.project).check_events("orders").faults == ()


def test_a_dry_run_looks_at_what_a_replay_would_handle(case: EventCase) -> None:
    case.append([Made(f"A{n}", "A", n, seconds=n * 86_400) for n in (1, 2, 3)])
    project = Project.open(case.project)
    found = project.check_events("orders", "balances", from_="2026-01-03")
    assert (found.selected, found.left) == (2, 2)
    assert found.warnings[0].startswith("2 events were handled without earlier ones")
    assert project.check_events("orders", event_types=("note",)).selected == 0
    assert project.check_events("orders").left is None
    case.replay(from_="2026-01-03")
    found = project.check_events("orders", "balances", aggregate="A")
    assert (found.selected, found.left) == (3, 1)
    assert "'A1': later events of the same aggregates were handled" in found.faults[0]
    with pytest.raises(Conflict, match="all event types"):
        project.check_events("orders", "balances", event_types=("paid",))


def test_gaps_may_be_allowed_and_are_reported_and_a_late_event_then_is_refused(
    case: EventCase,
) -> None:
    case.declare("gaps: allow\n")
    case.append([Made("a", "A", 1), Made("c", "A", 3)])
    done = case.replay()
    assert (done.processed, done.missing) == (2, 1)
    assert "1 sequence numbers are missing" in done.warnings[0]
    case.append([Made("b", "A", 2)])
    with pytest.raises(Blocked, match="handled later events"):
        case.replay()


def test_a_handler_that_fails_keeps_what_was_committed_and_names_the_event(
    case: EventCase,
) -> None:
    case.append([Made(f"e{n}", "A", n, seconds=n) for n in range(1, 6)])
    with pytest.raises(ConfigError, match="broken failed at event 'e3': ZeroDivisionError"):
        case.replay("broken")
    assert [row["event_id"] for row in case.rows("silver.broken")] == ["e1", "e2"]
    jobs = case.control("replay_job")
    assert (jobs[-1]["status"], jobs[-1]["events"], jobs[-1]["total"]) == ("failed", 2, 5)
    mended = cases.HANDLERS.replace("event.sequence_num - 3", "event.sequence_num")
    (case.project / "handlers/money.py").write_text(mended)
    done = case.replay("broken")
    assert (done.resumed, done.processed, done.handled_now) == (True, 5, 3)


HOSTILE = (
    "", "null", "[]", "{", '{"cents": NaN}', '{"cents": 1e999}', "[" * 100_000,
    '{"cents": "\\ud800"}', '"' + "x" * 100, "\x00\x01",
)  # fmt: skip


def test_hostile_payloads_and_names_reject_their_event_or_stop_the_replay_and_lose_no_other(
    case: EventCase,
) -> None:
    (case.project / "handlers/money.py").write_text(
        "from lakehouse_backfill.events import RejectEvent\n\n\n"
        "def balance(state, event, context):\n"
        "    if not isinstance(event.payload, dict):\n"
        "        raise RejectEvent(str(event.payload))\n"
        "    return {'text': str(event.payload.get('cents'))}\n"
    )
    odd = ["' OR 1=1 --", "a\x00b", "\u202ee", "ü" * 300, "", " "]
    good = [Made(f"g-{name}", name, 1) for name in odd]
    bad = [Made(f"h{n}", f"H{n}", 1, payload=text) for n, text in enumerate(HOSTILE)]
    case.append([*good, *bad])
    done = case.replay()
    assert done.processed == len(good) + len(bad)
    outcomes = {row["event_id"]: row["outcome"] for row in case.rows()}
    assert all(outcomes[one.event_id] == "done" for one in good)
    assert {outcomes[f"h{number}"] for number in (0, 3, 4, 5, 6)} == {"rejected"}
    assert Project.open(case.project).rebuild("orders", "balances", odd[0]).based_on == 1
    assert len(case.control("processed_event")) == done.processed


VERSIONED = """\
current: {paid: 3}
upcasters:
  - {event_type: paid, from: 1, to: 2, function: "handlers.money:from_millis"}
  - {event_type: paid, from: 2, to: 3, function: "handlers.money:to_cents"}
"""
STEPS = """

def to_cents(payload):
    return {"cents": payload["euros"] * 100}


def from_millis(payload):
    return {"euros": payload["millis"] // 1000}
"""


def _versioned(case: EventCase, place: str) -> None:
    text = cases.HANDLERS.partition("def to_cents")[0] + STEPS.lstrip("\n")
    (case.project / "handlers/money.py").write_text(text)
    case.declare(f"version: {place}\n{VERSIONED}")


@pytest.mark.req("S7")
@pytest.mark.parametrize("place", ["{column: version}", "{field: v}", "{schemas: schemas/orders}"])
def test_a_range_over_three_versions_replays_in_one_run(case: EventCase, place: str) -> None:
    _versioned(case, place)
    bodies = [{"millis": 4000}, {"euros": 5}, {"cents": 600}]
    header = ""
    if "schemas" in place:
        _write_schemas(case)
    events = []
    for number, body in enumerate(bodies, start=1):
        stored = body if "field" not in place else {**body, "v": number}
        if "schemas" in place:
            header = "\x00\x00\x00\x00" + chr(number + 6)
        text = header + json.dumps(stored)
        events.append(Made(f"e{number}", "A", number, seconds=number, payload=text, version=number))
    case.append(events)
    assert case.replay().done == 3
    assert case.states()["A"]["cents"] == 400 + 500 + 600
    assert Project.open(case.project).rebuild("orders", "balances", "A").state["cents"] == 1500
    ends = Project.open(case.project).check_events("orders").versions
    assert [(one.version, one.events) for one in ends] == [(1, 1), (2, 1), (3, 1)]


def _write_schemas(case: EventCase) -> None:
    folder = case.project / "schemas/orders"
    folder.mkdir(parents=True)
    for number, name in enumerate(("millis", "euros", "cents"), start=1):
        schema = {"required": [name], "properties": {name: {"type": "integer"}}}
        one = {"event_type": "paid", "version": number, "schema": schema}
        (folder / f"{number + 6}.json").write_text(json.dumps(one))


@pytest.mark.req("S7")
def test_a_version_without_a_chain_stops_a_replay_before_it_begins(case: EventCase) -> None:
    _versioned(case, "{column: version}")
    case.append([Made("a", "A", 1, version=0), Made("b", "A", 2, version=4)])
    with pytest.raises(Unsupported, match=r"no upcaster begins at 0; .*3 is the newest known"):
        case.replay()
    found = Project.open(case.project).check_events("orders")
    assert len(found.faults) == 2


@pytest.mark.req("S7")
def test_schemas_are_held_to_the_compatibility_that_is_declared(case: EventCase) -> None:
    _versioned(case, "{schemas: schemas/orders, compatibility: backward}")
    _write_schemas(case)
    case.append([Made("a", "A", 1, payload='\x00\x00\x00\x00\x09{"cents": 1}')])
    assert case.replay().done == 1
    _versioned(case, "{schemas: schemas/orders, compatibility: both}")
    with pytest.raises(Unsupported, match="paid 1 to 2: the required field millis is gone"):
        case.replay()


@pytest.mark.req("S6")
def test_a_rebuild_reads_the_newest_kept_state_and_the_files_of_what_follows(
    case: EventCase,
) -> None:
    for name in ("A", "B", "C", "D", "E", "F"):
        case.append([Made(f"{name}{n}", name, n, seconds=n) for n in range(1, 5)])
    case.replay()
    case.append([Made("A5", "A", 5)])
    opened: list[str] = []
    with _file_opens(opened):
        found = Project.open(case.project).rebuild("orders", "balances", "A")
    assert (found.based_on, found.events, found.sequence_num) == (4, 1, 5)
    assert found.state == {"cents": 5, "ids": ["A1", "A2", "A3", "A4", "A5"]}
    assert (found.files_read, found.files_total) == (1, 7)
    data = {path for path in opened if "order_events/data" in path and path.endswith(".parquet")}
    assert len(data) == 1
    assert len({path for path in opened if "balances/data" in path}) < len(
        list(case.table("silver.balances").scan().plan_files())
    )
    with pytest.raises(NotFound, match="no event of the aggregate 'Z'"):
        Project.open(case.project).rebuild("orders", "balances", "Z")


@pytest.mark.req("P6", "S6")
def test_a_rebuild_begins_at_the_last_good_state_before_wrong_events(case: EventCase) -> None:
    good = [Made(f"A{n}", "A", n, seconds=n) for n in range(1, 6)]
    wrong = [Made(f"A{n}", "A", n, seconds=n + 10, cents=1000) for n in range(6, 9)]
    # The clock of the fourth event is late: it is of the wrong ones by its time.
    late = [Made("B1", "B", 1), Made("B2", "B", 2, seconds=20), Made("B3", "B", 3, seconds=3)]
    case.append([*good, *wrong, *late])
    case.replay()
    project = Project.open(case.project)
    assert project.rebuild("orders", "balances", "A").based_on == 8
    table = case.table()
    rows = table.scan().to_arrow().to_pylist()
    mended = [
        row | ({"payload": '{"cents": 2}'} if row["sequence_num"] > 5 else {}) for row in rows
    ]
    table.overwrite(pa.Table.from_pylist(mended, table.scan().to_arrow().schema))
    found = project.rebuild("orders", "balances", "A", "2026-01-01T00:00:10Z")
    # States are kept after each third event, and after the last one of a checkpoint.
    assert found.based_on is not None
    assert 3 <= found.based_on <= 5
    assert found.state["cents"] == 5 + 3 * 2
    cold = project.rebuild("orders", "balances", "B", "2026-01-01T00:00:10Z")
    assert (cold.based_on in (None, 1), cold.state["cents"]) == (True, 3)
    none = project.rebuild("orders", "balances", "A", "2025-01-01")
    assert (none.based_on, none.events) == (None, 8)
    for result, said in ((found, f"is that after {found.based_on}"), (none, "a cold start")):
        render_result(result, page := StringIO())
        assert said in page.getvalue()
    # A wrong event that was taken out is of no state that counts as good.
    table.delete("sequence_num > 5")
    found = project.rebuild("orders", "balances", "A", "2026-01-01T00:00:10Z")
    assert found.state["cents"] == 5


class _file_opens:  # noqa: N801 (used as a statement)
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def __enter__(self) -> None:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        self._owner, self._old = PyArrowFileIO, PyArrowFileIO.new_input
        old, seen = self._old, self._seen

        def new_input(io: Any, location: str) -> Any:
            seen.append(location)
            return old(io, location)

        PyArrowFileIO.new_input = new_input  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._owner.new_input = self._old  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "code",
    ["import os\n", "import lakehouse_backfill.events\n", "x = open('y')\n", "import socket\n"],
)
@pytest.mark.req("E2")
def test_a_handler_reaches_nothing_outside_but_by_its_context(case: EventCase, code: str) -> None:
    (case.project / "handlers/money.py").write_text(code + cases.HANDLERS)
    case.append(EVENTS)
    with pytest.raises((WriteForbidden, ConfigError)):
        case.replay()
    with pytest.raises((WriteForbidden, ConfigError)):
        Project.open(case.project).check_events("orders", handler="balances")


def test_a_table_that_is_no_handlers_is_never_written(case: EventCase) -> None:
    case.append(EVENTS)
    text = cases.DECLARATION.replace("silver.counts", "bronze.other")
    case.declare(declaration=text)
    Project.open(case.project).wiring.catalog.create_table("bronze.other", case.table().schema())
    with pytest.raises(Unsupported, match=r"bronze\.other is no table of an event handler"):
        case.replay("counts")


def test_a_process_that_was_overtaken_records_nothing_twice_and_moves_no_job_back(
    case: EventCase,
) -> None:
    case.append([Made(f"e{n}", "A", n, seconds=n) for n in range(1, 12)])
    late: list[object] = []

    def remember(point: str) -> None:
        if point == "ReplayLedger.record:before" and not late:
            # The process stops here, another one goes on, and then it is resumed.
            late.append(None)
            fault_points.install_hook(None)
            assert case.replay().processed == 11

    fault_points.install_hook(remember)
    try:
        with pytest.raises(Conflict):
            case.replay()
    finally:
        fault_points.install_hook(None)
    ledger = [row["event_id"] for row in case.control("processed_event")]
    assert sorted(ledger) == sorted(f"e{n}" for n in range(1, 12))
    jobs = case.control("replay_job")
    assert (jobs[-1]["status"], jobs[-1]["events"]) == ("done", 11)


@pytest.mark.req("S6", "E2")
def test_rows_of_a_handler_that_are_deleted_are_handled_again_or_nothing_goes_on(
    case: EventCase,
) -> None:
    given = [Made(f"e{n}", "A", n, seconds=n) for n in range(1, 6)]
    case.append(given)
    code = case.project / "handlers/money.py"
    code.write_text(cases.HANDLERS.replace("1 / (event.sequence_num - 3)", "exit_at(event)") + (
        "\n\ndef exit_at(event):\n"
        "    if event.sequence_num == 3:\n        raise SystemExit(0)\n    return 1\n"
    ))  # fmt: skip
    with pytest.raises(ConfigError, match="broken failed at event 'e3': SystemExit"):
        case.replay("broken")
    with pytest.raises(ConfigError, match="broken failed at event 'e3': SystemExit"):
        Project.open(case.project).rebuild("orders", "broken", "A")
    case.table("silver.broken").delete("event_id is not null")
    code.write_text(cases.HANDLERS.replace("event.sequence_num - 3", "event.sequence_num"))
    done = case.replay("broken")
    assert (done.resumed, done.processed, done.total) == (False, 5, 5)
    assert [row["event_id"] for row in case.rows("silver.broken")] == ["e1", "e2", "e3", "e4", "e5"]
    assert case.table().refs().keys() == {"main"}
    assert {row["status"] for row in case.control("replay_job") if row["events"] == 2} >= {"failed"}
    case.replay()
    case.table("silver.balances").delete("event_id = 'e5'")
    with pytest.raises(Blocked, match="after their last handled event are gone: 'A'"):
        case.replay()
    assert Project.open(case.project).rebuild("orders", "balances", "A").state["cents"] == 5
    text = cases.DECLARATION.replace("silver.broken", "silver.other")
    case.declare(declaration=text.replace("silver.balances", "silver.broken"))
    with pytest.raises(Unsupported, match="is the table of the handler broken"):
        Project.open(case.project).rebuild("orders", "balances", "A")


def test_a_replay_goes_on_when_its_table_of_events_has_another_name(case: EventCase) -> None:
    case.append([Made("a", "A", 1)])
    case.replay()
    wiring = Project.open(case.project).wiring
    wiring.catalog.rename_table("bronze.order_events", "bronze.moved")
    case.declare(declaration=cases.DECLARATION.replace("bronze.order_events", "bronze.moved"))
    assert (case.replay().replay_id, len(case.rows())) == (None, 1)
