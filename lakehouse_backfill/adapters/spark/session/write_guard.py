"""Keep job code from writing; tell queries from commands.

Keeps a job's code from writing anywhere through the session it is given.

While `job_code` is entered, every public way of PySpark to write, or to change the session or the
catalog, raises WriteForbidden before anything is sent; queries pass. This holds for the process,
so also for threads that the job starts; our own writes on other threads go through `own_writes`.

It guards against mistakes, not against an attacker: Python has no sandbox.

Tells a query from everything else by parsing SQL, never by looking at its first word.

Independent queries at the same time: a small one leaves most of the machine idle.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lakehouse_backfill.errors import WriteForbidden

#: Module, class and members that write or change state; a missing one is skipped, because the
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
#: What a builder may ask for when it is only used to find the session.
_HARMLESS_OPTIONS = frozenset({"spark.app.name", "spark.master"})

_lock = threading.Lock()
_guard_depth = 0
_originals: list[tuple[type, str, Any]] = []
_thread_state = threading.local()


@contextmanager
def forbid_job_writes() -> Iterator[None]:
    """Forbid writing until the block ends; raises WriteForbidden from inside it, never later."""
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
    """Let this thread write although a job's code runs on another one."""
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
    """Give a class of PySpark; None for Connect's own when the session is not one of Connect.

    PySpark imports some of Connect's modules when they are used: here, lest a job comes first.
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
            # The parser is loaded with the first query of a job: most commands start no Spark.

            try:
                parse_query(sqlQuery)
            except NotAQuery as error:
                shown = " ".join(sqlQuery.split())[:80]
                raise _write_forbidden(f"SparkSession.sql({shown!r}): {error}") from error
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


# sqlglot warns about each statement that it knows but does not model; they are refused below.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

#: `spark.sql(text, name=frame)` replaces `{name}`; for parsing it stands for a table of that name.
_FRAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: These call arbitrary Java methods from inside a query.
_REFLECTION_FUNCTIONS = frozenset({"reflect", "java_method", "try_reflect"})
_SIDE_EFFECT_NODES = (exp.DML, exp.DDL, exp.Command, exp.QueryTransform, exp.Into)


class NotAQuery(ValueError):
    """The text is not one single query; the message says what it is instead."""


def parse_query(text: str) -> exp.Query:
    """Parse `text` as exactly one query without side effects; raises NotAQuery."""
    try:
        found = sqlglot.parse(_FRAME.sub(r"\1", text), read="spark")
    except SqlglotError as error:
        raise NotAQuery(f"not readable as one query ({_first_line(error)})") from error
    statements = [statement for statement in found if statement is not None]
    if len(statements) != 1:
        raise NotAQuery(f"{len(statements)} statements instead of one query")
    statement = statements[0]
    if not isinstance(statement, exp.Query) or isinstance(statement, exp.DML):
        raise NotAQuery(f"{_statement_kind(statement)} instead of a query")
    for node in statement.walk():
        _refuse_side_effects(node)
    return statement


def referenced_tables(query: exp.Query) -> set[str]:
    """Name the tables that a query reads, its own common table expressions left out."""
    own = {cte.alias_or_name.lower() for cte in query.find_all(exp.CTE)}
    names = {
        ".".join(part.name for part in table.parts)
        for table in query.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier)
    }
    return {name for name in names if name.lower() not in own}


def _refuse_side_effects(node: exp.Expr) -> None:
    if isinstance(node, _SIDE_EFFECT_NODES) and not isinstance(node, exp.Query):
        raise NotAQuery(f"{_statement_kind(node)} inside a query")
    if isinstance(node, exp.Anonymous) and node.name.lower() in _REFLECTION_FUNCTIONS:
        raise NotAQuery(f"call of {node.name}, which runs arbitrary Java code")


def _statement_kind(node: exp.Expr) -> str:
    if isinstance(node, exp.Command):
        return str(node.this).upper()
    return node.key.upper()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


ResultT = TypeVar("ResultT")


@contextmanager
def run_concurrently(act: Callable[[], ResultT]) -> Iterator[Future[ResultT]]:
    """Let `act` run on another thread meanwhile; the block ends when both have.

    The future's `result` gives what it found, or raises what it raised. It may write although a
    job's code runs elsewhere: it is ours.
    """

    def trusted() -> ResultT:
        with allow_own_writes():
            return act()

    with ThreadPoolExecutor(1, thread_name_prefix="lhb-beside") as pool:
        yield pool.submit(trusted)
