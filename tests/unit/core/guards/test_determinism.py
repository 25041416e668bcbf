"""Non-determinism in Python and SQL code is found with its line; honest code is not flagged."""

from __future__ import annotations

from textwrap import dedent

import pytest

from lakehouse_backfill.core.guards.determinism import scan_python
from lakehouse_backfill.core.guards.python_source import PythonSource
from lakehouse_backfill.core.guards.sql_source import scan_sql, scan_sql_file
from lakehouse_backfill.domain.guards.determinism import KINDS

JOB = "jobs/orders/job.py"
HEAD = """
import datetime, os, random, time, uuid, glob, secrets, socket, urllib.request, itertools
from datetime import date, timezone
from pathlib import Path
import numpy as np
import pandas as pd
from pyspark.sql import functions as F, Window, SparkSession
from pyspark.sql.functions import udf, pandas_udf
import helpers
from lakehouse_backfill.transforms import transform
CACHE = {}
TICKS = itertools.count()
NAMES = ("a", "b")
"""
DECLARED = '@transform(name="orders", version="1.0.0", inputs=("orders", "rates"))\n'


def found(body: str, **modules: str) -> list[tuple[str, str, int]]:
    """Scan a job whose body (the transform, and more) begins in line 1."""
    job = f"{dedent(body).strip()}\n{HEAD}"
    texts = {"helpers": "", **{name: dedent(text) for name, text in modules.items()}}
    files = {f"jobs/orders/{name}.py": text for name, text in texts.items()}
    source = PythonSource({JOB: job, **files}, JOB)
    return [
        (one.kind, one.file.rpartition("/")[2], one.line)
        for one in scan_python(source, "orders", "1.0.0", scan_sql)
    ]


def in_transform(line: str) -> list[tuple[str, str, int]]:
    return found(f"{DECLARED}def job(context, orders, rates):\n    {line}\n    return orders")


LINES = [
    ("orders = orders.withColumn('at', F.lit(datetime.datetime.now()))", "wall_clock"),
    ("clock = datetime.datetime.now; at = F.lit(clock())", "wall_clock"),
    ("today = date.today()", "wall_clock"),
    ("at = time.time()", "wall_clock"),
    ("at = pd.Timestamp.now()", "wall_clock"),
    ("orders = orders.withColumn('at', F.current_timestamp())", "wall_clock"),
    ("orders = orders.withColumn('at', F.current_date())", "wall_clock"),
    ("orders = orders.withColumn('at', F.now())", "wall_clock"),
    ("orders = orders.withColumn('at', F.unix_timestamp())", "wall_clock"),
    ("orders = orders.withColumn('at', F.expr('now()'))", "wall_clock"),
    ("orders = orders.selectExpr('*', 'current_date() AS d')", "wall_clock"),
    ("orders = orders.where('d < current_date()')", "wall_clock"),
    ("orders = orders.withColumn('r', F.rand())", "random_value"),
    ("orders = orders.withColumn('r', F.rand(seed=42))", "random_value"),
    ("orders = orders.withColumn('r', F.randn())", "random_value"),
    ("orders = orders.withColumn('r', F.shuffle('xs'))", "random_value"),
    ("x = random.random()", "random_value"),
    ("x = secrets.token_hex()", "random_value"),
    ("x = np.random.rand(3)", "random_value"),
    ("x = random.Random().random()", "random_value"),
    ("x = uuid.uuid4()", "generated_id"),
    ("orders = orders.withColumn('id', F.uuid())", "generated_id"),
    ("orders = orders.withColumn('id', F.monotonically_increasing_id())", "generated_id"),
    ("orders = orders.withColumn('id', F.spark_partition_id())", "generated_id"),
    ("orders = orders.withColumn('f', F.input_file_name())", "file_name"),
    ("orders = orders.groupBy('k').agg(F.collect_list('v'))", "unordered_collection"),
    ("orders = orders.groupBy('k').agg(F.collect_set('v'))", "unordered_collection"),
    ("orders = orders.groupBy('k').agg(F.first('v'))", "unordered_first"),
    ("orders = orders.groupBy('k').agg(F.last('v', True))", "unordered_first"),
    ("orders = orders.groupBy('k').agg(F.any_value('v'))", "unordered_first"),
    ("orders = orders.dropDuplicates(['k'])", "unordered_first"),
    ("orders = orders.limit(10)", "unordered_limit"),
    ("orders = orders.sample(0.1, seed=3)", "unordered_limit"),
    ("one, two = orders.randomSplit([0.5, 0.5])", "unordered_limit"),
    ("other = orders.sparkSession.table('lake.silver.rates')", "unpinned_read"),
    ("other = SparkSession.builder.getOrCreate().read.parquet('/tmp/x')", "unpinned_read"),
    ("other = SparkSession.getActiveSession().read.format('iceberg').load('a.b')", "unpinned_read"),
    ("other = orders.sparkSession.sql('SELECT * FROM lake.silver.rates')", "unpinned_read"),
    ("zone = os.environ['ZONE']", "environment"),
    ("zone = os.environ.get('ZONE')", "environment"),
    ("zone = os.getenv('ZONE')", "environment"),
    ("host = socket.gethostname()", "environment"),
    ("text = open('rates.csv').read()", "file_read"),
    ("text = Path('rates.csv').read_text()", "file_read"),
    ("text = (Path(__file__).parent / 'rates.csv').read_text()", "file_read"),
    ("names = glob.glob('*.csv')", "file_read"),
    ("frame = pd.read_csv('rates.csv')", "file_read"),
    ("rates = urllib.request.urlopen('http://rates').read()", "network"),
    ("with socket.create_connection(('rates', 80)): pass", "network"),
    ("bucket = hash('a') % 8", "hash_order"),
    ("columns = list({'a', 'b'})", "hash_order"),
    ("for name in set(NAMES): orders = orders.drop(name)", "hash_order"),
    ("text = ','.join({'a', 'b'})", "hash_order"),
    ("names = {'a', 'b'}; orders = orders.select(*names)", "hash_order"),
    ("names = [name for name in set(NAMES) - {'a'}]", "hash_order"),
    ("day = datetime.datetime.fromtimestamp(0)", "time_zone"),
    ("zone = orders.sparkSession.conf.get('spark.sql.session.timeZone')", "time_zone"),
    ("orders = orders.withColumn('z', F.current_timezone())", "time_zone"),
    ("at = datetime.datetime(2024, 1, 1).astimezone()", "time_zone"),
    ("CACHE['k'] = 1", "global_state"),
    ("CACHE.setdefault('k', 1)", "global_state"),
    ("number = next(TICKS)", "global_state"),
]  # fmt: skip


@pytest.mark.req("D1")
@pytest.mark.parametrize(("line", "kind"), LINES, ids=[line for line, _ in LINES])
def test_a_line_of_a_transform_is_found(line: str, kind: str) -> None:
    assert in_transform(line) == [(kind, "job.py", 3)]


SHUFFLES = [
    "orders = orders.repartition(8, F.rand())",
    "orders = orders.repartition(F.floor(F.rand() * 8))",
    "orders = orders.repartitionByRange(8, F.uuid())",
    "orders = orders.groupBy(F.spark_partition_id()).count()",
    "orders = orders.join(rates, F.rand() < 0.5)",
    "w = Window.partitionBy(F.monotonically_increasing_id())",
    "salt = F.rand(); orders = orders.repartition(8, salt)",
    "orders = orders.repartition(8, helpers.salt())",
]


@pytest.mark.req("D1")
@pytest.mark.parametrize("line", SHUFFLES)
def test_a_shuffle_by_a_random_key_is_found_where_rows_move(line: str) -> None:
    helpers = "from pyspark.sql import functions as F\ndef salt():\n    return F.rand()"
    body = f"{DECLARED}def job(context, orders, rates):\n    {line}\n    return orders"
    assert ("random_shuffle", "job.py", 3) in found(body, helpers=helpers)
    assert KINDS["random_shuffle"].severity == "always"


def test_helpers_are_found_one_call_away_and_further_and_code_that_is_not_reached_is_not() -> None:
    body = f"""
{DECLARED}def job(context, orders, rates):
    return helpers.stamped(orders)
"""
    helpers = """
        from deeper import at
        import time
        def stamped(frame):
            return frame.withColumn("at", at())
        def unused():
            return time.time()
    """
    deeper = (
        "from pyspark.sql.functions import current_timestamp as at_\ndef at():\n    return at_()"
    )
    assert found(body, helpers=helpers, deeper=deeper) == [("wall_clock", "deeper.py", 3)]


UDFS = [
    ("@udf('string')\ndef f(x):\n    return str(datetime.datetime.now())", "wall_clock", 3),
    ("@pandas_udf('double')\ndef f(x):\n    return x * np.random.rand()", "random_value", 3),
    ("@udf\ndef f(x):\n    global SEEN\n    SEEN = x\n    return x\nSEEN = 0", "global_state", 3),
    ("@udf\ndef f(x):\n    CACHE[x] = 1\n    return len(CACHE)", "global_state", 3),
    ("f = udf(lambda x: uuid.uuid4().hex)", "generated_id", 1),
]


@pytest.mark.req("D1")
@pytest.mark.parametrize(("code", "kind", "line"), UDFS)
def test_the_code_of_functions_that_run_on_executors_is_found(
    code: str, kind: str, line: int
) -> None:
    body = f"{code}\n{DECLARED}def job(context, orders, rates):\n    return orders.select(f('k'))"
    assert found(body) == [(kind, "job.py", line)]


SQL = [
    ("SELECT *,\n  now() AS at FROM {orders}", "wall_clock", 5),
    ("SELECT *, current_date AS at FROM {orders}", "wall_clock", 4),
    ("SELECT *,\n current_timestamp() AS at FROM {orders}", "wall_clock", 5),
    ("SELECT *,\n\n rand(3) AS r FROM {orders}", "random_value", 6),
    ("SELECT *, randn() AS r FROM {orders}", "random_value", 4),
    ("SELECT *, uuid() AS r FROM {orders}", "generated_id", 4),
    ("SELECT *, monotonically_increasing_id() AS r FROM {orders}", "generated_id", 4),
    ("SELECT *, spark_partition_id() AS r FROM {orders}", "generated_id", 4),
    ("SELECT *, input_file_name() AS r FROM {orders}", "file_name", 4),
    ("SELECT k,\n collect_list(v) FROM {orders} GROUP BY k", "unordered_collection", 5),
    ("SELECT k, collect_set(v) FROM {orders} GROUP BY k", "unordered_collection", 4),
    ("SELECT k, listagg(v, ',') FROM {orders} GROUP BY k", "unordered_collection", 4),
    ("SELECT k, first(v) FROM {orders} GROUP BY k", "unordered_first", 4),
    ("SELECT k, any_value(v) FROM {orders} GROUP BY k", "unordered_first", 4),
    ("SELECT *\nFROM {orders}\nLIMIT 10", "unordered_limit", 6),
    ("SELECT *\nFROM {orders} TABLESAMPLE (10 PERCENT)", "unordered_limit", 5),
    ("SELECT *, current_timezone() AS z FROM {orders}", "time_zone", 4),
    ("SELECT *, current_user() AS z FROM {orders}", "environment", 4),
    ("SELECT *\nFROM {orders}\nJOIN lake.silver.rates USING (k)", "unpinned_read", 6),
]


@pytest.mark.req("D1")
@pytest.mark.parametrize(("text", "kind", "line"), SQL, ids=[text for text, _, _ in SQL])
def test_a_line_of_a_sql_file_is_found(text: str, kind: str, line: int) -> None:
    head = "-- name: orders\n-- version: 1.0.0\n-- inputs: orders\n"
    findings = scan_sql_file(head + text, "jobs/orders.sql")
    assert [(one.kind, one.file, one.line) for one in findings] == [(kind, "jobs/orders.sql", line)]


@pytest.mark.req("D1")
def test_a_name_in_braces_is_an_input_and_any_other_table_is_none() -> None:
    text = "SELECT * FROM {orders} JOIN rates USING (k)"
    assert [one.found for one in scan_sql_file(text, "a.sql")] == ["FROM rates"]


SQL_SHUFFLES = [
    "SELECT * FROM {orders} DISTRIBUTE BY rand()",
    "SELECT count(*) FROM {orders} GROUP BY floor(rand() * 8)",
    "SELECT * FROM {orders} JOIN {rates} ON {orders}.k = uuid()",
    "SELECT *, row_number() OVER (PARTITION BY rand() ORDER BY k) FROM {orders}",
]


@pytest.mark.req("D1")
@pytest.mark.parametrize("text", SQL_SHUFFLES)
def test_a_shuffle_by_a_random_key_is_found_in_sql(text: str) -> None:
    kinds = {one.kind for one in scan_sql_file(f"-- inputs: orders, rates\n{text}", "a.sql")}
    assert "random_shuffle" in kinds


CLEAN = {
    "filter and arithmetic": "return orders.where(F.col('k') > 0).withColumn('t', F.col('v') * 2)",
    "join and sums": "return orders.join(rates, 'k').groupBy('k').agg(F.sum('v'), F.count('*'))",
    "the run's clock": "return orders.withColumn('at', F.lit(context.clock))",
    "configuration": "return orders.where(F.col('k') == context.config['k'])",
    "sorted collection": "return orders.groupBy('k').agg(F.sort_array(F.collect_list('v')))",
    "sorted later": "return orders.groupBy('k').agg(F.collect_list('v').alias('v'))"
    ".withColumn('v', F.array_sort('v'))",
    "window": "w = Window.partitionBy('k').orderBy('v', 'id')\n"
    "    return orders.withColumn('n', F.row_number().over(w)).where('n = 1').drop('n')",
    "first in a window": "w = Window.partitionBy('k').orderBy('v', 'id')\n"
    "    return orders.withColumn('f', F.first('v').over(w))",
    "newest row": "return orders.groupBy('k').agg(F.max_by('v', F.struct('at', 'id')))",
    "hash of the key": "return orders.repartition(8, F.xxhash64('k')).select(F.sha2('k', 256))",
    "dates": "return orders.withColumn('d', F.to_date(F.from_utc_timestamp('at', 'Europe/Paris')))"
    ".withColumn('u', F.unix_timestamp('at'))",
    "sets of names": "names = {'a', 'b'}\n    keep = [c for c in rates.columns if c not in names]\n"
    "    return orders.select(*keep).where(F.col('k').isin(list(names)))",
    "sets as arguments": "orders = orders.drop(*{'a', 'b'})\n"
    "    return orders.where(F.col('k').isin(*{1, 2}))",
    "size of a collection": "return orders.groupBy('k').agg(F.size(F.collect_set('v')))",
    "sorted set": "for name in sorted(set(NAMES)):\n        orders = orders.drop(name)\n"
    "    return orders",
    "seeded generator": "weights = random.Random(7).sample(range(10), 3)\n    return orders",
    "time constants": "day = datetime.datetime(2024, 1, 1, tzinfo=timezone.utc)\n"
    "    when = datetime.datetime.fromtimestamp(0, timezone.utc)\n    return orders",
    "sql over inputs": "return orders.sparkSession.sql('SELECT * FROM {o} WHERE k > 1', o=orders)",
    "limit of sorted rows": "return orders.orderBy('k', 'id').limit(10)",
    "no rows": "return orders.limit(0)",
    "distinct": "return orders.distinct().dropDuplicates()",
    "uuid of the name": "ns = uuid.uuid5(uuid.NAMESPACE_DNS, 'orders')\n    return orders",
    "local containers": "seen = {}\n    seen['a'] = 1\n    seen.update(b=2)\n    return orders",
    "os.path": "name = os.path.join('a', 'b')\n    return orders",
    "a udf": "up = udf(lambda x: x.upper())\n    return orders.withColumn('n', up('n'))",
    "pandas": "def total(pdf):\n        return pdf.sort_values('k').head(3)\n"
    "    return orders.groupBy('k').applyInPandas(total, orders.schema)",
}  # fmt: skip


@pytest.mark.req("D1")
@pytest.mark.parametrize("body", CLEAN.values(), ids=CLEAN)
def test_an_honest_transform_is_not_flagged(body: str) -> None:
    assert found(f"{DECLARED}def job(context, orders, rates):\n    {body}") == []


#: Code that looks like one of the kinds: what stands above the transform, and its body.
LOOKALIKES = {
    "a function over a window in a variable": (
        "", "w = Window.partitionBy('k').orderBy('d')\nlast = F.last('v')\n"
        "return orders.withColumn('x', last.over(w))"),
    "functions over a window in a list": (
        "", "w = Window.partitionBy('k').orderBy('d')\n"
        "filled = [F.last(c, ignorenulls=True) for c in NAMES]\n"
        "return orders.select(*[one.over(w) for one in filled])"),
    "a function over a window in a helper": (
        "def latest(c, w):\n    return F.last(c, ignorenulls=True).over(w)",
        "return orders.withColumn('x', latest('v', Window.partitionBy('k').orderBy('d')))"),
    "the last rows of a sorted group in pandas": (
        "def newest(group):\n    return group.sort_values('d').reset_index(drop=True).tail(1)",
        "return orders.groupBy('k').applyInPandas(newest, orders.schema)"),
    "the first of equal rows of a sorted group in pandas": (
        "def newest(group):\n    group = group.sort_values(['d', 'id'])\n"
        "    return group.drop_duplicates('d', keep='last')",
        "return orders.groupBy('k').applyInPandas(newest, orders.schema)"),
    "a limit of sorted rows with new names": (
        "", "rows = orders.orderBy('k').withColumnRenamed('v', 'x').where('x > 0')\n"
        "return rows.limit(3)"),
    "Spark's hash by a star": (
        "from pyspark.sql.functions import *",
        "return orders.withColumn('h', abs(hash(col('k'))))"),
    "a view whose name is a variable": (
        "VIEW = 'cleaned'", "orders.createOrReplaceTempView(VIEW)\n"
        "rows = orders.sparkSession.sql('SELECT * FROM cleaned')\n"
        "return rows.join(orders.sparkSession.table(VIEW), 'k')"),
    "a set in the text of an error": (
        "", "missing = {'k', 'v'} - set(orders.columns)\nif missing:\n"
        "    raise ValueError(f\"missing: {', '.join(missing)}\")\n"
        "assert not missing, ', '.join(missing)\nreturn orders"),
}  # fmt: skip


def with_code_above(above: str, body: str) -> list[tuple[str, str, int]]:
    lines = body.replace("\n", "\n    ")
    return found(f"{above}\n{DECLARED}def job(context, orders, rates):\n    {lines}")


@pytest.mark.parametrize("case", LOOKALIKES)
def test_honest_code_that_looks_like_a_kind_is_not_flagged(case: str) -> None:
    assert with_code_above(*LOOKALIKES[case]) == []


#: The same without what makes it harmless.
CAUGHT = {
    "a function without a window": (
        "", "last = F.last('v')\nreturn orders.groupBy('k').agg(last)", "unordered_first"),
    "rows of a group in no order": (
        "def newest(group):\n    return group.tail(1)\n"
        "def other(group):\n    return group.sort_values('d')",
        "return orders.groupBy('k').applyInPandas(newest, orders.schema)", "unordered_limit"),
    "a limit after a join of sorted rows": (
        "", "return orders.orderBy('k').join(rates, 'k').limit(3)", "unordered_limit"),
    "Python's hash beside named functions": (
        "from pyspark.sql.functions import col", "return orders.where(col('k') == hash('a'))",
        "hash_order"),
    "a table with the name of no view": (
        "VIEW = 'cleaned'", "orders.createOrReplaceTempView(VIEW)\n"
        "return orders.sparkSession.table('live')", "unpinned_read"),
    "a set in a column": (
        "", "return orders.withColumn('x', F.lit(','.join({'a', 'b'})))", "hash_order"),
}  # fmt: skip


@pytest.mark.parametrize("case", CAUGHT)
def test_what_only_looks_harmless_is_caught(case: str) -> None:
    *code, kind = CAUGHT[case]
    assert [one[0] for one in with_code_above(*code)] == [kind]


CLEAN_SQL = [
    "SELECT k, sum(v) AS v, max(:clock) AS at FROM {orders} GROUP BY k",
    "SELECT k, sort_array(collect_list(v)) AS vs FROM {orders} GROUP BY k",
    "SELECT * FROM (SELECT *, rank() OVER (PARTITION BY k ORDER BY d) n FROM {orders}) WHERE n = 1",
    "WITH d AS (SELECT DISTINCT k FROM {orders}) SELECT * FROM d JOIN {rates} USING (k)",
    "SELECT k, size(collect_set(v)) AS n FROM {orders} GROUP BY k",
    "SELECT * FROM {orders} ORDER BY k, id LIMIT 5",
]  # fmt: skip


@pytest.mark.req("D1")
@pytest.mark.parametrize("text", CLEAN_SQL)
def test_an_honest_query_is_not_flagged(text: str) -> None:
    assert scan_sql_file(f"-- inputs: orders, rates\n{text}", "a.sql") == ()
