"""What a small restatement costs in waiting: from plan to published, one partition of 10 rows.

python -m benchmarks.journey [--rounds 3]

Each command is a process of its own, as it is typed: without a warm session, and with one that
`session start` has started before. The gates are seconds on two quiet cores, and are printed
beside the load of the machine: on a busy one they say little. So the seconds of processor time are
printed too, those of JVMs and of the session's processes included: on any machine they compare two
versions. A JVM goes on for a moment when its command has ended; the next command waits for that.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import date
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from benchmarks.ratios import Ratio, environment, report

PROGRAM = "from lakehouse_backfill.cli.entry import run; run()"
DAYS = tuple(date(2024, 1, day) for day in range(1, 29))
#: Far enough from each other that no edge of one is another.
WRONG = DAYS[3::3]
FILES = {
    "catalog/profiles.yaml": """\
api_version: lakehouse-backfill/v1
default: own
profiles:
  own:
    environment: dev
    catalog:
      name: lake
      type: sql
      uri: sqlite:///${project}/lake/catalog.db
      warehouse: file://${project}/lake/warehouse
""",
    "catalog/contracts/silver.t.yaml": """\
api_version: lakehouse-backfill/v1
product: silver.t
table: silver.t
description: Amounts per day.
owner: ana
key: [d, k]
partitioning: [{column: d}]
columns:
  - {name: d, type: date}
  - {name: k, type: long}
  - {name: v, type: long}
suites:
  - {file: expectations/silver.t.json, on: output}
consumers: []
classification: internal
retention_days: unlimited
lineage_columns: false
roles: {approve: [ana], accept: [ana], publish: [ana]}
""",
    "expectations/silver.t.json": json.dumps(
        {
            "name": "silver.t",
            "expectations": [
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "v"}},
                {
                    "type": "expect_column_values_to_be_between",
                    "kwargs": {"column": "k", "min_value": 0, "max_value": 9},
                },
            ],
        }
    ),
    "jobs/t.py": """\
from lakehouse_backfill.transforms import transform


@transform(name="copy", version="1.0.0", inputs=("s",))
def tenfold(context, s):
    return s.select("d", "k", "v")
""",
}
MANIFEST = """\
api_version: lakehouse-backfill/v1
run: {{requested_by: ana, reason: wrong rate {day}, reason_code: bug_fix}}
product: silver.t
transform: {{name: copy, version: 1.0.0, file: jobs/t.py}}
sources:
  s: {{table: bronze.s, range: {{column: d, from: 2023-12-01, to: 2024-02-01}}}}
target:
  partitions: {{column: d, from: {day}, to: {after}}}
"""
Steps = dict[str, float]


def main() -> int:
    """Measure both ways, print seconds beside gates, and fail when a gate does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, choices=(1, 2, 3, 4))
    rounds = parser.parse_args().rounds
    raw: dict[str, list[float]] = {}
    _adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="lhb-journey-") as folder:
        project = Path(folder)
        make_project(project)
        wrong = iter(WRONG)
        for way in ("cold", "warm"):
            if way == "warm":
                raw["warm, session start"] = [_take(project, "session", "start")[0]]
            for number in range(rounds):
                host = _take(project, "session", "status")[1]["pid"]
                before = _processor_seconds(host)
                steps = _journey(project, next(wrong), f"{way}-{number}")
                used = _processor_seconds(host) - before
                raw.setdefault(f"{way}, processor time in sum", []).append(used)
                for step, took in {**steps, "in sum": sum(steps.values())}.items():
                    raw.setdefault(f"{way}, {step}", []).append(took)
        _take(project, "session", "stop")
    for name, values in raw.items():
        sys.stdout.write(f"{statistics.median(values):8.2f} s  {name}\n")
    busy = os.getloadavg()[0]
    ratios = [
        Ratio("seconds from plan to published, cold", min(raw["cold, in sum"]), 25.0),
        Ratio("seconds from plan to published, warm session", min(raw["warm, in sum"]), 8.0),
        Ratio("seconds of the second run in a warm session", min(raw["warm, run"]), None, 2.0),
    ]
    return report("journey", ratios, raw, {"rounds": rounds, "load": busy, "cores": os.cpu_count()})


def make_project(project: Path) -> None:
    """Write the declarations, and two tables of ten rows a day; in one some days are wrong."""
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (project / "lake").mkdir()
    lake = project / "lake"
    catalog = SqlCatalog(
        "lake", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse"
    )
    schema = Schema(
        NestedField(1, "d", DateType()),
        NestedField(2, "k", LongType()),
        NestedField(3, "v", LongType()),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "d"))
    for table, wrong in (("bronze.s", ()), ("silver.t", WRONG)):
        catalog.create_namespace(table.partition(".")[0])
        made = catalog.create_table(table, schema, partition_spec=spec)
        rows = [(day, key, key + (day in wrong)) for day in DAYS for key in range(10)]
        values = list(zip(*rows, strict=True))
        types = (pa.date32(), pa.int64(), pa.int64())
        made.append(
            pa.table({n: pa.array(v, t) for n, v, t in zip("dkv", values, types, strict=True)})
        )
    catalog.engine.dispose()


def _journey(project: Path, day: date, name: str) -> Steps:
    """Restate one day, each step as a command of its own; return its seconds."""
    file = project / "jobs" / f"{name}.yaml"
    after = day.replace(day=day.day + 1)
    file.write_text(MANIFEST.format(day=day, after=after), encoding="utf-8")
    took, planned = _take(project, "plan", f"jobs/{file.name}", "--by", "ana")
    run, steps = planned["run_id"], {"plan": took}
    for verb in ("approve", "run", "accept", "publish"):
        steps[verb] = _take(project, verb, run, "--by", "ana")[0]
        if name.startswith("cold"):
            _wait_for_orphans()
    return steps


def _adopt_orphans() -> None:
    """Make this process the parent of what its commands leave, so that its time is counted."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _wait_for_orphans() -> None:
    """Wait for the JVM of a command that has ended; not with a session, whose host stays."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _processor_seconds(host: int | None) -> float:
    """Return the processor time of the commands until now, and of a session's processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks, family = 0, {host}
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat") if host else ():
        with suppress(OSError):
            fields = path.read_text("ascii", "replace").rpartition(")")[2].split()
            processes[int(path.parent.name)] = fields
    # A process has a higher number than the one that started it, unless numbers began anew.
    for pid, fields in sorted(processes.items()):
        if pid in family or int(fields[1]) in family:
            family.add(pid)
            ticks += sum(map(int, fields[11:15]))
    return used.ru_utime + used.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def _take(project: Path, *words: str) -> tuple[float, dict[str, str]]:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--json", *words], cwd=project, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return took, json.loads(done.stdout.splitlines()[-1])["data"]


if __name__ == "__main__":
    sys.exit(main())
