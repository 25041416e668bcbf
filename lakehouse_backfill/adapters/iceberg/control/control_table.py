"""What a control table is: its name, its columns, and how it is kept small.

JSON documents, ids and hashes are strings, instants are `timestamptz` (microseconds, UTC); there
is no partitioning, so every engine reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

_SIMPLE = (StringType, IntegerType, LongType, DoubleType, BooleanType, TimestamptzType)
_TYPES_BY_NAME: dict[str, IcebergType] = {str(made): made for made in (kind() for kind in _SIMPLE)}

#: Columns that every control table begins with.
LOG_SEQ = "log_seq"
LOG_ID = "log_id"
_LOG_COLUMNS = (
    (LOG_SEQ, "long!", "Order of the rows: grows with every row appended."),
    (LOG_ID, "string!", "The commit that appended the row; shared by rows appended together."),
)

#: PyIceberg's own retries would append a second time on a newer head without asking again
#: (48 duplicate versions in 160 moves), so our loop is the only one that retries.
CONTROL_TABLE_PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}


@dataclass(frozen=True)
class ControlTable:
    """One control table: its name, what a row is, and its columns (name, type, meaning).

    A type that ends in `!` is never null; `[string]` is a list of strings.
    """

    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]

    def schema(self) -> Schema:
        """Give the Iceberg schema, with a doc text on every column."""
        columns = (*_LOG_COLUMNS, *self.columns)
        nested_ids = count(len(columns) + 1)
        return Schema(
            *(
                NestedField(
                    field_id=number,
                    name=name,
                    field_type=_iceberg_type(text.rstrip("!"), nested_ids),
                    required=text.endswith("!"),
                    doc=doc,
                )
                for number, (name, text, doc) in enumerate(columns, start=1)
            )
        )

    def properties(self) -> dict[str, str]:
        """Give the table properties."""
        return {**CONTROL_TABLE_PROPERTIES, "comment": self.comment}

    def missing(self, schema: Schema) -> tuple[tuple[str, IcebergType, str], ...]:
        """Name the columns, with type and meaning, that a table of an older release lacks."""
        known = set(schema.column_names)
        return tuple(
            (name, _iceberg_type(text.rstrip("!"), count(1)), doc)
            for name, text, doc in self.columns
            if name not in known
        )


def _iceberg_type(text: str, nested_ids: Iterator[int]) -> IcebergType:
    if text == "[string]":
        return ListType(element_id=next(nested_ids), element_type=StringType())
    return _TYPES_BY_NAME[text]
