"""The rows of both sides that have no equal on the other: few, beside those that were compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakehouse_backfill.adapters.spark.diff import comparing
from lakehouse_backfill.adapters.spark.diff.diff_columns import DiffColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: How often a side holds the row more than the other.
TIMES = "lhb_times"
_SIDE = "lhb_side"
#: So many keys, hashes and counts are sent to where the whole rows are read; more are joined.
_SENT_ROWS = 500_000


@dataclass(frozen=True)
class Wide:
    """Both sides' whole rows: label, short names of all columns, row hash."""

    old: DataFrame
    new: DataFrame
    columns: tuple[DiffColumn, ...]

    @property
    def key(self) -> list[DiffColumn]:
        """The key's columns."""
        return [each for each in self.columns if each.use == "key"]

    @property
    def compared(self) -> list[DiffColumn]:
        """The compared columns."""
        return [each for each in self.columns if each.use == "compared"]


@dataclass(frozen=True)
class Found:
    """Whole rows that one side holds more often, kept from the first use until `let_go`.

    Each stands once, with how often in `TIMES`, and with `comparing.CHANGED`: whether the other
    side has another row of its key. `many` are the rows of both sides.
    """

    rows: DataFrame
    many: int

    def of(self, side: Literal["old", "new"]) -> DataFrame:
        """Give the rows of one side."""
        from pyspark.sql import functions as F

        return self.rows.where(F.col(_SIDE) == side)

    def let_go(self) -> None:
        """Free the memory."""
        self.rows.unpersist()


def find(wide: Wide, rows: DataFrame, counted: DataFrame, many: int, *, are_once: bool) -> Found:
    """Join the whole rows back to what `distinct_rows` and `classified` gave.

    `many` is how many rows that are, `are_once` whether no key and no row repeats.
    """
    more = _more(wide, rows, counted)
    sides = [
        _whole(wide, side, name, more, many, are_once=are_once)
        for side, name in ((wide.old, "old"), (wide.new, "new"))
    ]
    return Found(sides[0].unionByName(sides[1]).persist(), many)


def _more(wide: Wide, rows: DataFrame, counted: DataFrame) -> DataFrame:
    """Give label, key, hash of rows that one side has more often, and whether the key changed."""
    from pyspark.sql import functions as F

    surplus = F.col(comparing.OLD) - F.col(comparing.NEW)
    more = rows.where(surplus != 0).withColumns(
        {_SIDE: F.when(surplus > 0, "old").otherwise("new"), TIMES: F.abs(surplus)}
    )
    names = [comparing.LABEL, *comparing.key_names(wide.key)]
    if not wide.key:
        return more.withColumn(comparing.CHANGED, F.lit(0))
    changes = counted.select(*names, comparing.CHANGED)
    same = comparing.same_keys("m", "c", names)
    return more.alias("m").join(changes.alias("c"), same).select("m.*", comparing.CHANGED)


def _whole(
    wide: Wide, side: DataFrame, name: str, more: DataFrame, many: int, *, are_once: bool
) -> DataFrame:
    from pyspark.sql import functions as F

    own = more.where(F.col(_SIDE) == name)
    own = F.broadcast(own) if many <= _SENT_ROWS else own
    on = comparing.same_keys("w", "f", [comparing.LABEL, comparing.HASH])
    for each, short in zip(wide.key, comparing.key_names(wide.key), strict=True):
        on = on & F.col(f"w.{each.slot}").eqNullSafe(F.col(f"f.{short}"))
    told = [f"f.{column}" for column in (_SIDE, TIMES, comparing.CHANGED)]
    found = side.alias("w").join(own.alias("f"), on).select("w.*", *told)
    if are_once:
        return found
    slots = [each.slot for each in wide.key]
    return found.dropDuplicates([comparing.LABEL, comparing.HASH, *slots])
