"""An HTTP server for the requests of a webhook: each is kept durably before it is acknowledged."""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from lakehouse_backfill.adapters.sources.api.webhook import WebhookReader
from lakehouse_backfill.domain.sources.declaration import Webhook
from lakehouse_backfill.errors import Blocked, ConfigError
from lakehouse_backfill.ports.system import Clock

#: Connections at one time; a further one takes the place of the one that is read for longest.
_MAX_CONNECTIONS = 64
#: A connection that is read for less than this keeps its place.
_SLOW_S = 1.0
#: A client that sends nothing for so long is disconnected.
_IDLE_S = 15.0
#: A request that is not there in whole after so long is given up, however it trickles in.
_REQUEST_S = 60.0
#: How long the rest of a refused request is read, so that its client sees the answer.
_DISCARD_S = 2.0
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
            return self.refuse(status)
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

    def refuse(self, status: HTTPStatus) -> HTTPStatus:
        """Count a request that is refused; return the answer."""
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
        #: Connections whose request is being read, the oldest first, with when they began.
        self._reading: dict[socket.socket, float] = {}
        self._reading_lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless too many are open that are not slow."""
        if self._free.acquire(blocking=False) or self._make_room():
            with self._reading_lock:
                self._reading[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and make room for the next one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_read(request)
            self._free.release()

    def has_read(self, request: socket.socket) -> None:
        """Keep a connection to its end: its request was read, and is judged and answered."""
        with self._reading_lock:
            self._reading.pop(request, None)

    def _make_room(self) -> bool:
        """Disconnect the client that is read for longest, if it is slow; return whether it left."""
        with self._reading_lock:
            oldest, begun = next(iter(self._reading.items()), (None, 0.0))
            if oldest is None or time.monotonic() - begun < _SLOW_S:
                return False
            del self._reading[oldest]
            with suppress(OSError):  # it left by itself
                oldest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=_SLOW_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: its request was not acknowledged."""


class _TimedInput(io.RawIOBase):
    """What a client sends, until a moment; a socket's timeout alone begins again at each byte."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there; raises TimeoutError."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(min(left, _IDLE_S))
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """One request for each connection."""

    timeout = _IDLE_S
    server: _Server
    server_version, sys_version = "lakehouse-backfill", ""

    def setup(self) -> None:
        """Read a request for a limited time in all."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_TimedInput(self.connection, _REQUEST_S))

    def do_POST(self) -> None:
        """Answer a request of the webhook."""
        intake = self.server.intake
        refused = self._refuse_unread(intake.declared)
        if refused is not None:
            self._answer(intake.refuse(refused))
            self._discard_rest()
            return
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size)
        self.server.has_read(self.connection)
        if len(body) == size:
            self._answer(intake.take(body, *self._names(intake.declared)))

    def _refuse_unread(self, declared: Webhook) -> HTTPStatus | None:
        """Return why a request is refused before its body is read; None for a good one."""
        sizes = self.headers.get_all("Content-Length", [])
        size = sizes[0] if len(sizes) == 1 else ""
        if urlsplit(self.path).path != declared.path:
            return HTTPStatus.NOT_FOUND
        if not (size.isascii() and size.isdigit()) or "Transfer-Encoding" in self.headers:
            return HTTPStatus.LENGTH_REQUIRED
        if len(size) > len(str(1 << 40)) or int(size) > declared.max_body_kib * 1024:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return None

    def _discard_rest(self) -> None:
        """Read what a refused client still sends: closed at once, it would not see the answer."""
        self.connection.shutdown(socket.SHUT_WR)
        rest = io.BufferedReader(_TimedInput(self.connection, _DISCARD_S))
        while rest.read1(1 << 16):
            pass

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
