"""What the project of the Spark Connect tests declares, and its jobs."""

from __future__ import annotations

from pathlib import Path

import yaml

_CLUSTERS = Path(__file__).resolve().parents[3] / "docker" / "clusters"


def template_settings(profile: str) -> dict[str, str]:
    """Give the settings of Spark in the template of a cluster's profile."""
    declared = yaml.safe_load((_CLUSTERS / "profiles.yaml").read_text("utf-8"))
    return dict(declared["profiles"][profile]["spark"])


#: Java's options for hundreds of small queries: what the second compiler saves, it costs several
#: times. By default, 48 MB of code would be swept and a small heap collected all the time.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Xmn400m"
CATALOG = {
    "name": "lake",
    "type": "sql",
    "uri": "sqlite:///${project}/catalog.db?timeout=30",
    "warehouse": "file://${project}/warehouse",
}
CHECKS = {
    "measures": [{"name": "rows", "count": "id"}, {"name": "amount", "sum": "v"}],
    "source_totals": [{"measure": "rows", "source": "src", "partition": "d"}],
    "suites": [{"file": "expectations/out.json", "on": "output"}],
}
SUITE = {
    "name": "out",
    "expectations": [
        {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}},
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "v"}},
        {
            "type": "expect_compound_columns_to_be_unique",
            "kwargs": {"column_list": ["d", "id"]},
        },
        # One that fails asks for examples, a job of its own.
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "v", "max_value": 50},
            "severity": "warning",
        },
    ],
}
JOBS = {
    "plain.py": """\
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform

@transform(name="tenfold", version="1.0.0", inputs=("src",))
def tenfold(context, src):
    return src.select("id", "d", (F.col("v") * context.config["factor"]).alias("v"))
""",
    # With a column that the table does not have yet.
    "noted.py": """\
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform

@transform(name="tenfold", version="1.0.0", inputs=("src",))
def tenfold(context, src):
    value = (F.col("v") * context.config["factor"]).alias("v")
    return src.select("id", "d", value, F.lit("right").alias("note"))
""",
    # Its function travels to the server's Python.
    "function.py": """\
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform

RATE = 10

def multiplied(value):
    return value * RATE

@transform(name="tenfold", version="1.0.0", inputs=("src",))
def tenfold(context, src):
    return src.select("id", "d", F.udf(multiplied, "bigint")("v").alias("v"))
""",
    # Long enough for an executor to be killed in the middle.
    "slow.py": """\
import time
from pyspark.sql import functions as F
from lakehouse_backfill.transforms import transform

@transform(name="tenfold", version="1.0.0", inputs=("src",))
def tenfold(context, src):
    def multiplied(value):
        time.sleep(0.5)
        return value * 10
    return src.select("id", "d", F.udf(multiplied, "bigint")("v").alias("v"))
""",
    # The server finds out what is wrong with it, after it has returned.
    "broken.py": """\
from lakehouse_backfill.transforms import transform

@transform(name="tenfold", version="1.0.0", inputs=("src",))
def tenfold(context, src):
    return src.select("id", "d", "missing")
""",
    "query.sql": """\
-- name: tenfold
-- version: 1.0.0
-- inputs: src
SELECT id, d, v * CAST(:factor AS bigint) AS v FROM {src} WHERE d < DATE '2025-01-01'
""",
}
