"""DataFrames of the lake: reads at exact snapshots, filters, partition labels, quoting, errors.

Names and columns are always quoted, never pasted into SQL unquoted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.domain.labels.names import quote_identifier, table_parts
from lakehouse_backfill.domain.labels.values import (
    TIME_TYPES,
    Bound,
    is_bucket,
    is_truncation,
    scale_of,
    width_of,
)
from lakehouse_backfill.domain.partitions import (
    NULL_LABEL,
    WHOLE_TABLE_LABEL,
    Chunk,
    ColumnType,
    RowRange,
    Scope,
    ScopeField,
    partition_label,
    scope_row_ranges,
)
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.tables.branch_shadow import BranchHead, parse_branch_shadow
from lakehouse_backfill.domain.tables.commits import StoredTable
from lakehouse_backfill.domain.tables.schema_change import (
    SchemaChange,
    renamed_columns,
    widened_columns,
)


def quoted_column(name: str) -> Column:
    """Return the top-level column with exactly this name, dots and spaces included."""
    return F.col(quote_identifier(name))


def column_at(name: str, path: Sequence[str]) -> Column:
    """Return the column with exactly this name, or the field of a struct that the path leads to."""
    return F.col(".".join(map(quote_identifier, path))) if path else quoted_column(name)


@contextmanager
def cached(frame: DataFrame) -> Iterator[DataFrame]:
    """Cache a frame until the block ends: it is computed once, so its rows stay the same."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def is_true(condition: Column) -> Column:
    """Build a column that is false, not null, where the condition is null."""
    return F.coalesce(condition, F.lit(False))  # noqa: FBT003 (a Spark literal)


def is_same(names: Iterable[str], others: Iterable[str]) -> Column:
    """Build a condition: the columns are equal pair by pair; nulls are equal to each other."""
    pairs = zip(names, others, strict=True)
    same = [quoted_column(name).eqNullSafe(quoted_column(other)) for name, other in pairs]
    return reduce(and_, same, F.lit(True))  # noqa: FBT003 (a Spark literal)


def key_aliases(key: Sequence[str]) -> list[str]:
    """Return one name for each column of a key that needs no quoting."""
    return [f"lhb_key_{place}" for place in range(len(key))]


def aliased_key(key: Sequence[str], prefix: str = "") -> list[Column]:
    """Return the key's columns under the prefix and their names of `key_aliases`."""
    named = zip(key, key_aliases(key), strict=True)
    return [quoted_column(name).alias(prefix + alias) for name, alias in named]


#: Iceberg's names of the types of partitions, ranges and row predicates, by Spark's.
ICEBERG_TYPES: dict[str, ColumnType] = {
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "string": "string",
}


def iceberg_type(schema: StructType, name: str) -> ColumnType | None:
    """Return Iceberg's name of a column's type; None for a type that orders no partitions."""
    return ICEBERG_TYPES.get(schema[name].dataType.typeName())


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


#: The catalog of Iceberg's functions: a process has one session, and a session one catalog.
_function_catalog: list[str] = []


def bucket_number(column: Column, buckets: int) -> Column:
    """Return the bucket that Iceberg puts a value into; null for null.

    The function is that of the catalog's own writers, so both agree on every value. Raises
    LookupError before any `SparkTables` was made.
    """
    name = f"{quote_identifier(_function_catalog[-1])}.system.bucket"
    return F.call_function(name, F.lit(buckets), column)


def typed_literal(value: Bound) -> Column:
    """Return the typed literal of a value; instants do not depend on the process's time zone."""
    if isinstance(value, datetime):
        # F.lit would read a naive datetime in the local zone of the Python process.
        kind = "timestamp" if value.tzinfo else "timestamp_ntz"
        return F.lit(value.isoformat(sep=" ")).cast(kind)
    if isinstance(value, date):
        # PySpark writes the year without its zeros, and Java refuses a date before the year 1000.
        return F.lit(value.isoformat()).cast("date")
    if isinstance(value, bytes):
        return F.lit(bytearray(value))
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return F.lit(value).cast("bigint") if is_number else F.lit(value)


def sql_argument(value: Any) -> Any:
    """Return a value of a configuration as an argument of a query; a list becomes an array."""
    if isinstance(value, tuple):
        return F.array(*(F.lit(_with_utc(one)) for one in value))
    return _with_utc(value)


def _with_utc(value: Any) -> Any:
    """Return an instant without a zone as UTC, the session's: PySpark would use the local zone."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    return value


def range_filter(ranges: Sequence[RowRange]) -> Column:
    """Build the filter for rows of any of the ranges; null (never true) where a column is null.

    Iceberg can push the filter down to files. The groups of `only` are those of all ranges. Raises
    ValueError for no ranges: an empty filter would select everything or nothing.
    """
    if not ranges:
        raise ValueError("no ranges: the condition would not be bounded")
    if ranges[0].only:
        own = range_filter([replace(rows, only=()) for rows in ranges])
        return reduce(and_, map(range_filter, ranges[0].only), own)
    parts = [_single_range_filter(rows) for rows in ranges if rows.equals is None]
    equals: dict[tuple[str, tuple[str, ...], int | None], list[Bound]] = {}
    for rows in ranges:
        if rows.equals is not None:
            equals.setdefault((rows.column, rows.path, rows.buckets), []).append(rows.equals)
    for (name, path, buckets), values in equals.items():
        column = column_at(name, path)
        parts.append(_equals(bucket_number(column, buckets) if buckets else column, values))
    return _balanced_or(parts)


def is_in_ranges(ranges: Sequence[RowRange]) -> Column:
    """Build a column, never null, that is true for rows in any of the ranges."""
    return is_true(range_filter(ranges))


def _single_range_filter(rows: RowRange) -> Column:
    if rows.is_everything:
        return F.lit(True)  # noqa: FBT003 (a Spark literal)
    name = column_at(rows.column, rows.path)
    if rows.is_null:
        return name.isNull()
    if rows.prefix is not None:
        # Iceberg tells from a file's partition alone that all of its rows begin so. Of a range it
        # would need the file's bounds, which tables keep of some columns, and of 16 characters.
        return name.startswith(rows.prefix)
    if rows.lower is None:
        if rows.upper is None:
            raise ValueError(f"range of {rows.column} has no bounds")
        return name < typed_literal(rows.upper)
    from_lower = name >= typed_literal(rows.lower)
    return from_lower if rows.upper is None else from_lower & (name < typed_literal(rows.upper))


def _equals(column: Column, values: list[Bound]) -> Column:
    if len(values) == 1:
        return column == typed_literal(values[0])
    return column.isin([typed_literal(value) for value in values])


def _balanced_or(parts: list[Column]) -> Column:
    """Combine by OR as a balanced tree: a chain of thousands overflows Spark's stack."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else pair[0] | pair[1] for pair in pairs]
    return parts[0]


def _has_path(schema: Any, path: Sequence[str]) -> bool:
    """Return whether the names lead from a row to a field."""
    for name in path:
        if not isinstance(schema, StructType) or name not in schema.names:
            return False
        schema = schema[name].dataType
    return True


#: On a shadow, and in the summary of a chunk's commit: the epoch of the driver that may write.
EPOCH_PROPERTY = "lakehouse-backfill.epoch"
#: Error text of a write to a table that was committed to since it was read.
TABLE_MOVED_MARKER = "LHB_TABLE_MOVED"
#: Messages of Iceberg and Spark when a table has another UUID than the loaded one.
TABLE_CHANGED_MESSAGES = ("UUID does not match", "TABLE_ID_MISMATCH")


_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def raw_label(field: ScopeField) -> Column:
    """Build a cheap value per row that `format_label` turns into its partition's label.

    Null for null. The value sorts as the partitions do. Days and hours are UTC, as the session's
    time zone is. Formatting a date for every row would cost as much as hashing the row.
    """
    if field.is_whole_table:
        return F.lit(0).cast("bigint")
    value = column_at(field.column, field.path)
    if is_bucket(field.transform):
        return bucket_number(value, width_of(field.transform) or 1).cast("bigint")
    if is_truncation(field.transform):
        return _truncated(value, field)
    if field.type not in (*TIME_TYPES, "int", "long"):
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


def _truncated(value: Column, field: ScopeField) -> Column:
    """Build the value of each row's partition; fewer values are labelled than there are rows."""
    width, scale = width_of(field.transform) or 1, scale_of(field.type)
    if scale is not None:
        unit = F.lit(Decimal(width).scaleb(-scale))
        return value - F.pmod(value, unit)
    if field.type in ("int", "long"):
        return value.cast("bigint") - F.pmod(value.cast("bigint"), F.lit(width))
    return F.substring(value, 1, width)


def raw_type(field: ScopeField) -> str:
    """Return the Spark type of `raw_label`, where it is a time or a number."""
    if field.type not in (*TIME_TYPES, "int", "long"):
        return "string"
    is_day = field.transform == "day" or (field.transform == "identity" and field.type == "date")
    return "date" if is_day else "bigint"


def format_label(field: ScopeField, raw: Any) -> str:
    """Return the partition's label for a value of `raw_label`."""
    if field.is_whole_table:
        return WHOLE_TABLE_LABEL
    if raw is None:
        return NULL_LABEL
    if field.type not in TIME_TYPES or is_bucket(field.transform):
        return partition_label(field, bytes(raw) if isinstance(raw, bytearray) else raw)
    if field.transform in ("year", "month"):
        return partition_label(field, datetime(raw // 12, raw % 12 + 1, 1, tzinfo=timezone.utc))
    if raw_type(field) == "bigint" and field.type not in ("int", "long"):
        moment = _UNIX_EPOCH + timedelta(microseconds=raw)
        return partition_label(
            field, moment.replace(tzinfo=None) if field.type == "timestamp" else moment
        )
    return partition_label(field, raw)


@dataclass(frozen=True)
class SparkTables:
    """The tables of one catalog, as one Spark session reads them."""

    spark: SparkSession
    catalog: str
    #: Finds the newest branch of a shadow that is a branch of its target.
    newest_branch: Callable[[str], BranchHead] | None = None
    #: Loads the newest metadata of a table in this process: Spark takes a job for its snapshots.
    stored: Callable[[str], StoredTable] | None = None
    #: Counts rows of a snapshot in ranges by metadata alone; None where rows must be read.
    counted: Callable[[str, int, Sequence[RowRange]], int | None] | None = None
    #: Raises WrongClock where this machine's clock is known to be wrong.
    require_right_clock: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Let `bucket_number` find the catalog's functions."""
        _function_catalog[:] = [self.catalog]

    def quoted_name(self, table: str) -> str:
        """Return the quoted name of `namespace.table` in the catalog; of a branch, its table's."""
        shadow = parse_branch_shadow(table)
        return self.quote(*table_parts(shadow.target if shadow else table))

    def branch_of(self, table: str) -> BranchHead | None:
        """Return the newest branch of a shadow as it is now; None for a table of its own."""
        if self.newest_branch is None or parse_branch_shadow(table) is None:
            return None
        return self.newest_branch(table)

    def quote(self, *parts: str) -> str:
        """Return a quoted name in the catalog, e.g. of a namespace."""
        return ".".join(quote_identifier(part) for part in (self.catalog, *parts))

    def read(
        self, table: str, snapshot_id: int | None, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Read a table at a snapshot, in that snapshot's schema; its head when the id is None.

        Later commits are not visible. Raises NotFound.
        """
        branch = self.branch_of(table) if snapshot_id is None else None
        snapshot_id = branch.head_id if branch else snapshot_id
        with spark_errors(f"reading {table}"):
            reader = self.spark.read.options(**(options or {}))
            if snapshot_id is not None:
                reader = reader.option("versionAsOf", str(snapshot_id))
            frame = reader.table(self.quoted_name(table))
            _ = frame.schema  # Spark Connect resolves the table only on first use.
            return frame

    def schema(self, table: str, snapshot_id: int | None = None) -> StructType:
        """Return the columns of a table at a snapshot, or at its head."""
        return self.read(table, snapshot_id).schema

    def read_scope(self, table: str, snapshot_id: int | None, scope: Scope) -> DataFrame:
        """Read only the rows of the scope's partitions."""
        frame = self.read(table, snapshot_id)
        return self.restrict_to_ranges(table, frame, scope_row_ranges(scope))

    def read_chunk(self, plan: Plan, chunk: Chunk, snapshot_id: int | None) -> DataFrame:
        """Read the rows of a chunk in the shadow.

        Of a chunk by key these are all that its commit added, so that files of the others are not
        opened: whoever counts them sees whether one is of another bucket. A branch is read whole
        and filtered: Iceberg reads added files with the table's newest schema, which others change.
        """
        table, rows = plan.shadow_table, plan.chunk_rows(chunk)
        if chunk.keys is None or snapshot_id is None or parse_branch_shadow(table):
            return self.read_scope(table, snapshot_id, rows)
        before = self._load_stored(table).added_to(snapshot_id)
        if before is None:  # The first one replaced all rows.
            return self.read(table, snapshot_id)
        added = {"start-snapshot-id": str(before), "end-snapshot-id": str(snapshot_id)}
        return self.read(table, None, added)

    def restrict_to_ranges(
        self, table: str, frame: DataFrame, rows: Sequence[RowRange]
    ) -> DataFrame:
        """Filter a frame that was read from the table to rows in any of the ranges.

        Iceberg binds pushed-down filters to the table's current schema. Spark itself filters a
        column that was renamed or dropped since the snapshot.
        """
        with spark_errors(f"reading {table}"):
            current = self.spark.table(self.quoted_name(table)).schema
        named = [*rows, *(part for each in rows[:1] for group in each.only for part in group)]
        is_current = all(
            each.is_everything or _has_path(current, each.path or (each.column,)) for each in named
        )
        return frame.where(range_filter(rows) if is_current else is_in_ranges(rows))

    def empty_frame(self, schema: StructType) -> DataFrame:
        """Return an empty frame, for a table that does not exist or has no snapshot."""
        return self.spark.createDataFrame([], schema)

    def properties(self, table: str) -> dict[str, str]:
        """Return the table's properties and its head, as `current-snapshot-id`."""
        if branch := self.branch_of(table):
            return {
                EPOCH_PROPERTY: str(branch.epoch),
                "current-snapshot-id": str(branch.head_id),
            }
        # A command on the driver: the `refs` table would start a job.
        command = f"SHOW TBLPROPERTIES {self.quoted_name(table)}"
        with spark_errors(f"reading {table}"), write_guard.allow_own_writes():
            return {row["key"]: row["value"] for row in self.spark.sql(command).collect()}

    def stored_properties(self, table: str) -> dict[str, str]:
        """Return the same from the newest metadata, as the catalog has it now."""
        if parse_branch_shadow(table):
            return self.properties(table)
        found = self._load_stored(table)
        head = {"current-snapshot-id": "none" if found.head_id is None else str(found.head_id)}
        order = {"sort-order": "declared"} if found.is_sorted else {}
        return {**found.properties, **head, **order}

    def summaries(self, table: str) -> Mapping[int, Mapping[str, str]]:
        """Return the summaries of all snapshots by their ids, as the catalog has them now."""
        return self._load_stored(table).summaries

    def _load_stored(self, table: str) -> StoredTable:
        if self.stored is None:
            raise ValueError(f"nothing here loads the metadata of {table}")
        return self.stored(table)

    def pin_identity(self, table: str) -> DataFrame:
        """Return an empty frame with a table's columns; call it before the table is inspected.

        A frame that includes this one can only be written while the table keeps its present UUID. A
        write by name loads the table again, so the table could otherwise be fenced between
        inspection and write. Spark refuses a query on a table that it loaded under another UUID,
        even if it does not read it. Iceberg compares the UUID again from its own load on. Spark
        Connect loads tables per query: there the write fails after any commit to the table, with
        TABLE_MOVED_MARKER.
        """
        opened = self.spark.table(self.quoted_name(table))
        if parse_branch_shadow(table):
            return opened.limit(0)  # The branch's name is the fence; others commit to the table.
        if type(self.spark).__module__.startswith("pyspark.sql.connect"):
            return self._fail_if_committed(table, opened)
        return opened.limit(0)

    def _fail_if_committed(self, table: str, opened: DataFrame) -> DataFrame:
        """Return an empty frame that fails, in the query that writes, for a new metadata file.

        Iceberg lists the metadata files when it plans that query, after it has loaded the table to
        be written. This check detects a commit before that load; Iceberg itself detects one after
        it.
        """
        name = self.quoted_name(table)
        log = self.spark.table(f"{name}.`metadata_log_entries`").select("file")
        known = [row["file"] for row in log.collect()]
        failure = F.raise_error(F.lit(f"{TABLE_MOVED_MARKER}: {name}")).cast("boolean")
        added = log.where(
            F.when(quoted_column("file").isin(known), F.lit(col=False)).otherwise(failure)
        )
        null = F.lit(None)
        return added.select(
            *(null.cast(field.dataType).alias(field.name) for field in opened.schema.fields)
        )

    def writer(
        self, frame: DataFrame, table: str, head_id: int | None, properties: Mapping[str, str]
    ) -> Any:
        """Return a writer whose commit fails when the table's rows changed since `head_id`.

        None: the table has no snapshot. The commit's snapshot gets the properties. A shadow that is
        a branch is written on the branch of the epoch that they name, also when that is overtaken.
        Raises WrongClock: Spark gives the snapshot the time of its driver's machine.
        """
        self.require_right_clock()
        name = self.quoted_name(table)
        if shadow := parse_branch_shadow(table):
            branch = shadow.branch(int(properties.get(EPOCH_PROPERTY, 0)))
            name = f"{name}.{quote_identifier(f'branch_{branch}')}"
        writer = frame.writeTo(name)
        writer = writer.option("isolation-level", "serializable")
        if head_id is not None:
            writer = writer.option("validate-from-snapshot-id", str(head_id))
        for key, value in properties.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        return writer
