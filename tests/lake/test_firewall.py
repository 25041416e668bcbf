"""Outside effects of job code are stopped, with sink, file and line; honest transforms run."""

from __future__ import annotations

import builtins
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.adapters.spark.staging.jobs import JobContext, load_job
from lakehouse_backfill.adapters.spark.staging.staging import SparkStaging
from lakehouse_backfill.domain.manifest import TransformRef
from lakehouse_backfill.errors import BackfillError, WriteForbidden
from tests.support.spark.lake import Lake, PlanMaker, copy_job, no_secret


@dataclass
class Outside:
    """A server that counts connections, and a folder that must stay empty."""

    folder: Path
    port: int
    seen: list[Any] = field(default_factory=list)


@pytest.fixture
def outside(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Outside]:
    installed = tmp_path_factory.mktemp("installed")
    for name in ("kafka", "grpc", "boto3"):  # They are not installed here, and do nothing.
        (installed / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("LHB_TEST_SECRET", "planted")
    server = socket.create_server(("127.0.0.1", 0))
    found = Outside(tmp_path_factory.mktemp("outside"), server.getsockname()[1])

    def accept() -> None:
        while True:
            connection, peer = server.accept()
            with connection:
                if connection.recv(4) == b"stop":
                    return
                found.seen.append(peer)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield found
    with socket.create_connection(("127.0.0.1", found.port)) as connection:
        connection.sendall(b"stop")
    thread.join()
    server.close()


#: Sink, and one line of Python; {port} and {folder} are filled in.
EFFECTS: dict[str, tuple[str, str]] = {
    "urllib": ("network", "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/')"),
    "raw socket": ("network", "import socket; socket.create_connection(('127.0.0.1', {port}))"),
    "datagram": (
        "network",
        "import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    ),
    "SMTP": ("network", "import smtplib; smtplib.SMTP('127.0.0.1', {port})"),
    "webhook": (
        "network",
        "import http.client as h; h.HTTPConnection('127.0.0.1', {port}).request('POST', '/', 'x')",
    ),
    "DNS look-up": ("network", "import socket; socket.getaddrinfo('example.invalid', 80)"),
    "secret of the environment": ("secret", "import os; os.environ['LHB_TEST_SECRET']"),
    "secret by getenv": ("secret", "import os; os.getenv('LHB_TEST_SECRET')"),
    "secret of a file": ("file", "open('/proc/self/environ').read()"),
    "subprocess": ("process", "import subprocess; subprocess.run(['touch', '{folder}/a'])"),
    "os.system": ("process", "import os; os.system('touch {folder}/b')"),
    "fork": ("process", "import os; os.fork() or os._exit(0)"),
    "open": ("file", "open('{folder}/c', 'w').write('x')"),
    "pathlib": ("file", "import pathlib; pathlib.Path('{folder}/d').write_text('x')"),
    "link": ("file", "import os; os.symlink('{folder}', '/tmp/lhb-link')"),
    "pandas CSV": ("file", "import pandas as p; p.DataFrame({{'a': [1]}}).to_csv('{folder}/e')"),
    "pandas Parquet": (
        "file", "import pandas as p; p.DataFrame({{'a': [1]}}).to_parquet('{folder}/f')",
    ),
    "pandas to a store": (
        "file", "import pandas as p; p.DataFrame({{'a': [1]}}).to_parquet('s3://bucket/f')",
    ),
    "pandas to a database": (
        "database", "import pandas as p; p.DataFrame({{'a': [1]}}).to_sql('t', 'postgresql://db/x')",
    ),
    "numpy": ("file", "import numpy; numpy.save('{folder}/g', numpy.zeros(2))"),
    "numpy tofile": ("file", "import numpy; numpy.zeros(2).tofile('{folder}/g2')"),
    "logging": ("file", "import logging; logging.FileHandler('{folder}/h')"),
    "shutil": ("file", "import shutil; shutil.copy(__import__('os').__file__, '{folder}/h2')"),
    "sqlite3": ("database", "import sqlite3; sqlite3.connect('{folder}/i')"),
    "PyIceberg append": ("table", "from pyiceberg.catalog import load_catalog"),
    "PyArrow Parquet": (
        "file",
        "import pyarrow as a; a.parquet.write_table(a.table({{'a': [1]}}), '{folder}/j')",
    ),
    "PyArrow store": ("file", "import pyarrow.fs as fs; fs.S3FileSystem()"),
    "PyArrow file": ("file", "import pyarrow as a; a.OSFile('{folder}/k', 'wb')"),
    "PyArrow IPC": ("file", "import pyarrow as a; a.ipc.new_file('{folder}/l', a.schema([]))"),
    "DuckDB COPY": ("table", "import duckdb; duckdb.sql(\"COPY (SELECT 1) TO '{folder}/m'\")"),
    "DuckDB attach": ("table", "import duckdb; duckdb.sql(\"ATTACH '{folder}/n'\")"),
    "DuckDB by name": ("table", "from importlib import import_module as i; i('duckdb')"),
    "DuckDB in executed text": ("table", "exec('import duckdb')"),
    "Kafka": ("topic", "import kafka"),
    "gRPC": ("network", "import grpc"),
    "boto3": ("cloud", "import boto3"),
    "ctypes": ("native code", "import ctypes; ctypes.CDLL(None).system(b'true')"),
    "process pool": (
        "process",
        "from concurrent.futures import ProcessPoolExecutor as P; P(1).submit(print).result()",
    ),
    "thread pool": (
        "network",
        "from concurrent.futures import ThreadPoolExecutor as P; import socket; "
        "P(1).submit(socket.create_connection, ('127.0.0.1', {port})).result()",
    ),
    "asyncio": (
        "network", "import asyncio as a; a.run(a.open_connection('127.0.0.1', {port}))",
    ),
    "the toolkit": ("toolkit", "from lakehouse_backfill import Project"),
}  # fmt: skip


def _functions(outside: Outside) -> str:
    """Return a module in which the n-th effect stands in line n; `act` tries and swallows all."""
    bodies = [text.format(port=outside.port, folder=outside.folder) for _, text in EFFECTS.values()]
    lines = [f"def attempt_{number}(): {body}" for number, body in enumerate(bodies, 1)]
    return "\n".join([*lines, f"ATTEMPTS = [{', '.join(f'attempt_{n}' for n in _NUMBERS)}]", _ACT])


_NUMBERS = range(1, len(EFFECTS) + 1)
_ACT = """
import threading

def swallow(attempt):
    try:
        attempt()
    except Exception:
        pass

def act():
    for attempt in ATTEMPTS:
        swallow(attempt)

def act_in_threads():
    for attempt in ATTEMPTS:
        thread = threading.Thread(target=swallow, args=(attempt,))
        thread.start()
        thread.join()

def rows(batches):
    for batch in batches:
        act()
        yield batch
"""
#: What a transform does with the module `effects` that it imports.
PLACES: dict[str, tuple[str, ...]] = {
    "the transform": ("effects.act()", "return src"),
    "a thread": ("effects.act_in_threads()", "return src"),
    "a UDF": ("return src.withColumn('v', F.udf(lambda v: effects.act() or v, 'bigint')('v'))",),
    "a thread of a UDF": (
        "return src.withColumn('v', F.udf(lambda v: effects.act_in_threads() or v, 'bigint')('v'))",
    ),
    "a pandas UDF": (
        "return src.withColumn('v', F.pandas_udf(lambda v: effects.act() or v, 'bigint')('v'))",
    ),
    "mapInPandas": ("return src.mapInPandas(effects.rows, src.schema)",),
    "mapInArrow": ("return src.mapInArrow(effects.rows, src.schema)",),
    "an Arrow UDF in a grouping": (
        "return src.groupBy('k').applyInPandas(lambda g: effects.act() or g, src.schema)",
    ),
}


def run(lake: Lake, job: str, **modules: str) -> list[Any]:
    """Run a job on one row for each of four keys and collect its result, as staging does."""
    lake.job(job)
    for name, text in modules.items():
        lake.job(text, f"jobs/{name}.py")
    wanted = TransformRef(name="copy", version="1.0.0", file="jobs/job.py")
    context = JobContext("bf-1", "backfill", datetime(2024, 1, 1, tzinfo=timezone.utc), "1.0.0", {})
    loaded = load_job(lake.spark, lake.project, wanted, {"src"})
    frame = lake.spark.range(4, numPartitions=1).selectExpr("id AS k", "id AS v")
    with spark_errors("computing"):
        return sorted(tuple(row) for row in loaded.run(context, {"src": frame})[0].collect())


def sinks_by_line(error: WriteForbidden, file: str) -> dict[int, str]:
    """Return the sink of the first attempt of each line."""
    found: dict[int, str] = {}
    for attempt in error.data["attempts"]:
        assert attempt["file"] == file
        found.setdefault(attempt["line"], attempt["sink"])
    return found


@pytest.mark.req("E1", "T6")
@pytest.mark.parametrize("where", PLACES)
def test_each_outside_effect_is_stopped_with_sink_file_and_line(
    lake: Lake, outside: Outside, where: str
) -> None:
    job = copy_job(*PLACES[where], above="import effects")
    lake.create_daily("live", 1)
    tables = {
        name: lake.catalog.load_table(name) for name in lake.catalog.list_tables(lake.namespace)
    }
    heads = {name: table.metadata for name, table in tables.items()}
    with pytest.raises(WriteForbidden) as caught:
        run(lake, job, effects=_functions(outside))
    found = sinks_by_line(caught.value, "jobs/effects.py")
    wanted = dict(zip(_NUMBERS, ((what, sink) for what, (sink, _) in EFFECTS.items()), strict=True))
    missed = {what: found.get(n) for n, (what, sink) in wanted.items() if found.get(n) != sink}
    assert missed == {}
    assert outside.seen == []
    assert list(outside.folder.iterdir()) == []
    assert {name: lake.catalog.load_table(name).metadata for name in heads} == heads


#: What only the driver can try, as it has the session; each is refused by it.
SESSION_EFFECTS: dict[str, tuple[str, str]] = {
    "Spark write": ("table", "frame().writeTo('{live}').append()"),
    "Spark write by another session": (
        "table",
        "session().newSession().sql('INSERT INTO {live} SELECT * FROM {live}')",
    ),
    "JDBC write": ("table", "frame().write.jdbc('jdbc:postgresql://127.0.0.1/x', 't')"),
    # A read of an embedded database creates it; one of a server may run a statement first.
    "JDBC read": ("database", "session().read.jdbc('jdbc:derby:{folder}/d1;create=true', 't')"),
    "JDBC read by format": (
        "database",
        "session().read.format('JDBC').options(url='jdbc:derby:{folder}/d2;create=true', "
        "dbtable='t').load()",
    ),
    "JDBC read by a class": (
        "database",
        "session().read.load(format='org.apache.spark.sql.jdbc', dbtable='t', "
        "url='jdbc:derby:{folder}/d3;create=true')",
    ),
    "file of a web server": ("network", "session().read.text('http://127.0.0.1:1/a').collect()"),
    "file of a server by an option": (
        "network",
        "session().read.format('csv').option('path', 'webhdfs://127.0.0.1:1/a').load()",
    ),
    "file of a file system of its own": (
        "network",
        "session().read.option('fs.own.impl', 'org.apache.hadoop.hdfs.web.WebHdfsFileSystem')"
        ".text('own://127.0.0.1:1/a')",
    ),
    "file of a web server by the context": (
        "network",
        "context().textFile('http://127.0.0.1:1/a').collect()",
    ),
    "file by a class": (
        "table",
        "context().newAPIHadoopFile('/tmp/a', 'a.Format', 'a.Key', 'a.Value')",
    ),
    "files": ("table", "frame().write.parquet('{folder}/p')"),
    "text files of an RDD": ("table", "frame().toJSON().saveAsTextFile('{folder}/q')"),
    "an RDD of the context": (
        "table",
        "context().parallelize([1]).saveAsTextFile('{folder}/r')",
    ),
    "a model": ("file", "indexer().fit(letters()).save('file://{folder}/s')"),
    "a part of a pipeline": ("file", "indexer().write().overwrite().save('{folder}/t')"),
    "a pipeline": ("file", "pipeline().write().overwrite().save('{folder}')"),
    "a pipeline of Python": ("file", "pipeline().save('{folder}/u')"),
    "an older model": ("file", "older_model().save(context(), 'file://{folder}/v')"),
    "files for machine learning": (
        "table",
        "older_files().saveAsLibSVMFile(context().parallelize([]), '{folder}/w')",
    ),
    "a file for workers": ("table", "context().addFile('/etc/hostname')"),
    "an artifact": ("table", "session().addArtifact('/etc/hostname')"),
    "a data source": ("table", "session().dataSource.register(object)"),
    "a Java function": ("table", "session().udf.registerJavaFunction('f', 'java.lang.String')"),
    "PyIceberg append": ("table", "catalog('{name}').load_table('{name}').append(one_row())"),
    "PyIceberg append elsewhere": (
        "table",
        "catalog('{other}').load_table('{other}').append(one_row())",
    ),
    "PyIceberg drop": ("table", "catalog('{other}').drop_table('{other}')"),
    "PyIceberg create": (
        "table",
        "catalog('{other}').create_table('{other}_new', one_row().schema)",
    ),
    "PyIceberg file": ("table", "output().create()"),
    "PyIceberg file system": ("table", "output()._filesystem"),
    "PyIceberg delete": (
        "table",
        "catalog('{other}').load_table('{other}').io.delete('file:///nowhere')",
    ),
    "objects of the process": ("toolkit", "__import__('gc').get_objects()"),
    "a setting": ("secret", "session().conf.get('spark.hadoop.fs.s3a.secret.key')"),
    "a setting of the context": (
        "secret",
        "getattr(context(), '_' + 'conf').get('spark.hadoop.fs.s3a.secret.key')",
    ),
    "all settings of the context": ("table", "context().getConf()"),
    "an accumulator": ("table", "context().accumulator(0)"),
    "an accumulator of its own": (
        "table",
        "__import__('pyspark.accumulators').accumulators.Accumulator(1, 0, None)",
    ),
    "all settings": ("table", "session().conf.getAll"),
    "Java by a function's name": ("Java", "run(F.call_function('Reflect', *_JAVA))"),
    "Java by an expression": ("Java", "run(F.expr('refl' + _CALL))"),
    "Java by a quoted name": ("Java", "frame().selectExpr('id', '`JAVA_METHOD` /* */ ' + _ARGS)"),
    "Java by a function": ("Java", "run(getattr(F, 'try_' + 'reflect')(*_JAVA))"),
    "Java by a computed name": ("Java", "run(F.expr(\"IDENTIFIER('re' || 'flect')\" + _ARGS))"),
    "Java in a filter": ("Java", "frame().filter('re' + 'flect' + _ARGS + ' IS NULL').count()"),
    "Java": ("Java", "getattr(session(), '_j' + 'vm').java.lang.System.exit(1)"),
    **{
        f"store, {way}": ("network", text)
        for way, text in {
            "a reader": "session().read.text(AT)",
            "a later path": "session().read.parquet('/tmp/a', AT)",
            "a list of paths": "session().read.json(['file:/tmp/a', AT])",
            "a pattern": "session().read.csv('{{/tmp/a,' + AT + '}}')",
            "an option": "session().read.format('orc').option('path', AT).load()",
            "options": "session().read.format('binaryFile').options(path=AT).load()",
            "a stream": "session().readStream.text(AT)",
            "a table of files": "session().read.format('iceberg').load(AT)",
            "a schema of XML": "session().read.option('rowValidationXSDPath', AT).xml('/tmp/a')",
            "a table's name": "session().table('text.`' + AT + '`')",
            "a reader's table": "session().read.table('text.`' + AT + '`')",
            "SQL": "session().sql('SELECT * FROM parquet.`' + AT + '`').collect()",
            "an expression": "run(F.expr('(SELECT max(value) FROM text.`' + AT + '`)'))",
            "the cache of a path": "session().catalog.refreshByPath(AT)",
            "the cache of a table": "session().catalog.cacheTable('text.`' + AT + '`')",
            "the context": "context().textFile('file:/tmp/a,' + AT).collect()",
            "whole files": "context().wholeTextFiles(AT).collect()",
            "a function's schema": "run(F.from_xml(F.lit('<a/>'), 'b string', XSD))",
            "a function's schema in a text": "run(F.expr('from_xml(x, y, ' + str(XSD) + ')'))",
            "a function's schema in SQL": "session().sql('SELECT from_xml(x, y, map(\"'"
            " + [*XSD][0] + '\", \"' + AT + '\"))')",
            "a function's schema by literals": "F.create_map(F.lit([*XSD][0]), F.lit(AT))",
            "a model": "type(indexer().fit(letters())).load(AT)",
            "a reader of models": "type(indexer()).read().load(AT)",
            "a pipeline": "type(pipeline()).load(AT)",
            "an older model": "type(older_model()).load(context(), AT)",
            "older files": "older_files().loadLibSVMFile(context(), AT)",
            "older vectors": "older_files().loadVectors(context(), AT)",
        }.items()
    },
}
_SESSION_HELP = """
import sys
from pyspark.sql import SparkSession
def session(): return SparkSession.builder.getOrCreate()
def context(): return getattr(session(), 'spark' + 'Context')
def frame(): return session().range(1)
from pyspark.sql import functions as F
_JAVA = F.lit('java.lang.System'), F.lit('lineSeparator')
_ARGS = "('java.lang.System', 'lineSeparator')"
_CALL = 'ect' + _ARGS
def run(column): return frame().select(column).collect()
def letters(): return session().createDataFrame([('a',)], 'a string')
def indexer():
    from pyspark.ml.feature import StringIndexer
    return StringIndexer(inputCol='a', outputCol='b')
def pipeline():
    from pyspark.ml import Pipeline
    return Pipeline(stages=[indexer()])
def older_model():
    from pyspark.mllib.regression import LinearRegressionModel
    return LinearRegressionModel([1.0], 0.0)
def older_files():
    from pyspark.mllib.util import MLUtils
    return MLUtils
def catalog(name): return sys.modules['builtins'].found_catalog
def output(): return sys.modules['builtins'].found_output
def one_row():
    import pyarrow
    return pyarrow.table({'k': [1]})
"""


@pytest.mark.req("E1", "T6")
@pytest.mark.parametrize("where", ["the transform", "a thread"])
def test_each_write_through_the_session_or_a_catalog_is_stopped_and_fails_the_run(
    lake: Lake, outside: Outside, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("live", "other"):
        lake.sql(f"CREATE TABLE {{ns}}.{name} (k bigint)")
    names = {"live": f"lake.{lake.table('live')}", "name": lake.table("live")}
    names |= {"other": lake.table("other"), "folder": str(outside.folder)}
    tables = [lake.catalog.load_table(lake.table(name)) for name in ("live", "other")]
    heads = {name: lake.catalog.load_table(lake.table(name)).metadata for name in ("live", "other")}
    files = [_files_of(table) for table in tables]
    # A job may dig them out of the process in many ways: by frames, modules, closures.
    output = tables[1].io.new_output(f"{tables[1].location()}/one.bin")
    monkeypatch.setattr(builtins, "found_catalog", lake.catalog, raising=False)
    monkeypatch.setattr(builtins, "found_output", output, raising=False)
    lines = [text.format(**names) for _, text in SESSION_EFFECTS.values()]
    store = f"AT = 'hdfs://127.0.0.1:{outside.port}/a'\nXSD = {{'rowValidationXSDPath': AT}}"
    attempts = [f"def attempt_{n}(): {line}" for n, line in enumerate(lines, 1)]
    listed = ", ".join(f"attempt_{n}" for n in range(1, len(lines) + 1))
    text = "\n".join([*attempts, f"ATTEMPTS = [{listed}]", _SESSION_HELP, store, _ACT])
    with pytest.raises(WriteForbidden) as caught:
        run(lake, copy_job(*PLACES[where], above="import effects"), effects=text)
    found = sinks_by_line(caught.value, "jobs/effects.py")
    wanted = {n: sink for n, (sink, _) in enumerate(SESSION_EFFECTS.values(), 1)}
    assert found == wanted
    after = {name: lake.catalog.load_table(lake.table(name)).metadata for name in heads}
    assert after == heads
    assert [_files_of(table) for table in tables] == files
    assert list(outside.folder.iterdir()) == []
    assert outside.seen == []


def _files_of(table: Any) -> set[Path]:
    return set(Path(table.location().removeprefix("file://")).rglob("*"))


#: Function bodies of transforms that do nothing outside, and what stands above them.
HONEST: dict[str, tuple[str, tuple[str, ...]]] = {
    "expressions": ("", ("return src.withColumn('v', F.col('v') + 1)",)),
    "SQL": ("", ("return src.sparkSession.sql('SELECT k, v + 1 AS v FROM {s}', s=src)",)),
    "a UDF": ("", ("return src.withColumn('v', F.udf(lambda v: v + 1, 'bigint')('v'))",)),
    "a pandas UDF": (
        "import pandas as pd",
        ("f = F.pandas_udf(lambda v: v + 1, 'bigint')", "return src.withColumn('v', f('v'))"),
    ),
    "NumPy in a UDF": (
        "import numpy as np",
        ("f = F.udf(lambda v: int(np.int64(v) + 1), 'bigint')",
         "return src.withColumn('v', f('v'))"),
    ),
    "mapInPandas": (
        "def rows(frames):\n    for one in frames:\n        yield one.assign(v=one.v + 1)",
        ("return src.mapInPandas(rows, src.schema)",),
    ),
    "mapInArrow": (
        "import pyarrow as pa\nimport pyarrow.compute as pc\n"
        "def rows(batches):\n    for b in batches:\n"
        "        yield pa.record_batch([b['k'], pc.add(b['v'], 1)], names=['k', 'v'])",
        ("return src.mapInArrow(rows, src.schema)",),
    ),
    "groups of pandas": (
        "", ("return src.groupBy('k').applyInPandas(lambda g: g.assign(v=g.v + 1), src.schema)",),
    ),
    "Arrow on the driver": (
        "import pyarrow as pa",
        ("found = src.toArrow()", "v = pa.compute.add(found['v'], 1)",
         "return src.sparkSession.createDataFrame(pa.table({'k': found['k'], 'v': v}))"),
    ),
    "pandas on the driver": (
        "import pandas",
        ("found = src.toPandas()", "found['v'] += 1",
         "return src.sparkSession.createDataFrame(found)"),
    ),
    "packaged data": (
        "from importlib.resources import files",
        ("found = files('sqlglot').joinpath('__init__.py').read_bytes()",
         "return src.withColumn('v', F.col('v') + F.lit(int(len(found) > 0)))"),
    ),
    "time zones": (
        "from zoneinfo import ZoneInfo\nfrom datetime import datetime",
        ("hour = datetime(2024, 1, 1, tzinfo=ZoneInfo('UTC')).hour",
         "return src.withColumn('v', F.col('v') + 1 + hour)"),
    ),
    "sqlglot": (
        "import sqlglot",
        ("text = sqlglot.transpile('SELECT k, v + 1 AS v FROM src', write='spark')[0]",
         "src.createOrReplaceTempView('src')", "return src.sparkSession.sql(text)"),
    ),
    "a module of the project": (
        "from steps import plus", ("return src.withColumn('v', F.udf(plus, 'bigint')('v'))",),
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor",
        ("with ThreadPoolExecutor(2) as pool:",
         "    counts = list(pool.map(lambda _: src.count(), 'ab'))",
         "return src.withColumn('v', F.col('v') + counts[0] - 3)"),
    ),
    "a scratch file": (
        "import os",
        ("with open(os.path.join(context.scratch, 'one.txt'), 'w') as file:",
         "    file.write('1')", "plus = int(open(os.path.join(context.scratch, 'one.txt')).read())",
         "return src.withColumn('v', F.col('v') + plus)"),
    ),
    "a folder of its own in scratch": (
        "import shutil, tempfile",
        ("with tempfile.TemporaryDirectory(dir=context.scratch) as folder:",
         "    open(folder + '/one.txt', 'w').close()",
         "shutil.rmtree(tempfile.mkdtemp(dir=context.scratch))",
         "return src.withColumn('v', F.col('v') + 1)"),
    ),
    "an environment variable": (
        "import os",
        ("plus = len(os.environ.get('NONE_SUCH', '1'))",
         "return src.withColumn('v', F.col('v') + plus)"),
    ),
    "asyncio and logging": (
        "import asyncio, logging\nasync def one():\n"
        "    logging.getLogger('job').info('x')\n    return 1",
        ("plus = asyncio.run(one())", "return src.withColumn('v', F.col('v') + plus)"),
    ),
}  # fmt: skip


@pytest.mark.req("E1")
@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_transform_runs(lake: Lake, kind: str) -> None:
    above, body = HONEST[kind]
    found = run(
        lake, copy_job(*body, above=above), steps="def plus(value):\n    return value + 1\n"
    )
    assert found == [(number, number + 1) for number in range(4)]


def test_the_environment_as_text_shows_no_secret(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LHB_TEST_SECRET", "planted")
    found = run(
        lake,
        copy_job(
            "plus = 0 if 'planted' in repr(os.environ) else 1",
            "return src.withColumn('v', F.col('v') + plus)",
            above="import os",
        ),
    )
    assert found == [(number, number + 1) for number in range(4)]
    assert "planted" in repr(os.environ)


@pytest.mark.req("E1")
@pytest.mark.parametrize("policy", ["forbid", "dedupe", "dedupe, with a secret"])
def test_a_transform_reaches_a_declared_sink_only_as_the_policy_says(
    lake: Lake, daily: Callable[..., PlanMaker], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LHB_TEST_SECRET", "planted-4711")
    sent: list[tuple[str, str, dict[str, Any]]] = []

    class Sinks:
        def refusal(self, name: str) -> str:
            return f"a message to {name}" if policy == "forbid" else ""

        def send(self, name: str, key: str, payload: Any) -> None:
            socket.create_connection(server.getsockname()).close()
            sent.append((name, key, payload))

    payload = "'planted-' + '4711'" if "secret" in policy else "1"
    job = copy_job(
        "try:", f"    context.sink('crm').send('day', {{'n': {payload}}})",
        "except PermissionError: pass", "return src",
    )  # fmt: skip
    plan = daily(job).make()
    epochs: list[int | None] = []

    def sinks(_plan: Any, epoch: int | None) -> Sinks:
        epochs.append(epoch)
        return Sinks()

    staging = SparkStaging(lake.tables, lambda _: lake.project, no_secret, sinks)
    with socket.create_server(("127.0.0.1", 0)) as server:
        if policy == "dedupe":
            staging.stage(plan, plan.resolved.chunks[0], 3)
        else:
            tried = "value of LHB_TEST_SECRET" if "secret" in policy else "message to crm"
            with pytest.raises(WriteForbidden, match=rf"{tried} .* at jobs/job\.py:8"):
                staging.stage(plan, plan.resolved.chunks[0], 3)
    assert sent == ([("crm", "day", {"n": 1})] if policy == "dedupe" else [])
    assert epochs == [3]


@pytest.mark.req("E1")
def test_a_worker_reaches_no_sink(lake: Lake) -> None:
    job = copy_job(
        "sink = context.sink('crm')",
        "send = F.udf(lambda v: sink.send(str(v), {}) or v, 'bigint')",
        "return src.withColumn('v', send('v'))",
    )
    with pytest.raises(BackfillError, match="no message can be sent to the sink crm"):
        run(lake, job)


def test_the_toolkit_is_not_stopped_while_a_job_is_known(lake: Lake, tmp_path: Path) -> None:
    run(lake, copy_job("return src"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    (tmp_path / "own.txt").write_text("x")
    import pyarrow as pa

    pa.OSFile(str(tmp_path / "own.arrow"), "wb").close()
    written = lake.spark.range(1).mapInArrow(_write_beside(tmp_path), "id long").collect()
    assert [row["id"] for row in written] == [0]
    assert (tmp_path / "worker.txt").exists()


def _write_beside(folder: Path) -> Callable[[Any], Any]:
    def rows(batches: Any) -> Any:
        for batch in batches:
            (folder / "worker.txt").write_text("x")
            yield batch

    return rows


def test_a_thread_that_outlives_the_transform_fails_the_chunk(
    lake: Lake, daily: Callable[..., PlanMaker], outside: Outside
) -> None:
    late = (
        "import threading, time\ndef late():\n    time.sleep(0.1)\n"
        f"    open('{outside.folder}/late', 'w')\n"
    )
    plan = daily(copy_job("threading.Thread(target=late).start()", "return src", above=late)).make()
    with pytest.raises(WriteForbidden, match=r"jobs/job\.py:7"):
        lake.stage(plan)
    assert list(outside.folder.iterdir()) == []


#: Reads whose address only the JVM sees, as it is put together there, or read by SQL.
SERVER_READS = {
    "SQL": "src.sparkSession.sql('SELECT * FROM text.`{at}`')",
    "a table's name": "src.sparkSession.table('text.`' + '{at}'.replace(':/', ':' + '/') + '`')",
    "an expression": "src.select(F.expr('(SELECT max(value) FROM text.`{at}`)'))",
    "a reader's path": "src.sparkSession.read.text('{at}')",
}


@pytest.mark.req("E1")
@pytest.mark.parametrize("scheme", ["http", "webhdfs", "hdfs"])
@pytest.mark.parametrize("way", SERVER_READS)
def test_a_read_by_spark_reaches_no_server(
    lake: Lake, outside: Outside, way: str, scheme: str
) -> None:
    read = SERVER_READS[way].format(at=f"{scheme}://127.0.0.1:{outside.port}/a")
    with pytest.raises(BackfillError):
        run(lake, copy_job(f"return {read}"))
    assert outside.seen == []


@pytest.mark.req("E1")
def test_a_path_without_a_scheme_reaches_no_default_store(lake: Lake, outside: Outside) -> None:
    settings = lake.spark.sparkContext._jsc.hadoopConfiguration()
    own = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", f"hdfs://127.0.0.1:{outside.port}")
    model = "from pyspark.ml.feature import StringIndexerModel"
    try:
        for read in ("src.sparkSession.read.text('a')", "StringIndexerModel.load('a')"):
            with pytest.raises(WriteForbidden, match=r"from a store \(hdfs\).*jobs/job\.py"):
                run(lake, copy_job(f"return {read}", above=model))
    finally:
        settings.set("fs.defaultFS", own)
    assert outside.seen == []


@pytest.mark.req("E1")
@pytest.mark.parametrize("function", ["xpath_string(xml, 'a')", "from_xml(xml, 'b string')"])
def test_a_text_of_xml_calls_no_server(lake: Lake, outside: Outside, function: str) -> None:
    """Rows decide what it names, so honest code would call it."""
    xml = f'<!DOCTYPE a SYSTEM "http://127.0.0.1:{outside.port}/a"><a><b>1</b></a>'
    body = f"return src.withColumn('xml', F.lit('{xml}')).selectExpr('k', \"{function} AS v\")"
    with suppress(BackfillError):
        run(lake, copy_job(body))
    assert outside.seen == []


@pytest.mark.req("E1")
def test_spark_itself_has_no_file_system_for_a_server(lake: Lake, outside: Outside) -> None:
    """What passes the guard of Python, such as a path in a stored view, is not read either."""
    for scheme in ("http", "webhdfs"):
        with pytest.raises(Exception, match="NotReadByJobs"):
            lake.spark.read.text(f"{scheme}://127.0.0.1:{outside.port}/a").collect()
    assert outside.seen == []


@pytest.mark.req("E1", "T6")
@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("src.withColumn('n', F.call_function('reflect', F.lit('java.lang.System')))", 7),
        ("src.withColumn('n', F.expr('refl' + \"ect('java.lang.System', 'lineSeparator')\"))", 7),
        ("src.crossJoin(src.sparkSession.table('called_java'))", 5),
    ],
    ids=["by name", "put together", "in a view"],
)
def test_a_query_calls_no_java(
    lake: Lake, daily: Callable[..., PlanMaker], rows: str, line: int
) -> None:
    # No text of the job names it: only the plan does.
    call = "SELECT reflect('java.lang.System', 'lineSeparator') AS n"
    lake.spark.sql(call).createOrReplaceTempView("called_java")
    plan = daily(copy_job(f"return {rows}")).make()
    with pytest.raises(WriteForbidden, match=rf"to call Java in a query .*jobs/job\.py:{line}"):
        lake.staging().analysed_plan(plan, plan.resolved.chunks[0])
