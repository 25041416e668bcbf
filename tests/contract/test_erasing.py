"""Finding deleted rows on a real table: copy-on-write, merge-on-read, tombstones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from lakehouse_backfill.adapters.local.row_reader import LocalRowReader
from lakehouse_backfill.domain.catch_up import (
    Erasure,
    ExcludedRows,
    TableState,
    TombstonedRows,
    TombstonePin,
)
from lakehouse_backfill.domain.partitions import Scope
from tests.support.lakes.deletes import hide
from tests.support.lakes.tables import DAY, TARGET, Kit, Row, row

pytestmark = pytest.mark.req("E3")

DAYS = ("2013-02-01", "2013-02-02")
BOTH = Scope(field=DAY, partitions=DAYS)
KEY = ("id", "d")


@pytest.fixture
def kit(kit: Kit) -> Kit:
    """Three people on the first day, one on the second."""
    kit.create(("d", "identity"))
    kit.append(*(row(number, DAYS[0]) for number in (1, 2, 3)), row(4, DAYS[1]))
    return kit


def _state(kit: Kit, snapshot_id: int | None = None, table: str = TARGET) -> TableState:
    return TableState(table=table, snapshot_id=snapshot_id or kit.head(table))


def _delete(kit: Kit, where: str) -> int:
    kit.live.load_table(TARGET).delete(where)
    return kit.head() or 0


def _then_append(where: str, new: Row) -> Callable[[Kit], None]:
    def act(kit: Kit) -> None:
        _delete(kit, where)
        kit.append(new)

    return act


#: What happens, the ids of the rows that are gone, and whether nothing else changed.
CHANGES: dict[str, tuple[Callable[[Kit], Any], tuple[int, ...], bool]] = {
    "deleted copy-on-write": (lambda kit: _delete(kit, "id = 2"), (2,), True),
    "deleted merge-on-read": (lambda kit: hide(kit, 2), (2,), True),
    "all rows of a partition": (lambda kit: kit.delete(DAY, DAYS[0]), (1, 2, 3), True),
    "another row beside": (_then_append("id = 2", row(7, DAYS[0])), (2,), False),
    "new values under the key": (_then_append("id = 2", row(2, DAYS[0], "corrected")), (), False),
    "one more of two equal rows": (lambda kit: kit.append(row(1, DAYS[0])), (), False),
}


@pytest.mark.parametrize(("act", "ids", "is_only_deletion"), CHANGES.values(), ids=CHANGES)
def test_rows_whose_keys_are_gone_are_found(
    kit: Kit, act: Callable[[Kit], Any], ids: tuple[int, ...], is_only_deletion: bool
) -> None:
    before = _state(kit)
    act(kit)
    found = LocalRowReader(kit.catalog).deleted_rows(before, _state(kit), BOTH, KEY)
    assert (found.rows, found.partitions) == (len(ids), DAYS if ids else ())
    samples = sorted(found.samples, key=lambda key: key["id"])
    assert samples == [{"id": number, "d": date(2013, 2, 1)} for number in ids]
    assert found.is_only_deletion is is_only_deletion


def test_null_in_a_key_is_a_value_like_any_other(kit: Kit) -> None:
    kit.append(row(5, DAYS[0], region=None))
    before = _state(kit)
    _delete(kit, "id = 5")
    found = LocalRowReader(kit.catalog).deleted_rows(before, _state(kit), BOTH, ("d", "region"))
    assert found.samples == ({"d": date(2013, 2, 1), "region": None},)


def _names(kit: Kit, *ids: int) -> TombstonePin:
    if not kit.live.table_exists("silver.tombs"):
        kit.create(name="silver.tombs")
    kit.append(*(row(number, None) for number in ids), name="silver.tombs")
    return TombstonePin(
        table="silver.tombs", snapshot_id=kit.head("silver.tombs"), columns={"id": "id"}
    )


def test_rows_that_tombstones_name_are_counted_where_they_lie(kit: Kit) -> None:
    left_out = ExcludedRows(field=DAY, tombstones=(_names(kit, 2, 3, 99),))
    found = LocalRowReader(kit.catalog).tombstoned_rows(_state(kit), DAYS, left_out)
    assert found == TombstonedRows(rows=2, partitions=(DAYS[0],))


def test_a_tombstone_without_a_value_names_nobody(kit: Kit) -> None:
    kit.append(row(6, DAYS[0], region=None))
    _names(kit)
    kit.append(row(1, None, region=None), name="silver.tombs")
    pin = TombstonePin(
        table="silver.tombs", snapshot_id=kit.head("silver.tombs"), columns={"region": "region"}
    )
    found = LocalRowReader(kit.catalog).tombstoned_rows(
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
    reader = LocalRowReader(kit.catalog)
    assert reader.tombstoned_rows(_state(kit, before), DAYS, left_out) == TombstonedRows(
        rows=2, partitions=DAYS
    )
    assert reader.tombstoned_rows(_state(kit, after), DAYS, left_out) == TombstonedRows(
        rows=0, partitions=()
    )
