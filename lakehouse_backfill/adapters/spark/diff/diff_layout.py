"""How rows and files of a diff are assigned to partitions, read from Iceberg's metadata tables."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from lakehouse_backfill.adapters.spark import labels
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quote_identifier, quoted_table_name
from lakehouse_backfill.domain.partitions import partition_label
from lakehouse_backfill.domain.scope import NULL_LABEL, Scope, ScopeField

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CALL = re.compile(r"(\w+)\((?:\d+, )?(.+)\)")
_UNITS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
_TYPES = {
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "integer": "int",
    "long": "long",
    "string": "string",
}
#: Nulls must stand in the text too, or two partitions would have one label.
_AS_JSON = "to_json({}, map('ignoreNullFields', 'false'))"


@dataclass(frozen=True)
class Part:
    """One partition field of a table: the transform (as `labels` names it) of a column."""

    column: str
    transform: str


@dataclass(frozen=True)
class Layout:
    """Rows are labelled by `field`; else by the path of their partition; else not at all."""

    field: ScopeField | None = None
    parts: tuple[Part, ...] = ()

    def raw(self) -> Column:
        """Give the value of a row from which `label` makes its partition's label."""
        from pyspark.sql import functions as F

        if self.field is not None:
            return labels.raw_label(self.field)
        return F.expr(_AS_JSON.format("_partition")) if self.parts else self.nothing()

    def nothing(self) -> Column:
        """Give the value of rows that are in no partition, in the type of `raw`."""
        from pyspark.sql import functions as F

        return F.lit(None).cast(labels.raw_type(self.field) if self.field else "string")

    def label(self, raw: Any) -> str | None:
        """Give the label of what `raw` gave."""
        if self.field is not None:
            return labels.format_label(self.field, raw)
        return self._path(json.loads(raw)) if raw else None

    def of_files(self, files: DataFrame) -> str | None:
        """Give SQL over the files table that `label_of_file` reads; None when it cannot tell."""
        if self.field is None:
            return _AS_JSON.format("partition") if self.parts else None
        kind: Any = files.schema["partition"].dataType if self.parts else None
        wanted = Part(self.field.column, self.field.transform)
        if kind is None or len(kind.fields) != len(self.parts) or wanted not in self.parts:
            return None
        part = kind.fields[self.parts.index(wanted)]
        value = f"partition.{quote_identifier(part.name)}"
        if part.dataType.typeName() in ("timestamp", "timestamp_ntz"):
            return f"unix_micros(CAST({value} AS timestamp))"
        return value

    def label_of_file(self, value: Any) -> str | None:
        """Give the label of what `of_files` selected."""
        if self.field is not None:
            return _value_label(self.field, value)
        return self._path(json.loads(value)) if value else None

    def _path(self, values: dict[str, Any]) -> str:
        """Write a partition as Iceberg names its folder."""
        texts = [
            _human(part.transform, value)
            for part, value in zip(self.parts, values.values(), strict=True)
        ]
        named = zip(values, texts, strict=True)
        return "/".join(f"{quote_plus(name)}={quote_plus(text)}" for name, text in named)


def find(
    spark: SparkSession,
    catalog: str,
    sides: list[tuple[str, int | None, StructType]],
    scope: Scope | None,
) -> Layout:
    """Choose how rows are labelled: by the scope's field, else by the one layout of both sides."""
    real = [(table, snapshot, schema) for table, snapshot, schema in sides if snapshot is not None]
    found = {
        (_parts(spark, catalog, table, snapshot_id), tuple(_kinds(schema).items()))
        for table, snapshot_id, schema in real
    }
    parts = {each for each, _ in found}
    # Sides that are laid out differently have no partitions in common, unless a scope names one.
    one = parts.pop() if len(parts) == 1 else ()
    if one and scope is None and _was_laid_out_anew(spark, catalog, real):
        one = ()
    if scope is not None:
        return Layout(scope.field, one)
    if len(one) != 1:
        return Layout(None, one)
    kinds = dict(next(kinds for _, kinds in found))
    kind = _TYPES.get(kinds.get(one[0].column, ""))
    if kind is None or one[0].transform not in ("identity", *_UNITS.values()):
        return Layout(None, one)
    field = {"column": one[0].column, "transform": one[0].transform, "type": kind}
    return Layout(ScopeField.model_validate(field), one)


def of_side(
    spark: SparkSession, catalog: str, table: str, snapshot_id: int | None, layout: Layout
) -> Layout:
    """Give the layout with a side's own partition fields, by which its files are labelled."""
    if layout.field is None or snapshot_id is None:
        return layout
    parts = _parts(spark, catalog, table, snapshot_id)
    if parts and not _hold_values(spark, catalog, table, snapshot_id):
        parts = ()
    return replace(layout, parts=parts)


def _kinds(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.typeName() for field in schema.fields}


def _parts(
    spark: SparkSession, catalog: str, table: str, snapshot_id: int | None
) -> tuple[Part, ...]:
    """Read the partition fields; none when the snapshot's files have more than one layout."""
    name = quoted_table_name(catalog, table)
    with spark_errors(f"reading the partitioning of {table}"):
        shown = spark.sql(f"DESCRIBE TABLE {name}").collect()
        files = spark.read.option("versionAsOf", str(snapshot_id)).table(f"{name}.`files`")
        parts = _described([(row["col_name"], row["data_type"]) for row in shown])
        kind: Any = files.schema["partition"].dataType if "partition" in files.columns else None
        width = len(kind.fields) if kind is not None else 0
    return parts if width == len(parts) else ()


def _hold_values(spark: SparkSession, catalog: str, table: str, snapshot_id: int) -> bool:
    """Tell whether all files are of one layout, and one of them has a partition value.

    The files table shows the fields of all layouts that the table ever had. Files from before the
    first of them have no value in any: their rows have to say where they belong.
    """
    name = quoted_table_name(catalog, table)
    with spark_errors(f"reading the partitioning of {table}"):
        files = spark.read.option("versionAsOf", str(snapshot_id)).table(f"{name}.`files`")
        kind: Any = files.schema["partition"].dataType
        some = " OR ".join(f"partition.{quote_identifier(part.name)} IS NOT NULL" for part in kind)
        seen = f"count(DISTINCT spec_id) <= 1 AND (count(*) = 0 OR count_if({some}) > 0)"
        return bool(files.selectExpr(seen).collect()[0][0])


def _was_laid_out_anew(
    spark: SparkSession, catalog: str, sides: list[tuple[str, int, StructType]]
) -> bool:
    """Tell whether two snapshots of one table hold files of different layouts."""
    if len({table for table, _, _ in sides}) != 1:
        return False
    name = quoted_table_name(catalog, sides[0][0])
    with spark_errors(f"reading the partitioning of {sides[0][0]}"):
        specs = {
            row["spec_id"]
            for _, snapshot_id, _ in sides
            for row in spark.read.option("versionAsOf", str(snapshot_id))
            .table(f"{name}.`files`")
            .select("spec_id")
            .distinct()
            .collect()
        }
    return len(specs) > 1


def _described(shown: list[tuple[str, str]]) -> tuple[Part, ...]:
    """Read the partition fields from what DESCRIBE shows: transforms, or plain columns."""
    names = [name for name, _ in shown]
    if "# Partitioning" in names:
        rest = shown[names.index("# Partitioning") + 1 :]
        return tuple(_part(kind) for name, kind in rest if name.startswith("Part "))
    if "# Partition Information" in names:
        rest = shown[names.index("# Partition Information") + 1 :]
        plain = [name for name, _ in rest]
        stop = next((at for at, name in enumerate(plain) if not name or name == "# Metadata"), None)
        return tuple(
            Part(name.replace("`", ""), "identity")
            for name in plain[:stop]
            if not name.startswith("#")
        )
    return ()


def _part(text: str) -> Part:
    found = _CALL.fullmatch(text)
    if found is None:
        return Part(text.replace("`", ""), "identity")
    transform = _UNITS.get(found.group(1), found.group(1))
    return Part(found.group(2).replace("`", ""), transform)


def _value_label(by: ScopeField, value: Any) -> str:
    """Give the label of a partition value as the files table holds it."""
    if value is None:
        return NULL_LABEL
    if by.transform in ("year", "month"):
        months = int(value) * (12 if by.transform == "year" else 1)
        start = datetime(1970 + months // 12, months % 12 + 1, 1, tzinfo=timezone.utc)
        return partition_label(by, start)
    if by.transform == "hour":
        return partition_label(by, datetime.fromtimestamp(int(value) * 3600, timezone.utc))
    if isinstance(value, date):
        return partition_label(
            by, datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
        )
    if by.type in ("timestamp", "timestamptz"):
        return labels.format_label(by, int(value))
    return partition_label(by, value)


def _human(transform: str, value: Any) -> str:
    if value is None:
        return "null"
    if transform in ("year", "month", "hour"):
        return _value_label(ScopeField(column="x", transform=transform, type="timestamp"), value)
    return str(value)
