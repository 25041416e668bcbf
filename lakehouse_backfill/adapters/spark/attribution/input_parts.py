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
from lakehouse_backfill.adapters.spark.failures import translated
from lakehouse_backfill.adapters.spark.names import column, full_name
from lakehouse_backfill.domain.attribution import Cause, InputChange
from lakehouse_backfill.domain.plan import SourcePin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Which part of the input a row is in; the parts of a replaced row's two versions differ.
PART = "lhb_part"
BOTH, LATE, DELETED, WAS, IS = "both", "late", "deleted", "was", "is"
_HASH, _TIMES, _OLD, _NEW, _TWICE = "lhb_hash", "lhb_times", "lhb_o", "lhb_n", "lhb_replaced"
_GONE, _CAME = "gone", "came"
#: The parts that a factor swaps: those that go, and those that come.
SWAPS: dict[Cause, tuple[str | None, str | None]] = {
    "late_input": (None, LATE),
    "deletion": (DELETED, None),
    "upstream": (WAS, IS),
}


@dataclass(frozen=True)
class Parts:
    """All rows of both pins, each with its part; persisted by who asked for it."""

    rows: DataFrame
    counts: dict[str, int]
    told_by: str

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Name the factors that hold a row."""
        return tuple(
            cause
            for cause, parts in SWAPS.items()
            if any(self.counts.get(part, 0) for part in parts if part)
        )

    def state(self, swapped: Collection[Cause]) -> DataFrame:
        """Give the input with only some factors as they are at the new pin."""
        wanted = {BOTH}
        for cause, (goes, comes) in SWAPS.items():
            part = comes if cause in swapped else goes
            wanted |= {part} if part else set()
        return self.rows.where(column(PART).isin(sorted(wanted))).drop(PART)

    def change(self, old: SourcePin, new: SourcePin) -> InputChange:
        """Say in numbers what came."""
        return InputChange(
            input=new.name,
            table=new.table,
            role=new.role,
            old_snapshot_id=old.snapshot_id,
            new_snapshot_id=new.snapshot_id,
            late_rows=self.counts.get(LATE, 0),
            upstream_rows=max(self.counts.get(WAS, 0), self.counts.get(IS, 0)),
            deleted_rows=self.counts.get(DELETED, 0),
            told_by=self.told_by,
        )


def has_same_columns(old: DataFrame, new: DataFrame) -> bool:
    """Tell whether rows of the two pins can be compared as they are."""
    return rowhash.shape(old.schema) == rowhash.shape(new.schema)


def split(
    spark: SparkSession,
    catalog: str,
    pins: tuple[SourcePin, SourcePin],
    frames: tuple[DataFrame, DataFrame],
    key: Sequence[str],
) -> Parts:
    """Tell the parts of an input that has the same columns at both pins; the rows stay persisted.

    Raises Unsupported for columns that have no row hash.
    """
    with translated(f"comparing {pins[0].table} at two pins"):
        sided = _sided(*frames)
        moved = _counted(sided)
        if not (moved.get(_GONE) or moved.get(_CAME)):
            return Parts(sided, {}, "the rows are equal")
        if key and set(key) <= set(frames[0].columns):
            told, rows = f"the key {', '.join(key)}", _by_key(sided, key)
        elif not moved.get(_GONE):
            told, rows = "nothing went, so all that came is late", _renamed(sided, LATE, DELETED)
        elif not moved.get(_CAME):
            told, rows = "nothing came, so all that went is deleted", _renamed(sided, LATE, DELETED)
        else:
            told, rows = _by_appends(spark, catalog, pins, sided)
        rows = rows.persist()
        counts = _counted(rows)
        sided.unpersist()
        return Parts(rows, counts, told)


def _sided(old: DataFrame, new: DataFrame) -> DataFrame:
    """Pair equal rows, each as often as both sides hold it; the others went or came."""
    from pyspark.sql import functions as F

    names = new.columns
    sides = [
        _numbered(frame.select(*(column(name) for name in names))).select(
            _HASH, _TIMES, F.struct(*(column(name) for name in names)).alias(side)
        )
        for frame, side in ((old, _OLD), (new, _NEW))
    ]
    part = (
        F.when(column(_NEW).isNull(), F.lit(_GONE))
        .when(column(_OLD).isNull(), F.lit(_CAME))
        .otherwise(F.lit(BOTH))
    )
    joined = sides[0].join(sides[1], [_HASH, _TIMES], "full_outer")
    row = F.coalesce(column(_NEW), column(_OLD))
    values = [row.getField(name).alias(name) for name in names]
    return joined.select(*values, part.alias(PART)).persist()


def _numbered(frame: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    hashed = frame.withColumn(_HASH, rowhash.row_hash(frame.schema))
    by = Window.partitionBy(_HASH).orderBy(_HASH)
    return hashed.withColumn(_TIMES, F.row_number().over(by))


def _counted(rows: DataFrame) -> dict[str, int]:
    return {row[PART]: int(row["count"]) for row in rows.groupBy(PART).count().collect()}


def _renamed(rows: DataFrame, came: str, gone: str) -> DataFrame:
    from pyspark.sql import functions as F

    part = column(PART)
    named = F.when(part == _CAME, F.lit(came)).when(part == _GONE, F.lit(gone)).otherwise(part)
    return rows.withColumn(PART, named)


def _by_key(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """A key that both went and came was changed; the rest is late or deleted."""
    from pyspark.sql import functions as F

    names = [f"lhb_k{place}" for place in range(len(key))]
    went, came = (
        rows.where(column(PART) == part).select(
            *(column(name).alias(short) for name, short in zip(key, names, strict=True))
        )
        for part in (_GONE, _CAME)
    )
    replaced = went.intersect(came).withColumn(_TWICE, F.lit(1))
    condition: Column = F.lit(True)  # noqa: FBT003 (a Spark literal)
    for name, short in zip(key, names, strict=True):
        condition = condition & column(name).eqNullSafe(column(short))
    joined = rows.join(replaced, condition, "left").drop(*names)
    return _judged(joined, column(_TWICE).isNotNull()).drop(_TWICE)


def _judged(rows: DataFrame, is_change: Column) -> DataFrame:
    from pyspark.sql import functions as F

    part = column(PART)
    named = (
        F.when(part == _CAME, F.when(is_change, F.lit(IS)).otherwise(F.lit(LATE)))
        .when(part == _GONE, F.when(is_change, F.lit(WAS)).otherwise(F.lit(DELETED)))
        .otherwise(part)
    )
    return rows.withColumn(PART, named)


def _by_appends(
    spark: SparkSession, catalog: str, pins: tuple[SourcePin, SourcePin], rows: DataFrame
) -> tuple[str, DataFrame]:
    """Rows that commits of kind append brought are late; the others that came are changes.

    What went is deleted when nothing came otherwise; else it cannot be told from changes.
    """
    from pyspark.sql import functions as F

    appended = _appended(spark, catalog, pins, rows)
    if appended is None:
        told = "no key and no history of appends: all of it counts as changed upstream"
        return told, _renamed(rows, IS, WAS)
    names = [name for name in rows.columns if name != PART]
    hashed = rows.withColumn(_HASH, rowhash.row_hash(rows.select(*map(column, names)).schema))
    marked = hashed.join(appended.withColumn(_TWICE, F.lit(1)), _HASH, "left").drop(_HASH)
    is_late = (column(PART) == _CAME) & column(_TWICE).isNotNull()
    others = marked.where((column(PART) == _CAME) & ~is_late).limit(1).count()
    gone = F.lit(WAS if others else DELETED)
    part = column(PART)
    named = (
        F.when(is_late, F.lit(LATE))
        .when(part == _CAME, F.lit(IS))
        .when(part == _GONE, gone)
        .otherwise(part)
    )
    told = "no key: late is what commits of kind append brought"
    return told, marked.withColumn(PART, named).drop(_TWICE)


def _appended(
    spark: SparkSession, catalog: str, pins: tuple[SourcePin, SourcePin], rows: DataFrame
) -> DataFrame | None:
    """Give the hashes of the rows that appends between the pins brought; None: nobody can say."""
    from pyspark.errors import IllegalArgumentException

    names = [name for name in rows.columns if name != PART]
    try:
        read = (
            spark.read.option("start-snapshot-id", str(pins[0].snapshot_id))
            .option("end-snapshot-id", str(pins[1].snapshot_id))
            .table(full_name(catalog, pins[1].table))
        )
        # Iceberg reads appends with the columns of now, not of a pin.
        if not set(names) <= set(read.columns):
            return None
        found = read.select(*map(column, names))
        if rowhash.shape(found.schema) != rowhash.shape(rows.select(*map(column, names)).schema):
            return None
        hashes = found.select(rowhash.row_hash(found.schema).alias(_HASH)).distinct()
        hashes.limit(1).count()  # only when it is planned does Iceberg look for the commits
    except IllegalArgumentException:
        # The pins are not in one line of commits, or history between them is gone.
        return None
    return hashes
