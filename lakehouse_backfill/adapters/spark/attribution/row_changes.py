"""Row changes between two pins of an input, and across a list of states.

Rows between two pins are late, changed or deleted. They are compared as multisets, so an input
needs no key. With a key, a removed and an added row of the same key are one change. Without a key,
only append commits, and inputs without removed rows, separate late rows from changed rows.

Across states, a row's pattern shows where it is absent and where it has an earlier value again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from pyspark.errors import IllegalArgumentException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import SparkTables, quoted_column
from lakehouse_backfill.adapters.spark.session.spark_errors import spark_errors
from lakehouse_backfill.domain.comparison.attribution import Cause, InputChange
from lakehouse_backfill.domain.comparison.diff import DiffSample
from lakehouse_backfill.domain.partitions import ScopeField
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.ports.compute import RowPattern

#: The part of the input that a row is in; a changed row's two versions are in two parts.
PART_COLUMN = "lhb_part"
SHARED_PART, LATE_PART, DELETED_PART = "both", "late", "deleted"
CHANGED_OLD_PART, CHANGED_NEW_PART = "was", "is"
#: Parts of rows of which it is not known yet whether they are changes.
_REMOVED, _ADDED = "removed", "added"
_HASH, _OCCURRENCE, _MATCHED = "lhb_hash", "lhb_times", "lhb_matched"
_OLD, _NEW = "lhb_old", "lhb_new"
#: The parts that a factor swaps: (removed part, added part).
PARTS_BY_CAUSE: dict[Cause, tuple[str | None, str | None]] = {
    "late_input": (None, LATE_PART),
    "deletion": (DELETED_PART, None),
    "upstream": (CHANGED_OLD_PART, CHANGED_NEW_PART),
}


@dataclass(frozen=True)
class InputParts:
    """All rows of both pins, each with its part; the owner must unpersist `rows`."""

    rows: DataFrame
    counts: Counter[str]
    determined_by: str

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes that have at least one row."""
        return tuple(
            cause
            for cause, parts in PARTS_BY_CAUSE.items()
            if any(self.counts[part] for part in parts if part)
        )

    def state_rows(self, swapped: Collection[Cause]) -> DataFrame:
        """Return the input with only the swapped causes at the new pin."""
        parts = {SHARED_PART}
        for cause, (removed_part, added_part) in PARTS_BY_CAUSE.items():
            part = added_part if cause in swapped else removed_part
            parts |= {part} if part else set()
        return self.rows.where(quoted_column(PART_COLUMN).isin(sorted(parts))).drop(PART_COLUMN)

    def input_change(self, old: SourcePin, new: SourcePin) -> InputChange:
        """Return the counts of late, changed and deleted rows."""
        return InputChange(
            input=new.name,
            table=new.table,
            role=new.role,
            old_snapshot_id=old.snapshot_id,
            new_snapshot_id=new.snapshot_id,
            late_rows=self.counts[LATE_PART],
            upstream_rows=max(self.counts[CHANGED_OLD_PART], self.counts[CHANGED_NEW_PART]),
            deleted_rows=self.counts[DELETED_PART],
            told_by=self.determined_by,
        )


def has_same_columns(old: StructType, new: StructType) -> bool:
    """Return whether rows of the two pins can be compared without conversion."""
    return row_hash.shape_digest(old) == row_hash.shape_digest(new)


def _schema_of(frame: DataFrame, names: Sequence[str]) -> StructType:
    """Return the schema of some columns, without another query."""
    return StructType([frame.schema[name] for name in names])


def split_input(
    tables: SparkTables,
    pins: tuple[SourcePin, SourcePin],
    frames: tuple[DataFrame, DataFrame],
    key: Sequence[str],
) -> InputParts:
    """Split an input that has the same columns at both pins into parts.

    The rows stay persisted. Raises Unsupported for columns that have no row hash.
    """
    with spark_errors(f"comparing {pins[0].table} at two pins"):
        paired = _pair_rows(*frames)
        counts = _count_parts(paired)
        if not (counts[_REMOVED] or counts[_ADDED]):
            return InputParts(paired, Counter(), "the rows are equal")
        if key and set(key) <= set(frames[0].columns):
            determined_by, rows = f"the key {', '.join(key)}", _split_by_key(paired, key)
        elif not counts[_REMOVED]:
            determined_by = "nothing went, so all that came is late"
            rows = _label_changes(paired, LATE_PART, DELETED_PART)
        elif not counts[_ADDED]:
            determined_by = "nothing came, so all that went is deleted"
            rows = _label_changes(paired, LATE_PART, DELETED_PART)
        else:
            determined_by, rows = _split_by_appends(tables, pins, paired)
        rows = rows.persist()
        counts = _count_parts(rows)
        paired.unpersist()
        return InputParts(rows, counts, determined_by)


def _pair_rows(old: DataFrame, new: DataFrame) -> DataFrame:
    """Pair equal rows, duplicates included; unpaired rows were removed or added."""
    names = new.columns
    columns = [quoted_column(name) for name in names]
    sides = [
        _with_occurrence(frame.select(*columns)).select(
            _HASH, _OCCURRENCE, F.struct(*columns).alias(side)
        )
        for frame, side in ((old, _OLD), (new, _NEW))
    ]
    part = (
        F.when(quoted_column(_NEW).isNull(), F.lit(_REMOVED))
        .when(quoted_column(_OLD).isNull(), F.lit(_ADDED))
        .otherwise(F.lit(SHARED_PART))
    )
    joined = sides[0].join(sides[1], [_HASH, _OCCURRENCE], "full_outer")
    row = F.coalesce(quoted_column(_NEW), quoted_column(_OLD))
    values = [row.getField(name).alias(name) for name in names]
    return joined.select(*values, part.alias(PART_COLUMN)).persist()


def _with_occurrence(frame: DataFrame) -> DataFrame:
    hashed = frame.withColumn(_HASH, row_hash.row_hash_column(frame.schema))
    by = Window.partitionBy(_HASH).orderBy(_HASH)
    return hashed.withColumn(_OCCURRENCE, F.row_number().over(by))


def _count_parts(rows: DataFrame) -> Counter[str]:
    return Counter(dict(rows.groupBy(PART_COLUMN).count().collect()))


def _label_changes(rows: DataFrame, added: str | Column, removed: str | Column) -> DataFrame:
    """Give the added and the removed rows their parts."""
    part = quoted_column(PART_COLUMN)
    added, removed = (F.lit(each) for each in (added, removed))
    named = F.when(part == _ADDED, added).when(part == _REMOVED, removed).otherwise(part)
    return rows.withColumn(PART_COLUMN, named)


def _split_by_key(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Label rows: a key that was removed and added is changed, others are late or deleted."""
    removed_keys, added_keys = (
        rows.where(quoted_column(PART_COLUMN) == part).select(*dataframes.aliased_key(key))
        for part in (_REMOVED, _ADDED)
    )
    changed_keys = removed_keys.intersect(added_keys).withColumn(_MATCHED, F.lit(1))
    aliases = dataframes.key_aliases(key)
    joined = rows.join(changed_keys, dataframes.is_same(key, aliases), "left").drop(*aliases)
    is_change = quoted_column(_MATCHED).isNotNull()
    return _label_changes(
        joined,
        F.when(is_change, F.lit(CHANGED_NEW_PART)).otherwise(F.lit(LATE_PART)),
        F.when(is_change, F.lit(CHANGED_OLD_PART)).otherwise(F.lit(DELETED_PART)),
    ).drop(_MATCHED)


def _split_by_appends(
    tables: SparkTables, pins: tuple[SourcePin, SourcePin], rows: DataFrame
) -> tuple[str, DataFrame]:
    """Label rows: those of append commits are late, other added rows are changes.

    Removed rows are deleted when there are no other added rows; else they count as changed.
    """
    appended = _appended_hashes(tables, pins, rows)
    if appended is None:
        determined_by = "no key and no history of appends: all of it counts as changed upstream"
        return determined_by, _label_changes(rows, CHANGED_NEW_PART, CHANGED_OLD_PART)
    names = [name for name in rows.columns if name != PART_COLUMN]
    hashed = rows.withColumn(_HASH, row_hash.row_hash_column(_schema_of(rows, names)))
    marked = hashed.join(appended.withColumn(_MATCHED, F.lit(1)), _HASH, "left").drop(_HASH)
    is_late = quoted_column(_MATCHED).isNotNull()
    others = marked.where((quoted_column(PART_COLUMN) == _ADDED) & ~is_late).limit(1).count()
    labelled = _label_changes(
        marked,
        F.when(is_late, F.lit(LATE_PART)).otherwise(F.lit(CHANGED_NEW_PART)),
        CHANGED_OLD_PART if others else DELETED_PART,
    )
    return "no key: late is what commits of kind append brought", labelled.drop(_MATCHED)


def _appended_hashes(
    tables: SparkTables, pins: tuple[SourcePin, SourcePin], rows: DataFrame
) -> DataFrame | None:
    """Return the hashes of rows that appends between the pins added; None when unknown."""
    names = [name for name in rows.columns if name != PART_COLUMN]
    try:
        appends = (
            tables.spark.read.option("start-snapshot-id", str(pins[0].snapshot_id))
            .option("end-snapshot-id", str(pins[1].snapshot_id))
            .table(tables.quoted_name(pins[1].table))
        )
        # Iceberg reads appends in the table's current columns, not in those of a pin.
        if not set(names) <= set(appends.columns):
            return None
        appended = appends.select(*map(quoted_column, names))
        if not has_same_columns(appended.schema, _schema_of(rows, names)):
            return None
        hashes = appended.select(row_hash.row_hash_column(appended.schema).alias(_HASH)).distinct()
        hashes.limit(1).count()  # Iceberg resolves the commits only when the query is planned.
    except IllegalArgumentException:
        # One pin is no ancestor of the other, or snapshots between them have expired.
        return None
    return hashes


#: The partition of a row, as `raw_label` gives it.
PARTITION_COLUMN = "lhb_partition"
_STATE, _PATTERN, _PLACE = "lhb_state", "lhb_pattern", "lhb_place"
_ABSENT = -1


@dataclass(frozen=True)
class ComparedStates:
    """Frames with the same columns, oldest first; without a key the row hash is the key.

    Each has the row's partition as well, by `field`: a row that moves goes and comes.
    """

    frames: Sequence[DataFrame]
    key: tuple[str, ...]
    samples: int
    field: ScopeField

    @property
    def columns(self) -> list[str]:
        """The columns of the rows."""
        return [name for name in self.frames[-1].columns if name != PARTITION_COLUMN]


def find_patterns(compared: ComparedStates) -> tuple[RowPattern, ...]:
    """Return, for keys that differ between first and last state, the states where they changed.

    Partitions are told apart. A key with several rows in a state is compared as a multiset of rows.
    """
    with dataframes.cached(_with_end_rows(_changed_keys(compared), compared)) as joined:
        counts = _counts(joined, compared)
        samples = _samples(joined, compared) if compared.samples else {}
    patterns = (
        RowPattern(
            tuple(map(int, text.split(","))), rows, columns, samples.get((raw, text), ()),
            dataframes.format_label(compared.field, raw),
        )
        for (raw, text), (rows, columns) in sorted(counts.items(), key=lambda item: item[0][1])
    )  # fmt: skip
    return tuple(sorted(patterns, key=lambda one: one.partition))


def _key_aliases(compared: ComparedStates) -> list[str]:
    return [*dataframes.key_aliases(compared.key or ("the row hash",)), PARTITION_COLUMN]


def _key_and_hash(frame: DataFrame, compared: ComparedStates, prefix: str = "") -> list[Column]:
    """Return the key's columns under short names with the prefix, and the row's hash.

    The partition is a part of the key.
    """
    hashed = row_hash.row_hash_column(_schema_of(frame, compared.columns))
    keys = dataframes.aliased_key(compared.key, prefix)
    keys = keys or [hashed.alias(prefix + _key_aliases(compared)[0])]
    partition = quoted_column(PARTITION_COLUMN).alias(prefix + PARTITION_COLUMN)
    return [*keys, partition, hashed.alias(_HASH)]


def _changed_keys(compared: ComparedStates) -> DataFrame:
    """Return the keys that differ between the first and the last state, with their pattern."""
    rows = reduce(
        lambda one, other: one.unionAll(other),
        (
            frame.select(F.lit(place).alias(_STATE), *_key_and_hash(frame, compared))
            for place, frame in enumerate(compared.frames)
        ),
    )
    state, hashed = quoted_column(_STATE), quoted_column(_HASH)
    in_states = [
        F.collect_list(F.when(state == place, hashed)) for place in range(len(compared.frames))
    ]
    # The hash of a key's rows in each state; null where it is absent.
    values = [F.when(F.size(each) > 0, F.xxhash64(F.array_sort(each))) for each in in_states]
    grouped = rows.groupBy(*_key_aliases(compared)).agg(F.array(*values).alias(_PATTERN))
    pattern = quoted_column(_PATTERN)
    ends = pattern.getItem(0).eqNullSafe(pattern.getItem(len(compared.frames) - 1))
    places = F.transform(
        pattern,
        lambda value: F.when(value.isNull(), F.lit(_ABSENT)).otherwise(
            (F.array_position(pattern, value) - 1).cast("int")
        ),
    )
    text = F.concat_ws(",", places.cast("array<string>"))
    return grouped.where(~ends).select(*_key_aliases(compared), text.alias(_PATTERN))


def _with_end_rows(changed: DataFrame, compared: ComparedStates) -> DataFrame:
    """Join the whole rows of both ends to the changed keys; one row of a repeated key."""
    keys = _key_aliases(compared)
    joined = changed
    for frame, side in ((compared.frames[0], _OLD), (compared.frames[-1], _NEW)):
        hashes = F.array(
            *(row_hash.row_hash_column(_schema_of(frame, [name])) for name in compared.columns)
        )
        *values, _ = _key_and_hash(frame, compared, f"{side}_")
        whole = frame.select(
            *values,
            F.struct(*(quoted_column(name) for name in compared.columns)).alias(side),
            hashes.alias(f"{side}_hashes"),
        ).dropDuplicates([f"{side}_{key}" for key in keys])
        theirs = [f"{side}_{key}" for key in keys]
        joined = joined.join(whole, dataframes.is_same(keys, theirs), "left")
    sides = (_OLD, f"{_OLD}_hashes", _NEW, f"{_NEW}_hashes")
    return joined.select(*keys, _PATTERN, *sides)


#: A partition, as `raw_label` gives it, and the text of a pattern.
_Group = tuple[Any, str]


def _counts(
    joined: DataFrame, compared: ComparedStates
) -> dict[_Group, tuple[int, dict[str, int]]]:
    names = [name for name in compared.columns if name not in compared.key]
    old, new = quoted_column(f"{_OLD}_hashes"), quoted_column(f"{_NEW}_hashes")
    places = {name: place for place, name in enumerate(compared.columns)}
    differing = [
        F.count(F.when(old.getItem(places[name]) != new.getItem(places[name]), 1)) for name in names
    ]
    grouped = joined.groupBy(PARTITION_COLUMN, _PATTERN).agg(F.count(F.lit(1)), *differing)
    return {
        (raw, pattern): (rows, {name: n for name, n in zip(names, columns, strict=True) if n})
        for raw, pattern, rows, *columns in grouped.collect()
    }


def _samples(joined: DataFrame, compared: ComparedStates) -> dict[_Group, tuple[DiffSample, ...]]:
    """Return the first rows of each partition and pattern, in the order of their keys."""
    by = Window.partitionBy(PARTITION_COLUMN, _PATTERN).orderBy(
        *(quoted_column(key) for key in _key_aliases(compared))
    )
    first = joined.withColumn(_PLACE, F.row_number().over(by)).where(
        quoted_column(_PLACE) <= compared.samples
    )
    rows_by_group: dict[_Group, list[DiffSample]] = {}
    ordered = first.orderBy(PARTITION_COLUMN, _PATTERN, _PLACE)
    wanted = ordered.select(PARTITION_COLUMN, _PATTERN, _OLD, _NEW)
    for row in wanted.toArrow().to_pylist():
        rows_by_group.setdefault((row[PARTITION_COLUMN], row[_PATTERN]), []).append(
            _row_sample(row[_OLD], row[_NEW], compared)
        )
    return {group: tuple(rows) for group, rows in rows_by_group.items()}


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
