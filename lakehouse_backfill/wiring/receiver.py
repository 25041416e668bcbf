"""The receiver of a webhook: its server, and beside it the landings of what it has kept."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.core.landing.land import LandingPorts
from lakehouse_backfill.core.landing.webhook import (
    land_all_waiting,
    new_session,
    seal_received,
)
from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.domain.sources.landings import LandedSnapshot, LandingState
from lakehouse_backfill.errors import ConfigError, Conflict, EnvironmentDown, OutcomeUnknown
from lakehouse_backfill.results.sources import ReceiveResult
from lakehouse_backfill.wiring.adapters import Adapters
from lakehouse_backfill.wiring.sources import landing_ports

if TYPE_CHECKING:
    from lakehouse_backfill.adapters.sources.api.receiver import RequestIntake
    from lakehouse_backfill.adapters.sources.api.webhook import WebhookReader


class Address(NamedTuple):
    """Where to listen; port 0 is a free one."""

    host: str
    port: int


def run_receiver(
    wiring: Adapters, source: SourceDeclaration, address: Address, seconds: float | None
) -> ReceiveResult:
    """Take requests until a signal, or for `seconds`, and land them; then tag what was landed.

    Raises ConfigError, Conflict when another process receives for the source on this machine.
    """
    from lakehouse_backfill.adapters.sources.api.receiver import RequestIntake, serving
    from lakehouse_backfill.domain.sources.landings import LandingRequest

    with _opened(wiring, source) as (reader, ports):
        # The numbers of requests go on above those that are landed: known before the first one.
        reader.survey(LandingRequest(), ())
        intake = RequestIntake.open(reader, ports.clock)
        session, problem = new_session(ports, source), ""
        with _stop_signals() as stopping, serving(intake, address.host, address.port) as port:
            wiring.progress.say(
                f"{source.source}: listening on {address.host}:{port}{reader.declared.path}"
            )
            end = None if seconds is None else time.monotonic() + seconds
            is_over = False
            while not is_over:
                is_over = _wait(stopping, reader.declared.commit_every_s, end)
                session, problem = land_all_waiting(ports, source, session)
                if problem and not is_over:
                    wiring.progress.say(f"{source.source}: requests wait: {problem}")
        session, problem = land_all_waiting(ports, source, session)
        snapshot, notes = _sealed(ports, source, session)
        return _result(
            source, intake, (session, snapshot), (*notes, *([problem] if problem else []))
        )


def land_left_over(wiring: Adapters, source: SourceDeclaration) -> tuple[str, ...]:
    """Land what a receiver on this machine has kept and not landed; return what to tell people.

    A receiver that runs lands it by itself, and so does the next call where a landing is open.
    """
    folder = _spool_folder(wiring, source)
    if source.api is None or source.api.webhook is None or not folder.exists():
        return ()
    try:
        with _opened(wiring, source) as (_, ports):
            session, problem = land_all_waiting(ports, source, new_session(ports, source))
    except Conflict:
        return ()
    landed = f"{session.rows:,} rows of received requests were landed first"
    waiting = f"received requests wait: {problem}"
    return (*([landed] if session.rows else []), *([waiting] if problem else []))


@contextmanager
def _opened(
    wiring: Adapters, source: SourceDeclaration
) -> Iterator[tuple[WebhookReader, LandingPorts]]:
    """Give the reader of what was received, and the ports of its landings; for one process."""
    from lakehouse_backfill.adapters.iceberg.landing.raw_tables import IcebergRawTables
    from lakehouse_backfill.adapters.sources.api.ledger import ResponseLedger
    from lakehouse_backfill.adapters.sources.api.reader import ApiReader
    from lakehouse_backfill.adapters.sources.api.spool import RequestSpool
    from lakehouse_backfill.adapters.sources.api.webhook import WebhookReader
    from lakehouse_backfill.adapters.system.process import SystemClock
    from lakehouse_backfill.config.profiles import is_embedded
    from lakehouse_backfill.domain.sources.declaration import ResponseDeclaration

    if source.api is None or source.api.webhook is None:
        raise ConfigError(
            f"{source.source} declares no webhook",
            fix=f"add api.webhook to catalog/sources/{source.source}.yaml",
        )
    if is_embedded(wiring.profile, wiring.folder):
        wiring.create_lake()
    tables: Any = IcebergRawTables(wiring.catalog)
    ledger = ResponseLedger(tables, ResponseDeclaration.of(source))
    schema, clock = IcebergRawTables.record_schema(source), SystemClock()
    spool = RequestSpool(_spool_folder(wiring, source))
    try:
        reader = WebhookReader(ApiReader(source, schema, None, ledger, tables, clock), spool)
        yield reader, landing_ports(wiring, source, looks=False, reader=reader)
    finally:
        spool.close()


def _spool_folder(wiring: Adapters, source: SourceDeclaration) -> Any:
    return wiring.folder / ".lakehouse" / "received" / source.source


def _wait(stopping: threading.Event, pause_s: float, end: float | None) -> bool:
    """Wait for the next commit, at most until the end; return whether it was reached."""
    if end is not None:
        pause_s = min(pause_s, max(0.0, end - time.monotonic()))
    return stopping.wait(pause_s) or (end is not None and time.monotonic() >= end)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Give an event that SIGINT and SIGTERM set; a second signal does what it did before."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _frame: object) -> None:
        stopping.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sealed(
    ports: LandingPorts, source: SourceDeclaration, session: LandingState
) -> tuple[LandedSnapshot | None, tuple[str, ...]]:
    if not session.rows:
        return None, ()
    try:
        return seal_received(ports, source, session), ()
    except (Conflict, OutcomeUnknown, EnvironmentDown) as error:
        return None, (f"the landing has no tag: {error.problem}",)


def _result(
    source: SourceDeclaration,
    intake: RequestIntake,
    landed: tuple[LandingState, LandedSnapshot | None],
    warnings: tuple[str, ...],
) -> ReceiveResult:
    session, snapshot = landed
    return ReceiveResult(
        source=source.source,
        table=source.table,
        landing_id=session.landing_id if session.rows else None,
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        tag=snapshot.tag if snapshot else None,
        rows=session.rows,
        requests=intake.kept,
        repeated=intake.repeated,
        refused=intake.refused,
        waiting=intake.waiting(),
        warnings=warnings,
    )
