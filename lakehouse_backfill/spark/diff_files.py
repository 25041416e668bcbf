"""Which files both sides of a diff share, from Iceberg's metadata tables, and what they hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.model.checks import SharedFiles
from lakehouse_backfill.model.scope import NULL_LABEL, Scope, ScopeField
from lakehouse_backfill.rules.partitions import label_of
from lakehouse_backfill.spark.failures import translated
from lakehouse_backfill.spark.names import full_name, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TRANSFORMED = re.compile(r"(years|months|days|hours)\((.+)\)")
_UNITS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
_TYPES = {
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "integer": "int",
    "long": "long",
    "string": "string",
}


@dataclass(frozen=True)
class File:
    """A live data file, its rows, and its partition's label (None: not known)."""

    path: str
    rows: int
    label: str | None


@dataclass(frozen=True)
class Files:
    """The live files of one side; `has_deletes`: rows of some of them are deleted."""

    data: tuple[File, ...] = ()
    has_deletes: bool = False


@dataclass(frozen=True)
class Split:
    """What need not be read: `skipped` files are the same on both sides.

    `unchanged` counts their rows by label. `touched` names the partitions in which files differ;
    None means that this is not known, and everything must be read.
    """

    files: SharedFiles
    skipped: frozenset[str] = frozenset()
    unchanged: dict[str | None, int] = field(default_factory=dict)
    touched: frozenset[str] | None = None


def split(old: Files, new: Files, scope: Scope | None, *, reads_alike: bool) -> Split:
    """Compare the file lists; nothing is skipped when a side has deletes or reads files otherwise."""
    sides = [_in_scope(side.data, scope) for side in (old, new)]
    paths = [Counter(each.path for each in side) for side in sides]
    common = paths[0] & paths[1]
    shared = common.total()
    counted = SharedFiles(
        shared=shared, old_only=len(sides[0]) - shared, new_only=len(sides[1]) - shared
    )
    every = (*sides[0], *sides[1])
    is_labelled = all(each.label is not None for each in every)
    if old.has_deletes or new.has_deletes or not reads_alike or (scope and not is_labelled):
        return Split(counted)
    unchanged: Counter[str | None] = Counter()
    for each in sides[1]:
        if each.path in common:
            unchanged[each.label] += each.rows
    touched = frozenset(each.label or "" for each in every if each.path not in common)
    return Split(counted, frozenset(common), dict(unchanged), touched if is_labelled else None)


def files_of(
    spark: SparkSession, catalog: str, table: str, snapshot_id: int | None, by: ScopeField | None
) -> Files:
    """List the live files of a snapshot from its metadata."""
    if snapshot_id is None:
        return Files()
    with translated(f"listing the files of {table}"):
        name = f"{full_name(catalog, table)}.`files`"
        frame = spark.read.option("versionAsOf", str(snapshot_id)).table(name)
        part = _partition_column(frame.schema, by)
        chosen = ["content", "file_path", "record_count", *([f"{part} AS part"] if part else [])]
        rows = frame.selectExpr(*chosen).collect()
    data = tuple(
        File(row["file_path"], row["record_count"], _label(by, row["part"]) if by and part else None)
        for row in rows
        if row["content"] == 0
    )
    return Files(data, any(row["content"] != 0 for row in rows))


def layout(spark: SparkSession, catalog: str, table: str, schema: StructType) -> ScopeField | None:
    """Give the one partition field of a table, None when it has another number of them."""
    with translated(f"reading the partitioning of {table}"):
        shown = spark.sql(f"DESCRIBE TABLE {full_name(catalog, table)}").collect()
    parts = _parts([(row["col_name"], row["data_type"]) for row in shown])
    if len(parts) != 1:
        return None
    found = _TRANSFORMED.fullmatch(parts[0])
    name = found.group(2) if found else parts[0]
    kinds = {each.name: each.dataType.typeName() for each in schema.fields}
    kind = _TYPES.get(kinds.get(name, ""))
    if kind is None:
        return None
    transform = _UNITS[found.group(1)] if found else "identity"
    return ScopeField.model_validate({"column": name, "transform": transform, "type": kind})


def _parts(shown: list[tuple[str, str]]) -> list[str]:
    """Read the partitioning from what DESCRIBE shows: transforms, or plain columns."""
    names = [name for name, _ in shown]
    if "# Partitioning" in names:
        start = names.index("# Partitioning") + 1
        return [kind.replace("`", "") for name, kind in shown[start:] if name.startswith("Part ")]
    if "# Partition Information" in names:
        start = names.index("# Partition Information") + 1
        rest = [name for name in names[start:] if name and not name.startswith("# col_name")]
        return [name for name in rest if not name.startswith("#")]
    return []


def _partition_column(schema: StructType, by: ScopeField | None) -> str | None:
    """Name the partition value of a file, when its spec has the field under its usual name."""
    if by is None or "partition" not in schema.names:
        return None
    usual = by.column if by.transform == "identity" else f"{by.column}_{by.transform}"
    inner: Any = schema["partition"].dataType
    if usual not in inner.names:
        return None
    value = f"partition.{quoted(usual)}"
    if inner[usual].dataType.typeName() in ("timestamp", "timestamp_ntz"):
        return f"unix_micros(CAST({value} AS timestamp))"
    return value


def _label(by: ScopeField, value: Any) -> str:
    """Give the label of a partition value as the files table holds it."""
    if value is None:
        return NULL_LABEL
    if by.transform in ("year", "month"):
        months = int(value) * (12 if by.transform == "year" else 1)
        start = datetime(1970 + months // 12, months % 12 + 1, 1, tzinfo=timezone.utc)
        return label_of(by, start)
    if by.transform == "hour":
        return label_of(by, datetime.fromtimestamp(int(value) * 3600, timezone.utc))
    if isinstance(value, date):
        start = datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
        return label_of(by, start)
    if by.type in ("timestamp", "timestamptz"):
        moment = datetime.fromtimestamp(int(value) / 1_000_000, timezone.utc)
        return label_of(by, moment.replace(tzinfo=None) if by.type == "timestamp" else moment)
    return label_of(by, value)


def _in_scope(files: Collection[File], scope: Scope | None) -> list[File]:
    """Leave out files of other partitions; those of unknown partition stay."""
    if scope is None:
        return list(files)
    wanted = {*scope.partitions, None}
    return [each for each in files if each.label in wanted]
