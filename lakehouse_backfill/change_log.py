"""The state of a table as of a point, from the change log that was landed of it.

A job imports it beside the decorator::

    from lakehouse_backfill.change_log import state_as_of

Changes are ordered by their position in the database's log, never by the time at which they came:
so any order, and any number of copies, of the same changes gives the same state. The rules:

- of a key the change with the highest position counts; at one position a snapshot's row counts
  before a change
- a key whose newest change is `d` is deleted, whatever older changes come later
- a snapshot that was read whole (its first and last record are there, marked by the connector)
  also deletes the keys that it does not hold, if nothing newer is known of them
- two changes of one key at one position with other content are an error

PySpark and PyArrow are imported when they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["arrow_state_as_of", "change_position", "state_as_of"]

#: Digits of each part of a position, by the number of parts; 38 in sum.
_WIDTHS = {1: (38,), 2: (18, 20), 3: (8, 20, 10)}
_BINLOG_FILE = re.compile(r".*[.]([0-9]{1,20})", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,38}")
_DELETE, _READ = "d", "r"
#: Operations that change a row; a tombstone changes nothing.
_OPERATIONS = ("c", "u", _DELETE, _READ)
#: Marks of records of a snapshot that reads the table as a whole.
_FIRST = ("first", "first_in_data_collection")
_LAST = ("last", "last_in_data_collection")
_WHOLE = ("true", *_FIRST, *_LAST)
_CLASH = "key(s) have two changes at one position with other content"


def change_position(*parts: int | str) -> int:
    """Return a position in the log of a database as one number, which orders like the log.

    The parts are those of the source's `change_log.position`: the lsn of PostgreSQL; file, pos and
    row of MySQL, such as `change_position("mysql-bin.000003", 154, 0)`, of whose file the number at
    the end counts. Raises ValueError for what has no order, or is too large.
    """
    if len(parts) not in _WIDTHS:
        raise ValueError("a position has one to three parts")
    found = 0
    for place, (part, width) in enumerate(zip(parts, _WIDTHS[len(parts)], strict=True), 1):
        number = _position_number(part)
        if number is None:
            raise ValueError(f"part {place} of the position has no order")
        if number >= 10**width:
            raise ValueError(f"part {place} of the position has more than {width} digits")
        found = found * 10**width + number
    return found


def _position_number(part: object) -> int | None:
    if isinstance(part, int) and not isinstance(part, bool):
        return part if part >= 0 else None
    if not isinstance(part, str):
        return None
    if _DIGITS.fullmatch(part):
        return int(part)
    if file := _BINLOG_FILE.fullmatch(part):
        return int(file.group(1))
    return None


def state_as_of(
    changes: DataFrame,
    key: Sequence[str],
    as_of: int | datetime | None = None,
    *,
    keep_deleted: bool = False,
) -> DataFrame:
    """Return the newest row of each key as of a point, with the columns of the raw table.

    `as_of`: a position, included, as `change_position` makes it, or an instant (`change_at`); None:
    all changes. `keep_deleted`: deleted keys have a row too, with `change_op` d, as a keyed merge
    needs it. Give the whole raw table: a part of it can lack the newest change of a key.

    Raises ValueError for a key without columns, or an instant without its zone. Spark stops with
    the number of keys that have two changes at one position with other content.
    """
    from pyspark.sql import functions as F

    names = _checked_key(key)
    known = changes.where(F.col("change_op").isin(*_OPERATIONS))
    if as_of is not None:
        known = known.where(_is_before(as_of))
    by_key = [_quoted(name) for name in names]
    newest = _newest_changes(known, by_key, [one for one in changes.columns if one not in names])
    bound = _whole_snapshots(known, by_key).agg(F.max("change_position").alias("lhb_bound"))
    found = _checked(newest).crossJoin(F.broadcast(bound))
    at = F.col("lhb_newest.lhb_at")
    is_left_out = F.coalesce(at < F.col("lhb_bound"), F.lit(False))  # noqa: FBT003 (a literal of Spark)
    op = F.col("lhb_newest.lhb_row.change_op")
    is_deleted = is_left_out | (op == _DELETE)
    if not keep_deleted:
        found = found.where(~is_deleted)
    values = {name: F.col(f"lhb_newest.lhb_row.{_tick(name)}") for name in changes.columns
              if name not in names}  # fmt: skip
    values["change_op"] = F.when(is_deleted, _DELETE).otherwise(op)
    values["change_position"] = F.when(is_left_out, F.col("lhb_bound")).otherwise(at)
    return found.select(*(values.get(name, _quoted(name)).alias(name) for name in changes.columns))


def _newest_changes(known: DataFrame, by_key: list[Column], rest: list[str]) -> DataFrame:
    """Return of each key its newest change, and whether one position has two contents of it."""
    from pyspark.sql import functions as F

    rank = F.when(F.col("change_op") == _READ, 0).otherwise(1)
    # The whole row is compared at last, so that copies give one row in each run.
    row = F.struct(F.col("change_hash").alias("lhb_hash"), *(_quoted(name) for name in rest))
    points = known.groupBy(
        *by_key, F.col("change_position").alias("lhb_at"), rank.alias("lhb_rank")
    ).agg(
        F.max(row).alias("lhb_row"),
        (F.min("change_hash") != F.max("change_hash")).alias("lhb_clash"),
    )
    return points.groupBy(*by_key).agg(
        F.max(F.struct("lhb_at", "lhb_rank", "lhb_row")).alias("lhb_newest"),
        F.max("lhb_clash").alias("lhb_clash"),
    )


def _checked(newest: DataFrame) -> DataFrame:
    """Return the keys; Spark stops when one of them has a clash, and says how many have."""
    from pyspark.sql import functions as F

    count = F.sum(F.col("lhb_clash").cast("long"))
    clashes = newest.agg(F.coalesce(count, F.lit(0)).alias("lhb_clashes"))
    text = F.concat(F.col("lhb_clashes").cast("string"), F.lit(f" {_CLASH}"))
    is_sound = F.when(F.col("lhb_clashes") == 0, F.lit("")).otherwise(F.raise_error(text))
    return newest.crossJoin(F.broadcast(clashes)).where(is_sound == "")


def _whole_snapshots(known: DataFrame, by_key: list[Column]) -> DataFrame:
    """Return the positions of snapshots that were read whole."""
    from pyspark.sql import functions as F

    mark = F.lower(F.col("change_snapshot"))
    reads = known.where((F.col("change_op") == _READ) & mark.isin(*_WHOLE))
    snapshots = reads.groupBy("change_position").agg(
        F.max(mark.isin(*_FIRST)).alias("lhb_first"),
        F.max(mark.isin(*_LAST)).alias("lhb_last"),
        F.min(F.struct(*by_key)).alias("lhb_low"),
        F.max(F.struct(*by_key)).alias("lhb_high"),
    )
    is_single = F.col("lhb_low") == F.col("lhb_high")
    return snapshots.where(F.col("lhb_last") & (F.col("lhb_first") | is_single))


def _is_before(as_of: int | datetime) -> Column:
    from pyspark.sql import functions as F

    if isinstance(as_of, datetime):
        return F.col("change_at") <= F.lit(_zoned(as_of))
    return F.col("change_position") <= F.lit(Decimal(as_of))


def _tick(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _quoted(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(_tick(name))


def _zoned(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("an instant needs its zone, e.g. timezone.utc")
    return moment


def _checked_key(key: Sequence[str]) -> list[str]:
    if isinstance(key, str) or not key:
        raise ValueError("name the columns of the key, e.g. ['id']")
    return list(key)


class _Change(NamedTuple):
    """What the decision looks at in a change, and the number of its row."""

    key: tuple[Any, ...]
    position: int
    op: str
    mark: str
    content: str
    row: int

    @property
    def order(self) -> tuple[int, int]:
        """The position; a snapshot's row counts before a change."""
        return (self.position, 0 if self.op == _READ else 1)


class _Decided(NamedTuple):
    """The change that counts for a key; `deleted_at`: where it was deleted, if it was."""

    row: int
    deleted_at: int | None


def arrow_state_as_of(
    changes: pa.Table,
    key: Sequence[str],
    as_of: int | datetime | None = None,
    *,
    keep_deleted: bool = False,
) -> pa.Table:
    """Return what `state_as_of` returns, in this process and without Spark; in no order.

    Raises ValueError, with the number of keys that have two changes at one position with other
    content.
    """
    import pyarrow as pa

    names = _checked_key(key)
    known = _changes_of(changes, names, as_of)
    decided = [one for one in _decide(known) if keep_deleted or one.deleted_at is None]
    found = changes.take(pa.array([one.row for one in decided], pa.int64()))
    for name in ("change_op", "change_position"):
        place = found.schema.get_field_index(name)
        values = found[name].to_pylist()
        for number, one in enumerate(decided):
            if one.deleted_at is not None:
                values[number] = _DELETE if name == "change_op" else Decimal(one.deleted_at)
        field = found.schema.field(place)
        found = found.set_column(place, field, pa.array(values, field.type))
    return found


def _changes_of(changes: pa.Table, key: list[str], as_of: int | datetime | None) -> list[_Change]:
    parts = ("change_position", "change_op", "change_snapshot", "change_hash", "change_at")
    columns = [changes[name].to_pylist() for name in parts]
    keys = zip(*(changes[name].to_pylist() for name in key), strict=True)
    found = []
    for row, (own, position, op, mark, content, at) in enumerate(zip(keys, *columns, strict=True)):
        if op not in _OPERATIONS:
            continue
        if isinstance(as_of, datetime):
            is_known = at is not None and at <= _zoned(as_of)
        else:
            is_known = as_of is None or position <= as_of
        if is_known:
            found.append(_Change(own, int(position), op, (mark or "").lower(), content, row))
    return found


def _decide(changes: Iterable[_Change]) -> list[_Decided]:
    """Return for each key the change that counts; the order of the changes does not matter."""
    newest: dict[tuple[Any, ...], _Change] = {}
    contents: dict[tuple[Any, ...], str] = {}
    clashing = set()
    snapshots: dict[int, list[_Change]] = {}
    for one in changes:
        if contents.setdefault((one.key, one.order), one.content) != one.content:
            clashing.add(one.key)
        before = newest.get(one.key)
        if before is None or before.order < one.order:
            newest[one.key] = one
        if one.op == _READ and one.mark in _WHOLE:
            snapshots.setdefault(one.position, []).append(one)
    if clashing:
        raise ValueError(f"{len(clashing)} {_CLASH}")
    bound = max((at for at, rows in snapshots.items() if _is_whole(rows)), default=-1)
    return [_judged(one, bound) for one in newest.values()]


def _is_whole(rows: list[_Change]) -> bool:
    marks = {one.mark for one in rows}
    is_begun = not marks.isdisjoint(_FIRST) or len({one.key for one in rows}) == 1
    return is_begun and not marks.isdisjoint(_LAST)


def _judged(one: _Change, bound: int) -> _Decided:
    if one.position < bound:
        return _Decided(one.row, bound)
    return _Decided(one.row, one.position if one.op == _DELETE else None)
