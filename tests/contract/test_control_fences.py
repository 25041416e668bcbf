"""Processes that were overtaken, and tables of older releases: nothing lost, none let through."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ServiceUnavailableError

from lakehouse_backfill.adapters.iceberg.control import advisory_lock, schemas
from lakehouse_backfill.adapters.iceberg.control.log import LogAppend
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.schemas import CONTROL_TABLES, LOG_SEQ
from lakehouse_backfill.core.runs import event_log as audit_rules
from lakehouse_backfill.domain.publication import Pointer
from lakehouse_backfill.domain.run import ChunkRecord, Lease, RunState
from lakehouse_backfill.errors import RunMoved
from tests.contract.test_control_races import control_tables, race
from tests.support.examples.plans import NOON, an_event
from tests.support.lakes.catalogs import Commit, TroubledCatalog, catalog_of, troubled
from tests.support.lakes.control import (
    PRODUCT,
    a_chunk,
    a_row,
    bare,
    begun,
    control_ports,
    is_intact,
    move,
    put,
)  # fmt: skip

NAMESPACE = "lakehouse_backfill"
ROUNDS = 30


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TroubledCatalog:
    # Who is stopped in the middle of a commit holds the lock: the others go on without it.
    monkeypatch.setattr(advisory_lock, "LOCK_TIMEOUT_S", 0.05)
    return troubled(tmp_path)


# --- what is under way is refused -----------------------------------------------------------------

A_REJECT = {
    "run_id": "bf-1", "chunk_id": "c1", "source": "raw", "record_key": "{}", "reason": "late",
    "record": "{}", "rejected_at": NOON,
}  # fmt: skip
WRITES: dict[str, Callable[[SimpleNamespace], Any]] = {
    "backfill_chunk_run": lambda late: late.runs.record_chunk(
        a_chunk("late").model_copy(update={"epoch": 3})
    ),
    "reject_record": lambda late: late.runs.record_rejects("bf-1", 3, [A_REJECT]),
    "evidence": lambda late: late.evidence.record("bf-1", "validation", {"late": True}, 3),
    "accepted_output_version": lambda late: put(late.versions, a_row(2, "publish", epoch=3)),
}


@pytest.mark.req("X9")
@pytest.mark.parametrize("is_empty", [True, False], ids=["empty table", "table with rows"])
@pytest.mark.parametrize("table", WRITES)
def test_a_row_that_was_ready_before_the_fence_is_refused(
    catalog: TroubledCatalog, tmp_path: Path, table: str, is_empty: bool
):
    late, now = control_ports(catalog), control_ports(catalog_of(tmp_path))
    now.tables.ensure()
    if not is_empty:
        now.runs.record_chunk(a_chunk("c1"))
        now.evidence.record("bf-1", "validation", {"n": 1}, 0)
        put(now.versions, a_row(1, "publish"))
    before = now.versions.pointer(PRODUCT), now.runs.chunks("bf-1")

    def overtake(name: str, commit: Commit) -> Any:
        assert name == table
        now.runs.fence("bf-1", 7)
        return commit()

    catalog.troubles = iter([overtake])
    with pytest.raises(RunMoved, match=r"bf-1 was taken over .* \(lease 3, now 7\)"):
        WRITES[table](late)
    assert (now.versions.pointer(PRODUCT), now.runs.chunks("bf-1")) == before
    newest = now.evidence.newest("bf-1", "validation")
    assert newest is None if is_empty else newest[1] == {"n": 1}


@pytest.mark.req("X9")
def test_the_pointer_and_other_runs_go_on_over_a_fence(catalog: TroubledCatalog, tmp_path: Path):
    late, now = control_ports(catalog), control_ports(catalog_of(tmp_path))
    now.tables.ensure()

    def overtake(name: str, commit: Commit) -> Any:
        now.runs.fence("bf-9", 7)
        return commit()

    catalog.troubles = iter([overtake])
    WRITES["accepted_output_version"](late)
    assert bare(now.versions.pointer(PRODUCT)) == Pointer(
        accepted=a_row(2, "publish", epoch=3), last_version=2
    )


@pytest.mark.req("X9")
def test_a_fence_whose_answer_was_lost_is_set_once(catalog: TroubledCatalog):
    control = control_ports(catalog)
    control.runs.record_chunk(a_chunk("c1"))

    def lose_the_answer(name: str, commit: Commit) -> Any:
        commit()
        raise ServiceUnavailableError("503")

    catalog.troubles = iter([lose_the_answer])
    control.runs.fence("bf-1", 7)
    for table in WRITES:
        found = catalog.load_table((NAMESPACE, table))
        assert found.properties["fence.bf-1"] == "7"
        assert found.metadata.last_sequence_number == (2 if table == "backfill_chunk_run" else 1)


def test_a_fence_in_place_costs_no_commit(catalog: TroubledCatalog):
    control = control_ports(catalog)
    control.runs.fence("bf-1", 7)
    before = _locations(catalog)
    control.runs.fence("bf-1", 7)
    control.runs.fence("bf-1", 6)
    assert before == _locations(catalog)


def _locations(catalog: TroubledCatalog) -> dict[tuple[str, ...], str]:
    names = catalog.list_tables(NAMESPACE)
    return {name: catalog.load_table(name).metadata_location for name in names}


# --- renewals -------------------------------------------------------------------------------------


@pytest.mark.req("X9")
def test_a_renewal_that_was_ready_before_a_take_over_does_not_undo_it(
    catalog: TroubledCatalog, tmp_path: Path
):
    late, now = control_ports(catalog), control_ports(catalog_of(tmp_path))
    begun(late.runs, driver="host:1")

    def overtake(name: str, commit: Commit) -> Any:
        move(now.runs, "bf-1", "begin staging", driver="host:2")
        return commit()

    catalog.troubles = iter([overtake])
    with pytest.raises(RunMoved, match=r"lease 3, now 4"):
        late.runs.renew("bf-1", 3, NOON + timedelta(hours=9))
    status = now.runs.status("bf-1")
    assert (status.driver, status.epoch, status.seq) == ("host:2", 4, 4)
    assert is_intact(now)


def until(number: int) -> Any:
    return NOON + timedelta(minutes=5, seconds=number)


def append_or_renew(folder: Path, number: int, barrier: Any) -> list[str]:
    """Process 0 notes an event each round, process 1 renews the lease at the same time."""
    runs, wrong = IcebergRuns(control_tables(folder)), []
    for turn in range(ROUNDS):
        barrier.wait()
        if number == 0:
            runs.append(an_event("bf-1", 4 + turn, RunState.STAGING))
        else:
            runs.renew("bf-1", 3, until(turn + 1))
        barrier.wait()
        status = runs.status("bf-1")
        if (status.seq, status.lease_until) != (4 + turn, until(turn + 1)):
            wrong.append(f"{turn}: {status}")
    return wrong


@pytest.mark.req("X9", "V4")
def test_neither_an_event_nor_a_renewal_at_the_same_time_is_lost(tmp_path: Path):
    control = control_ports(catalog_of(tmp_path))
    begun(control.runs, driver="host:1")
    assert race(append_or_renew, tmp_path, 2) == [[], []]
    assert [one.seq for one in control.runs.events("bf-1")] == list(range(1, 4 + ROUNDS))
    assert is_intact(control)


def drive(folder: Path, number: int, barrier: Any) -> list[int | None]:
    """Take the run over each round, renew, and write with the lease: whose rows got through?"""
    control = control_ports(catalog_of(folder))
    written: list[int | None] = []
    for _ in range(ROUNDS // 5):
        barrier.wait()
        status = control.runs.status("bf-1")
        barrier.wait()
        lease = Lease(holder=f"host:{number}", until=until(0))
        event = an_event("bf-1", status.seq + 1, RunState.STAGING, verb="begin staging")
        try:
            epoch = control.runs.append(event, lease).epoch
            control.runs.fence("bf-1", epoch)
        except RunMoved:
            # The driver of the round before: it writes while it is overtaken.
            epoch = status.epoch
        barrier.wait()
        try:
            control.runs.record_chunk(a_chunk(f"c{number}").model_copy(update={"epoch": epoch}))
            written.append(epoch)
        except RunMoved:
            written.append(None)
    return written


@pytest.mark.req("X9")
def test_of_two_drivers_only_the_newest_writes_in_each_round(tmp_path: Path):
    control = control_ports(catalog_of(tmp_path))
    begun(control.runs, driver="host:0")
    first, second = race(drive, tmp_path, 2)
    for turn, pair in enumerate(zip(first, second, strict=True)):
        assert sorted(pair, key=lambda epoch: epoch or 0) == [None, 4 + turn]


# --- tables of an older release -------------------------------------------------------------------

NEWER = {
    "run_event": ("epoch", "previous", "hash"),
    "accepted_output_version": ("epoch", "returns_to", "seal"),
    "backfill_chunk_run": ("epoch", "problem"),
    "evidence": ("epoch",),
}


def older(table: schemas.ControlTable) -> schemas.ControlTable:
    newer = NEWER.get(table.name, ())
    return replace(table, columns=tuple(one for one in table.columns if one[0] not in newer))


@pytest.fixture
def old_lake(catalog: TroubledCatalog, tmp_path: Path) -> SimpleNamespace:
    """Two runs, a chunk, a version and a document, as an older release wrote them."""
    new = control_ports(catalog_of(tmp_path))
    for run_id in ("bf-1", "bf-2"):
        begun(new.runs, run_id)
    move(new.runs, "bf-1", "approve", hash="abc")
    move(new.runs, "bf-2", "cancel")
    new.runs.record_chunk(a_chunk("c1"))
    put(new.versions, a_row(1, "publish"))
    new.evidence.record("bf-1", "validation", {"n": 1}, 0)
    for table in CONTROL_TABLES:
        _write_as_older(catalog, table)
    return control_ports(catalog)


def _write_as_older(catalog: TroubledCatalog, table: schemas.ControlTable) -> None:
    name = (NAMESPACE, table.name)
    found = catalog.load_table(name)
    properties = {
        key: _OLDER_FORMS.get(key.split(".")[0], str)(text)
        for key, text in found.properties.items()
        if not key.startswith("audit.")
    }
    rows = sorted(found.scan().to_arrow().to_pylist(), key=lambda row: row[LOG_SEQ])
    catalog.drop_table(name)
    made = catalog.create_table(name, older(table).schema(), properties=properties)
    newer = NEWER.get(table.name, ())
    if rows:
        # The new table counts its commits from 1, and the order of the rows goes by that.
        older_rows = [
            {key: value for key, value in row.items() if key not in newer} | {LOG_SEQ: number}
            for number, row in enumerate(rows)
        ]
        made.append(pa.Table.from_pylist(older_rows, schema=made.schema().as_arrow()))


def _older_status(text: str) -> str:
    newer = ("epoch", "lease_until", "head")
    return json.dumps({key: value for key, value in json.loads(text).items() if key not in newer})


def _older_pointer(text: str) -> str:
    """Take the seals away, which older releases did not write."""
    pointer = json.loads(text)
    pointer.pop("head")
    pointer["accepted"].pop("seal")
    return json.dumps(pointer)


_OLDER_FORMS = {"run": _older_status, "pointer": _older_pointer}


@pytest.mark.req("C1")
def test_tables_of_an_older_release_are_read_as_they_are(
    old_lake: SimpleNamespace, catalog: TroubledCatalog
):
    before = _locations(catalog)
    assert [(one.seq, one.hash, one.epoch) for one in old_lake.runs.events("bf-1")] == [
        (1, "", 0),
        (2, "", 0),
    ]
    assert old_lake.runs.events("bf-1")[1].detail == {"hash": "abc"}
    assert old_lake.runs.status("bf-1").state is RunState.APPROVED
    assert old_lake.runs.status("bf-2").state is RunState.CANCELLED
    assert len(old_lake.runs.list(open_only=False)) == 2
    assert old_lake.runs.chunks("bf-1") == (a_chunk("c1"),)
    assert old_lake.versions.history(PRODUCT) == (a_row(1, "publish"),)
    assert old_lake.evidence.newest("bf-1", "validation")[1] == {"n": 1}
    assert old_lake.audit.drafts() == ()
    assert before == _locations(catalog)


@pytest.mark.req("C1")
def test_the_first_writer_adds_the_missing_columns_to_all_tables(
    old_lake: SimpleNamespace, catalog: TroubledCatalog
):
    chunk = ChunkRecord(**{**a_chunk("c2").model_dump(), "epoch": 4, "problem": "no rows"})
    old_lake.runs.record_chunk(chunk)
    assert old_lake.runs.chunks("bf-1") == (a_chunk("c1"), chunk)
    for table in CONTROL_TABLES:
        schema = catalog.load_table((NAMESPACE, table.name)).schema()
        assert table.missing_columns(schema) == ()
        for name in NEWER.get(table.name, ()):
            assert not schema.find_field(name).required
            assert schema.find_field(name).doc
    row = a_row(2, "rollback", epoch=4, returns_to=1)
    put(old_lake.versions, row)
    assert bare(old_lake.versions.history(PRODUCT)) == (row, a_row(1, "publish"))


@pytest.mark.req("V4")
def test_events_of_an_older_release_are_no_fault_and_are_covered_from_the_next_event_on(
    old_lake: SimpleNamespace, catalog: TroubledCatalog
):
    found = audit_rules.verify_logs(
        old_lake.audit.chains(), old_lake.audit.seal(), old_lake.runs.list()
    )
    assert (found.first_bad, found.unchained, found.events) == (None, 4, 4)
    move(old_lake.runs, "bf-1", "begin staging", driver="host:1")
    found = audit_rules.verify_logs(
        old_lake.audit.chains(), old_lake.audit.seal(), old_lake.runs.list()
    )
    assert (found.first_bad, found.unchained, found.events) == (None, 4, 5)
    table = catalog.load_table((NAMESPACE, "run_event"))
    rows = table.scan().to_arrow().to_pylist()
    for run_id in ("bf-1", "bf-2"):
        edited = [
            {**row, "actor": "eve"} if (row["run_id"], row["seq"]) == (run_id, 1) else row
            for row in rows
        ]
        table = _overwrite(catalog, edited)
        assert not is_intact(old_lake)
    _overwrite(catalog, rows)
    assert is_intact(old_lake)


def _overwrite(catalog: TroubledCatalog, rows: list[dict[str, Any]]) -> Any:
    table = catalog.load_table((NAMESPACE, "run_event"))
    table.overwrite(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return table


def test_a_closed_run_of_an_older_release_goes_on_with_its_chain(old_lake: SimpleNamespace):
    status = old_lake.runs.status("bf-2")
    old_lake.runs.append(an_event("bf-2", status.seq + 1, status.state))
    assert is_intact(old_lake)
    assert old_lake.audit.seal()[0] == 5


def add_columns(folder: Path, number: int, barrier: Any) -> None:
    tables = control_tables(folder)
    barrier.wait()
    tables.log(schemas.RUN_EVENT).append(lambda _: LogAppend(result=None))


@pytest.mark.req("C1")
def test_many_processes_may_add_the_columns_at_once(
    old_lake: SimpleNamespace, catalog: TroubledCatalog, tmp_path: Path
):
    assert race(add_columns, tmp_path, 4) == [None] * 4
    for table in CONTROL_TABLES:
        schema = catalog.load_table((NAMESPACE, table.name)).schema()
        assert sorted(schema.column_names) == sorted(set(schema.column_names))
        assert table.missing_columns(schema) == ()
