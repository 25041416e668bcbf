"""A shadow that is a branch of its target: the rules of `Shadows` for it (X12)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ServiceUnavailableError
from pyiceberg.table.metadata import TableMetadata

from lakehouse_backfill.adapters.iceberg.metadata import (
    BASE_SNAPSHOT_PROPERTY,
    EPOCH_PROPERTY,
    NEVER_EXPIRES_MS,
)
from lakehouse_backfill.domain.tables.branch_shadow import branch_shadow, parse_branch_shadow
from lakehouse_backfill.domain.tables.schema_change import SchemaStep
from lakehouse_backfill.errors import CatalogDown, Conflict, RunMoved, Unsupported
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, _arrow, row

pytestmark = pytest.mark.req("X12")
RUN = {"lakehouse-backfill.run-id": "bf-1"}
SHADOW = branch_shadow(TARGET, "bf-1").name


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    found = Kit(tmp_path, isolation="branch")
    found.create_days()
    found.shadows.open(TARGET, found.head(), SHADOW, RUN)
    return found


def target(kit: Kit) -> TableMetadata:
    return kit.live.load_table(TARGET).metadata


def branches(kit: Kit) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in target(kit).refs.items() if name != "main"}


def test_a_name_stands_for_the_branches_of_one_run():
    found = parse_branch_shadow("gold.eu.orders.branch_lhb_bf_1a2b")
    assert found == branch_shadow("gold.eu.orders", "bf-1a2b")
    assert (found.branch(3), found.name) == ("lhb-bf-1a2b-e3", "gold.eu.orders.branch_lhb_bf_1a2b")
    assert (found.epoch_of("lhb-bf-1a2b-e12"), found.epoch_of("lhb-bf-1a2b2-e12")) == (12, None)
    assert parse_branch_shadow("gold.orders") is None
    assert parse_branch_shadow("branch_lhb_bf_1") is None


def test_opening_and_fencing_change_nothing_but_references_and_one_property(kit: Kit):
    before = target(kit)
    kit.shadows.fence(SHADOW, 3)
    kit.shadows.fence(SHADOW, 3)
    after = target(kit)
    assert branches(kit) == {"lhb-bf-1-e3": kit.head()}
    same = ("table_uuid", "snapshots", "schemas", "location", "last_sequence_number")
    assert all(getattr(after, name) == getattr(before, name) for name in same)
    ours = [key for key in after.properties if "branch" in key]
    assert ours == ["lakehouse-backfill.branch.lhb-bf-1"]
    ref = after.refs["lhb-bf-1-e3"]
    assert (ref.max_ref_age_ms, ref.max_snapshot_age_ms) == (NEVER_EXPIRES_MS, NEVER_EXPIRES_MS)


def test_an_open_shadow_is_opened_again_as_it_is(kit: Kit):
    kit.shadows.fence(SHADOW, 3)
    kit.write_chunk(SHADOW, DAY, DAYS[0], [row(7, DAYS[0], "new")], "c1")
    base = kit.head()
    again = kit.shadows.open(TARGET, base, SHADOW, RUN)
    assert again.properties[BASE_SNAPSHOT_PROPERTY] == str(base)
    assert again.properties[EPOCH_PROPERTY] == "3"
    assert again.snapshot_id == kit.head(SHADOW) != base
    with pytest.raises(Conflict, match="already there, for something else"):
        kit.shadows.open(TARGET, base, SHADOW, {"lakehouse-backfill.run-id": "bf-2"})


def test_chunks_go_to_the_branch_and_live_commits_to_main(kit: Kit):
    kit.shadows.fence(SHADOW, 3)
    kit.write_chunk(SHADOW, DAY, DAYS[0], [row(7, DAYS[0], "new")], "c1")
    kit.append(row(8, DAYS[1], "live"))
    kit.write_chunk(SHADOW, DAY, DAYS[2], [row(9, DAYS[2], "new")], "c2")
    assert [one[0] for one in kit.rows(SHADOW)] == [1, 7, 9]
    assert [one[0] for one in kit.rows()] == [0, 1, 2, 8]
    assert {one.chunk_id for one in kit.shadows.chunks(SHADOW)} == {"c1", "c2"}


@pytest.mark.req("X9")
def test_what_an_overtaken_writer_commits_nobody_reads(kit: Kit):
    kit.shadows.fence(SHADOW, 1)
    old = kit.live.load_table(SHADOW)
    staged = old.transaction()
    staged.append(_arrow(old, [row(7, DAYS[0], "zombie")]))
    kit.shadows.fence(SHADOW, 4)
    seen = kit.rows(SHADOW), kit.rows(), kit.shadows.chunks(SHADOW)
    staged.commit_transaction()
    assert branches(kit)["lhb-bf-1-e1"] != branches(kit)["lhb-bf-1-e4"]
    assert (kit.rows(SHADOW), kit.rows(), kit.shadows.chunks(SHADOW)) == seen
    # Its own retry loads the table again, and finds another one there.
    with pytest.raises((CommitFailedException, ValueError), match="UUID does not match"):
        old.refresh()
    with pytest.raises(RunMoved, match=r"bf-1 was taken over .* \(lease 1, now 4\)"):
        kit.shadows.fence(SHADOW, 1)


def test_that_the_newest_branch_was_dropped_by_hand_is_said(kit: Kit):
    kit.shadows.fence(SHADOW, 1)
    kit.shadows.fence(SHADOW, 4)
    with kit.live.load_table(TARGET).manage_snapshots() as changes:
        changes.remove_branch("lhb-bf-1-e4")
    for look in (kit.shadows.chunks, kit.rows, lambda shadow: kit.shadows.fence(shadow, 5)):
        with pytest.raises(Conflict, match=r"has lost its branch lhb-bf-1-e4") as lost:
            look(SHADOW)
    assert "CREATE BRANCH `lhb-bf-1-e4`" in lost.value.fix
    kit.shadows.retire(SHADOW)
    assert branches(kit) == {}


@pytest.mark.req("X9")
def test_a_chunk_that_lands_during_the_fence_is_kept(kit: Kit):
    kit.shadows.fence(SHADOW, 1)
    other = Kit(kit.root, isolation="branch")
    kit.before_commit(
        lambda: other.write_chunk(SHADOW, DAY, DAYS[0], [row(7, DAYS[0], "new")], "c1")
    )
    kit.shadows.fence(SHADOW, 2)
    assert {one.chunk_id for one in kit.shadows.chunks(SHADOW)} == {"c1"}
    assert branches(kit)["lhb-bf-1-e1"] == branches(kit)["lhb-bf-1-e2"]


def test_a_commit_whose_answer_was_lost_is_found(kit: Kit, monkeypatch: pytest.MonkeyPatch):
    _once(kit, monkeypatch, lands=True)
    kit.shadows.fence(SHADOW, 5)
    assert "lhb-bf-1-e5" in branches(kit)
    _once(kit, monkeypatch, lands=False)
    with pytest.raises(CatalogDown):
        kit.shadows.retire(SHADOW)
    _once(kit, monkeypatch, lands=True)
    kit.shadows.retire(SHADOW)
    assert branches(kit) == {}


def _once(kit: Kit, monkeypatch: pytest.MonkeyPatch, *, lands: bool) -> None:
    commit: Callable[..., Any] = kit.catalog.commit_table

    def once(*args: Any) -> Any:
        monkeypatch.setattr(kit.catalog, "commit_table", commit)
        if lands:
            commit(*args)
        raise ServiceUnavailableError("503")

    monkeypatch.setattr(kit.catalog, "commit_table", once)


def test_retired_branches_leave_the_table_as_it_is(kit: Kit):
    kit.shadows.fence(SHADOW, 1)
    kit.write_chunk(SHADOW, DAY, DAYS[0], [row(7, DAYS[0], "new")], "c1")
    zombie = kit.live.load_table(SHADOW)
    assert kit.shadows.list((TARGET, "silver.none")) == (SHADOW,)
    rows = kit.rows()
    kit.shadows.retire(SHADOW)
    kit.shadows.retire(SHADOW)
    assert (kit.rows(), branches(kit), kit.shadows.list((TARGET,))) == (rows, {}, ())
    assert kit.tables.describe(SHADOW) is None
    assert not any("lakehouse-backfill.branch" in key for key in target(kit).properties)
    with pytest.raises(NoSuchTableError, match="has no branch lhb-bf-1"):
        zombie.append(_arrow(zombie, [row(8, DAYS[0])]))


def test_of_two_that_retire_one_shadow_at_once_the_second_finds_it_gone(kit: Kit):
    kit.shadows.fence(SHADOW, 1)
    other = Kit(kit.root, isolation="branch")
    kit.before_commit(lambda: other.shadows.retire(SHADOW))
    kit.shadows.retire(SHADOW)
    assert (branches(kit), kit.shadows.list((TARGET,))) == ({}, ())


def test_chunks_of_a_dropped_branch_go_with_the_tags_if_main_lists_their_files(kit: Kit):
    """An expiry of Iceberg before 1.12 would delete what they added, once main stands alone."""
    adopted = kit.stage(DAY, {day: [row(7, day, "new")] for day in DAYS[:2]}, "r1")
    kit.stage(DAY, {DAYS[2]: [row(8, DAYS[2], "never")]}, "r2")
    kit.publisher.adopt(adopted)
    shadows = [kit.shadow_of("r1"), kit.shadow_of("r2")]
    chunks = [[c.snapshot_id for c in kit.shadows.chunks(x) if c.added_rows] for x in shadows]
    for shadow in (SHADOW, *shadows):
        kit.shadows.retire(shadow)
    rows, now = kit.rows(), datetime(2100, 1, 1, tzinfo=timezone.utc)
    kit.pins.expire(TARGET, kit.pins.tags(TARGET) or {}, now, at_once=True)
    left = [one.snapshot_id for one in target(kit).snapshots]
    assert (kit.rows(), branches(kit)) == (rows, {})
    assert [[one in left for one in of_run] for of_run in chunks] == [[False, False], [True]]


def test_a_branch_has_no_columns_properties_or_copies_of_its_own(kit: Kit):
    with pytest.raises(Unsupported, match="would be those of its target"):
        kit.shadows.evolve(SHADOW, 0, (SchemaStep(add="n", type="int"),))
    with pytest.raises(Unsupported, match=r"has no table properties .* write\.data\.path"):
        kit.shadows.open(
            TARGET, kit.head(), branch_shadow(TARGET, "bf-2").name, {"write.data.path": "/mine"}
        )
    with pytest.raises(Unsupported, match="would be a clone"):
        kit.shadows.keep(SHADOW, kit.head() or 0, "gold.v1", {})
    with pytest.raises(Unsupported, match=r"would change silver\.t for its readers"):
        kit.evolve(lambda change: change.rename_column("v", "value"), SHADOW)
    with pytest.raises(Unsupported, match=r"no branch of silver\.t"):
        kit.shadows.open(TARGET, kit.head(), branch_shadow("silver.u", "bf-2").name, {})


def test_columns_that_the_target_gains_meanwhile_are_not_the_branchs(kit: Kit):
    kit.shadows.fence(SHADOW, 1)
    kit.write_chunk(SHADOW, DAY, DAYS[0], [row(7, DAYS[0], "new")], "c1")
    kit.evolve(lambda change: change.rename_column("v", "value"))
    assert "v" in kit.live.load_table(SHADOW).schema().column_names
    assert "value" in kit.live.load_table(TARGET).schema().column_names
