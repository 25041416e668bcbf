"""Effects that raise no audit event, or act when the job has ended, are stopped all the same."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.spark.guarded import FILE, try_lines

_PANDAS = "import pandas as p; d = p.DataFrame({'a': [1]}); "
#: Each acts outside; with the kind of sink. `victim` is a file outside.
EFFECTS: dict[str, tuple[str, str]] = {
    "a named pipe": ("file", "import os; os.mkfifo('{folder}/a')"),
    "a node": ("file", "import posix; posix.mknod('{folder}/a')"),
    "shared memory": ("process", "import _posixshmem as s, os; s.shm_open('/lhb-test', 66)"),
    "shared memory by its class": ("process", "from multiprocessing import shared_memory"),
    "a mapped file": ("file", "import mmap, os; mmap.mmap(os.open('{victim}', os.O_RDWR), 1)"),
    "a file of the process": ("file", "import os; os.write(os.open('{victim}', 0), b'x')"),
    "a file of the process, opened": ("file", "import os; open(os.open('{victim}', 0), 'w')"),
    "sendfile": ("file", "import os; os.sendfile(os.open('{victim}', 0), 0, 0, 1)"),
    "a folder's descriptor": (
        "file", "import os; os.open('a', os.O_CREAT | os.O_WRONLY, dir_fd=os.open('{folder}', 0))",
    ),
    "mode by a descriptor": ("file", "import os; os.fchmod(os.open('{victim}', 0), 0)"),
    "times": ("file", "import os; os.utime('{victim}')"),
    "replace": ("file", "import os; os.replace('{victim}', '{folder}/a')"),
    "unlink": ("file", "import pathlib; pathlib.Path('{victim}').unlink()"),
    "rewritten in place": (
        "file", "import fileinput; list(fileinput.input('{victim}', inplace=True))",
    ),
    "shelve": ("file", "import shelve; shelve.open('{folder}/a')"),
    "a zip file": ("file", "import zipfile; zipfile.ZipFile('{folder}/a', 'w')"),
    "a tar file": ("file", "import tarfile; tarfile.open('{folder}/a', 'w')"),
    "gzip": ("file", "import gzip; gzip.open('{folder}/a', 'w')"),
    "Zstandard": ("file", "import zstandard; zstandard.open('{folder}/a', 'w')"),
    "a temporary file": ("file", "import tempfile; tempfile.NamedTemporaryFile(dir='{folder}')"),
    "a temporary folder": ("file", "import tempfile; tempfile.mkdtemp()"),
    "logging by settings": (
        "file",
        "import logging.config as c; c.dictConfig(dict(version=1, handlers=dict(a="
        "{'class': 'logging.FileHandler', 'filename': '{folder}/a'})))",
    ),
    "logging to a socket": (
        "network",
        "import logging, logging.handlers as h; "
        "h.SocketHandler('127.0.0.1', {port}).emit(logging.makeLogRecord({}))",
    ),
    "asyncio datagrams": (
        "network",
        "import asyncio as a; l = a.new_event_loop(); l.run_until_complete("
        "l.create_datagram_endpoint(a.DatagramProtocol, remote_addr=('127.0.0.1', {port})))",
    ),
    "asyncio's threads": (
        "file",
        "import asyncio as a; l = a.new_event_loop(); "
        "l.run_until_complete(l.run_in_executor(None, open, '{folder}/a', 'w'))",
    ),
    "FTP": ("network", "import ftplib; ftplib.FTP('127.0.0.1')"),
    "urllib3": ("network", "import urllib3; urllib3.request('GET', 'http://127.0.0.1:{port}')"),
    "requests": ("network", "import requests; requests.get('http://127.0.0.1:{port}')"),
    "TLS": ("network", "import ssl; ssl.get_server_certificate(('127.0.0.1', {port}))"),
    "a server": ("network", "import http.server as h; h.HTTPServer(('127.0.0.1', 0), None)"),
    "multiprocessing": (
        "process", "import concurrent.futures.process as p; p.mp.Process(target=print).start()",
    ),
    "posix_spawn": ("process", "import os; os.posix_spawn('/bin/true', ['true'], {})"),
    "a library that starts a process": (
        "process", "import setuptools._distutils.spawn as s; s.spawn(['touch', '{folder}/a'])",
    ),
    "kill": ("process", "import os; os.kill(os.getpid(), 0)"),
    "a signal": ("after the run", "import _signal; _signal.alarm(100)"),
    "umask": ("process", "import os; os.umask(0)"),
    "priority": ("process", "import os; os.nice(0)"),
    "limits": ("process", "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0))"),
    "another interpreter": ("process", "import _xxsubinterpreters as i; i.create()"),
    "atexit": ("after the run", "import atexit; atexit.register(print)"),
    "a finalizer": (
        "after the run", "import weakref; weakref.finalize(print, open, '{folder}/a', 'w')",
    ),
    "the end of the threads": (
        "after the run", "import threading as t; t._register_atexit(open, '{folder}/a', 'w')",
    ),
    "the history of a terminal": (
        "file", "import readline; readline.write_history_file('{folder}/a')",
    ),
    "C by a library": (
        "native code",
        "import numpy.ctypeslib as c; c.ctypes.CDLL(None).system(b'touch {folder}/a')",
    ),
    "an audit hook": ("after the run", "import sys; sys.addaudithook(print)"),
    "a tracer": ("after the run", "import sys; sys.settrace(print)"),
    "objects of the process": ("toolkit", "import gc; gc.get_referrers(print)"),
    "frames of all threads": ("toolkit", "import sys; sys._current_frames()"),
    "a timer": (
        "file",
        "import threading as t; o = t.Timer(0.01, open, ('{folder}/a', 'w')); o.start(); o.join()",
    ),
    "a thread below threading": (
        "file",
        "import threading as t, time; t._start_new_thread(open, ('{folder}/a', 'w')); "
        "time.sleep(0.1)",
    ),
    "__del__": ("file", "type('C', (), {'__del__': lambda s: open('{folder}/a', 'w')})()"),
    "a generator that is closed": (
        "file",
        r"exec('def g():\n try: yield\n finally: open(\'{folder}/a\', \'w\')\nnext(g())', {})",
    ),
    "an object of YAML": (
        "process",
        "import yaml; yaml.unsafe_load('!!python/object/apply:os.system [touch {folder}/a]')",
    ),
    "DuckDB by a library": (
        "table", "import narwhals as n; " + _PANDAS + "n.from_native(d).lazy(backend='duckdb')",
    ),
    "DataFusion of PyIceberg": ("table", "import pyiceberg_core"),
    "narwhals": (
        "file", "import narwhals as n; " + _PANDAS + "n.from_native(d).write_parquet('{folder}/a')",
    ),
    "SciPy's matrices": (
        "file", "import scipy.io as s, numpy as n; s.mmwrite('{folder}/a', n.zeros((1, 1)))",
    ),
    "SciPy's sound": (
        "file", "import scipy.io.wavfile as w, numpy as n; w.write('{folder}/a', 8, n.zeros(1))",
    ),
    "a socket that listens": ("network", "import socket; socket.socket().listen()"),
    "a socket below socket": ("network", "import _socket; _socket.socket().listen()"),
    "Tcl": ("native code", "import tkinter; tkinter.Tcl().eval('exec touch {folder}/a')"),
    "Tcl below tkinter": ("native code", "import _tkinter; _tkinter.create()"),
    "Tcl above tkinter": ("native code", "import turtle"),
    "a semaphore": ("process", "import _multiprocessing as m; m.SemLock(0, 1, 1, '/lhb-t', True)"),
    "a traceback later": (
        "after the run", "import faulthandler as f; f.dump_traceback_later(100)",
    ),
    "the end of the process": ("process", "import os; os._exit(1)"),
    "an abort in a thread": (
        "process", "import os, threading as t; o = t.Thread(target=os.abort); o.start(); o.join()",
    ),
    "an exit by a function": ("process", "import os, functools; functools.partial(os._exit, 1)()"),
    "SciPy": ("file", "import scipy.io as s; s.savemat('{folder}/a', {'a': 1})"),
    "NumPy's map": (
        "file", "import numpy as n; n.memmap('{folder}/a', dtype='u1', mode='w+', shape=(4,))",
    ),
    "a secret file, read natively": (
        "file", "import pyarrow as a; a.input_stream('/proc/self/environ').read()",
    ),
    "a secret file as JSON": (
        "file", "import pyarrow.json as j; j.read_json('/proc/self/environ')",
    ),
}  # fmt: skip

#: With packages of Spark Connect, which tests/stack/connect has.
CONNECT_EFFECTS: dict[str, tuple[str, str]] = {
    "Spark Connect": (
        "network",
        "import pyspark.sql.connect.client.core as c; "
        "c.DefaultChannelBuilder('sc://127.0.0.1:{port}').toChannel()",
    ),
    "another session": (
        "network",
        "from pyspark.sql.connect.session import SparkSession as S; S('sc://127.0.0.1:{port}')",
    ),
    "gRPC of a library": (
        "network", "import pyspark.sql.connect.client.core as c; c.grpc.insecure_channel('a:1')",
    ),
    "gRPC by asyncio": (
        "network",
        "import pyspark.sql.connect.client.core as c; c.grpc.aio.insecure_channel('a:1')",
    ),
    "a model on a Spark Connect server": (
        "file",
        "from pyspark.ml.connect.readwrite import RemoteMLWriter as W; W(None).save('file:///a')",
    ),
}  # fmt: skip


@pytest.mark.req("E1", "T6")
@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_each_other_effect_is_stopped(tmp_path: Path, in_worker: bool) -> None:
    require_stopped(EFFECTS, tmp_path, in_worker=in_worker)


def require_stopped(
    effects: Mapping[str, tuple[str, str]], tmp_path: Path, *, in_worker: bool
) -> None:
    """Try each effect; require that it is an attempt of its kind, and that nothing happened."""
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        names = {"folder": outside, "port": server.getsockname()[1], "victim": victim}
        lines = []
        for _, line in effects.values():
            text = line
            for name, value in names.items():
                text = text.replace(f"{{{name}}}", str(value))
            lines.append(text)
        found = try_lines(tmp_path / "project", lines, in_worker=in_worker)
        with pytest.raises(BlockingIOError):
            server.accept()
    seen = dict(zip(effects, found, strict=True))
    missed = {
        what: seen[what] for what, (sink, _) in effects.items() if sink not in seen[what].sinks
    }
    assert missed == {}
    assert [one.places[0] for one in found] == [(FILE, n) for n in range(1, len(found) + 1)]
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert victim.read_text() == "x"


#: What honest code does near those gates; each writes to scratch, a pipe, or where it prints.
HONEST = (
    "import os; return os.write(2, b'x')",
    "import os; r, w = os.pipe(); os.write(w, b'x'); return os.read(r, 1)",
    "import os; r, w = os.pipe(); os.fdopen(w, 'wb').close(); return 1",
    "import os, tempfile as t; d = t.mkdtemp(dir=SCRATCH); f, p = t.mkstemp(dir=d); "
    "os.write(f, b'x'); os.ftruncate(f, 0); os.fchmod(f, 0o600); return os.close(f)",
    "import os, tempfile as t; f, p = t.mkstemp(dir=SCRATCH); os.fdopen(f, 'w').close()",
    "import tempfile as t; return t.TemporaryDirectory(dir=SCRATCH).cleanup()",
    "import os, tempfile as t; os.mkfifo(t.mkdtemp(dir=SCRATCH) + '/a')",
    "import mmap; return len(mmap.mmap(-1, 8))",
    "import threading as t; o = t.Thread(target=print); o.start(); return o.join()",
    "import concurrent.futures as f; return list(f.ThreadPoolExecutor(2).map(str, [1, 2]))",
    "import asyncio as a; l = a.new_event_loop(); "
    "return l.run_until_complete(l.run_in_executor(None, int, 1))",
    "import gc; return gc.collect() is not None",
    "import sys, inspect; return inspect.currentframe().f_code.co_name",
    "import collections as c; return c.namedtuple('A', 'b')(1)",
    "import logging; logging.getLogger('a').warning('x'); return 1",
    "import narwhals as n; " + _PANDAS + "return n.from_native(d)['a'].sum()",
    "import weakref; return weakref.ref(type('C', (), {}))() and 1",
    "import io, zipfile; zipfile.ZipFile(io.BytesIO(), 'w').close()",
    "import pyarrow as a; return a.input_stream(__import__('io').BytesIO(b'x')).read()",
)


@pytest.mark.parametrize("in_worker", [False, True], ids=["driver", "worker"])
def test_honest_code_near_the_gates_runs(tmp_path: Path, in_worker: bool) -> None:
    found = try_lines(tmp_path, HONEST, in_worker=in_worker)
    assert [(one.attempts, one.result) for one in found if "Error" in one.result] == []
    assert [one.attempts for one in found] == [()] * len(HONEST)
