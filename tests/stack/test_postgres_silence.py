"""A catalog on PostgreSQL that does not answer is not waited for forever (X1, X3)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from lakehouse_backfill.adapters.iceberg.catalog import open_catalog
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import CatalogDown, OutcomeUnknown
from tests.stack.servers import HOST
from tests.support.lakes.catalogs import NAMES_CATALOG
from tests.support.lakes.tables import DAY, DAYS, Kit, row

pytestmark = pytest.mark.req("X1", "X3")
LIMIT_S = 2.0


def test_a_server_that_takes_connections_and_answers_none_is_not_waited_for(
    tmp_path: Path,
) -> None:
    with socket.create_server((HOST, 0)) as silent:
        # The least that the client library knows.
        place = f"{HOST}:{silent.getsockname()[1]}/lake?connect_timeout=2"
        catalog = {"name": "lake", "type": "sql", "uri": f"postgresql+psycopg2://{place}"}
        began = time.monotonic()
        with pytest.raises(CatalogDown, match="does not answer"):
            open_catalog(Profile(catalog=catalog), tmp_path)
        assert time.monotonic() - began < 20


class Relay:
    """Stands before the server; `on_commit` is called once before a COMMIT is passed on.

    Once it returns False neither the COMMIT nor anything else of that connection is passed on.
    `held` has what was not, with the connection to the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listens = socket.create_server((HOST, 0))
        self.port: int = self._listens.getsockname()[1]
        self.silences: str = ""
        self.held: list[tuple[socket.socket, bytes]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listens.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, self._port))
            silent = threading.Event()
            for source, sink in ((client, server), (server, client)):
                part = (source, sink, silent)
                threading.Thread(target=self._pass_on, args=part, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, silent: threading.Event) -> None:
        while words := _received(source):
            if words.endswith(b"COMMIT\0") and self.silences:
                silences, self.silences = self.silences, ""
                silent.set()
                if silences == "request":
                    self.held.append((sink, words))
                else:
                    sink.sendall(words)
            elif not silent.is_set():
                sink.sendall(words)
        if not silent.is_set():
            sink.close()

    def close(self) -> None:
        self._listens.close()


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


@pytest.fixture
def relay(named: Callable[[str], dict[str, str]], tmp_path: Path) -> Iterator[Relay]:
    """Let the folder's catalog be reached through a relay, with a limit for statements."""
    properties = named("postgres")
    uri = make_url(properties["uri"])
    made = Relay(uri.port or 0)
    through = uri.set(port=made.port).render_as_string()
    limited = {**properties, "uri": through, "sql.statement-timeout-ms": f"{LIMIT_S * 1000:g}"}
    (tmp_path / NAMES_CATALOG).write_text(json.dumps(limited), encoding="utf-8")
    yield made
    made.close()


@pytest.fixture
def kit(relay: Relay, tmp_path: Path) -> Kit:
    made = Kit(tmp_path)
    made.create_days(DAYS)
    return made


def staged(kit: Kit) -> Any:
    return kit.stage(DAY, {DAYS[1]: [row(11, DAYS[1], "new")]})


def test_a_commit_that_landed_without_an_answer_is_found(relay: Relay, kit: Kit) -> None:
    request = staged(kit)
    relay.silences = "answer"
    began = time.monotonic()
    assert kit.publisher.adopt(request).rows_added == 1
    assert time.monotonic() - began > LIMIT_S
    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]


def test_a_commit_that_may_still_land_is_of_unknown_outcome_and_is_made_once(
    relay: Relay, kit: Kit
) -> None:
    request = staged(kit)
    relay.silences = "request"
    with pytest.raises(OutcomeUnknown, match="did not answer within 2 s"):
        kit.publisher.adopt(request)
    assert [one[3] for one in kit.rows()] == ["old", "old", "old"]
    kept = len(kit.live.load_table("silver.t").snapshots())
    ((server, words),) = relay.held
    server.sendall(words)
    deadline = time.monotonic() + 20
    while kit.rows()[1][3] == "old" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert kit.publisher.adopt(request).rows_added == 1
    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]
    assert len(kit.live.load_table("silver.t").snapshots()) == kept + 1


def test_a_row_that_a_stopped_process_has_locked_is_not_waited_for(
    kit: Kit, tmp_path: Path
) -> None:
    request = staged(kit)
    engine: Any = kit.live.engine
    with engine.connect() as stopped:
        stopped.exec_driver_sql("SELECT * FROM iceberg_tables FOR UPDATE")
        with pytest.raises(OutcomeUnknown, match="did not answer within 2 s"):
            kit.publisher.adopt(request)
    assert kit.publisher.adopt(request).rows_added == 1
    assert [one[3] for one in kit.rows()] == ["old", "new", "old"]
