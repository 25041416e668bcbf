"""A fenced shadow refuses whoever loaded it before; the rules of `Shadows.fence`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ServiceUnavailableError

from lakehouse_backfill.adapters.iceberg.metadata import EPOCH_PROPERTY, FENCE_UUID_PROPERTY
from lakehouse_backfill.errors import CatalogDown, RunMoved, Unsupported
from tests.support.lakes.tables import TARGET, Kit, _arrow, row

pytestmark = pytest.mark.req("X9")
SHADOW = "shadow.r1"
RUN = {"lakehouse-backfill.run-id": "bf-1"}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    found = Kit(tmp_path)
    found.create(("d", "identity"))
    found.append(row(1, "2026-01-01"), row(2, "2026-01-02"))
    found.shadows.open(TARGET, found.head(), SHADOW, RUN)
    return found


def state(kit: Kit) -> tuple[Any, ...]:
    metadata = kit.live.load_table(SHADOW).metadata
    return (
        metadata.table_uuid,
        metadata.current_snapshot_id,
        metadata.properties.get(EPOCH_PROPERTY),
    )


def test_a_writer_that_loaded_the_shadow_before_the_fence_cannot_commit(kit: Kit):
    old = kit.live.load_table(SHADOW)
    kit.shadows.fence(SHADOW, 5)
    before = state(kit)
    # Its own retries load the table again, and find another one there.
    with pytest.raises((CommitFailedException, ValueError), match="UUID does not match"):
        old.append(_arrow(old, [row(3, "2026-01-03")]))
    assert state(kit) == before
    assert len(kit.rows(SHADOW)) == 2


def test_a_writer_in_the_middle_of_its_write_cannot_commit(kit: Kit):
    old = kit.live.load_table(SHADOW)
    staged = old.transaction()
    staged.append(_arrow(old, [row(3, "2026-01-03")]))
    kit.shadows.fence(SHADOW, 5)
    with pytest.raises((CommitFailedException, ValueError), match="UUID does not match"):
        staged.commit_transaction()
    assert len(kit.rows(SHADOW)) == 2


def test_a_writer_that_loads_the_shadow_after_the_fence_commits(kit: Kit):
    kit.shadows.fence(SHADOW, 5)
    kit.append(row(3, "2026-01-03"), name=SHADOW)
    assert len(kit.rows(SHADOW)) == 3
    assert len(kit.rows(TARGET)) == 2


def test_a_fence_changes_nothing_but_uuid_and_epoch(kit: Kit):
    before = kit.live.load_table(SHADOW).metadata
    kit.shadows.fence(SHADOW, 5)
    after = kit.live.load_table(SHADOW).metadata
    assert after.table_uuid != before.table_uuid
    marks = {EPOCH_PROPERTY: "5", FENCE_UUID_PROPERTY: str(after.table_uuid)}
    assert after.properties == {**before.properties, **marks}
    same = ("snapshots", "refs", "schemas", "partition_specs", "location", "last_sequence_number")
    assert all(getattr(after, name) == getattr(before, name) for name in same)


def test_the_same_epoch_again_does_nothing(kit: Kit):
    kit.shadows.fence(SHADOW, 5)
    before = kit.live.load_table(SHADOW).metadata_location
    kit.shadows.fence(SHADOW, 5)
    assert kit.live.load_table(SHADOW).metadata_location == before


def test_an_earlier_epoch_is_refused(kit: Kit):
    kit.shadows.fence(SHADOW, 5)
    before = state(kit)
    with pytest.raises(RunMoved, match=r"bf-1 was taken over .* \(lease 4, now 5\)"):
        kit.shadows.fence(SHADOW, 4)
    assert state(kit) == before
    kit.shadows.fence(SHADOW, 6)
    assert state(kit)[2] == "6"


def test_a_fenced_shadow_is_opened_again_as_it_is(kit: Kit):
    first = kit.shadows.open(TARGET, kit.head(), SHADOW, RUN)
    kit.shadows.fence(SHADOW, 5)
    kit.append(row(3, "2026-01-03"), name=SHADOW)
    again = kit.shadows.open(TARGET, kit.head(), SHADOW, RUN)
    assert again.uuid != first.uuid
    assert again.snapshot_id == kit.live.load_table(SHADOW).metadata.current_snapshot_id
    assert again.properties[EPOCH_PROPERTY] == "5"


def test_only_shadows_are_fenced(kit: Kit):
    with pytest.raises(Unsupported, match="outside the namespace"):
        kit.shadows.fence(TARGET, 5)
    kit.catalog.create_table("shadow.mine", kit.live.load_table(TARGET).schema())
    with pytest.raises(Unsupported, match="not a shadow of ours"):
        kit.shadows.fence("shadow.mine", 5)


def test_of_many_fences_at_once_the_latest_stands_and_the_others_are_told(kit: Kit):
    barrier = threading.Barrier(6)
    outcomes: dict[int, str] = {}

    def fence(epoch: int) -> None:
        shadows = Kit(kit.root).shadows
        barrier.wait()
        try:
            shadows.fence(SHADOW, epoch)
            outcomes[epoch] = "fenced"
        except RunMoved:
            outcomes[epoch] = "refused"

    threads = [threading.Thread(target=fence, args=(epoch,)) for epoch in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 6
    assert outcomes[6] == "fenced"
    assert state(kit)[2] == "6"


def test_whoever_made_the_shadow_and_was_overtaken_does_not_drop_it(kit: Kit, monkeypatch):
    """Another process finds it, fences it and goes on before its maker has looked at it."""
    kit.shadows.retire(SHADOW)
    register = kit.catalog.register_table

    def overtaken(*args: Any, **options: Any) -> Any:
        made = register(*args, **options)
        Kit(kit.root).shadows.fence(SHADOW, 5)
        return made

    monkeypatch.setattr(kit.catalog, "register_table", overtaken)
    kit.shadows.open(TARGET, kit.head(), SHADOW, RUN)
    with pytest.raises(RunMoved):
        kit.shadows.fence(SHADOW, 4)
    assert state(kit)[2] == "5"


# --- catalogs that do it in another way -----------------------------------------------------------

Commit = Callable[..., Any]


def instead(kit: Kit, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Commit, Any], Any]):
    """Let `trouble(commit, updates)` run in place of the next commit."""
    commit = kit.catalog.commit_table

    def once(table: Any, requirements: Any, updates: Any) -> Any:
        monkeypatch.setattr(kit.catalog, "commit_table", commit)
        return trouble(lambda given: commit(table, requirements, given), updates)

    monkeypatch.setattr(kit.catalog, "commit_table", once)


def test_a_catalog_that_refuses_another_uuid_is_unsupported(kit: Kit, monkeypatch):
    def refuse(commit: Commit, updates: Any) -> Any:
        raise BadRequestError("cannot reassign uuid")

    instead(kit, monkeypatch, refuse)
    before = state(kit)
    with pytest.raises(Unsupported, match=r"does not give shadow\.r1 a new UUID"):
        kit.shadows.fence(SHADOW, 5)
    assert state(kit) == before


def test_a_catalog_that_keeps_the_uuid_silently_is_unsupported_each_time(kit: Kit, monkeypatch):
    for _ in range(2):
        instead(kit, monkeypatch, lambda commit, updates: commit(updates[1:]))
        with pytest.raises(Unsupported, match="new UUID"):
            kit.shadows.fence(SHADOW, 5)


def test_a_fence_whose_answer_was_lost_is_found(kit: Kit, monkeypatch):
    def lose_the_answer(commit: Commit, updates: Any) -> Any:
        commit(updates)
        raise ServiceUnavailableError("503")

    instead(kit, monkeypatch, lose_the_answer)
    kit.shadows.fence(SHADOW, 5)
    assert state(kit)[2] == "5"


def test_a_fence_that_did_not_land_is_reported_and_may_be_repeated(kit: Kit, monkeypatch):
    def fail(commit: Commit, updates: Any) -> Any:
        raise ServiceUnavailableError("503")

    instead(kit, monkeypatch, fail)
    with pytest.raises(CatalogDown):
        kit.shadows.fence(SHADOW, 5)
    kit.shadows.fence(SHADOW, 5)
    assert state(kit)[2] == "5"


def test_a_fence_that_lost_a_race_is_set_on_what_the_winner_left(kit: Kit, monkeypatch):
    def lose(commit: Commit, updates: Any) -> Any:
        kit.append(row(3, "2026-01-03"), name=SHADOW)
        raise CommitFailedException("moved")

    instead(kit, monkeypatch, lose)
    kit.shadows.fence(SHADOW, 5)
    assert state(kit)[2] == "5"
    assert len(kit.rows(SHADOW)) == 3
