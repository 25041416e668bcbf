"""Columns that change with a publication: on the shadow first, then on the target by the adopt."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import NestedField, PrimitiveType

from lakehouse_backfill.adapters.iceberg.catalog import load, translated
from lakehouse_backfill.adapters.iceberg.metadata import ColumnIds, column_ids, columns_of
from lakehouse_backfill.adapters.iceberg.type_text import TypeText
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.publication import AdoptRequest
from lakehouse_backfill.domain.schema_change import SchemaChange
from lakehouse_backfill.domain.table_commit import Columns
from lakehouse_backfill.errors import Conflict, Unsupported
from lakehouse_backfill.fault_points import around
from lakehouse_backfill.ports.table_commits import CloneCommits

#: The catalog numbers a schema that is added; this stands for that number.
_LAST_ADDED = -1


@dataclass(frozen=True)
class Evolved:
    """The columns that a target must have before a swap, and those that it has after it."""

    before: ColumnIds
    after: Schema

    def taken(self, metadata: TableMetadata) -> str:
        """Say which ids of new columns the table gave to others meanwhile; empty: none.

        Files are read by id: values of a column that was dropped would show in ours (pitfall 8).
        """
        new = sorted(number for number in self.after.field_ids if number not in self.before)
        lost = [number for number in new if number <= metadata.last_column_id]
        if not lost:
            return ""
        names = ", ".join(f"{n} ({self.after.find_column_name(n)})" for n in lost)
        return f"ids of columns that the run adds were given to others meanwhile: {names}"


def evolve(
    catalog: Catalog,
    shadow: str,
    base_schema_id: int,
    change: SchemaChange,
    commits: CloneCommits | None = None,
) -> None:
    """Change a shadow's columns once, by one commit; `commits` writes what PyIceberg cannot."""
    table = load(catalog, shadow)
    base = _schema(table, base_schema_id)
    if not rules_schema_change.differing(columns_of(base), columns_of(table.schema()), change):
        return
    if column_ids(table.schema()) != column_ids(base):
        raise Conflict(
            f"{shadow} has other columns than its target had when the run was planned",
            state="no chunk was written; the target was not touched",
            fix="plan the run again",
        )
    if commits is not None:
        planned = UpdateSchema(table.transaction())
        _take_all(planned, change)
        after = columns_after(table.metadata, planned._apply())
        commits.set_columns(shadow, str(table.metadata.table_uuid), after)
        return
    with translated(), around("Shadows.evolve"), table.update_schema() as update:
        _take_all(update, change)


def _take_all(update: UpdateSchema, change: SchemaChange) -> None:
    for step in change:
        _take(update, step.add, step.type, step.doc)
        if step.widen is not None:
            update.update_column(step.widen, _type(step.to or ""))
    # Last: all steps name the columns as they are before.
    for old, new in rules_schema_change.renamed(change).items():
        update.rename_column(old, new)


def evolved(shadow: Table, request: AdoptRequest) -> Evolved | None:
    """Prove that a shadow's columns are the declared change of its base's; None: no change.

    Raises Unsupported when they are anything else.
    """
    if not request.schema_change or request.base_schema_id is None:
        return None
    base = _schema(shadow, request.base_schema_id)
    wrong = rules_schema_change.differing(
        columns_of(base), columns_of(shadow.schema()), request.schema_change
    )
    if wrong:
        raise Unsupported(
            f"columns of {request.shadow} are not as the run declares: {', '.join(wrong)}",
            state="nothing was published; readers see what they saw before",
            fix="plan the run again",
        )
    return Evolved(column_ids(base), shadow.schema())


def columns_after(metadata: TableMetadata, after: Schema) -> Columns:
    """Give a table's columns once they are `after`, for who is no PyIceberg."""
    numbered = _numbered(metadata, after)
    return Columns(
        schema=numbered.model_dump_json(),
        schema_id=numbered.schema_id,
        last_column_id=max(metadata.last_column_id, after.highest_field_id),
    )


def schema_id_after(metadata: TableMetadata, after: Schema | None) -> int:
    """Give the number that the table's current schema has once it is `after`; None: as it is."""
    if after is None:
        return metadata.current_schema_id
    known = _known(metadata, after)
    return max(schema.schema_id for schema in metadata.schemas) + 1 if known is None else known


def schema_updates(metadata: TableMetadata, after: Schema | None) -> tuple[TableUpdate, ...]:
    """Give what makes `after` the table's current schema; a schema it had before is used again."""
    if after is None:
        return ()
    known = _known(metadata, after)
    if known is not None:
        return (SetCurrentSchemaUpdate(schema_id=known),)
    return (
        AddSchemaUpdate.model_validate({"schema": _numbered(metadata, after)}),
        SetCurrentSchemaUpdate(schema_id=_LAST_ADDED),
    )


def _numbered(metadata: TableMetadata, after: Schema) -> Schema:
    return after.model_copy(update={"schema_id": schema_id_after(metadata, after)})


def _known(metadata: TableMetadata, after: Schema) -> int | None:
    # Schemas are equal by their columns, whatever their number.
    return next((each.schema_id for each in metadata.schemas if each == after), None)


def _schema(table: Table, schema_id: int) -> Schema:
    found = table.schemas().get(schema_id)
    if found is None:
        raise Conflict(
            f"{'.'.join(table.name())} does not know schema {schema_id} of its target any more",
            state="no chunk was written; the target was not touched",
            fix="plan the run again",
        )
    return found


def _take(update: UpdateSchema, name: str | None, kind: str | None, doc: str | None) -> None:
    if name is not None:
        update.add_column(name, _type(kind or ""), doc=doc)


def _type(text: str) -> PrimitiveType:
    found = NestedField(0, "column", TypeText().parse(text)).field_type
    if not isinstance(found, PrimitiveType):
        raise Unsupported(f"{text} is no simple type", fix="change nested columns before the run")
    return found
