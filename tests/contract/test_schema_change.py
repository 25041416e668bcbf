"""Columns that change in the commit of the publication: same ids in shadow and target, or nothing.

Add, widen and rename are declared; the target gets exactly the shadow's columns, or is refused.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType, LongType, StringType

from lakehouse_backfill.adapters.iceberg.metadata import column_ids
from lakehouse_backfill.adapters.iceberg.schema import SchemaEvolution
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.domain.comparison.diff import AddedColumn
from lakehouse_backfill.domain.tables.commits import AdoptRequest
from lakehouse_backfill.domain.tables.schema_change import SchemaStep
from lakehouse_backfill.errors import Conflict, TargetChanged, Unsupported
from lakehouse_backfill.ports.comparison import DiffRequest
from tests.support.fakes.kills import Killed, killed_at
from tests.support.lakes.catalogs import catalog_of
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

ADD = SchemaStep(add="note", type="string", doc="what was put right")
WIDEN = SchemaStep(widen="n", to="long")
RENAME = SchemaStep(rename="v", to="value")
ALL = (ADD, WIDEN, RENAME)


@pytest.fixture
def version() -> int:
    return 2


@pytest.fixture
def kit(kit: Kit, version: int) -> Kit:
    """Three days of one row each, with an int column `n`."""
    kit.create(("d", "identity"), version=version)
    kit.evolve(lambda update: update.add_column("n", IntegerType()))
    for number, day in enumerate(DAYS):
        _append(kit, TARGET, {**row(number, day), "n": number})
    return kit


def staged(kit: Kit, change=ALL, run="r1", day=DAYS[1], **values) -> AdoptRequest:
    """Restate a day, the second one, in a shadow with the changed columns."""
    base = kit.live.load_table(TARGET).metadata.current_schema_id
    request = kit.stage(DAY, {}, run)
    kit.shadows.evolve(request.shadow, base, change)
    number = 2**40 if WIDEN in change else 5
    new = {**row(1, day), "n": number, **(values or {"note": "right", "value": "new"})}
    if "value" in new:
        new.pop("v")
    names = {field.name for field in kit.live.load_table(request.shadow).schema().fields}
    rows = [{name: value for name, value in new.items() if name in names}]
    kit.write_chunk(request.shadow, DAY, day, rows, "c0")
    return request.model_copy(
        update={
            "shadow_snapshot_id": kit.head(request.shadow),
            "chunk_ids": ("c0",),
            "scope": request.scope.model_copy(update={"partitions": (day,)}),
            "schema_change": change,
            "base_schema_id": base,
        }
    )


def read(kit: Kit, *columns: str) -> list[tuple]:
    found = kit.live.load_table(TARGET).scan().to_arrow().to_pylist()
    return sorted((tuple(each[name] for name in columns) for each in found), key=repr)


@pytest.mark.req("U1", "U12")
@pytest.mark.parametrize("version", [1, 2])
def test_columns_and_rows_change_in_one_commit_and_rollback_leaves_the_columns(kit):
    request = staged(kit)
    before = kit.live.load_table(TARGET).metadata
    swap = kit.publisher.adopt(request)
    after, shadow = (kit.live.load_table(name) for name in (TARGET, request.shadow))
    assert column_ids(after.schema()) == column_ids(shadow.schema())
    assert after.schema().find_field("note").doc == "what was put right"
    assert len(after.metadata.snapshots) == len(before.snapshots) + 1
    assert after.current_snapshot().schema_id == after.metadata.current_schema_id
    # Files of other partitions are read by id: null where a column is new, the value where it grew.
    assert read(kit, "id", "n", "value", "note") == [
        (0, 0, "old", None), (1, 2**40, "new", "right"), (2, 2, "old", None),
    ]  # fmt: skip
    # The snapshot of before is still read under its own columns.
    old = after.scan(snapshot_id=swap.before_snapshot_id).to_arrow()
    assert (sorted(old["v"].to_pylist()), old.schema.field("n").type) == (["old"] * 3, pa.int32())
    kit.publisher.revert(kit.revert_request(swap, request.scope))
    assert read(kit, "id", "n", "value", "note") == [
        (0, 0, "old", None), (1, 1, "old", None), (2, 2, "old", None),
    ]  # fmt: skip


@pytest.mark.req("U3", "U1")
def test_an_append_brings_its_columns(kit):
    request = staged(kit, day="2013-02-09").model_copy(update={"operation": "append"})
    kit.publisher.adopt(request)
    head = kit.live.load_table(TARGET).current_snapshot()
    assert (str(head.summary.operation.value), head.schema_id) == ("append", 2)
    assert read(kit, "id", "n", "note") == [
        (0, 0, None), (1, 1, None), (1, 2**40, "right"), (2, 2, None),
    ]  # fmt: skip


@pytest.mark.req("U1", "U11")
def test_a_retry_finds_the_commit_and_changes_nothing(kit):
    request = staged(kit)
    swap = kit.publisher.adopt(request)
    found = kit.publisher.adopt(request)
    assert found.model_copy(update={"seconds": 0.0}) == swap.model_copy(update={"seconds": 0.0})
    assert len(kit.live.load_table(TARGET).schemas()) == 3


@pytest.mark.req("U11", "Q2")
@pytest.mark.parametrize("change", [ALL, (ADD,), (RENAME,)], ids=["all", "add", "rename"])
def test_a_column_that_others_added_meanwhile_is_named(kit, change):
    request = staged(kit, change, **({"value": "x"} if RENAME in change else {"note": "x"}))
    kit.evolve(lambda update: update.add_column("theirs", StringType()))
    with pytest.raises(TargetChanged, match="columns changed: theirs"):
        kit.publisher.adopt(request)


@pytest.mark.req("U11")
def test_ids_that_a_dropped_column_had_are_never_given_to_ours(kit):
    """Pitfall 8: files are read by id, so values of the dropped column would show as ours."""
    request = staged(kit)
    kit.evolve(lambda update: update.add_column("theirs", StringType()))
    _append(kit, TARGET, {**row(9, "2013-03-01"), "n": 9, "theirs": "not a note"})
    kit.evolve(lambda update: update.delete_column("theirs"))
    with pytest.raises(TargetChanged, match=r"given to others meanwhile: 7 \(note\)"):
        kit.publisher.adopt(request)
    assert "note" not in kit.live.load_table(TARGET).schema().column_names


@pytest.mark.req("U11")
def test_rows_that_come_to_other_partitions_meanwhile_survive(kit):
    request = staged(kit)
    kit.before_commit(lambda: _append(kit, TARGET, {**row(9, "2013-03-01"), "n": 9}))
    assert kit.publisher.adopt(request).attempts == 2
    assert read(kit, "id", "note") == [(0, None), (1, "right"), (2, None), (9, None)]


@pytest.mark.req("U1", "Q2")
def test_columns_of_the_shadow_that_nobody_declared_are_refused(kit):
    request = staged(kit)
    kit.evolve(lambda update: update.add_column("more", StringType()), request.shadow)
    with pytest.raises(Unsupported, match="not as the run declares: more"):
        kit.publisher.adopt(request)
    with pytest.raises(Unsupported, match="not as the run declares: more"):
        kit.publisher.prove(request)


@pytest.mark.req("U10", "T3")
@pytest.mark.parametrize("point", ["Shadows.evolve:committing", "Shadows.evolve:committed"])
def test_a_change_of_the_shadow_that_is_cut_off_is_done_once(kit, point):
    base = kit.live.load_table(TARGET).metadata.current_schema_id
    shadow = kit.stage(DAY, {}).shadow
    with killed_at(point), pytest.raises(Killed):
        kit.shadows.evolve(shadow, base, ALL)
    kit.shadows.evolve(shadow, base, ALL)
    once = kit.live.load_table(shadow).metadata
    kit.shadows.evolve(shadow, base, ALL)
    assert kit.live.load_table(shadow).metadata_location
    assert kit.live.load_table(shadow).metadata == once
    assert [field.name for field in once.schema().fields] == [
        "id", "d", "ts", "region", "value", "n", "note",
    ]  # fmt: skip


@pytest.mark.req("U11", "Q2")
def test_a_table_whose_columns_changed_since_the_plan_is_not_staged_on(kit):
    base = kit.live.load_table(TARGET).metadata.current_schema_id
    kit.evolve(lambda update: update.add_column("note", StringType()))
    shadow = kit.stage(DAY, {}).shadow
    with pytest.raises(Conflict, match="other columns than its target had"):
        kit.shadows.evolve(shadow, base, ALL)


@pytest.mark.req("U1")
def test_columns_that_come_back_to_a_schema_of_before_use_it_again(kit):
    change = (SchemaStep(rename="value", to="v"),)
    kit.evolve(lambda update: update.rename_column("v", "value"))
    kit.publisher.adopt(staged(kit, change, v="new"))
    table = kit.live.load_table(TARGET)
    assert (table.metadata.current_schema_id, len(table.schemas())) == (1, 3)
    assert table.current_snapshot().schema_id == 1


@pytest.mark.req("Q5", "U11")
def test_the_diff_matches_by_id_compares_by_value_and_counts_columns_that_come(kit):
    request = staged(kit, ALL, note="right", value="old")
    found = _diff(kit, request)
    assert (found.summary.changed, found.summary.unchanged, found.summary.added) == (1, 0, 0)
    assert {each.name: each.changed for each in found.columns} == {
        "ts": 0, "region": 0, "value": 0, "n": 1,
    }  # fmt: skip
    assert found.added_columns == (AddedColumn(name="note", rows=1),)
    same = staged(kit, ALL, "r2", note="right", value="old", n=1)
    found = _diff(kit, same)
    assert (found.summary.changed, found.summary.unchanged) == (0, 1)
    assert found.added_columns == (AddedColumn(name="note", rows=1),)


@pytest.mark.req("U11")
def test_only_later_ids_may_be_new(kit):
    table = kit.live.load_table(TARGET)
    before = column_ids(table.schema())
    with table.update_schema() as update:
        update.add_column("more", LongType())
    after = kit.live.load_table(TARGET)
    assert SchemaEvolution(before, after.schema()).taken_ids_problem(table.metadata.model_copy(
        update={"last_column_id": 6})) == ""  # fmt: skip
    assert "7 (more)" in SchemaEvolution(before, after.schema()).taken_ids_problem(after.metadata)


def _diff(kit: Kit, request: AdoptRequest):
    return LocalDiffer(catalog_of(kit.root)).diff(
        DiffRequest(
            request.target, request.base_snapshot_id, request.shadow, request.shadow_snapshot_id,
            ("id", "d"), request.scope, change=request.schema_change,
        )
    )  # fmt: skip


def _append(kit: Kit, name: str, values: dict) -> None:
    table = kit.live.load_table(name)
    table.append(pa.Table.from_pylist([values], table.schema().as_arrow()))
