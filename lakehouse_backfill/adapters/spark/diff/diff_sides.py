"""The two sides of a diff: what of them has to be read, under the same names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakehouse_backfill.adapters.spark import evolving, readers, rowhash
from lakehouse_backfill.adapters.spark.diff import comparing, diff_columns, diff_files, diff_layout
from lakehouse_backfill.core.comparison.where import condition_columns, render_condition
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.rules_schema_change import added_column_names
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.ports.diffing import DiffRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

SideName = Literal["old", "new"]


@dataclass(frozen=True)
class _Side:
    """One snapshot of one table; None: it has no rows, and no columns of its own."""

    name: SideName
    table: str
    snapshot_id: int | None
    schema: StructType


class DiffSides:
    """Reads both sides of one request, without what their shared files already say."""

    def __init__(self, spark: SparkSession, catalog: str, request: DiffRequest) -> None:
        self._spark = spark
        self._catalog = catalog
        self._request = request
        self._old = self._side("old", request.old_table, request.old_snapshot_id)
        self._new = self._side("new", request.new_table, request.new_snapshot_id)
        self.columns = diff_columns.columns_of_diff(
            self._old.schema, self._new.schema, request.key,
            (*request.ignore, *added_column_names(request.change)), self._asked() | set(added_column_names(request.change)),
            request.tolerances,
        )  # fmt: skip
        both = [(side.table, side.snapshot_id, side.schema) for side in (self._old, self._new)]
        self.layout = diff_layout.find(spark, catalog, both, request.scope)
        self.split = self._split_files()

    def text(self, name: SideName) -> str:
        """Give `namespace.table@snapshot`, or `namespace.table (no rows)`."""
        side = self._named(name)
        known = side.snapshot_id is not None
        return f"{side.table}@{side.snapshot_id}" if known else f"{side.table} (no rows)"

    def wide(self, name: SideName) -> DataFrame:
        """Give a side's rows that must be compared, with their hash over the compared columns."""
        side = self._named(name)
        frame = self._aligned(side, self._rows(side, shared=False))
        left_out = [each.slot for each in self.columns if each.use != "compared"]
        hashed = rowhash.row_hash_column(frame.schema, (*left_out, comparing.LABEL))
        return frame.withColumn(comparing.HASH, hashed)

    def shared_rows(self) -> dict[str | None, int]:
        """Count the rows of skipped files by label; with a condition, those that meet it."""
        if self._request.where is None:
            return dict(self.split.unchanged)
        if not self.split.skipped:
            return {}
        from pyspark.sql import functions as F

        found = self._aligned(self._new, self._rows(self._new, shared=True))
        counts: Counter[str | None] = Counter()
        for row in found.groupBy(comparing.LABEL).agg(F.count(F.lit(1)).alias("n")).collect():
            counts[self.layout.label(row[comparing.LABEL])] += row["n"]
        return dict(counts)

    def _named(self, name: SideName) -> _Side:
        return self._old if name == "old" else self._new

    def _side(self, name: SideName, table: str, snapshot_id: int | None) -> _Side:
        from pyspark.sql.types import StructType

        if snapshot_id is None:
            return _Side(name, table, None, StructType([]))
        frame = readers.read_table(self._spark, self._catalog, table, snapshot_id)
        return _Side(name, table, snapshot_id, self._changed(name, frame).schema)

    def _changed(self, name: SideName, frame: DataFrame) -> DataFrame:
        return evolving.apply_schema_change(frame, self._request.change) if name == "old" else frame

    def _aligned(self, side: _Side, frame: DataFrame) -> DataFrame:
        """Give rows as label and short names, cut to the request's condition."""
        label = self.layout.nothing() if side.snapshot_id is None else self.layout.raw()
        named = label.alias(comparing.LABEL)
        found = diff_columns.aligned(frame, side.name, self.columns, named)
        if self._request.where is None:
            return found
        slots = {each.name: each.slot for each in self.columns}
        text = render_condition(self._request.where, slots, "spark")
        return found.where(_condition(found, text, self._request.where))

    def _rows(self, side: _Side, *, shared: bool) -> DataFrame:
        """Read a side's rows of skipped files, or of all others, pruned to touched partitions."""
        from pyspark.sql import functions as F

        if side.snapshot_id is None:
            return readers.empty_frame(self._spark, side.schema)
        frame = readers.read_table(self._spark, self._catalog, side.table, side.snapshot_id)
        frame = self._pruned(side.table, frame, shared=shared)
        if self.split.skipped:
            is_skipped = F.col("_file").isin(sorted(self.split.skipped))
            frame = frame.where(is_skipped if shared else ~is_skipped)
        return self._changed(side.name, frame)

    def _pruned(self, table: str, frame: DataFrame, *, shared: bool) -> DataFrame:
        from pyspark.sql import functions as F

        wanted = self._request.scope.partitions if self._request.scope else None
        touched = None if shared else self.split.touched
        if touched is not None:
            wanted = tuple(label for label in (wanted or sorted(touched)) if label in touched)
        if wanted is not None and not wanted:
            return frame.where(F.lit(False))  # noqa: FBT003 (a Spark literal)
        if wanted is None or self.layout.field is None:
            return frame
        rows = partitions.scope_row_ranges(Scope(field=self.layout.field, partitions=wanted))
        return readers.restrict_to_ranges(self._spark, self._catalog, table, frame, rows)

    def _split_files(self) -> diff_files.Split:
        lake = (self._spark, self._catalog)
        scope = self._request.scope
        listed = []
        for side in (self._old, self._new):
            own = diff_layout.of_side(*lake, side.table, side.snapshot_id, self.layout)
            listed.append(diff_files.files_of(*lake, side.table, side.snapshot_id, own, scope))
        alike = self._reads_alike()
        return diff_files.split(
            listed[0], listed[1], self.layout, scope,
            reads_alike=alike, known_equal=self._request.known_equal,
        )  # fmt: skip

    def _reads_alike(self) -> bool:
        """Tell whether a file has the same rows on both sides; when unsure, no."""
        old, new = self._old, self._new
        if old.schema.simpleString() != new.schema.simpleString():
            return False
        if (old.table, old.snapshot_id) == (new.table, new.snapshot_id):
            return True
        ids = {
            diff_files.schema_id(self._spark, self._catalog, side.table, side.snapshot_id)
            for side in (old, new)
            if side.snapshot_id is not None
        }
        return len(ids) == 1 and None not in ids

    def _asked(self) -> frozenset[str]:
        """Name the columns that the condition reads, in the tables' own spelling."""
        if self._request.where is None:
            return frozenset()
        asked = {name.lower() for name in condition_columns(self._request.where)}
        names = {*self._old.schema.names, *self._new.schema.names}
        return frozenset(name for name in names if name.lower() in asked)


def _condition(frame: DataFrame, text: str, where: str) -> Column:
    """Give the rendered condition after proving that it is a boolean; raises ConfigError."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

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
