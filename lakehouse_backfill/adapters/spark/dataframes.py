"""DataFrames of the lake: reads at exact snapshots, filters, partition labels, quoting, errors.

Names and columns are always quoted, never pasted into SQL unquoted. Errors that Spark and Iceberg
raise are translated into the package's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.session import spark_log
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.partitions import (
    NULL_LABEL,
    Bound,
    RowRange,
    Scope,
    ScopeField,
    partition_label,
)
from lakehouse_backfill.domain.table import SchemaChange, renamed_columns, widened_columns
from lakehouse_backfill.errors import (
    BackfillError,
    CatalogDown,
    ChecksFailed,
    Conflict,
    DamagedFile,
    EnvironmentDown,
    LostFile,
    NotFound,
    Unsupported,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


#: The plan holds the hash of the job file: a corrected file needs a revised plan.
CORRECT_JOB_FIX = "correct the job file, then: lakehouse-backfill plan MANIFEST --revise RUN"
_NOTHING_PUBLISHED = "nothing was published; readers see what they saw before"
#: (part of the message, error, fix). The first match wins.
_ERRORS_BY_MESSAGE: tuple[tuple[str, type[BackfillError], str], ...] = (
    ("Found conflicting files", Conflict, "run the step again"),
    ("Cannot commit", Conflict, "run the step again"),
    ("CommitFailedException", Conflict, "run the step again"),
    ("some, but not all, rows match", Unsupported, "widen target.partitions to whole partitions"),
    ("NOT_NULL_ASSERT_VIOLATION", ChecksFailed, "give every required column a value"),
    ("USER_RAISED_EXCEPTION", ChecksFailed, CORRECT_JOB_FIX),
    ("Failed to open input stream", LostFile, "restore the file, or plan against a newer snapshot"),
    ("Cannot find snapshot", NotFound, "plan again: the pinned snapshot is gone"),
    ("TABLE_OR_VIEW_NOT_FOUND", NotFound, "check the table's name"),
    ("UncheckedSQLException", CatalogDown, "run the step again"),
    ("JdbcClientPool", CatalogDown, "run the step again"),
    ("RESTException", CatalogDown, "run the step again"),
)
#: What Iceberg's readers say of a file that is not what the table says.
_DAMAGE_MESSAGES = (
    "Reached the end of stream",
    "is not a Parquet file",
    "ParquetDecodingException",
    "ParquetCryptoRuntimeException",
    "Not an Avro data file",
    "Malformed ORC file",
)
#: Names of Spark's errors in the data or in the transform's own expressions.
_DATA_ERRORS = ("ArithmeticException", "DateTimeException", "NumberFormatException")
_DATA_CLASSES = (*_DATA_ERRORS, "IllegalArgumentException", "PythonException", "AnalysisException")


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Translate Spark's errors into ours; the text starts with `doing`."""
    try:
        yield
    except BackfillError:
        raise
    except Exception as error:
        raise translate_spark_error(error, doing) from error


def translate_spark_error(error: Exception, doing: str) -> BackfillError:
    """Return the error that a user sees for an error of Spark or Iceberg."""
    text = str(error)
    cause = root_cause_line(text)
    for part, kind, fix in _ERRORS_BY_MESSAGE:
        if part in text:
            return kind(f"{doing}: {cause}", state=_NOTHING_PUBLISHED, fix=fix)
    if any(part in text for part in _DAMAGE_MESSAGES):
        return _damaged_file_error(doing, cause)
    if type(error).__name__ in _DATA_CLASSES or any(name in text for name in _DATA_ERRORS):
        return ChecksFailed(
            f"{doing}: the transform failed on the data: {cause}",
            state=_NOTHING_PUBLISHED,
            fix=CORRECT_JOB_FIX,
        )
    return EnvironmentDown(f"{doing}: {cause}", state=_NOTHING_PUBLISHED, fix="run the step again")


def _damaged_file_error(doing: str, cause: str) -> BackfillError:
    file = spark_log.last_unreadable_file()
    if file is not None:
        return DamagedFile(file, f"{doing}: {cause}")
    return LostFile(
        f"{doing}: a data file is damaged: {cause}",
        state=_NOTHING_PUBLISHED,
        fix="look for `Error reading file(s)` in the logs of Spark's executors; restore that file "
        "from the store's own history or from a copy, then run the step again",
    )


def root_cause_line(text: str) -> str:
    """Return the line with the cause: the innermost one of a Java stack trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    line_with_cause = [*lines[:1], *causes][-1] if lines else "no message"
    return line_with_cause[:400]


def quote_identifier(name: str) -> str:
    """Quote one identifier; any character is allowed."""
    return "`" + name.replace("`", "``") + "`"


def quoted_column(name: str) -> Column:
    """Return the top-level column with exactly this name, dots and spaces included."""
    from pyspark.sql import functions as F

    return F.col(quote_identifier(name))


def quoted_table_name(catalog: str, table: str) -> str:
    """Return the quoted three-part name of `namespace.table` in the catalog."""
    return ".".join(quote_identifier(part) for part in (catalog, *table.split(".")))


#: Spark's names of the Iceberg types that a column can be widened to.
_SPARK_TYPES = {"long": "bigint", "double": "double"}


def apply_schema_change(frame: DataFrame, change: SchemaChange) -> DataFrame:
    """Return the rows under the new names and types; added columns are not created."""
    names, types = renamed_columns(change), widened_columns(change)
    if not names and not types:
        return frame
    columns = []
    for name in frame.columns:
        value = quoted_column(name)
        if name in types:
            value = value.cast(_SPARK_TYPES.get(types[name], types[name]))
        columns.append(value.alias(names.get(name, name)))
    return frame.select(*columns)


def typed_literal(value: Bound) -> Column:
    """Return the typed literal of a bound; instants do not depend on the process's time zone."""
    from pyspark.sql import functions as F

    if isinstance(value, datetime):
        # F.lit would read a naive datetime in the local zone of the Python process.
        kind = "timestamp" if value.tzinfo else "timestamp_ntz"
        return F.lit(value.isoformat(sep=" ")).cast(kind)
    if isinstance(value, date):
        # PySpark writes the year without its zeros, and Java refuses a date before the year 1000.
        return F.lit(value.isoformat()).cast("date")
    return F.lit(value).cast("bigint") if isinstance(value, int) else F.lit(value)


def range_filter(ranges: Sequence[RowRange]) -> Column:
    """Build the filter for rows of any of the ranges; null (never true) where a column is null.

    Iceberg can push the filter down to files. Raises ValueError for no ranges: an empty filter
    would select everything or nothing.
    """
    if not ranges:
        raise ValueError("no ranges: the condition would not be bounded")
    parts = [_single_range_filter(rows) for rows in ranges if rows.equals is None]
    for name in dict.fromkeys(rows.column for rows in ranges if rows.equals is not None):
        values = [rows.equals for rows in ranges if rows.column == name and rows.equals is not None]
        parts.append(_equals(name, values))
    return _balanced_or(parts)


def is_in_ranges(ranges: Sequence[RowRange]) -> Column:
    """Build a column, never null, that is true for rows in any of the ranges."""
    from pyspark.sql import functions as F

    return F.coalesce(range_filter(ranges), F.lit(False))  # noqa: FBT003 (a Spark literal)


def _single_range_filter(rows: RowRange) -> Column:
    name = quoted_column(rows.column)
    if rows.is_null:
        return name.isNull()
    if rows.lower is None:
        if rows.upper is None:
            raise ValueError(f"range of {rows.column} has no bounds")
        return name < typed_literal(rows.upper)
    from_lower = name >= typed_literal(rows.lower)
    return from_lower if rows.upper is None else from_lower & (name < typed_literal(rows.upper))


def _equals(name: str, values: list[Bound]) -> Column:
    if len(values) == 1:
        return quoted_column(name) == typed_literal(values[0])
    return quoted_column(name).isin([typed_literal(value) for value in values])


def _balanced_or(parts: list[Column]) -> Column:
    """Combine by OR as a balanced tree: a chain of thousands overflows Spark's stack."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else pair[0] | pair[1] for pair in pairs]
    return parts[0]


#: Error text of a write to a table that was committed to since it was read.
TABLE_MOVED_MARKER = "LHB_TABLE_MOVED"


def pin_table_identity(spark: SparkSession, name: str) -> DataFrame:
    """Return an empty frame with a table's columns; call it before the table is inspected.

    A frame that includes this one can only be written while the table keeps its present UUID. A
    write by name loads the table again, so the table could otherwise be fenced between inspection
    and write. Spark refuses a query on a table that it loaded under another UUID, even if it does
    not read it. Iceberg compares the UUID again from its own load on. Spark Connect loads tables
    per query: there the write fails after any commit to the table, with TABLE_MOVED_MARKER.
    """
    opened = spark.table(name)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return _fail_if_committed(spark, name, opened)
    return opened.limit(0)


def _fail_if_committed(spark: SparkSession, name: str, opened: DataFrame) -> DataFrame:
    """Return an empty frame that fails, in the query that writes, for a new metadata file.

    Iceberg lists the metadata files when it plans that query, after it has loaded the table to be
    written. This check detects a commit before that load; Iceberg itself detects one after it.
    """
    from pyspark.sql import functions as F

    log = spark.table(f"{name}.`metadata_log_entries`").select("file")
    known = [row["file"] for row in log.collect()]
    failure = F.raise_error(F.lit(f"{TABLE_MOVED_MARKER}: {name}")).cast("boolean")
    added = log.where(
        F.when(quoted_column("file").isin(known), F.lit(col=False)).otherwise(failure)
    )
    null = F.lit(None)
    return added.select(
        *(null.cast(field.dataType).alias(field.name) for field in opened.schema.fields)
    )


_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def raw_label(field: ScopeField) -> Column:
    """Build a cheap value per row that `format_label` turns into its partition's label.

    Null for null. The value sorts as the partitions do. Days and hours are UTC, as the session's
    time zone is. Formatting a date for every row would cost as much as hashing the row.
    """
    from pyspark.sql import functions as F

    value = quoted_column(field.column)
    if field.type == "string":
        return value
    if field.transform in ("year", "month"):
        return (F.year(value) * 12 + F.month(value) - 1).cast("bigint")
    if raw_type(field) == "date":
        return value.cast("date")
    if field.type in ("int", "long"):
        return value.cast("bigint")
    instant = value.cast("timestamp")
    whole = F.date_trunc("hour", instant) if field.transform == "hour" else instant
    return F.unix_micros(whole)


def raw_type(field: ScopeField) -> str:
    """Return the Spark type of `raw_label`."""
    if field.type == "string":
        return "string"
    is_day = field.transform == "day" or (field.transform == "identity" and field.type == "date")
    return "date" if is_day else "bigint"


def format_label(field: ScopeField, raw: Any) -> str:
    """Return the partition's label for a value of `raw_label`."""
    if raw is None:
        return NULL_LABEL
    if field.transform in ("year", "month"):
        return partition_label(field, datetime(raw // 12, raw % 12 + 1, 1, tzinfo=timezone.utc))
    if raw_type(field) == "bigint" and field.type not in ("int", "long"):
        moment = _UNIX_EPOCH + timedelta(microseconds=raw)
        return partition_label(
            field, moment.replace(tzinfo=None) if field.type == "timestamp" else moment
        )
    return partition_label(field, raw)


def read_table(
    spark: SparkSession,
    catalog_name: str,
    table: str,
    snapshot_id: int | None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read a table at a snapshot, in that snapshot's schema; its head when the id is None.

    Later commits are not visible. Raises NotFound.
    """
    name = quoted_table_name(catalog_name, table)
    with spark_errors(f"reading {table}"):
        reader = spark.read.options(**(options or {}))
        if snapshot_id is not None:
            reader = reader.option("versionAsOf", str(snapshot_id))
        frame = reader.table(name)
        _ = frame.schema  # Spark Connect resolves the table only on first use.
        return frame


def read_scope(
    spark: SparkSession, catalog_name: str, table: str, snapshot_id: int | None, scope: Scope
) -> DataFrame:
    """Read only the rows of the scope's partitions."""
    frame = read_table(spark, catalog_name, table, snapshot_id)
    return restrict_to_ranges(spark, catalog_name, table, frame, partitions.scope_row_ranges(scope))


def restrict_to_ranges(
    spark: SparkSession, catalog_name: str, table: str, frame: DataFrame, rows: Sequence[RowRange]
) -> DataFrame:
    """Filter a frame that was read from the table to rows in any of the ranges.

    Iceberg binds pushed-down filters to the table's current schema. Spark itself filters a column
    that was renamed or dropped since the snapshot.
    """
    with spark_errors(f"reading {table}"):
        current = spark.table(quoted_table_name(catalog_name, table)).columns
    is_current = all(each.column in current for each in rows)
    return frame.where(range_filter(rows) if is_current else is_in_ranges(rows))


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty frame, for a table that does not exist or has no snapshot."""
    return spark.createDataFrame([], schema)
