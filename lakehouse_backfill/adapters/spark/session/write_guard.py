"""Prevents job code from writing through the session that it is given.

While `forbid_job_writes` is active, every public PySpark method that writes, or that changes the
session or the catalog, raises WriteForbidden before anything is sent. Queries pass: a parser
separates them from other statements, not the first word of the text. The guard is valid for the
whole process, including threads that the job starts. Our own writes on other threads use
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

from lakehouse_backfill.errors import WriteForbidden

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


def _write_forbidden(what: str) -> WriteForbidden:
    return WriteForbidden(
        f"the job tried {what}; a transform returns a DataFrame and writes nothing itself",
        state="nothing was sent or written",
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
