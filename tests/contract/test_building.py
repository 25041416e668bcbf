"""Clones on a catalog that registers none: built by create_table and one commit, or not at all."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import LongType, StringType

from lakehouse_backfill import fault_points
from lakehouse_backfill.adapters.iceberg.metadata import may_drop_delete_files
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.errors import Conflict, Unsupported
from tests.support.fakes.kills import Killed, hooked, killed_at
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

MARK = "lakehouse-backfill."


@pytest.fixture
def kit(kit: Kit) -> Kit:
    kit.create_days()
    refuse(kit.catalog)
    return kit


def refuse(catalog: Catalog) -> None:
    def register(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no register_table here")

    vars(catalog)["register_table"] = register


def opened(kit: Kit, name: str = "shadow.r1") -> Any:
    return kit.shadows.open(TARGET, kit.head(), name, {f"{MARK}run-id": "r1"})


@pytest.mark.req("U1", "X1")
def test_a_built_clone_is_what_a_registered_one_is(kit: Kit, tmp_path: Path) -> None:
    registered = Kit(tmp_path)
    one = registered.shadows.open(TARGET, kit.head(), "shadow.r0", {f"{MARK}run-id": "r1"})

    other = opened(kit)

    assert "no register_table here" in other.properties[f"{MARK}built-because"]
    own = {"table", "uuid", "location", "properties"}
    assert other.model_dump(exclude=own) == one.model_dump(exclude=own)
    assert {k: v for k, v in other.properties.items() if ".built-" not in k} == one.properties
    assert kit.tables.files(other.table, kit.head(), DAY) == kit.tables.files(
        one.table, kit.head(), DAY
    )


@pytest.mark.req("U1", "U11", "U12")
def test_files_move_between_a_target_whose_columns_and_specs_moved_on_and_its_built_clone(
    kit: Kit,
) -> None:
    """A column that was dropped and added again has another id: by order it would be lost."""
    table = kit.live.load_table(TARGET)
    with table.update_schema() as change:
        change.delete_column("v")
    with table.update_schema() as change:
        change.add_column("more", LongType())
        change.add_column("v", StringType())
    with table.update_spec() as spec:
        spec.add_field("region", "identity", "p1_region")
    kit.append(row(7, DAYS[2], "later"))
    base = kit.rows()

    swap = kit.publisher.adopt(kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]}))
    after = kit.rows()
    kit.publisher.revert(kit.revert_request(swap, Scope(field=DAY, partitions=(DAYS[1],))))

    assert [(one[0], one[3]) for one in after] == [
        (0, None), (11, "new"), (2, None), (7, "later"),
    ]  # fmt: skip
    assert kit.rows() == base


@pytest.mark.req("U1")
def test_a_clone_of_an_empty_table_is_built_empty(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    refuse(kit.catalog)

    assert (opened(kit).snapshot_id, kit.rows("shadow.r1")) == (None, [])


@pytest.mark.in_turn
@pytest.mark.req("T3", "U1")
@pytest.mark.parametrize("number", range(1, 3))
@pytest.mark.parametrize(
    "point",
    [f"Shadows.{act}:{when}" for act in ("create", "drop", "fill")
     for when in ("committing", "committed")],
)  # fmt: skip
def test_one_that_was_cut_off_is_finished_by_the_next(kit: Kit, point: str, number: int) -> None:
    seen: list[str] = []

    def kill(reached: str) -> None:
        seen.append(reached)
        if seen.count(point) == number and reached == point:
            raise Killed

    with hooked(kill), suppress(Killed):
        opened(kit)

    made = opened(kit)

    assert point in seen
    assert (made.snapshot_id, kit.rows("shadow.r1")) == (kit.head(), kit.rows())
    assert f"{MARK}being-built" not in made.properties


def forget(catalog: Catalog) -> None:
    """Let the catalog keep no snapshot that another table wrote."""
    commit = catalog.commit_table

    def numbering(table: Any, requirements: Any, updates: Any) -> Any:
        kept = [one for one in updates if "snapshot" not in one.action]
        return commit(table, requirements, tuple(kept))

    vars(catalog)["commit_table"] = numbering


@pytest.mark.req("U1", "X1")
def test_a_catalog_that_keeps_neither_is_refused_with_both_reasons(kit: Kit) -> None:
    forget(kit.catalog)

    with pytest.raises(Unsupported, match=r"no register_table here; as a plain table: snapshot"):
        opened(kit)

    assert kit.tables.describe("shadow.r1") is None
    assert [one[3] for one in kit.rows()] == ["old"] * 3


def stopped_at(point: str, number: int, act: Any) -> Any:
    """Do something when this process gets to a point for the n-th time."""
    seen: list[str] = []

    def hook(reached: str) -> None:
        seen.append(reached)
        if reached == point and seen.count(point) == number:
            act()

    return hook


def deleting(kit: Kit) -> list[str]:
    """Let a drop delete all files of the table, as SeaweedFS does; gives what was dropped."""
    dropped: list[str] = []
    drop = kit.catalog.drop_table

    def deletes(name: str) -> None:
        table = kit.catalog.load_table(name)
        drop(name)
        dropped.append(name)
        shutil.rmtree(table.location().removeprefix("file://"))

    vars(kit.catalog)["drop_table"] = deletes
    return dropped


@pytest.mark.req("U1", "U12")
@pytest.mark.parametrize("point", ["Shadows.create", "Shadows.drop", "Shadows.fill"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_builder_that_was_stalled_never_drops_what_another_has_filled(
    kit: Kit, point: str, number: int
) -> None:
    dropped = deleting(kit)
    made: list[Any] = []

    def other() -> None:
        fault_points.install_hook(None)
        made.append(opened(kit))

    with hooked(stopped_at(f"{point}:committing", number, other)):
        mine = opened(kit)
    assert [one.uuid for one in made] == [mine.uuid] * len(made)
    assert all(name.startswith("shadow.r1__drop_") for name in dropped)
    assert kit.rows("shadow.r1") == kit.rows()
    assert mine.properties[f"{MARK}built-drop-deletes"] == "yes"


@pytest.mark.req("U1", "X1")
def test_finding_out_what_a_drop_does_leaves_nothing_behind(kit: Kit, tmp_path: Path) -> None:
    made = opened(kit)
    assert made.properties[f"{MARK}built-drop-deletes"] == "no"
    assert kit.catalog.list_tables("shadow") == [("shadow", "r1")]
    assert [path for path in tmp_path.rglob("*") if "__drop_" in str(path) and path.is_file()] == []


@pytest.mark.req("U1", "U12")
def test_where_it_was_not_written_down_what_a_drop_does_nothing_is_dropped(kit: Kit) -> None:
    with killed_at("Shadows.fill:committing"), pytest.raises(Killed):
        opened(kit)
    with kit.catalog.load_table("shadow.r1").transaction() as change:
        change.remove_properties(f"{MARK}built-drop-deletes")
    dropped = deleting(kit)
    opened(kit)
    kit.shadows.retire("shadow.r1")
    assert dropped == []
    assert kit.catalog.load_table("shadow.r1").properties[f"{MARK}retired"] == "yes"


@pytest.mark.req("U1", "U12")
@pytest.mark.parametrize(
    ("recorded", "may_delete"),
    [
        ({}, False),
        ({"built-drop-deletes": "no"}, False),
        ({"built-drop-deletes": "yes"}, True),
        ({"built-because": "x"}, True),
        ({"built-because": "x", "built-drop-deletes": "no"}, False),
        ({"built-because": "x", "built-drop-deletes": "yes"}, True),
    ],
)
def test_a_drop_may_delete_files_where_a_probe_says_so_or_is_missing(
    recorded: dict[str, str], may_delete: bool
) -> None:
    properties = {f"{MARK}{name}": value for name, value in recorded.items()}
    assert may_drop_delete_files(properties) is may_delete


@pytest.mark.req("U1", "T3")
def test_a_clone_that_was_filled_and_not_compared_is_compared_by_the_next(kit: Kit) -> None:
    forget(kit.catalog)
    with killed_at("Shadows.fill:committed"), pytest.raises(Killed):
        opened(kit)
    for _ in range(2):
        with pytest.raises(Conflict, match="other snapshot than what it was cloned") as refused:
            opened(kit)
        assert "DROP TABLE shadow.r1 (in Spark SQL, without PURGE)" in refused.value.fix
