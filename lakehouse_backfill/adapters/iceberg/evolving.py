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

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.metadata import ColumnIds, column_ids, describe_columns
from lakehouse_backfill.adapters.iceberg.type_text import TypeParser
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.publication import AdoptRequest
from lakehouse_backfill.domain.schema_change import SchemaChange
from lakehouse_backfill.domain.table_commit import NewSchema
from lakehouse_backfill.errors import Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.table_commits import CloneCommitter

#: The catalog numbers a schema that is added; this stands for that number.
_LAST_ADDED_SCHEMA = -1


@dataclass(frozen=True)
class SchemaEvolution:
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


def evolve_shadow(
    catalog: Catalog,
    shadow: str,
    base_schema_id: int,
    change: SchemaChange,
    commits: CloneCommitter | None = None,
) -> None:
    """Change a shadow's columns once, by one commit; `commits` writes what PyIceberg cannot."""
    table = load_table(catalog, shadow)
    base = _require_schema(table, base_schema_id)
    if not rules_schema_change.schema_differences(
        describe_columns(base), describe_columns(table.schema()), change
    ):
        return
    if column_ids(table.schema()) != column_ids(base):
        raise Conflict(
            f"{shadow} has other columns than its target had when the run was planned",
            state="no chunk was written; the target was not touched",
            fix="plan the run again",
        )
    if commits is not None:
        planned = UpdateSchema(table.transaction())
        _apply_schema_change(planned, change)
        after = build_new_schema(table.metadata, planned._apply())
        commits.set_columns(shadow, str(table.metadata.table_uuid), after)
        return
    with translate_errors(), commit_window("Shadows.evolve"), table.update_schema() as update:
        _apply_schema_change(update, change)


def _apply_schema_change(update: UpdateSchema, change: SchemaChange) -> None:
    for step in change:
        _add_column(update, step.add, step.type, step.doc)
        if step.widen is not None:
            update.update_column(step.widen, _parse_simple_type(step.to or ""))
    # Last: all steps name the columns as they are before.
    for old, new in rules_schema_change.renamed_columns(change).items():
        update.rename_column(old, new)


def verify_schema_evolution(shadow: Table, request: AdoptRequest) -> SchemaEvolution | None:
    """Prove that a shadow's columns are the declared change of its base's; None: no change.

    Raises Unsupported when they are anything else.
    """
    if not request.schema_change or request.base_schema_id is None:
        return None
    base = _require_schema(shadow, request.base_schema_id)
    wrong = rules_schema_change.schema_differences(
        describe_columns(base), describe_columns(shadow.schema()), request.schema_change
    )
    if wrong:
        raise Unsupported(
            f"columns of {request.shadow} are not as the run declares: {', '.join(wrong)}",
            state="nothing was published; readers see what they saw before",
            fix="plan the run again",
        )
    return SchemaEvolution(column_ids(base), shadow.schema())


def build_new_schema(metadata: TableMetadata, after: Schema) -> NewSchema:
    """Give a table's columns once they are `after`, for who is no PyIceberg."""
    numbered = _with_schema_id(metadata, after)
    return NewSchema(
        schema=numbered.model_dump_json(),
        schema_id=numbered.schema_id,
        last_column_id=max(metadata.last_column_id, after.highest_field_id),
    )


def schema_id_after(metadata: TableMetadata, after: Schema | None) -> int:
    """Give the number that the table's current schema has once it is `after`; None: as it is."""
    if after is None:
        return metadata.current_schema_id
    known = _existing_schema_id(metadata, after)
    return max(schema.schema_id for schema in metadata.schemas) + 1 if known is None else known


def schema_updates(metadata: TableMetadata, after: Schema | None) -> tuple[TableUpdate, ...]:
    """Give what makes `after` the table's current schema; a schema it had before is used again."""
    if after is None:
        return ()
    known = _existing_schema_id(metadata, after)
    if known is not None:
        return (SetCurrentSchemaUpdate(schema_id=known),)
    return (
        AddSchemaUpdate.model_validate({"schema": _with_schema_id(metadata, after)}),
        SetCurrentSchemaUpdate(schema_id=_LAST_ADDED_SCHEMA),
    )


def _with_schema_id(metadata: TableMetadata, after: Schema) -> Schema:
    return after.model_copy(update={"schema_id": schema_id_after(metadata, after)})


def _existing_schema_id(metadata: TableMetadata, after: Schema) -> int | None:
    # Schemas are equal by their columns, whatever their number.
    return next((each.schema_id for each in metadata.schemas if each == after), None)


def _require_schema(table: Table, schema_id: int) -> Schema:
    found = table.schemas().get(schema_id)
    if found is None:
        raise Conflict(
            f"{'.'.join(table.name())} does not know schema {schema_id} of its target any more",
            state="no chunk was written; the target was not touched",
            fix="plan the run again",
        )
    return found


def _add_column(update: UpdateSchema, name: str | None, kind: str | None, doc: str | None) -> None:
    if name is not None:
        update.add_column(name, _parse_simple_type(kind or ""), doc=doc)


def _parse_simple_type(text: str) -> PrimitiveType:
    found = NestedField(0, "column", TypeParser().parse(text)).field_type
    if not isinstance(found, PrimitiveType):
        raise Unsupported(f"{text} is no simple type", fix="change nested columns before the run")
    return found
