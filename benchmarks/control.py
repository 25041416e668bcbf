"""Pointer moves on one control table: how a move and a read grow with the history.

    python -m benchmarks.control [--moves 10000] [--products 4]

One process, a SQLite catalog in a temporary folder, one commit a move. The gate is that of the
issue: after 10,000 moves the pointer is read in under 50 ms.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.ratios import Ratio, report, seconds
from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.iceberg.control.runs import IcebergRuns
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.domain.publication import Publication

READ_S = 0.05
ROUNDS = 15
NAMESPACE = "lakehouse_backfill"
TABLE = f"{NAMESPACE}.accepted_output_version"
PROFILE = Profile(
    catalog={
        "name": "lake", "uri": "sqlite:///${project}/catalog.db",
        "warehouse": "file://${project}/warehouse",
    }
)  # fmt: skip


def main() -> int:
    """Measure, print the curve and the gate, and fail when it does not hold."""
    parser = argparse.ArgumentParser(description="Pointer moves and reads over a long history.")
    parser.add_argument("--moves", type=int, default=10_000)
    parser.add_argument("--products", type=int, default=4)
    options = parser.parse_args()
    raw: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="lhb-control-") as folder:
        read = _measure(Path(folder), options.moves, options.products, raw)
    ratios = [
        Ratio(f"pointer read after {options.moves} moves / {READ_S * 1000:g} ms", read / READ_S, 1)
    ]
    return report("control", ratios, raw, vars(options))


def _measure(folder: Path, moves: int, products: int, raw: dict[str, list[float]]) -> float:
    catalog = open_catalog(PROFILE, folder)
    control = ControlTables(catalog, NAMESPACE)
    versions, runs = IcebergVersions(control), IcebergRuns(control)
    looks = {max(1, moves // 100), max(1, moves // 10), max(1, moves // 2), moves}
    sys.stdout.write("  moves  move ms  read ms  status ms  files  manifests  metadata bytes\n")
    took: list[float] = []
    read = 0.0
    for number in range(1, moves + 1):
        row = _act(number, f"silver.p{number % products}")
        took.append(seconds(lambda row=row: versions.move(row.product, lambda _: (row,))))  # type: ignore[misc]
        if number in looks:
            reads = [seconds(lambda: versions.pointer("silver.p0")) for _ in range(ROUNDS)]
            status = [seconds(runs.list) for _ in range(ROUNDS)]
            read = statistics.median(reads)
            raw |= {f"move at {number}": took[-100:], f"read at {number}": reads}
            table = catalog.load_table(TABLE)
            snapshot = table.current_snapshot()
            manifests = snapshot.manifests(table.io) if snapshot else []
            files = list(table.scan().plan_files())
            sys.stdout.write(
                f"{number:7d}  {statistics.median(took[-100:]) * 1000:7.1f}  {read * 1000:7.1f}  "
                f"{statistics.median(status) * 1000:9.1f}  {len(files):5d}"
                f"  {len(manifests):9d}  {len(table.io.new_input(table.metadata_location)):14d}\n"
            )
            sys.stdout.flush()
    return read


def _act(number: int, product: str) -> Publication:
    return Publication(
        product=product, version=number, token=f"{number:032d}", action="publish",
        run_id=f"bf-{number:010d}", table="silver.t", snapshot_id=number,
        before_snapshot_id=number - 1, scope=None, supersedes=number - 1,
        at=datetime.now(timezone.utc), by="ana", reason="wrong rate",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
