"""Which adapters stand behind a replay of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse_backfill.config.events.event_stores import find_handler, load_schemas
from lakehouse_backfill.core.replay.check import require_compatible
from lakehouse_backfill.core.replay.replay import ReplayHandler, ReplayPorts
from lakehouse_backfill.core.replay.topic import TopicReplayPorts
from lakehouse_backfill.domain.sources.events import EventStoreDeclaration
from lakehouse_backfill.events import Upcasters, UpcastStep
from lakehouse_backfill.fault_points import watch_ports_if_hooked
from lakehouse_backfill.wiring.adapters import Adapters

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.payloads.decoder import PayloadDecoder


def replay_ports(wiring: Adapters, store: EventStoreDeclaration) -> ReplayPorts:
    """Make the ports of a replay."""
    from lakehouse_backfill.adapters.iceberg.control.replays import IcebergReplayLedger
    from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
    from lakehouse_backfill.adapters.iceberg.landing.handler_tables import IcebergHandlerTables
    from lakehouse_backfill.adapters.iceberg.refs import IcebergPins
    from lakehouse_backfill.adapters.local.event_reader import IcebergEventReader
    from lakehouse_backfill.adapters.system.journal import JsonJournal
    from lakehouse_backfill.adapters.system.process import SystemClock

    control = ControlTables(wiring.catalog, wiring.profile.control_namespace)
    ports = ReplayPorts(
        reader=IcebergEventReader(wiring.catalog, _decoder(wiring, store)),
        tables=IcebergHandlerTables(wiring.catalog),
        ledger=IcebergReplayLedger(control),
        pins=IcebergPins(wiring.catalog),
        clock=SystemClock(),
        journal=JsonJournal(wiring.folder),
        progress=wiring.progress,
    )
    return watch_ports_if_hooked(ports)


def topic_replay_ports(wiring: Adapters) -> TopicReplayPorts:
    """Make the ports of a replay into a topic, which gets payloads as they are stored."""
    from lakehouse_backfill.adapters.iceberg.control.replays import IcebergReplayLedger
    from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
    from lakehouse_backfill.adapters.local.event_reader import IcebergEventReader
    from lakehouse_backfill.adapters.sources.kafka.event_topics import KafkaEventTopics
    from lakehouse_backfill.adapters.system.journal import JsonJournal
    from lakehouse_backfill.adapters.system.process import SystemClock

    control = ControlTables(wiring.catalog, wiring.profile.control_namespace)
    ports = TopicReplayPorts(
        reader=IcebergEventReader(wiring.catalog, None),
        topics=KafkaEventTopics(),
        ledger=IcebergReplayLedger(control),
        clock=SystemClock(),
        journal=JsonJournal(wiring.folder),
        progress=wiring.progress,
        profile=wiring.profile,
    )
    return watch_ports_if_hooked(ports)


def load_upcasters(wiring: Adapters, store: EventStoreDeclaration) -> Upcasters:
    """Load the upcasters of an event store, and hold its schemas to what is declared of them.

    Raises ConfigError, WriteForbidden, Unsupported (schemas that are not compatible).
    """
    from lakehouse_backfill.adapters.system.event_code import EventCode

    code = EventCode(wiring.folder)
    steps = [
        UpcastStep(one.event_type, one.from_, one.to, code.function(one.function))
        for one in store.upcasters
    ]
    upcasters = Upcasters(steps, store.current)
    decoder = _decoder(wiring, store)
    if decoder is not None:
        require_compatible(store, decoder.known(), upcasters, decoder.protobuf_fields())
    return upcasters


def _decoder(wiring: Adapters, store: EventStoreDeclaration) -> PayloadDecoder | None:
    """Return what decodes payloads with Confluent's header; None where none is declared."""
    from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
    from lakehouse_backfill.adapters.payloads.decoder import PayloadDecoder

    if store.version is None:
        return None
    if store.version.landed_schemas:
        return PayloadDecoder(IcebergRawTables(wiring.catalog).schemas(store.table))
    if store.version.schemas is None:
        return None
    return PayloadDecoder(load_schemas(wiring.folder, store))


def load_handler(wiring: Adapters, store: EventStoreDeclaration, name: str) -> ReplayHandler:
    """Load a declared handler with its code; raises NotFound, ConfigError, WriteForbidden."""
    from lakehouse_backfill.adapters.system.event_code import EventCode

    declared = find_handler(store, name)
    function = EventCode(wiring.folder).function(declared.function)
    return ReplayHandler(name, declared, function, load_upcasters(wiring, store))
