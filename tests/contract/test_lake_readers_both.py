"""The rules of the ports beside a lake's tables, on the in-memory lake and on real adapters."""

from __future__ import annotations

import sys
from datetime import datetime, timezone

import pytest

from lakehouse_backfill.adapters.iceberg.control.audit import IcebergAudit
from lakehouse_backfill.adapters.iceberg.control.evidence import IcebergEvidence
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.system.hooks import LocalHooks
from lakehouse_backfill.domain.catch_up import CarryRequest, Erasure, ExcludedRows, TableState
from lakehouse_backfill.domain.guards.outside import Hook
from lakehouse_backfill.domain.retention import OrphanFiles, PinLease, StagedShadow
from lakehouse_backfill.domain.rollout import ReaderQuery
from lakehouse_backfill.errors import Conflict, NotFound, RunMoved
from tests.support.examples.plans import NOON, a_first_event, a_plan
from tests.support.fakes.control import FakeEvidence, FakeRuns
from tests.support.fakes.hooks import FakeHooks
from tests.support.lakes.both import (
    DAYS,
    DayLake,
    FakeDays,
    IcebergDays,
    content,
    head,
    scope,
    staged,
)
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.tables import Kit


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(tmp_path_factory.mktemp("readers"))


@pytest.fixture(params=["fake", "real"])
def lake(request, kit: Kit) -> DayLake:
    """Two days with two rows each."""
    made = FakeDays() if request.param == "fake" else IcebergDays(kit)
    made.write(DAYS[0], "k1", "k2")
    made.write(DAYS[1], "k3", "k4")
    return made


def state(lake: DayLake, snapshot_id: int) -> TableState:
    return TableState(table=lake.target, snapshot_id=snapshot_id)


# --- carry-over from an earlier revision


def carry_request(lake: DayLake, epoch: int) -> CarryRequest:
    first = staged(lake, d1=("new",), d2=("new",))
    lake.write(DAYS[1], "live")
    second = staged(lake, "r2")
    lake.shadows.fence(second.shadow, 1)
    return CarryRequest(
        shadow=second.shadow, source=first.shadow, source_snapshot_id=first.shadow_snapshot_id,
        scope=scope(lake, DAYS[0]), chunk_id="c0001", epoch=epoch,
        properties={"lakehouse-backfill.run-id": "r2"},
    )  # fmt: skip


@pytest.mark.req("U10", "U11")
def test_a_carried_day_has_the_files_of_the_earlier_shadow_and_is_carried_once(lake):
    request = carry_request(lake, 1)
    base = lake.tables.describe(request.shadow).snapshot_id
    before = content(lake, request.shadow, base)

    done = lake.publisher.carry(request)

    earlier = content(lake, request.source, request.source_snapshot_id)
    assert content(lake, request.shadow, done.snapshot_id) == {
        DAYS[0]: earlier[DAYS[0]], DAYS[1]: before[DAYS[1]],
    }  # fmt: skip
    assert lake.publisher.carry(request) == done == lake.shadows.chunks(request.shadow)[-1]


@pytest.mark.req("X9")
def test_an_overtaken_driver_carries_nothing(lake):
    request = carry_request(lake, 0)
    with pytest.raises(RunMoved):
        lake.publisher.carry(request)
    assert lake.shadows.chunks(request.shadow) == ()


# --- deletions


def key_of(lake: DayLake) -> tuple[str, ...]:
    return ("id",) if isinstance(lake, FakeDays) else ("v",)


@pytest.mark.parametrize(
    ("rows", "gone", "only_deletion"),
    [(("k1", "k2"), 0, True), (("k1",), 1, True), ((), 2, True), (("k1", "k9"), 1, False)],
)
def test_rows_whose_keys_are_gone_are_counted(lake, rows, gone, only_deletion):
    before = head(lake)
    lake.write(DAYS[0], *rows)

    found = lake.row_reader.deleted_rows(
        state(lake, before), state(lake, head(lake)), scope(lake, *DAYS), key_of(lake)
    )

    assert (found.rows, len(found.samples)) == (gone, gone)
    assert found.is_only_deletion is only_deletion
    assert found.partitions == (DAYS if gone else ())


def test_rows_that_were_deleted_between_two_snapshots_are_named(lake):
    before = head(lake)
    lake.write(DAYS[0], "k1")
    erasure = Erasure(
        table=lake.target, before_snapshot_id=before, after_snapshot_id=head(lake),
        partitions=DAYS[:2], key=key_of(lake),
    )  # fmt: skip
    excluded = ExcludedRows(field=lake.field, erasures=(erasure,))

    def days(snapshot_id: int) -> tuple[str, ...]:
        return lake.row_reader.tombstoned_rows(
            state(lake, snapshot_id), DAYS[:2], excluded
        ).partitions

    assert (days(before), days(head(lake))) == ((DAYS[0],), ())


# --- stored files


def test_stored_files_are_those_of_the_scope_by_path(lake):
    found = lake.stored_files.files(lake.target, head(lake), scope(lake, DAYS[0]))

    assert {file.path for file in found} == content(lake, lake.target, head(lake))[DAYS[0]]
    assert [file.path for file in found] == sorted(file.path for file in found)
    assert lake.stored_files.files(lake.target, head(lake), scope(lake, "2013-02-09")) == ()
    for read in (lake.stored_files.files, lake.stored_files.metadata):
        with pytest.raises(NotFound):
            read("silver.none", 1, scope(lake, DAYS[0]))
        with pytest.raises(NotFound):
            read(lake.target, 17, scope(lake, DAYS[0]))


def test_metadata_is_the_same_until_another_snapshot(lake):
    first, days = head(lake), scope(lake, *DAYS)
    before = lake.stored_files.metadata(lake.target, first, days)
    lake.write(DAYS[0], "live")

    assert lake.stored_files.metadata(lake.target, first, days) == before != ()
    assert lake.stored_files.metadata(lake.target, head(lake), days) != before


def test_sizes_are_those_of_the_listing(lake):
    files = lake.stored_files.files(lake.target, head(lake), scope(lake, *DAYS))
    expected = {file.path: file.size_bytes for file in files}
    assert lake.stored_files.sizes(lake.target, list(expected)) == expected


def test_bytes_are_hashed_for_each_file_and_tell_them_apart(lake):
    files = lake.stored_files.files(lake.target, head(lake), scope(lake, *DAYS))
    found = lake.stored_files.digests(lake.target, [file.path for file in files])

    assert {path: one.size_bytes for path, one in found.items()} == {
        file.path: file.size_bytes for file in files
    }
    assert len({one.sha256 for one in found.values()}) == len({file.path for file in files})
    assert lake.stored_files.digests(lake.target, []) == {}


def test_a_reading_stays_while_the_columns_do(lake):
    first = head(lake)
    lake.write(DAYS[0], "live")
    readings = {lake.stored_files.reading(lake.target, at) for at in (first, head(lake))}
    assert len(readings) == 1
    for name, at in ((lake.target, 17), ("silver.none", 1)):
        with pytest.raises(NotFound):
            lake.stored_files.reading(name, at)


# --- a reader's query


def test_equal_states_answer_alike_and_others_do_not(lake):
    before = head(lake)
    query = ReaderQuery(reader="app", sql="SELECT count(*) AS n FROM product", tolerance=0.0)
    same = lake.row_reader.compare_query(query, state(lake, before), state(lake, before))
    lake.write(DAYS[0])
    other = lake.row_reader.compare_query(query, state(lake, before), state(lake, head(lake)))

    assert (same.equal, other.equal) == (True, False)
    assert same.old_answer == same.new_answer == other.old_answer != other.new_answer
    assert (same.reader, same.sql, same.columns) == ("app", query.sql, ("n",))


# --- upkeep


def test_shadows_are_listed_until_they_are_retired(lake):
    shadow = staged(lake, d1=("new",)).shadow
    assert shadow in lake.shadows.list()
    assert lake.target not in lake.shadows.list()
    lake.shadows.retire(shadow)
    assert shadow not in lake.shadows.list()


def test_files_of_a_dropped_shadow_are_found_until_they_are_deleted(lake):
    request = staged(lake, d1=("new",), d2=("newer",))
    described = lake.run_files.describe(request.shadow)
    assert described["size_bytes"] > 0
    assert lake.run_files.describe("shadow.none") is None
    one = StagedShadow(
        run_id="r1", product=lake.target, shadow=request.shadow, target=lake.target, **described
    )

    def find(dropped=(), *, is_begun=False):
        return lake.run_files.find(one, request.scope, (), dropped, is_begun=is_begun)

    with pytest.raises(Conflict):
        find()
    seen = find({request.shadow})
    lake.shadows.retire(request.shadow)
    assert find() == seen
    assert seen.groups[-1] == (one.metadata_file,)
    assert (seen.files, seen.held) == (sum(map(len, seen.groups)), {})
    before = content(lake, lake.target, head(lake))
    lake.run_files.delete(one, seen.groups)
    assert find(is_begun=True) is None
    with pytest.raises(NotFound):
        find()
    lake.run_files.delete(one, seen.groups)
    assert content(lake, lake.target, head(lake)) == before


def test_only_our_tags_are_listed_and_dropped_at_the_snapshot_named(lake):
    at, other = head(lake), lake.write(DAYS[0], "live")
    for name in ("lhb-base-r1", "lhb-base-r2", "march"):
        lake.pins.pin(lake.target, at, name)
    wanted = {"lhb-base-r1": at, "lhb-base-r2": other, "lhb-none": at}
    assert lake.pins.tags(lake.target) == {"lhb-base-r1": at, "lhb-base-r2": at}
    assert lake.pins.tags("silver.none") is None

    planned = lake.pins.preview_expiry(lake.target, wanted, NOON, at_once=True)
    done = lake.pins.expire(lake.target, wanted, NOON, at_once=True)

    assert planned.tags == done.tags == ("lhb-base-r1",)
    assert lake.pins.tags(lake.target) == {"lhb-base-r2": at}
    assert lake.pins.expire(lake.target, wanted, NOON, at_once=True).tags == ()


# --- pin leases, fences and hooks


@pytest.fixture(params=["fake", "iceberg"])
def leases(request, tmp_path):
    if request.param == "fake":
        return FakeEvidence()
    return IcebergEvidence(ControlTables(catalog_of(tmp_path), "lakehouse_backfill"))


def a_lease(tag: str) -> PinLease:
    return PinLease(
        table="silver.t", tag=tag, snapshot_id=1, run_id="bf-1", product="silver.t",
        owner="ann", reason="fix", until=NOON, at=NOON, by="ann",
    )  # fmt: skip


def test_a_lease_is_active_from_its_grant_to_its_end(leases):
    first, second = a_lease("lhb-a"), a_lease("lhb-b")
    for granted in ((first,), (first, second), ()):
        leases.grant_leases(granted)
    assert leases.active_leases() == (first, second)
    for ended in ((first,), (first,), (a_lease("lhb-c"),)):
        leases.end_leases(ended)
    assert leases.active_leases() == (second,)
    leases.grant_leases((first,))
    assert leases.active_leases() == (second, first)


@pytest.fixture(params=["fake", "iceberg"])
def upkeep(request, tmp_path):
    if request.param == "fake":
        runs = FakeRuns()
        return runs, runs
    tables = ControlTables(catalog_of(tmp_path), "lakehouse_backfill")
    return IcebergRuns(tables), IcebergAudit(tables)


def test_runs_are_listed_without_their_plans_and_fences_are_lifted(upkeep):
    runs, audit = upkeep
    assert (audit.describe_runs(), runs.fenced()) == ({}, ())
    plan = a_plan()
    runs.register(plan, a_first_event(plan))
    for run_id in ("bf-1", "bf-2"):
        runs.fence(run_id, 1)

    assert audit.describe_runs() == {
        "bf-1": {
            "product": plan.product, "target": plan.resolved.target.table,
            "shadow": plan.shadow_table, "owner": plan.resolved.manifest.run.requested_by,
            "reason": plan.resolved.manifest.run.reason,
        }
    }  # fmt: skip
    assert runs.fenced() == ("bf-1", "bf-2")
    runs.lift_fences(("bf-1", "bf-none"))
    assert runs.fenced() == ("bf-2",)
    long_ago = datetime(2000, 1, 1, tzinfo=timezone.utc)
    assert audit.count_orphans(long_ago) == audit.delete_orphans(long_ago) == OrphanFiles()


def test_runs_that_name_staged_files_are_listed_until_these_are_deleted(upkeep):
    runs, audit = upkeep
    plan = a_plan()
    first = a_first_event(plan)
    runs.register(plan, first)
    notes = (("retire", {"let_go": []}, ()), ("retire", {"staged": {"location": "x"}}, ("bf-1",)),
             ("begin deleting files", {}, ("bf-1",)), ("delete files", {}, ()))  # fmt: skip
    for seq, (verb, detail, listed) in enumerate(notes, start=2):
        states = {"from_state": first.to_state, "to_state": first.to_state}
        note = {"seq": seq, "verb": verb, "detail": detail, **states}
        runs.append(first.model_copy(update=note))
        assert audit.pending_deletions() == listed


@pytest.mark.parametrize(("code", "is_ok"), [(0, True), (1, False)])
@pytest.mark.parametrize("kind", ["fake", "local"])
def test_a_hook_that_fails_is_noted_and_raises_nothing(tmp_path, kind, code, is_ok):
    port = FakeHooks() if kind == "fake" else LocalHooks(tmp_path)
    if kind == "fake" and not is_ok:
        port.broken.add("tell")
    hook = Hook(name="tell", on="on_halt", command=(sys.executable, "-c", f"exit({code})"))

    called = port.call(hook, {"run": "bf-1"})

    assert (called.hook, called.on, called.is_ok) == ("tell", "on_halt", is_ok)
    assert f"exit code {code}" in called.detail
