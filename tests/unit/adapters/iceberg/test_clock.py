"""Commits of a machine whose clock is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID
from pyiceberg.types import LongType, NestedField

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.iceberg.clock import ReferenceClock
from lakehouse_backfill.adapters.iceberg.commit.multi_table import commit_tables
from lakehouse_backfill.adapters.iceberg.rest.answers import commit_refusal
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import WrongClock

SQLITE = {
    "name": "lake", "type": "sql", "uri": "sqlite:///${project}/catalog.db",
    "warehouse": "file://${project}/warehouse",
}  # fmt: skip


def make_table(catalog: Catalog, space: str, schema: Schema) -> Table:
    catalog.create_namespace(space)
    catalog.create_table(f"{space}.t", schema)
    return catalog.load_table(f"{space}.t")


@pytest.mark.parametrize(
    ("space", "ahead_s", "is_refused"),
    [("silver", 3600, True), ("silver", 30, False), ("lakehouse_backfill", 3600, False)],
)
def test_no_commit_goes_before_the_last_one_of_a_table_that_others_read(
    tmp_path: Path, space: str, ahead_s: int, is_refused: bool
) -> None:
    catalog = open_catalog(Profile(catalog=SQLITE), tmp_path)
    table = make_table(catalog, space, Schema(NestedField(1, "id", LongType())))
    # As of a writer whose clock is ahead.
    later = int((time.time() + ahead_s) * 1000)
    table.metadata = table.metadata.model_copy(update={"last_updated_ms": later})
    change = table.transaction().set_properties({"a": "b"})
    if is_refused:
        with pytest.raises(WrongClock, match=r"silver\.t: its last commit is 3,[56]\d\d s"):
            change.commit_transaction()
    else:
        change.commit_transaction()
    assert catalog.load_table(f"{space}.t").properties.get("a") == (None if is_refused else "b")


class Machine:
    """This machine's clock and uptime, and another machine's clock."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.true_s, self.ahead_s, self.slept_s, self.asked = 1_800_000_000.25, ahead_s, 0.0, 0

    def now(self) -> float:
        return self.true_s + self.ahead_s

    def uptime(self) -> float:
        return self.true_s - 1_799_999_000 - self.slept_s

    def clock(self, ask: Callable[[ReferenceClock], None] | None = None) -> ReferenceClock:
        return ReferenceClock(ask, self.now, self.uptime)

    def answer(self, clock: ReferenceClock, took_s: float = 0.2, **headers: str) -> None:
        """Give the answer's `Date`, in whole seconds, in the middle of the request."""
        since = self.uptime()
        date = formatdate(int(self.true_s + took_s / 2), usegmt=True)
        self.true_s += took_s
        clock.note_answer({"Date": date, **headers}, since)

    def ask(self, clock: ReferenceClock) -> None:
        self.asked += 1
        self.answer(clock)


@pytest.mark.parametrize(
    ("ahead_s", "took_s", "is_wrong"),
    [
        (0, 0.2, False), (59, 0.2, False), (-59, 0.2, False), (62, 0.2, True), (-62, 0.2, True),
        (86_400, 0.2, True), (-86_400, 0.2, True),
        # Where in 20 s the server answered is not known.
        (69, 20, False), (-69, 20, False), (72, 20, True),
    ],
)  # fmt: skip
def test_a_clock_is_wrong_when_it_is_certainly_off_by_more_than_a_minute(
    ahead_s: float, took_s: float, is_wrong: bool
) -> None:
    machine = Machine(ahead_s)
    clock = machine.clock()
    assert clock.skew() is None
    machine.answer(clock, took_s)
    found = clock.skew()
    assert found is not None
    assert abs(found.here_s - found.there_s - ahead_s) <= found.within_s
    assert found.is_wrong is is_wrong
    if is_wrong:
        with pytest.raises(WrongClock, match=f"clock is {abs(ahead_s):,.0f} s "):
            found.require_small()
    else:
        found.require_small()


def test_a_clock_that_is_set_while_a_command_computes_is_noticed_without_a_request() -> None:
    machine = Machine()
    clock = machine.clock(machine.ask)
    machine.answer(clock)
    machine.true_s += 7 * 3600
    assert not clock.skew().is_wrong  # type: ignore[union-attr]
    assert machine.asked == 0
    machine.ahead_s = 86_400
    assert clock.skew().is_wrong  # type: ignore[union-attr]


def test_a_machine_that_slept_asks_again_before_it_judges_its_clock() -> None:
    machine = Machine()
    clock = machine.clock(machine.ask)
    machine.answer(clock)
    machine.true_s += 3600
    machine.slept_s = 3600
    assert not clock.skew().is_wrong  # type: ignore[union-attr]
    assert machine.asked == 1


def test_answers_that_say_nothing_of_the_time_are_passed_over() -> None:
    machine = Machine()
    clock = machine.clock()
    for headers in ({}, {"Date": "soon"}, {"Date": "Sat, 01 Jan 2000 00:00:00 GMT", "Age": "9"}):
        clock.note_answer(headers, machine.uptime())
    assert clock.skew() is None
    machine.answer(clock)
    # One that took a minute does not replace what is known better.
    machine.answer(clock, took_s=60)
    assert clock.skew().within_s < 1  # type: ignore[union-attr]


def test_an_answer_from_which_no_skew_could_be_told_is_not_taken() -> None:
    machine = Machine(ahead_s=86_400)
    clock = machine.clock()
    machine.answer(clock, took_s=3600)
    assert clock.skew() is None


def test_a_date_without_a_zone_is_one_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        machine = Machine()
        clock = machine.clock()
        date = time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(machine.true_s))
        clock.note_answer({"Date": date}, machine.uptime())
        assert not clock.skew().is_wrong  # type: ignore[union-attr]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_server_whose_answers_have_no_time_is_not_asked_before_each_commit() -> None:
    machine, asked = Machine(), []
    clock = machine.clock(lambda _: asked.append(machine.uptime()))
    for _ in range(3):
        assert clock.skew() is None
        machine.true_s += 200
    assert len(asked) == 2


@pytest.mark.parametrize(("ahead_s", "told"), [(86_400, "86,400 s ahead"), (-90, "90 s behind")])
def test_nothing_is_made_or_committed_by_a_machine_whose_clock_is_wrong(
    tmp_path: Path, ahead_s: float, told: str
) -> None:
    """Control tables are no exception: leases and events would carry the wrong time."""
    machine, catalog = Machine(), open_catalog(Profile(catalog=SQLITE), tmp_path)
    schema = Schema(NestedField(1, "id", LongType()))
    table = make_table(catalog, "lakehouse_backfill", schema)
    clock = machine.clock()
    vars(catalog)["reference_clock"] = clock
    machine.answer(clock)
    table.transaction().set_properties({"a": "b"}).commit_transaction()
    machine.ahead_s = ahead_s
    for act in (
        table.transaction().set_properties({"a": "c"}).commit_transaction,
        lambda: catalog.create_table("lakehouse_backfill.u", schema),
        lambda: catalog.register_table("lakehouse_backfill.u", table.metadata_location),
        lambda: commit_tables(catalog, ()),
    ):
        with pytest.raises(WrongClock, match=told) as refused:
            act()
        assert refused.value.exit_code == 6
        assert commit_refusal(refused.value, "t", "x").code == "wrong-clock"  # type: ignore[union-attr]
    assert catalog.load_table("lakehouse_backfill.t").properties["a"] == "b"
    assert catalog.list_tables("lakehouse_backfill") == [("lakehouse_backfill", "t")]


def store_behind(behind_s: float) -> PyArrowFileIO:
    """Make what reads a store whose machine's clock is behind."""
    store = PyArrowFileIO()
    written = datetime.fromtimestamp(int(time.time() - behind_s), timezone.utc)
    files = SimpleNamespace(get_file_info=lambda _: SimpleNamespace(mtime=written))
    vars(store)["fs_by_scheme"] = lambda *_: files
    return store


@pytest.mark.parametrize(
    ("behind_s", "place", "told"),
    [
        (0, "s3://lake/m.avro", False), (86_400, "s3://lake/m.avro", True),
        # A local disk has this machine's clock.
        (86_400, "file:///lake/m.avro", None), (86_400, "/lake/m.avro", None),
    ],
)  # fmt: skip
def test_a_remote_store_tells_the_time_by_a_file_that_was_just_written(
    behind_s: float, place: str, told: bool | None
) -> None:
    clock = ReferenceClock()
    clock.note_file(store_behind(behind_s), Snapshot(snapshot_id=1, manifest_list=place))
    found = clock.skew()
    assert (found and found.is_wrong) is told


@pytest.mark.parametrize("is_own", [True, False])
def test_the_list_of_files_that_a_clone_has_of_its_source_tells_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_own: bool
) -> None:
    catalog = open_catalog(Profile(catalog=SQLITE), tmp_path)
    table = make_table(catalog, "silver", Schema(NestedField(1, "id", LongType())))
    week_ago = time.time() - 604_800
    monkeypatch.setattr("lakehouse_backfill.adapters.iceberg.clock._stored_at", lambda *_: week_ago)
    place = table.location() if is_own else "file:///elsewhere"
    snapshot = Snapshot(
        snapshot_id=7, manifest_list=f"{place}/m.avro", timestamp_ms=int(time.time() * 1000),
        sequence_number=1, summary=Summary(Operation.APPEND), schema_id=0,
    )  # fmt: skip
    change = (
        (AssertTableUUID(uuid=table.metadata.table_uuid),),
        (AddSnapshotUpdate(snapshot=snapshot),),
    )
    if is_own:
        with pytest.raises(WrongClock, match=r"604,\d{3} s ahead of that of the store"):
            catalog.commit_table(table, *change)
    else:
        catalog.commit_table(table, *change)
