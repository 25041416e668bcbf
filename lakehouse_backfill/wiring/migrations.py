"""Which old place and which table stand behind a declared migration."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.config.profiles import is_embedded
from lakehouse_backfill.core.migration.migrate import MigrationPorts
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery
from lakehouse_backfill.domain.sources.migration import MigrationDeclaration
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.fault_points import watch_ports_if_hooked
from lakehouse_backfill.wiring.adapters import Adapters

if TYPE_CHECKING:
    from lakehouse_backfill.ports.migration import OldPlace


def migration_ports(
    wiring: Adapters, declared: MigrationDeclaration, contract: Contract, *, looks: bool
) -> MigrationPorts:
    """Make the ports of a migration.

    A new lake begins with its first table, which may be a migrated one: an embedded lake is made,
    unless the command only `looks`.
    """
    from lakehouse_backfill.adapters.iceberg.landing.migrated_tables import (
        IcebergMigratedTables,
        table_shape,
    )
    from lakehouse_backfill.adapters.local.measuring.partition_sums import ArrowSums

    embedded = is_embedded(wiring.profile, wiring.folder)
    if embedded and not looks:
        wiring.create_lake()
    try:
        tables: Any = IcebergMigratedTables(wiring.catalog)
    except NotFound:
        if not embedded:
            raise
        tables = _NoLake()
    schema, spec, identity, leaves = table_shape(contract)
    new_sums = partial(ArrowSums, schema, spec)
    place = _place(wiring, declared, contract, (new_sums, identity, leaves))
    ports = MigrationPorts(
        place=place,
        tables=tables,
        new_sums=new_sums,
        compare=partial(_compare, wiring, place.name, new_sums().arrow_schema),
    )
    return watch_ports_if_hooked(ports)


class _NoLake:
    """The tables of a lake that is not there yet, for those who only look."""

    def state(self, table: str) -> None:
        """Return that there is no table."""


def _place(
    wiring: Adapters, declared: MigrationDeclaration, contract: Contract, table: tuple[Any, ...]
) -> OldPlace:
    from lakehouse_backfill.core.migration.fit import TableShape

    new_sums, identity, leaves = table
    schema = new_sums().arrow_schema
    shape = TableShape(
        types={field.name: str(field.type) for field in schema},
        required=frozenset(column.name for column in contract.columns if column.required),
        identity=identity,
        leaves=leaves,
    )
    if declared.postgres is not None:
        from lakehouse_backfill.adapters.sources.postgres.reader import PostgresPlace

        return PostgresPlace(declared.postgres, schema, shape.required, new_sums, wiring.progress)
    if declared.parquet is None:
        raise ConfigError(f"{declared.migration} names no place", fix="write `parquet:`")
    from lakehouse_backfill.adapters.sources.parquet_folder.places import OldFolder
    from lakehouse_backfill.adapters.sources.parquet_folder.reader import ParquetPlace

    folder = OldFolder.open(declared.parquet.location, declared.parquet.pattern, wiring.folder)
    copies_all = declared.copy_files == "always"
    return ParquetPlace(folder, schema, shape, new_sums, wiring.progress, copies_all)


def _compare(
    wiring: Adapters,
    place: str,
    schema: Any,
    query: ReaderQuery,
    old_rows: Iterator[Any],
    table: str,
    snapshot_id: int,
) -> QueryComparison:
    """Answer a reader's query from the rows of the old place, and from the table."""
    import pyarrow as pa

    from lakehouse_backfill.adapters.local.dual_read import compare_streams
    from lakehouse_backfill.adapters.local.reader import snapshot_stream
    from lakehouse_backfill.domain.catch_up import TableState

    old, new = (
        TableState(table=place, snapshot_id=None),
        TableState(table=table, snapshot_id=snapshot_id),
    )

    def read(state: TableState) -> pa.RecordBatchReader:
        if state is old:
            plain = pa.schema([pa.field(field.name, field.type) for field in schema])
            return pa.RecordBatchReader.from_batches(plain, old_rows)
        return snapshot_stream(wiring.catalog, table, snapshot_id)

    return compare_streams(query, old, new, read)
