"""Putting partitions back: only theirs, with the original sequence numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestEntry

from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import CommitResult, PartitionRestore
from lakehouse_backfill.errors import Conflict, NotFound, TargetChanged
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def days(request, tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    kit.create_days(version=request.param)
    return kit


def publish(
    kit: Kit, day: str = DAYS[1], run: str = "r1", v: str = "new"
) -> tuple[CommitResult, Scope]:
    request = kit.stage(DAY, {day: [row(11, day, v)]}, run=run)
    return kit.publisher.adopt(request), request.scope


def entries(kit: Kit, snapshot_id: int) -> dict[str, ManifestEntry]:
    table = kit.live.load_table(TARGET)
    found = {}
    for manifest in table.snapshot_by_id(snapshot_id).manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            found[entry.data_file.file_path] = entry
    return found


@pytest.mark.req("U12")
def test_later_live_commits_elsewhere_survive(days):
    swap, scope = publish(days)
    days.append(row(7, DAYS[2], "live"))

    back = days.publisher.revert(days.revert_request(swap, scope))

    assert [(row[0], row[3]) for row in days.rows()] == [
        (0, "old"), (1, "old"), (2, "old"), (7, "live"),
    ]  # fmt: skip
    assert (back.files_added, back.files_removed) == (1, 1)
    assert (back.rows_added, back.rows_removed) == (1, 1)
    assert days.total_rows() == 4


@pytest.mark.req("U12")
def test_restored_files_keep_their_sequence_numbers(days):
    swap, scope = publish(days)

    back = days.publisher.revert(days.revert_request(swap, scope))

    before, after = entries(days, swap.before_snapshot_id), entries(days, back.snapshot_id)
    assert before.keys() == after.keys()
    numbers = {path: (e.sequence_number, e.file_sequence_number) for path, e in before.items()}
    assert {
        path: (e.sequence_number, e.file_sequence_number) for path, e in after.items()
    } == numbers


@pytest.mark.req("U12")
def test_a_change_of_the_partition_since_is_a_conflict_that_names_it(days):
    swap, scope = publish(days)
    culprit = days.append(row(7, DAYS[1], "live"))

    with pytest.raises(TargetChanged, match=rf"cannot be rolled back.*snapshot {culprit}"):
        days.publisher.revert(days.revert_request(swap, scope))


@pytest.mark.req("U12")
def test_a_compaction_since_is_no_conflict(days):
    swap, scope = publish(days)
    days.compact(Scope(field=DAY, partitions=DAYS))

    days.publisher.revert(days.revert_request(swap, scope))

    assert [row[3] for row in days.rows()] == ["old", "old", "old"]


@pytest.mark.req("U10", "U12")
def test_publish_roll_back_publish_again_is_legal(days):
    swap, scope = publish(days)
    back = days.publisher.revert(days.revert_request(swap, scope))
    again, _ = publish(days, run="r2", v="newer")

    assert [row[3] for row in days.rows()] == ["old", "newer", "old"]
    tags = days.tables.describe(TARGET).refs
    assert tags["lhb-after-back-r1"] == back.snapshot_id == again.before_snapshot_id


@pytest.mark.req("U10")
def test_rolling_back_twice_changes_nothing(days):
    swap, scope = publish(days)
    request = days.revert_request(swap, scope)
    first = days.publisher.revert(request)

    again = days.publisher.revert(request)

    assert again.model_copy(update={"seconds": first.seconds}) == first
    assert days.head() == first.snapshot_id
    assert days.publisher.find(TARGET, request.token) == first.model_copy(update={"seconds": 0.0})


@pytest.mark.req("U12")
def test_each_group_goes_back_to_its_own_state(days):
    first, _ = publish(days, DAYS[0], run="r1")
    second, _ = publish(days, DAYS[1], run="r2")
    groups = (
        PartitionRestore(
            partitions=(DAYS[0],),
            restore_snapshot_id=first.before_snapshot_id,
            since_snapshot_id=first.snapshot_id,
        ),
        PartitionRestore(
            partitions=(DAYS[1],), restore_snapshot_id=None, since_snapshot_id=second.snapshot_id
        ),
    )
    scope = Scope(field=DAY, partitions=DAYS[:2])
    request = days.revert_request(second, scope).model_copy(update={"restores": groups})

    back = days.publisher.revert(request)

    assert [(row[0], row[3]) for row in days.rows()] == [(0, "old"), (2, "old")]
    assert (back.files_added, back.files_removed) == (1, 2)


def test_a_first_publication_goes_back_to_no_rows(tmp_path):
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    swap, scope = publish(kit)

    kit.publisher.revert(kit.revert_request(swap, scope))

    assert kit.rows() == []
    assert kit.total_rows() == 0


def test_unchanged_files_are_left_alone(days):
    swap, _ = publish(days)
    wider = Scope(field=DAY, partitions=DAYS)

    back = days.publisher.revert(days.revert_request(swap, wider))

    assert (back.files_added, back.files_removed) == (1, 1)
    assert [row[3] for row in days.rows()] == ["old", "old", "old"]


def test_a_file_to_restore_that_is_missing_is_refused(days):
    old = {f.path for f in days.tables.files(TARGET, days.head(), DAY) if f.partition == DAYS[1]}
    swap, scope = publish(days)
    days.live.load_table(TARGET).io.delete(old.pop())

    with pytest.raises(NotFound, match="is missing"):
        days.publisher.revert(days.revert_request(swap, scope))

    assert [row[3] for row in days.rows()] == ["old", "new", "old"]


def test_a_state_that_expired_is_refused(days):
    swap, scope = publish(days)
    request = days.revert_request(swap, scope)
    gone = request.restores[0].model_copy(update={"restore_snapshot_id": 17})

    with pytest.raises(NotFound, match="no snapshot 17: it never had, or it has expired"):
        days.publisher.revert(request.model_copy(update={"restores": (gone,)}))


@pytest.mark.req("U1")
def test_a_publication_that_main_was_set_back_from_has_not_landed(days):
    request = days.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})
    before = days.head()
    swap = days.publisher.adopt(request)
    days.append(row(7, DAYS[2], "live"))
    assert days.publisher.find(TARGET, request.token).snapshot_id == swap.snapshot_id

    days.set_back(before)

    assert days.publisher.find(TARGET, request.token) is None
    with pytest.raises(Conflict, match="already names snapshot"):
        days.publisher.adopt(request)


@pytest.mark.req("U12")
@pytest.mark.parametrize("is_written_since", [False, True], ids=["alone", "and written since"])
def test_a_head_that_was_set_back_outside_is_refused_by_that_name(days, is_written_since):
    swap, scope = publish(days)
    days.set_back(swap.before_snapshot_id)
    if is_written_since:
        days.append(row(7, DAYS[2], "live"))

    with pytest.raises(TargetChanged, match="main branch was set back to snapshot"):
        days.publisher.revert(days.revert_request(swap, scope))

    assert days.publisher.find(TARGET, "token-r1") is None


@pytest.mark.req("U12")
def test_a_rollback_to_before_two_publications_looks_past_the_live_writes_elsewhere(days):
    first, scope = publish(days, run="r1")
    days.append(row(7, DAYS[2], "live"))
    second, _ = publish(days, run="r2", v="newer")
    days.append(row(8, DAYS[0], "live"))
    request = days.revert_request(first, scope, run="back", since=second.snapshot_id)

    days.publisher.revert(request)

    assert [(found[0], found[3]) for found in days.rows()] == [
        (0, "old"), (1, "old"), (2, "old"), (7, "live"), (8, "live"),
    ]  # fmt: skip
