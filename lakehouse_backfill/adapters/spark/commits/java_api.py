"""Iceberg's own library, through the Java process of the Spark session.

With `session.py` the only module that knows the session's gateway: a Spark Connect client has
none, and is refused with what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.domain.partitions import Bound, RowRange
from lakehouse_backfill.errors import (
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
#: Ends of the names of Java's exceptions -> what they mean here.
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
    """Tables of one catalog as Iceberg's own library holds them; the JVM starts on first use."""

    def __init__(self, spark: Callable[[], SparkSession], catalog: str) -> None:
        self._open_session = spark
        self._catalog_name = catalog

    @cached_property
    def iceberg(self) -> Any:
        """The Java package `org.apache.iceberg`."""
        return self.jvm.org.apache.iceberg

    @cached_property
    def jvm(self) -> Any:
        """The names of the Java process."""
        return self._classic_session._jvm

    @cached_property
    def catalog(self) -> Any:
        """The catalog of the session, as Iceberg's library knows it."""
        util = self.iceberg.spark.Spark3Util
        with java_errors(f"opening catalog {self._catalog_name}"):
            return util.loadIcebergCatalog(self._classic_session._jsparkSession, self._catalog_name)

    def load_table(self, table: str) -> Any:
        """Load a table afresh; raises NotFound, CatalogDown."""
        with java_errors(f"loading {table}"):
            loaded = self.catalog.loadTable(self.iceberg.catalog.TableIdentifier.parse(table))
            loaded.refresh()
            return loaded

    def string_map(self, values: dict[str, str]) -> Any:
        """Give a Java map."""
        found = self.jvm.java.util.HashMap()
        for key, value in values.items():
            found.put(key, value)
        return found

    def any_range_expression(self, ranges: Sequence[RowRange]) -> Any:
        """Give the expression that is true for rows of any of the ranges; none: for all rows."""
        every = [self._range_expression(one) for one in ranges]
        if not every:
            return self._expressions.alwaysTrue()
        found = every[0]
        for one in every[1:]:
            found = getattr(self._expressions, "or")(found, one)
        return found

    def call_protected(self, on: Any, name: str, *given: tuple[str, Any]) -> None:
        """Call a method that Iceberg keeps for its own snapshot producers; types by name."""
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
        if rows.equals is not None:
            return make.equal(name, _literal(rows.equals))
        found = make.alwaysTrue()
        if rows.lower is not None:
            found = make.greaterThanOrEqual(name, _literal(rows.lower))
        if rows.upper is not None:
            below = make.lessThan(name, _literal(rows.upper))
            found = getattr(make, "and")(found, below)
        return found

    def _java_class(self, name: str, loader: Any) -> Any:
        if name == "long":
            return self.jvm.java.lang.Long.TYPE
        return self.jvm.java.lang.Class.forName(f"{_PACKAGE}.{name}", False, loader)  # noqa: FBT003

    def _java_array(self, kind: Any, values: Sequence[Any]) -> Any:
        found = self._classic_session.sparkContext._gateway.new_array(kind, len(values))
        for at, value in enumerate(values):
            found[at] = value
        return found


@contextmanager
def closing_iterable(iterable: Any) -> Iterator[Iterable[Any]]:
    """Iterate over one of Iceberg's closeable iterables, and close it."""

    def each() -> Iterator[Any]:
        found = iterable.iterator()
        while found.hasNext():
            yield found.next()

    try:
        yield each()
    finally:
        iterable.close()


@contextmanager
def java_errors(doing: str) -> Iterator[None]:
    """Raise our errors for Java's; TooBusy only for a commit that certainly did not land."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise _translate(error, doing) from error
    except Py4JError as error:
        raise EnvironmentDown(f"{doing}: {_line(error)}", fix="run the command again") from error


def _translate(error: Any, doing: str) -> BackfillError:
    thrown = error.java_exception
    name, said = str(thrown.getClass().getName()), str(thrown.getMessage())
    problem = f"{doing}: {name.rpartition('.')[2]}: {_line(said)}"
    if any(word in str(error) for word in _LOCKED):
        return TooBusy(problem, fix="try again")
    for end, kind, fix in _ERRORS_BY_EXCEPTION:
        if name.endswith(end):
            return kind(problem, fix=fix)
    return EnvironmentDown(problem, fix="run the command again")


def _line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "no message")[:400]


def _literal(value: Bound) -> Any:
    """Give a value that Iceberg converts to the column's type when it binds the expression."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value
