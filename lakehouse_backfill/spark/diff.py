"""Old against new on Spark, for changes that do not fit one machine: the Differ port."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.model.checks import Diff, PartitionDiff
from lakehouse_backfill.ports.compute import DiffRequest
from lakehouse_backfill.rules import partitions
from lakehouse_backfill.rules.where import columns_of, render
from lakehouse_backfill.spark import (
    comparing,
    diff_columns,
    diff_files,
    diff_layout,
    diff_samples,
    diff_spreads,
    readers,
    rowhash,
)
from lakehouse_backfill.spark.diff_columns import DiffColumn
from lakehouse_backfill.spark.failures import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_COUNTS = (
    comparing.OLD,
    comparing.NEW,
    comparing.ADDED,
    comparing.REMOVED,
    comparing.CHANGED,
    comparing.UNCHANGED,
)
_DUPLICATES = "lhb_duplicates"


class SparkDiffer:
    """The Differ for large changes; its results are those of the local engine.

    Compared on partition, key and row hash; only changed keys are joined back to whole rows. Files
    that both sides share are not compared, and partitions that only hold such files are not read.
    """

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported, ConfigError."""
        with translated(f"comparing {request.old_table} with {request.new_table}"):
            return _Comparison(self._spark, self._catalog, request).run()


class _Comparison:
    """One diff on its way."""

    def __init__(self, spark: SparkSession, catalog: str, request: DiffRequest) -> None:
        self._spark = spark
        self._catalog = catalog
        self._request = request
        self._schemas = [self._schema(side) for side in ("old", "new")]
        asked = self._asked()
        old, new = self._schemas
        self._columns = diff_columns.columns_of_diff(old, new, request.key, request.ignore, asked)
        sides = [
            (*self._side(side), schema)
            for side, schema in zip(("old", "new"), self._schemas, strict=True)
        ]
        self._layout = diff_layout.find(spark, catalog, sides, request.scope)
        self._field = self._layout.field
        self._split = self._split_files()

    def run(self) -> Diff:
        """Compare what the files do not already say."""
        request = self._request
        old, new = (self._wide(side, self._columns) for side in ("old", "new"))
        wide = diff_samples.Wide(old, new, self._columns, self._field)
        keys = [each.slot for each in wide.key]
        rows = comparing.distinct_rows(
            *(self._narrow(side, keys) for side in (old, new)), key=keys
        ).persist()
        counted = comparing.classified(rows, keys)
        try:
            by_label, duplicates = self._counts(counted)
            changed = diff_samples.changed_counts(wide, counted) if by_label else {}
            examples = diff_samples.samples(wide, rows, counted, request.samples)
        finally:
            rows.unpersist()
        found = self._partitions(by_label)
        return Diff(
            old=self._text("old"),
            new=self._text("new"),
            key=request.key,
            summary=_summary(found),
            partitions=found,
            columns=diff_spreads.column_diffs(old, new, self._columns, changed),
            samples=examples,
            files=self._split.files,
            engine="spark",
            duplicate_keys=duplicates,
        )

    def _counts(self, counted: DataFrame) -> tuple[dict[str | None, dict[str, int]], int]:
        from pyspark.sql import functions as F

        twice = F.when((F.col(comparing.OLD) > 1) | (F.col(comparing.NEW) > 1), F.lit(1))
        found = (
            counted.groupBy(comparing.LABEL)
            .agg(*(F.sum(name).alias(name) for name in _COUNTS), F.count(twice).alias(_DUPLICATES))
            .collect()
        )
        by_label = {self._label(row[comparing.LABEL]): row.asDict() for row in found}
        duplicates = sum(row[_DUPLICATES] for row in found) if self._request.key else 0
        return by_label, duplicates

    def _partitions(
        self, by_label: dict[str | None, dict[str, int]]
    ) -> tuple[PartitionDiff, ...]:
        shared = self._shared_rows()
        known = [label for label in {*by_label, *shared} if label is not None]
        ordered = sorted(known, key=partitions.sort_key(self._field) if self._field else None)
        nothing: list[str | None] = [None] if None in {*by_label, *shared} else []
        return tuple(
            _partition(label, by_label.get(label, {}), shared.get(label, 0))
            for label in [*nothing, *ordered]
            if by_label.get(label) or shared.get(label)
        )

    def _shared_rows(self) -> dict[str | None, int]:
        """Count the rows of skipped files by label; those that meet the condition, if there is one."""
        if self._request.where is None:
            return dict(self._split.unchanged)
        if not self._split.skipped:
            return {}
        from pyspark.sql import functions as F

        frame = self._rows("new", shared=True)
        found = self._aligned("new", frame, self._columns)
        counts: Counter[str | None] = Counter()
        for row in found.groupBy(comparing.LABEL).agg(F.count(F.lit(1)).alias("n")).collect():
            counts[self._label(row[comparing.LABEL])] += row["n"]
        return dict(counts)

    def _wide(self, side: Literal["old", "new"], columns: tuple[DiffColumn, ...]) -> DataFrame:
        """Give a side's rows that must be compared, with their hash over the compared columns."""
        frame = self._aligned(side, self._rows(side, shared=False), columns)
        left_out = [each.slot for each in columns if each.use != "compared"]
        hashed = rowhash.row_hash(frame.schema, (*left_out, comparing.LABEL))
        return frame.withColumn(comparing.HASH, hashed)

    def _aligned(
        self, side: Literal["old", "new"], frame: DataFrame, columns: tuple[DiffColumn, ...]
    ) -> DataFrame:
        from pyspark.sql import functions as F

        label = F.lit(None).cast("string")
        if self._side(side)[1] is not None:
            label = self._layout.raw()
        found = diff_columns.aligned(frame, side, columns, label.alias(comparing.LABEL))
        if self._request.where is None:
            return found
        slots = {each.name: each.slot for each in columns}
        return found.where(self._condition(found, render(self._request.where, slots, "spark")))

    def _condition(self, frame: DataFrame, text: str) -> Any:
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql import functions as F

        where = self._request.where
        try:
            kind = frame.select(F.expr(text).alias("met")).schema["met"].dataType.typeName()
        except (AnalysisException, ParseException) as error:
            raise ConfigError(
                f"the condition {where!r} cannot be evaluated: {str(error).splitlines()[0]}",
                fix="compare columns with values of their own type",
            ) from error
        if kind != "boolean":
            raise ConfigError(
                f"the condition {where!r} gives {kind.upper()}, not true or false",
                fix="compare the value with something, e.g. flights > 3",
            )
        return F.expr(text)

    def _narrow(self, frame: DataFrame, keys: list[str]) -> DataFrame:
        from pyspark.sql import functions as F

        return comparing.narrow(frame, F.col(comparing.LABEL), keys, F.col(comparing.HASH))

    def _rows(self, side: Literal["old", "new"], *, shared: bool) -> DataFrame:
        """Read a side's rows of skipped files, or of all others, pruned to touched partitions."""
        from pyspark.sql import functions as F

        table, snapshot_id = self._side(side)
        if snapshot_id is None:
            return readers.no_rows(self._spark, self._schemas[0 if side == "old" else 1])
        frame = readers.read(self._spark, self._catalog, table, snapshot_id)
        frame = self._pruned(table, frame, shared=shared)
        if not self._split.skipped:
            return frame
        is_skipped = F.col("_file").isin(sorted(self._split.skipped))
        return frame.where(is_skipped if shared else ~is_skipped)

    def _pruned(self, table: str, frame: DataFrame, *, shared: bool) -> DataFrame:
        from pyspark.sql import functions as F

        wanted = self._request.scope.partitions if self._request.scope else None
        touched = self._split.touched
        if not shared and touched is not None and not touched:
            return frame.where(F.lit(False))  # noqa: FBT003 (a Spark literal)
        if self._field is None or (wanted is None and (shared or touched is None)):
            return frame
        if not shared and touched is not None:
            wanted = tuple(label for label in (wanted or sorted(touched)) if label in touched)
        if not wanted:
            return frame.where(F.lit(False))  # noqa: FBT003 (a Spark literal)
        rows = [partitions.bounds(self._field, label) for label in wanted]
        return readers.restricted(self._spark, self._catalog, table, frame, rows)

    def _split_files(self) -> diff_files.Split:
        request = self._request
        lake = (self._spark, self._catalog)
        sides = []
        for table, snapshot_id in (self._side("old"), self._side("new")):
            own = diff_layout.of_side(*lake, table, snapshot_id, self._layout)
            sides.append(diff_files.files_of(*lake, table, snapshot_id, own, request.scope))
        return diff_files.split(
            sides[0], sides[1], self._layout, request.scope, reads_alike=self._reads_alike()
        )

    def _reads_alike(self) -> bool:
        """Tell whether a file has the same rows on both sides; when unsure, no."""
        if self._schemas[0].simpleString() != self._schemas[1].simpleString():
            return False
        old, new = self._side("old"), self._side("new")
        if old[1] is None or new[1] is None or old == new:
            return True
        ids = {
            diff_files.schema_id(self._spark, self._catalog, table, snapshot_id)
            for table, snapshot_id in (old, new)
            if snapshot_id is not None
        }
        return len(ids) == 1 and None not in ids

    def _schema(self, side: str) -> StructType:
        table, snapshot_id = self._side(side)
        if snapshot_id is None:
            from pyspark.sql.types import StructType

            return StructType([])
        return readers.read(self._spark, self._catalog, table, snapshot_id).schema

    def _side(self, side: str) -> tuple[str, int | None]:
        request = self._request
        if side == "old":
            return request.old_table, request.old_snapshot_id
        return request.new_table, request.new_snapshot_id

    def _text(self, side: str) -> str:
        table, snapshot_id = self._side(side)
        return f"{table}@{snapshot_id}" if snapshot_id is not None else f"{table} (no rows)"

    def _label(self, raw: str | None) -> str | None:
        return self._layout.label(raw)

    def _asked(self) -> frozenset[str]:
        """Name the columns that the condition reads, in the tables' own spelling."""
        if self._request.where is None:
            return frozenset()
        asked = {name.lower() for name in columns_of(self._request.where)}
        names = {name for schema in self._schemas for name in schema.names}
        return frozenset(name for name in names if name.lower() in asked)


def _partition(label: str | None, counts: dict[str, int], shared: int) -> PartitionDiff:
    old, new, added, removed, changed, same = (counts.get(name) or 0 for name in _COUNTS)
    return PartitionDiff(
        partition=label,
        old_rows=old + shared,
        new_rows=new + shared,
        added=added,
        removed=removed,
        changed=changed,
        unchanged=same + shared,
    )


def _summary(found: tuple[PartitionDiff, ...]) -> PartitionDiff:
    names = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    return PartitionDiff(partition=None, **sums)
