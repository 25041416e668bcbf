"""Finding the rows of a batch that differ: by key and row hash first, then by their values.

Only key, hash and row number of each row go through the join; whole rows are fetched for those that
differ. The hash only picks candidates: a row is reported when its values differ. Two different rows
of one key are taken for equal when their 64-bit hashes are, once in 2^64 changed rows.
"""

# ruff: noqa: S608 (the SQL is made of our own slots c0, c1, …)
from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import DecimalType, IcebergType, UUIDType

from lakehouse_backfill.local.columns import Column
from lakehouse_backfill.local.rows import PARTITION
from lakehouse_backfill.local.tally import SideName, Tally
from lakehouse_backfill.local.tolerating import differs

if TYPE_CHECKING:
    import duckdb

#: The number of a row within its side's batch.
ROW = "r"
_SIDES: tuple[SideName, SideName] = ("old", "new")
_BITS = 32
#: Decimals of more digits are 128-bit numbers to DuckDB.
_NARROW_DIGITS = 18


def numbered(rows: pa.Table) -> pa.Table:
    """Add the column that numbers the rows."""
    ones = pa.repeat(pa.scalar(1, pa.int32()), rows.num_rows)
    return rows.append_column(ROW, pc.cumulative_sum(ones))


class Matching:
    """Fills `pairs` and `bags` from the views `old` and `new` of a connection.

    `pairs` holds the differing rows by key, `bags` those of repeated keys, or of no key, with how
    often a side holds them more than the other.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, tally: Tally) -> None:
        self._db = connection
        self._tally = tally
        self._keys = [column for column in tally.columns if column.use == "key"]
        self._compared = [column for column in tally.columns if column.use == "compared"]
        self._by = [PARTITION, *(key.slot for key in self._keys)]

    def match(self, old: pa.Table, new: pa.Table) -> None:
        """Find what differs; `old` and `new` are the numbered rows that the views show."""
        nothing, everything = "(SELECT * FROM {side} LIMIT 0)", "{side}"
        if not self._keys:
            self._pair(nothing, old, new)
            self._bags(everything)
        elif not (duplicates := self._duplicates()):
            self._pair(everything, old, new)
            self._bags(nothing)
        else:
            self._tally.duplicate_keys += duplicates
            inside = _same("r", "k", self._by)
            self._pair(f"(SELECT r.* FROM {{side}} r ANTI JOIN duplicates k ON {inside})", old, new)
            self._bags(f"(SELECT r.* FROM {{side}} r SEMI JOIN duplicates k ON {inside})")

    def _pair(self, relation: str, old: pa.Table, new: pa.Table) -> None:
        """Fill `pairs` from a relation in which no key repeats."""
        found = self._candidates(relation)
        for side, rows, numbers in (("old", old, found["o"]), ("new", new, found["n"])):
            self._db.register(f"{side}_found", _taken(rows, numbers))
            slots = [f"{c.sql(side)} AS {c.slot}" for c in [*self._keys, *self._compared]]  # type: ignore[arg-type]  # literals in a tuple
            self._db.execute(
                f"CREATE OR REPLACE TEMP VIEW {side}_differing AS "
                f"SELECT {', '.join([PARTITION, ROW, *slots])} FROM {side}_found"
            )
        self._db.register("found", found)
        self._fill_pairs()
        for name in ("found", "old_found", "new_found"):
            self._db.unregister(name)

    def _candidates(self, relation: str) -> pa.Table:
        """Give the row numbers of pairs that seem to differ; null: there is none on that side."""
        sides = [
            f"(SELECT {', '.join([*self._by, ROW, *self._exact()])}, {self._hash()} AS h "
            f"FROM {relation.format(side=side)})"
            for side in _SIDES
        ]
        differing = ["o.h IS DISTINCT FROM n.h"]
        differing += [f"o.{slot} IS DISTINCT FROM n.{slot}" for slot in self._exact()]
        query = (
            f"SELECT list(coalesce(o.{ROW}, 0)::BIGINT << {_BITS} | coalesce(n.{ROW}, 0)) "
            f"FILTER ({' OR '.join(differing)}) AS both FROM {sides[0]} o "
            f"FULL JOIN {sides[1]} n ON {_same('o', 'n', self._by)}"
        )
        both = self._db.sql(query).to_arrow_table()["both"].combine_chunks().flatten()
        numbers = {
            "o": pc.shift_right(both, _BITS),
            "n": pc.bit_wise_and(both, pa.scalar((1 << _BITS) - 1, pa.int64())),
        }
        return pa.table({name: _or_null(values) for name, values in numbers.items()})

    def _fill_pairs(self) -> None:
        slots = [column.slot for column in self._compared]
        differing = [differs(c, f"o.{c.slot}", f"n.{c.slot}") for c in self._compared]
        keys = [f"coalesce(o.{key.slot}, n.{key.slot}) AS {key.slot}" for key in self._keys]
        values = [f"{side}.{slot} AS {side}_{slot}" for side in ("o", "n") for slot in slots]
        kind = "CASE WHEN f.o IS NULL THEN 'added' WHEN f.n IS NULL THEN 'removed' "
        columns = [f"{kind} ELSE 'changed' END AS kind", f"coalesce(o.p, n.p) AS {PARTITION}"]
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE pairs AS SELECT {', '.join([*columns, *keys, *values])} "
            f"FROM found f LEFT JOIN old_differing o ON f.o = o.{ROW} "
            f"LEFT JOIN new_differing n ON f.n = n.{ROW} "
            f"WHERE f.o IS NULL OR f.n IS NULL OR {' OR '.join(differing or ['false'])}"
        )

    def _are_unique(self) -> bool:
        """Tell by hashes of the keys that none repeats; equal hashes may be of different keys."""
        side = "SELECT count(*) - count(DISTINCT hash({by})) FROM {side}"
        both = [side.format(by=", ".join(self._by), side=name) for name in _SIDES]
        return not any(more for (more,) in self._db.execute(" UNION ALL ".join(both)).fetchall())

    def _duplicates(self) -> int:
        """Count the keys that a side holds more than once, and keep them: a join multiplies them.

        -0.0 and 0.0 are one key, whatever their hashes.
        """
        if not any(key.is_floating for key in self._keys) and self._are_unique():
            return 0
        by = ", ".join(self._by)
        side = "SELECT {by} FROM {side} GROUP BY ALL HAVING count(*) > 1"
        both = " UNION ".join(side.format(by=by, side=name) for name in _SIDES)
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE duplicates AS {both}")
        return int(self._db.execute("SELECT count(*) FROM duplicates").fetchall()[0][0])

    def _bags(self, relation: str) -> None:
        old, new = (relation.format(side=side) for side in _SIDES)
        by = ", ".join([PARTITION, *(c.slot for c in [*self._keys, *self._compared])])
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE bags AS SELECT {by}, "
            "greatest(sum(m) - sum(o), 0) AS added, greatest(sum(o) - sum(m), 0) AS removed "
            f"FROM (SELECT {by}, 1 AS o, 0 AS m FROM {old} "
            f"UNION ALL SELECT {by}, 0, 1 FROM {new}) GROUP BY {by} HAVING sum(o) <> sum(m)"
        )

    def _hash(self) -> str:
        slots = [column.slot for column in self._compared if _is_hashed(column)]
        return f"hash({', '.join(slots)})" if slots else "0"

    def _exact(self) -> list[str]:
        """Name the columns that are compared by value at once."""
        return [column.slot for column in self._compared if not _is_hashed(column)]


def _is_hashed(column: Column) -> bool:
    """Tell whether different values have different hashes, but for chance.

    Of nested types, empty and missing ones may not; of two types, equal values may not. Nor have
    128-bit numbers: DuckDB 2.0 joins the hashes of their halves by XOR, so that 0 and -1 share one.
    """
    types = {field.field_type for field in (column.old, column.new) if field is not None}
    return len(types) == 1 and all(each.is_primitive and not _is_wide(each) for each in types)


def _is_wide(kind: IcebergType) -> bool:
    """Tell whether DuckDB holds the values as 128-bit numbers."""
    is_wide_decimal = isinstance(kind, DecimalType) and kind.precision > _NARROW_DIGITS
    return is_wide_decimal or isinstance(kind, UUIDType)


def _or_null(numbers: pa.Array) -> pa.Array:
    """Rows are numbered from 1 on: 0 stands for none."""
    return pc.if_else(pc.equal(numbers, 0), pa.scalar(None, numbers.type), numbers)


def _taken(rows: pa.Table, numbers: pa.ChunkedArray) -> pa.Table:
    """Give the rows of these numbers; batch by batch, as a whole table would be copied for it."""
    wanted = pc.drop_null(numbers).combine_chunks()
    taken, start = [], 1
    for batch in rows.to_batches() if len(wanted) else ():
        stop = start + batch.num_rows
        inside = pc.and_(pc.greater_equal(wanted, start), pc.less(wanted, stop))
        taken.append(batch.take(pc.subtract(pc.filter(wanted, inside), start)))
        start = stop
    return pa.Table.from_batches(taken, rows.schema)


def _same(one: str, other: str, slots: list[str]) -> str:
    return " AND ".join(f"{one}.{slot} IS NOT DISTINCT FROM {other}.{slot}" for slot in slots)
