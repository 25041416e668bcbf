"""The rules of the lake's ports that the stages rest on, on the in-memory lake and on PyIceberg."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from lakehouse_backfill.domain.contract import Contract, ContractColumn, ContractPartition
from lakehouse_backfill.domain.labels.key_ranges import KeyRanges
from lakehouse_backfill.domain.partitions import partition_row_range
from lakehouse_backfill.domain.tables.commits import PartitionRestore, RevertRequest
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import Conflict, NotFound, RunMoved, TargetChanged, WriteForbidden
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
from tests.support.lakes.tables import Kit


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(tmp_path_factory.mktemp("both"))


@pytest.fixture(params=["fake", "iceberg"])
def empty(request, kit: Kit) -> DayLake:
    return FakeDays() if request.param == "fake" else IcebergDays(kit)


@pytest.fixture
def lake(empty: DayLake) -> DayLake:
    """Three days, one commit each."""
    for number, day in enumerate(DAYS, start=1):
        empty.write(day, f"old-{number}")
    return empty


def resolved(lake: DayLake, at: str | None = None) -> int:
    return lake.tables.resolve(TableRef(table=lake.target, at=at)).snapshot_id


def return_of(lake: DayLake, first: str, swap, **changes) -> RevertRequest:
    restore = PartitionRestore(
        partitions=(first,),
        restore_snapshot_id=swap.before_snapshot_id,
        since_snapshot_id=swap.snapshot_id,
    )
    return RevertRequest(
        target=lake.target, scope=scope(lake, first), restores=(restore,), token="back",
        tags={"before": "lhb-before-back", "after": "lhb-after-back"}, properties={},
    )  # fmt: skip


# --- tables


def test_a_table_that_is_not_there_is_none_and_cannot_be_resolved(lake):
    assert lake.tables.describe("silver.none") is None
    with pytest.raises(NotFound):
        lake.tables.resolve(TableRef(table="silver.none"))


def test_what_was_committed_since_an_instant_is_listed_by_table_and_writer(lake):
    since = datetime.now(timezone.utc)
    request = staged(lake, "r1", d1=("new",))
    written = lake.write(DAYS[2], "live")
    found = lake.tables.movements(since, [request.shadow, lake.target], {"control"}, 2)
    assert (found.looked_at, found.unreadable) == (2, ())
    assert not found.is_whole or isinstance(lake, FakeDays)
    live = [one for one in found.moved if one.table == lake.target]
    assert [(one.writer, one.made_for, one.last_snapshot_id) for one in live] == [
        ("an unnamed writer", "", written)
    ]
    assert {one.table for one in found.moved} == {request.shadow, lake.target}
    later = lake.tables.movements(datetime.now(timezone.utc), [lake.target], {"control"}, 1)
    assert later.moved == ()
    # Of a namespace that is left out, only the tables that are named are looked at.
    other = staged(lake, "r2", d2=("other",)).shadow
    shadows = other.rpartition(".")[0]
    seen = lake.tables.movements(since, [request.shadow], {"control", shadows}, 99)
    assert {request.shadow} <= {one.table for one in seen.moved} <= {request.shadow, lake.target}
    seen = lake.tables.movements(since, [request.shadow], {"control"}, 99)
    assert other in {one.table for one in seen.moved}


def test_a_table_without_snapshot_has_no_files_and_cannot_be_resolved(empty):
    assert head(empty) is None
    assert empty.tables.describe(empty.target).refs == {}
    assert content(empty, empty.target, None) == {}
    assert empty.tables.scoped(empty.target, None, scope(empty, *DAYS)) == ((), ())
    with pytest.raises(NotFound):
        resolved(empty)


def test_the_head_is_a_reference_and_has_a_name(lake):
    assert lake.tables.describe(lake.target).refs == {"main": head(lake)}
    assert resolved(lake) == resolved(lake, "main") == resolved(lake, str(head(lake))) == head(lake)


def test_a_name_resolves_to_its_snapshot_also_when_the_head_moves(lake):
    first = head(lake)
    lake.pins.pin(lake.target, first, "march")
    lake.write(DAYS[0], "live")

    assert resolved(lake, "march") == resolved(lake, str(first)) == first != head(lake)
    assert lake.tables.describe(lake.target).refs == {"main": head(lake), "march": first}


@pytest.mark.parametrize("at", ["17", "zzz", "2001-01-01"])
def test_a_reference_that_names_nothing_is_not_found(lake, at):
    with pytest.raises(NotFound):
        resolved(lake, at)


def test_a_write_replaces_the_files_of_its_day_only(lake):
    before, first = content(lake, lake.target, head(lake)), head(lake)
    lake.write(DAYS[1], "live")
    after = content(lake, lake.target, head(lake))

    assert before.keys() == after.keys() == set(DAYS)
    assert [day for day in DAYS if before[day] != after[day]] == [DAYS[1]]
    assert content(lake, lake.target, first) == before
    lake.write(DAYS[1])
    assert content(lake, lake.target, head(lake)).keys() == {DAYS[0], DAYS[2]}


def test_places_are_the_partitions_of_the_scope_that_hold_files(lake):
    wanted = scope(lake, DAYS[0], "2013-02-09")
    files, (found,) = lake.tables.scoped(lake.target, head(lake), wanted)
    every = lake.tables.files(lake.target, head(lake), wanted.field)
    assert sorted(files, key=str) == sorted(
        (file for file in every if file.is_in(wanted.partitions)), key=str
    )

    assert (found.spec_id, len(found.partitions)) == (0, 1)
    assert DAYS[0] in found.partitions[0]


def test_an_estimate_counts_the_files_of_the_ranges(lake):
    def files(*days: str) -> int:
        ranges = tuple(partition_row_range(lake.field, day) for day in days)
        return lake.tables.estimate(lake.target, head(lake), ranges).files

    assert (files(), files(DAYS[0]), files(DAYS[0], DAYS[2]), files("null")) == (3, 1, 2, 0)


def test_the_scope_field_is_the_partition_column(lake):
    info = lake.tables.describe(lake.target)
    assert lake.tables.scope_field(info, lake.field.column) == lake.field


def test_a_table_is_created_once(lake):
    name = f"{lake.target}_made"
    contract = Contract(
        api_version="lakehouse-backfill/v1", product=name, table=name, description="Days.",
        owner="ana", key=("id",), partitioning=(ContractPartition(column="day"),),
        columns=(ContractColumn(name="day", type="date"), ContractColumn(name="id", type="long")),
    )  # fmt: skip
    made = lake.tables.create(contract)

    assert (made.table, made.snapshot_id) == (name, None)
    assert lake.tables.create(contract) == made == lake.tables.describe(name)


# --- pins


def test_a_pin_is_set_and_taken_out_any_number_of_times(lake):
    for _ in range(2):
        lake.pins.pin(lake.target, head(lake), "base")
        assert lake.pins.pinned(lake.target, "base") == head(lake)
    for _ in range(2):
        lake.pins.unpin(lake.target, "base")
        assert lake.pins.pinned(lake.target, "base") is None


def test_a_pin_never_moves_and_needs_a_snapshot(lake):
    first = head(lake)
    lake.pins.pin(lake.target, first, "base")
    second = lake.write(DAYS[0], "live")

    with pytest.raises(Conflict, match=f"base already names snapshot {first}"):
        lake.pins.pin(lake.target, second, "base")
    with pytest.raises(NotFound):
        lake.pins.pin(lake.target, 17, "other")
    lake.pins.unpin(lake.target, "main")
    assert head(lake) == second


# --- shadows


def test_a_shadow_holds_the_files_of_its_base_and_the_target_stays(lake):
    before = lake.tables.describe(lake.target)
    request = staged(lake)

    assert content(lake, request.shadow, request.shadow_snapshot_id) == content(
        lake, lake.target, head(lake)
    )
    assert lake.tables.describe(lake.target) == before
    assert lake.shadows.chunks(request.shadow) == ()


@pytest.mark.req("X1")
def test_an_open_shadow_is_opened_again_by_its_run_and_base_only(lake):
    request, base = staged(lake, d1=("new",)), head(lake)
    name, mine = request.shadow, {"lakehouse-backfill.run-id": "r1"}

    assert lake.shadows.open(lake.target, base, name, mine) == lake.tables.describe(name)
    with pytest.raises(Conflict, match="run-id is r1"):
        lake.shadows.open(lake.target, base, name, {"lakehouse-backfill.run-id": "r2"})
    later = lake.write(DAYS[2], "live")
    with pytest.raises(Conflict, match=f"base-snapshot-id is {base}"):
        lake.shadows.open(lake.target, later, name, mine)


def test_the_chunks_of_a_shadow_are_its_commits_in_order(lake):
    request = staged(lake, d1=("new",), d2=())

    assert request.chunk_ids == ("c0", "c1")
    newest = lake.shadows.chunks(request.shadow)[-1]
    assert (newest.chunk_id, newest.snapshot_id) == ("c1", request.shadow_snapshot_id)


def test_an_older_attempt_is_fenced_from_a_shadow(lake):
    shadow = staged(lake).shadow
    for epoch in (1, 1, 3):
        lake.shadows.fence(shadow, epoch)
    with pytest.raises(RunMoved):
        lake.shadows.fence(shadow, 2)


def test_a_kept_version_is_the_shadow_at_a_snapshot(lake):
    request = staged(lake, d1=("new",))
    name, marks = f"{request.shadow}_v1", {"lakehouse-backfill.version": "1"}
    at = request.shadow_snapshot_id
    kept = lake.shadows.keep(request.shadow, at, name, marks)

    assert kept.snapshot_id == at
    assert content(lake, name, at) == content(lake, request.shadow, at)
    assert lake.shadows.keep(request.shadow, at, name, marks).uuid == kept.uuid
    with pytest.raises(Conflict):
        lake.shadows.keep(request.shadow, at, name, {"lakehouse-backfill.version": "2"})


def test_a_retired_shadow_is_gone_and_may_be_retired_again(lake):
    shadow = staged(lake).shadow
    lake.shadows.retire(shadow)
    lake.shadows.retire(shadow)
    assert lake.tables.describe(shadow) is None


# --- publisher


def test_a_swap_takes_the_days_of_the_scope_and_leaves_what_others_wrote(lake):
    request = staged(lake, d1=("new",), d2=())
    before = lake.write(DAYS[2], "live")
    live, new = (
        content(lake, lake.target, before),
        content(lake, request.shadow, request.shadow_snapshot_id),
    )

    swap = lake.publisher.adopt(request)

    assert content(lake, lake.target, head(lake)) == {DAYS[0]: new[DAYS[0]], DAYS[2]: live[DAYS[2]]}
    assert (swap.table, swap.snapshot_id, swap.before_snapshot_id) == (
        lake.target, head(lake), before,
    )  # fmt: skip
    assert lake.pins.pinned(lake.target, "lhb-before-r1") == before
    assert lake.pins.pinned(lake.target, "lhb-after-r1") == head(lake)


def test_the_same_swap_again_changes_nothing_and_its_token_is_found(lake):
    request = staged(lake, d1=("new",))
    assert lake.publisher.find(lake.target, request.token) is None
    first = lake.publisher.adopt(request)
    after = lake.write(DAYS[0], "live")

    again = lake.publisher.adopt(request)

    assert (again.snapshot_id, head(lake)) == (first.snapshot_id, after)
    assert lake.publisher.find(lake.target, request.token).snapshot_id == first.snapshot_id


def test_a_swap_is_refused_when_a_live_writer_changed_its_days(lake):
    request = staged(lake, d1=("new",))
    lake.publisher.preview(request)
    changed = lake.write(DAYS[0], "live")
    for act in (lake.publisher.preview, lake.publisher.adopt):
        with pytest.raises(TargetChanged):
            act(request)
    assert head(lake) == changed


def test_an_append_is_refused_into_days_that_hold_rows(lake):
    request = staged(lake, d1=("new",))
    with pytest.raises(TargetChanged):
        lake.publisher.adopt(request.model_copy(update={"operation": "append"}))


def test_a_shadow_that_changed_days_outside_its_scope_cannot_be_proven(lake):
    request = staged(lake, d1=("new",), d2=("new",))
    lake.publisher.prove(request)
    narrow = request.model_copy(update={"scope": scope(lake, DAYS[0])})
    with pytest.raises(WriteForbidden):
        lake.publisher.prove(narrow)


def test_a_return_restores_the_files_from_before_the_swap_once(lake):
    old = content(lake, lake.target, head(lake))
    swap = lake.publisher.adopt(staged(lake, d1=("new",)))
    request = return_of(lake, DAYS[0], swap)
    assert lake.publisher.rewrites(lake.target, lake.field, request.restores) == ()

    back = lake.publisher.revert(request)

    assert content(lake, lake.target, head(lake)) == old
    assert lake.publisher.revert(request).snapshot_id == back.snapshot_id == head(lake)
    assert lake.pins.pinned(lake.target, "lhb-before-back") == swap.snapshot_id


def test_a_return_is_refused_when_a_live_writer_changed_its_days(lake):
    swap = lake.publisher.adopt(staged(lake, d1=("new",)))
    request = return_of(lake, DAYS[0], swap)
    lake.publisher.preview(request)
    lake.write(DAYS[0], "live")
    for act in (lake.publisher.preview, lake.publisher.revert):
        with pytest.raises(TargetChanged):
            act(request)


def test_changes_are_those_of_the_days_asked_for(lake):
    since = head(lake)
    lake.write(DAYS[2], "live")

    assert lake.publisher.changes(lake.target, scope(lake, DAYS[0]), since) is None
    assert DAYS[2] in lake.publisher.changes(lake.target, scope(lake, *DAYS), since)
    assert lake.publisher.drifts(lake.target, scope(lake, DAYS[0]), since) == ()
    found = lake.publisher.drifts(lake.target, scope(lake, *DAYS), since)
    assert {drift.partitions for drift in found} == {(DAYS[2],)}
    assert found[-1].snapshot_id == head(lake)


def test_the_drifts_of_a_whole_table_name_commits_and_no_partitions(lake):
    since = head(lake)
    assert lake.publisher.drifts(lake.target, None, since) == ()
    lake.write(DAYS[2], "live")
    found = lake.publisher.drifts(lake.target, None, since)
    assert {drift.partitions for drift in found} == {()}
    assert found[-1].snapshot_id == head(lake)


def test_a_drift_that_only_removes_rows_is_a_deletion(lake):
    since = head(lake)
    lake.write(DAYS[2])
    (drift,) = lake.publisher.drifts(lake.target, scope(lake, *DAYS), since)
    assert (drift.only_deletes, drift.partitions) == (True, (DAYS[2],))


def test_drifts_until_a_snapshot_are_those_that_lead_to_it(lake):
    since = head(lake)
    lake.write(DAYS[2], "live")
    until = head(lake)
    lake.write(DAYS[1], "live")
    everything = scope(lake, *DAYS)
    found = lake.publisher.drifts(lake.target, everything, since, until)
    assert {drift.partitions for drift in found} == {(DAYS[2],)}
    assert lake.publisher.drifts(lake.target, everything, since, since) == ()
    assert len(lake.publisher.drifts(lake.target, None, since, until)) == len(found)


def test_ranges_of_a_key_begin_at_its_values_and_are_the_same_for_a_snapshot(lake):
    column, since = scope(lake, DAYS[0]).field.column, head(lake)
    halves = KeyRanges(column=column, count=2)
    before = lake.tables.key_bounds(lake.target, since, halves)
    lake.write(DAYS[2], "one more")
    assert lake.tables.key_bounds(lake.target, since, halves) == before
    assert before.rows > 1
    assert [str(bound) in DAYS for bound in before.bounds] == [True]
    whole = KeyRanges(column=column, size=before.rows)
    assert lake.tables.key_bounds(lake.target, since, whole).bounds == ()


def test_spans_of_a_time_column_are_the_days_of_each_file(lake):
    column, since = scope(lake, DAYS[0]).field.column, head(lake)
    before = lake.tables.column_spans(lake.target, since, column)
    lake.write(DAYS[2], "one more")
    after = lake.tables.column_spans(lake.target, head(lake), column)
    written = {span.path: span for span in after if span not in before}
    assert {str(span.first) for span in written.values()} == {DAYS[2]}
    assert all(span.first == span.last and span.is_exact for span in after)
    assert all(1 <= span.least_rows == span.most_rows for span in after)
    assert lake.tables.column_spans(lake.target, since, column) == before
