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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from lakehouse_backfill.adapters.spark.session.settings import is_secret
from lakehouse_backfill.errors import WriteForbidden
from lakehouse_backfill.fault_points import is_own_commit

#: Module, class and members that write or change state. A missing member is skipped, because the
#: classic and the Connect API differ.
_WRITE_MEMBERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    *(
        (module, "DataFrame", members)
        for module in (
            "pyspark.sql.dataframe",
            "pyspark.sql.classic.dataframe",
            "pyspark.sql.connect.dataframe",
        )
        for members in (
            ("write", "writeTo", "writeStream", "mergeInto", "foreach", "foreachPartition"),
            ("createGlobalTempView", "createOrReplaceGlobalTempView", "checkpoint", "rdd"),
        )
    ),
    *(
        (f"pyspark.sql.{part}readwriter", name, members)
        for part in ("", "connect.")
        for name, members in (
            ("DataFrameWriter", ("save", "insertInto", "saveAsTable", "json", "parquet", "text")),
            ("DataFrameWriter", ("csv", "xml", "orc", "jdbc")),
            ("DataFrameWriterV2", ("create", "replace", "createOrReplace", "append")),
            ("DataFrameWriterV2", ("overwrite", "overwritePartitions")),
        )
    ),
    *((f"pyspark.sql.{part}merge", "MergeIntoWriter", ("merge",)) for part in ("", "connect.")),
    *(
        (f"pyspark.sql.{part}streaming.readwriter", "DataStreamWriter", ("start", "toTable"))
        for part in ("", "connect.")
    ),
    *(
        (f"pyspark.sql.{part}catalog", "Catalog", members)
        for part in ("", "connect.")
        for members in (
            ("createTable", "createExternalTable", "dropGlobalTempView", "recoverPartitions"),
            ("setCurrentCatalog", "setCurrentDatabase"),
        )
    ),
    ("pyspark.sql.conf", "RuntimeConfig", ("set", "unset")),
    ("pyspark.sql.connect.conf", "RuntimeConf", ("set", "unset")),
    *(
        (f"pyspark.sql.{part}session", "SparkSession", members)
        for part in ("", "connect.")
        for members in (("stop", "copyFromLocalToFs", "addArtifacts"),)
    ),
)
_CONFIGURATION_CLASSES = (
    ("pyspark.sql.conf", "RuntimeConfig"),
    ("pyspark.sql.connect.conf", "RuntimeConf"),
)
#: Members of PyIceberg's tables and catalogs that commit. The catalogs are those that are loaded.
_COMMIT_MEMBER = ("pyiceberg.table", "Table", "_do_commit")
_CATALOG_MEMBERS = (
    "commit_table", "create_table", "register_table", "drop_table", "purge_table", "rename_table",
    "create_namespace", "drop_namespace", "update_namespace_properties", "drop_view",
)  # fmt: skip
_SESSION_MODULES = ("pyspark.sql.session", "pyspark.sql.connect.session")
#: Options of a builder that is only used to get the session.
_HARMLESS_OPTIONS = frozenset({"spark.app.name", "spark.master"})

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
def allow_own_writes() -> Iterator[None]:
    """Allow this thread to write while a job's code runs on another one."""
    before = getattr(_thread_state, "trusted", False)
    _thread_state.trusted = True
    try:
        yield
    finally:
        _thread_state.trusted = before


def _patch_pyspark() -> None:
    for module, name, members in _WRITE_MEMBERS:
        owner = _pyspark_class(module, name)
        for member in members:
            if owner is not None and member in owner.__dict__:
                _patch_member(owner, member, _forbidding_member(owner, member))
    for module in _SESSION_MODULES:
        session = _pyspark_class(module, "SparkSession")
        if session is not None:
            _patch_member(session, "sql", _checked_sql(session.__dict__["sql"]))
            builder = session.Builder
            _patch_member(builder, "getOrCreate", _checked_builder(builder.getOrCreate))
    for module, name in _CONFIGURATION_CLASSES:
        owner = _pyspark_class(module, name)
        if owner is not None:
            _patch_member(owner, "get", _checked_get(owner))
    _patch_pyiceberg()


def _checked_get(owner: type) -> Any:
    original = owner.__dict__["get"]

    def get(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        if is_secret(str(key)):
            _refuse_unless_trusted(f"to read the setting {key}")
        return original(self, key, *args, **kwargs)

    return get


def _patch_pyiceberg() -> None:
    module, name, commit = _COMMIT_MEMBER
    table = getattr(import_module(module), name)
    _patch_member(table, commit, _committing_member(table, commit, "a commit"))
    for catalog in _subclasses(import_module("pyiceberg.catalog").Catalog):
        for member in _CATALOG_MEMBERS:
            if member in catalog.__dict__:
                _patch_member(catalog, member, _committing_member(catalog, member, member))


def _subclasses(owner: type) -> list[type]:
    below: list[type] = []
    child: type
    for child in owner.__subclasses__():
        below += _subclasses(child)
    return [owner, *dict.fromkeys(below)]


def _committing_member(owner: type, member: str, what: str) -> Any:
    original = owner.__dict__[member]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_is_trusted() or is_own_commit()):
            raise _write_forbidden(f"{what} through PyIceberg", state="nothing was committed")
        return original(self, *args, **kwargs)

    return call


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
    patched before a job uses them.
    """
    if ".connect." in module and _SESSION_MODULES[1] not in sys.modules:
        return None
    return getattr(import_module(module), name, None)


def _forbidding_member(owner: type, member: str) -> Any:
    original = owner.__dict__[member]
    what = f"{owner.__name__}.{member}"
    if isinstance(original, property):
        getter = original.fget or _nothing

        def get(self: Any) -> Any:
            _refuse_unless_trusted(what)
            return getter(self)

        return property(get)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = f"({args[0]!r})" if args and isinstance(args[0], str) else ""
        _refuse_unless_trusted(f"{what}{target}")
        return original(self, *args, **kwargs)

    return call


def _nothing(_self: Any) -> None:
    return None


def _checked_sql(original: Callable[..., Any]) -> Callable[..., Any]:
    def sql(self: Any, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:  # noqa: N803 (PySpark's)
        if not _is_trusted():
            # sqlglot is loaded only when a job sends a query as text.
            from lakehouse_backfill.adapters.spark.session.queries import NotAQuery, parse_query

            try:
                parse_query(sqlQuery)
            except NotAQuery as error:
                excerpt = " ".join(sqlQuery.split())[:80]
                raise _write_forbidden(f"SparkSession.sql({excerpt!r}): {error}") from error
        return original(self, sqlQuery, *args, **kwargs)

    return sql


def _checked_builder(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_or_create(self: Any) -> Any:
        options = set(getattr(self, "_options", {}))
        if options - _HARMLESS_OPTIONS:
            _refuse_unless_trusted(
                f"SparkSession.builder with {', '.join(sorted(options - _HARMLESS_OPTIONS))}"
            )
        return original(self)

    return get_or_create


def _is_trusted() -> bool:
    return bool(getattr(_thread_state, "trusted", False))


def _refuse_unless_trusted(what: str) -> None:
    if not _is_trusted():
        raise _write_forbidden(what)


def _write_forbidden(what: str, state: str = "nothing was sent or written") -> WriteForbidden:
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
