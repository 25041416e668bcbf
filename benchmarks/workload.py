"""A project with a table like TPC-H's lineitem: 16 columns, 84 monthly partitions, made by Spark.

Scale 1 has 6.0 million rows. Three months of the table are wrong; the run restates them.
"""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from lakehouse_backfill.project import Project

ROWS = 6_001_215
PRODUCT, SOURCE, BARE = "bench.lineitem", "bench.orders_lines", "bench.bare"
FIRST, STOP = "1995-04-01", "1995-07-01"
MONTHS = f"l_shipdate >= DATE'{FIRST}' AND l_shipdate < DATE'{STOP}'"


def restate(months: int) -> None:
    """Have so many months restated from `FIRST` on, instead of three."""
    global STOP, MONTHS
    years, month = divmod(3 + months, 12)
    STOP = f"{1995 + years}-{month + 1:02d}-01"
    MONTHS = f"l_shipdate >= DATE'{FIRST}' AND l_shipdate < DATE'{STOP}'"


WHO = "bench"

COLUMNS = {
    "l_orderkey": ("long", "id div 4"),
    "l_linenumber": ("int", "cast(id % 4 + 1 as int)"),
    "l_partkey": ("long", "pmod(xxhash64(id, 1), 200000)"),
    "l_suppkey": ("long", "pmod(xxhash64(id, 2), 10000)"),
    "l_quantity": ("decimal(15,2)", "cast(pmod(xxhash64(id, 3), 50) + 1 as decimal(15,2))"),
    "l_extendedprice": (
        "decimal(15,2)",
        "cast(pmod(xxhash64(id, 4), 10000000) / 100.0 as decimal(15,2))",
    ),
    "l_discount": ("decimal(15,2)", "cast(pmod(xxhash64(id, 5), 11) / 100.0 as decimal(15,2))"),
    "l_tax": ("decimal(15,2)", "cast(pmod(xxhash64(id, 6), 9) / 100.0 as decimal(15,2))"),
    "l_returnflag": ("string", "element_at(array('A', 'N', 'R'), int(id % 3 + 1))"),
    "l_linestatus": ("string", "if(id % 2 = 0, 'F', 'O')"),
    "l_shipdate": ("date", "date_add(DATE'1992-01-01', int(pmod(xxhash64(id, 7), 2557)))"),
    "l_commitdate": ("date", "date_add(DATE'1992-01-31', int(pmod(xxhash64(id, 8), 2557)))"),
    "l_receiptdate": ("date", "date_add(DATE'1992-02-01', int(pmod(xxhash64(id, 9), 2557)))"),
    "l_shipinstruct": (
        "string",
        "element_at(array('DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'), "
        "int(pmod(xxhash64(id, 10), 4) + 1))",
    ),
    "l_shipmode": (
        "string",
        "element_at(array('AIR', 'FOB', 'MAIL', 'RAIL', 'SHIP', 'TRUCK', 'REG AIR'), "
        "int(pmod(xxhash64(id, 11), 7) + 1))",
    ),
    "l_comment": ("string", "substring(sha1(string(id)), 1, 27)"),
}

_TRANSFORM = '''"""Takes the lines as they are."""

from lakehouse_backfill import transform


@transform(name="lineitem", version="1.0.0", inputs=("lines",))
def lineitem(context, lines):
    return lines
'''


def make_project(folder: Path, memory: str) -> Project:
    """Write the declarations of the benchmark's project and open it."""
    profile = {
        "environment": "dev",
        "catalog": {
            "name": "lake",
            "type": "sql",
            "uri": "sqlite:///${project}/.lakehouse/catalog.db",
            "warehouse": "file://${project}/.lakehouse/warehouse",
        },
        "spark": {"spark.master": "local[2]", "spark.driver.memory": memory},
    }
    _write(
        folder / "catalog" / "profiles.yaml",
        {
            "api_version": "lakehouse-backfill/v1",
            "default": "embedded",
            "profiles": {"embedded": profile},
        },
    )
    _write(folder / "catalog" / "contracts" / f"{PRODUCT}.yaml", _contract())
    path = folder / "jobs" / "transform.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TRANSFORM, encoding="utf-8")
    return Project.open(folder)


def manifest(project: Project, *, edge_partitions: int, suite: str | None = None) -> Path:
    """Write the run manifest that restates the months, held to a suite if one is given."""
    suites = [{"file": suite, "on": "output"}] if suite else []
    document = {
        "api_version": "lakehouse-backfill/v1",
        "run": {"requested_by": WHO, "reason": "benchmark", "reason_code": "bug_fix"},
        "product": PRODUCT,
        "transform": {"name": "lineitem", "version": "1.0.0", "file": "jobs/transform.py"},
        "sources": {
            "lines": {
                "table": SOURCE,
                "range": {"column": "l_shipdate", "from": "1994-01-01", "to": "1999-01-01"},
            }
        },
        "target": {"partitions": {"column": "l_shipdate", "from": FIRST, "to": STOP}},
        "validation": {"edge_partitions": edge_partitions, "suites": suites},
    }
    path = project.folder / "jobs" / f"run-{edge_partitions}.yaml"
    _write(path, document)
    return path


def publish(project: Project, run_id: str) -> None:
    """Publish as the verb does, without the evidence page that it writes afterwards."""
    from lakehouse_backfill.core.publication.publish import publish as stage

    stage(project.wiring.context, run_id, WHO)


def roll_back(project: Project) -> None:
    """Roll back as the verb does, without the evidence pages that it writes afterwards."""
    from lakehouse_backfill.core.publication import rollback as stage

    bench, contract = project.wiring.context, project.wiring.contract(PRODUCT)
    way = stage.plan_rollback(bench, PRODUCT, None, ())
    stage.rollback(bench, contract, way, "next round", WHO)


def filled(folder: Path, scale: float, months: int) -> Project:
    """Make the tables in a process of its own, and open the project as a command does.

    So its run says how the JVM starts, and that is not the one that made the tables.
    """
    filling = get_context("spawn").Process(target=_fill_apart, args=(folder, scale, months))
    filling.start()
    filling.join()
    assert filling.exitcode == 0
    project = Project.open(folder)
    project.wiring.is_one_command = True
    return project


def _fill_apart(folder: Path, scale: float, months: int) -> None:
    restate(months)
    fill(Project.open(folder), scale)


def fill(project: Project, scale: float) -> None:
    """Make the source, the product with three wrong months, and a copy for the bare overwrite."""
    project.wiring.create_lake()
    spark, catalog = project.wiring.spark, project.wiring.catalog
    catalog.create_namespace_if_not_exists("bench")
    rows = spark.range(int(ROWS * scale)).selectExpr(
        *(f"{text} AS {name}" for name, (_, text) in COLUMNS.items())
    )
    _create(spark, rows, SOURCE)
    right = spark.table(name(SOURCE))
    wrong = _released(right)
    project.wiring.context.tables.create(project.wiring.contract(PRODUCT))
    wrong.writeTo(name(PRODUCT)).append()
    _create(spark, wrong, BARE)


def name(table: str) -> str:
    """Give the name by which Spark knows a table."""
    return f"lake.{table}"


def _released(rows: Any) -> Any:
    """What a bad release made of the rows: 1 % of three months have another discount."""
    from pyspark.sql import functions as F

    is_hit = F.expr(f"{MONTHS} AND pmod(l_orderkey, 100) = 0")
    other = F.expr("cast(0.99 as decimal(15,2))")
    return rows.withColumn("l_discount", F.when(is_hit, other).otherwise(F.col("l_discount")))


def _create(spark: Any, rows: Any, table: str) -> None:
    from pyspark.sql import functions as F

    rows.writeTo(name(table)).partitionedBy(F.partitioning.months("l_shipdate")).create()
    spark.catalog.refreshTable(name(table))


def _contract() -> dict[str, object]:
    return {
        "api_version": "lakehouse-backfill/v1",
        "product": PRODUCT,
        "table": PRODUCT,
        "description": "Lines of orders.",
        "owner": WHO,
        "key": ["l_orderkey", "l_linenumber"],
        "partitioning": [{"column": "l_shipdate", "transform": "month"}],
        "columns": [{"name": column, "type": kind} for column, (kind, _) in COLUMNS.items()],
        "measures": [{"name": "lines", "count": "l_orderkey"}],
        "consumers": [],
        "classification": "internal",
        "retention_days": "unlimited",
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
