"""Outside effects in the code of a job are found with file and line; honest code is not flagged."""

from __future__ import annotations

import pytest

from lakehouse_backfill.core.guards.outside.side_effects import find_side_effects
from lakehouse_backfill.core.planning.plan import make_plan
from lakehouse_backfill.errors import Fault, WriteForbidden
from tests.support.fakes.context import context, declared, lake

FILE, MODULE = "jobs/daily.py", "jobs/notify.py"
TRANSFORM = """
from lakehouse_backfill.transforms import transform
import notify

@transform(name="daily", version="1.0.0", inputs=("raw",))
def daily(context, raw):
    notify.act(raw)
    return raw
"""


def found(body: str, above: str = "") -> list[tuple[str, int, str]]:
    """Scan a module that the job imports, whose function `act` runs `body` in line 3."""
    text = f"{above}\ndef act(raw):\n    {body}\n"
    faults = find_side_effects({FILE: TRANSFORM, MODULE: text}, declared().manifest)
    return [(one.file, one.line, one.problem.partition("sink: ")[2].rstrip(")")) for one in faults]


EFFECTS = [
    ("import urllib.request", "urllib.request.urlopen('http://a')", "network"),
    ("import urllib.request as r", "r.Request('http://a')", "network"),
    ("import socket", "socket.create_connection(('a', 1))", "network"),
    ("from http.client import HTTPConnection", "HTTPConnection('a')", "network"),
    ("import requests", "requests.post('http://a')", "network"),
    ("", "import smtplib", "network"),
    ("import subprocess", "subprocess.run(['a'])", "process"),
    ("import os", "os.system('a')", "process"),
    ("from os import popen as p", "p('a')", "process"),
    ("import os", "os.fork()", "process"),
    ("", "import multiprocessing", "process"),
    ("from concurrent.futures import ProcessPoolExecutor as P", "P(1)", "process"),
    ("", "open('/tmp/x', 'w')", "file"),
    ("", "open('/tmp/x', mode='ab')", "file"),
    ("from pathlib import Path", "Path('/tmp/x').write_text('a')", "file"),
    ("import os", "os.remove('/tmp/x')", "file"),
    ("import numpy as np", "np.save('/tmp/x', 1)", "file"),
    ("import logging", "logging.FileHandler('/tmp/x')", "file"),
    ("", "raw.toPandas().to_csv('/tmp/x')", "file"),
    ("import shutil", "shutil.copy('a', '/tmp/x')", "file"),
    ("", "import sqlite3", "database"),
    ("", "import psycopg", "database"),
    ("from pyiceberg.catalog import load_catalog", "load_catalog('a')", "table"),
    ("import duckdb", "duckdb.sql('a')", "table"),
    ("import deltalake", "deltalake.write_deltalake('a', raw)", "table"),
    ("import pyarrow as pa", "pa.parquet.write_table(raw, 'a')", "file"),
    ("import pyarrow.fs", "pyarrow.fs.S3FileSystem()", "file"),
    ("import pyarrow as pa", "pa.OSFile('a', 'wb')", "file"),
    ("from kafka import KafkaProducer", "KafkaProducer()", "topic"),
    ("import grpc", "grpc.insecure_channel('a')", "network"),
    ("import boto3", "boto3.client('s3')", "cloud"),
    ("from importlib import import_module", "import_module('boto3')", "cloud"),
    ("import importlib", "importlib.__import__('boto3')", "cloud"),
    ("import pkgutil", "pkgutil.resolve_name('boto3:client')", "cloud"),
    ("import pkgutil", "pkgutil.resolve_name('boto3:client')('s3')", "cloud"),
    ("import runpy", "runpy.run_module('boto3')", "cloud"),
    ("from importlib import util as u", "u.spec_from_file_location('boto3', raw)", "cloud"),
    ("", "exec('import boto3')", "cloud"),
    ("", "exec(\"from boto3 import client\\nclient('s3')\")", "cloud"),
    ("", "eval(\"__import__('boto3').client('s3')\")", "cloud"),
    ("", "exec(compile('import boto3', 'other.py', 'exec'))", "cloud"),
    ("import pyarrow._fs as f", "f.LocalFileSystem()", "file"),
    ("from pyarrow import lib", "lib.OSFile('a', 'wb')", "file"),
    ("import pandas as pd", "pd.DataFrame().to_sql('t', 'sqlite://')", "database"),
    ("import pandas as pd", "pd.read_sql('SELECT 1', 'sqlite://')", "database"),
    ("import pandas as pd", "pd.read_csv('s3://bucket/a')", "network"),
    ("import importlib.machinery as m", "m.ExtensionFileLoader('a', 'b')", "native code"),
    ("import weakref", "weakref.finalize(raw, print)", "after the run"),
    ("from google.cloud import storage", "storage.Client()", "cloud"),
    ("import redis", "redis.Redis()", "cache"),
    ("import ctypes", "ctypes.CDLL(None)", "native code"),
    ("import sys", "sys.modules['duckdb'].sql('a')", "toolkit"),
    ("from lakehouse_backfill import Project", "Project.open('.')", "toolkit"),
    ("from lakehouse_backfill.adapters.spark.session import write_guard", "write_guard", "toolkit"),
]


@pytest.mark.req("E1")
@pytest.mark.parametrize(("above", "body", "sink"), EFFECTS)
def test_an_effect_is_found_in_a_module_that_the_job_imports(
    above: str, body: str, sink: str
) -> None:
    places = found(body, above)
    assert places[-1] == (MODULE, 3, sink) or places == [(MODULE, 1, sink)]
    assert {place[2] for place in places} == {sink}


HONEST = [
    ("import os", "os.path.join('a', 'b')"),
    ("import os", "open(os.path.join(raw.scratch, 'a'), 'w')"),
    ("from pathlib import Path", "Path(raw.scratch, 'a').write_text('a')"),
    ("from pathlib import Path", "(Path(raw.scratch) / 'a').mkdir()"),
    ("", "open('packaged.txt').read()"),
    ("", "open('packaged.txt', 'rb').read()"),
    ("import pandas as pd", "pd.DataFrame({'a': [1]}).to_csv()"),
    ("import pyarrow as pa", "pa.table({'a': [1]})"),
    ("import pyarrow.compute as pc", "pc.add(1, 2)"),
    ("import numpy as np", "np.zeros(2)"),
    ("import sqlglot", "sqlglot.parse_one('SELECT 1')"),
    ("", "exec('import numpy')"),
    ("import importlib", "importlib.import_module('numpy.linalg')"),
    ("import importlib.util", "importlib.util.find_spec('numpy')"),
    ("import weakref", "weakref.ref(raw)"),
    ("import pandas as pd", "pd.read_csv('packaged.csv')"),
    ("import urllib.parse", "urllib.parse.quote('a')"),
    ("import socket", "pass"),
    ("import logging", "logging.getLogger('a').info('b')"),
    ("from concurrent.futures import ThreadPoolExecutor", "ThreadPoolExecutor(2)"),
    ("import http", "http.HTTPStatus.OK"),
    ("import threading", "threading.Lock()"),
    ("from pyspark.sql import functions as F", "F.udf(len, 'int')"),
    ("from lakehouse_backfill.columns import money", "money('a')"),
]


@pytest.mark.parametrize(("above", "body"), HONEST)
def test_honest_code_is_not_flagged(above: str, body: str) -> None:
    assert found(body, above) == []


def test_a_module_of_the_project_with_the_name_of_a_client_is_the_projects() -> None:
    texts = {FILE: TRANSFORM.replace("notify", "tables"), "jobs/tables.py": "def act(raw): ...\n"}
    assert list(find_side_effects(texts, declared().manifest)) == []


def test_a_method_of_the_project_with_the_name_of_a_writer_is_the_projects() -> None:
    assert found("Rates().to_sql()", "class Rates:\n  def to_sql(self): ...") == []


def test_code_that_the_transform_does_not_reach_is_left_alone() -> None:
    texts = {FILE: f"{TRANSFORM}\ndef other():\n    import boto3\n", MODULE: "def act(raw): ...\n"}
    assert list(find_side_effects(texts, declared().manifest)) == []


@pytest.mark.req("E1")
def test_a_plan_is_refused_with_every_place() -> None:
    text = TRANSFORM.replace("import notify", "import requests").replace(
        "notify.act(raw)", "requests.post('http://a')"
    )
    world = context(lake(), file_text=lambda _: text)
    with pytest.raises(WriteForbidden) as refused:
        make_plan(world, declared(), "bob", None)
    fix = "do it after the publication (hooks of the contract), or declare a sink in the contract"
    problem = "acts outside (sink: network)"
    assert refused.value.faults == (
        Fault(FILE, 3, "requests", problem, fix),
        Fault(FILE, 7, "requests.post", problem, fix),
    )
    assert refused.value.exit_code == 3
