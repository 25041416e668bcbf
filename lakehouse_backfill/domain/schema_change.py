"""A change of the target's columns that a run declares, and publishes with its rows."""

from __future__ import annotations

from pydantic import Field

from lakehouse_backfill.domain.declared import Name, Text
from lakehouse_backfill.domain.value import Value


class SchemaStep(Value):
    """One step: exactly one of `add`, `widen` and `rename`; all name the columns as they are."""

    add: Name | None = Field(None, description="Name of a new column; rows of before hold null.")
    type: Text | None = Field(None, description="With `add`: its Iceberg type, a simple one.")
    doc: Text | None = Field(None, description="With `add`: what it means.")
    widen: Name | None = Field(None, description="Column that gets a wider type.")
    rename: Name | None = Field(None, description="Column that gets another name.")
    to: Text | None = Field(
        None, description="With `widen`: the new type. With `rename`: the new name."
    )


class AddedColumn(Value):
    """A column that only the new side of a diff has, and how many compared rows hold a value."""

    name: str
    rows: int


#: What a run declares, in its order; empty: the columns stay as they are.
SchemaChange = tuple[SchemaStep, ...]
