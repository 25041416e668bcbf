"""Finding deleted rows on a real table: copy-on-write, merge-on-read, tombstones."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.local.deletions import LocalDeletionFinder
from lakehouse_backfill.domain.catch_up import (
    DeletedRows,
    Erasure,
    ExcludedRows,
    TableState,
    TombstonedRows,
    TombstonePin,
)
from lakehouse_backfill.domain.partitions import Scope
from tests.support.lakes.deletes import hide
from tests.support.lakes.tables import TARGET, Kit, field_of, row

pytestmark = pytest.mark.req("E3")

DAY = field_of("d")
DAYS = ("2013-02-01", "2013-02-02")
BOTH = Scope(field=DAY, partitions=DAYS)
KEY = ("id", "d")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """Three people on the first day, one on the second."""
    made = Kit(tmp_path)
    made.create(("d", "identity"))
    made.append(*(row(number, DAYS[0]) for number in (1, 2, 3)), row(4, DAYS[1]))
    return made


def _state(kit: Kit, snapshot_id: int | None = None, table: str = TARGET) -> TableState:
    return TableState(table=table, snapshot_id=snapshot_id or kit.head(table))


def _delete(kit: Kit, where: str) -> int:
    kit.live.load_table(TARGET).delete(where)
    return kit.head() or 0


def test_rows_that_a_copy_on_write_delete_removed_are_found(kit: Kit) -> None:
    before = _state(kit)
    _delete(kit, "id = 2")
    assert LocalDeletionFinder(kit.catalog).gone(before, _state(kit), BOTH, KEY) == DeletedRows(
        rows=1, partitions=DAYS, samples=({"id": 2, "d": date(2013, 2, 1)},),
        is_only_deletion=True,
    )  # fmt: skip


def test_a_delete_with_another_change_beside_it_is_more_than_a_deletion(kit: Kit) -> None:
    before = _state(kit)
    _delete(kit, "id = 2")
    kit.append(row(7, DAYS[0]))
    found = LocalDeletionFinder(kit.catalog).gone(before, _state(kit), BOTH, KEY)
    assert (found.rows, found.is_only_deletion) == (1, False)


def test_a_row_with_new_values_under_its_key_is_not_gone(kit: Kit) -> None:
    before = _state(kit)
    _delete(kit, "id = 2")
    kit.append(row(2, DAYS[0], "corrected"))
    found = LocalDeletionFinder(kit.catalog).gone(before, _state(kit), BOTH, KEY)
    assert (found.rows, found.is_only_deletion) == (0, False)


def test_of_two_equal_rows_one_more_is_no_deletion(kit: Kit) -> None:
    before = _state(kit)
    kit.append(row(1, DAYS[0]))
    found = LocalDeletionFinder(kit.catalog).gone(before, _state(kit), BOTH, KEY)
    assert (found.rows, found.is_only_deletion) == (0, False)


def test_null_in_a_key_is_a_value_like_any_other(kit: Kit) -> None:
    kit.append(row(5, DAYS[0], region=None))
    before = _state(kit)
    _delete(kit, "id = 5")
    found = LocalDeletionFinder(kit.catalog).gone(before, _state(kit), BOTH, ("d", "region"))
    assert found.samples == ({"d": date(2013, 2, 1), "region": None},)


def test_a_partition_that_lost_all_rows_lost_their_keys(kit: Kit) -> None:
    before = _state(kit)
    kit.delete(DAY, DAYS[0])
    found = LocalDeletionFinder(kit.catalog).gone(before, _state(kit), BOTH, KEY)
    assert (found.rows, found.is_only_deletion) == (3, True)


def _names(kit: Kit, *ids: int) -> TombstonePin:
    if not kit.live.table_exists("silver.tombs"):
        kit.create(name="silver.tombs")
    kit.append(*(row(number, None) for number in ids), name="silver.tombs")
    return TombstonePin(
        table="silver.tombs", snapshot_id=kit.head("silver.tombs"), columns={"id": "id"}
    )


def test_rows_that_tombstones_name_are_counted_where_they_lie(kit: Kit) -> None:
    left_out = ExcludedRows(field=DAY, tombstones=(_names(kit, 2, 3, 99),))
    found = LocalDeletionFinder(kit.catalog).named(_state(kit), DAYS, left_out)
    assert found == TombstonedRows(rows=2, partitions=(DAYS[0],))


def test_a_tombstone_without_a_value_names_nobody(kit: Kit) -> None:
    kit.append(row(6, DAYS[0], region=None))
    _names(kit)
    kit.append(row(1, None, region=None), name="silver.tombs")
    pin = TombstonePin(
        table="silver.tombs", snapshot_id=kit.head("silver.tombs"), columns={"region": "region"}
    )
    found = LocalDeletionFinder(kit.catalog).named(
        _state(kit), DAYS, ExcludedRows(field=DAY, tombstones=(pin,))
    )
    assert found == TombstonedRows(rows=0, partitions=())


def test_rows_whose_keys_were_deleted_between_two_snapshots_are_named(kit: Kit) -> None:
    before = kit.head() or 0
    after = _delete(kit, "id = 2 or id = 4")
    erasure = Erasure(
        table=TARGET, before_snapshot_id=before, after_snapshot_id=after, partitions=DAYS, key=KEY
    )
    left_out = ExcludedRows(field=DAY, erasures=(erasure,))
    erasing = LocalDeletionFinder(kit.catalog)
    assert erasing.named(_state(kit, before), DAYS, left_out) == TombstonedRows(
        rows=2, partitions=DAYS
    )
    assert erasing.named(_state(kit, after), DAYS, left_out) == TombstonedRows(
        rows=0, partitions=()
    )


def test_rows_that_a_merge_on_read_delete_hides_are_found(kit: Kit) -> None:
    before = _state(kit)
    hide(kit, 2)
    found = LocalDeletionFinder(kit.catalog).gone(before, _state(kit), BOTH, KEY)
    assert (found.rows, found.samples[0]["id"], found.is_only_deletion) == (1, 2, True)


def test_a_merge_on_read_delete_in_the_scope_is_a_drift_that_only_deletes(kit: Kit) -> None:
    before = kit.head()
    number = hide(kit, 2)
    (drift,) = kit.publisher.drifts(TARGET, BOTH, before)
    assert (drift.snapshot_id, drift.only_deletes, drift.partitions) == (number, True, (DAYS[0],))
