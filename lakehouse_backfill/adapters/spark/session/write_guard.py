"""Prevents job code from writing through the session that it is given.

While `forbid_job_writes` is active, every public PySpark method that writes, or that changes the
session or the catalog, raises WriteForbidden before anything is sent. Queries pass: a parser
separates them from other statements, not the first word of the text. Commits through PyIceberg are
refused, too, on every catalog: only those inside a `commit_window` are our own. The guard is valid
for the whole process, including threads that the job starts. Our own writes on other threads use
`allow_own_writes`; `run_concurrently` applies it to an action on another thread.

The guard protects against mistakes, not against an attacker: Python has no sandbox.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from lakehouse_backfill.adapters.spark.guard.process_guard import GUARD
from lakehouse_backfill.adapters.spark.session import read_guard
from lakehouse_backfill.adapters.spark.session.settings import is_secret
from lakehouse_backfill.errors import WriteForbidden, hides_texts
from lakehouse_backfill.fault_points import is_own_commit

#: PySpark's two APIs, as parts of the names of modules.
_APIS = ("", "connect.")
_FRAME_MEMBERS = (
    "write", "writeTo", "writeStream", "mergeInto", "foreach", "foreachPartition", "checkpoint",
    "createGlobalTempView", "createOrReplaceGlobalTempView", "rdd",
)  # fmt: skip
#: Module, class and members that write or change state. A missing class or member is skipped,
#: because the classic and the Connect API differ.
_WRITE_MEMBERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("pyspark.sql.classic.dataframe", "DataFrame", _FRAME_MEMBERS),
    *((f"pyspark.sql.{api}{module}", name, members) for api in _APIS for module, name, members in (
        ("dataframe", "DataFrame", _FRAME_MEMBERS),
        ("readwriter", "DataFrameWriter", (
            "save", "insertInto", "saveAsTable", "json", "parquet", "text", "csv", "xml", "orc",
            "jdbc",
        )),
        ("readwriter", "DataFrameWriterV2", (
            "create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions",
        )),
        ("merge", "MergeIntoWriter", ("merge",)),
        ("streaming.readwriter", "DataStreamWriter", ("start", "toTable")),
        ("catalog", "Catalog", (
            "createTable", "createExternalTable", "dropGlobalTempView", "recoverPartitions",
            "setCurrentCatalog", "setCurrentDatabase",
        )),
        ("conf", "RuntimeConfig", ("set", "unset", "getAll")),
        ("conf", "RuntimeConf", ("set", "unset", "getAll")),
        ("session", "SparkSession", ("stop", "copyFromLocalToFs", "addArtifacts", "addArtifact")),
        ("udf", "UDFRegistration", ("registerJavaFunction", "registerJavaUDAF")),
        # Its functions would run in workers without the guard.
        ("datasource", "DataSourceRegistration", ("register",)),
    )),
    ("pyspark.core.rdd", "RDD", (
        "saveAsTextFile", "saveAsPickleFile", "saveAsSequenceFile", "saveAsHadoopFile",
        "saveAsNewAPIHadoopFile", "saveAsHadoopDataset", "saveAsNewAPIHadoopDataset", "foreach",
        "foreachPartition", "checkpoint",
    )),
    ("pyspark.core.context", "SparkContext", (
        "stop", "addFile", "addPyFile", "addArchive", "setCheckpointDir", "setLogLevel",
        "setSystemProperty", "cancelAllJobs", "cancelJobGroup", "accumulator",
        *read_guard.CONTEXT_CLASSES,
    )),
    # What a worker adds is unpickled in the driver, by a thread that nobody knows as the job's.
    ("pyspark.accumulators", "Accumulator", ("__init__",)),
    ("pyspark.conf", "SparkConf", ("getAll", "toDebugString")),
)  # fmt: skip
#: Members of PyIceberg's catalogs that commit. The catalogs are those that are loaded.
_CATALOG_MEMBERS = (
    "commit_table", "create_table", "register_table", "drop_table", "purge_table", "rename_table",
    "create_namespace", "drop_namespace", "update_namespace_properties", "drop_view",
)  # fmt: skip
#: Options of a builder that is only used to get the session.
_HARMLESS_OPTIONS = frozenset({"spark.app.name", "spark.master"})

_READ_SETTING = "to read the setting"

_lock = threading.Lock()
_guard_depth = 0
_originals: list[tuple[type, str, Any]] = []
_thread_state = threading.local()


@contextmanager
def forbid_job_writes() -> Iterator[None]:
    """Forbid writes until the block ends; raises WriteForbidden inside it, never later."""
    global _guard_depth  # Classes are patched once for the process.
    with _lock:
        if _guard_depth == 0:
            _patch_pyspark()
        _guard_depth += 1
    try:
        yield
    finally:
        with _lock:
            _guard_depth -= 1
            if _guard_depth == 0:
                _unpatch_pyspark()


@contextmanager
def allow_own_writes(*, allowed: bool = True) -> Iterator[None]:
    """Allow this thread to write while a job's code runs on another one.

    With `allowed` false, the block runs a job's code itself, in a thread that may write else.
    """
    before = getattr(_thread_state, "trusted", False)
    _thread_state.trusted = allowed
    try:
        yield
    finally:
        _thread_state.trusted = before


def _patch_pyspark() -> None:
    for module, name, members in _WRITE_MEMBERS:
        owner = _pyspark_class(module, name)
        for member in members:
            if owner is not None and member in owner.__dict__:
                _forbid(owner, member)
    for api in _APIS:
        _patch_session(api)
        for module, name, checks in read_guard.READ_MEMBERS:
            _patch_reads(_pyspark_class(f"pyspark.sql.{api}{module}", name), checks)
    paths = dict.fromkeys(read_guard.CONTEXT_PATHS, read_guard.describe_places)
    _patch_reads(_pyspark_class("pyspark.core.context", "SparkContext"), paths)
    models = _pyspark_class("pyspark.ml.connect.readwrite", "RemoteMLReader")
    _patch_reads(models, {"load": read_guard.describe_places})
    _check_first(import_module("pyspark.conf").SparkConf, "get", _check_get)
    _patch_pyiceberg()


def _patch_reads(owner: Any, members: Mapping[str, read_guard.ReadCheck]) -> None:
    for member, describe in members.items():
        if owner is not None and member in owner.__dict__:
            _check_first(owner, member, partial(_check_read, member, describe))


def _patch_session(api: str) -> None:
    session = _pyspark_class(f"pyspark.sql.{api}session", "SparkSession")
    if session is not None:
        _check_first(session, "sql", _check_sql)
        _check_first(session.Builder, "getOrCreate", _check_builder)
        _patch_reads(session, {"table": read_guard.describe_places})
        if "create" in session.Builder.__dict__:
            _forbid(session.Builder, "create")
    for name in ("RuntimeConfig", "RuntimeConf"):
        configuration = _pyspark_class(f"pyspark.sql.{api}conf", name)
        if configuration is not None:
            _check_first(configuration, "get", _check_get)


def _patch_pyiceberg() -> None:
    _check_first(import_module("pyiceberg.table").Table, "_do_commit", _check_commit("a commit"))
    for catalog in _subclasses(import_module("pyiceberg.catalog").Catalog):
        for member in _CATALOG_MEMBERS:
            if member in catalog.__dict__:
                _check_first(catalog, member, _check_commit(member))


def _subclasses(owner: type) -> list[type]:
    below: list[type] = []
    child: type
    for child in owner.__subclasses__():
        below += _subclasses(child)
    return [owner, *dict.fromkeys(below)]


def _unpatch_pyspark() -> None:
    while _originals:
        owner, member, original = _originals.pop()
        setattr(owner, member, original)


def _patch_member(owner: type, member: str, replacement: Any) -> None:
    _originals.append((owner, member, owner.__dict__[member]))
    setattr(owner, member, replacement)


def _pyspark_class(module: str, name: str) -> Any:
    """Return a class of PySpark; None for a Connect class when the session is not Connect's.

    PySpark imports some Connect modules on first use. They are imported here, so that they are
    patched before a job uses them. Where another thread tries to import Connect without its
    packages, the module is in the list for a moment: a job cannot import it either.
    """
    if ".connect." in module and "pyspark.sql.connect.session" not in sys.modules:
        return None
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        if ".connect." in module:
            return None
        raise


def _check_first(owner: type, member: str, check: Callable[..., None]) -> None:
    """Let `check` see the arguments of each call first; it raises to refuse the call."""
    original = owner.__dict__[member]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    _patch_member(owner, member, call)


def _forbid(owner: type, member: str) -> None:
    what, original = f"{owner.__name__}.{member}", owner.__dict__[member]
    if isinstance(original, property):

        def get(self: Any) -> Any:
            _refuse_unless_trusted(what)
            return original.__get__(self)

        _patch_member(owner, member, property(get))
        return

    def check(_self: Any, *args: Any, **_: Any) -> None:
        is_shown = args and isinstance(args[0], str) and not hides_texts()
        target = f"({args[0]!r})" if is_shown else ""
        _refuse_unless_trusted(f"{what}{target}")

    _check_first(owner, member, check)


def _check_sql(_session: Any, sqlQuery: str, *_: Any, **__: Any) -> None:  # noqa: N803 (PySpark's)
    if _is_trusted():
        return
    # sqlglot is loaded only when a job sends a query as text.
    from lakehouse_backfill.core.guards.queries import NotAQuery, parse_query

    try:
        parse_query(sqlQuery)
    except NotAQuery as error:
        excerpt = " ".join(sqlQuery.split())[:80]
        # The text is put together by the job, and may hold a value.
        shown = "SparkSession.sql" if hides_texts() else f"SparkSession.sql({excerpt!r}): {error}"
        raise _write_forbidden(shown) from (None if hides_texts() else error)
    if what := read_guard.describe_query(sqlQuery):
        raise _read_forbidden(what)


def _check_builder(builder: Any) -> None:
    options = set(getattr(builder, "_options", {})) - _HARMLESS_OPTIONS
    if options:
        _refuse_unless_trusted(f"SparkSession.builder with {', '.join(sorted(options))}")


def _check_get(_configuration: Any, key: str, *_: Any, **__: Any) -> None:
    if is_secret(str(key)):
        _refuse_unless_trusted(f"{_READ_SETTING} {key}")


def _check_commit(what: str) -> Callable[..., None]:
    def check(*_: Any, **__: Any) -> None:
        if not (_is_trusted() or is_own_commit()):
            raise _write_forbidden(f"{what} through PyIceberg", state="nothing was committed")

    return check


def _check_read(
    member: str, describe: read_guard.ReadCheck, _reader: Any, *args: Any, **named: Any
) -> None:
    """Refuse a read that acts outside; a database, server or store gets no call."""
    if _is_trusted():
        return
    what = describe(*args, **named)
    if not what and member in read_guard.PATH_MEMBERS:
        what = read_guard.describe_default(read_guard.default_store(), member, *args, **named)
    if what:
        raise _read_forbidden(what)


def _read_forbidden(what: str) -> WriteForbidden:
    GUARD.note("database" if "connection" in what else "network", what, sys._getframe(1))
    return WriteForbidden(
        f"the job tried {what}",
        state="nothing was called or read",
        fix="load it into a table, and declare that under sources or reference_data",
    )


def _is_trusted() -> bool:
    return bool(getattr(_thread_state, "trusted", False))


def _refuse_unless_trusted(what: str) -> None:
    if not _is_trusted():
        raise _write_forbidden(what)


def _write_forbidden(what: str, state: str = "nothing was sent or written") -> WriteForbidden:
    """Return the error; the attempt counts also when the job swallows it."""
    sink = "secret" if what.startswith(_READ_SETTING) else "table"
    GUARD.note(sink, what, sys._getframe(1))
    return WriteForbidden(
        f"the job tried {what}; a transform returns a DataFrame and writes nothing itself",
        state=state,
        fix="return the rows from the transform; the toolkit writes them to the run's shadow",
    )


ResultT = TypeVar("ResultT")


@contextmanager
def run_concurrently(act: Callable[[], ResultT]) -> Iterator[Future[ResultT]]:
    """Run `act` on another thread while the block runs; the block ends when both have ended.

    The future's `result` returns the result of `act` or raises its error. `act` is our own code:
    it may write while a job's code runs on another thread.
    """

    def trusted() -> ResultT:
        with allow_own_writes():
            return act()

    with ThreadPoolExecutor(1, thread_name_prefix="lhb-beside") as pool:
        yield pool.submit(trusted)
