"""Facts by which the way of changing a table is chosen, from metadata alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.iceberg.table_writers import survey_table
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import TableFacts
from tests.support.lakes.deletes import hide, hide_equal
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row

SECOND = Scope(field=DAY, partitions=DAYS[1:2])


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    kit.create(("d", "identity"))
    kit.append(row(0, DAYS[0]), row(1, DAYS[1]))
    kit.append(row(2, DAYS[1]))
    kit.append(row(3, DAYS[2]))
    return kit


def facts(kit: Kit, scope: Scope | None = SECOND, name: str = TARGET) -> TableFacts | None:
    return survey_table(kit.catalog, name, scope)


def test_entries_are_those_of_the_manifests_that_may_hold_the_scope(kit):
    assert facts(kit) == TableFacts(format_version=2, entries=3)
    assert facts(kit, None) == TableFacts(format_version=2)
    assert facts(kit, name="silver.none") is None


def test_a_table_without_snapshot_has_only_its_format(tmp_path):
    kit = Kit(tmp_path)
    kit.create(("d", "identity"), version=1)
    assert facts(kit) == TableFacts(format_version=1)


@pytest.mark.parametrize(
    ("partition", "count"), [((15738,), 1), ((15737,), 0)], ids=["in the scope", "elsewhere"]
)
def test_equality_deletes_count_where_they_may_hide_rows_of_the_scope(kit, partition, count):
    hide_equal(kit, 1, partition=partition, spec_id=0)

    assert facts(kit).equality_deletes == count


def test_position_deletes_are_no_equality_deletes(kit):
    hide(kit, 1)

    assert facts(kit).equality_deletes == 0


def test_an_equality_delete_without_partition_counts_for_every_scope(kit):
    spec_id = kit.respec(lambda update: update.remove_field("p0_d"))
    hide_equal(kit, 1, partition=(), spec_id=spec_id)

    assert facts(kit).equality_deletes == 1


def test_what_a_scan_reads_is_estimated_beside_equality_deletes(kit):
    hide_equal(kit, 1, partition=(15738,), spec_id=0)

    assert kit.tables.estimate(TARGET, kit.head(), ()).rows == 4
