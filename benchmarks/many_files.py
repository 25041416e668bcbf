"""Publication and rollback of 3 partitions of tables with a thousand to a million data files.

    python -m benchmarks.many_files [--files 1000 20000 100000 1000000] [--rounds 5]

The tables are synthetic: 20 files in each hourly partition, manifests of 10,000 entries that are
clustered by partition, as compaction leaves them. Each table is made by one process and measured by
another, so that the peak memory is that of publication and rollback. No Spark.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.ratios import Ratio, report, seconds
from benchmarks.wide_table import FIELD, fill, stage
from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.iceberg.commit.publisher import IcebergPublisher
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.adapters.iceberg.shadow.shadows import IcebergShadows
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.publication import Publication, PublicationAction
from lakehouse_backfill.domain.tables.commits import (
    AdoptRequest,
    CommitResult,
    PartitionRestore,
    RevertRequest,
)

PER_PARTITION = 20
PER_MANIFEST = 10_000
RESTATED = 3
TABLE, SHADOW = "silver.wide", "shadow.wide"
#: The larger table may take 6 times as long as the smaller, in 1 GiB.
SMALL, LARGE = 20_000, 1_000_000
TIMES, MEMORY_GIB = 6.0, 1.0
Found = dict[str, list[float]]


def main() -> int:
    """Measure, print ratios beside gates, and fail when a gate does not hold."""
    options = _options()
    if options.part:
        part = {"make": make, "measure": measure}[options.part]
        sys.stdout.write(json.dumps(part(options.folder, options.files[0], options.rounds)) + "\n")
        return 0
    found = {files: _in_processes(files, options.rounds) for files in options.files}
    raw = {f"{act}, {n} files": times for n, acts in found.items() for act, times in acts.items()}
    return report("many_files", _ratios(found), raw, {"rounds": options.rounds})


def _in_processes(files: int, rounds: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="lhb-files-") as folder:
        return measure_apart("benchmarks.many_files", Path(folder), files, rounds)


def measure_apart(module: str, folder: Path, files: int, rounds: int) -> Found:
    """Make the tables in one process, measure in another one, and print the medians."""
    for part in ("make", "measure"):
        command = [sys.executable, "-m", module, "--part", part]
        command += ["--folder", str(folder), "--files", str(files), "--rounds", str(rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: Found = json.loads(done.stdout.splitlines()[-1])
    shown = {act: f"{statistics.median(times):.3f}" for act, times in measured.items()}
    sys.stdout.write(f"{files:>9} files: {shown}\n")
    return measured


def _ratios(found: dict[int, Found]) -> list[Ratio]:
    ratios = []
    for files, measured in found.items():
        is_large = files == LARGE
        for act in ("publish", "rollback"):
            if SMALL in found and files != SMALL:
                ratio = statistics.median(measured[act]) / statistics.median(found[SMALL][act])
                title = f"{act}, {files} files / {SMALL} files"
                ratios.append(Ratio(title, ratio, TIMES if is_large else None))
        gib = measured["GiB"][0]
        ratios.append(Ratio(f"GiB of memory, {files} files", gib, MEMORY_GIB if is_large else None))
    return ratios


def make(folder: Path, files: int, _rounds: int) -> Found:
    """Make the table, and a shadow in which 3 partitions were staged."""
    catalog = _catalog(folder)
    fill(catalog, TABLE, files, PER_PARTITION, PER_MANIFEST)
    base = catalog.load_table(TABLE).metadata.current_snapshot_id
    IcebergShadows(catalog, "shadow").open(TABLE, base, SHADOW, {})
    stage(catalog, SHADOW, _labels())
    return {}


def measure(folder: Path, _files: int, rounds: int) -> Found:
    """Publish and roll back in turns; the first round warms up."""
    lake = _Lake(_catalog(folder))
    times: Found = {"publish": [], "rollback": []}
    for number in range(rounds + 1):
        took = {"publish": seconds(lake.publish), "rollback": seconds(lake.roll_back)}
        if number:
            for act, spent in took.items():
                times[act].append(spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**times, "GiB": [peak / (2**30 if sys.platform == "darwin" else 2**20)]}


class _Lake:
    """The swap of a publication and of its rollback, each between the pointer's two moves."""

    def __init__(self, catalog: Any) -> None:
        shadow = catalog.load_table(SHADOW).metadata
        self._head, self._base = shadow.current_snapshot_id, shadow.snapshots[0].snapshot_id
        self._publisher = IcebergPublisher(catalog)
        self._versions = IcebergVersions(ControlTables(catalog, "lakehouse_backfill"))
        self._scope = Scope(field=FIELD, partitions=_labels())
        self._version = 0
        self._swap: CommitResult | None = None

    def publish(self) -> None:
        """Adopt the shadow's files and move the pointer."""
        token = self._reserve()
        request = AdoptRequest(
            target=TABLE,
            base_snapshot_id=self._base,
            shadow=SHADOW,
            shadow_snapshot_id=self._head,
            chunk_ids=("c1",),
            scope=self._scope,
            token=token,
            tags={"before": f"before-{token}", "after": f"after-{token}"},
            properties={},
        )
        self._swap = self._publisher.adopt(request)
        self._move("publish", token)

    def roll_back(self) -> None:
        """Put the old files back and move the pointer."""
        swap = self._swap
        if swap is None:
            raise ValueError("nothing was published")
        token = self._reserve()
        restore = PartitionRestore(
            partitions=self._scope.partitions,
            restore_snapshot_id=swap.before_snapshot_id,
            since_snapshot_id=swap.snapshot_id,
        )
        request = RevertRequest(
            target=TABLE,
            scope=self._scope,
            restores=(restore,),
            token=token,
            tags={"before": f"before-{token}", "after": f"after-{token}"},
            properties={},
        )
        self._publisher.revert(request)
        self._move("rollback", token)

    def _reserve(self) -> str:
        self._version += 1
        token = uuid4().hex
        self._move("reserve", token)
        return token

    def _move(self, action: PublicationAction, token: str) -> None:
        row = Publication(
            product=TABLE,
            version=self._version,
            token=token,
            action=action,
            run_id=None,
            table=TABLE,
            snapshot_id=self._swap.snapshot_id if self._swap else None,
            before_snapshot_id=None,
            scope=self._scope,
            supersedes=None,
            at=datetime.now(timezone.utc),
            by="benchmark",
        )
        self._versions.move(TABLE, lambda _: (row,))


def _catalog(folder: Path) -> Any:
    properties = {
        "name": "lake",
        "uri": "sqlite:///${project}/catalog.db",
        "warehouse": "file://${project}/warehouse",
    }
    return open_catalog(Profile(catalog=properties), folder)


def _labels() -> tuple[str, ...]:
    start = datetime(2020, 1, 1, 5, tzinfo=timezone.utc)
    return tuple(f"{start + timedelta(hours=number):%Y-%m-%dT%H}" for number in range(RESTATED))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Publication on tables with many data files.")
    parser.add_argument(
        "--files", type=int, nargs="+", default=[1_000, SMALL, 100_000, LARGE], help="table sizes"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=["make", "measure"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
