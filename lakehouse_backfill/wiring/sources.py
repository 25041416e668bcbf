"""Which reader stands behind a declared source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.config.profiles import is_embedded
from lakehouse_backfill.config.sources import file_sources
from lakehouse_backfill.core.landing.land import LandingPorts
from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.errors import ConfigError, NotFound
from lakehouse_backfill.fault_points import watch_ports_if_hooked
from lakehouse_backfill.wiring.adapters import Adapters

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.sources.schema_values import RegisteredValues
    from lakehouse_backfill.domain.sources.schemas import WriterSchema
    from lakehouse_backfill.ports.sources import RawTables, SourceReader
    from lakehouse_backfill.ports.system import Clock


def landing_ports(
    wiring: Adapters,
    source: SourceDeclaration,
    *,
    looks: bool,
    reader: SourceReader | None = None,
) -> LandingPorts:
    """Make the ports of a landing: raw tables, ledger, and the reader of the source's kind.

    A new lake begins with its first table, which may be a raw table: an embedded lake is made,
    unless the command only `looks`.
    """
    from lakehouse_backfill.adapters.iceberg.control.imports import IcebergImportLedger
    from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
    from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
    from lakehouse_backfill.adapters.system.journal import JsonJournal
    from lakehouse_backfill.adapters.system.process import SystemClock

    clock, embedded = SystemClock(), is_embedded(wiring.profile, wiring.folder)
    if embedded and not looks:
        wiring.create_lake()
    try:
        raw_tables: Any = IcebergRawTables(wiring.catalog)
        control = ControlTables(wiring.catalog, wiring.profile.control_namespace)
        imports: Any = IcebergImportLedger(control)
    except NotFound:
        if not embedded:
            raise
        raw_tables = imports = _NoLake()
    ports = LandingPorts(
        raw_tables=raw_tables,
        imports=imports,
        reader=reader or _reader(wiring, source, raw_tables, clock),
        clock=clock,
        journal=JsonJournal(wiring.folder),
        progress=wiring.progress,
    )
    return watch_ports_if_hooked(ports)


def record_accepted_files(wiring: Adapters, runs: Iterable[str]) -> None:
    """Name published runs in the ledger of the files whose rows they could read.

    A project without sources of files is left at once. The same again records nothing.
    """
    files = file_sources(wiring.folder)
    if not files:
        return
    from lakehouse_backfill.adapters.iceberg.control.imports import IcebergImportLedger
    from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
    from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
    from lakehouse_backfill.core.landing.accepted import name_accepted_run
    from lakehouse_backfill.core.planning.inputs.read_windows import input_row_ranges

    control = ControlTables(wiring.catalog, wiring.profile.control_namespace)
    tables = IcebergRawTables(wiring.catalog), IcebergImportLedger(control)
    for run in runs:
        for pin in wiring.context.runs.plan(run).resolved.sources:
            if pin.table in files:
                read = pin.table, pin.snapshot_id, input_row_ranges(pin)
                name_accepted_run(tables, files[pin.table], read, run)


class _NoLake:
    """The tables of a lake that is not there yet, for those who only look."""

    def state(self, table: str) -> None:
        """Return that nothing was landed."""

    def schemas(self, table: str) -> dict[int, WriterSchema]:  # noqa: ARG002 (as above)
        """Return that no schema is kept."""
        return {}

    def deliveries(self, source: str) -> tuple[()]:  # noqa: ARG002 (the port's signature)
        """Return that no file was imported."""
        return ()


def _reader(
    wiring: Adapters, source: SourceDeclaration, raw_tables: RawTables, clock: Clock
) -> SourceReader:
    from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables

    schema = IcebergRawTables.record_schema(source)
    if source.kind == "api" and source.api is not None:
        from lakehouse_backfill.adapters.sources.api.client import ApiClient
        from lakehouse_backfill.adapters.sources.api.config import ApiEndpoint
        from lakehouse_backfill.adapters.sources.api.ledger import ResponseLedger
        from lakehouse_backfill.adapters.sources.api.reader import ApiReader
        from lakehouse_backfill.domain.sources.declaration import ResponseDeclaration

        ledger = ResponseLedger(raw_tables, ResponseDeclaration.of(source))
        client = ApiClient(ApiEndpoint.open(source.api), clock)
        return ApiReader(source, schema, client, ledger, raw_tables, clock)
    if source.kind == "kafka" and source.kafka is not None:
        from lakehouse_backfill.adapters.sources.kafka.client import KafkaClient
        from lakehouse_backfill.adapters.sources.kafka.config import KafkaTopic
        from lakehouse_backfill.adapters.sources.kafka.ledger import OffsetLedger
        from lakehouse_backfill.adapters.sources.kafka.reader import KafkaReader

        topic = KafkaClient(KafkaTopic.open(source.kafka))
        offsets = OffsetLedger(raw_tables, source.table)
        values = _registered_values(wiring, source, raw_tables)
        return KafkaReader(source, schema, topic, offsets, clock, values)
    from lakehouse_backfill.adapters.sources.files.config import FilePlaces
    from lakehouse_backfill.adapters.sources.files.reader import FileReader

    if source.files is None:
        raise ConfigError(f"{source.source} declares no files", fix="add `files:`")
    places = FilePlaces.open(source.files, wiring.folder)
    return FileReader(source, places, schema, clock.now)


def _registered_values(
    wiring: Adapters, source: SourceDeclaration, raw_tables: RawTables
) -> RegisteredValues | None:
    """Return what decodes values with the id of a schema; None where none are declared.

    A schema that is kept with the raw table is asked for nowhere again.
    """
    declared = source.kafka.schemas if source.kafka else None
    if declared is None:
        return None
    from lakehouse_backfill.adapters.payloads.decoder import PayloadDecoder
    from lakehouse_backfill.adapters.payloads.registry import SchemaRegistryClient
    from lakehouse_backfill.adapters.sources.schema_values import RegisteredValues
    from lakehouse_backfill.config.events.event_stores import schemas_in

    kept = raw_tables.schemas(source.table)
    if declared.folder is not None:
        found = schemas_in(wiring.folder, declared.folder, "kafka.schemas.folder")
        decoder = PayloadDecoder({**found, **kept})
    else:
        decoder = PayloadDecoder(kept, SchemaRegistryClient(declared).find)
    return RegisteredValues(declared, decoder, kept)
