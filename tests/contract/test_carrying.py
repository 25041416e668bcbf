"""Taking over partitions of an earlier revision's shadow, on a real catalog."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.domain.catch_up import CarryRequest
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import AdoptRequest, ChunkCommit
from lakehouse_backfill.errors import RunMoved, TargetChanged, Unsupported
from tests.support.lakes.tables import DAY, DAYS, TARGET, Kit, row


def _request(days: Kit, first: AdoptRequest, **changes: Any) -> CarryRequest:
    """Carry the first day over into the shadow of the revision."""
    fields: dict[str, Any] = {
        "shadow": days.shadow_of("r2"), "source": first.shadow,
        "source_snapshot_id": first.shadow_snapshot_id, "chunk_id": "c0001", "epoch": 1,
        "scope": Scope(field=DAY, partitions=DAYS[:1]),
        "properties": {"lakehouse-backfill.run-id": "r2"},
    }  # fmt: skip
    return CarryRequest(**(fields | changes))


def _carry(days: Kit, first: AdoptRequest, **changes: Any) -> ChunkCommit:
    return IcebergPublisher(days.catalog).carry(_request(days, first, **changes))


def _revised(days: Kit) -> AdoptRequest:
    """A run over two days, a live commit in the second, and the shadow of a revision."""
    first = days.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")], DAYS[1]: [row(1, DAYS[1], "new")]})
    days.append(row(9, DAYS[1], "live"))
    days.shadows.open(
        TARGET, days.head(), days.shadow_of("r2"), {"lakehouse-backfill.run-id": "r2"}
    )
    days.shadows.fence(days.shadow_of("r2"), 1)
    return first


@pytest.mark.req("U11")
def test_a_carried_partition_is_the_accepted_one_and_the_rest_is_the_new_base(days: Kit) -> None:
    first = _revised(days)
    found = _carry(days, first)
    assert [item.chunk_id for item in days.shadows.chunks(days.shadow_of("r2"))] == ["c0001"]
    assert (found.snapshot_id, found.added_rows) == (days.head(days.shadow_of("r2")), 1)
    assert days.rows(days.shadow_of("r2")) == [
        (0, DAYS[0], "EU", "new"), (1, DAYS[1], "EU", "old"), (2, DAYS[2], "EU", "old"),
        (9, DAYS[1], "EU", "live"),
    ]  # fmt: skip


@pytest.mark.req("P4")
def test_partitions_of_the_base_itself_are_kept_by_a_commit_that_changes_no_file(
    days: Kit,
) -> None:
    before, base = days.rows(), days.head()
    days.shadows.open(TARGET, base, "shadow.r2", {"lakehouse-backfill.run-id": "r2"})
    days.shadows.fence("shadow.r2", 1)
    request = _request_of_base(base)
    found = IcebergPublisher(days.catalog).carry(request)
    assert IcebergPublisher(days.catalog).carry(request) == found
    assert (found.chunk_id, found.added_rows, found.snapshot_id) == (
        "c0001", 0, days.head("shadow.r2"),
    )  # fmt: skip
    assert days.rows("shadow.r2") == before
    files = [{str(one) for one in _paths(days, name)} for name in (TARGET, "shadow.r2")]
    assert files[0] == files[1]
    # Where all partitions of a followed product are kept, its publication changes no file either.
    adopted = AdoptRequest(
        target=TARGET, shadow="shadow.r2", base_snapshot_id=base, token="token-r2",
        shadow_snapshot_id=found.snapshot_id, chunk_ids=("c0001",), scope=request.scope,
        tags={"before": "lhb-before-r2", "after": "lhb-after-r2"},
        properties={"lakehouse-backfill.run-id": "r2"},
    )  # fmt: skip
    days.publisher.adopt(adopted)
    assert days.rows() == before
    assert days.head() != base


def _request_of_base(base: int | None) -> CarryRequest:
    return CarryRequest(
        shadow="shadow.r2", source=TARGET, source_snapshot_id=base, chunk_id="c0001", epoch=1,
        scope=Scope(field=DAY, partitions=DAYS[:2]),
        properties={"lakehouse-backfill.run-id": "r2"},
    )  # fmt: skip


def _paths(days: Kit, name: str) -> list[str]:
    return [one.file.file_path for one in days.catalog.load_table(name).scan().plan_files()]


@pytest.mark.req("X9")
def test_a_driver_that_is_overtaken_on_the_way_carries_nothing_over(days: Kit) -> None:
    first = _revised(days)
    days.before_commit(lambda: Kit(days.root).shadows.fence(days.shadow_of("r2"), 2))
    with pytest.raises(RunMoved):
        _carry(days, first)
    assert days.shadows.chunks(days.shadow_of("r2")) == ()


def test_files_are_not_carried_into_a_table_with_other_columns(days: Kit) -> None:
    first = _revised(days)
    days.evolve(lambda update: update.rename_column("v", "value"), days.shadow_of("r2"))
    with pytest.raises(TargetChanged, match="its columns changed: v, value"):
        _carry(days, first)


def test_nothing_is_carried_into_a_table_that_is_no_shadow(days: Kit) -> None:
    first = _revised(days)
    with pytest.raises(Unsupported, match="is not a shadow of ours"):
        _carry(days, first, shadow=TARGET)


@pytest.mark.req("U11")
def test_a_revision_lands_what_the_first_run_could_not(days: Kit) -> None:
    first = _revised(days)
    with pytest.raises(TargetChanged):
        days.publisher.adopt(first)
    base = days.head()
    _carry(days, first)
    days.write_chunk(days.shadow_of("r2"), DAY, DAYS[1], [row(1, DAYS[1], "again")], "c0002")
    update = {
        "shadow": days.shadow_of("r2"), "base_snapshot_id": base, "token": "token-r2",
        "shadow_snapshot_id": days.head(days.shadow_of("r2")), "chunk_ids": ("c0001", "c0002"),
        "tags": {"before": "lhb-before-r2", "after": "lhb-after-r2"},
    }  # fmt: skip
    days.publisher.adopt(first.model_copy(update=update))
    assert days.rows() == [
        (0, DAYS[0], "EU", "new"), (1, DAYS[1], "EU", "again"), (2, DAYS[2], "EU", "old"),
    ]  # fmt: skip


@pytest.mark.req("U11")
def test_a_frozen_table_names_a_commit_in_any_partition(days: Kit) -> None:
    request = days.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    number = days.append(row(9, DAYS[2], "live"))
    frozen = request.model_copy(update={"is_frozen": True})
    with pytest.raises(TargetChanged, match=rf"frozen by .* snapshot {number} \(append by"):
        days.publisher.adopt(frozen)
    assert days.publisher.adopt(request).files_added == 1


@pytest.mark.req("U11")
def test_a_frozen_table_lets_our_own_publications_pass(days: Kit) -> None:
    one = days.stage(DAY, {DAYS[0]: [row(0, DAYS[0], "new")]})
    other = days.stage(DAY, {DAYS[2]: [row(2, DAYS[2], "new")]}, run="other")
    days.publisher.adopt(other)
    assert days.publisher.adopt(one.model_copy(update={"is_frozen": True})).files_added == 1
