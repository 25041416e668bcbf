"""Synthetic products that are computed from each other, and the processor time of planning them."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.project import Project

PRODUCTS = 50
PROGRAM = "from lakehouse_backfill.cli.entry import run; run()"
DAYS = tuple(date(2024, 1, day) for day in range(1, 29))
_SOURCE = "bronze.raw"
CATALOG = {
    "name": "lake",
    "uri": "sqlite:///${project}/catalog.db",
    "warehouse": "file://${project}/warehouse",
}
_JOB = """
from lakehouse_backfill.transforms import transform

@transform(name="summed", version="1.0.0", inputs=("source",))
def summed(context, source):
    return source
"""
_SCHEMA = Schema(NestedField(1, "d", DateType()), NestedField(2, "v", LongType()))
_SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "d"))


def measure_cascade(rounds: int) -> dict[str, list[float]]:
    """Measure the processor seconds of planning the first product alone, and all of them.

    Both in turns, in this process and as commands of their own, with what these load; the first
    round warms up. Nothing is registered.
    """
    with tempfile.TemporaryDirectory(prefix="lhb-cascade-") as made:
        folder = Path(made)
        _make(folder)
        project = Project.open(folder)
        # A lake in use has control tables, which a dry run does not make.
        project.cancel(project.plan("jobs/p0.yaml", by="ann").run_id, by="ann")

        def one() -> None:
            project.plan("jobs/p0.yaml", by="ann", dry_run=True)

        def all_of_them() -> None:
            planned = project.plan_cascade("jobs/p0.yaml", by="ann", dry_run=True)
            if sum(bool(node.run_id) for node in planned.nodes) != PRODUCTS:
                raise ValueError(f"the cascade does not restate {PRODUCTS} products")

        acts = ("plan of one product", "plan of the cascade")
        times: dict[str, list[float]] = {
            **{act: [] for act in acts}, **{f"{act}, as a command": [] for act in acts},
        }  # fmt: skip
        for number in range(rounds + 1):
            took = (
                _processor_seconds(one), _processor_seconds(all_of_them),
                _seconds_of_command(folder), _seconds_of_command(folder, "--cascade"),
            )  # fmt: skip
            if number:
                for act, spent in zip(times, took, strict=True):
                    times[act].append(spent)
    return times


def _processor_seconds(act: Callable[[], None]) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started


def _seconds_of_command(folder: Path, *options: str) -> float:
    """Return the processor seconds of a plan as a command: its process, and all that it starts."""
    plan = ("--project", str(folder), "plan", "jobs/p0.yaml", "--dry-run", "--by", "ann", *options)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", PROGRAM, *plan]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _make(folder: Path) -> None:
    """Make a tree of products: each but the first is computed from another one."""
    catalog = open_catalog(Profile(catalog=CATALOG), folder)
    rows = pa.table({"d": DAYS, "v": range(len(DAYS))}, schema=_SCHEMA.as_arrow())
    for space in ("bronze", "silver"):
        catalog.create_namespace(space)
    for name in (_SOURCE, *(f"silver.p{number}" for number in range(PRODUCTS))):
        catalog.create_table(name, _SCHEMA, partition_spec=_SPEC).append(rows)
    profile = {"environment": "dev", "catalog": CATALOG}
    documents: dict[str, Any] = {
        "catalog/profiles.yaml": {
            "api_version": "lakehouse-backfill/v1", "default": "dev", "profiles": {"dev": profile},
        },
    }  # fmt: skip
    for number in range(PRODUCTS):
        product = f"silver.p{number}"
        contract = documents[f"catalog/contracts/{product}.yaml"] = {
            "api_version": "lakehouse-backfill/v1", "product": product, "table": product,
            "description": "A synthetic table.", "owner": "ann", "key": ["d"],
            "partitioning": [{"column": "d"}], "publication": "pinned",
            "columns": [{"name": "d", "type": "date"}, {"name": "v", "type": "long"}],
            "consumers": [], "classification": "internal", "retention_days": "unlimited",
        }  # fmt: skip
        partitions = {"column": "d"}
        upstream = f"silver.p{(number - 1) // 2}" if number else _SOURCE
        if number:
            contract["upstreams"] = [{"product": upstream}]
            contract["cascade"] = {"manifest": f"jobs/p{number}.yaml"}
        else:
            partitions |= {"from": "2024-01-10", "to": "2024-01-17"}
        documents[f"jobs/p{number}.yaml"] = {
            "api_version": "lakehouse-backfill/v1",
            "run": {"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix"},
            "product": product,
            "transform": {"name": "summed", "version": "1.0.0", "file": "jobs/summed.py"},
            "sources": {"source": {
                "table": upstream,
                "range": {"column": "d", "from": "2024-01-01", "to": "2024-02-01"},
            }},
            "target": {"publish_mode": "pointer_swap", "partitions": partitions},
        }  # fmt: skip
    for name, document in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
    (folder / "jobs/summed.py").write_text(_JOB, encoding="utf-8")
