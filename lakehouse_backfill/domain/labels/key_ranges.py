"""Chunks of a table by a key: how they are declared, labels of ranges, and how bounds are chosen.

A label of a range is `[lower, upper]` as JSON; an end that is null is open.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from lakehouse_backfill.domain.labels import row_values
from lakehouse_backfill.domain.labels.row_values import NamedValue
from lakehouse_backfill.domain.serialization import (
    ColumnName,
    PartitionValue,
    Value,
    added_later,
    to_json_value,
)
from lakehouse_backfill.errors import ConfigError

#: The transform of a scope of ranges; no table is partitioned by it.
KEY_RANGE = "range"
#: Most chunks of a table by its key.
MAX_KEY_CHUNKS = 10_000


class KeyBuckets(Value):
    """How the rows of a whole table are cut into chunks: by Iceberg's buckets of a key column."""

    column: ColumnName = Field(description="A column of the product's key.")
    count: int = Field(ge=1, le=MAX_KEY_CHUNKS, description="Chunks, one for each bucket.")


class KeyRanges(Value):
    """How the rows of a whole table are cut into chunks: by ranges of a key column.

    The first and the last range have no end: every key is in one, also one that nobody expected.
    One of `bounds`, `size` and `count` is given; by the latter two `plan` chooses the bounds.
    """

    column: ColumnName = Field(description="A column of the product's key.")
    bounds: tuple[PartitionValue, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_KEY_CHUNKS - 1,
        description="Ascending: each is the first value of a chunk. Smaller ones, and rows without "
        "a value, are in a chunk before the first of them.",
    )
    size: int | None = added_later(
        None,
        "In place of `bounds`: about so many rows of the table are one chunk; `plan` chooses the "
        "bounds.",
        ge=1,
    )
    count: int | None = added_later(
        None,
        "In place of `bounds`: so many chunks of about equal numbers of rows; `plan` chooses the "
        "bounds.",
        ge=1,
        le=MAX_KEY_CHUNKS,
    )

    @model_validator(mode="after")
    def _is_cut_in_one_way(self) -> KeyRanges:
        if sum(way is not None for way in (self.bounds, self.size, self.count)) != 1:
            raise ValueError("ranges are cut by one of bounds, size and count")
        return self

    def count_of(self, rows: int) -> int:
        """Return how many ranges are chosen of so many rows: each has `size` of them at most."""
        return self.count or max(1, -(-rows // (self.size or 1)))


def cuts_into_ranges(kind: str) -> bool:
    """Return whether Spark and Iceberg order all values of the type alike; text by code points.

    Floats are not: NaN and -0.0 have another place in each.
    """
    return row_values.is_ordered(kind) or kind == "string"


def range_label(lower: NamedValue, upper: NamedValue) -> str:
    """Return the label of the values from `lower` to before `upper`."""
    return json.dumps([to_json_value(lower), to_json_value(upper)], ensure_ascii=False)


def range_ends(kind: str, label: str) -> tuple[NamedValue, NamedValue]:
    """Return the ends that a label names, as values of the type; raises ValueError."""
    try:
        lower, upper = (row_values.typed_value("it", kind, end) for end in json.loads(label))
    except (ConfigError, TypeError) as error:
        raise ValueError(label) from error
    return lower, upper


def describe_range(label: str) -> str:
    """Return a range as text for people: `from 10 to before 20`, `below 10`, `from 20 on`."""
    lower, upper = json.loads(label)
    if lower is None:
        return "of any value" if upper is None else f"below {upper}"
    return f"from {lower} on" if upper is None else f"from {lower} to before {upper}"


class KeySpan(NamedTuple):
    """The values of a key column that a data file holds, and in how many rows.

    `first` and `last` may be beyond the values that are there; None: not known.
    """

    first: NamedValue
    last: NamedValue
    rows: int


class KeyBounds(NamedTuple):
    """Bounds between ranges of about equal numbers of rows, ascending, and what they come from.

    The same for a snapshot. `rows`: how many have a value, also those that delete files hide.
    """

    bounds: tuple[NamedValue, ...]
    rows: int
    by: Literal["statistics", "column"]


def bounds_by_statistics(files: Iterable[KeySpan], count: int) -> tuple[NamedValue, ...] | None:
    """Return bounds between files, from the lowest to the highest; None: statistics do not tell.

    Each of the `count` ranges has between half and one and a half of its share of the rows. There
    are such bounds where each value is in one file only, and a file begins near each bound.
    """
    spans: list[Any] = [span for span in files if span.rows]
    if any(span.first is None or span.last is None for span in spans):
        return None
    if not spans:
        return ()
    spans.sort(key=lambda span: span.first)
    if any(before.last >= after.first for before, after in pairwise(spans)):
        return None
    # The rows before each file, and all.
    starts = list(accumulate((span.rows for span in spans), initial=0))
    bounds = []
    for number in range(1, count):
        place = number * starts[-1] / count
        after = bisect_left(starts, place)
        at = min((after - 1, after), key=lambda one: abs(place - starts[one]))
        if at == len(spans) or abs(place - starts[at]) > starts[-1] / count / 4:
            return None
        bounds.append(spans[at].first)
    return tuple(bounds)


def quantile_places(rows: int, count: int) -> list[int]:
    """Return at which of so many sorted rows each of `count` equal ranges begins."""
    return [number * rows // count for number in range(count)]


def bounds_of_firsts(firsts: Iterable[NamedValue]) -> tuple[NamedValue, ...]:
    """Return the bounds of ranges that begin with these values, ascending; repeated ones are one.

    The first range begins below all values, and needs no bound.
    """
    return tuple(dict.fromkeys(firsts))[1:]
