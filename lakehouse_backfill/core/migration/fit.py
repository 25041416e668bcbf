"""Decisions about files of an old place: may Iceberg read them where they lie, or are they bad.

Types are Arrow's texts of them, e.g. `int32`, `decimal128(10, 2)`, `timestamp[us, tz=UTC]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: `as_is`: readers of Iceberg promote the stored type; `cast`: every value can be converted, or the
#: conversion fails; `clash`: the types have nothing to do with each other.
ColumnFit = Literal["as_is", "cast", "clash"]

_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_INTEGER = re.compile(r"u?int(8|16|32|64)")
_SAME = {"string_view": "string"}
#: What two texts of the same type may differ by: the layout in memory, and the name of a map.
_LAYOUT = re.compile(r"\blarge_(?=list<|string|binary)| \('[^']*'\)")
#: Zones that readers of Iceberg take for UTC. Values of another zone are the same instants.
_UTC_ZONES = ("UTC", "+00:00", "Etc/UTC", "Z")
#: What Iceberg promotes: the stored type, by the type of the column.
_PROMOTED = {
    "int32": ("int8", "int16"),
    "int64": ("int8", "int16", "int32"),
    "double": ("float",),
}
#: Characters that cut the location of a file short, or are lost in it.
_UNSAFE = re.compile(r"[?#;\\\x00-\x1f\x7f]")


#: Rows that are read at a time, and about so many bytes of them.
_BATCH_ROWS, _BATCH_BYTES = 16_384, 64 << 20


def batch_rows(rows: int, size_bytes: int) -> int:
    """Return how many rows are read at a time where these take so many bytes: at least one."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(size_bytes, 1)))


def fit_column(stored: str, wanted: str) -> ColumnFit:
    """Return how values of a stored type become values of the column's type.

    A cast never loses anything: what cannot be converted exactly makes the file bad.
    """
    stored, wanted = _plain(stored), _plain(wanted)
    if wanted in (stored, stored.replace(" not null", "")) or stored in _PROMOTED.get(wanted, ()):
        return "as_is"
    if stored == "null":
        return "cast"
    own, other = _DECIMAL.fullmatch(stored), _DECIMAL.fullmatch(wanted)
    if own and other:
        is_plain = stored.startswith("decimal128")  # PyIceberg reads no other decimals
        is_wider = is_plain and own[2] == other[2] and int(own[1]) <= int(other[1])
        return "as_is" if is_wider else "cast"
    if _INTEGER.fullmatch(stored) and (_INTEGER.fullmatch(wanted) or other):
        return "cast"
    instants = _TIMESTAMP.fullmatch(stored), _TIMESTAMP.fullmatch(wanted)
    if instants[0] and instants[1]:
        # A local time is no instant: nobody can say of which zone it is.
        if (instants[0][2] is None) != (instants[1][2] is None):
            return "clash"
        is_read = instants[0][2] is None or instants[0][2] in _UTC_ZONES
        return "as_is" if is_read and instants[0][1] == instants[1][1] else "cast"
    casts = {
        ("halffloat", "float"), ("halffloat", "double"), ("binary", "string"),
        ("date64[ms]", "date32[day]"), ("extension<arrow.json>", "string"),
        ("fixed_size_binary[16]", "extension<arrow.uuid>"),
    }  # fmt: skip
    if (stored, wanted) in casts or _head(stored) == _head(wanted) in ("list", "struct", "map"):
        return "cast"
    return "clash"


def _plain(kind: str) -> str:
    dictionary = re.match(r"dictionary<values=([^,]+), ", kind)
    kind = _LAYOUT.sub("", dictionary[1] if dictionary else kind)
    return _SAME.get(kind, kind)


def _head(kind: str) -> str:
    return kind.partition("<")[0]


@dataclass(frozen=True)
class TableShape:
    """What files are held against: the columns of the table, and its partitioning."""

    #: Arrow's type text by column.
    types: Mapping[str, str]
    required: frozenset[str]
    #: Columns by whose own value the table is partitioned.
    identity: frozenset[str]
    #: Paths of leaf columns in a Parquet file that Iceberg maps by name.
    leaves: frozenset[str]


@dataclass(frozen=True)
class FileFacts:
    """What the footer and the path of a file say."""

    #: Arrow's type text by column of the file, in its order.
    types: Mapping[str, str]
    leaves: tuple[str, ...]
    has_field_ids: bool
    #: Columns that stand in the path.
    in_path: frozenset[str]
    location: str
    #: Timestamps that are stored as INT96, which Iceberg does not read.
    old_instants: frozenset[str] = frozenset()


def find_fault(facts: FileFacts, table: TableShape) -> str | None:
    """Return why a file cannot be migrated at all, as far as its footer and path show it."""
    unknown = [name for name in (*facts.types, *sorted(facts.in_path)) if name not in table.types]
    if unknown:
        return f"column {unknown[0]} is not in the contract"
    missing = sorted(table.required - facts.types.keys() - facts.in_path)
    if missing:
        return f"the required column {missing[0]} is missing"
    for name, stored in facts.types.items():
        wanted = table.types[name]
        is_utc = name in facts.old_instants and _TIMESTAMP.fullmatch(wanted)
        if fit_column(stored, wanted) == "clash" and not is_utc:
            return f"column {name} is {stored} in the file and {wanted} in the table"
    return None


def find_rewrite_cause(facts: FileFacts, table: TableShape) -> str | None:
    """Return why Iceberg cannot read the file where it lies; None: it can."""
    if facts.has_field_ids:
        return "it has field ids of another table"
    if _UNSAFE.search(facts.location):
        return "its path has a character that a location cannot hold"
    if facts.old_instants:
        return f"column {min(facts.old_instants)} is stored as INT96"
    for name, stored in facts.types.items():
        if fit_column(stored, table.types[name]) == "cast":
            return f"column {name} is {stored} in the file and {table.types[name]} in the table"
    cause = _find_path_cause(facts.in_path - facts.types.keys(), table)
    if cause:
        return cause
    strange = [leaf for leaf in facts.leaves if leaf not in table.leaves]
    if strange:
        return f"its nested column {strange[0]} is not stored as Iceberg stores it"
    return None


def _find_path_cause(only_in_path: frozenset[str], table: TableShape) -> str | None:
    alone = sorted(only_in_path - table.identity)
    if alone:
        return f"column {alone[0]} is only in its path, and the table is not partitioned by it"
    required = sorted(only_in_path & table.required)
    if required:
        return f"the required column {required[0]} is only in its path, where PyIceberg reads none"
    return None


_NUMBERS = ("smallint", "integer", "bigint")
#: Types of a database, and the beginnings of Arrow's texts that they may become.
_DATABASE_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_NUMBERS, ("int32", "int64", "decimal")),
    "numeric": ("decimal",),
    "real": ("float", "double"),
    "double precision": ("double",),
    "boolean": ("bool",),
    **dict.fromkeys(
        ("text", "character varying", "character", "json", "jsonb"), ("string", "large_string")
    ),
    "uuid": ("extension<arrow.uuid", "string", "large_string"),
    "bytea": ("binary", "large_binary"),
    "date": ("date32",),
    "timestamp without time zone": ("timestamp[us]",),
    "timestamp with time zone": ("timestamp[us, tz=",),
}


def find_database_fault(
    stored: Mapping[str, str], wanted: Mapping[str, str], required: frozenset[str]
) -> str | None:
    """Return why a table of a database cannot be migrated; None: it can.

    Types are those that the database names, and Arrow's texts of the columns of the table.
    """
    unknown = [name for name in stored if name not in wanted]
    if unknown:
        return f"column {unknown[0]} is not in the contract"
    missing = sorted(required - stored.keys())
    if missing:
        return f"the required column {missing[0]} is missing"
    for name, kind in stored.items():
        element, other = kind.removesuffix("[]"), wanted[name]
        if kind.endswith("[]"):
            inner = re.fullmatch(r"(?:large_)?list<element: (.+?)(?: not null)?>", other)
            # An infinite date within an array would go unseen.
            is_read = inner and not element.startswith(("date", "time"))
            other = inner[1].removeprefix("extension") if inner and is_read else ""
        if not other.startswith(_DATABASE_TYPES.get(element, ("\0",))):
            return f"column {name} is {kind}, which does not become {wanted[name]}"
    return None


def key_kind(stored: str) -> str:
    """Return the type of a key as a query writes it: `character` alone would cut to one letter."""
    return "bpchar" if stored == "character" else stored
