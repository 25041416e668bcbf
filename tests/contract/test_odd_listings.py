"""A file that is listed twice is two files to every reader, and so to whoever counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

from lakehouse_backfill.adapters.iceberg.files import IcebergStoredFiles
from lakehouse_backfill.adapters.iceberg.tables import IcebergTables
from lakehouse_backfill.adapters.local.diff.differ import LocalDiffer
from lakehouse_backfill.adapters.local.diff.layout import batch_files, choose_layout, label_files
from lakehouse_backfill.adapters.local.scan import plan_scan
from lakehouse_backfill.core.comparison.diff import with_known_equal
from lakehouse_backfill.core.validation.gates import check_outside_unchanged
from lakehouse_backfill.domain.comparison.diff import FileTotals
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import Tampered
from tests.contract.differ_cases import DAY, SIMPLE, Built, Maker, append, day, simple
from tests.contract.differ_file_cases import FILE_CASES
from tests.support.examples.plans import a_plan
from tests.support.fakes.compute import SilentJournal
from tests.support.fakes.context import context, lake
from tests.support.fakes.control import FakeEvidence

DAY_ONE = day(1).isoformat()
SCOPE = Scope(field=DAY, partitions=(DAY_ONE,))


def case(make: Maker, name: str) -> Built:
    return FILE_CASES.named(name).build(make)


@pytest.mark.req("Q4")
def test_live_files_are_named_as_often_as_they_are_listed(catalog: SqlCatalog, make: Maker) -> None:
    asked = case(make, "a file of a day listed twice").request
    assert asked.new_snapshot_id is not None
    files = IcebergTables(catalog).files(asked.new_table, asked.new_snapshot_id, DAY)
    assert Counter(each.partition for each in files) == {
        day(number).isoformat(): 1 + (number == 1) for number in range(4)
    }
    stored = IcebergStoredFiles(catalog).files(asked.new_table, asked.new_snapshot_id, SCOPE)
    assert stored == tuple(each for each in files if each.partition == DAY_ONE)
    assert [each.rows for each in stored] == [3, 3]


@pytest.mark.req("Q4")
def test_a_file_listed_twice_outside_the_scope_is_a_change_there() -> None:
    def file(path: str, label: str = "2013-01-01") -> LiveFile:
        return LiveFile(path=path, spec_id=0, partition=label, rows=1, size_bytes=1)

    one, two = [file("a"), file("b")], [file("a"), file("b"), file("b")]
    assert check_outside_unchanged(one, one, a_plan()).passed
    for base, shadow in ((one, two), (two, one)):
        found = check_outside_unchanged(base, shadow, a_plan())
        assert (found.passed, found.detail) == (False, "2 files shared, 1 differ")
    elsewhere = check_outside_unchanged(one, [file("a"), file("b", "2013-01-02")], a_plan())
    assert (elsewhere.passed, elsewhere.observed) == (False, 2)


@pytest.mark.req("Q5")
def test_asking_for_fingerprints_fails_no_diff(catalog: SqlCatalog, make: Maker) -> None:
    """The old files' layout has no partitions: nothing of them is known by partition."""
    table = make.table(SIMPLE)
    before = append(table, simple())
    with table.update_spec() as update:
        update.add_identity("d")
    after = append(table, [{"d": day(9), "k": 1, "v": 1}])
    request = make.request(table, before, after, ("d", "k"))
    lines: list[Any] = []
    found = context(lake(), tables=IcebergTables(catalog), journal=SilentJournal(lines))
    assert with_known_equal(found, request) == request
    scoped = replace(request, scope=SCOPE)
    assert with_known_equal(found, scoped) == scoped
    assert [event for event, _ in lines] == ["fingerprints not asked"] * 2


@pytest.mark.req("Q5")
def test_what_was_tampered_with_stops_a_diff(catalog: SqlCatalog, make: Maker) -> None:
    class Swapped(FakeEvidence):
        def find_fingerprints(self, paths: Any) -> Any:
            raise Tampered("a file was swapped")

    table = make.table(SIMPLE, [("d", IdentityTransform())])
    request = make.request(table, append(table, simple(1)), append(table, simple(2)), ("d", "k"))
    found = context(lake(), tables=IcebergTables(catalog), evidence=Swapped())
    with pytest.raises(Tampered, match="was swapped"):
        with_known_equal(replace(found, stored_files=_Readings()), request)


class _Readings:
    def reading(self, table: str, snapshot_id: int) -> str:
        return "r"

    def digests(self, table: str, paths: Any) -> dict[str, Any]:
        return {}


@pytest.mark.req("Q5")
def test_shared_files_that_a_condition_has_read_weigh_too(catalog: SqlCatalog, make: Maker) -> None:
    table = make.table(SIMPLE, [("d", IdentityTransform())])
    before = append(table, simple(3))
    after = append(table, [{"d": day(3), "k": 1, "v": 1}])
    request = make.request(table, before, after, ("d", "k"))
    differ = LocalDiffer(catalog)
    plain, asked = differ.preview(request), differ.preview(replace(request, where="k > 0"))
    assert (plain.shared_to_count, plain.shared) == (FileTotals(), asked.shared)
    assert asked.shared_to_count == asked.shared
    assert (asked.shared.files, asked.shared.rows) == (3, 9)
    assert asked.bytes_to_read == plain.bytes_to_read + asked.shared.bytes


@pytest.mark.req("Q5")
def test_what_is_only_counted_is_read_in_portions_whatever_partition_it_is_of(
    catalog: SqlCatalog, make: Maker
) -> None:
    table = make.table(SIMPLE)
    for _ in range(5):
        snapshot_id = append(table, simple(1))
    name = make.request(table, None, None, ()).new_table
    side = plan_scan(catalog, name, snapshot_id)
    listed = label_files(side, choose_layout(side, side, None), None)
    for limit, sizes in ((1, [1] * 5), (6, [2, 2, 1]), (100, [5])):
        found = list(batch_files(listed, limit))
        assert [len(each) for each in found] == sizes
        assert [piece for group in found for piece in group] == listed
