"""Late, changed, deleted rows between two pins; rows through a list of states.

What came to an input between two pins: late rows, changed rows, deleted rows.

Rows are compared as multisets, so an input needs no key. With one, a row that went and a row of
the same key that came are one change; without, only commits that append, and inputs from which
nothing went, tell late rows from changed ones.

How rows go through a list of states: where each is absent, and where it is the same again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.adapters.spark import row_hash
from lakehouse_backfill.adapters.spark.dataframes import (
    quoted_column,
    quoted_table_name,
    spark_errors,
)
from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.domain.diff import Cause, InputChange
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.ports.compute import RowPattern

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
    determined_by: str

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Name the factors that hold a row."""
        return tuple(
            cause
            for cause, parts in PARTS_BY_CAUSE.items()
            if any(self.counts.get(part, 0) for part in parts if part)
        )

    def state_rows(self, swapped: Collection[Cause]) -> DataFrame:
        """Give the input with only some factors as they are at the new pin."""
        wanted = {SHARED_PART}
        for cause, (goes, comes) in PARTS_BY_CAUSE.items():
            part = comes if cause in swapped else goes
            wanted |= {part} if part else set()
        return self.rows.where(quoted_column(PART_COLUMN).isin(sorted(wanted))).drop(PART_COLUMN)

    def input_change(self, old: SourcePin, new: SourcePin) -> InputChange:
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
            told_by=self.determined_by,
        )


def has_same_columns(old: DataFrame, new: DataFrame) -> bool:
    """Tell whether rows of the two pins can be compared as they are."""
    return row_hash.shape_digest(old.schema) == row_hash.shape_digest(new.schema)


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

    hashed = frame.withColumn(_ROW_HASH, row_hash.row_hash_column(frame.schema))
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
        _ROW_HASH, row_hash.row_hash_column(rows.select(*map(quoted_column, names)).schema)
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
        if row_hash.shape_digest(found.schema) != row_hash.shape_digest(
            rows.select(*map(quoted_column, names)).schema
        ):
            return None
        hashes = found.select(row_hash.row_hash_column(found.schema).alias(_ROW_HASH)).distinct()
        hashes.limit(1).count()  # only when it is planned does Iceberg look for the commits
    except IllegalArgumentException:
        # The pins are not in one line of commits, or history between them is gone.
        return None
    return hashes


_STATE, _HASH, _PATTERN, _PLACE = "lhb_state", "lhb_hash", "lhb_pattern", "lhb_place"
_OLD, _NEW = "lhb_old", "lhb_new"
_ABSENT = -1


@dataclass(frozen=True)
class ComparedStates:
    """Frames with the same columns, oldest first; without a key a row is its own key."""

    frames: Sequence[DataFrame]
    key: tuple[str, ...]
    samples: int


def find_patterns(compared: ComparedStates) -> tuple[RowPattern, ...]:
    """Compare the first state with the last, and say of the rows that differ where they changed.

    A key that a state holds more than once is compared as the multiset of its rows.
    """
    changed = _changed_keys(compared).persist()
    try:
        joined = _with_end_rows(changed, compared).persist()
        try:
            counts = _counts(joined, compared)
            samples = _samples(joined, compared) if compared.samples else {}
        finally:
            joined.unpersist()
    finally:
        changed.unpersist()
    return tuple(
        RowPattern(_parse_pattern(text), rows, columns, samples.get(text, ()))
        for text, (rows, columns) in sorted(counts.items())
    )


def _key_aliases(compared: ComparedStates) -> list[str]:
    return [f"lhb_k{place}" for place in range(max(1, len(compared.key)))]


def _key_and_hash(frame: DataFrame, compared: ComparedStates) -> list[Column]:
    """Give the key's columns under short names, and the row's hash."""
    hashed = row_hash.row_hash_column(frame.schema)
    named = [quoted_column(name) for name in compared.key] or [hashed]
    keys = [value.alias(short) for value, short in zip(named, _key_aliases(compared), strict=True)]
    return [*keys, hashed.alias(_HASH)]


def _changed_keys(compared: ComparedStates) -> DataFrame:
    """Give the keys that differ between the first and the last state, with their pattern."""
    from pyspark.sql import functions as F

    rows: DataFrame | None = None
    for place, frame in enumerate(compared.frames):
        one = frame.select(F.lit(place).alias(_STATE), *_key_and_hash(frame, compared))
        rows = one if rows is None else rows.unionByName(one)
    if rows is None:
        raise ValueError("there are no states to compare")
    values = [_hash_in_state(place) for place in range(len(compared.frames))]
    grouped = rows.groupBy(*_key_aliases(compared)).agg(F.array(*values).alias(_PATTERN))
    found = quoted_column(_PATTERN)
    ends = found.getItem(0).eqNullSafe(found.getItem(len(compared.frames) - 1))
    places = F.transform(
        found,
        lambda value: F.when(value.isNull(), F.lit(_ABSENT)).otherwise(
            (F.array_position(found, value) - 1).cast("int")
        ),
    )
    text = F.concat_ws(",", places.cast("array<string>"))
    return grouped.where(~ends).select(*_key_aliases(compared), text.alias(_PATTERN))


def _hash_in_state(place: int) -> Column:
    """Give what a key is in one state: null where it is absent."""
    from pyspark.sql import functions as F

    hashes = F.collect_list(F.when(quoted_column(_STATE) == place, quoted_column(_HASH)))
    return F.when(F.size(hashes) > 0, F.xxhash64(F.array_sort(hashes)))


def _with_end_rows(changed: DataFrame, compared: ComparedStates) -> DataFrame:
    """Put the whole rows of both ends beside the changed keys; of a repeated key, one of each."""
    from pyspark.sql import functions as F

    keys = _key_aliases(compared)
    joined = changed
    for frame, side in ((compared.frames[0], _OLD), (compared.frames[-1], _NEW)):
        hashes = F.array(
            *(
                row_hash.row_hash_column(frame.select(quoted_column(n)).schema)
                for n in frame.columns
            )
        )
        whole = frame.select(
            *_key_and_hash(frame, compared)[:-1],
            F.struct(*(quoted_column(name) for name in frame.columns)).alias(side),
            hashes.alias(f"{side}_hashes"),
        ).dropDuplicates(keys)
        renamed = whole.withColumnsRenamed({key: f"{side}_{key}" for key in keys})
        condition = F.lit(True)  # noqa: FBT003 (a Spark literal)
        for key in keys:
            condition = condition & quoted_column(key).eqNullSafe(quoted_column(f"{side}_{key}"))
        joined = joined.join(renamed, condition, "left").drop(*(f"{side}_{key}" for key in keys))
    return joined


def _counts(joined: DataFrame, compared: ComparedStates) -> dict[str, tuple[int, dict[str, int]]]:
    from pyspark.sql import functions as F

    names = [name for name in compared.frames[-1].columns if name not in compared.key]
    old, new = quoted_column(f"{_OLD}_hashes"), quoted_column(f"{_NEW}_hashes")
    places = {name: place for place, name in enumerate(compared.frames[-1].columns)}
    found = joined.groupBy(_PATTERN).agg(
        F.count(F.lit(1)).alias("n"),
        *(
            F.count(F.when(old.getItem(places[name]) != new.getItem(places[name]), 1)).alias(
                f"c{i}"
            )
            for i, name in enumerate(names)
        ),
    )
    return {
        row[_PATTERN]: (
            int(row["n"]), {name: int(row[f"c{i}"]) for i, name in enumerate(names) if row[f"c{i}"]}
        )
        for row in found.collect()
    }  # fmt: skip


def _samples(joined: DataFrame, compared: ComparedStates) -> dict[str, tuple[DiffSample, ...]]:
    """Give the first rows of each pattern, in the order of their keys."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by = Window.partitionBy(_PATTERN).orderBy(
        *(quoted_column(key) for key in _key_aliases(compared))
    )
    first = joined.withColumn(_PLACE, F.row_number().over(by)).where(
        quoted_column(_PLACE) <= compared.samples
    )
    found: dict[str, list[DiffSample]] = {}
    chosen = first.orderBy(_PATTERN, _PLACE).select(_PATTERN, _OLD, _NEW)
    for row in chosen.toArrow().to_pylist():
        found.setdefault(row[_PATTERN], []).append(_row_sample(row[_OLD], row[_NEW], compared))
    return {text: tuple(rows) for text, rows in found.items()}


def _row_sample(
    old: dict[str, Any] | None, new: dict[str, Any] | None, one: ComparedStates
) -> DiffSample:
    whole = new or old or {}
    key = {name: to_json_value(whole[name]) for name in one.key}
    kind: Literal["added", "removed", "changed"] = "changed"
    names = [name for name in whole if name not in one.key]
    if old is None or new is None:
        kind = "added" if old is None else "removed"
    else:
        names = [name for name in names if to_json_value(old[name]) != to_json_value(new[name])]
    sides = [
        None if side is None else {name: to_json_value(side[name]) for name in names}
        for side in (old, new)
    ]
    return DiffSample(kind=kind, key=key, old=sides[0], new=sides[1])


def _parse_pattern(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
