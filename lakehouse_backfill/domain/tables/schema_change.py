"""Declared changes of columns: their steps in words, and whether a table has got them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import Field

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.serialization import ColumnName, Text, Value
from lakehouse_backfill.domain.tables.table import Column


class SchemaStep(Value):
    """One step: exactly one of `add`, `widen` and `rename`; all name the columns as they are."""

    add: ColumnName | None = Field(
        None, description="Name of a new column; rows of before hold null."
    )
    type: Text | None = Field(None, description="With `add`: its Iceberg type, a simple one.")
    doc: Text | None = Field(None, description="With `add`: what it means.")
    widen: ColumnName | None = Field(None, description="Column that gets a wider type.")
    rename: ColumnName | None = Field(None, description="Column that gets another name.")
    to: Text | None = Field(
        None, description="With `widen`: the new type. With `rename`: the new name."
    )


#: The declared steps, in order; empty: the columns stay unchanged.
SchemaChange = tuple[SchemaStep, ...]


def added_column_names(change: SchemaChange) -> tuple[str, ...]:
    """Return the names of the added columns."""
    return tuple(step.add for step in change if step.add is not None)


def renamed_columns(change: SchemaChange) -> dict[str, str]:
    """Return the new name of each renamed column."""
    return {step.rename: step.to or "" for step in change if step.rename is not None}


def widened_columns(change: SchemaChange) -> dict[str, str]:
    """Return the new type of each widened column, by its old name."""
    return {step.widen: normalise_type(step.to or "") for step in change if step.widen is not None}


def normalise_type(kind: str) -> str:
    """Return a type's text without spaces, the form in which types are compared."""
    return re.sub(r"\s+", "", kind)


def describe_schema_step(step: SchemaStep) -> str:
    """Return a step in words."""
    if step.add is not None:
        return f"add {step.add} {normalise_type(step.type or '')}"
    if step.widen is not None:
        return f"widen {step.widen} to {normalise_type(step.to or '')}"
    return f"rename {step.rename} to {step.to}"


def schema_differences(
    before: Iterable[Column], after: Iterable[Column], change: SchemaChange
) -> tuple[str, ...]:
    """Return the columns in which `after` differs from `before` with the change; empty: none.

    Existing columns are matched by id, added columns by name, type and a higher id.
    """
    names, types = renamed_columns(change), widened_columns(change)
    expected = {
        column.field_id: (
            names.get(column.name, column.name),
            types.get(column.name, normalise_type(column.type)),
            column.required,
        )
        for column in before
    }
    last = max(expected, default=0)
    added_columns = {
        step.add: normalise_type(step.type or "") for step in change if step.add is not None
    }
    differing = []
    for column in after:
        actual = (column.name, normalise_type(column.type), column.required)
        if column.field_id in expected:
            if expected.pop(column.field_id) != actual:
                differing.append(column.name)
        elif column.field_id <= last or (added_columns.pop(column.name, None), False) != actual[1:]:
            differing.append(column.name)
    return (*differing, *(name for name, _, _ in expected.values()), *added_columns)


def schema_change_notes(change: SchemaChange, contract: Contract) -> tuple[str, ...]:
    """Return the plan's notes: what changes, for whom, and what the contract still lacks."""
    if not change:
        return ()
    contract_types = {column.name: normalise_type(column.type) for column in contract.columns}
    notes = [
        "columns change in the commit of the publication: "
        f"{', '.join(map(describe_schema_step, change))}"
    ]
    missing = [
        name
        for name in (*added_column_names(change), *renamed_columns(change).values())
        if name not in contract_types
    ]
    if missing:
        notes.append(f"the contract does not list {', '.join(missing)}: add it before the next run")
    stale = [name for name in renamed_columns(change) if name in contract_types]
    stale += [
        name
        for name, kind in widened_columns(change).items()
        if contract_types.get(name, kind) != kind
    ]
    if stale:
        notes.append(
            f"the contract says {', '.join(dict.fromkeys(stale))} as before: correct it once the "
            "run is published, or later runs fail the gate of kept columns"
        )
    readers = ", ".join(consumer.name for consumer in contract.consumers or ()) or "nobody is named"
    notes.append(f"consumers who see other columns: {readers}")
    notes.append("rollback puts the rows back and leaves the columns: old rows read null")
    return tuple(notes)
