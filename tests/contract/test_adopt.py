"""Adopting a shadow's files: only the run's partitions change, whatever else is committed."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.types import StringType

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.metadata import NEVER_EXPIRES_MS, PUBLICATION_PROPERTY
from lakehouse_backfill.domain.partitions import WHOLE_TABLE_FIELD, Scope
from lakehouse_backfill.domain.tables.commits import CommitResult
from lakehouse_backfill.errors import (
    ChecksFailed,
    Conflict,
    NotFound,
    OutcomeUnknown,
    TargetChanged,
    TooBusy,
    Unsupported,
    WriteForbidden,
)
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, _arrow, field_of, row, write_text


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


@pytest.fixture
def days(kit: Kit) -> Kit:
    """A table by day with three days of one row each, in one manifest."""
    kit.create_days()
    return kit


SHAPES = [
    pytest.param([("d", "identity")], DAY, DAYS[1], id="identity-date"),
    pytest.param([("ts", "day")], field_of("ts", "day"), DAYS[1], id="day-of-instant"),
    pytest.param([("ts", "hour")], field_of("ts", "hour"), "2013-02-02T07", id="hour"),
    pytest.param([("ts", "month")], field_of("ts", "month"), "2013-03", id="month"),
    pytest.param([("ts", "year")], field_of("ts", "year"), "2014", id="year"),
    pytest.param([("d", "month")], field_of("d", "month"), "2013-03", id="month-of-date"),
    pytest.param([("region", "identity")], field_of("region"), "US", id="string"),
    pytest.param([("id", "identity")], field_of("id"), "1", id="number"),
    pytest.param([("ts", "identity")], field_of("ts"), "2013-02-02T07:00:00+00:00", id="instant"),
    pytest.param([("d", "identity")], DAY, "null", id="null-date"),
    pytest.param([("region", "identity")], field_of("region"), "null", id="null-string"),
    pytest.param([("d", "identity"), ("region", "identity")], DAY, DAYS[1], id="two-fields"),
    pytest.param([("id", "bucket[4]"), ("ts", "day")], field_of("ts", "day"), DAYS[1], id="bucket"),
    pytest.param([], WHOLE_TABLE_FIELD, "all", id="unpartitioned"),
    pytest.param([("d", "identity")], WHOLE_TABLE_FIELD, "all", id="all-partitions"),
    pytest.param([("id", "bucket[4]")], field_of("id", "bucket[4]"), "2", id="bucket-of-number"),
    pytest.param([("region", "bucket[2]")], field_of("region", "bucket[2]"), "null", id="bucket-0"),
    pytest.param([("region", "truncate[1]")], field_of("region", "truncate[1]"), "U", id="prefix"),
    pytest.param([("id", "truncate[2]")], field_of("id", "truncate[2]"), "2", id="truncated"),
]
OLD = [
    row(0, DAYS[0]),
    row(1, DAYS[1], region="US"),
    row(2, DAYS[1], region=None),
    row(3, "2013-03-05", region="US"),
    row(4, "2014-01-01"),
    row(5, None),
]


@pytest.mark.req("U1", "U16")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("partitioning", "field", "label"), SHAPES)
def test_only_rows_of_the_partition_are_replaced(kit, partitioning, field, label, version):
    table = kit.create(*partitioning, version=version)
    kit.append(*OLD[:3])
    kit.append(*OLD[3:])
    info = kit.tables.describe(TARGET)
    files = kit.tables.files(TARGET, info.snapshot_id, field)
    inside = {file.path for file in files if file.partition == label}
    assert inside
    hit = _ids_of(kit, inside)
    new = [{**old, "v": "new"} for old in OLD if old["id"] in hit]
    request = kit.stage(field, {label: new})
    if label not in ("null", "all"):
        kit.append({**OLD[0], "id": 9, "d": None, "ts": None, "region": "elsewhere"})
    before = kit.rows()

    swap = kit.publisher.adopt(request)

    assert kit.rows() == sorted(
        [(*old[:3], "new") if old[0] in hit else old for old in before], key=str
    )
    assert (swap.rows_added, swap.rows_removed) == (len(new), len(new))
    assert kit.total_rows() == len(before)
    assert table.format_version == version


def _ids_of(kit: Kit, paths: set[str]) -> set[int]:
    tasks = kit.live.load_table(TARGET).scan().plan_files()
    found: set[int] = set()
    for task in tasks:
        if task.file.file_path in paths:
            with kit.live.load_table(TARGET).io.new_input(task.file.file_path).open() as stream:
                found |= set(pq.ParquetFile(stream).read(["id"]).column("id").to_pylist())
    return found


@pytest.mark.req("U11")
def test_a_live_append_to_another_partition_survives(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.append(row(7, DAYS[2], "live"))

    swap = days.publisher.adopt(request)

    assert days.rows() == [
        (0, DAYS[0], "EU", "old"),
        (11, DAYS[1], "EU", "new"),
        (2, DAYS[2], "EU", "old"),
        (7, DAYS[2], "EU", "live"),
    ]
    assert swap.attempts == 1


@pytest.mark.req("U11")
def test_a_live_delete_of_another_partition_survives(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.delete(DAY, DAYS[2])

    days.publisher.adopt(request)

    assert days.rows() == [(0, DAYS[0], "EU", "old"), (11, DAYS[1], "EU", "new")]


@pytest.mark.req("U11")
def test_a_live_append_to_the_partition_is_a_conflict_that_names_it(days):
    request = days.stage(DAY, {DAYS[0]: [row(10, DAYS[0])], DAYS[1]: [row(11, DAYS[1])]})
    culprit = days.append(row(7, DAYS[1], "live"), **{"engine-name": "spark", "app-id": "local-1"})
    days.append(row(8, DAYS[2], "live"))
    before = days.rows()

    with pytest.raises(TargetChanged) as refused:
        days.publisher.adopt(request)

    assert f"snapshot {culprit} (append by spark local-1 at 20" in refused.value.problem
    assert refused.value.problem.endswith("changed 2013-02-02")
    assert refused.value.fix == "lakehouse-backfill plan --revise r1"
    assert days.rows() == before


@pytest.mark.req("U11")
def test_another_runs_publication_of_the_partition_is_a_conflict_that_names_the_run(days):
    late = days.stage(DAY, {DAYS[1]: [row(12, DAYS[1], "late")]}, run="late")
    winner = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "first")]}, run="first")
    days.publisher.adopt(winner)

    with pytest.raises(TargetChanged, match="overwrite by run first at"):
        days.publisher.adopt(late)


@pytest.mark.req("U11")
def test_runs_of_other_partitions_both_land(days):
    one = days.stage(DAY, {DAYS[0]: [row(10, DAYS[0], "one")]}, run="one")
    two = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "two")]}, run="two")

    days.publisher.adopt(one)
    days.publisher.adopt(two)

    assert [row[3] for row in days.rows()] == ["one", "two", "old"]


def test_a_compacted_partition_is_no_conflict(days):
    days.append(row(7, DAYS[1]), row(8, DAYS[0]))
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.compact(Scope(field=DAY, partitions=DAYS))

    swap = days.publisher.adopt(request)

    assert days.rows() == [
        (0, DAYS[0], "EU", "old"),
        (11, DAYS[1], "EU", "new"),
        (2, DAYS[2], "EU", "old"),
        (8, DAYS[0], "EU", "old"),
    ]
    assert (swap.files_removed, swap.rows_removed) == (1, 2)


def test_a_publication_that_was_rolled_back_is_no_conflict_after_a_compaction(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.compact(Scope(field=DAY, partitions=DAYS))
    swap = days.publisher.adopt(request)
    days.publisher.revert(days.revert_request(swap, request.scope))

    days.publisher.adopt(
        request.model_copy(update={"token": "again", "tags": {"before": "b2", "after": "a2"}})
    )

    assert [one[3] for one in days.rows()] == ["old", "new", "old"]


def test_an_append_that_was_compacted_since_is_a_conflict(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    culprit = days.append(row(7, DAYS[1], "live"))
    days.compact(Scope(field=DAY, partitions=DAYS))

    with pytest.raises(TargetChanged, match=str(culprit)):
        days.publisher.adopt(request)


def test_a_file_that_the_run_left_alone_may_be_compacted(days):
    days.append(row(7, DAYS[1]))
    request = days.stage(DAY, {DAYS[0]: [row(10, DAYS[0], "new")]})
    wider = request.model_copy(update={"scope": Scope(field=DAY, partitions=DAYS[:2])})
    days.compact(Scope(field=DAY, partitions=(DAYS[1],)))

    days.publisher.adopt(wider)

    assert [(row[0], row[3]) for row in days.rows()] == [
        (1, "old"), (10, "new"), (2, "old"), (7, "old"),
    ]  # fmt: skip


def test_an_empty_partition_removes_the_old_files(days):
    request = days.stage(DAY, {DAYS[1]: []})

    swap = days.publisher.adopt(request)

    assert days.rows() == [(0, DAYS[0], "EU", "old"), (2, DAYS[2], "EU", "old")]
    assert (swap.files_added, swap.files_removed, swap.rows_removed) == (0, 1, 1)


def test_a_partition_that_was_absent_is_added(days):
    request = days.stage(DAY, {"2013-02-09": [row(9, "2013-02-09", "new")]})

    swap = days.publisher.adopt(request)

    assert days.rows()[-1] == (9, "2013-02-09", "EU", "new")
    assert (swap.files_added, swap.files_removed) == (1, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_the_first_publication_goes_to_a_table_without_snapshot(kit, version):
    kit.create(("d", "identity"), version=version)
    request = kit.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})

    swap = kit.publisher.adopt(request)

    assert kit.rows() == [(0, DAYS[0], "EU", "new")]
    assert swap.before_snapshot_id is None
    refs = kit.tables.describe(TARGET).refs
    assert refs == {"main": swap.snapshot_id, "lhb-after-r1": swap.snapshot_id}


def test_a_first_publication_without_rows_makes_a_readable_empty_snapshot(kit):
    kit.create(("d", "identity"))
    request = kit.stage(DAY, {DAYS[0]: []})

    kit.publisher.adopt(request)

    assert kit.rows() == []
    assert kit.tables.files(TARGET, kit.head(), DAY) == []


def test_a_first_publication_conflicts_with_rows_that_came_meanwhile(kit):
    kit.create(("d", "identity"))
    request = kit.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    culprit = kit.append(row(1, DAYS[0], "live"))

    with pytest.raises(TargetChanged, match=str(culprit)):
        kit.publisher.adopt(request)


@pytest.mark.req("U1")
def test_publication_tags_property_and_summary_are_in_the_swaps_own_commit(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    before = days.live.load_table(TARGET)

    swap = days.publisher.adopt(request)

    after = days.live.load_table(TARGET).metadata
    assert len(after.metadata_log) == len(before.metadata.metadata_log) + 1
    head = after.snapshot_by_id(swap.snapshot_id)
    assert head.parent_snapshot_id == request.base_snapshot_id == swap.before_snapshot_id
    assert head.summary["lakehouse-backfill.run-id"] == "r1"
    assert (
        head.summary[PUBLICATION_PROPERTY]
        == after.properties[PUBLICATION_PROPERTY]
        == request.token
    )
    tags = {name: (ref.snapshot_id, ref.max_ref_age_ms) for name, ref in after.refs.items()}
    assert tags["lhb-before-r1"] == (request.base_snapshot_id, NEVER_EXPIRES_MS)
    assert tags["lhb-after-r1"] == (swap.snapshot_id, NEVER_EXPIRES_MS)
    assert "commit.retry.num-retries" not in after.properties


@pytest.mark.req("U10")
def test_adopting_twice_changes_nothing(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    first = days.publisher.adopt(request)
    days.append(row(7, DAYS[1], "live"))
    head = days.head()

    again = days.publisher.adopt(request)

    assert again.model_copy(update={"seconds": first.seconds}) == first
    assert days.head() == head
    found = days.publisher.find(TARGET, request.token)
    assert found == first.model_copy(update={"seconds": 0.0})
    assert days.publisher.find(TARGET, "other") is None
    assert days.publisher.find("silver.none", "other") is None


@pytest.mark.req("T4")
def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    _lose_answer(days, after=True)

    swap = days.publisher.adopt(request)

    assert swap.snapshot_id == days.head()
    assert len(days.live.load_table(TARGET).snapshots()) == 2


@pytest.mark.req("T4")
def test_an_outcome_that_nobody_can_tell_is_said_so_and_nothing_is_deleted(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    _lose_answer(days, after=False)

    with pytest.raises(OutcomeUnknown) as unknown:
        days.publisher.adopt(request)

    assert unknown.value.fix == "repeat the same command: it looks at the table first"
    assert [row[3] for row in days.rows(days.shadow_of())] == ["old", "new", "old"]
    fresh = IcebergPublisher(catalog_of(days.root))
    assert fresh.find(TARGET, request.token) is None
    fresh.adopt(request)
    assert [row[3] for row in days.rows()] == ["old", "new", "old"]


def _lose_answer(kit: Kit, *, after: bool) -> None:
    through = kit.catalog.commit_table

    def commit_table(*args, **kwargs):
        if after:
            through(*args, **kwargs)
        raise ConnectionResetError("the server closed the connection")

    vars(kit.catalog)["commit_table"] = commit_table


@pytest.mark.req("U11")
def test_live_commits_elsewhere_between_check_and_commit_only_cost_attempts(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.before_commit(
        lambda: days.append(row(20, DAYS[2], "live")),
        lambda: days.append(row(21, DAYS[0], "live")),
        lambda: days.compact(Scope(field=DAY, partitions=DAYS[:1])),
    )

    swap = days.publisher.adopt(request)

    assert swap.attempts == 4
    assert [(row[0], row[3]) for row in days.rows()] == [
        (0, "old"), (11, "new"), (2, "old"), (20, "live"), (21, "live"),
    ]  # fmt: skip
    snapshots = {s.snapshot_id: s for s in days.live.load_table(TARGET).snapshots()}
    numbers = [s.sequence_number for s in snapshots.values()]
    assert numbers == sorted(set(numbers))
    head = snapshots[swap.snapshot_id]
    manifests = head.manifests(days.live.load_table(TARGET).io)
    added = [m for m in manifests if m.added_snapshot_id == swap.snapshot_id]
    assert {m.sequence_number for m in added} == {head.sequence_number}
    assert days.total_rows() == 5


@pytest.mark.req("U11")
def test_a_live_commit_to_the_partition_between_check_and_commit_is_a_conflict(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.before_commit(lambda: days.append(row(20, DAYS[1], "live")))

    with pytest.raises(TargetChanged, match="append by an unnamed writer"):
        days.publisher.adopt(request)

    assert days.rows()[-1] == (20, DAYS[1], "EU", "live")


def test_weak_isolation_of_the_users_table_lets_no_append_slip_in(days):
    with days.live.load_table(TARGET).transaction() as change:
        change.set_properties({"write.delete.isolation-level": "snapshot"})
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.before_commit(lambda: days.append(row(20, DAYS[1], "live")))

    with pytest.raises(TargetChanged):
        days.publisher.adopt(request)


@pytest.mark.req("U11")
@pytest.mark.parametrize(
    ("change", "names"),
    [
        pytest.param(lambda u: u.add_column("extra", StringType()), "extra", id="add"),
        pytest.param(lambda u: u.delete_column("v"), "v", id="drop"),
        pytest.param(lambda u: u.rename_column("v", "w"), "v, w", id="rename"),
        pytest.param(
            lambda u: u.delete_column("v").add_column("v", StringType()), "v", id="replace"
        ),
    ],
)
@pytest.mark.parametrize("when", ["before", "between check and commit"])
def test_a_changed_column_is_named(days, change, names, when):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})

    def evolve() -> None:
        with days.live.load_table(TARGET).update_schema(allow_incompatible_changes=True) as update:
            change(update)

    if when == "before":
        evolve()
    else:
        days.before_commit(evolve)

    with pytest.raises(TargetChanged, match=f"its columns changed: {names}"):
        days.publisher.adopt(request)


def test_a_table_that_was_made_again_is_refused(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.live.drop_table(TARGET)
    days.create(("d", "identity"))

    with pytest.raises(TargetChanged, match="dropped and made again"):
        days.publisher.adopt(request)


@pytest.mark.req("U11")
def test_a_spec_that_changed_while_the_run_was_open_is_refused(kit):
    kit.create(("ts", "day"))
    kit.append(*(row(n, day) for n, day in enumerate(DAYS)))
    request = kit.stage(field_of("ts", "day"), {DAYS[1]: [row(11, DAYS[1], "new")]})
    with kit.live.load_table(TARGET).update_spec() as update:
        update.remove_field("p0_ts")
        update.add_field("ts", "hour")
    head = kit.head()

    with pytest.raises(TargetChanged, match=r"partitioning changed from day\(ts\) to hour\(ts\)"):
        kit.publisher.adopt(request)
    assert (kit.head(), [row[3] for row in kit.rows()]) == (head, ["old", "old", "old"])


def test_manifests_without_live_files_are_dropped(days):
    for number in range(6):
        run = f"r{number}"
        days.publisher.adopt(days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], run)]}, run=run))

    head = days.live.load_table(TARGET).current_snapshot()
    manifests = head.manifests(days.live.load_table(TARGET).io)
    assert len(manifests) == 3
    assert [row[3] for row in days.rows()] == ["old", "r5", "old"]


def test_a_chunk_that_is_missing_is_refused(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    request = request.model_copy(update={"chunk_ids": ("c0", "c1")})

    with pytest.raises(ChecksFailed, match="lacks 1 of 2 chunks: c1"):
        days.publisher.adopt(request)


def test_a_shadow_of_another_base_is_refused(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    later = days.append(row(7, DAYS[2]))

    with pytest.raises(NotFound, match=f"no snapshot {later}"):
        days.publisher.adopt(request.model_copy(update={"base_snapshot_id": later}))


def test_a_table_that_is_no_shadow_is_refused(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    forged = request.model_copy(
        update={"shadow": TARGET, "shadow_snapshot_id": days.head(), "chunk_ids": ()}
    )

    with pytest.raises(Unsupported, match="is not a shadow of ours"):
        days.publisher.adopt(forged)


@pytest.mark.req("X1")
def test_a_shadow_that_changed_other_partitions_is_refused(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")], DAYS[2]: []})
    narrow = request.model_copy(update={"scope": Scope(field=DAY, partitions=DAYS[1:2])})

    with pytest.raises(WriteForbidden, match=r"changed 1 files outside .*: 2013-02-03"):
        days.publisher.adopt(narrow)


def test_a_file_to_adopt_that_is_missing_is_refused(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    files = days.tables.files(days.shadow_of(), request.shadow_snapshot_id, DAY)
    path = next(file.path for file in files if file.partition == DAYS[1])
    days.live.load_table(TARGET).io.delete(path)

    with pytest.raises(NotFound, match=r"1 of 1 files .* is missing"):
        days.publisher.adopt(request)


def test_a_file_to_adopt_of_another_size_is_refused(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    files = days.tables.files(days.shadow_of(), request.shadow_snapshot_id, DAY)
    path = next(file.path for file in files if file.partition == DAYS[1])
    write_text(days.live.load_table(TARGET), path, "PAR1")

    with pytest.raises(NotFound, match="has 4 bytes, not"):
        days.publisher.adopt(request)


def test_a_tag_of_the_publication_that_is_taken_is_a_conflict(days):
    days.pins.pin(TARGET, days.head(), "lhb-after-r1")
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})

    with pytest.raises(Conflict, match="lhb-after-r1 already names snapshot"):
        days.publisher.adopt(request)


@pytest.mark.req("U11")
def test_a_commit_on_another_branch_in_between_is_a_race_that_is_run_again(days):
    """It takes the sequence number, and leaves the head of main as it was."""
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    days.live.load_table(TARGET).manage_snapshots().create_branch(days.head(), "side").commit()
    live = [row(20, DAYS[2], "side")]

    def on_the_branch() -> None:
        table = days.live.load_table(TARGET)
        table.append(_arrow(table, live), branch="side")

    days.before_commit(on_the_branch)

    swap = days.publisher.adopt(request)

    assert swap.attempts == 2
    assert [one[3] for one in days.rows()] == ["old", "new", "old"]


@pytest.mark.req("U11")
def test_a_writer_that_always_wins_ends_in_too_busy(tmp_path):
    kit = Kit(tmp_path, budget_s=0.5)
    kit.create_days()
    request = kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    kit.before_commit(*[lambda: kit.append(row(20, DAYS[2], "live"))] * 50)

    started = time.monotonic()
    with pytest.raises(TooBusy, match="kept winning") as refused:
        kit.publisher.adopt(request)

    assert time.monotonic() - started < 5
    assert refused.value.retry_may_help
    assert "pause the live writer" in refused.value.fix
    assert "quiet window" in refused.value.fix
    assert "new" not in [row[3] for row in kit.rows()]


def test_history_that_expired_in_between_is_refused_only_when_the_partition_changed(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    gone = days.append(row(20, DAYS[1], "live"))
    days.append(row(21, DAYS[2], "live"))
    days.live.load_table(TARGET).maintenance.expire_snapshots().by_id(gone).commit()

    with pytest.raises(TargetChanged, match="the history in between is gone"):
        days.publisher.adopt(request)


@pytest.mark.req("U12")
def test_the_tagged_states_survive_expiry(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    swap = days.publisher.adopt(request)
    days.append(row(7, DAYS[2]))
    days.append(row(8, DAYS[2]))
    far = datetime(2100, 1, 1)  # noqa: DTZ001 (PyIceberg compares naive ones)
    days.live.load_table(TARGET).maintenance.expire_snapshots().older_than(far).commit()

    kept = {s.snapshot_id for s in days.live.load_table(TARGET).snapshots()}
    assert {swap.snapshot_id, swap.before_snapshot_id} <= kept
    assert len(kept) == 3


def expire(kit: Kit, *, cut: bool) -> None:
    """Let all snapshots go that no ref names; not `cut`: as Java does, which leaves parent ids."""
    table = kit.live.load_table(TARGET)
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    gone = [one.snapshot_id for one in table.snapshots() if one.snapshot_id not in named]
    assert gone
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    if not cut:
        metadata = kit.live.load_table(TARGET).metadata
        table = kit.live.load_table(TARGET)
        kept = [
            one.model_copy(update={"parent_snapshot_id": one.parent_snapshot_id or gone[-1]})
            for one in metadata.snapshots
        ]
        changed = metadata.model_copy(update={"snapshots": kept}).model_dump_json()
        write_text(table, table.metadata_location, changed)


@pytest.mark.req("U1", "X9")
@pytest.mark.parametrize("cut", [True, False], ids=["parents removed", "parents dangling"])
def test_a_publication_is_found_after_the_history_behind_it_expired(days, cut):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    swap = days.publisher.adopt(request)
    for key in (7, 8, 9):
        days.append(row(key, DAYS[2], "live"))

    expire(days, cut=cut)

    assert days.publisher.find(TARGET, request.token).snapshot_id == swap.snapshot_id
    head = days.head()
    assert days.publisher.adopt(request).snapshot_id == swap.snapshot_id
    assert days.head() == head


@pytest.mark.req("U1")
def test_a_publication_that_main_was_set_back_from_has_not_landed_after_expiry_either(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    before = days.head()
    days.publisher.adopt(request)
    days.set_back(before)
    for key in (7, 8, 9):
        days.append(row(key, DAYS[2], "live"))

    expire(days, cut=True)

    assert days.publisher.find(TARGET, request.token) is None


@pytest.mark.req("U1")
def test_a_token_that_only_a_branch_holds_has_not_landed_whatever_expired(days):
    side = days.append(row(7, DAYS[2], "side"), **{"lakehouse-backfill.publication": "token-r1"})
    table = days.live.load_table(TARGET)
    base = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_branch(side, "side").commit()
    days.set_back(base)
    for key in (8, 9):
        days.append(row(key, DAYS[2], "live"))

    expire(days, cut=True)

    assert days.publisher.find(TARGET, "token-r1") is None


def test_swaps_are_values_that_add_up(days):
    request = days.stage(DAY, {DAYS[0]: [], DAYS[1]: [row(11, DAYS[1]), row(12, DAYS[1])]})

    swap = days.publisher.adopt(request)

    assert swap == CommitResult(
        table=TARGET,
        snapshot_id=swap.snapshot_id,
        before_snapshot_id=request.base_snapshot_id,
        files_added=1,
        files_removed=2,
        rows_added=2,
        rows_removed=2,
        attempts=1,
        seconds=swap.seconds,
    )
