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
#: The code of c1's text is named kc1.
_CODE = "k"
Found = dict[SideName, pa.Table]
_SIDES: tuple[SideName, SideName] = ("old", "new")
_BITS = 32
#: Decimals of more digits are 128-bit numbers to DuckDB.
_NARROW_DIGITS = 18


def prepared(old: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Number the rows of both sides; beside texts that are dictionaries lie codes of the values.

    A code stands for the same text on both sides, and is compared much faster.
    """
    old, new = _numbered(old), _numbered(new)
    for name in old.column_names:
        one, other = old[name], new[name]
        if one.type == other.type and pa.types.is_dictionary(one.type):
            both = pa.chunked_array([*one.chunks, *other.chunks], one.type).unify_dictionaries()
            codes = [chunk.indices for chunk in both.chunks]
            cut, kind = one.num_chunks, one.type.index_type
            old = old.append_column(f"{_CODE}{name}", pa.chunked_array(codes[:cut], kind))
            new = new.append_column(f"{_CODE}{name}", pa.chunked_array(codes[cut:], kind))
    return old, new


def _numbered(rows: pa.Table) -> pa.Table:
    ones = pa.repeat(pa.scalar(1, pa.int32()), rows.num_rows)
    return rows.append_column(ROW, pc.cumulative_sum(ones))


class Matching:
    """Fills `pairs` and `bags` from the views `old` and `new` of a connection.

    `pairs` holds the differing rows by key, with the values of both sides and which of them differ;
    `bags`, where keys repeat or there are none, the rows of these with how often a side holds them
    more than the other.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, tally: Tally) -> None:
        self._db = connection
        self._tally = tally
        self._keys = [column for column in tally.columns if column.use == "key"]
        self._compared = [column for column in tally.columns if column.use == "compared"]
        self._by = [PARTITION, *(key.slot for key in self._keys)]
        self._coded: set[str] = set()
        #: Whether the last match put rows into `bags`, which else is not there.
        self.has_bags = False

    def match(self, old: pa.Table, new: pa.Table) -> Found | None:
        """Find what differs; `old` and `new` are the prepared rows that the views show.

        Gives the rows of each side that may differ; None when there are rows in `bags`.
        """
        self._coded = {name[1:] for name in old.column_names if name.startswith(_CODE)}
        self.has_bags = False
        found = self._pair_unique(old, new)
        return self._pair_apart(old, new) if found is None else found

    def _pair_unique(self, old: pa.Table, new: pa.Table) -> Found | None:
        """Pair all rows by key; None when a side repeats one, or may do so."""
        # -0.0 and 0.0 are one key, whatever their hashes.
        if not self._keys or any(key.is_floating for key in self._keys):
            return None
        rows, keys = self._rows_and_keys("new")
        if keys < rows:
            return None
        found, joined = self._pair("{side}", old, new)
        gone, gone_keys = self._rows_and_keys("pairs", " WHERE kind = 'removed'")
        # A key that only the old side repeats joins a new row more than once, or none.
        return found if joined == rows and gone == gone_keys else None

    def _pair_apart(self, old: pa.Table, new: pa.Table) -> Found | None:
        """Pair the rows of keys that no side repeats; all others go to `bags`."""
        nothing, everything = "(SELECT * FROM {side} LIMIT 0)", "{side}"
        duplicates = self._duplicates() if self._keys else 0
        self._tally.duplicate_keys += duplicates
        if self._keys and not duplicates:
            return self._pair(everything, old, new)[0]
        self.has_bags = True
        if not self._keys:
            self._pair(nothing, old, new)
            self._bags(everything)
            return None
        inside = _same("r", "k", self._by)
        self._pair(f"(SELECT r.* FROM {{side}} r ANTI JOIN duplicates k ON {inside})", old, new)
        self._bags(f"(SELECT r.* FROM {{side}} r SEMI JOIN duplicates k ON {inside})")
        return None

    def _pair(self, relation: str, old: pa.Table, new: pa.Table) -> tuple[Found, int]:
        """Fill `pairs`; gives the rows that it is from, and how often new rows were joined."""
        numbers, joined = self._candidates(relation)
        found: Found = {"old": _taken(old, numbers["o"]), "new": _taken(new, numbers["n"])}
        for side, rows in found.items():
            self._db.register(f"{side}_found", rows)
            slots = [f"{c.sql(side)} AS {c.slot}" for c in [*self._keys, *self._compared]]
            self._db.execute(
                f"CREATE OR REPLACE TEMP VIEW {side}_differing AS "
                f"SELECT {', '.join([PARTITION, ROW, *slots])} FROM {side}_found"
            )
        self._db.register("found", numbers)
        self._fill_pairs()
        for name in ("found", "old_found", "new_found"):
            self._db.unregister(name)
        return found, joined

    def _candidates(self, relation: str) -> tuple[pa.Table, int]:
        """Give the row numbers of pairs that seem to differ; null: there is none on that side.

        Beside them, how many rows the join gives that have a new side.
        """
        sides = [
            f"(SELECT {', '.join([*self._by, ROW, *self._exact()])}, {self._hash()} AS h "
            f"FROM {relation.format(side=side)})"
            for side in _SIDES
        ]
        differing = ["o.h IS DISTINCT FROM n.h"]
        differing += [f"o.{slot} IS DISTINCT FROM n.{slot}" for slot in self._exact()]
        query = (
            f"SELECT list(coalesce(o.{ROW}, 0)::BIGINT << {_BITS} | coalesce(n.{ROW}, 0)) "
            f"FILTER ({' OR '.join(differing)}) AS both, count(n.{ROW}) AS joined "
            f"FROM {sides[0]} o FULL JOIN {sides[1]} n ON {_same('o', 'n', self._by)}"
        )
        answer = self._db.sql(query).to_arrow_table()
        both = answer["both"].combine_chunks().flatten()
        numbers = {
            "o": pc.shift_right(both, _BITS),
            "n": pc.bit_wise_and(both, pa.scalar((1 << _BITS) - 1, pa.int64())),
        }
        found = pa.table({name: _or_null(values) for name, values in numbers.items()})
        return found, answer["joined"][0].as_py()

    def _fill_pairs(self) -> None:
        slots = [column.slot for column in self._compared]
        differing = [differs(c, f"o.{c.slot}", f"n.{c.slot}") for c in self._compared]
        keys = [f"coalesce(o.{key.slot}, n.{key.slot}) AS {key.slot}" for key in self._keys]
        values = [f"{side}.{slot} AS {side}_{slot}" for side in ("o", "n") for slot in slots]
        kind = "CASE WHEN f.o IS NULL THEN 'added' WHEN f.n IS NULL THEN 'removed' "
        place = f"coalesce(o.{PARTITION}, n.{PARTITION}) AS {PARTITION}"
        flags = [f"{each} AS d_{slot}" for each, slot in zip(differing, slots, strict=True)]
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE pairs AS SELECT {kind} ELSE 'changed' END AS kind, "
            f"{', '.join([place, *keys, *values, *flags])} "
            f"FROM found f LEFT JOIN old_differing o ON f.o = o.{ROW} "
            f"LEFT JOIN new_differing n ON f.n = n.{ROW} "
            f"WHERE f.o IS NULL OR f.n IS NULL OR {' OR '.join(differing or ['false'])}"
        )

    def _rows_and_keys(self, relation: str, where: str = "") -> tuple[int, int]:
        """Count rows and their keys by hash: when both are as many, no key repeats."""
        keys = f"count(DISTINCT hash({', '.join(self._by)}))"
        found = self._db.execute(f"SELECT count(*), {keys} FROM {relation}{where}").fetchall()
        return found[0]

    def _duplicates(self) -> int:
        """Count the keys that a side holds more than once, and keep them."""
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
        slots = [f"{_CODE}{slot}" if slot in self._coded else slot for slot in slots]
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
