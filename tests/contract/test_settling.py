"""Finishing a swap by rows, over snapshots such as Spark leaves; proofs and tags are stand-ins."""

from __future__ import annotations

import pytest
from pyiceberg.expressions import AlwaysTrue

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.commit.revert import RevertPlanner
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import (
    SnapshotChange,
    SwapProducer,
    snapshot_change,
)
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ManifestCache, ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import PUBLICATION_PROPERTY
from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import (
    REWRITE_PROPERTY,
    PartitionContent,
    PartitionRestore,
    PendingRewrite,
)
from lakehouse_backfill.errors import OutcomeUnknown
from tests.support.lakes.deletes import hide
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit
from tests.support.lakes.writers import FixedWriters

SECOND = Scope(field=DAY, partitions=(DAYS[1],))
TOKEN = "token-r1"


class Proof:
    """Rows are as they should be; `tags` are those that were there when it was asked."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.tags: list[set[str]] = []

    def require_equal(
        self, table: str, snapshot_id: int, contents: tuple[PartitionContent, ...]
    ) -> None:
        self.tags.append(tags(self.kit))

    def set_tag(self, table: str, name: str, snapshot_id: int | None, max_age_ms: int) -> None:
        IcebergPins(self.kit.catalog).pin(table, snapshot_id or 0, name)


@pytest.fixture
def kit(kit: Kit) -> Kit:
    """Three days with two rows each; ids 0 to 5."""
    kit.create_days(each=2)
    return kit


def tags(kit: Kit) -> set[str]:
    return {name for name in kit.tables.describe(TARGET).refs if name.startswith("lhb-")}


def emptied(kit: Kit, *removing: str) -> int:
    """Empty the second day as a swap by rows does, and drop the delete files of other days."""
    table = kit.live.load_table(TARGET)
    head = table.current_snapshot()
    assert head is not None
    cache = ManifestCache()
    gone = ScopedReader(table, SECOND, cache).scope_files(head).data
    others = ScopedReader(table, Scope(field=DAY, partitions=removing), cache).scope_files(head)
    left = PendingRewrite(
        contents=(PartitionContent(scope=SECOND),),
        before="lhb-before",
        after="lhb-after",
    )
    marks = {REWRITE_PROPERTY: left.model_dump_json(), PUBLICATION_PROPERTY: TOKEN}
    change = SnapshotChange(head, tuple(head.manifests(table.io)), {**gone, **others.deletes}, {})
    snapshot = SwapProducer(cache).write_snapshot(table, change, marks, 1)
    snapshot_change(table, snapshot, {}, TOKEN).land()
    return int(snapshot.snapshot_id)


def publisher(kit: Kit, proof: Proof) -> IcebergPublisher:
    return IcebergPublisher(kit.catalog, writers=FixedWriters(kit.catalog, "rewrite", proof))


@pytest.mark.req("U1", "U11")
def test_delete_files_that_hide_nothing_any_more_may_go_wherever_they_are(kit: Kit) -> None:
    hide(kit, 4)
    table = kit.live.load_table(TARGET)
    rows = table.scan(AlwaysTrue()).to_arrow()
    # All data is newer than the delete file from here on, which no scan looks at any more.
    table.overwrite(rows)
    made = emptied(kit, DAYS[2])

    found = publisher(kit, Proof(kit)).find(TARGET, TOKEN)

    assert found is not None
    assert found.snapshot_id == made
    assert tags(kit) == {"lhb-before", "lhb-after"}
    assert [each[0] for each in kit.rows()] == [0, 1, 5]


@pytest.mark.req("U1")
def test_a_delete_file_of_another_partition_that_hid_rows_may_not(kit: Kit) -> None:
    hide(kit, 4)
    emptied(kit, DAYS[2])

    with pytest.raises(OutcomeUnknown, match="lies outside the partitions 2013-02-02"):
        publisher(kit, Proof(kit)).find(TARGET, TOKEN)

    assert "lhb-after" not in tags(kit)


@pytest.mark.req("U1", "U10")
def test_the_state_before_is_tagged_before_rows_are_compared(kit: Kit) -> None:
    before, made, proof = kit.head(), emptied(kit), Proof(kit)

    publisher(kit, proof).find(TARGET, TOKEN)

    assert proof.tags == [{"lhb-before"}]
    refs = kit.tables.describe(TARGET).refs
    assert (refs["lhb-before"], refs["lhb-after"]) == (before, made)


@pytest.mark.req("U1", "X9")
def test_a_swap_whose_state_before_has_expired_is_finished_without_its_tag(kit: Kit) -> None:
    before = kit.head()
    made = emptied(kit)
    kit.live.load_table(TARGET).maintenance.expire_snapshots().by_id(before).commit()

    found = publisher(kit, Proof(kit)).find(TARGET, TOKEN)

    assert found is not None
    assert found.snapshot_id == made
    assert tags(kit) == {"lhb-after"}


@pytest.mark.req("U13")
def test_who_only_reads_proves_and_tags_nothing(kit: Kit) -> None:
    made, proof = emptied(kit), Proof(kit)

    found = publisher(kit, proof).find(TARGET, TOKEN, finalise=False)

    assert found is not None
    assert found.snapshot_id == made
    assert (tags(kit), proof.tags) == (set(), [])


@pytest.mark.req("U12")
def test_rows_of_a_state_that_may_expire_go_back_through_a_shadow(kit: Kit) -> None:
    before = kit.head()
    back = PartitionRestore(
        partitions=SECOND.partitions, restore_snapshot_id=before, since_snapshot_id=emptied(kit)
    )
    table = kit.live.load_table(TARGET)
    found = RevertPlanner(table, TARGET, DAY, ManifestCache(), by_rows=True).required_rewrites(
        (back,)
    )

    assert [one.partitions for one in found] == [SECOND.partitions]
    assert f"no tag holds snapshot {before} any more" in found[0].because
