"""What a declared schema change does to names and types of columns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.schema_change import SchemaChange, SchemaStep
from lakehouse_backfill.domain.table import Column


def added_column_names(change: SchemaChange) -> tuple[str, ...]:
    """Name the columns that come."""
    return tuple(step.add for step in change if step.add is not None)


def renamed_columns(change: SchemaChange) -> dict[str, str]:
    """Give the new name of each column that gets one."""
    return {step.rename: step.to or "" for step in change if step.rename is not None}


def widened_columns(change: SchemaChange) -> dict[str, str]:
    """Give the new type of each column that gets one, by its name of before."""
    return {step.widen: normalise_type(step.to or "") for step in change if step.widen is not None}


def normalise_type(kind: str) -> str:
    """Give a type's text without spaces, as types are compared."""
    return re.sub(r"\s+", "", kind)


def declared_schema_change(plan: Plan) -> SchemaChange:
    """Give what the run declares."""
    return plan.resolved.manifest.target.schema_change


def describe_schema_step(step: SchemaStep) -> str:
    """Say in words what a step does."""
    if step.add is not None:
        return f"add {step.add} {normalise_type(step.type or '')}"
    if step.widen is not None:
        return f"widen {step.widen} to {normalise_type(step.to or '')}"
    return f"rename {step.rename} to {step.to}"


def schema_differences(
    before: Iterable[Column], after: Iterable[Column], change: SchemaChange
) -> tuple[str, ...]:
    """Name what is not as the change makes it of `before`; empty: `after` is exactly that.

    Columns that were there are known by their ids, those that come by name, type and a later id.
    """
    names, types = renamed_columns(change), widened_columns(change)
    wanted = {
        column.field_id: (
            names.get(column.name, column.name),
            types.get(column.name, normalise_type(column.type)),
            column.required,
        )
        for column in before
    }
    last = max(wanted, default=0)
    coming = {step.add: normalise_type(step.type or "") for step in change if step.add is not None}
    wrong = []
    for column in after:
        found = (column.name, normalise_type(column.type), column.required)
        if column.field_id in wanted:
            if wanted.pop(column.field_id) != found:
                wrong.append(column.name)
        elif column.field_id <= last or (coming.pop(column.name, None), False) != found[1:]:
            wrong.append(column.name)
    return (*wrong, *(name for name, _, _ in wanted.values()), *coming)


def schema_change_notes(change: SchemaChange, contract: Contract) -> tuple[str, ...]:
    """Say in the plan what changes, for whom, and what the contract does not say yet."""
    if not change:
        return ()
    said = {column.name: normalise_type(column.type) for column in contract.columns}
    found = [
        f"columns change in the commit of the publication: {', '.join(map(describe_schema_step, change))}"
    ]
    missing = [
        name
        for name in (*added_column_names(change), *renamed_columns(change).values())
        if name not in said
    ]
    if missing:
        found.append(f"the contract does not list {', '.join(missing)}: add it before the next run")
    stale = [name for name in renamed_columns(change) if name in said]
    stale += [
        name for name, kind in widened_columns(change).items() if said.get(name, kind) != kind
    ]
    if stale:
        found.append(
            f"the contract says {', '.join(dict.fromkeys(stale))} as before: correct it once the "
            "run is published, or later runs fail the gate of kept columns"
        )
    readers = ", ".join(item.name for item in contract.consumers or ()) or "nobody is named"
    found.append(f"consumers who see other columns: {readers}")
    found.append("rollback puts the rows back and leaves the columns: old rows read null")
    return tuple(found)
