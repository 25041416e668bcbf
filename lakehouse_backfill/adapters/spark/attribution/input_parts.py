"""What came to an input between two pins: late rows, changed rows, deleted rows.

Rows are compared as multisets, so an input needs no key. With one, a row that went and a row of
the same key that came are one change; without, only commits that append, and inputs from which
nothing went, tell late rows from changed ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.spark import rowhash
from lakehouse_backfill.adapters.spark.failures import spark_errors
from lakehouse_backfill.adapters.spark.names import quoted_column, quoted_table_name
from lakehouse_backfill.domain.attribution import Cause, InputChange
from lakehouse_backfill.domain.plan import SourcePin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Which part of the input a row is in; the parts of a replaced row's two versions differ.
PART_COLUMN = "lhb_part"
SHARED_PART, LATE_PART, DELETED_PART, CHANGED_OLD_PART, CHANGED_NEW_PART = (
    "both",
    "late",
    "deleted",
    "was",
    "is",
)
_ROW_HASH, _OCCURRENCE, _OLD_ROW, _NEW_ROW, _MATCHED = (
    "lhb_hash",
    "lhb_times",
    "lhb_o",
    "lhb_n",
    "lhb_replaced",
)
_REMOVED, _ADDED = "gone", "came"
#: The parts that a factor swaps: those that go, and those that come.
PARTS_BY_CAUSE: dict[Cause, tuple[str | None, str | None]] = {
    "late_input": (None, LATE_PART),
    "deletion": (DELETED_PART, None),
    "upstream": (CHANGED_OLD_PART, CHANGED_NEW_PART),
}


@dataclass(frozen=True)
class InputParts:
    """All rows of both pins, each with its part; persisted by who asked for it."""

    rows: DataFrame
    counts: dict[str, int]
    told_by: str

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Name the factors that hold a row."""
        return tuple(
            cause
            for cause, parts in PARTS_BY_CAUSE.items()
            if any(self.counts.get(part, 0) for part in parts if part)
        )

    def state(self, swapped: Collection[Cause]) -> DataFrame:
        """Give the input with only some factors as they are at the new pin."""
        wanted = {SHARED_PART}
        for cause, (goes, comes) in PARTS_BY_CAUSE.items():
            part = comes if cause in swapped else goes
            wanted |= {part} if part else set()
        return self.rows.where(quoted_column(PART_COLUMN).isin(sorted(wanted))).drop(PART_COLUMN)

    def change(self, old: SourcePin, new: SourcePin) -> InputChange:
        """Say in numbers what came."""
        return InputChange(
            input=new.name,
            table=new.table,
            role=new.role,
            old_snapshot_id=old.snapshot_id,
            new_snapshot_id=new.snapshot_id,
            late_rows=self.counts.get(LATE_PART, 0),
            upstream_rows=max(
                self.counts.get(CHANGED_OLD_PART, 0), self.counts.get(CHANGED_NEW_PART, 0)
            ),
            deleted_rows=self.counts.get(DELETED_PART, 0),
            told_by=self.told_by,
        )


def has_same_columns(old: DataFrame, new: DataFrame) -> bool:
    """Tell whether rows of the two pins can be compared as they are."""
    return rowhash.shape_digest(old.schema) == rowhash.shape_digest(new.schema)


def split_input(
    spark: SparkSession,
    catalog: str,
    pins: tuple[SourcePin, SourcePin],
    frames: tuple[DataFrame, DataFrame],
    key: Sequence[str],
) -> InputParts:
    """Tell the parts of an input that has the same columns at both pins; the rows stay persisted.

    Raises Unsupported for columns that have no row hash.
    """
    with spark_errors(f"comparing {pins[0].table} at two pins"):
        sided = _pair_rows(*frames)
        moved = _count_parts(sided)
        if not (moved.get(_REMOVED) or moved.get(_ADDED)):
            return InputParts(sided, {}, "the rows are equal")
        if key and set(key) <= set(frames[0].columns):
            told, rows = f"the key {', '.join(key)}", _split_by_key(sided, key)
        elif not moved.get(_REMOVED):
            told, rows = (
                "nothing went, so all that came is late",
                _relabel_parts(sided, LATE_PART, DELETED_PART),
            )
        elif not moved.get(_ADDED):
            told, rows = (
                "nothing came, so all that went is deleted",
                _relabel_parts(sided, LATE_PART, DELETED_PART),
            )
        else:
            told, rows = _split_by_appends(spark, catalog, pins, sided)
        rows = rows.persist()
        counts = _count_parts(rows)
        sided.unpersist()
        return InputParts(rows, counts, told)


def _pair_rows(old: DataFrame, new: DataFrame) -> DataFrame:
    """Pair equal rows, each as often as both sides hold it; the others went or came."""
    from pyspark.sql import functions as F

    names = new.columns
    sides = [
        _with_occurrence(frame.select(*(quoted_column(name) for name in names))).select(
            _ROW_HASH, _OCCURRENCE, F.struct(*(quoted_column(name) for name in names)).alias(side)
        )
        for frame, side in ((old, _OLD_ROW), (new, _NEW_ROW))
    ]
    part = (
        F.when(quoted_column(_NEW_ROW).isNull(), F.lit(_REMOVED))
        .when(quoted_column(_OLD_ROW).isNull(), F.lit(_ADDED))
        .otherwise(F.lit(SHARED_PART))
    )
    joined = sides[0].join(sides[1], [_ROW_HASH, _OCCURRENCE], "full_outer")
    row = F.coalesce(quoted_column(_NEW_ROW), quoted_column(_OLD_ROW))
    values = [row.getField(name).alias(name) for name in names]
    return joined.select(*values, part.alias(PART_COLUMN)).persist()


def _with_occurrence(frame: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    hashed = frame.withColumn(_ROW_HASH, rowhash.row_hash_column(frame.schema))
    by = Window.partitionBy(_ROW_HASH).orderBy(_ROW_HASH)
    return hashed.withColumn(_OCCURRENCE, F.row_number().over(by))


def _count_parts(rows: DataFrame) -> dict[str, int]:
    return {
        row[PART_COLUMN]: int(row["count"]) for row in rows.groupBy(PART_COLUMN).count().collect()
    }


def _relabel_parts(rows: DataFrame, came: str, gone: str) -> DataFrame:
    from pyspark.sql import functions as F

    part = quoted_column(PART_COLUMN)
    named = F.when(part == _ADDED, F.lit(came)).when(part == _REMOVED, F.lit(gone)).otherwise(part)
    return rows.withColumn(PART_COLUMN, named)


def _split_by_key(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """A key that both went and came was changed; the rest is late or deleted."""
    from pyspark.sql import functions as F

    names = [f"lhb_k{place}" for place in range(len(key))]
    went, came = (
        rows.where(quoted_column(PART_COLUMN) == part).select(
            *(quoted_column(name).alias(short) for name, short in zip(key, names, strict=True))
        )
        for part in (_REMOVED, _ADDED)
    )
    replaced = went.intersect(came).withColumn(_MATCHED, F.lit(1))
    condition: Column = F.lit(True)  # noqa: FBT003 (a Spark literal)
    for name, short in zip(key, names, strict=True):
        condition = condition & quoted_column(name).eqNullSafe(quoted_column(short))
    joined = rows.join(replaced, condition, "left").drop(*names)
    return _label_changes(joined, quoted_column(_MATCHED).isNotNull()).drop(_MATCHED)


def _label_changes(rows: DataFrame, is_change: Column) -> DataFrame:
    from pyspark.sql import functions as F

    part = quoted_column(PART_COLUMN)
    named = (
        F.when(
            part == _ADDED, F.when(is_change, F.lit(CHANGED_NEW_PART)).otherwise(F.lit(LATE_PART))
        )
        .when(
            part == _REMOVED,
            F.when(is_change, F.lit(CHANGED_OLD_PART)).otherwise(F.lit(DELETED_PART)),
        )
        .otherwise(part)
    )
    return rows.withColumn(PART_COLUMN, named)


def _split_by_appends(
    spark: SparkSession, catalog: str, pins: tuple[SourcePin, SourcePin], rows: DataFrame
) -> tuple[str, DataFrame]:
    """Rows that commits of kind append brought are late; the others that came are changes.

    What went is deleted when nothing came otherwise; else it cannot be told from changes.
    """
    from pyspark.sql import functions as F

    appended = _appended_hashes(spark, catalog, pins, rows)
    if appended is None:
        told = "no key and no history of appends: all of it counts as changed upstream"
        return told, _relabel_parts(rows, CHANGED_NEW_PART, CHANGED_OLD_PART)
    names = [name for name in rows.columns if name != PART_COLUMN]
    hashed = rows.withColumn(
        _ROW_HASH, rowhash.row_hash_column(rows.select(*map(quoted_column, names)).schema)
    )
    marked = hashed.join(appended.withColumn(_MATCHED, F.lit(1)), _ROW_HASH, "left").drop(_ROW_HASH)
    is_late = (quoted_column(PART_COLUMN) == _ADDED) & quoted_column(_MATCHED).isNotNull()
    others = marked.where((quoted_column(PART_COLUMN) == _ADDED) & ~is_late).limit(1).count()
    gone = F.lit(CHANGED_OLD_PART if others else DELETED_PART)
    part = quoted_column(PART_COLUMN)
    named = (
        F.when(is_late, F.lit(LATE_PART))
        .when(part == _ADDED, F.lit(CHANGED_NEW_PART))
        .when(part == _REMOVED, gone)
        .otherwise(part)
    )
    told = "no key: late is what commits of kind append brought"
    return told, marked.withColumn(PART_COLUMN, named).drop(_MATCHED)


def _appended_hashes(
    spark: SparkSession, catalog: str, pins: tuple[SourcePin, SourcePin], rows: DataFrame
) -> DataFrame | None:
    """Give the hashes of the rows that appends between the pins brought; None: nobody can say."""
    from pyspark.errors import IllegalArgumentException

    names = [name for name in rows.columns if name != PART_COLUMN]
    try:
        read = (
            spark.read.option("start-snapshot-id", str(pins[0].snapshot_id))
            .option("end-snapshot-id", str(pins[1].snapshot_id))
            .table(quoted_table_name(catalog, pins[1].table))
        )
        # Iceberg reads appends with the columns of now, not of a pin.
        if not set(names) <= set(read.columns):
            return None
        found = read.select(*map(quoted_column, names))
        if rowhash.shape_digest(found.schema) != rowhash.shape_digest(
            rows.select(*map(quoted_column, names)).schema
        ):
            return None
        hashes = found.select(rowhash.row_hash_column(found.schema).alias(_ROW_HASH)).distinct()
        hashes.limit(1).count()  # only when it is planned does Iceberg look for the commits
    except IllegalArgumentException:
        # The pins are not in one line of commits, or history between them is gone.
        return None
    return hashes
