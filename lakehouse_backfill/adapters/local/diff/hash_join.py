"""Matching of the rows of a batch by join: first by key and row hash, then by value.

Only key, hash and row number of each row go through the join; whole rows are fetched for candidates
only. The hash only picks candidates: a row is reported when its values differ. Two different rows
of one key are taken for equal when their 64-bit hashes are equal, once in 2^64 changed rows.
"""

# ruff: noqa: S608 (the SQL uses our own slots c0, c1, …)
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import DecimalType, IcebergType, UUIDType

from lakehouse_backfill.adapters.local.diff.columns import (
    CODE_PREFIX,
    LARGE_TYPES,
    PARTITION_SLOT,
    ROW_NUMBER_BITS,
    ROW_NUMBER_SLOT,
    DiffColumn,
    SideName,
    are_arrow_comparable,
    differing_pairs,
    differs_sql,
)
from lakehouse_backfill.adapters.local.diff.tally import Tally
from lakehouse_backfill.adapters.local.duckdb_engine import LazyDuckDB

if TYPE_CHECKING:
    import duckdb


RowsBySide = dict[SideName, pa.Table]
_SIDES: tuple[SideName, SideName] = ("old", "new")
_PREFIXES = ("o_", "n_")

_NEW_ROW_MASK = (1 << ROW_NUMBER_BITS) - 1
#: Decimals of more digits are 128-bit numbers to DuckDB.
_MAX_64_BIT_DIGITS = 18


def prepare_sides(old: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Number the rows of both sides, and add code columns for texts that are dictionaries.

    A code stands for the same text on both sides and is compared much faster.
    """
    old, new = number_rows(old), number_rows(new)
    for name in old.column_names:
        old_texts, new_texts = old[name], new[name]
        if old_texts.type == new_texts.type and pa.types.is_dictionary(old_texts.type):
            both = pa.chunked_array(
                [*old_texts.chunks, *new_texts.chunks], old_texts.type
            ).unify_dictionaries()
            codes = [chunk.indices for chunk in both.chunks]
            old_chunks, kind = old_texts.num_chunks, old_texts.type.index_type
            old = old.append_column(
                f"{CODE_PREFIX}{name}", pa.chunked_array(codes[:old_chunks], kind)
            )
            new = new.append_column(
                f"{CODE_PREFIX}{name}", pa.chunked_array(codes[old_chunks:], kind)
            )
    return old, new


def number_rows(rows: pa.Table) -> pa.Table:
    """Number the rows from 1 on, in one more column."""
    ones = pa.repeat(pa.scalar(1, pa.int32()), rows.num_rows)
    return rows.append_column(ROW_NUMBER_SLOT, pc.cumulative_sum(ones))


class HashJoin:
    """Fills `pairs`, an Arrow table, and `bags` from the views `old` and `new` of a connection.

    `pairs` holds the differing rows by key, with the values of both sides and flags for the values
    that differ. `bags` exists where keys repeat or there is no key. It holds their rows, with how
    many more of each row one side has than the other.
    """

    def __init__(self, engine: LazyDuckDB, tally: Tally) -> None:
        self._engine = engine
        self._tally = tally
        self._keys, self._compared = tally.keys, tally.compared
        self._join_slots = [PARTITION_SLOT, *(key.slot for key in self._keys)]
        self._encoded_slots: set[str] = set()
        #: Whether the last match filled `bags`; otherwise that table does not exist.
        self.has_bags = False
        self.pairs = pa.table({})

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        return self._engine.db

    def match_rows(self, old: pa.Table, new: pa.Table) -> RowsBySide | None:
        """Fill `pairs`, and `bags` where keys repeat, by a join of the views.

        The views are made of the tables. Returns the rows of each side that may differ; None when
        there are rows in `bags`.
        """
        names = [name for name in old.column_names if name.startswith(CODE_PREFIX)]
        self._encoded_slots = {name.removeprefix(CODE_PREFIX) for name in names}
        self.has_bags = False
        pairs = self._join_unique_keys((old.num_rows, new.num_rows))
        compared = None if pairs is None else self._pair_unique(pairs, old, new)
        return self._pair_without_duplicates(old, new) if compared is None else compared

    def take_pairs(self, pairs: np.ndarray, old: pa.Table, new: pa.Table) -> RowsBySide:
        """Fill `pairs` from pairs of unique keys; return the rows that were compared."""
        self.has_bags = False
        return self._compare_pairs(pairs, old, new)

    def _join_unique_keys(self, rows: tuple[int, int]) -> np.ndarray | None:
        """Join both sides by key; return candidate pairs, or None when keys seem to repeat."""
        # -0.0 and 0.0 are one key, but their hashes differ.
        if not self._keys or any(key.is_floating for key in self._keys):
            return None
        # A key that both sides have and one side repeats joins a row of the other side more than
        # once. The limit stops the join beyond the number of pairs that unique keys can give.
        pairs, joined = self._candidate_pairs("{side}", f" LIMIT {sum(rows) + 1}")
        return pairs if joined == rows else None

    def _pair_unique(self, pairs: np.ndarray, old: pa.Table, new: pa.Table) -> RowsBySide | None:
        """Pair all rows by key; return None when a side repeats a key that the other side lacks."""
        compared = self._compare_pairs(pairs, old, new)
        unpaired = self.pairs.filter(pc.not_equal(self.pairs["kind"], "changed"))
        keys = unpaired.group_by(["kind", *self._join_slots]).aggregate([])
        return compared if keys.num_rows == unpaired.num_rows else None

    def _pair_without_duplicates(self, old: pa.Table, new: pa.Table) -> RowsBySide | None:
        """Pair the rows of keys that no side repeats; all others go to `bags`."""
        duplicates = self._store_duplicate_keys() if self._keys else 0
        self._tally.duplicate_keys += duplicates
        if self._keys and not duplicates:
            return self._compare_pairs(self._candidate_pairs("{side}")[0], old, new)
        same_key = _equal_keys_sql("r", "k", self._join_slots)
        unique, repeated = "(SELECT * FROM {side} LIMIT 0)", "{side}"
        if self._keys:
            unique = f"(SELECT r.* FROM {{side}} r ANTI JOIN duplicates k ON {same_key})"
            repeated = f"(SELECT r.* FROM {{side}} r SEMI JOIN duplicates k ON {same_key})"
        self._compare_pairs(self._candidate_pairs(unique)[0], old, new)
        self.has_bags = True
        self._store_bags(repeated)
        return None

    def _compare_pairs(self, pairs: np.ndarray, old: pa.Table, new: pa.Table) -> RowsBySide:
        """Fill `pairs` with those whose values differ; return the rows that were compared."""
        compared: RowsBySide = {}
        columns: dict[str, pa.ChunkedArray] = {}
        numbers = pairs >> ROW_NUMBER_BITS, pairs & _NEW_ROW_MASK
        for side, prefix, rows, row_numbers in zip(
            _SIDES, _PREFIXES, (old, new), numbers, strict=True
        ):
            values = [name for name in rows.column_names if not name.startswith(CODE_PREFIX)]
            compared[side], places = _take_rows(rows.select(values), row_numbers)
            in_pair_order = compared[side].take(places)
            names = [f"{prefix}{name}" for name in in_pair_order.column_names]
            columns |= dict(zip(names, in_pair_order.columns, strict=True))
        if are_arrow_comparable(self._tally.columns):
            self.pairs = differing_pairs(columns, self._join_slots, self._compared)
        else:
            self._db.register("found", pa.table(columns))
            self.pairs = self._compare_in_duckdb()
            self._db.unregister("found")
        return compared

    def _candidate_pairs(
        self, relation: str, limit: str = ""
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """Return the candidate pairs, and how many of all pairs have an old and a new row.

        A pair is the old row's number shifted left by ROW_NUMBER_BITS, plus the new row's number; 0
        stands for no row.
        """
        sides = [
            f"(SELECT {', '.join([*self._join_slots, ROW_NUMBER_SLOT, *self._unhashed_slots()])}, "
            f"{self._hash_sql()} AS h FROM {relation.format(side=side)})"
            for side in _SIDES
        ]
        differing = ["o.h IS DISTINCT FROM n.h"]
        differing += [f"o.{slot} IS DISTINCT FROM n.{slot}" for slot in self._unhashed_slots()]
        joined = (
            f"SELECT o.{ROW_NUMBER_SLOT} AS o, n.{ROW_NUMBER_SLOT} AS n, "
            f"{' OR '.join(differing)} AS differs "
            f"FROM {sides[0]} o FULL JOIN {sides[1]} n "
            f"ON {_equal_keys_sql('o', 'n', self._join_slots)}{limit}"
        )
        query = (
            f"SELECT list(coalesce(o, 0)::BIGINT << {ROW_NUMBER_BITS} | coalesce(n, 0)) "
            f"FILTER (differs) AS pairs, count(o) AS old, count(n) AS new FROM ({joined})"
        )
        answer = self._db.sql(query).to_arrow_table()
        pairs = answer["pairs"].combine_chunks().flatten().to_numpy()
        return np.sort(pairs), (answer["old"][0].as_py(), answer["new"][0].as_py())

    def _compare_in_duckdb(self) -> pa.Table:
        columns = [*self._keys, *self._compared]
        values = [
            f"{column.comparable_sql(side, prefix)} AS {prefix}{column.slot}"
            for side, prefix in zip(_SIDES, _PREFIXES, strict=True)
            for column in columns
        ]
        key_columns = [f"coalesce(o_{name}, n_{name}) AS {name}" for name in self._join_slots]
        flags = {c.slot: differs_sql(c, f"o_{c.slot}", f"n_{c.slot}") for c in self._compared}
        flagged = [f"{condition} AS d_{slot}" for slot, condition in flags.items()]
        kind = (
            f"CASE WHEN o_{ROW_NUMBER_SLOT} IS NULL THEN 'added' "
            f"WHEN n_{ROW_NUMBER_SLOT} IS NULL THEN 'removed' "
        )
        sides = [f"{prefix}{slot}" for prefix in _PREFIXES for slot in flags]
        return self._db.sql(
            f"SELECT {kind} ELSE 'changed' END AS kind, "
            f"{', '.join([*key_columns, *sides, *flagged])} "
            f"FROM (SELECT o_{PARTITION_SLOT}, n_{PARTITION_SLOT}, o_{ROW_NUMBER_SLOT}, "
            f"n_{ROW_NUMBER_SLOT}, {', '.join(values)} FROM found) "
            f"WHERE o_{ROW_NUMBER_SLOT} IS NULL OR n_{ROW_NUMBER_SLOT} IS NULL "
            f"OR {' OR '.join(flags.values()) or 'false'}"
        ).to_arrow_table()

    def _store_duplicate_keys(self) -> int:
        """Store the keys that a side holds more than once, and return their number."""
        key_columns = ", ".join(self._join_slots)
        query = "SELECT {by} FROM {side} GROUP BY ALL HAVING count(*) > 1"
        union = " UNION ".join(query.format(by=key_columns, side=name) for name in _SIDES)
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE duplicates AS {union}")
        return int(self._db.execute("SELECT count(*) FROM duplicates").fetchall()[0][0])

    def _store_bags(self, relation: str) -> None:
        old, new = (relation.format(side=side) for side in _SIDES)
        columns = ", ".join([PARTITION_SLOT, *(c.slot for c in [*self._keys, *self._compared])])
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE bags AS SELECT {columns}, "
            "greatest(sum(m) - sum(o), 0) AS added, greatest(sum(o) - sum(m), 0) AS removed "
            f"FROM (SELECT {columns}, 1 AS o, 0 AS m FROM {old} "
            f"UNION ALL SELECT {columns}, 0, 1 FROM {new}) GROUP BY {columns} "
            "HAVING sum(o) <> sum(m)"
        )

    def _hash_sql(self) -> str:
        slots = [column.slot for column in self._compared if _is_hashed(column)]
        slots = [f"{CODE_PREFIX}{slot}" if slot in self._encoded_slots else slot for slot in slots]
        return f"hash({', '.join(slots)})" if slots else "0"

    def _unhashed_slots(self) -> list[str]:
        """Return the columns that the join compares by value."""
        return [column.slot for column in self._compared if not _is_hashed(column)]


def _is_hashed(column: DiffColumn) -> bool:
    """Return whether different values of the column have different hashes, except by chance.

    Nested types are not hashed, as empty and missing values may share a hash. Columns of two types
    are not, as equal values may have different hashes. 128-bit numbers are not, as DuckDB 2.0
    combines the hashes of their halves by XOR, so that 0 and -1 share one.
    """
    kinds = set(column.field_types)
    return len(kinds) == 1 and all(each.is_primitive and not _is_128_bit(each) for each in kinds)


def _is_128_bit(kind: IcebergType) -> bool:
    """Return whether DuckDB holds the values as 128-bit numbers."""
    is_wide_decimal = isinstance(kind, DecimalType) and kind.precision > _MAX_64_BIT_DIGITS
    return is_wide_decimal or isinstance(kind, UUIDType)


def _take_rows(rows: pa.Table, numbers: np.ndarray) -> tuple[pa.Table, pa.Array]:
    """Return the rows of these numbers in row order, and each number's position among them.

    Rows are numbered from 1 on; 0 stands for none. They are taken batch by batch, as taking from a
    whole table would copy it.
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    missing = int(np.searchsorted(ordered, 1))
    batches, start = [], 1
    for batch in rows.to_batches() if missing < len(ordered) else ():
        stop = start + batch.num_rows
        first, last = np.searchsorted(ordered, (start, stop))
        if first < last:
            batches.append(batch.take(pa.array(ordered[first:last] - start)))
        start = stop
    places = np.empty(len(numbers), np.int64)
    places[order] = np.arange(len(numbers)) - missing
    result = _with_large_types(pa.Table.from_batches(batches, rows.schema)).combine_chunks()
    return result, pa.array(places, mask=numbers == 0)


def _with_large_types(rows: pa.Table) -> pa.Table:
    """Cast texts and bytes to types that may exceed 2 GiB."""
    fields = [field.with_type(LARGE_TYPES.get(field.type, field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _equal_keys_sql(one: str, other: str, slots: list[str]) -> str:
    return " AND ".join(f"{one}.{slot} IS NOT DISTINCT FROM {other}.{slot}" for slot in slots)
