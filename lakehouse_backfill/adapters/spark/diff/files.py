"""Files that both sides of a diff share, and the partition layout, from Iceberg's metadata."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from lakehouse_backfill.adapters.spark import dataframes
from lakehouse_backfill.adapters.spark.dataframes import (
    quote_identifier,
    quoted_table_name,
    spark_errors,
    typed_literal,
)
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import SharedFiles
from lakehouse_backfill.domain.partitions import NULL_LABEL, Scope, ScopeField, partition_label

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
        """Return the value of a row from which `label` makes its partition's label."""
        from pyspark.sql import functions as F

        if self.field is not None:
            return dataframes.raw_label(self.field)
        return F.expr(_AS_JSON.format("_partition")) if self.parts else self.nothing()

    def nothing(self) -> Column:
        """Return the value of rows that are in no partition, in the type of `raw`."""
        from pyspark.sql import functions as F

        return F.lit(None).cast(dataframes.raw_type(self.field) if self.field else "string")

    def label(self, raw: Any) -> str | None:
        """Return the label of what `raw` gave."""
        if self.field is not None:
            return dataframes.format_label(self.field, raw)
        return self._path(json.loads(raw)) if raw else None

    def of_files(self, files: DataFrame) -> str | None:
        """Return SQL over the files table that `label_of_file` reads; None when it cannot tell."""
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
        """Return the label of what `of_files` selected."""
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
    """Return the layout with a side's own partition fields, by which its files are labelled."""
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
    """Return whether all files are of one layout, and one of them has a partition value.

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
    """Return whether two snapshots of one table hold files of different layouts."""
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
    """Return the label of a partition value as the files table holds it."""
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
        return dataframes.format_label(by, int(value))
    return partition_label(by, value)


def _human(transform: str, value: Any) -> str:
    if value is None:
        return "null"
    if transform in ("year", "month", "hour"):
        return _value_label(ScopeField(column="x", transform=transform, type="timestamp"), value)
    return str(value)


_DATA, _POSITION_DELETES = 0, 1
_READ = ("file_path", "record_count", "file_size_in_bytes", "content")


@dataclass(frozen=True)
class File:
    """A listing of a live data file, its rows, and its partition's label (None: not known).

    `place` tells the partition itself: a file may lack the columns that it stands for.
    """

    path: str
    rows: int
    size_bytes: int
    label: str | None
    place: tuple[int, str] = (0, "")


@dataclass(frozen=True)
class Files:
    """The live files of one side, and by label the delete files that may hide rows of them.

    Under None stand delete files that may hide rows of any partition.
    """

    data: tuple[File, ...] = ()
    hidden: Mapping[str | None, frozenset[str]] = field(default_factory=dict)

    def hiding(self, label: str | None) -> frozenset[str]:
        """Name the delete files that may hide rows of the partition."""
        everywhere = self.hidden.get(None, frozenset())
        return everywhere | self.hidden.get(label, frozenset())


@dataclass(frozen=True)
class Split:
    """What need not be read: `skipped` files are the same on both sides.

    `differing_bytes` is the size of the other files. `unchanged` counts the rows of skipped ones by
    label. `touched` names the partitions in which files differ; None means that this is not known,
    and everything must be read.
    """

    files: SharedFiles
    differing_bytes: int
    skipped: frozenset[str] = frozenset()
    unchanged: dict[str | None, int] = field(default_factory=dict)
    touched: frozenset[str] | None = None


def split(
    old: Files,
    new: Files,
    layout: Layout,
    scope: Scope | None,
    *,
    reads_alike: bool,
    known_equal: frozenset[str] = frozenset(),
) -> Split:
    """Compare the file lists; what delete files hide, or a side reads otherwise, is not skipped.

    A file under other delete files, in another partition or listed more often is not shared:
    readers see other rows of it. Partitions that are known to be equal are skipped, however each
    side reads its files.
    """
    sides = [_in_scope(side.data, scope) for side in (old, new)]
    every = (*sides[0], *sides[1])
    known_equal -= _with_scattered(every)
    changed = {each.path for each in every if old.hiding(each.label) != new.hiding(each.label)}
    common = {p: n for p, n in _listed_alike(*sides).items() if p not in changed}
    shared = sum(common.values())
    counted = SharedFiles(
        shared=shared, old_only=len(sides[0]) - shared, new_only=len(sides[1]) - shared
    )
    weight = sum(
        each.size_bytes
        for each in every
        if each.path not in common and each.label not in known_equal
    )
    is_labelled = all(each.label is not None for each in every)
    unknown = (layout.field is not None or layout.parts) and not is_labelled
    has_unknown_deletes = bool(old.hidden.get(None) or new.hidden.get(None))
    if has_unknown_deletes or unknown or not (reads_alike or known_equal):
        return Split(counted, weight)
    hidden = {each.path for each in every if old.hiding(each.label) or new.hiding(each.label)}
    skipped = {each.path for each in every if each.label in known_equal}
    skipped |= (common.keys() if reads_alike else set()) - hidden
    unchanged: Counter[str | None] = Counter()
    for each in sides[1]:
        if each.path in skipped:
            unchanged[each.label] += each.rows
    differing = {each.label for each in every if each.path not in skipped}
    touched = frozenset(label for label in differing if label is not None)
    # Only labels of a field say which rows to read.
    is_known = not differing or (layout.field is not None and None not in differing)
    return Split(
        counted, weight, frozenset(skipped), dict(unchanged), touched if is_known else None
    )


def _listed_alike(old: list[File], new: list[File]) -> dict[str, int]:
    """Count the listings of files that both sides list as often, in the same partitions."""
    listed: tuple[defaultdict[str, Counter[Any]], ...] = (
        defaultdict(Counter),
        defaultdict(Counter),
    )
    for side, found in zip((old, new), listed, strict=True):
        for each in side:
            found[each.path][each.place] += 1
    return {p: each.total() for p, each in listed[0].items() if listed[1].get(p) == each}


def _with_scattered(files: Collection[File]) -> set[str | None]:
    """Name the partitions of files that are listed in several: rows are skipped by path."""
    labels: defaultdict[str, set[str | None]] = defaultdict(set)
    for each in files:
        labels[each.path].add(each.label)
    return {label for found in labels.values() if len(found) > 1 for label in found}


def files_of(
    spark: SparkSession,
    catalog: str,
    table: str,
    snapshot_id: int | None,
    layout: Layout,
    scope: Scope | None,
) -> Files:
    """List the live files of a snapshot from its metadata.

    Files whose partition is not known are left out when their bounds lie outside the scope.
    """
    if snapshot_id is None:
        return Files()
    with spark_errors(f"listing the files of {table}"):
        name = f"{quoted_table_name(catalog, table)}.`files`"
        frame = spark.read.option("versionAsOf", str(snapshot_id)).table(name)
        part = layout.of_files(frame)
        place = "to_json(partition)" if "partition" in frame.columns else "''"
        chosen = [
            *_READ,
            f"struct(spec_id, {place}) AS place",
            *([f"{part} AS part"] if part else []),
        ]
        if part is None and scope is not None:
            frame = frame.where(_may_hold(frame, scope))
        rows = frame.selectExpr(*chosen).collect()
    data: list[File] = []
    hidden: dict[str | None, frozenset[str]] = {}
    for row in rows:
        label = layout.label_of_file(row["part"]) if part else None
        if row["content"] == _DATA:
            data.append(File(row[0], row[1], row[2], label, tuple(row["place"])))
        else:
            # An equality delete file may apply to all partitions, whatever its own.
            held = label if row["content"] == _POSITION_DELETES else None
            hidden[held] = hidden.get(held, frozenset()) | {row[0]}
    return Files(tuple(data), hidden)


def _may_hold(files: DataFrame, scope: Scope) -> Column:
    """Check by a file's bounds whether it may hold rows of the scope; unknown ones may."""
    from pyspark.sql import functions as F

    known: Any = files.schema["readable_metrics"].dataType
    if scope.field.column not in known.names:
        return F.lit(True)  # noqa: FBT003 (a Spark literal)
    metrics = f"readable_metrics.{quote_identifier(scope.field.column)}"
    lowest, highest = (F.col(f"{metrics}.{bound}_bound") for bound in ("lower", "upper"))
    overlaps = F.col(f"{metrics}.null_value_count") > 0 if NULL_LABEL in scope.partitions else None
    for rows in partitions.scope_row_ranges(scope):
        if rows.is_null:
            continue
        lower = rows.equals if rows.equals is not None else rows.lower
        upper = rows.equals if rows.equals is not None else rows.upper
        if lower is None or upper is None:
            return F.lit(True)  # noqa: FBT003 (a Spark literal)
        below = (
            lowest <= typed_literal(upper)
            if rows.equals is not None
            else lowest < typed_literal(upper)
        )
        one = (highest >= typed_literal(lower)) & below
        overlaps = one if overlaps is None else overlaps | one
    unknown = lowest.isNull() | highest.isNull()
    return unknown if overlaps is None else unknown | overlaps


def schema_id(spark: SparkSession, catalog: str, table: str, snapshot_id: int) -> int | None:
    """Return the id of a snapshot's schema, None when the metadata log does not reach back to it.

    Columns may swap names under equal types; only the id tells that nothing of the kind happened.
    """
    with spark_errors(f"reading the metadata log of {table}"):
        log = spark.table(f"{quoted_table_name(catalog, table)}.`metadata_log_entries`")
        found = log.where(f"latest_snapshot_id = {snapshot_id:d}").select("latest_schema_id")
        ids = {row[0] for row in found.collect()}
    return ids.pop() if len(ids) == 1 else None


def _in_scope(files: Collection[File], scope: Scope | None) -> list[File]:
    """Leave out files of other partitions; those of unknown partition stay."""
    if scope is None:
        return list(files)
    wanted = {*scope.partitions, None}
    return [each for each in files if each.label in wanted]
