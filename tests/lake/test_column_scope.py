"""Runs that restate some columns (P9): what they change, what they carry over, what stops them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from lakehouse_backfill.errors import ChecksFailed, TargetChanged
from tests.support.spark.column_scope import (
    DIFF,
    KEYS,
    OTHERS,
    Give,
    asked,
    expected,
    seeded,
)
from tests.support.spark.lake import Lake
from tests.support.spark.modes import BY_PARTITION, FORMATS, ROW, Modes

pytestmark = pytest.mark.lake


@pytest.fixture
def give(lake: Lake) -> Give:
    """Give a maker of products of five days with three keys each; the source says v + 1000."""
    return partial(seeded, lake)


@pytest.mark.req("P9", "U1", "U12")
@pytest.mark.parametrize("version", FORMATS)
def test_one_column_is_restated_and_all_others_are_carried_over(give: Give, version: int) -> None:
    modes = give(version)
    before = modes.rows()
    run_id, found = modes.validated(**asked("v"), **BY_PARTITION)
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    assert modes.gate(found, OTHERS) == (
        True, "6 rows, counts and checksums of all columns but v equal in 2 partitions",
    )  # fmt: skip
    assert modes.gate(found, KEYS) == (True, "6 keys, counts and checksums equal")
    assert modes.gate(found, DIFF) == (True, "6 values of v differ, and no other")
    modes.holds("5, 9, A, 59, 1")  # a live commit elsewhere
    modes.publish(run_id)
    assert modes.rows() == sorted([*expected(), (5, 9, "A", 59, 1)], key=repr)
    made_by = {row[0]: row[-1] for row in modes.rows("d", "k", "produced_by_run_id")}
    assert [made_by[d] == run_id for d in range(1, 6)] == [False, True, True, False, False]
    modes.project.rollback(modes.product, reason="wrong", by="lead")
    assert modes.rows() == sorted([*before, (5, 9, "A", 59, 1)], key=repr)


@pytest.mark.req("P9")
def test_a_transform_that_changes_another_column_is_stopped(give: Give) -> None:
    modes = give()
    before = modes.rows()
    run_id = modes.plan(**asked("v", gives=("v", "ver", "tenant")))
    with pytest.raises(ChecksFailed, match=r"6 rows .* another column \(ver in 6\): d=2024"):
        modes.project.run(run_id, "ann")
    assert [chunk.status for chunk in modes.project.chunks(run_id).chunks] == ["pending"]
    assert modes.rows() == before
    modes.project.cancel(run_id, by="lead")
    # Columns that it gives as they are stop nothing.
    modes.published(**asked("v", gives=("tenant", "v")))
    assert modes.rows() == expected()


#: What the source holds beside days 1 to 5 -> what the error says.
UNEQUAL = {
    "a row of the base is not computed": (
        lambda modes: modes.holds("2, 8, A, 1, 1"),
        "1 rows of the base without a computed row: d=2024-01-02 k=8",
    ),
    "a computed row is not in the base": (
        lambda modes: modes.source("3, 7, A, 1, 1", "3, 8, A, 1, 1"),
        "2 computed rows without a row of the base: d=2024-01-03 k=7, d=2024-01-03 k=8",
    ),
    "a computed key repeats": (
        lambda modes: modes.source("2, 1, A, 1, 1"),
        "2 computed rows that share a key: d=2024-01-02 k=1",
    ),
    "a key of the base repeats": (
        lambda modes: modes.holds("2, 1, A, 1, 1"),
        "2 rows of the base that share a key: d=2024-01-02 k=1",
    ),
    "a key is null": (
        lambda modes: modes.source("2, null, A, 1, 1"),
        "1 rows without a whole key: d=2024-01-02 k=None",
    ),
}


@pytest.mark.req("P9")
@pytest.mark.parametrize(("spoil", "words"), UNEQUAL.values(), ids=UNEQUAL)
def test_rows_that_only_one_side_has_stop_the_run_with_their_keys(
    give: Give, spoil: Callable[[Modes], None], words: str
) -> None:
    modes = give()
    spoil(modes)
    run_id = modes.plan(**asked("v"))
    before = modes.rows()
    with pytest.raises(ChecksFailed) as stopped:
        modes.project.run(run_id, "ann")
    assert words in stopped.value.problem
    assert "nothing of this chunk was written" in stopped.value.state
    assert modes.rows() == before


@pytest.mark.req("P9")
def test_keys_of_restricted_columns_are_not_shown(give: Give) -> None:
    modes = give(privacy={"columns": {"k": {"classification": "restricted"}}})
    modes.source("3, 7, A, 1, 1")
    run_id = modes.plan(**asked("v"))
    with pytest.raises(ChecksFailed, match=r"without a row of the base: d=2024-01-03 k=restricted"):
        modes.project.run(run_id, "ann")


@pytest.mark.req("P9", "U1")
def test_a_column_is_added_and_filled_by_the_same_commit(give: Give) -> None:
    modes = give()
    steps = [{"add": "note", "type": "string"}]
    commits = len(modes.lake.snapshots("out"))
    run_id, found = modes.validated(**asked("note", target={"schema_change": steps}))
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    assert modes.gate(found, OTHERS)[0]
    modes.publish(run_id)
    assert len(modes.lake.snapshots("out")) == commits + 1
    assert modes.rows() == expected(days=())
    assert {(d, note) for d, _, note in modes.rows("d", "k", "note") if d in (2, 3)} == {
        (d, f"n{k}") for d in (2, 3) for k in (1, 2, 3)
    }
    assert {note for d, _, note in modes.rows("d", "k", "note") if d not in (2, 3)} == {None}


@pytest.mark.req("P9")
@pytest.mark.parametrize("mode", ["replace_partitions", "pointer_swap"])
def test_a_column_that_the_table_got_after_its_last_commit_is_filled(give: Give, mode: str) -> None:
    """ALTER TABLE makes no snapshot: the base's schema has neither the column nor the new type."""
    columns = [{"name": name, "type": kind} for name, kind in (*ROW, ("note", "string"))]
    modes = give(columns=columns, publication="pinned" if mode == "pointer_swap" else "follow")
    modes.lake.sql("ALTER TABLE {ns}.out ADD COLUMN note string")
    run_id, found = modes.validated(
        **asked("note", "v", target={"publish_mode": mode}), validation={"edge_partitions": 1}
    )
    passed, detail = modes.gate(found, "edges are closed")
    assert (passed, "open at 2024-01-01, 2024-01-04" in detail) == (False, True), detail
    assert modes.gate(found, OTHERS)[0]
    assert modes.gate(found, DIFF)[0]
    modes.project.cancel(run_id, by="lead")
    modes.published(**asked("note", target={"publish_mode": mode}))
    where = modes.accepted() if mode == "pointer_swap" else modes.product
    found_rows = modes.lake.spark.table(f"{modes.lake.name}.{where}").collect()
    assert {(row["d"].day, row["k"], row["v"], row["note"]) for row in found_rows} == {
        (d, k, 10 * d + k, f"n{k}" if d in (2, 3) else None) for d in range(1, 6) for k in (1, 2, 3)
    }


@pytest.mark.req("P9", "U11")
def test_a_live_commit_to_a_partition_of_the_run_is_a_conflict(give: Give) -> None:
    modes = give()
    run_id, _ = modes.validated(**asked("v"))
    modes.holds("2, 9, B, 29, 1")
    with pytest.raises(TargetChanged, match="changed 2024-01-02"):
        modes.publish(run_id)


@pytest.mark.req("P9")
def test_beyond_the_edges_only_the_named_columns_are_compared(give: Give) -> None:
    """The source says another `ver` of every row, and another `v` of every row."""
    edges = {"validation": {"edge_partitions": 1}}
    modes = give()
    run_id, found = modes.validated(**asked("tenant"), **edges)
    assert modes.gate(found, "edges are closed")[0]
    modes.project.cancel(run_id, by="lead")
    _, found = modes.validated(**asked("v", "tenant"), **edges)
    passed, detail = modes.gate(found, "edges are closed")
    assert (passed, "open at 2024-01-01, 2024-01-04" in detail) == (False, True), detail


@pytest.mark.req("P9", "E3")
def test_tombstoned_rows_are_neither_missed_nor_resurrected(give: Give, lake: Lake) -> None:
    tombstones = [{"table": lake.table("gone"), "columns": {"k": "k"}}]
    modes = give(tombstones=tombstones)
    lake.create("gone", (("d", "date"), ("k", "long")))
    lake.append("gone", (None, 2))
    lake.sql("DELETE FROM {ns}.out WHERE d = date'2024-01-03' AND k = 2")
    run_id, found = modes.validated(**asked("v"))
    assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
    assert modes.gate(found, OTHERS)[1].startswith("4 rows, counts and checksums")
    (chunk,) = modes.project.chunks(run_id).chunks
    assert (chunk.left_out_rows, chunk.output_rows) == (1, 4)
    modes.publish(run_id)
    assert modes.rows() == expected(without=((2, 2), (3, 2)))
