"""Schemas: parsing type texts, creating a product's table, and evolving columns.

Type texts are those of Iceberg, e.g. `decimal(10, 2)`, `list<string>`,
`struct<a: int, b: list<long>>`. A publication changes columns on the shadow first, then on the
target by the adopt commit.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

from lakehouse_backfill.adapters.iceberg.catalog import load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.metadata import ColumnIds, column_ids, describe_columns
from lakehouse_backfill.core.guards.privacy import masks
from lakehouse_backfill.domain.contract import Contract, ContractPartition
from lakehouse_backfill.domain.labels.names import table_parts, table_text
from lakehouse_backfill.domain.run import LINEAGE_COLUMNS
from lakehouse_backfill.domain.tables.commits import AdoptRequest, NewSchema
from lakehouse_backfill.domain.tables.schema_change import (
    SchemaChange,
    renamed_columns,
    schema_differences,
)
from lakehouse_backfill.errors import ConfigError, Conflict, Unsupported
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.tables import CloneCommitter

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
        """Return the next unused id."""
        return next(self._ids)

    def parse(self, text: str) -> IcebergType:
        """Return the type that `text` names; raises ConfigError when it names none."""
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
            key_id, value_id = self.next_id(), self.next_id()
            key, value = map(self.parse, parts)
            return MapType(key_id, key, value_id, value, value_required=False)
        if head == "struct" and parts:
            return StructType(*(self._parse_member(part) for part in parts))
        raise _bad_type_error(text)

    def _parse_member(self, text: str) -> NestedField:
        match = _MEMBER_PATTERN.fullmatch(text.strip())
        if match is None:
            raise _bad_type_error(text)
        name, presence, kind = match.groups()
        field_id = self.next_id()
        member_type = self.parse(_DOC_SUFFIX.sub("", kind))
        return NestedField(field_id, name, member_type, required=presence == "required")


def _parse_primitive(text: str) -> IcebergType:
    name = re.sub(r"\s+", "", text).replace("fixed(", "fixed[")
    name = name.replace(")", "]") if name.startswith("fixed") else name
    if _PRIMITIVE_PATTERN.fullmatch(name) is None:
        raise _bad_type_error(text)
    return NestedField(0, "column", name).field_type


def _split_members(text: str) -> list[str]:
    """Split at the commas outside all brackets."""
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


_CREATE_PROPERTIES = {
    "format-version": "2",
    # Spark sets this on every table that it creates. Without it Spark writes gzip, which adds half
    # of the time of the whole overwrite.
    "write.parquet.compression-codec": "zstd",
}


def create_table(
    catalog: Catalog, contract: Contract, more: Mapping[str, str] | None = None
) -> None:
    """Create the empty table; a table that another process created first is left as it is.

    `more` are further properties of the table. Raises ConfigError when a type, a transform or a
    partition column is wrong.
    """
    schema = contract_schema(contract)
    spec = contract_spec(contract, schema)
    with translate_errors():
        with commit_window("Catalog.create_namespace"):
            catalog.create_namespace_if_not_exists(table_parts(contract.table)[:-1])
        properties = {**_CREATE_PROPERTIES, "comment": contract.description, **(more or {})}
        properties |= masks.metrics_properties(contract, None)
        with suppress(TableAlreadyExistsError), commit_window("Catalog.create_table"):
            catalog.create_table(contract.table, schema, partition_spec=spec, properties=properties)


def contract_spec(contract: Contract, schema: Schema) -> PartitionSpec:
    """Return the partitioning of the contract over these columns; raises ConfigError."""
    return PartitionSpec(
        *(
            _partition_field(contract, schema, partition, PARTITION_FIELD_ID_START + position)
            for position, partition in enumerate(contract.partitioning)
        )
    )


def contract_schema(contract: Contract) -> Schema:
    """Return the table's columns: the contract's, then the lineage columns if requested."""
    columns = [
        (column.name, column.type, column.required, column.description or None)
        for column in contract.columns
    ]
    if contract.lineage_columns:
        taken = {column.name for column in contract.columns}
        lineage = [column for column in LINEAGE_COLUMNS if column[0] not in taken]
        columns += [(name, text, False, None) for name, text in lineage]
    parser = TypeParser()
    return Schema(
        *(
            NestedField(parser.next_id(), name, parser.parse(text), required=required, doc=doc)
            for name, text, required, doc in columns
        )
    )


def stored_twins(columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the columns whose name in data files, where few characters are left, is another's."""
    seen: dict[str, str] = {}
    for name in columns:
        twin = seen.setdefault(make_compatible_name(name).casefold(), name)
        if twin != name:
            yield name, f"is stored under the name of {twin!r}"


def _partition_field(
    contract: Contract, schema: Schema, partition: ContractPartition, field_id: int
) -> PartitionField:
    try:
        source = schema.find_field(partition.column)
        transform = parse_transform(partition.transform)
    except ValueError as error:
        raise ConfigError(
            f"contract {contract.product}: partitioning by {partition.column}: {error}",
            fix="name a column of the contract and a transform of Iceberg",
        ) from error
    if not transform.can_transform(source.field_type):
        raise ConfigError(
            f"contract {contract.product}: {partition.transform} does not apply to "
            f"{partition.column}, which is {source.field_type}",
            fix="use another transform",
        )
    suffix = partition.transform.partition("[")[0]
    name = partition.column if suffix == "identity" else f"{partition.column}_{suffix}"
    return PartitionField(source.field_id, field_id, transform, name)


#: Placeholder for the id that the catalog assigns to the schema added last.
_LAST_ADDED_SCHEMA = -1


@dataclass(frozen=True)
class SchemaEvolution:
    """The columns that a target must have before a swap, and its columns after the swap."""

    before: ColumnIds
    after: Schema

    def taken_ids_problem(self, metadata: TableMetadata) -> str:
        """Return which ids of new columns the table has assigned to others since; empty: none.

        Files are read by id: values of a dropped column would show in the new column (pitfall 8).
        """
        new = sorted(number for number in self.after.field_ids if number not in self.before)
        taken = [number for number in new if number <= metadata.last_column_id]
        if not taken:
            return ""
        names = ", ".join(f"{n} ({self.after.find_column_name(n)})" for n in taken)
        return f"ids of columns that the run adds were given to others meanwhile: {names}"


def evolve_shadow(
    catalog: Catalog,
    shadow: str,
    base_schema_id: int,
    change: SchemaChange,
    commits: CloneCommitter | None = None,
) -> None:
    """Change a shadow's columns in one commit; the same change again does nothing.

    `commits` writes what PyIceberg cannot write. Raises Conflict when the shadow has other columns.
    """
    table = load_table(catalog, shadow)
    base = _require_schema(table, base_schema_id)
    if not schema_differences(describe_columns(base), describe_columns(table.schema()), change):
        return
    if column_ids(table.schema()) != column_ids(base):
        raise Conflict(
            f"{shadow} has other columns than its target had when the run was planned",
            state="no chunk was written; nothing was published",
            fix="plan the run again",
        )
    if commits is not None:
        schema_update = UpdateSchema(table.transaction())
        _apply_schema_change(schema_update, change)
        after = build_new_schema(table.metadata, schema_update._apply())
        commits.set_columns(shadow, str(table.metadata.table_uuid), after)
        return
    with translate_errors(), commit_window("Shadows.evolve"), table.update_schema() as update:
        _apply_schema_change(update, change)


def _apply_schema_change(update: UpdateSchema, change: SchemaChange) -> None:
    for step in change:
        if step.add is not None:
            update.add_column(step.add, _parse_simple_type(step.type or ""), doc=step.doc)
        if step.widen is not None:
            update.update_column(step.widen, _parse_simple_type(step.to or ""))
    # Renames come last, because all steps use the names before the change.
    for old, new in renamed_columns(change).items():
        update.rename_column(old, new)


def verify_schema_evolution(shadow: Table, request: AdoptRequest) -> SchemaEvolution | None:
    """Check that a shadow's columns are the declared change of its base's; None: no change.

    Raises Unsupported when they are anything else.
    """
    if not request.schema_change or request.base_schema_id is None:
        return None
    base = _require_schema(shadow, request.base_schema_id)
    differences = schema_differences(
        describe_columns(base), describe_columns(shadow.schema()), request.schema_change
    )
    if differences:
        raise Unsupported(
            f"columns of {request.shadow} are not as the run declares: {', '.join(differences)}",
            state="nothing was published; readers see what they saw before",
            fix="plan the run again",
        )
    return SchemaEvolution(column_ids(base), shadow.schema())


def build_new_schema(metadata: TableMetadata, after: Schema) -> NewSchema:
    """Return the table's columns after the change to `after`, for committers without PyIceberg."""
    numbered = _with_schema_id(metadata, after)
    return NewSchema(
        schema=numbered.model_dump_json(),
        schema_id=numbered.schema_id,
        last_column_id=max(metadata.last_column_id, after.highest_field_id),
    )


def schema_id_after(metadata: TableMetadata, after: Schema | None) -> int:
    """Return the id of the table's current schema after the change to `after`; None: no change."""
    if after is None:
        return metadata.current_schema_id
    existing_id = _existing_schema_id(metadata, after)
    if existing_id is not None:
        return existing_id
    return max(schema.schema_id for schema in metadata.schemas) + 1


def schema_updates(metadata: TableMetadata, after: Schema | None) -> tuple[TableUpdate, ...]:
    """Return the updates that make `after` the current schema; an existing schema is reused."""
    if after is None:
        return ()
    existing_id = _existing_schema_id(metadata, after)
    if existing_id is not None:
        return (SetCurrentSchemaUpdate(schema_id=existing_id),)
    return (
        AddSchemaUpdate.model_validate({"schema": _with_schema_id(metadata, after)}),
        SetCurrentSchemaUpdate(schema_id=_LAST_ADDED_SCHEMA),
    )


def _with_schema_id(metadata: TableMetadata, after: Schema) -> Schema:
    return after.model_copy(update={"schema_id": schema_id_after(metadata, after)})


def _existing_schema_id(metadata: TableMetadata, after: Schema) -> int | None:
    # Schemas are compared by their columns, not by their id.
    return next((each.schema_id for each in metadata.schemas if each == after), None)


def _require_schema(table: Table, schema_id: int) -> Schema:
    schema = table.schemas().get(schema_id)
    if schema is None:
        raise Conflict(
            f"{table_text(table.name())} does not know schema {schema_id} of its target any more",
            state="no chunk was written; nothing was published",
            fix="plan the run again",
        )
    return schema


def _parse_simple_type(text: str) -> PrimitiveType:
    parsed = TypeParser().parse(text)
    if not isinstance(parsed, PrimitiveType):
        raise Unsupported(f"{text} is no simple type", fix="change nested columns before the run")
    return parsed
