"""A version's own table (U5): a clone by metadata, found again, independent of the shadow."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.errors import Conflict
from tests.support.lakes.tables import DAY, TARGET, Kit, row

DAYS = ("2013-02-01", "2013-02-02")
NAME = f"{TARGET}_v1"
MARKS = {"lakehouse-backfill.output-version": "1", "lakehouse-backfill.result-digest": "d" * 64}
ROWS = [(0, DAYS[0], "EU", "old"), (5, DAYS[1], "EU", "new")]


def staged(kit: Kit, version: int = 2) -> int:
    kit.create_days(DAYS, version=version)
    request = kit.stage(DAY, {DAYS[1]: [row(5, DAYS[1], "new")]})
    assert request.shadow_snapshot_id is not None
    return request.shadow_snapshot_id


@pytest.mark.req("U5")
@pytest.mark.parametrize("version", [1, 2])
def test_a_version_is_a_table_that_outlives_its_shadow(tmp_path: Path, version: int) -> None:
    kit = Kit(tmp_path)
    snapshot_id = staged(kit, version)
    shadow = kit.live.load_table("shadow.r1")
    kept = kit.shadows.keep("shadow.r1", snapshot_id, NAME, MARKS)
    assert (kept.snapshot_id, kept.format_version) == (snapshot_id, version)
    assert kept.uuid != str(shadow.metadata.table_uuid)
    assert kept.location != shadow.location()
    assert kept.properties["gc.enabled"] == "false"
    # The same again, as after a crash, gives the same table.
    assert kit.shadows.keep("shadow.r1", snapshot_id, NAME, MARKS).uuid == kept.uuid
    # Neither metadata file is named by the other: commits on one delete nothing of the other.
    for number in range(8):
        kit.append(row(100 + number, DAYS[0]), name="shadow.r1")
    assert kit.rows(NAME) == ROWS
    kit.shadows.retire("shadow.r1")
    assert kit.rows(NAME) == ROWS


@pytest.mark.req("U5")
def test_a_table_of_somebody_else_with_that_name_is_a_conflict(kit: Kit) -> None:
    snapshot_id = staged(kit)
    kit.create(("d", "identity"), name=NAME)
    kit.append(row(7, DAYS[0]), name=NAME)
    with pytest.raises(Conflict, match=f"{NAME} is already there, for something else"):
        kit.shadows.keep("shadow.r1", snapshot_id, NAME, MARKS)
    assert [found[0] for found in kit.rows(NAME)] == [7]


@pytest.mark.req("U5")
def test_another_result_never_takes_the_place_of_a_version(kit: Kit) -> None:
    snapshot_id = staged(kit)
    kit.shadows.keep("shadow.r1", snapshot_id, NAME, MARKS)
    other = MARKS | {"lakehouse-backfill.result-digest": "e" * 64}
    with pytest.raises(Conflict, match="result-digest is dddd"):
        kit.shadows.keep("shadow.r1", snapshot_id, NAME, other)


@pytest.mark.req("U5", "X9")
def test_a_run_on_top_of_a_version_is_not_shut_out_by_the_run_before(tmp_path: Path) -> None:
    """The epoch that fenced the earlier shadow is not inherited: it would outrank a new run's."""
    kit = Kit(tmp_path)
    snapshot_id = staged(kit)
    kit.shadows.fence("shadow.r1", 41)
    kit.shadows.keep("shadow.r1", snapshot_id, NAME, MARKS)
    kit.shadows.open(NAME, snapshot_id, "shadow.r2", {"lakehouse-backfill.run-id": "r2"})
    kit.shadows.fence("shadow.r2", 3)
    assert kit.rows("shadow.r2") == ROWS
