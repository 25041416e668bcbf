"""Outside effects that the source of job code names: found when planned, with file and line.

Only what is never a job's business is found. Whether a computed path lies in the scratch folder,
or what a library does, shows when the code runs: see docs/side-effects.md.

Python's audit events do not see native code, so job code may not import modules that reach outside
from it, or for which no run has a use. A test compares their list with docs/side-effects.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from lakehouse_backfill.core.guards.python_source import Use, parse_job
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest
from lakehouse_backfill.errors import Fault, WriteForbidden, problem_with_faults

#: By kind of sink: names whose use acts outside; one that ends with `.` means all members.
NAMES_BY_SINK: Mapping[str, tuple[str, ...]] = {
    "network": (
        "urllib.request.", "http.client.", "http.server.", "socketserver.", "webbrowser.",
        "socket.create_connection", "socket.create_server", "socket.getaddrinfo",
        "socket.gethostbyname", "socket.gethostbyaddr", "socket.socket().connect",
        "socket.socket().sendto", "asyncio.open_connection", "asyncio.start_server",
        "logging.handlers.", "syslog.",
    ),
    "process": (
        "subprocess.", "os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn",
        "os.posix_spawnp", "os.execv", "os.execve", "os.execvp", "os.execl", "os.spawnv",
        "os.spawnl", "os.spawnlp", "os.kill", "os.killpg", "pty.spawn",
        "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
        "concurrent.futures.ProcessPoolExecutor", "os.umask", "os.nice", "os.setpriority",
        "os.setuid", "os.setgid", "os.setsid", "os.abort",
    ),
    "after the run": (
        "weakref.finalize", "gc.callbacks", "sys.excepthook", "threading.excepthook",
        "threading._register_atexit", "threading.settrace", "threading.setprofile",
        "sys.unraisablehook", "sys.displayhook", "sys.settrace", "sys.setprofile",
        "os.register_at_fork", "sys.addaudithook",
    ),
    "database": (
        "pandas.read_sql", "pandas.read_sql_query", "pandas.read_sql_table", "pandas.read_iceberg",
        "pandas.HDFStore", "pandas.read_hdf",
    ),
    "native code": ("_imp.", "importlib.machinery.ExtensionFileLoader"),
    "toolkit": (
        "sys.modules", "gc.get_objects", "gc.get_referrers", "gc.get_referents",
        "importlib._bootstrap.", "importlib._bootstrap_external.",
    ),
}  # fmt: skip
#: Functions that write a file, with the position of the path; only a plain text is judged.
_FILE_WRITERS = {
    "logging.FileHandler": 0, "numpy.save": 0, "numpy.savez": 0, "numpy.savetxt": 0,
    "os.remove": 0, "os.unlink": 0, "os.rmdir": 0, "os.mkdir": 0, "os.makedirs": 0,
    "os.mkfifo": 0, "os.mknod": 0,
    "os.rename": 1, "os.replace": 1, "shutil.copy": 1, "shutil.copyfile": 1, "shutil.move": 1,
    "shutil.rmtree": 0,
}  # fmt: skip
_FRAME_WRITERS = ("to_csv", "to_parquet", "to_json", "to_pickle", "to_excel", "to_feather")
_DATABASE_WRITERS = (".to_sql", ".to_hdf", ".to_iceberg")
_READER_PATHS = ("filepath_or_buffer", "path", "path_or_buf", "io")
_PATH_WRITERS = (".write_text", ".write_bytes", ".unlink", ".mkdir", ".touch", ".rmdir")
_FIXES = {
    "toolkit": "read inputs from the parameters of the transform",
    "file": "return the rows, or write below context.scratch",
}
_FIX = "do it after the publication (hooks of the contract), or declare a sink in the contract"


def require_no_side_effects(texts: Mapping[str, str], manifest: RunManifest) -> None:
    """Raise WriteForbidden, with all places, when the code of a run names outside effects."""
    faults = tuple(find_side_effects(texts, manifest))
    if faults:
        raise WriteForbidden(
            problem_with_faults(f"the job reaches outside in {len(faults)} places", faults),
            state=NOTHING_PLANNED,
            fix="write what each line suggests, and plan again",
            faults=faults,
        )


def find_side_effects(texts: Mapping[str, str], manifest: RunManifest) -> Iterator[Fault]:
    """Yield each outside effect that running the transform, or importing its code, may have."""
    transform = manifest.transform
    python = {file: text for file, text in texts.items() if file.endswith(".py")}
    if transform.writer == "external" or transform.file not in python:
        return
    source = parse_job(python, transform.file)
    seen = set()
    for use in source.uses_of(source.reached(transform.name, transform.version)):
        sink = _sink_of(use)
        # One line is one place, whatever else it names.
        if sink and (use.file, use.line) not in seen:
            seen.add((use.file, use.line))
            fix = _FIXES.get(sink, _FIX)
            yield Fault(use.file, use.line, use.name, f"acts outside (sink: {sink})", fix)


def _sink_of(use: Use) -> str | None:
    # Importing a module of the standard library has no effect; using it has.
    names = _prefixes(use.name)
    client = next((CLIENTS[name] for name in names if name in CLIENTS), None)
    if client is not None:
        return client
    if use.kind != "import":
        for sink, wanted in NAMES_BY_SINK.items():
            if any(_is_named(use.name, one) for one in wanted):
                return sink
    return _sink_of_call(use) if use.kind == "call" else None


def _sink_of_call(use: Use) -> str | None:
    if use.name.endswith(_DATABASE_WRITERS) and ":" not in use.name:
        return "database"
    if use.name.startswith("pandas.read_") and isinstance(use.node, ast.Call):
        path = next((text for name in _READER_PATHS if (text := _text(use.node, 0, name))), "")
        return "network" if "://" in path else None
    return "file" if _writes_a_named_file(use) else None


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _is_named(name: str, wanted: str) -> bool:
    if wanted.endswith("."):
        return name.startswith(wanted)
    return name == wanted or name.startswith((f"{wanted}.", f"{wanted}["))


def _writes_a_named_file(use: Use) -> bool:
    call = use.node
    if not isinstance(call, ast.Call):
        return False
    if use.name in ("builtins.open", "io.open", "codecs.open"):
        mode = _text(call, 1, "mode")
        return mode is not None and bool(set(mode) & set("wax+")) and bool(_text(call, 0, "file"))
    if use.name in _FILE_WRITERS:
        return bool(_text(call, _FILE_WRITERS[use.name], "file"))
    if use.name.endswith(tuple(f".{name}" for name in _FRAME_WRITERS)):
        return any(_text(call, 0, name) for name in ("path_or_buf", "path", "excel_writer"))
    return (
        use.name.startswith("pathlib.Path()")
        and use.name.endswith(_PATH_WRITERS)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Call)
        and len(call.func.value.args) == 1
        and bool(_text(call.func.value, 0, ""))
    )


def _text(call: ast.Call, position: int, keyword: str) -> str | None:
    """Return an argument that is a plain text."""
    named = next((one.value for one in call.keywords if one.arg == keyword), None)
    given = call.args[position] if len(call.args) > position else named
    value = getattr(given, "value", None)
    return value if isinstance(value, str) else None


#: By kind of sink: modules that are refused, with everything below them.
CLIENTS_BY_SINK: Mapping[str, tuple[str, ...]] = {
    "table": (
        "pyiceberg", "deltalake", "delta", "hudi", "daft", "lance", "lancedb", "ray", "polars",
        "duckdb", "_duckdb", "datafusion", "chdb", "pyiceberg_core",
    ),
    "file": (
        "pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.csv", "pyarrow.feather",
        "pyarrow.orc", "pyarrow.flight", "pyarrow.OSFile", "pyarrow.MemoryMappedFile",
        "pyarrow.memory_map", "pyarrow.create_memory_map", "pyarrow.output_stream",
        "pyarrow._fs", "pyarrow._s3fs", "pyarrow._gcsfs", "pyarrow._azurefs",
        "pyarrow._hdfs", "pyarrow._parquet", "pyarrow._parquet_encryption",
        "pyarrow._dataset", "pyarrow._dataset_parquet",
        "pyarrow._dataset_parquet_encryption", "pyarrow._dataset_orc", "pyarrow._csv",
        "pyarrow._feather", "pyarrow._orc", "pyarrow._flight", "pyarrow.substrait",
        "pyarrow._substrait", "pyarrow.cffi", "pyarrow.jvm",
        "pyarrow.CompressedOutputStream", "pyarrow.lib.OSFile",
        "pyarrow.lib.MemoryMappedFile", "pyarrow.lib.CompressedOutputStream",
        "pyarrow.lib._RecordBatchFileWriter", "pyarrow.lib._RecordBatchStreamWriter",
        "fastparquet",
        "h5py", "tables", "netCDF4", "zarr", "fsspec", "s3fs", "gcsfs", "adlfs", "obstore",
        "opendal", "smart_open", "readline",
    ),
    "topic": (
        "kafka", "confluent_kafka", "aiokafka", "pulsar", "pika", "aio_pika", "kombu", "celery",
        "nats", "zmq", "paho", "google.pubsub",
    ),
    "cloud": (
        "boto3", "botocore", "aiobotocore", "aioboto3", "s3transfer", "google.cloud",
        "googleapiclient", "azure", "msal", "oci", "minio", "snowflake", "databricks",
    ),
    "network": (
        "grpc", "grpclib", "requests", "urllib3", "httpx", "httpcore", "aiohttp", "websockets",
        "websocket", "pycurl", "curl_cffi", "paramiko", "asyncssh", "uvloop", "dns", "smtplib",
        "ftplib", "imaplib", "poplib", "telnetlib", "xmlrpc", "slack_sdk", "sentry_sdk", "_socket",
    ),
    "database": (
        "sqlite3", "_sqlite3", "aiosqlite", "psycopg", "psycopg2", "asyncpg", "pg8000", "MySQLdb",
        "pymysql", "mysql", "pymssql", "pyodbc", "cx_Oracle", "oracledb", "ibm_db", "jaydebeapi",
        "sqlalchemy", "adbc_driver_manager", "adbc_driver_flightsql", "adbc_driver_postgresql",
        "adbc_driver_duckdb",
        "clickhouse_connect", "clickhouse_driver", "trino", "prestodb", "pyhive", "pymongo",
        "motor", "cassandra", "neo4j", "influxdb_client", "lmdb", "rocksdb", "dbm",
        "_dbm", "_gdbm",
    ),
    "cache": ("redis", "aioredis", "valkey", "memcache", "pymemcache", "pylibmc"),
    "search index": ("elasticsearch", "opensearchpy", "meilisearch", "typesense", "qdrant_client"),
    "native code": ("ctypes", "_ctypes", "cffi", "_cffi_backend", "py4j", "jpype", "jnius",
                    "tkinter", "_tkinter", "turtle"),
    "process": (
        "multiprocessing", "_multiprocessing", "_thread", "_posixsubprocess", "_posixshmem",
        "_xxsubinterpreters", "_interpreters", "concurrent.interpreters", "pexpect", "sh",
        "invoke", "fabric",
    ),
    "after the run": ("atexit", "signal", "_signal", "faulthandler"),
    "toolkit": (
        "lakehouse_backfill.adapters", "lakehouse_backfill.cli", "lakehouse_backfill.config",
        "lakehouse_backfill.core", "lakehouse_backfill.demo", "lakehouse_backfill.fault_points",
        "lakehouse_backfill.onboarding", "lakehouse_backfill.ports", "lakehouse_backfill.project",
        "lakehouse_backfill.report", "lakehouse_backfill.wiring", "lakehouse_backfill.Project",
        "lakehouse_backfill.accepted",
    ),
}  # fmt: skip
#: By module: the kind of sink.
CLIENTS: Mapping[str, str] = {
    module: sink for sink, modules in CLIENTS_BY_SINK.items() for module in modules
}
