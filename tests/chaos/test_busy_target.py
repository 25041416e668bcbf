"""A large manifest and a writer that never rests: publications land all the same."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

from benchmarks.wide_table import FIELD, FIRST_HOUR, fill, stage
from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.tables.commits import (
    AdoptRequest,
    CommitResult,
    PartitionRestore,
    RevertRequest,
)
from tests.chaos.crowd import Beside, catalog_of

TABLE, SHADOW = "silver.wide", "shadow.wide"
FILES, PER_PARTITION = 20_000, 2
SCOPE = Scope(field=FIELD, partitions=("2020-01-01T01", "2020-01-01T02", "2020-01-01T03"))
COMMITS_PER_S = 5
#: Long enough where other tests leave this one little of the machine.
BUDGET_S = 180.0
HOUR_US = 3_600_000_000
#: Where the live writer appends: no run touches it.
WRITTEN = FIRST_HOUR + 50_000


def append_often(folder: Path, say: Any, stop: Any) -> None:
    """Append a row into an hour of its own five times a second, whatever else happens."""
    catalog, number, due = catalog_of(folder), 0, time.monotonic()
    while number == 0 or not stop.is_set():
        number += 1
        at = WRITTEN * HOUR_US
        row = pa.table(
            {
                "id": pa.array([number], pa.int64()),
                "at": pa.array([at], pa.timestamp("us", tz="UTC")),
            }
        )
        while True:
            try:
                catalog.load_table(TABLE).append(row)
                break
            except (CommitFailedException, OperationalError):
                time.sleep(0.005)
        say([number, time.time()])
        due += 1 / COMMITS_PER_S
        time.sleep(max(0.0, due - time.monotonic()))


def live(folder: Path) -> dict[str, int]:
    """The live files of the table with their hours, from its manifests."""
    table = catalog_of(folder).load_table(TABLE)
    head = table.current_snapshot()
    assert head is not None
    return {
        entry.data_file.file_path: entry.data_file.partition[0]
        for manifest in head.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }


@dataclass
class Wide:
    """The table with its staged shadow."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "lake").mkdir()
        self.catalog = catalog_of(self.folder)
        fill(self.catalog, TABLE, FILES, PER_PARTITION, per_manifest=FILES)
        self.catalog.create_namespace("shadow")
        self.base = self.head(TABLE)
        IcebergShadows(self.catalog, "shadow").open(TABLE, self.base, SHADOW, {})
        stage(self.catalog, SHADOW, SCOPE.partitions)

    def head(self, name: str) -> int:
        found = self.catalog.load_table(name).current_snapshot()
        assert found is not None
        return found.snapshot_id

    def adopt(self) -> CommitResult:
        request = AdoptRequest(
            target=TABLE,
            base_snapshot_id=self.base,
            shadow=SHADOW,
            shadow_snapshot_id=self.head(SHADOW),
            chunk_ids=("c1",),
            scope=SCOPE,
            token="adopt",
            tags={"before": "lhb-before", "after": "lhb-after"},
            properties={},
        )
        return IcebergPublisher(self.catalog, BUDGET_S).adopt(request)

    def revert(self, swap: CommitResult) -> CommitResult:
        back = PartitionRestore(
            partitions=SCOPE.partitions,
            restore_snapshot_id=swap.before_snapshot_id,
            since_snapshot_id=swap.snapshot_id,
        )
        request = RevertRequest(
            target=TABLE,
            scope=SCOPE,
            restores=(back,),
            token="revert",
            tags={"before": "lhb-before-2", "after": "lhb-after-2"},
            properties={},
        )
        return IcebergPublisher(self.catalog, BUDGET_S).revert(request)


@pytest.mark.req("U11", "T8")
def test_adopt_and_rollback_land_beside_a_writer_of_five_commits_a_second_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """What one more attempt costs is held by tests/contract/test_busy_target.py."""
    wide = Wide(tmp_path)
    before = live(tmp_path)
    with Beside(tmp_path, tmp_path / "writer", append_often) as writer:
        begun = time.time()
        swap = wide.adopt()
        middle = live(tmp_path)
        wide.revert(swap)
        ended = time.time()
    assert [number for number, at in writer.said if begun < at < ended], "nobody wrote meanwhile"

    hours = {FIRST_HOUR + hour for hour in (1, 2, 3)}
    others = {path for path, hour in before.items() if hour not in hours}
    new = {path for path, hour in middle.items() if hour in hours}
    assert {path for path, hour in middle.items() if hour not in {*hours, WRITTEN}} == others
    assert len(new - before.keys()) == len(new) == len(hours) * PER_PARTITION
    after = live(tmp_path)
    assert {path: hour for path, hour in after.items() if hour != WRITTEN} == before
    rows = wide.catalog.load_table(TABLE).scan(f"at >= '{_time(WRITTEN)}'").to_arrow()
    assert sorted(rows["id"].to_pylist()) == [number for number, _ in writer.said]


def _time(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, timezone.utc).isoformat()
