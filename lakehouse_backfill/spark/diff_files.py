"""Which files both sides of a diff share, from Iceberg's metadata tables, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.model.checks import SharedFiles
from lakehouse_backfill.model.scope import NULL_LABEL, Scope
from lakehouse_backfill.rules import partitions
from lakehouse_backfill.spark.diff_layout import Layout
from lakehouse_backfill.spark.failures import translated
from lakehouse_backfill.spark.filters import literal
from lakehouse_backfill.spark.names import full_name, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_READ = ("file_path", "record_count", "file_size_in_bytes", "content")


@dataclass(frozen=True)
class File:
    """A live data file, its rows, and its partition's label (None: not known)."""

    path: str
    rows: int
    size_bytes: int
    label: str | None


@dataclass(frozen=True)
class Files:
    """The live files of one side; `has_deletes`: rows of some of them are deleted."""

    data: tuple[File, ...] = ()
    has_deletes: bool = False


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
    old: Files, new: Files, layout: Layout, scope: Scope | None, *, reads_alike: bool
) -> Split:
    """Compare the file lists; nothing is skipped where a side has deletes or reads otherwise."""
    sides = [_in_scope(side.data, scope) for side in (old, new)]
    paths = [Counter(each.path for each in side) for side in sides]
    common = paths[0] & paths[1]
    shared = common.total()
    counted = SharedFiles(
        shared=shared, old_only=len(sides[0]) - shared, new_only=len(sides[1]) - shared
    )
    every = (*sides[0], *sides[1])
    weight = sum(each.size_bytes for each in every if each.path not in common)
    is_labelled = all(each.label is not None for each in every)
    unknown = (layout.field is not None or layout.parts) and not is_labelled
    if old.has_deletes or new.has_deletes or not reads_alike or unknown:
        return Split(counted, weight)
    unchanged: Counter[str | None] = Counter()
    for each in sides[1]:
        if each.path in common:
            unchanged[each.label] += each.rows
    differing = {each.label for each in every if each.path not in common}
    touched = frozenset(label for label in differing if label is not None)
    # Only labels of a field say which rows to read.
    is_known = not differing or (layout.field is not None and None not in differing)
    return Split(counted, weight, frozenset(common), dict(unchanged), touched if is_known else None)


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
    with translated(f"listing the files of {table}"):
        name = f"{full_name(catalog, table)}.`files`"
        frame = spark.read.option("versionAsOf", str(snapshot_id)).table(name)
        part = layout.of_files(frame)
        chosen = [*_READ, *([f"{part} AS part"] if part else [])]
        if part is None and scope is not None:
            frame = frame.where(_may_hold(frame, scope))
        rows = frame.selectExpr(*chosen).collect()
    data = tuple(
        File(row[0], row[1], row[2], layout.label_of_file(row["part"]) if part else None)
        for row in rows
        if row["content"] == 0
    )
    return Files(data, any(row["content"] != 0 for row in rows))


def _may_hold(files: DataFrame, scope: Scope) -> Column:
    """Tell by a file's bounds whether it may hold rows of the scope; unknown bounds may."""
    from pyspark.sql import functions as F

    known: Any = files.schema["readable_metrics"].dataType
    if scope.field.column not in known.names:
        return F.lit(True)  # noqa: FBT003 (a Spark literal)
    metrics = f"readable_metrics.{quoted(scope.field.column)}"
    lowest, highest = (F.col(f"{metrics}.{bound}_bound") for bound in ("lower", "upper"))
    overlaps = F.col(f"{metrics}.null_value_count") > 0 if NULL_LABEL in scope.partitions else None
    for rows in partitions.ranges(scope):
        if rows.is_null:
            continue
        lower = rows.equals if rows.equals is not None else rows.lower
        upper = rows.equals if rows.equals is not None else rows.upper
        if lower is None or upper is None:
            return F.lit(True)  # noqa: FBT003 (a Spark literal)
        below = lowest <= literal(upper) if rows.equals is not None else lowest < literal(upper)
        one = (highest >= literal(lower)) & below
        overlaps = one if overlaps is None else overlaps | one
    unknown = lowest.isNull() | highest.isNull()
    return unknown if overlaps is None else unknown | overlaps


def schema_id(spark: SparkSession, catalog: str, table: str, snapshot_id: int) -> int | None:
    """Give the id of a snapshot's schema, None when the metadata log does not reach back to it.

    Columns may swap names under equal types; only the id tells that nothing of the kind happened.
    """
    with translated(f"reading the metadata log of {table}"):
        log = spark.table(f"{full_name(catalog, table)}.`metadata_log_entries`")
        found = log.where(f"latest_snapshot_id = {snapshot_id:d}").select("latest_schema_id")
        ids = {row[0] for row in found.collect()}
    return ids.pop() if len(ids) == 1 else None


def _in_scope(files: Collection[File], scope: Scope | None) -> list[File]:
    """Leave out files of other partitions; those of unknown partition stay."""
    if scope is None:
        return list(files)
    wanted = {*scope.partitions, None}
    return [each for each in files if each.label in wanted]
