"""An HTTP server for the requests of a webhook: each is kept durably before it is acknowledged."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from lakehouse_backfill.adapters.sources.api.webhook import WebhookReader
from lakehouse_backfill.domain.sources.declaration import Webhook
from lakehouse_backfill.errors import Blocked, ConfigError
from lakehouse_backfill.ports.system import Clock

#: Connections at one time; a further one is closed at once.
_MAX_CONNECTIONS = 64
#: A client that sends nothing for so long is disconnected.
_IDLE_S = 15.0
#: Characters of the name of a delivery: all names are held in memory.
_MAX_NAME = 200


@dataclass
class RequestIntake:
    """Judges requests, and keeps the good ones; the counts are of this process."""

    reader: WebhookReader
    secret: bytes = field(repr=False)
    clock: Clock
    kept: int = 0
    repeated: int = 0
    refused: int = 0
    is_open: bool = True
    _seen: set[str] = field(default_factory=set, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def open(reader: WebhookReader, clock: Clock) -> RequestIntake:
        """Read the secret, and which deliveries are known; raises ConfigError without a secret."""
        name = reader.declared.secret
        secret = os.environ.get(name, "").strip()
        if not secret:
            raise ConfigError(
                f"the environment variable {name} of api.webhook.secret is not set",
                fix=f"set {name} to the secret of the signatures",
                field="api.webhook.secret",
            )
        return RequestIntake(reader, secret.encode(), clock, _seen=reader.deliveries())

    @property
    def declared(self) -> Webhook:
        """The declared webhook."""
        return self.reader.declared

    def waiting(self) -> int:
        """Return how many requests wait to be landed."""
        return self.reader.spool.count()

    def take(self, body: bytes, signature: str, delivery: str | None) -> HTTPStatus:
        """Return the answer to a request; OK means that it is kept durably, or was before."""
        status = self._judge(body, signature, delivery)
        if status is not None:
            return self._refuse(status)
        with self._lock:
            if delivery is not None and delivery in self._seen:
                self.repeated += 1
                return HTTPStatus.OK
            if not self.is_open or self.waiting() >= self.declared.max_waiting:
                self.refused += 1
                return HTTPStatus.SERVICE_UNAVAILABLE
            try:
                self.reader.spool.keep(body.decode(), delivery, self.clock.now())
            except OSError:
                self.refused += 1
                return HTTPStatus.INTERNAL_SERVER_ERROR
            if delivery is not None:
                self._seen.add(delivery)
            self.kept += 1
            return HTTPStatus.OK

    def close(self) -> None:
        """Refuse what comes from now on; what is being kept is finished first."""
        with self._lock:
            self.is_open = False

    def _refuse(self, status: HTTPStatus) -> HTTPStatus:
        with self._lock:
            self.refused += 1
        return status

    def _judge(self, body: bytes, signature: str, delivery: str | None) -> HTTPStatus | None:
        """Return why a request is refused; None for a good one. The signature comes first."""
        wanted = hmac.new(self.secret, body, hashlib.sha256).hexdigest()
        prefix = self.declared.signature_prefix
        given = signature.removeprefix(prefix).strip().lower()
        is_signed = signature.startswith(prefix) and hmac.compare_digest(
            given.encode(), wanted.encode()
        )
        if not is_signed:
            return HTTPStatus.UNAUTHORIZED
        is_named = delivery is not None and 0 < len(delivery) <= _MAX_NAME
        if self.declared.delivery_header is not None and not is_named:
            return HTTPStatus.BAD_REQUEST
        try:
            self.reader.check(body.decode())
        except (UnicodeDecodeError, Blocked):
            return HTTPStatus.UNPROCESSABLE_ENTITY
        return None


class _Server(ThreadingHTTPServer):
    """A server with a bounded number of connections."""

    daemon_threads = True
    request_queue_size = 128
    intake: RequestIntake

    def __init__(self, address: tuple[str, int], intake: RequestIntake) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.intake = intake
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and make room for the next one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: its request was not acknowledged."""


class _Handler(BaseHTTPRequestHandler):
    """One request for each connection."""

    timeout = _IDLE_S
    server: _Server
    server_version, sys_version = "lakehouse-backfill", ""

    def do_POST(self) -> None:
        """Answer a request of the webhook."""
        intake = self.server.intake
        size = self.headers.get("Content-Length", "")
        if urlsplit(self.path).path != intake.declared.path:
            self._answer(HTTPStatus.NOT_FOUND)
        elif not (size.isascii() and size.isdigit()) or "Transfer-Encoding" in self.headers:
            self._answer(HTTPStatus.LENGTH_REQUIRED)
        elif len(size) > len(str(1 << 40)) or int(size) > intake.declared.max_body_kib * 1024:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            body = self.rfile.read(int(size))
            if len(body) == int(size):
                self._answer(intake.take(body, *self._names(intake.declared)))

    def _names(self, declared: Webhook) -> tuple[str, str | None]:
        delivery = declared.delivery_header
        name = self.headers.get(delivery, "").strip() if delivery else None
        return self.headers.get(declared.signature_header, "").strip(), name

    def _answer(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_response(status)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "10")
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Write nothing: a path or a header could hold a secret."""


@contextmanager
def serving(intake: RequestIntake, host: str, port: int) -> Iterator[int]:
    """Serve until the block ends; give the port, which is a free one for 0.

    At the end nothing is acknowledged any more. Raises ConfigError for an address that is taken.
    """
    try:
        server = _Server((host, port), intake)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {error}",
            fix="name a free port by --listen, and an address of this machine by --host",
        ) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.daemon = True
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        intake.close()
        server.shutdown()
        server.server_close()
