"""`lhb-rowhash-1` in plain Python, from docs/row-hash.md and the specification of XXH64 alone.

A column's type is its canonical type: a text, or `("struct", {name: type})`, `("list", type)`,
`("map", key type, value type)`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

MASK = (1 << 64) - 1
_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (timestamps without zone count from here)


def xxh64(data: bytes, seed: int) -> int:
    """Give XXH64 of some bytes, as an unsigned number."""
    at, size = 0, len(data)
    if size >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while at <= size - 32:
            for lane in range(4):
                (word,) = struct.unpack_from("<Q", data, at)
                lanes[lane] = _round(lanes[lane] & MASK, word)
                at += 8
        found = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            found = (((found ^ _round(0, lane)) & MASK) * _P1 + _P4) & MASK
    else:
        found = seed + _P5
    return _tail((found + size) & MASK, data[at:])


def _tail(found: int, rest: bytes) -> int:
    at = 0
    while len(rest) - at >= 8:
        (word,) = struct.unpack_from("<Q", rest, at)
        found = (_rotated(found ^ _round(0, word), 27) * _P1 + _P4) & MASK
        at += 8
    if len(rest) - at >= 4:
        (half,) = struct.unpack_from("<I", rest, at)
        found = (_rotated(found ^ (half * _P1 & MASK), 23) * _P2 + _P3) & MASK
        at += 4
    for byte in rest[at:]:
        found = _rotated(found ^ (byte * _P5 & MASK), 11) * _P1 & MASK
    found = (found ^ found >> 33) * _P2 & MASK
    found = (found ^ found >> 29) * _P3 & MASK
    return found ^ found >> 32


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & MASK, 31) * _P1 & MASK


def _rotated(value: int, by: int) -> int:
    value &= MASK
    return (value << by | value >> 64 - by) & MASK


def row_hash(columns: Mapping[str, Any], row: Mapping[str, Any]) -> int:
    """Give the hash of a row, as an unsigned number: null masks, then the values, by name."""
    return _record(columns, row)


def checksum(columns: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Give rows, xor and total of the rows' hashes."""
    count, xor, total = 0, 0, 0
    for row in rows:
        mark = row_hash(columns, row)
        count, xor, total = count + 1, xor ^ mark, (total + mark) & MASK
    return count, xor, total


def _record(columns: Mapping[str, Any], row: Mapping[str, Any]) -> int:
    names = sorted(columns)
    parts = []
    for start in range(0, max(len(names), 1), 63):
        group = names[start : start + 63]
        parts.append(_long(sum(1 << i for i, name in enumerate(group) if row[name] is None)))
    return _chain([*parts, *(_value(columns[name], row[name]) for name in names)])


def _chain(parts: Iterable[bytes | None]) -> int:
    """Hash each part with the result so far as seed; nulls are skipped."""
    found = _SEED
    for part in parts:
        found = found if part is None else xxh64(part, found)
    return found


def _value(kind: Any, value: Any) -> bytes | None:
    """Give the bytes of a value; nested ones are reduced to one number, null too."""
    if isinstance(kind, tuple):
        return _long(_SEED if value is None else _reduced(kind, value))
    return None if value is None else _bytes(kind, value)


def _element(kind: Any, value: Any) -> bytes:
    """Give the number of a list element or map entry, as bytes: 42 for null."""
    nested = _value(kind, value)
    return nested if isinstance(kind, tuple) and nested else _long(_chain([nested]))


def _reduced(kind: tuple[Any, ...], value: Any) -> int:
    if kind[0] == "struct":
        return _record(kind[1], value)
    size = _long(len(value))
    if kind[0] == "list":
        return _chain([size, *(_element(kind[1], each) for each in value)])
    entries = [_chain([_element(kind[1], k), _element(kind[2], v)]) for k, v in value.items()]
    return _chain([size, *(_long(entry) for entry in sorted(map(_signed, entries)))])


def _bytes(kind: str, value: Any) -> bytes:
    if kind.startswith("decimal"):
        return _decimal(kind, value)
    if kind == "double":
        # Every NaN is one, and zero has no sign.
        is_nan = value != value
        return struct.pack("<Q", 0x7FF8 << 48) if is_nan else struct.pack("<d", value + 0.0)
    if kind in ("timestamp", "timestamptz"):
        naive = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return _long((naive - _EPOCH) // timedelta(microseconds=1))
    if kind == "date":
        return struct.pack("<i", (value - date(1970, 1, 1)).days)
    if kind == "boolean":
        return struct.pack("<i", int(value))
    if kind == "string":
        return bytes(value.encode("utf-8"))
    return bytes(value) if kind == "binary" else _long(value)


def _decimal(kind: str, value: Decimal) -> bytes:
    size, scale = kind.removeprefix("decimal").split(":")
    unscaled = int(Context(prec=38).scaleb(value, int(scale)))
    if size == "18":
        return _long(unscaled)
    # Two's complement in as few bytes as hold it.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def _long(value: int) -> bytes:
    return struct.pack("<Q", value & MASK)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
