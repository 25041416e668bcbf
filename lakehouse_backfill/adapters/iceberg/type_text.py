"""Iceberg type texts, e.g. `decimal(10, 2)`, `list<string>`, `struct<a: int, b: list<long>>`."""

from __future__ import annotations

import itertools
import re

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from lakehouse_backfill.errors import ConfigError

#: `3: name: optional type` as PyIceberg writes it, or just `name: type`.
_MEMBER_PATTERN = re.compile(r"(?:\d+:\s*)?(\w+)\s*:\s*(?:(optional|required)\s+)?(.*)", re.DOTALL)
_PRIMITIVE_PATTERN = re.compile(
    r"boolean|int|long|float|double|string|date|time|timestamp|timestamptz|uuid|binary"
    r"|fixed\[[1-9]\d{0,8}\]|decimal\(([1-9]|[12]\d|3[0-8]),([12]?\d|3[0-8])\)"
)
#: PyIceberg's text of a documented field ends in `(doc)`; `decimal(10, 2)` and `fixed(4)` do not.
_DOC_SUFFIX = re.compile(r"\s+\([^()]*\)$")


class TypeParser:
    """Parses type texts; every nested field gets the next id."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def next_id(self) -> int:
        """Give an id that was not given before."""
        return next(self._ids)

    def parse(self, text: str) -> IcebergType:
        """Give the type that `text` names; raises ConfigError when it is none."""
        text = text.strip()
        head, bracket, rest = text.partition("<")
        if not bracket:
            return _parse_primitive(text)
        if not rest.endswith(">"):
            raise _bad_type_error(text)
        parts = _split_members(rest[:-1])
        if head == "list" and len(parts) == 1:
            return ListType(self.next_id(), self.parse(parts[0]), element_required=False)
        if head == "map" and len(parts) == 2:
            key, value = self.next_id(), self.next_id()
            return MapType(
                key, self.parse(parts[0]), value, self.parse(parts[1]), value_required=False
            )
        if head == "struct" and parts:
            return StructType(*(self._member(part) for part in parts))
        raise _bad_type_error(text)

    def _member(self, text: str) -> NestedField:
        match = _MEMBER_PATTERN.fullmatch(text.strip())
        if match is None:
            raise _bad_type_error(text)
        name, presence, kind = match.groups()
        field_id = self.next_id()
        return NestedField(
            field_id, name, self.parse(_DOC_SUFFIX.sub("", kind)), required=presence == "required"
        )


def _parse_primitive(text: str) -> IcebergType:
    name = re.sub(r"\s+", "", text).replace("fixed(", "fixed[")
    name = name.replace(")", "]") if name.startswith("fixed") else name
    if _PRIMITIVE_PATTERN.fullmatch(name) is None:
        raise _bad_type_error(text)
    return NestedField(0, "column", name).field_type


def _split_members(text: str) -> list[str]:
    """Cut at the commas that stand outside all brackets."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _bad_type_error(text: str) -> ConfigError:
    return ConfigError(
        f"{text.strip()!r} is no Iceberg type",
        fix="write e.g. long, string, date, timestamptz, decimal(10, 2), list<string>",
    )
