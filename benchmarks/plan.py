"""Planning 500 of the 20,000 partitions of a product with a million data files. No Spark.

    python -m benchmarks.plan [--files 50000 1000000] [--rounds 3] [--folder DIR]

The tables are synthetic: 50 files in each hourly partition, manifests of 10,000 entries that are
clustered by partition; the source has one file for each hour. The plan is a dry run of the Python
API, with all that `plan` does. It is compared with reading, once, the manifests of target and
source that may list files of these partitions. With `--folder` the tables are kept for the next
call. The cascade is one of 50 small products (`benchmarks/cascade.py`): the processor time of
planning it, beside that of planning its first product alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cascade import CATALOG, PRODUCTS, measure_cascade
from benchmarks.many_files import Found, measure_apart
from benchmarks.ratios import Ratio, report, seconds
from benchmarks.wide_table import FIELD, fill
from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ScopedReader
from lakehouse_backfill.adapters.pyiceberg_manifests import read_manifest_entries
from lakehouse_backfill.domain.partitions import Scope, labels_between
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.project import Project

PER_PARTITION = 50
PER_MANIFEST = 10_000
#: Planned partitions: a 40th of the largest table's.
PLANNED = 500
TABLE, SOURCE = "silver.wide", "bronze.wide_raw"
LARGE = 1_000_000
TIMES, MEMORY_GIB, CASCADE_TIMES = 3.0, 2.0, 10.0
#: The first planned hour: manifests before and after it are not needed.
FIRST = datetime(2020, 1, 5, tzinfo=timezone.utc)
STOP = FIRST + timedelta(hours=PLANNED)
JOB = """
from lakehouse_backfill.transforms import transform

@transform(name="wide", version="1.0.0", inputs=("source",))
def wide(context, source):
    return source
"""


def main() -> int:
    """Measure, print ratios beside gates, and fail when a gate does not hold."""
    options = _options()
    if options.part:
        part = {"make": make, "measure": measure}[options.part]
        sys.stdout.write(json.dumps(part(options.folder, options.files[0], options.rounds)) + "\n")
        return 0
    found = {files: _in_processes(options, files) for files in options.files}
    raw = {f"{act}, {n} files": times for n, acts in found.items() for act, times in acts.items()}
    cascade = measure_cascade(options.rounds)
    raw |= {f"{act}, processor": times for act, times in cascade.items()}
    one, whole, one_alone, whole_alone = map(statistics.median, cascade.values())
    title = f"processor time of planning a cascade of {PRODUCTS} products / one of them"
    ratios = [
        *_ratios(found),
        Ratio(title, whole / one, CASCADE_TIMES),
        Ratio(f"{title}, as commands", whole_alone / one_alone, None),
    ]
    return report("plan", ratios, raw, {"rounds": options.rounds, "partitions": PLANNED})


def _in_processes(options: argparse.Namespace, files: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="lhb-plan-") as made:
        folder = options.folder / str(files) if options.folder else Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        return measure_apart("benchmarks.plan", folder, files, options.rounds)


def _ratios(found: dict[int, Found]) -> list[Ratio]:
    ratios = []
    for files, measured in found.items():
        is_large = files == LARGE
        ratio = statistics.median(measured["plan"]) / statistics.median(measured["manifests"])
        title = f"plan of {PLANNED} partitions / reading the manifests that it needs, {files} files"
        ratios.append(Ratio(title, ratio, TIMES if is_large else None))
        gib = measured["GiB"][0]
        ratios.append(Ratio(f"GiB of memory, {files} files", gib, MEMORY_GIB if is_large else None))
    return ratios


def make(folder: Path, files: int, _rounds: int) -> Found:
    """Make the tables, and a project that restates the partitions; what is there already stays."""
    catalog = _catalog(folder)
    if not catalog.table_exists(TABLE):
        fill(catalog, SOURCE, max(files // PER_PARTITION, PLANNED), 1, PER_MANIFEST)
        fill(catalog, TABLE, files, PER_PARTITION, PER_MANIFEST)
    profile = {"environment": "dev", "catalog": CATALOG}
    documents = {
        "catalog/profiles.yaml": {
            "api_version": "lakehouse-backfill/v1", "default": "dev", "profiles": {"dev": profile},
        },
        f"catalog/contracts/{TABLE}.yaml": {
            "api_version": "lakehouse-backfill/v1", "product": TABLE, "table": TABLE,
            "description": "A wide table.", "owner": "ann", "key": ["id"],
            "partitioning": [{"column": "at", "transform": "hour"}],
            "columns": [{"name": "id", "type": "long"}, {"name": "at", "type": "timestamptz"}],
            "consumers": [], "classification": "internal", "retention_days": "unlimited",
        },
        "jobs/wide.yaml": {
            "api_version": "lakehouse-backfill/v1",
            "run": {"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix"},
            "product": TABLE,
            "transform": {"name": "wide", "version": "1.0.0", "file": "jobs/wide.py"},
            "sources": {"source": {
                "table": SOURCE,
                "range": {"column": "at", "from": "2020-01-01", "to": "2020-03-01"},
            }},
            "target": {"partitions": {
                "column": "at", "from": FIRST.isoformat(), "to": STOP.isoformat(),
            }},
        },
    }  # fmt: skip
    for name, document in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
    (folder / "jobs/wide.py").write_text(JOB, encoding="utf-8")
    return {}


def measure(folder: Path, files: int, rounds: int) -> Found:
    """Plan, and read the manifests, in turns; the first round warms up."""
    project = Project.open(folder)
    times: Found = {"plan": [], "manifests": []}
    for number in range(rounds + 1):
        took = {"plan": seconds(lambda: _plan(project, files))}
        if not number:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        took["manifests"] = seconds(lambda: _read_manifests(folder))
        if number:
            for act, spent in took.items():
                times[act].append(spent)
    return {**times, "GiB": [peak / (2**30 if sys.platform == "darwin" else 2**20)]}


def _plan(project: Project, files: int) -> None:
    plan = project.plan("jobs/wide.yaml", by="ann", dry_run=True)
    wanted = min(PLANNED * PER_PARTITION, files)
    if (len(plan.partitions), plan.estimate.output_files) != (PLANNED, wanted):
        raise ValueError(f"{plan.estimate} is not of {PLANNED} partitions and {wanted} files")


def _read_manifests(folder: Path) -> None:
    catalog, labels = _catalog(folder), labels_between(FIELD, FIRST, STOP)
    scope = Scope(field=FIELD, partitions=tuple(sorted(labels)))
    for name in (TABLE, SOURCE):
        table = catalog.load_table(name)
        reader = ScopedReader(table, scope)
        for manifest in reader.manifests(table.current_snapshot()):
            if reader.may_list_live_files(manifest):
                read_manifest_entries(table.io, manifest)


def _catalog(folder: Path) -> Any:
    return open_catalog(Profile(catalog=CATALOG), folder)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Planning on tables with many data files.")
    parser.add_argument("--files", type=int, nargs="+", default=[50_000, LARGE], help="table sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the tables are made, and kept")
    parser.add_argument("--part", choices=["make", "measure"], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
