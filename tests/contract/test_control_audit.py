"""Whoever changes the log of runs by other means is found by `audit verify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehouse_backfill.adapters.iceberg.control.log import LogAppend
from lakehouse_backfill.adapters.iceberg.control.log_files import COMPACT_EVERY_COMMITS
from lakehouse_backfill.adapters.iceberg.control.runs import plan_row, read_event_chains
from lakehouse_backfill.core.evidence.verification.audit import audit_verify
from lakehouse_backfill.core.runs import event_log as audit_rules
from lakehouse_backfill.core.runs.event_log import AuditVerdict
from lakehouse_backfill.domain.run import Event, Lease, RunState
from lakehouse_backfill.errors import Tampered, TooBusy
from lakehouse_backfill.results.proof import AuditVerifyResult
from tests.support.examples.plans import NOON, a_plan, an_event
from tests.support.fakes.context import context, lake
from tests.support.fakes.control import FakeRuns
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.control import PRODUCT, a_row, begun, control_ports, put

pytestmark = pytest.mark.req("V4")
NAMESPACE = "lakehouse_backfill"
NOTES = 2 * COMPACT_EVERY_COMMITS
Row = dict[str, Any]


class Log:
    """A log of four runs, one of them closed, that was folded; and ways to change it."""

    def __init__(self, folder: Path) -> None:
        self.catalog = catalog_of(folder)
        ports = control_ports(self.catalog)
        self.runs, self.audit = ports.runs, ports.audit
        self._write()
        self.table = self.catalog.load_table((NAMESPACE, "run_event"))
        self.properties = dict(self.table.properties)
        self.schema = self.table.schema().as_arrow()
        self.rows: list[Row] = sorted(
            self.table.scan().to_arrow().to_pylist(), key=lambda row: row["log_seq"]
        )

    def _write(self) -> None:
        for run_id in ("bf-1", "bf-2", "bf-3", "bf-4"):
            begun(self.runs, run_id)
        until = NOON + timedelta(minutes=5)
        for number in range(NOTES):
            run_id = ("bf-1", "bf-2", "bf-3")[number % 3]
            status = self.runs.status(run_id)
            lease = Lease(holder="here:1@2", until=until) if number % 5 == 0 else None
            after = self.runs.append(a_note(run_id, status.seq + 1, n=number, share=0.1), lease)
            if number % 7 == 0 and after.driver:
                self.runs.renew(run_id, after.epoch, until + timedelta(seconds=number))
        self.runs.append(a_note("bf-4", 2, to=RunState.CANCELLED))

    def look(self, kept: Mapping[str, str] | None = None) -> AuditVerdict:
        return audit_verify(context(lake(), runs=self.runs, audit=self.audit), kept)

    def put(self, rows: list[Row]) -> None:
        """Store these rows in place of what is there, as any writer of Iceberg may."""
        self.catalog.load_table(self.table.name()).overwrite(
            pa.Table.from_pylist(rows, schema=self.schema)
        )

    def of(self, run_id: str) -> list[int]:
        return [index for index, row in enumerate(self.rows) if row["run_id"] == run_id]


def a_note(run_id: str, seq: int, to: RunState | None = None, **detail: Any) -> Event:
    at = NOON + timedelta(seconds=seq)
    return an_event(run_id, seq, RunState.PLANNED, to, at=at, detail=detail)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return Log(tmp_path_factory.mktemp("audit"))


def test_an_untouched_log_is_intact_through_folds_renewals_and_closed_runs(log: Log):
    log.put(log.rows)
    found = log.look()
    assert (found.first_bad, found.events, found.runs) == (None, 5 + NOTES, 4)
    assert found.events > 2 * COMPACT_EVERY_COMMITS
    assert AuditVerifyResult.of(found).to_dict() == {
        "events": 5 + NOTES, "runs": 4, "unchained": 0, "intact": True, "first_bad": None,
        "heads": found.heads, "products": 0,
    }  # fmt: skip
    assert found.heads == {one.run_id: one.head for one in log.runs.list(open_only=False)}


EDITED = (
    "run_id", "seq", "data_product", "at", "actor", "verb", "from_state", "to_state", "mode",
    "driver", "detail", "epoch", "previous", "hash",
)  # fmt: skip


def other(kind: pa.DataType, value: Any) -> st.SearchStrategy[Any]:
    """Values of a column's type, most of which are not `value`."""
    if pa.types.is_timestamp(kind):
        return st.timedeltas(timedelta(days=-9), timedelta(days=9)).map(lambda by: value + by)
    if pa.types.is_integer(kind):
        return st.integers(-1, 100)
    words = ("", "bf-1", "bf-9", "planned", "approved", "eve", "{}", "null", "0" * 64, "here:1@2")
    return st.one_of(st.sampled_from(words), st.text(max_size=8))


def says_the_same(column: str, old: Any, new: Any) -> bool:
    """Tell whether an edit changes nothing that the row says."""
    if column == "detail":
        try:
            return bool(json.loads(new) == json.loads(old))
        except ValueError:
            return False
    blank = {"epoch": (None, 0), "previous": (None, "")}.get(column, ())
    return bool(old == new) or (old in blank and new in blank)


def test_every_column_of_the_table_is_tried(log: Log):
    assert set(log.schema.names) - {"log_seq", "log_id"} == set(EDITED)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_an_edit_of_any_column_of_any_event_is_found(log: Log, data: st.DataObject):
    index = data.draw(st.integers(0, len(log.rows) - 1))
    column = data.draw(st.sampled_from(EDITED))
    field, old = log.schema.field(column), log.rows[index][column]
    values = other(field.type, old)
    new = data.draw(st.none() | values if field.nullable else values)
    if says_the_same(column, old, new):
        return
    rows = [{**row, column: new} if at == index else row for at, row in enumerate(log.rows)]
    # As the adapter does with rows that it has read: writing each case to a table takes too long.
    seal = (int(log.properties["audit.events"]), log.properties["audit.sum"])
    found = audit_rules.verify_logs(read_event_chains(rows), seal)
    assert found.first_bad is not None
    if column not in ("run_id", "seq"):
        assert found.first_bad.startswith(f"{log.rows[index]['run_id']}: event ")


@pytest.mark.parametrize(
    "column", [name for name in EDITED if name not in ("run_id", "seq", "previous")]
)
def test_the_event_that_was_edited_is_the_one_that_is_named(log: Log, column: str):
    index = log.of("bf-2")[4]
    odd = {"at": NOON, "epoch": 77, "detail": "no JSON", "hash": "f" * 64}.get(column, "odd")
    log.put([{**row, column: odd} if at == index else row for at, row in enumerate(log.rows)])
    verb = "odd" if column == "verb" else "note 5"
    assert log.look().first_bad == (
        f"bf-2: event 5 ('{verb}') was edited: its hash is not that of its content"
    )


def without(log: Log, *indexes: int) -> list[Row]:
    return [row for at, row in enumerate(log.rows) if at not in indexes]


def swapped(log: Log, first: int, second: int, *names: str) -> list[Row]:
    """Let two rows change places in these columns."""
    rows = [dict(row) for row in log.rows]
    for name in names:
        rows[first][name], rows[second][name] = rows[second][name], rows[first][name]
    return rows


def forged(log: Log, **more: Any) -> Row:
    return {**log.rows[log.of("bf-3")[2]], "actor": "eve", "log_seq": 99 * 10**9, **more}


def exchanged(log: Log, *names: str) -> list[Row]:
    """Exchange columns of the third events of two runs."""
    return swapped(log, log.of("bf-1")[2], log.of("bf-2")[2], *names)


def counted(change: int) -> str:
    total = 5 + NOTES
    return f"over all runs, {total} events were written, and {total + change} events were there"


WHOLE = [name for name in EDITED if name != "run_id"]
NEW_RUN = {"run_id": "bf-5", "seq": 1, "hash": None, "previous": None}
#: Rows in place of those of the log, and how the first fault that is found begins.
CHANGES: dict[str, tuple[Callable[[Log], list[Row]], str]] = {
    "deleted in the middle": (
        lambda log: without(log, log.of("bf-2")[3]),
        "bf-2: event 4 is missing, or not in its place",
    ),
    "the last one deleted": (lambda log: without(log, *log.of("bf-1")[-1:]), counted(-1)),
    "the last two deleted": (lambda log: without(log, *log.of("bf-1")[-2:]), counted(-2)),
    "an open run deleted": (lambda log: without(log, *log.of("bf-1")), "over all runs, "),
    "a closed run deleted": (lambda log: without(log, *log.of("bf-4")), counted(-2)),
    "forged": (lambda log: [*log.rows, forged(log)], "bf-3: event "),
    "a run forged": (lambda log: [*log.rows, forged(log, **NEW_RUN)], counted(1)),
    "runs exchanged": (lambda log: exchanged(log, "run_id"), "bf-1: event 3 ('note 3')"),
    "contents exchanged": (lambda log: exchanged(log, *WHOLE), "bf-1: event 3 ('note 3')"),
    "another order of rows": (
        lambda log: swapped(log, *log.of("bf-1")[2:4], "log_seq"),
        "bf-1: event 3 is missing, or not in its place",
    ),
    "another order of numbers": (
        lambda log: swapped(log, *log.of("bf-1")[2:4], "seq"),
        "bf-1: event 3 is missing, or not in its place",
    ),
}


@pytest.mark.parametrize(("change", "fault"), CHANGES.values(), ids=CHANGES)
def test_events_that_were_changed_are_found(log: Log, change: Any, fault: str):
    log.put(change(log))
    assert str(log.look().first_bad).startswith(fault)


@contextmanager
def properties(log: Log, *gone: str, **changed: str) -> Iterator[None]:
    """Edit properties of the table while the block runs."""
    with log.catalog.load_table(log.table.name()).transaction() as change:
        change.remove_properties(*gone)
        change.set_properties(changed)
    try:
        yield
    finally:
        with log.catalog.load_table(log.table.name()).transaction() as change:
            change.set_properties(log.properties)
        log.put(log.rows)
        assert log.look().is_intact


def test_a_run_that_was_deleted_with_its_status_is_found(log: Log):
    log.put(without(log, *log.of("bf-1")))
    with properties(log, "run.bf-1"):
        assert "events were written" in str(log.look().first_bad)


@pytest.mark.req("C2")
def test_a_log_that_was_rewritten_as_a_whole_is_found_by_the_heads_that_were_kept(log: Log):
    """Who knows how the log is sealed can make it agree with itself; not with a copy elsewhere."""
    log.put(log.rows)
    kept = log.look().heads
    began = kept | {"bf-1": str(log.rows[log.of("bf-1")[1]]["hash"])}  # A copy of an earlier time.
    assert (log.look(began).first_bad, log.look(began).compared) == (None, 4)
    rows, previous = [dict(row) for row in log.rows], ""
    for index in log.of("bf-4"):
        rows[index] |= {"previous": previous, "actor": "eve"}
        event = read_event_chains([rows[index]])["bf-4"][0]
        rows[index]["hash"] = previous = audit_rules.event_seal(event)
    log.put(rows)
    forged_sum = audit_rules.sum_hashes((kept | {"bf-4": previous}).values())
    with properties(log, **{"audit.sum": forged_sum}):
        assert log.look().is_intact
        assert log.look(kept).first_bad == (
            f"bf-4: no event has the hash {kept['bf-4'][:12]}… that was kept of it"
        )
        gone = log.look({"bf-9": "0" * 64})
        assert gone.first_bad == "bf-9 is in the heads that were kept, and has no events any more"


def test_a_seal_that_was_removed_is_found_and_not_made_again(log: Log):
    log.put(log.rows)
    with properties(log, "audit.events", "audit.sum"):
        assert log.look().first_bad == "the seal over all runs is gone"
        log.runs.append(a_note("bf-3", log.runs.status("bf-3").seq + 1))
        assert log.look().first_bad == "the seal over all runs is gone"


def test_a_status_that_was_edited_is_found(log: Log):
    log.put(log.rows)
    status = json.loads(log.properties["run.bf-1"]) | {"state": "approved"}
    fault = "bf-1: the state that commands go by (approved, event"
    with properties(log, **{"run.bf-1": json.dumps(status)}):
        assert str(log.look().first_bad).startswith(fault)


# --- plans and pointers ---------------------------------------------------------------------------


@pytest.fixture
def lone(tmp_path: Path) -> SimpleNamespace:
    """Control tables of one run and one published version."""
    catalog = catalog_of(tmp_path)
    ports = control_ports(catalog)
    begun(ports.runs)
    put(ports.versions, *(a_row(1, action, token="t1") for action in ("reserve", "publish")))
    workbench = context(lake(), runs=ports.runs, audit=ports.audit)
    ports.catalog, ports.look = catalog, lambda: audit_verify(workbench).first_bad
    return ports


def edit(lone: SimpleNamespace, name: str, change: Callable[[Row], Row | None]) -> None:
    """Store changed rows in a control table, as any writer of Iceberg may; None: deleted."""
    table = lone.catalog.load_table((NAMESPACE, name))
    rows = [change(row) for row in table.scan().to_arrow().to_pylist()]
    kept = [row for row in rows if row is not None]
    table.overwrite(pa.Table.from_pylist(kept, schema=table.schema().as_arrow()))


def test_a_forged_pointer_is_found_and_named(lone: SimpleNamespace):
    assert lone.look() is None
    table = lone.catalog.load_table((NAMESPACE, "accepted_output_version"))
    key = f"pointer.{PRODUCT}"
    held = json.loads(table.properties[key])
    for forged, says in (
        (held | {"accepted": held["accepted"] | {"snapshot_id": 7}}, "differs in snapshot_id"),
        (held | {"last_version": 9}, "its pointer counts 9 versions, its rows 1"),
        ({"odd": 1}, "its pointer is gone, or was edited"),
    ):
        with lone.catalog.load_table(table.name()).transaction() as change:
            change.set_properties({key: json.dumps(forged)})
        assert says in str(lone.look())
    with lone.catalog.load_table(table.name()).transaction() as change:
        change.remove_properties(key)
    assert f"{PRODUCT}: its pointer is gone" in str(lone.look())


@pytest.mark.parametrize(
    "change",
    [
        lambda row: {**row, "acted_by": "eve"},
        lambda row: {**row, "scope": "no JSON"},
        lambda row: {**row, "action": "odd"},
        lambda row: {**row, "data_product": "silver.other"},
        lambda row: None if row["action"] == "publish" else row,
        lambda row: None,
    ],
    ids=["who", "scope", "action", "product", "deleted", "all deleted"],
)
def test_an_accepted_row_that_was_edited_is_found(lone: SimpleNamespace, change: Any):
    edit(lone, "accepted_output_version", change)
    assert str(lone.look()).startswith("silver.")


@pytest.mark.req("M4")
def test_a_draft_that_was_edited_is_left_out_and_named(lone: SimpleNamespace):
    good, bad = a_plan("bf-2"), a_plan("bf-3")
    for plan in (good, bad):
        lone.runs._plans.append(lambda _, plan=plan: LogAppend(result=None, rows=(plan_row(plan),)))
    assert lone.audit.drafts() == (good, bad)
    for old, new in (('"created_by"', '"created_byx"'), ('"fix"', '"something else"'), ("{", "")):
        before = lone.runs._plans.head().rows()
        assert old in before[-1]["plan"]
        edit(
            lone,
            "pipeline_run",
            lambda row, old=old, new=new: (
                {**row, "plan": row["plan"].replace(old, new)} if row["run_id"] == "bf-3" else row
            ),
        )
        assert lone.audit.drafts() == (good,)
        assert list(lone.audit.bad_plans()) == ["bf-3"]
        assert str(lone.look()).startswith("the plan of bf-3 was edited after it was made")
        with pytest.raises(Tampered):
            lone.runs.plan("bf-3")
        edit(
            lone,
            "pipeline_run",
            lambda row, kept={one["run_id"]: one for one in before}: kept[row["run_id"]],
        )
    assert lone.look() is None


# --- reading while runs move ----------------------------------------------------------------------


class Moving(FakeRuns):
    """Runs to which an event is added `times` times, each time their chains are read."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        begun(self)

    def chains(self) -> dict[str, tuple[Event, ...]]:
        if self.times:
            self.times -= 1
            self.append(a_note("bf-1", self.status("bf-1").seq + 1))
        return super().chains()


def test_an_event_that_is_written_meanwhile_is_no_edit():
    runs = Moving(times=3)
    found = audit_verify(context(lake(), runs=runs, audit=runs))
    assert (found.is_intact, found.events) == (True, 4)


def test_runs_that_never_rest_cannot_be_verified():
    runs = Moving(times=1000)
    with pytest.raises(TooBusy, match="kept moving"):
        audit_verify(context(lake(), runs=runs, audit=runs))
