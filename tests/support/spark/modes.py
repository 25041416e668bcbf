"""A project over a small product with tenants and versions, whose runs go from manifest to readers.

The table holds five days of rows (d, k, tenant, v, ver) with lineage columns; the source has the
same columns and `gone`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

import yaml

from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from lakehouse_backfill.project import Project
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.spark.lake import Lake

DAYS = tuple(f"2024-01-0{day}" for day in range(1, 6))
#: The days that a run may change, unless it says otherwise.
FIRST, STOP = "2024-01-02", "2024-01-04"
ROW = (("d", "date"), ("k", "long"), ("tenant", "string"), ("v", "long"), ("ver", "long"))
COLUMNS = ("d", "k", "tenant", "v", "ver")

JOB = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="tenants", version="1.0.0", inputs=("src",))
def job(context, src):
    tenant = context.config.get("tenant")
    rows = src.where(F.col("tenant") == tenant) if tenant else src
    more = ["gone"] if context.config.get("deletes") else []
    return rows.select("d", "k", "tenant", "v", "ver", *more)
"""

#: A run with more than one chunk.
BY_PARTITION = {"limits": {"partitions_per_chunk": 1}}
#: Table formats; 3 is written through Iceberg's Java API.
FORMATS = [1, 2, 3]
#: The same with where runs write. All other tests have clones of tables of format 2.
FORMATS_AND_SHADOWS = [(1, "clone"), (2, "branch"), (3, "clone")]
Row = tuple[Any, ...]


class LakeProject:
    """A project over the tables `out` and `src` of a test's namespace, and what people type."""

    #: One name and version is one code in a lake, which these tests share.
    transform = "copy"

    def __init__(
        self, lake: Lake, job: str, columns: Sequence[tuple[str, str]], /, **contract: Any
    ) -> None:
        self.lake = lake
        self.folder = lake.project
        self.product = lake.table("out")
        where = str(lake.profile_folder)
        catalog = lake.profile.catalog
        real = {key: value.replace("${project}", where) for key, value in catalog.items()}
        # The control tables are shared by all tests of the session, as in a lake of many projects.
        profile = lake.profile.model_copy(update={"catalog": real})
        self.project = Project(Adapters(self.folder, profile, NullProgress(), "dev"))
        lake.job(job)
        declared = {
            "api_version": "lakehouse-backfill/v1", "product": self.product,
            "table": self.product, "description": "A test product.", "owner": "lead",
            "key": ["d", "k"], "partitioning": [{"column": "d"}],
            "columns": [{"name": name, "type": kind} for name, kind in columns],
            "consumers": [], "classification": "internal", "retention_days": "unlimited",
        }  # fmt: skip
        lake.job(yaml.safe_dump(declared | contract), f"catalog/contracts/{self.product}.yaml")

    def plan(self, **changes: Any) -> str:
        """Plan and approve a run of one chunk; gives its id."""
        target = {"partitions": {"column": "d", "from": FIRST, "to": STOP}}
        manifest = {
            "api_version": "lakehouse-backfill/v1",
            "run": {"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix"},
            "product": self.product,
            "transform": {
                "name": self.transform, "version": "1.0.0", "file": "jobs/job.py",
                "config": changes.pop("config", {}), **changes.pop("transform", {}),
            },
            "sources": {"src": {
                "table": self.lake.table("src"),
                "range": {"column": "d", "from": "2023-12-01", "to": "2024-02-01"},
                **changes.pop("source", {}),
            }},
            "target": target | changes.pop("target", {}),
            "validation": {"edge_partitions": 0} | changes.pop("validation", {}),
        } | changes  # fmt: skip
        self.lake.job(yaml.safe_dump(manifest), "jobs/run.yaml")
        run_id = str(self.project.plan("jobs/run.yaml", by="ann").run_id)
        self.project.approve(run_id, by="lead")
        return run_id


class Modes(LakeProject):
    """A product with tenants and versions; its tables are empty at first."""

    transform = "tenants"

    def __init__(
        self, lake: Lake, version: int = 2, by: Sequence[str] = ("d",), **contract: Any
    ) -> None:
        super().__init__(lake, JOB, ROW, **contract)
        lake.create("out", (*ROW, *LINEAGE_COLUMNS), version=version, by=by)
        lake.create("src", (*ROW, ("gone", "boolean")))

    def holds(self, *rows: str) -> None:
        """Let a live job write rows: `d, k, tenant, v, ver`, days as numbers."""
        nulls = [None for _ in LINEAGE_COLUMNS[1:]]
        self._append("out", [(*_row(row), "live", *nulls) for row in rows])

    def source(self, *rows: str) -> None:
        """Put rows into the source: `d, k, tenant, v, ver[, gone]`."""
        full = [row if row.count(",") == 5 else f"{row}, false" for row in rows]
        self._append("src", [_row(row) for row in full])

    def _append(self, short: str, rows: list[tuple[Any, ...]]) -> None:
        version = self.lake.catalog.load_table(self.lake.table(short)).format_version
        if version < 3:
            self.lake.append(short, *rows)
            return
        # PyIceberg writes no rows of format 3.
        into = self.lake.spark.table(f"{self.lake.name}.{self.lake.table(short)}")
        frame = self.lake.spark.createDataFrame(rows, into.schema)
        frame.writeTo(f"{self.lake.name}.{self.lake.table(short)}").append()

    def validated(self, **changes: Any) -> tuple[str, dict[str, Any]]:
        """Plan, approve and run; gives the run's id and what was found."""
        run_id = self.plan(**changes)
        return run_id, self.project.run(run_id, "ann").to_dict()

    def publish(self, run_id: str) -> dict[str, Any]:
        """Accept the result and publish it."""
        self.project.accept(run_id, by="lead")
        return self.project.publish(run_id, by="lead").to_dict()

    def published(self, **changes: Any) -> str:
        """Do everything from manifest to publication."""
        run_id, found = self.validated(**changes)
        assert found["state"] == "validated", [c for c in found["checks"] if not c["passed"]]
        self.publish(run_id)
        return run_id

    def roll_back(self, run_id: str) -> None:
        """Go back to what was before all runs; prove first what was published from a branch.

        What comes from a clone is verified by other tests.
        """
        if self.lake.profile.isolation == "branch":
            shadow = self.project.evidence_document(run_id)["plan"]["shadow_table"]
            assert shadow.startswith(f"{self.product}.branch_lhb_"), shadow
            self.require_intact(run_id)
        self.project.rollback(self.product, to=0, reason="wrong", by="lead")

    def require_intact(self, run_id: str) -> None:
        """Verify a run deeply."""
        checks = self.project.verify(run_id, deep=True).checks
        assert [check for check in checks if check.ok is False] == []

    def rows(self, *columns: str, table: str = "out") -> list[Row]:
        """Give the table's rows (days as numbers), sorted; without lineage unless it is named."""
        names = columns or COLUMNS
        where = f"{self.lake.name}.{self.lake.table(table)}"
        self.lake.spark.catalog.refreshTable(where)
        found = self.lake.spark.table(where).select(*names).collect()
        return sorted((_plain(row) for row in found), key=repr)

    def accepted(self) -> str:
        """Name the table that the product's pointer leads to."""
        row = self.project.wiring.context.versions.pointer(self.product).accepted
        assert row is not None
        return row.table

    def gate(self, found: dict[str, Any], name: str) -> tuple[bool, str]:
        """Give whether a gate passed, and what it says."""
        (check,) = [check for check in found["checks"] if check["name"] == name]
        return check["passed"], check["detail"]

    def head(self) -> Any:
        """Give the newest snapshot of the table as PyIceberg sees it."""
        return self.lake.catalog.load_table(self.product).current_snapshot()


def _row(text: str) -> tuple[Any, ...]:
    """Read `2, 7, A, 70, 1[, true]`."""
    day, key, tenant, *rest = (part.strip() for part in text.split(","))
    numbers = [each == "true" if each in ("true", "false") else _number(each) for each in rest]
    name = None if tenant == "null" else tenant
    return (date(2024, 1, int(day)), _number(key), name, *numbers)


def _number(text: str) -> int | None:
    return None if text == "null" else int(text)


def _plain(row: Any) -> Row:
    return tuple(value.day if hasattr(value, "day") else value for value in row)


Make = Callable[..., Modes]


def seeded(make: Make, version: int = 2, **contract: Any) -> Modes:
    """Days 1 to 5, keys 1 to 3 of tenants A, B and none; the source says v + 1000 of all."""
    modes = make(version, **contract)
    tenants = {1: "A", 2: "B", 3: "null"}
    held = [f"{d}, {k}, {tenants[k]}, {10 * d + k}, 1" for d in range(1, 6) for k in (1, 2, 3)]
    modes.holds(*held)
    modes.source(
        *(f"{d}, {k}, {tenants[k]}, {1000 + 10 * d + k}, 2" for d in range(1, 6) for k in (1, 2, 3))
    )
    return modes


def expected(modes: Modes, changed: Callable[[Any], bool]) -> list[Any]:
    """What readers must see: v + 1000 in version 2 where `changed`, else as it was."""
    found = []
    for d in range(1, 6):
        for k, tenant in ((1, "A"), (2, "B"), (3, None)):
            row = (d, k, tenant, 10 * d + k, 1)
            found.append((d, k, tenant, 1000 + 10 * d + k, 2) if changed(row) else row)
    return sorted(found, key=repr)
