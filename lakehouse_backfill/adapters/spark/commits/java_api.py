"""Access to Iceberg's Java library through the Java process of the Spark session.

With `session/session.py` the only module that uses the session's Java gateway. A Spark Connect
client has no gateway and is refused, with a fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.session.spark_errors import CATALOG_REFUSALS
from lakehouse_backfill.domain.labels.names import table_parts
from lakehouse_backfill.domain.labels.values import Bound
from lakehouse_backfill.domain.partitions import RowRange
from lakehouse_backfill.errors import (
    LOST_RACE,
    BackfillError,
    CatalogDown,
    EnvironmentDown,
    NotFound,
    TooBusy,
    Unsupported,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = "org.apache.iceberg"
#: (end of the name of a Java exception, our error, fix).
_ERRORS_BY_EXCEPTION: tuple[tuple[str, type[BackfillError], str], ...] = (
    ("CommitFailedException", TooBusy, "try again"),
    ("NoSuchTableException", NotFound, "check the name and the profile: lakehouse-backfill doctor"),
    ("NoSuchNamespaceException", NotFound, "check the name: lakehouse-backfill doctor"),
    ("NotFoundException", NotFound, "restore the file, or plan against a newer snapshot"),
    ("ValidationException", Unsupported, "lakehouse-backfill doctor"),
    ("UncheckedSQLException", CatalogDown, "try again; lakehouse-backfill doctor"),
    ("ServiceFailureException", CatalogDown, "try again; lakehouse-backfill doctor"),
    ("ServiceUnavailableException", CatalogDown, "try again; lakehouse-backfill doctor"),
    ("UncheckedIOException", CatalogDown, "try again; lakehouse-backfill doctor"),
    ("RuntimeIOException", CatalogDown, "try again; lakehouse-backfill doctor"),
)
_LOCKED = ("database is locked", "SQLITE_BUSY")


class JavaApi:
    """Iceberg's Java library for the tables of one catalog; the JVM starts on first use."""

    def __init__(self, spark: Callable[[], SparkSession], catalog: str) -> None:
        self._open_session = spark
        self._catalog_name = catalog

    @cached_property
    def iceberg(self) -> Any:
        """The Java package `org.apache.iceberg`."""
        return self.jvm.org.apache.iceberg

    @cached_property
    def jvm(self) -> Any:
        """Py4J's view of the Java process."""
        return self._classic_session._jvm

    @cached_property
    def catalog(self) -> Any:
        """Iceberg's Java object for the session's catalog."""
        util = self.iceberg.spark.Spark3Util
        with java_errors(f"opening catalog {self._catalog_name}"):
            return util.loadIcebergCatalog(self._classic_session._jsparkSession, self._catalog_name)

    def load_table(self, table: str) -> Any:
        """Load a table without a cache; raises NotFound, CatalogDown."""
        with java_errors(f"loading {table}"):
            parts = self._java_array(self.jvm.java.lang.String, [*table_parts(table)])
            loaded = self.catalog.loadTable(self.iceberg.catalog.TableIdentifier.of(parts))
            loaded.refresh()
            return loaded

    def string_map(self, values: dict[str, str]) -> Any:
        """Return a Java map."""
        java_map = self.jvm.java.util.HashMap()
        for key, value in values.items():
            java_map.put(key, value)
        return java_map

    def any_range_expression(self, ranges: Sequence[RowRange]) -> Any:
        """Build an expression for rows in any of the ranges; without ranges, for all rows."""
        expressions = [self._range_expression(each) for each in ranges]
        if not expressions:
            return self._expressions.alwaysTrue()
        combined = expressions[0]
        for each in expressions[1:]:
            combined = getattr(self._expressions, "or")(combined, each)
        return combined

    def call_protected(self, on: Any, name: str, *given: tuple[str, Any]) -> None:
        """Call a protected method of Iceberg's snapshot producers; `given` are (type, value)."""
        loader = on.getClass().getClassLoader()
        types = self._java_array(
            self.jvm.java.lang.Class, [self._java_class(t, loader) for t, _ in given]
        )
        values = self._java_array(self.jvm.java.lang.Object, [value for _, value in given])
        producer = on.getClass().getSuperclass()
        method = producer.getDeclaredMethod(name, types)
        method.setAccessible(True)
        method.invoke(on, values)

    @cached_property
    def _classic_session(self) -> Any:
        session = self._open_session()
        if type(session).__module__.startswith("pyspark.sql.connect"):
            raise Unsupported(
                "Iceberg's Java API is out of reach of a Spark Connect client",
                fix="remove spark.remote from the profile for this run, so that Spark runs here",
            )
        return session

    @cached_property
    def _expressions(self) -> Any:
        return self.iceberg.expressions.Expressions

    def _range_expression(self, rows: RowRange) -> Any:
        make, name = self._expressions, rows.column
        if rows.is_null:
            return make.isNull(name)
        if rows.buckets is not None:
            return make.equal(make.bucket(name, rows.buckets), rows.equals)
        if rows.equals is not None:
            return make.equal(name, _literal(rows.equals))
        expression = make.alwaysTrue()
        if rows.lower is not None:
            expression = make.greaterThanOrEqual(name, _literal(rows.lower))
        if rows.upper is not None:
            below = make.lessThan(name, _literal(rows.upper))
            expression = getattr(make, "and")(expression, below)
        return expression

    def _java_class(self, name: str, loader: Any) -> Any:
        if name == "long":
            return self.jvm.java.lang.Long.TYPE
        return self.jvm.java.lang.Class.forName(f"{_PACKAGE}.{name}", False, loader)  # noqa: FBT003

    def _java_array(self, kind: Any, values: Sequence[Any]) -> Any:
        array = self._classic_session.sparkContext._gateway.new_array(kind, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array


@contextmanager
def closing_iterable(iterable: Any) -> Iterator[Iterable[Any]]:
    """Yield an iterator over one of Iceberg's closeable iterables, and close it afterwards."""

    def each() -> Iterator[Any]:
        iterator = iterable.iterator()
        while iterator.hasNext():
            yield iterator.next()

    try:
        yield each()
    finally:
        iterable.close()


@contextmanager
def java_errors(doing: str) -> Iterator[None]:
    """Translate Java's errors into ours; TooBusy only for a commit that certainly failed."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise _translate(error, doing) from error
    except Py4JError as error:
        raise EnvironmentDown(f"{doing}: {_line(error)}", fix="run the command again") from error


def _translate(error: Any, doing: str) -> BackfillError:
    thrown = error.java_exception
    name, message = str(thrown.getClass().getName()), str(thrown.getMessage())
    problem = f"{doing}: {name.rpartition('.')[2]}: {_line(message)}"
    if any(word in str(error) for word in _LOCKED):
        return TooBusy(problem, fix="try again")
    if name.endswith("BadRequestException") and LOST_RACE in message:
        return TooBusy(problem, fix="try again")
    for end, kind, fix in (*CATALOG_REFUSALS, *_ERRORS_BY_EXCEPTION):
        if name.endswith(end):
            return kind(problem, fix=fix)
    return EnvironmentDown(problem, fix="run the command again")


def _line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "no message")[:400]


def _literal(value: Bound) -> Any:
    """Return a value that Iceberg converts to the column's type when it binds the expression."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value


def default_file_system() -> str:
    """Return the address of the file system of paths without a scheme; empty on Spark Connect."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    return "" if context is None else str(context._jsc.hadoopConfiguration().get("fs.defaultFS"))
