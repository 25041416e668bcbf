"""Tables with live delete files: what a run sees of them, adopts over them, and puts back.

What readers see is told by PyIceberg's own scan, which applies position deletes.
"""

from __future__ import annotations

import pytest

from lakehouse_backfill.domain.partitions import WHOLE_TABLE_FIELD, Scope
from lakehouse_backfill.domain.tables.commits import AdoptRequest
from lakehouse_backfill.errors import TargetChanged, Unsupported
from tests.support.lakes.deletes import hide, hide_equal, rewritten
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

SECOND = Scope(field=DAY, partitions=(DAYS[1],))


@pytest.fixture
def kit(kit: Kit) -> Kit:
    """Three days with two rows each; ids 0 to 5."""
    kit.create_days(each=2)
    return kit


def ids(kit: Kit, snapshot_id: int | None = None) -> list[int]:
    return sorted(found[0] for found in kit.rows(snapshot_id=snapshot_id))


def totals(kit: Kit) -> dict[str, int]:
    head = kit.live.load_table(TARGET).current_snapshot()
    names = ("total-delete-files", "total-position-deletes", "total-data-files", "total-records")
    return {name: int(head.summary[name]) for name in names}


def delete_files(kit: Kit) -> set[str]:
    found = kit.live.load_table(TARGET).inspect.delete_files()
    return set(found.column("file_path").to_pylist())


def restage(kit: Kit, day: str = DAYS[1], run: str = "r1", key: int = 11) -> AdoptRequest:
    return kit.stage(DAY, {day: [row(key, day, "new")]}, run=run)


@pytest.mark.req("U11")
@pytest.mark.parametrize("by", ["file", "partition"])
def test_delete_files_of_the_partition_go_with_its_files_and_others_stay(kit, by):
    hide(kit, 2, 4, by=by)
    elsewhere = {
        path for f in kit.tables.files(TARGET, kit.head(), DAY) if f.partition == DAYS[2]
        for path in f.deletes
    }  # fmt: skip

    kit.publisher.adopt(restage(kit))

    assert ids(kit) == [0, 1, 5, 11]
    assert delete_files(kit) == elsewhere
    assert totals(kit) == {
        "total-delete-files": 1, "total-position-deletes": 1, "total-data-files": 3,
        "total-records": 5,
    }  # fmt: skip


def test_a_file_names_the_delete_files_that_apply_to_it(kit):
    hide(kit, 2)
    kit.append(row(9, DAYS[1]))

    found = {f.partition: [] for f in kit.tables.files(TARGET, kit.head(), DAY)}
    for file in kit.tables.files(TARGET, kit.head(), DAY):
        found[file.partition].append((file.rows, len(file.deletes)))

    # The newer file of the day has a later sequence number than the delete file.
    assert {day: sorted(files) for day, files in found.items()} == {
        DAYS[0]: [(2, 0)], DAYS[1]: [(1, 0), (2, 1)], DAYS[2]: [(2, 0)],
    }  # fmt: skip


@pytest.mark.req("U11")
def test_rows_deleted_merge_on_read_since_the_base_are_a_conflict(kit):
    request = restage(kit)
    culprit = hide(kit, 2)

    with pytest.raises(
        TargetChanged, match=rf"snapshot {culprit} \(delete by spark app-7 at .*changed {DAYS[1]}"
    ):
        kit.publisher.adopt(request)

    assert ids(kit) == [0, 1, 3, 4, 5]


@pytest.mark.req("U11")
def test_rows_deleted_merge_on_read_elsewhere_are_none(kit):
    request = restage(kit)
    hide(kit, 4)

    kit.publisher.adopt(request)

    assert ids(kit) == [0, 1, 5, 11]


@pytest.mark.req("U11", "U16")
def test_an_equality_delete_of_void_fields_touches_every_partition(tmp_path):
    kit = Kit(tmp_path)
    kit.create_days(each=2, version=1)
    # Format 1 keeps the field, with the transform `void`.
    everywhere = kit.respec(lambda update: update.remove_field("p0_d"))
    with kit.live.load_table(TARGET).transaction() as change:
        change.upgrade_table_version(2)
    base = kit.head()
    hide_equal(kit, 2, partition=(None,), spec_id=everywhere)

    files = kit.tables.files(TARGET, kit.head(), WHOLE_TABLE_FIELD)
    (drift,) = kit.publisher.drifts(TARGET, SECOND, base)

    assert [len(file.deletes) for file in files] == [1, 1, 1]
    assert drift.partitions == SECOND.partitions


@pytest.mark.req("U11")
@pytest.mark.parametrize("in_loop", [False, True], ids=["before", "between look and commit"])
def test_an_equality_delete_without_partition_touches_every_partition(kit, in_loop):
    everywhere = kit.respec(lambda update: update.remove_field("p0_d"))
    kit.respec(lambda update: update.add_identity("d"))
    wide = kit.stage(DAY, {day: [row(11, day, "new")] for day in DAYS[1:]})

    def erase() -> None:
        hide_equal(kit, 2, partition=(), spec_id=everywhere)

    if in_loop:
        kit.before_commit(erase)
    else:
        erase()

    with pytest.raises(TargetChanged, match="changed every partition"):
        kit.publisher.adopt(wide)


@pytest.mark.req("U11")
def test_what_came_since_is_told_commit_by_commit(kit):
    base = kit.head()
    hidden = hide(kit, 2)
    kit.append(row(9, DAYS[2]))
    appended = kit.append(row(10, DAYS[1]))
    kit.compact(SECOND)
    kit.delete(DAY, DAYS[1])

    found = kit.publisher.drifts(TARGET, SECOND, base)

    assert [(d.snapshot_id, d.operation, d.partitions, d.only_deletes) for d in found] == [
        (hidden, "delete", (DAYS[1],), True),
        (appended, "append", (DAYS[1],), False),
        (kit.head(), "delete", (DAYS[1],), True),
    ]
    assert found[0].writer == "spark app-7"
    assert kit.publisher.drifts(TARGET, SECOND, kit.head()) == ()


@pytest.mark.req("U11")
def test_a_compaction_that_applies_the_deletes_is_no_change(kit):
    hide(kit, 2)
    request = restage(kit)
    kit.compact(SECOND)

    assert kit.publisher.drifts(TARGET, SECOND, request.base_snapshot_id) == ()
    kit.publisher.adopt(request)
    assert ids(kit) == [0, 1, 4, 5, 11]


def test_deletes_of_the_run_itself_are_refused(kit):
    request = restage(kit)
    hide(kit, 11, name=request.shadow)

    with pytest.raises(Unsupported, match="1 delete files \\(merge-on-read\\) of this run"):
        kit.publisher.adopt(
            request.model_copy(update={"shadow_snapshot_id": kit.head(request.shadow)})
        )


@pytest.mark.req("U12", "E3")
def test_partitions_with_deleted_rows_are_rewritten_and_rows_stay_deleted(kit):
    hide(kit, 2, by="partition")
    wide = Scope(field=DAY, partitions=DAYS[:2])
    request = kit.stage(DAY, {day: [row(11, day, "new")] for day in wide.partitions})
    swap = kit.publisher.adopt(request)
    back = kit.revert_request(swap, wide)

    found = kit.publisher.rewrites(TARGET, DAY, back.restores)
    assert [item.partitions for item in found] == [(DAYS[1],)]
    assert f"delete files hid rows of it in snapshot {swap.before_snapshot_id}" in found[0].because
    with pytest.raises(Unsupported, match=rf"partition {DAYS[1]} has to be rewritten: delete file"):
        kit.publisher.revert(back)

    kit.publisher.revert(rewritten(kit, back, {DAYS[1]: [row(3, DAYS[1])]}))

    assert ids(kit) == [0, 1, 3, 4, 5]
    assert delete_files(kit) == set()
    assert totals(kit)["total-records"] == 5


@pytest.mark.req("U12")
def test_a_rewrite_notices_what_a_live_writer_did_since_the_publication(kit):
    hide(kit, 2)
    swap = kit.publisher.adopt(restage(kit))
    back = kit.revert_request(swap, SECOND)
    culprit = kit.append(row(7, DAYS[1], "live"))

    with pytest.raises(TargetChanged, match=rf"cannot be rolled back.*snapshot {culprit}"):
        kit.publisher.revert(rewritten(kit, back, {DAYS[1]: [row(3, DAYS[1])]}))


@pytest.mark.req("U12")
def test_deletes_that_may_hide_rows_of_what_comes_back_ask_for_a_rewrite(kit):
    first = kit.publisher.adopt(restage(kit))
    everywhere = kit.respec(lambda update: update.remove_field("p0_d"))
    kit.respec(lambda update: update.add_identity("d"))
    since = hide_equal(kit, 99, partition=(), spec_id=everywhere)
    kit.pins.pin(TARGET, since, "lhb-since")
    back = kit.revert_request(first, SECOND, since=since)

    (found,) = kit.publisher.rewrites(TARGET, DAY, back.restores)
    assert found.partitions == (DAYS[1],)
    assert found.because == "delete files are live that may hide rows of its files"
    with pytest.raises(Unsupported, match="has to be rewritten"):
        kit.publisher.revert(back)


@pytest.mark.req("U12")
def test_without_the_tags_of_the_publication_everything_is_rewritten(kit):
    swap = kit.publisher.adopt(restage(kit))
    back = kit.revert_request(swap, SECOND)
    assert kit.publisher.rewrites(TARGET, DAY, back.restores) == ()

    for name in kit.tables.describe(TARGET).refs:
        if name.startswith("lhb-"):
            kit.pins.unpin(TARGET, name)

    (found,) = kit.publisher.rewrites(TARGET, DAY, back.restores)
    assert f"no tag holds snapshot {swap.before_snapshot_id}" in found.because


@pytest.mark.req("U11")
def test_equality_deletes_of_the_partition_go_with_its_files(kit):
    hide_equal(kit, 2, partition=(15738,), spec_id=0)  # 2013-02-02

    kit.publisher.adopt(restage(kit))

    assert ids(kit) == [0, 1, 4, 5, 11]
    assert delete_files(kit) == set()


LIES = {
    "a row less": (lambda rows: rows[1:], "compactions left 1 of 2 rows in 2013-02-02"),
    "a row twice": (lambda rows: [*rows, rows[0]], "compactions left 3 of 2 rows"),
    "another number": (
        lambda rows: [{**each, "id": each["id"] + 7} for each in rows],
        "a compaction changed the values of id in 2013-02-02",
    ),
    "a null": (
        lambda rows: [{**rows[0], "region": None}, *rows[1:]],
        "a compaction changed the values of region",
    ),
}


@pytest.mark.req("U11", "U12")
@pytest.mark.parametrize(("change", "problem"), LIES.values(), ids=LIES)
def test_a_replace_that_did_not_keep_the_rows_is_a_conflict(kit, change, problem):
    """Not all lies can be told from metadata: a changed text of the same null count cannot."""
    request = restage(kit)
    swap = kit.publisher.adopt(kit.stage(DAY, {DAYS[0]: [row(20, DAYS[0])]}, run="other"))
    kit.compact(SECOND, change=change)

    with pytest.raises(TargetChanged, match=problem):
        kit.publisher.adopt(request)
    wide = kit.revert_request(swap, SECOND)
    with pytest.raises(TargetChanged, match=problem):
        kit.publisher.revert(wide)
    assert problem in kit.publisher.changes(TARGET, SECOND, swap.snapshot_id)


@pytest.mark.req("U11")
def test_rows_that_move_between_partitions_in_a_replace_are_a_conflict(kit):
    wide = Scope(field=DAY, partitions=DAYS[:2])
    request = kit.stage(DAY, {day: [row(11, day, "new")] for day in DAYS[:2]})

    def move(rows):
        return [{**each, "d": rows[0]["d"]} for each in rows]

    kit.compact(wide, change=move)

    with pytest.raises(TargetChanged, match="compactions left 4 of 2 rows in 2013-02-01"):
        kit.publisher.adopt(request)
