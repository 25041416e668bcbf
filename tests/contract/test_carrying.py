"""Taking over partitions of an earlier revision's shadow, on a real catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergChunkCarrier
from lakehouse_backfill.domain.catch_up import CarryRequest
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.publication import AdoptRequest
from lakehouse_backfill.errors import RunMoved, TargetChanged, Unsupported
from tests.support.lakes.tables import TARGET, Kit, field_of, row

DAY = field_of("d")
DAYS = ("2013-02-01", "2013-02-02", "2013-02-03")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    made = Kit(tmp_path)
    made.create(("d", "identity"))
    made.append(*(row(number, day) for number, day in enumerate(DAYS)))
    return made


def _request(kit: Kit, first: AdoptRequest, labels: tuple[str, ...], epoch: int) -> CarryRequest:
    assert first.shadow_snapshot_id is not None
    return CarryRequest(
        shadow="shadow.r2", source=first.shadow, source_snapshot_id=first.shadow_snapshot_id,
        scope=Scope(field=DAY, partitions=labels), chunk_id="c0001", epoch=epoch,
        properties={"lakehouse-backfill.run-id": "r2"},
    )  # fmt: skip


def _revised(kit: Kit) -> AdoptRequest:
    """A run over two days, a live commit in the second, and the shadow of a revision."""
    first = kit.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")], DAYS[1]: [row(1, DAYS[1], "new")]})
    kit.append(row(9, DAYS[1], "live"))
    kit.shadows.open(TARGET, kit.head(), "shadow.r2", {"lakehouse-backfill.run-id": "r2"})
    kit.shadows.fence("shadow.r2", 1)
    return first


@pytest.mark.req("U11")
def test_a_carried_partition_is_the_accepted_one_and_the_rest_is_the_new_base(kit: Kit) -> None:
    first = _revised(kit)
    found = IcebergChunkCarrier(kit.catalog).carry(_request(kit, first, (DAYS[0],), 1))
    assert [item.chunk_id for item in kit.shadows.chunks("shadow.r2")] == ["c0001"]
    assert (found.snapshot_id, found.added_rows) == (kit.head("shadow.r2"), 1)
    assert kit.rows("shadow.r2") == [
        (0, DAYS[0], "EU", "new"), (1, DAYS[1], "EU", "old"), (2, DAYS[2], "EU", "old"),
        (9, DAYS[1], "EU", "live"),
    ]  # fmt: skip


@pytest.mark.req("U11")
def test_a_carried_file_is_not_copied(kit: Kit) -> None:
    first = _revised(kit)
    IcebergChunkCarrier(kit.catalog).carry(_request(kit, first, (DAYS[0],), 1))

    def paths(table: str) -> set[str]:
        files = kit.tables.files(table, kit.head(table), DAY)
        return {file.path for file in files if file.partition == DAYS[0]}

    assert paths("shadow.r2") == paths("shadow.r1")


@pytest.mark.req("U10", "U11")
def test_a_chunk_that_was_carried_over_is_not_carried_again(kit: Kit) -> None:
    first = _revised(kit)
    request = _request(kit, first, (DAYS[0],), 1)
    once = IcebergChunkCarrier(kit.catalog).carry(request)
    assert IcebergChunkCarrier(kit.catalog).carry(request) == once


@pytest.mark.req("X9")
def test_an_overtaken_driver_carries_nothing_over(kit: Kit) -> None:
    first = _revised(kit)
    kit.shadows.fence("shadow.r2", 2)
    with pytest.raises(RunMoved):
        IcebergChunkCarrier(kit.catalog).carry(_request(kit, first, (DAYS[0],), 1))


@pytest.mark.req("X9")
def test_a_driver_that_is_overtaken_on_the_way_carries_nothing_over(kit: Kit) -> None:
    first = _revised(kit)
    kit.before_commit(lambda: Kit(kit.root).shadows.fence("shadow.r2", 2))
    with pytest.raises(RunMoved):
        IcebergChunkCarrier(kit.catalog).carry(_request(kit, first, (DAYS[0],), 1))
    assert kit.shadows.chunks("shadow.r2") == ()


def test_files_are_not_carried_into_a_table_with_other_columns(kit: Kit) -> None:
    first = _revised(kit)
    with kit.live.load_table("shadow.r2").update_schema() as update:
        update.rename_column("v", "value")
    with pytest.raises(TargetChanged, match="its columns changed: v, value"):
        IcebergChunkCarrier(kit.catalog).carry(_request(kit, first, (DAYS[0],), 1))


def test_nothing_is_carried_into_a_table_that_is_no_shadow(kit: Kit) -> None:
    first = _revised(kit)
    request = _request(kit, first, (DAYS[0],), 1).model_copy(update={"shadow": TARGET})
    with pytest.raises(Unsupported, match="is not a shadow of ours"):
        IcebergChunkCarrier(kit.catalog).carry(request)


@pytest.mark.req("U11")
def test_a_revision_lands_what_the_first_run_could_not(kit: Kit) -> None:
    first = _revised(kit)
    with pytest.raises(TargetChanged):
        kit.publisher.adopt(first)
    base = kit.head()
    IcebergChunkCarrier(kit.catalog).carry(_request(kit, first, (DAYS[0],), 1))
    kit.write_chunk("shadow.r2", DAY, DAYS[1], [row(1, DAYS[1], "again")], "c0002")
    update = {
        "shadow": "shadow.r2", "base_snapshot_id": base, "token": "token-r2",
        "shadow_snapshot_id": kit.head("shadow.r2"), "chunk_ids": ("c0001", "c0002"),
        "tags": {"before": "lhb-before-r2", "after": "lhb-after-r2"},
    }  # fmt: skip
    kit.publisher.adopt(first.model_copy(update=update))
    assert kit.rows() == [
        (0, DAYS[0], "EU", "new"), (1, DAYS[1], "EU", "again"), (2, DAYS[2], "EU", "old"),
    ]  # fmt: skip


@pytest.mark.req("U11")
def test_a_frozen_table_names_a_commit_in_any_partition(kit: Kit) -> None:
    request = kit.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    number = kit.append(row(9, DAYS[2], "live"))
    frozen = request.model_copy(update={"is_frozen": True})
    with pytest.raises(TargetChanged, match=rf"frozen by .* snapshot {number} \(append by"):
        kit.publisher.adopt(frozen)
    assert kit.publisher.adopt(request).files_added == 1


@pytest.mark.req("U11")
def test_a_frozen_table_lets_our_own_publications_pass(kit: Kit) -> None:
    one = kit.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    other = kit.stage(DAY, {DAYS[2]: [row(2, DAYS[2], "new")]}, run="other")
    kit.publisher.adopt(other)
    assert kit.publisher.adopt(one.model_copy(update={"is_frozen": True})).files_added == 1


@pytest.mark.req("U11")
def test_a_new_partitioning_since_the_base_is_named(kit: Kit) -> None:
    request = kit.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    with kit.live.load_table(TARGET).update_spec() as update:
        update.add_identity("region")
    names = r"its partitioning changed from identity\(d\) to identity\(d\), identity\(region\)"
    with pytest.raises(TargetChanged, match=names):
        kit.publisher.adopt(request)


@pytest.mark.req("U11")
def test_a_column_that_came_since_the_base_is_named(kit: Kit) -> None:
    request = kit.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    with kit.live.load_table(TARGET).update_schema() as update:
        update.rename_column("v", "value")
    with pytest.raises(TargetChanged, match="its columns changed: v, value"):
        kit.publisher.adopt(request)
