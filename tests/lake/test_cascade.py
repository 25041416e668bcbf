"""A cascade of six products on Spark, with fan-out and fan-in.

Of the root are made its days and thrice its values; of both a sum, and the next of that; the months
are made of root and days. All but the months are pinned, so one commit moves them; the months are
followed, and come after them.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from lakehouse_backfill.adapters.iceberg.control.versions import IcebergVersions
from lakehouse_backfill.adapters.system.process import NullProgress
from lakehouse_backfill.project import Project
from lakehouse_backfill.results.cascades import CascadePlanResult, CascadeResult
from lakehouse_backfill.wiring.adapters import Adapters
from tests.support.spark.lake import Lake

pytestmark = [pytest.mark.lake, pytest.mark.long]

#: Restated of the root; both months hold more days.
FIRST, STOP = "2024-01-31", "2024-02-02"
MONTHS = ("2024-01", "2024-02")
JOBS = """
from lakehouse_backfill.transforms import transform
from pyspark.sql import functions as F

@transform(name="cascade_root", version="1.0.0", inputs=("raw",))
def root(context, raw):
    return raw.select("d", "k", (F.col("v") + 1000).alias("v"))

@transform(name="cascade_days", version="1.0.0", inputs=("root",))
def days(context, root):
    return root.groupBy("d", "k").agg((F.sum("v") * 2).alias("v"))

@transform(name="cascade_thrice", version="1.0.0", inputs=("root",))
def thrice(context, root):
    return root.select("d", "k", (F.col("v") * 3).alias("v"))

@transform(name="cascade_both", version="1.0.0", inputs=("days", "thrice"))
def both(context, days, thrice):
    return days.unionByName(thrice).groupBy("d", "k").agg(F.sum("v").alias("v"))

@transform(name="cascade_next", version="1.0.0", inputs=("both",))
def following(context, both):
    return both.select("d", "k", (F.col("v") + 1).alias("v"))

@transform(name="cascade_months", version="1.0.0", inputs=("root", "days"))
def months(context, root, days):
    both = root.unionByName(days)
    month = F.to_date(F.trunc("d", "month")).alias("d")
    return both.groupBy(month, "k").agg(F.sum("v").alias("v"))
"""


def _by_day(product: str, query: str) -> str:
    """Write what a product by day holds: new rows of the restated days, old ones of the others."""
    inside = f"d >= DATE '{FIRST}' AND d < DATE '{STOP}'"
    return f"""
    CREATE TABLE new_{product} AS
        SELECT d, k, CAST(v AS BIGINT) AS v FROM ({query}) WHERE {inside}
        UNION ALL SELECT d, k, v FROM old_{product} WHERE NOT ({inside});"""


#: What the jobs mean, by the rows of the source and the old rows of the products.
ORACLE = (
    _by_day("root", "SELECT d, k, v + 1000 AS v FROM raw")
    + _by_day("days", "SELECT d, k, 2 * v AS v FROM new_root")
    + _by_day("thrice", "SELECT d, k, 3 * v AS v FROM new_root")
    + _by_day("both", "SELECT d, k, a.v + b.v AS v FROM new_days a JOIN new_thrice b USING (d, k)")
    + _by_day("next", "SELECT d, k, v + 1 AS v FROM new_both")
    + """
    CREATE TABLE new_months AS
        SELECT CAST(date_trunc('month', d) AS DATE) AS d, k, CAST(sum(v) AS BIGINT) AS v
        FROM (SELECT * FROM new_root UNION ALL SELECT * FROM new_days)
        WHERE d >= DATE '2024-01-01' AND d < DATE '2024-03-01' GROUP BY 1, 2
        UNION ALL
        SELECT d, k, v FROM old_months WHERE d >= DATE '2024-03-01';
"""
)
#: Each product, and how it reads what it is made of.
READS: dict[str, dict[str, str]] = {
    "root": {}, "days": {"root": "same"}, "thrice": {"root": "same"},
    "both": {"days": "same", "thrice": "same"}, "next": {"both": "same"},
    "months": {"root": "aggregate", "days": "aggregate"},
}  # fmt: skip
#: Sums of thrice and days of 100 times the source, and the next of them.
OLD_FACTORS = {"raw": 1, "root": 100, "days": 200, "thrice": 300, "both": 500, "next": 501}
Rows = dict[str, list[tuple[Any, ...]]]


class World:
    """The tables, contracts and manifests of the three products."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        where = str(lake.profile_folder)
        catalog = {
            name: value.replace("${project}", where) for name, value in lake.profile.catalog.items()
        }
        profile = lake.profile.model_copy(update={"catalog": catalog})
        self.project = Project(Adapters(lake.project, profile, NullProgress(), "dev"))
        self.products = {short: lake.table(short) for short in READS}
        self._make_tables()
        lake.job(JOBS)
        for short, upstreams in READS.items():
            self._declare(short, upstreams)

    def _make_tables(self) -> None:
        for short, by in (*((one, "d") for one in OLD_FACTORS), ("months", "months(d)")):
            self.lake.sql(
                f"CREATE TABLE {{ns}}.{short} (d date, k bigint, v bigint) PARTITIONED BY ({by})"
            )
        days = [f"2024-01-{day}" for day in (29, 30, 31)]
        days += [f"2024-02-0{day}" for day in (1, 2, 3)] + ["2024-03-01"]
        for short, factor in OLD_FACTORS.items():
            self.insert(short, [(d, k, factor * (10 * n + k)) for n, d in enumerate(days)
                                 for k in (1, 2)])  # fmt: skip
        starts = ("2024-01-01", "2024-02-01", "2024-03-01")
        self.insert("months", [(d, k, 7 * k) for d in starts for k in (1, 2)])

    def insert(self, short: str, rows: list[tuple[str, int, int]]) -> None:
        values = ", ".join(f"(DATE'{d}', {k}, {v})" for d, k, v in rows)
        self.lake.sql(f"INSERT INTO {{ns}}.{short} VALUES {values}")

    def _declare(self, short: str, upstreams: dict[str, str]) -> None:
        product, is_followed = self.products[short], short == "months"
        contract: dict[str, Any] = {
            "api_version": "lakehouse-backfill/v1", "product": product, "table": product,
            "description": "A test product.", "owner": "lead", "key": ["d", "k"],
            "partitioning": [{"column": "d", "transform": "month"} if is_followed
                             else {"column": "d"}],
            "columns": [{"name": "d", "type": "date"}, {"name": "k", "type": "long"},
                        {"name": "v", "type": "long"}],
            "consumers": [], "classification": "internal", "retention_days": "unlimited",
            "publication": "follow" if is_followed else "pinned",
            "upstreams": [{"product": self.products[one], "mapping": mapping}
                          for one, mapping in upstreams.items()],
        }  # fmt: skip
        partitions = {"column": "d"}
        if upstreams:
            contract["cascade"] = {"manifest": f"jobs/{short}.yaml"}
        else:
            partitions |= {"from": FIRST, "to": STOP}
        ranged = {"column": "d", "from": "2024-01-01", "to": "2024-04-01"}
        manifest = {
            "api_version": "lakehouse-backfill/v1",
            "run": {"requested_by": "ann", "reason": "a bug", "reason_code": "bug_fix"},
            "product": product,
            "transform": {
                "name": f"cascade_{short}", "version": "1.0.0", "file": "jobs/job.py"
            },
            "sources": {one: {"table": self.lake.table(one), "range": dict(ranged)}
                        for one in upstreams or ("raw",)},
            "target": {
                "publish_mode": "replace_partitions" if is_followed else "pointer_swap",
                "partitions": partitions,
            },
            "limits": {"partitions_per_chunk": 2 if upstreams else 1},
            "validation": {"edge_partitions": 0},
        }  # fmt: skip
        self.lake.job(yaml.safe_dump(contract), f"catalog/contracts/{product}.yaml")
        self.lake.job(yaml.safe_dump(manifest), f"jobs/{short}.yaml")

    def plan(self) -> CascadePlanResult:
        """Plan the cascade of the root."""
        return self.project.plan_cascade("jobs/root.yaml", by="ann")

    def live(self) -> Rows:
        """Read the products' own tables, by the catalog."""
        return {short: _rows(self.table(name)) for short, name in self.products.items()}

    def readers_see(self) -> Rows:
        """Read what consumers of all products get at one moment."""
        found = self.project.accepted_together(tuple(self.products.values()))
        return {short: _rows(found[name]) for short, name in self.products.items()}

    def expected(self) -> Rows:
        """Work out the new rows of all products, by DuckDB."""
        with duckdb.connect() as connection:
            connection.register("raw", self.table(self.lake.table("raw")))
            for short, name in self.products.items():
                connection.register(f"old_{short}", self.table(name))
            connection.execute(ORACLE)
            return {
                short: sorted(connection.execute(f"SELECT d, k, v FROM new_{short}").fetchall())
                for short in self.products
            }

    def run_of(self, cascade: CascadeResult) -> dict[str, str]:
        """Name the run of each product."""
        runs = {line.product: str(line.run_id) for line in cascade.members}
        return {short: runs[name] for short, name in self.products.items()}

    def table(self, name: str) -> pa.Table:
        """Read a table of the catalog."""
        return self.lake.catalog.load_table(name).scan().to_arrow()


def note_moves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Keep the products of each commit of the pointer table that gives readers another version."""
    moves: list[tuple[str, ...]] = []
    through = IcebergVersions.move_all

    def noted(versions: Any, products: tuple[str, ...], decide: Any) -> Any:
        before = {product: versions.pointer(product).accepted for product in products}
        after = through(versions, products, decide)
        if any(after[product].accepted != before[product] for product in products):
            moves.append(products)
        return after

    monkeypatch.setattr(IcebergVersions, "move_all", noted)
    return moves


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((row["d"], row["k"], row["v"]) for row in table.to_pylist())


@pytest.mark.req("P4", "U2")
def test_what_is_downstream_is_computed_from_the_shadow_and_comes_and_goes_with_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lake)
    project, old, new = world.project, world.live(), world.expected()
    assert all(old[short] != new[short] for short in old)
    planned = world.plan()
    told = {node.product.split(".")[1]: (node.decision, node.partitions) for node in planned.nodes}
    days = ("2024-01-31", "2024-02-01")
    assert told == {
        "root": ("selected", days), "months": ("widened", MONTHS),
        **dict.fromkeys(("days", "thrice", "both", "next"), ("pulled in", days)),
    }  # fmt: skip
    pinned, followed = planned.publication_order
    assert set(pinned) == set(world.products.values()) - set(followed)
    assert followed == (world.products["months"],)
    cascade = planned.cascade_id
    runs = world.run_of(project.approve_cascade(cascade, by="lead"))

    assert project.run_cascade(cascade, by="ann").state == "validated"
    plans = {short: project.wiring.context.runs.plan(run) for short, run in runs.items()}
    read = {short: {pin.name: pin.table for pin in plan.resolved.sources}
            for short, plan in plans.items()}  # fmt: skip
    shadows = {short: plan.shadow_table for short, plan in plans.items()}
    assert {short: read[short] for short in READS if short != "root"} == {
        short: {one: shadows[one] for one in reads} for short, reads in READS.items() if reads
    }
    assert world.live() == old

    project.accept_cascade(cascade, by="lead")
    assert world.live() == old
    moves = note_moves(monkeypatch)
    assert project.publish_cascade(cascade, by="lead").state == "published"
    assert world.readers_see() == new
    assert moves == [pinned, followed]
    # A pinned product's own table stays; that of a followed one is what its readers see.
    assert world.live() == old | {"months": new["months"]}
    _require_that_equal_days_are_kept(world, new)

    moves.clear()
    assert project.rollback_cascade(cascade, "wrong", by="lead").state == "rolled_back"
    assert world.readers_see() == old
    assert moves == [followed, pinned]
    assert world.live() == old


def _require_that_equal_days_are_kept(world: World, seen: Rows) -> None:
    """Restate again after late rows of one of the two days: what reads the other is not computed.

    Nothing of it is published, so that the versions before can be rolled back.
    """
    world.insert("raw", [("2024-02-01", 3, 7)])
    again = world.project.plan_cascade("jobs/root.yaml", by="ann")
    runs = world.run_of(world.project.approve_cascade(again.cascade_id, by="lead"))
    found = world.project.run_cascade(again.cascade_id, by="ann")
    assert found.state == "validated"
    day, month = ("2024-01-31",), ("2024-01",)
    assert {line.product.split(".")[1]: line.kept for line in found.members} == {
        "root": (), "months": month, **dict.fromkeys(("days", "thrice", "both", "next"), day)
    }  # fmt: skip
    plans = {short: world.project.wiring.context.runs.plan(run) for short, run in runs.items()}
    shadows = {short: plan.shadow_table for short, plan in plans.items()}
    staged = {short: _rows(world.table(name)) for short, name in shadows.items()}
    assert staged == world.expected() != seen
    world.project.cancel_cascade(again.cascade_id, by="lead")
