"""Publish modes on real tables, from the manifest to what readers see, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.errors import Blocked, ChecksFailed, Conflict, TargetChanged
from tests.support.spark.lake import Lake
from tests.support.spark.modes import (
    BY_PARTITION,
    COLUMNS,
    FORMATS,
    FORMATS_AND_SHADOWS,
    Make,
    Modes,
    expected,
    seeded,
)

pytestmark = [pytest.mark.lake, pytest.mark.long]


@pytest.mark.req("U1b", "U1", "U12")
@pytest.mark.parametrize("version", [1, 3])
def test_rows_of_one_tenant_are_repaired_and_all_others_are_carried_over(
    make: Make, version: int
) -> None:
    # Tenant A has the key 1 and no other.
    named = {"tenant": "A"} if version < 3 else {"k": {"from": 1, "to": 2}}
    modes = seeded(make, version)
    before = modes.rows(*COLUMNS, "produced_by_run_id")
    run_id, found = modes.validated(
        config={"tenant": "A"}, target={"row_predicate": named,
        "partitions": {"column": "d", "from": "2024-01-02", "to": "2024-01-04"}}, **BY_PARTITION,
    )  # fmt: skip
    assert modes.gate(found, "other rows are unchanged") == (
        True, "4 rows carried over, counts and checksums equal",
    )  # fmt: skip
    chunks = modes.project.chunks(run_id).chunks
    assert [(c.carried_rows, c.stray_rows, c.output_rows) for c in chunks] == [
        (2, 0, 3), (2, 0, 3),
    ]  # fmt: skip
    modes.holds("5, 9, A, 59, 1")  # a live commit elsewhere
    modes.publish(run_id)
    repaired = expected(modes, lambda row: row[2] == "A" and row[0] in (2, 3))
    assert modes.rows() == sorted([*repaired, (5, 9, "A", 59, 1)], key=repr)
    # Rows that were carried over keep the run that made them, the repaired ones name this run.
    made_by = {row[:3]: row[-1] for row in modes.rows(*COLUMNS, "produced_by_run_id")}
    assert {row[:3]: row[-1] for row in before if (row[2], row[0]) not in (("A", 2), ("A", 3))} == {
        key: run for key, run in made_by.items() if run != run_id and key[1] != 9
    }
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    back = [row[:-1] for row in before]
    assert modes.rows() == sorted([*back, (5, 9, "A", 59, 1)], key=repr)


@pytest.mark.req("U1b", "U11", "U12", "X12")
@pytest.mark.parametrize(("version", "isolation", "by", "carried", "files"), [
    (2, "branch", "tenant", 0, 12),
    (3, "clone", "bucket(2, tenant)", 1, 7),  # A and B are of one bucket, C is not
], ids=["2", "3"])  # fmt: skip
def test_tenants_that_are_partitions_are_repaired_beside_live_commits_to_others(
    make: Make, version: int, by: str, carried: int, files: int
) -> None:
    modes = seeded(make, version, by=("d", by), key=["d", "k", "tenant"])
    merge_on_read = "SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    modes.lake.sql(f"ALTER TABLE {{ns}}.out {merge_on_read}")
    modes.holds("2, 8, C, 28, 1", "2, 7, C, 27, 1", "2, 6, A, 26, 1", "2, 5, A, 25, 1")
    # By a delete file, in format 3 a deletion vector, of the run's own tuple.
    modes.lake.sql("DELETE FROM {ns}.out WHERE k = 5")
    before = modes.rows(*COLUMNS, "produced_by_run_id")
    run_id, found = modes.validated(target={"row_predicate": {"tenant": ["A", None]}}, config={
        "tenant": "A",
    }, **BY_PARTITION)  # fmt: skip
    assert modes.gate(found, "other rows are unchanged") == (
        True, f"{2 * carried} rows carried over, counts and checksums equal",
    )  # fmt: skip
    passed, detail = modes.gate(found, "nothing outside the partitions changed")
    assert (passed, detail) == (True, f"{files} files shared, 0 differ")
    chunks = modes.project.chunks(run_id).chunks
    assert [(c.carried_rows, c.stray_rows, c.output_rows) for c in chunks] == [
        (carried, 0, 1 + carried)
    ] * 2
    modes.holds("2, 9, C, 29, 1")
    # Another one, of another tuple of a day of the run.
    modes.lake.sql("DELETE FROM {ns}.out WHERE k = 8")
    assert len(modes.lake.catalog.load_table(modes.product).inspect.delete_files()) == 2
    modes.publish(run_id)
    # The job has no rows without a tenant, so there are none.
    rows = expected(modes, lambda row: row[2] == "A" and row[0] in (2, 3))
    repaired = [row for row in rows if row[2] is not None or row[0] not in (2, 3)]
    live = [(2, 7, "C", 27, 1), (2, 9, "C", 29, 1)]
    assert modes.rows() == sorted([*repaired, *live], key=repr)
    modes.require_intact(run_id)
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    back = [row[:-1] for row in before if row[1] != 8]
    assert modes.rows() == sorted([*back, (2, 9, "C", 29, 1)], key=repr)


@pytest.mark.req("U1b", "U11")
def test_a_live_commit_to_a_partition_of_a_row_repair_is_a_conflict(make: Make) -> None:
    modes = seeded(make)
    run_id, _ = modes.validated(config={"tenant": "A"}, target={"row_predicate": {"tenant": "A"}})
    modes.holds("2, 9, B, 29, 1")  # another tenant's row, but it would be lost
    with pytest.raises(TargetChanged, match="changed 2024-01-02"):
        modes.publish(run_id)
    assert (2, 9, "B", 29, 1) in modes.rows()


@pytest.mark.req("U1b")
def test_rows_that_the_predicate_does_not_name_stop_a_job_that_computes_them(make: Make) -> None:
    modes = seeded(make)
    run_id = modes.plan(target={"row_predicate": {"tenant": "A"}}, **BY_PARTITION)
    with pytest.raises(ChecksFailed, match=r"match the row predicate\? 2 rows of the"):
        modes.project.run(run_id, "ann")
    (chunk, _) = modes.project.chunks(run_id).chunks
    assert (chunk.status, chunk.stray_rows, chunk.carried_rows) == ("failed", 2, 2)


@pytest.mark.req("U1b")
def test_with_a_warm_up_other_rows_are_left_out_and_counted(make: Make) -> None:
    modes = seeded(make)
    modes.published(target={"row_predicate": {"tenant": ["A", None]}}, source={"warm_up_days": 1})
    assert modes.rows() == expected(modes, lambda row: row[2] != "B" and row[0] in (2, 3))


@pytest.mark.req("U3", "U12", "X12")
@pytest.mark.parametrize(("version", "isolation"), FORMATS_AND_SHADOWS)
def test_append_adds_to_empty_partitions_in_a_snapshot_that_only_appends(
    make: Make, version: int
) -> None:
    modes = make(version)
    modes.holds("1, 1, A, 11, 1", "5, 1, A, 51, 1")
    modes.source(*(f"{d}, 1, A, {d}, 1" for d in range(1, 6)))
    run_id = modes.published(target={"publish_mode": "append"})
    assert modes.head().summary.operation.value == "append"
    assert modes.rows() == [
        (1, 1, "A", 11, 1), (2, 1, "A", 2, 1), (3, 1, "A", 3, 1), (5, 1, "A", 51, 1),
    ]  # fmt: skip
    modes.roll_back(run_id)
    assert modes.rows() == [(1, 1, "A", 11, 1), (5, 1, "A", 51, 1)]


@pytest.mark.req("U3")
def test_append_is_refused_where_rows_are_when_planned_and_when_published(make: Make) -> None:
    modes = make()
    modes.source(*(f"{d}, 1, A, {d}, 1" for d in range(1, 6)))
    modes.holds("3, 1, A, 31, 1")
    with pytest.raises(Conflict, match=r"2024-01-03 of .* hold 1 rows"):
        modes.plan(target={"publish_mode": "append"})
    partitions = {"column": "d", "from": "2024-01-04", "to": "2024-01-06"}
    run_id, _ = modes.validated(target={"publish_mode": "append", "partitions": partitions})
    modes.holds("4, 7, A, 47, 1")
    with pytest.raises(TargetChanged, match="changed 2024-01-04"):
        modes.publish(run_id)
    assert modes.rows() == [(3, 1, "A", 31, 1), (4, 7, "A", 47, 1)]


@pytest.mark.req("U3")
def test_a_streaming_reader_goes_on_over_an_append_and_reads_its_rows(
    make: Make, tmp_path: Path
) -> None:
    modes = make()
    modes.holds("1, 1, A, 11, 1")
    modes.source("2, 1, A, 2, 1", "3, 1, A, 3, 1")

    def read() -> list[Any]:
        """Take up the stream where it stopped, and end when it has caught up."""
        lake = modes.lake
        stream = lake.spark.readStream.format("iceberg").load(f"{lake.name}.{modes.product}")
        seen: list[Any] = []

        def keep(batch: Any, number: int) -> None:
            seen.extend((row["d"].day, row["v"]) for row in batch.collect())

        query = (
            stream.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "stream"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(seen)

    assert read() == [(1, 11)]
    modes.published(target={"publish_mode": "append"})
    assert read() == [(2, 2), (3, 3)]


MERGE = {"publish_mode": "merge", "merge": {"version": "ver", "deleted": "gone"}}


def merged(make: Make, version: int = 2) -> Modes:
    modes = make(version)
    modes.holds(
        "1, 1, A, 11, 1", "2, 1, A, 21, 5", "2, 2, A, 22, 5", "2, 3, A, 23, 5", "3, 1, A, 31, 5",
        "3, 2, A, 32, 5", "5, 1, A, 51, 1",
    )  # fmt: skip
    modes.source(
        "1, 1, A, 0, 9",  # outside the run
        "2, 1, A, 210, 6",  # newer
        "2, 1, A, 209, 4",  # older than what it replaces
        "2, 2, A, 0, 4",  # older
        "2, 3, A, 0, 6, true",  # deleted
        "2, 4, A, 24, 1",  # new
        "3, 1, A, 31, 5",  # the same again
        "3, 9, A, 0, 7, true",  # deletes nothing
    )
    return modes


@pytest.mark.req("U4", "U12", "X12")
@pytest.mark.parametrize(("version", "isolation"), FORMATS_AND_SHADOWS)
def test_merge_takes_the_newest_version_of_each_key_and_leaves_all_others(
    make: Make, version: int
) -> None:
    modes = merged(make, version)
    before = modes.rows()
    run_id, found = modes.validated(config={"deletes": True}, target=MERGE, **BY_PARTITION)
    assert modes.gate(found, "changes add up") == (
        True,
        "5 rows, 1 keys inserted, 1 updated, 1 deleted: 5 rows; 4 change rows were older or known",
    )
    chunks = modes.project.chunks(run_id).chunks
    names = ("carried_rows", "inserted_rows", "updated_rows", "deleted_rows", "ignored_rows")
    assert [tuple(getattr(chunk, name) for name in names) for chunk in chunks] == [
        (1, 1, 1, 1, 2), (2, 0, 0, 0, 2),
    ]  # fmt: skip
    modes.publish(run_id)
    assert modes.rows() == [
        (1, 1, "A", 11, 1), (2, 1, "A", 210, 6), (2, 2, "A", 22, 5), (2, 4, "A", 24, 1),
        (3, 1, "A", 31, 5), (3, 2, "A", 32, 5), (5, 1, "A", 51, 1),
    ]  # fmt: skip
    by_run = [row[:3] for row in modes.rows(*COLUMNS, "produced_by_run_id") if row[-1] == run_id]
    assert by_run == [(2, 1, "A"), (2, 4, "A")]
    modes.roll_back(run_id)
    assert modes.rows() == before


@pytest.mark.req("U4")
def test_a_merge_of_the_same_changes_again_changes_nothing(make: Make) -> None:
    modes = merged(make)
    modes.published(config={"deletes": True}, target=MERGE)
    after = modes.rows(*COLUMNS, "produced_by_run_id")
    modes.published(config={"deletes": True}, target=MERGE)
    assert modes.rows(*COLUMNS, "produced_by_run_id") == after


@pytest.mark.req("U4", "U11")
def test_a_live_commit_to_a_merged_partition_is_a_conflict(make: Make) -> None:
    modes = merged(make)
    run_id, _ = modes.validated(config={"deletes": True}, target=MERGE)
    modes.holds("2, 9, A, 29, 1")
    with pytest.raises(TargetChanged, match="changed 2024-01-02"):
        modes.publish(run_id)


@pytest.mark.req("U4")
def test_changes_that_contradict_each_other_or_the_table_are_refused_by_name(make: Make) -> None:
    modes = make()
    modes.holds("2, 1, A, 21, 5", "2, 2, A, 22, 5")
    modes.source(
        "2, 1, A, 210, 5",  # other content than the table's row of this version
        "2, 2, A, 1, 7",
        "2, 2, A, 2, 7",  # two rows of one version
        "2, 3, A, 1, 7",
        "2, 3, A, 1, 7, true",  # deleted and not
        "2, 4, A, 1, null",
        "2, null, A, 1, 1",
    )
    run_id = modes.plan(config={"deletes": True}, target=MERGE)
    with pytest.raises(ChecksFailed) as refused:
        modes.project.run(run_id, "ann")
    assert refused.value.problem == (
        "the changes cannot be merged: 1 change rows without a key: d=2024-01-02 k=None; "
        "1 change rows without a version: d=2024-01-02 k=4; 3 keys with an equal version, but "
        "other content: d=2024-01-02 k=1, d=2024-01-02 k=2, d=2024-01-02 k=3"
    )
    assert "nothing of this chunk was written" in refused.value.state


BY_K = {"key": ["k"]}


@pytest.mark.req("U4")
def test_a_key_may_move_between_partitions_of_the_run(make: Make) -> None:
    modes = make(**BY_K)
    modes.holds("1, 9, A, 1, 1", "2, 1, A, 21, 5", "2, 2, A, 22, 5", "3, 3, A, 33, 5")
    modes.holds("2, 4, A, 24, 5")  # a partition that became empty would halt the run
    # The deletion lies elsewhere: it carries nothing but the key.
    modes.source("3, 1, A, 31, 6", "1, 2, A, 0, 6, true")
    _, found = modes.validated(config={"deletes": True}, target=MERGE, source={"warm_up_days": 1})
    assert modes.gate(found, "changes add up")[0]
    modes.publish(str(found["run_id"]))
    assert modes.rows() == [
        (1, 9, "A", 1, 1), (2, 4, "A", 24, 5), (3, 1, "A", 31, 6), (3, 3, "A", 33, 5),
    ]  # fmt: skip


@pytest.mark.req("U4")
def test_keys_that_move_into_or_out_of_the_run_are_refused_by_name(make: Make) -> None:
    modes = make(**BY_K)
    modes.holds("5, 1, A, 51, 5", "2, 2, A, 22, 5", "5, 3, A, 53, 9")
    modes.source("2, 1, A, 21, 6", "1, 2, A, 12, 6", "2, 3, A, 23, 6")  # 3 is older
    run_id = modes.plan(target=MERGE | {"merge": {"version": "ver"}}, source={"warm_up_days": 1})
    with pytest.raises(ChecksFailed, match=r"2 keys that move between .*: k=1, k=2\n"):
        modes.project.run(run_id, "ann")


@pytest.mark.long
@pytest.mark.req("U5", "U12")
@pytest.mark.parametrize("version", FORMATS)
def test_each_version_is_a_table_of_its_own_and_the_pointer_moves_between_them(
    make: Make, lake: Lake, version: int
) -> None:
    modes = seeded(make, version, publication="pinned", versions_table=lake.table("out_versions"))
    before = modes.rows()

    def labelled(*labels: tuple[int, str]) -> list[Any]:
        """Read rows of the table of all versions as Spark does, the filter pushed down."""
        where = modes.lake.spark.table(f"{lake.name}.{lake.table('out_versions')}")
        where.sparkSession.catalog.refreshTable(f"{lake.name}.{lake.table('out_versions')}")
        found = []
        for number, status in labels:
            kept = where.where(f"output_version = {number} AND output_status = '{status}'")
            found += [(row["d"].day, *row[1:]) for row in kept.select(*COLUMNS).collect()]
        return sorted(found, key=repr)

    first = modes.published(target={"publish_mode": "versioned"})
    assert modes.accepted() == f"{modes.product}_v1"
    restated = expected(modes, lambda row: row[0] in (2, 3))
    assert modes.rows(table="out_v1") == restated
    assert modes.rows() == expected(modes, lambda row: False)
    assert labelled((0, "accepted"), (1, "accepted")) == restated
    replaced = [row for row in before if row[0] in (2, 3)]
    assert labelled((0, "superseded")) == replaced
    modes.published(
        target={"publish_mode": "versioned",
                "partitions": {"column": "d", "from": "2024-01-04", "to": "2024-01-05"}}
    )  # fmt: skip
    assert modes.accepted() == f"{modes.product}_v2"
    assert modes.rows(table="out_v2") == expected(modes, lambda row: row[0] in (2, 3, 4))
    # The shadow may go: the version's table has data files in common with it, and no metadata.
    shadow = modes.project.evidence_document(first)["plan"]["shadow_table"]
    modes.project.wiring.context.shadows.retire(shadow)
    assert modes.rows(table="out_v1") == restated
    modes.project.rollback(modes.product, reason="wrong", by="lead", to=1)
    assert modes.accepted() == f"{modes.product}_v1"
    assert modes.rows(table="out_v1") == restated
    assert labelled((0, "accepted"), (1, "accepted")) == restated
    assert labelled((0, "superseded")) == replaced
    assert [row[0] for row in labelled((2, "rolled_back"))] == [4, 4, 4]
    (checked,) = [
        one
        for one in modes.project.verify(first).checks
        if one.name == "labels of the table of versions"
    ]
    assert checked.ok


@pytest.mark.req("U1", "U12")
@pytest.mark.parametrize("version", FORMATS)
def test_only_the_partitions_of_a_restatement_change(make: Make, version: int) -> None:
    modes = seeded(make, version)
    before = modes.rows()
    run_id, _ = modes.validated()
    modes.holds("5, 9, A, 59, 1")  # a live commit elsewhere
    modes.publish(run_id)
    restated = expected(modes, lambda row: row[0] in (2, 3))
    assert modes.rows() == sorted([*restated, (5, 9, "A", 59, 1)], key=repr)
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    assert modes.rows() == sorted([*before, (5, 9, "A", 59, 1)], key=repr)


@pytest.mark.req("U2", "U12")
@pytest.mark.parametrize("version", FORMATS)
def test_a_pinned_product_moves_by_its_pointer_alone(make: Make, version: int) -> None:
    modes = seeded(make, version, publication="pinned")
    head = modes.head().snapshot_id
    modes.published(target={"publish_mode": "pointer_swap"})
    read = modes.project.accepted(modes.product).to_pylist()
    found = [(row["d"].day, *(row[name] for name in COLUMNS[1:])) for row in read]
    assert sorted(found, key=repr) == expected(modes, lambda row: row[0] in (2, 3))
    assert modes.head().snapshot_id == head
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    assert modes.accepted() == modes.product


@pytest.mark.req("M1")
@pytest.mark.parametrize("version", FORMATS)
def test_a_result_to_look_at_is_never_published(make: Make, version: int) -> None:
    modes = seeded(make, version)
    head = modes.head().snapshot_id
    run_id, found = modes.validated(target={"publish_mode": "shadow_only"})
    assert found["state"] == "validated"
    with pytest.raises(Blocked, match="can never be published"):
        modes.publish(run_id)
    assert modes.head().snapshot_id == head


#: Goes past the check of its text and the guard of the Python API, by the JVM's own session.
@pytest.mark.req("Q8", "E6")
def test_a_commit_to_the_live_target_by_the_runs_own_spark_closes_a_gate_and_others_are_named(
    make: Make,
) -> None:
    modes = make()
    modes.source("2, 1, A, 10, 1", "3, 2, A, 20, 1")
    name = "the run wrote only its shadow"
    target = modes.lake.table("out")
    run_id = modes.plan()
    modes.project.stage(run_id, "ann")
    # As by a job that got past the guards on Java and on SQL.
    modes.lake.sql("INSERT INTO {ns}.out (d, k, v) VALUES (date'2024-01-05', 99, 1)")
    found = modes.project.validate(run_id, "ann").to_dict()
    passed, detail = modes.gate(found, name)
    assert (found["state"], passed) == ("rejected", False)
    application = modes.lake.spark.sparkContext.applicationId
    assert detail.startswith(f"{target}: 1 commit (append) by spark {application}, last snapshot")

    run_id = modes.plan()
    modes.project.stage(run_id, "ann")
    modes.source("4, 4, A, 40, 1")  # by PyIceberg, which names no application
    found = modes.project.validate(run_id, "ann").to_dict()
    assert (found["state"], modes.gate(found, name)[0]) == ("validated", True)
    (other,) = found["moved_tables"]["moved"]
    assert (other["table"], other["writer"]) == (modes.lake.table("src"), "an unnamed writer")
