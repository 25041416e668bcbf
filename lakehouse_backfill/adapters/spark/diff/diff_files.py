"""Which files both sides of a diff share, from Iceberg's metadata tables, and what they hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.diff.diff_layout import Layout
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.filters import typed_literal
from lakehouse_backfill.adapters.spark.names import quote_identifier, quoted_table_name
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import SharedFiles
from lakehouse_backfill.domain.scope import NULL_LABEL, Scope

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
    """Tell by a file's bounds whether it may hold rows of the scope; unknown bounds may."""
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
    """Give the id of a snapshot's schema, None when the metadata log does not reach back to it.

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
