"""Pointer moves by many processes at once; `benchmarks.control` measures long histories.

    python -m benchmarks.pointer [--postgres postgresql+psycopg2://u:p@host/db]

8 processes move the pointers of 4 products, 20 times each. Without `--postgres` only SQLite is
measured; its database must be empty. These gates are seconds: use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio, report
from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from tests.contract.test_control_races import (
    MOVES,
    PROCESSES,
    PRODUCTS,
    control_tables,
    move_pointers,
    race,
)
from tests.support.lakes.catalogs import EMBEDDED, NAMES_CATALOG

MOVE_P95_S = 1.5


def main() -> int:
    """Measure, print beside the gates, and fail when one does not hold."""
    parser = argparse.ArgumentParser(description="Pointer moves of many processes.")
    parser.add_argument("--postgres", help="uri of an empty PostgreSQL database")
    options = parser.parse_args()
    found: list[Ratio] = []
    raw: dict[str, list[float]] = {}
    for name, uri in (("SQLite", None), ("PostgreSQL", options.postgres)):
        if name == "SQLite" or uri:
            with tempfile.TemporaryDirectory(prefix="lhb-pointer-") as folder:
                found += _measure(name, _place(Path(folder), uri), raw)
    return report("pointer", found, raw, {})


def _place(folder: Path, uri: str | None) -> Path:
    """Let the folder mean the catalog, also for the processes."""
    warehouse = f"file://{folder}/lake/warehouse"
    properties = EMBEDDED if uri is None else {"name": "lake", "uri": uri, "warehouse": warehouse}
    (folder / NAMES_CATALOG).write_text(json.dumps(properties), encoding="utf-8")
    return folder


def _measure(name: str, folder: Path, raw: dict[str, Any]) -> list[Ratio]:
    results = [move for one in race(move_pointers, folder, PROCESSES) for move in one]
    took = raw[f"{name}: a move among {PROCESSES} processes"] = sorted(one[2] for one in results)
    versions = IcebergVersions(control_tables(folder))
    kept = sum(len(versions.history(f"silver.p{number}")) for number in range(PRODUCTS))
    lost = abs(PROCESSES * MOVES - kept)
    return [
        Ratio(f"{name}: moves of {PROCESSES} processes lost or doubled", lost, gate=0),
        Ratio(f"{name}: p95 of such a move, s", took[int(len(took) * 0.95)], gate=MOVE_P95_S),
    ]


if __name__ == "__main__":
    sys.exit(main())
