"""A client is refused by whatever function imports it, in the driver and in workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark.guarded import FILE, try_lines

_SPEC = "import importlib.util as u; s = u.find_spec('{0}'); m = u.module_from_spec(s); "
#: Each imports a client for which the job asked; the sink is that of the client.
WAYS = {
    "import_module": ("import importlib as i; i.import_module('duckdb')", "table"),
    "__import__": ("__import__('duckdb')", "table"),
    "importlib.__import__": ("import importlib as i; i.__import__('duckdb')", "table"),
    "a computed name": (
        "import importlib as i; getattr(i, 'import_' + 'module')('duck' + 'db')", "table",
    ),
    "inside importlib": ("import importlib as i; i._bootstrap._gcd_import('duckdb')", "table"),
    "pkgutil.resolve_name": ("import pkgutil; pkgutil.resolve_name('duckdb:sql')", "table"),
    "runpy.run_module": ("import runpy; runpy.run_module('duckdb')", "table"),
    "runpy.run_path": (
        "import runpy, importlib.util as u; runpy.run_path(u.find_spec('duckdb').origin)", "table",
    ),
    "exec_module": (_SPEC.format("duckdb") + "s.loader.exec_module(m)", "table"),
    "spec_from_file_location": (
        "import importlib.util as u; f = u.find_spec('duckdb').origin; "
        "s = u.spec_from_file_location('rates', f); s.loader.exec_module(u.module_from_spec(s))",
        "table",
    ),
    "a source loader": (
        "import importlib.machinery as m, importlib.util as u; "
        "m.SourceFileLoader('rates', u.find_spec('duckdb').origin).load_module()",
        "table",
    ),
    "an extension loader": (
        "import importlib.machinery as m, importlib.util as u; f = u.find_spec('_duckdb').origin; "
        "m.ExtensionFileLoader('_duckdb', f).load_module()",
        "table",
    ),
    "executed text": ("exec('import duckdb')", "table"),
    "text with a file name": ("exec(compile('import duckdb', 'other.py', 'exec'))", "table"),
    "text with builtins of its own": (
        "import importlib as i; exec('import duckdb', "
        "{'__builtins__': {'__import__': i._bootstrap.__import__}})",
        "table",
    ),
    "a relative import": (
        "__import__('parquet', {'__package__': 'pyarrow'}, None, ('write_table',), 1)", "file",
    ),
    "a member of a package": (
        "__import__('', {'__package__': 'pyarrow'}, None, ('parquet',), 1)", "file",
    ),
    "pickle": (r"import pickle; pickle.loads(b'cduckdb\nconnect\n.')", "table"),
    "pickle in Python": (r"import pickle; pickle._loads(b'cduckdb\nconnect\n.')", "table"),
    "an entry point": (
        "from importlib.metadata import EntryPoint as E; E('a', 'duckdb', 'b').load()", "table",
    ),
    "a thread": (
        "import threading as t; o = t.Thread(target=__import__, args=('duckdb',)); "
        "o.start(); o.join()",
        "table",
    ),
    "a thread pool": (
        "from concurrent.futures import ThreadPoolExecutor as P; "
        "P(1).submit(__import__, 'duckdb').result()",
        "table",
    ),
    "a partial": ("import functools as f; f.partial(__import__, 'duckdb')()", "table"),
    "a name that equals one that passed": (
        "import pandas; __import__(type('S', (str,), {'__hash__': lambda s: hash('pandas'), "
        "'__eq__': lambda s, o: True})('duckdb'))",
        "table",
    ),
    "the standard library": ("import importlib as i; i.import_module('sqlite3')", "database"),
    "the standard library, run": ("import runpy; runpy.run_module('sqlite3')", "database"),
    "the standard library, in a thread": (
        "import threading as t; o = t.Thread(target=__import__, args=('sqlite3',)); "
        "o.start(); o.join()",
        "database",
    ),
}  # fmt: skip


@pytest.mark.req("E1", "T6")
@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_a_client_is_refused_by_whatever_function_imports_it(
    tmp_path: Path, in_worker: bool
) -> None:
    found = try_lines(tmp_path, [line for line, _ in WAYS.values()], in_worker=in_worker)
    seen = dict(zip(WAYS, found, strict=True))
    missed = {way: seen[way] for way, (_, sink) in WAYS.items() if sink not in seen[way].sinks}
    assert missed == {}
    assert [one.places[0] for one in found] == [(FILE, n) for n in range(1, len(found) + 1)]


@pytest.mark.req("E1", "T6")
def test_a_client_that_a_function_carries_is_refused_where_it_is_unpickled(tmp_path: Path) -> None:
    lines = [
        "(held=__import__('duckdb')): return held.sql('SELECT 1')",
        "(held=__import__('pyiceberg.catalog').catalog.load_catalog): return held('a')",
        "(held=__import__('sqlite3').connect): return held('x')",
        "(held=__import__('pyarrow.parquet').parquet.write_table): return held",
        "(held=[__import__('pyarrow.fs').fs]): return held",
    ]
    found = try_lines(tmp_path, lines, in_worker=True)
    assert [one.sinks for one in found] == [{"table"}, {"table"}, {"database"}, {"file"}, {"file"}]


#: Libraries that import clients for themselves, and modules that every job may have.
HONEST = (
    "import pandas; return pandas.DataFrame({'a': [1]}).to_parquet() is not None",
    "import numpy, importlib as i; return i.import_module('numpy.linalg').__name__",
    "import pyarrow.compute as c; return c.add(1, 2).as_py()",
    "import concurrent.futures as f; return f.ThreadPoolExecutor(1).submit(int, 1).result()",
    "import asyncio; return asyncio.run(asyncio.sleep(0, 1))",
    "import runpy; return runpy.run_module('this')['d'] is not None",
    "import uuid, tempfile, subprocess, logging.config, email, zoneinfo; return 1",
    "import sqlglot; return sqlglot.parse_one('SELECT 1').sql()",
    "import pickle, decimal; return pickle.loads(pickle.dumps(decimal.Decimal(1)))",
    "from importlib.resources import files; return len(files('sqlglot').name)",
    "(held=__import__('numpy')): return held.int64(1)",
    "(held=__import__('pyarrow.compute').compute.add): return held(1, 2).as_py()",
)


@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_what_a_job_may_import_is_left_alone(tmp_path: Path, in_worker: bool) -> None:
    found = try_lines(tmp_path, HONEST, in_worker=in_worker)
    assert [one.attempts for one in found] == [()] * len(HONEST)
    assert [one.result for one in found if "Error" in one.result] == []


@pytest.mark.req("T6")
def test_a_project_in_a_folder_called_as_the_engine_is_guarded(tmp_path: Path) -> None:
    project = tmp_path / "pyspark" / "py4j"
    lines = [f"open('{tmp_path}/a', 'w')", "import socket; socket.getaddrinfo('a.invalid', 1)"]
    found = try_lines(project, lines)
    assert [one.sinks for one in found] == [{"file"}, {"network"}]


@pytest.mark.req("T6")
def test_a_loader_writes_and_reads_no_file_for_a_job(tmp_path: Path) -> None:
    loader = "import importlib.machinery as m; l = m.SourceFileLoader('a', 'b'); "
    lines = [
        loader + f"l.set_data('{tmp_path}/a', b'x')",
        loader + f"l._cache_bytecode('a', '{tmp_path}/a', b'x')",
        loader + "return l.get_data('/proc/self/environ')",
    ]
    found = try_lines(tmp_path / "project", lines)
    assert [one.sinks for one in found] == [{"file"}] * 3
    assert not (tmp_path / "a").exists()


#: A library that looks, while it is imported, whether the machine has IPv6, as urllib3 does.
_PROBING = """
import socket
def probe():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
probe()
"""


@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_a_library_may_probe_the_machine_only_while_it_is_imported(
    tmp_path: Path, in_worker: bool
) -> None:
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "probing.py").write_text(_PROBING)
    lines = ["import probing; return 1", "import probing; probing.probe()"]
    found = try_lines(
        tmp_path / "project", lines, in_worker=in_worker,
        environment={"PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert [one.sinks for one in found] == [set(), {"network"}]
    assert found[0].result == "1"
