"""Creating a product's table from its contract."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

from lakehouse_backfill.adapters.iceberg.catalog import translate_errors
from lakehouse_backfill.adapters.iceberg.type_text import TypeParser
from lakehouse_backfill.domain.contract import Contract, ContractPartition
from lakehouse_backfill.domain.lineage import LINEAGE_COLUMNS
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.fault_points import commit_window

_CREATE_PROPERTIES = {
    "format-version": "2",
    # As every table that Spark itself creates: without the property it writes gzip, which costs
    # half as much again as the whole overwrite.
    "write.parquet.compression-codec": "zstd",
}


def create_table(catalog: Catalog, contract: Contract) -> None:
    """Create the empty table; a table that somebody else made meanwhile is left as it is.

    Raises ConfigError when a type, a transform or a partition column is wrong.
    """
    schema = contract_schema(contract)
    spec = _partition_spec(contract, schema)
    with translate_errors():
        with commit_window("Catalog.create_namespace"):
            catalog.create_namespace_if_not_exists(contract.table.rpartition(".")[0])
        try:
            with commit_window("Catalog.create_table"):
                catalog.create_table(
                    contract.table,
                    schema,
                    partition_spec=spec,
                    properties={**_CREATE_PROPERTIES, "comment": contract.description},
                )
        except TableAlreadyExistsError:
            return


def contract_schema(contract: Contract) -> Schema:
    """Give the table's columns: the contract's, then the lineage columns if it wants them."""
    texts = TypeParser()
    fields = [
        NestedField(
            texts.next_id(),
            column.name,
            texts.parse(column.type),
            required=column.required,
            doc=column.description or None,
        )
        for column in contract.columns
    ]
    if contract.lineage_columns:
        taken = {column.name for column in contract.columns}
        fields += [
            NestedField(texts.next_id(), name, texts.parse(text), required=False)
            for name, text in LINEAGE_COLUMNS
            if name not in taken
        ]
    return Schema(*fields)


def _partition_spec(contract: Contract, schema: Schema) -> PartitionSpec:
    fields = [
        _partition_field(contract, schema, partition, PARTITION_FIELD_ID_START + position)
        for position, partition in enumerate(contract.partitioning)
    ]
    return PartitionSpec(*fields)


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
