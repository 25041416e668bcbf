"""How rows go through a list of states: where each is absent, and where it is the same again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lakehouse_backfill.adapters.spark import rowhash
from lakehouse_backfill.adapters.spark.names import quoted_column
from lakehouse_backfill.domain.checks import DiffSample
from lakehouse_backfill.domain.plain import to_json_value
from lakehouse_backfill.ports.attributing import RowPattern

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    hashed = rowhash.row_hash_column(frame.schema)
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
            *(rowhash.row_hash_column(frame.select(quoted_column(n)).schema) for n in frame.columns)
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
