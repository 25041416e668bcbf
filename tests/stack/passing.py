"""Servers that stand before another one and pass requests on; a test's block is their life."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import Self

from tests.stack.servers import HOST

#: Headers that belong to one connection, not to what is passed on.
_OWN = {"connection", "expect", "keep-alive", "transfer-encoding"}

Answer = tuple[int, Mapping[str, str], bytes]


class Passing:
    """Listens on a port of its own while the block runs; `uri` says where."""

    uri: str
    #: Neither what is open nor what is new is answered.
    is_away = False
    #: Whoever asks meanwhile is held until it is set.
    back: threading.Event

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self.is_away, self.back = False, threading.Event()
        self._listen(0)
        self.uri = f"http://{HOST}:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Refuse connections from now on; those that are open end with their next request."""
        self.back.set()
        self.is_away = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def fall_silent(self) -> None:
        """Take connections and requests from now on, and answer none."""
        self.back.clear()
        self.is_away = True

    def come_back(self) -> None:
        """Answer again, at the same place."""
        self.is_away = False
        if not self._thread.is_alive():
            self._listen(self._server.server_address[1])
        self.back.set()

    def _listen(self, port: int) -> None:
        self._server = ThreadingHTTPServer((HOST, port), self.handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def handler(self) -> type[PassingHandler]:
        """Give the class that answers the requests."""
        raise NotImplementedError


class PassingHandler(BaseHTTPRequestHandler):
    """Answers one connection; what it passes on goes to the server at `target`."""

    target: str
    protocol_version = "HTTP/1.1"
    #: Head and body leave in one write: a second one would wait 40 ms for the client's receipt.
    wbufsize = -1

    def answer(self) -> None:
        """Answer one request, whatever its method is."""
        raise NotImplementedError

    def handle_expect_100(self) -> bool:
        """Let a client that waits for it send its body."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_HEAD = do_DELETE = do_PUT = do_GET  # noqa: N815 (http.server's names)

    def body(self) -> bytes:
        """Read what was sent with the request."""
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """Trailers are part of the body that Amazon's clients send."""
        return b"".join(parts)

    def ask(self, method: str, path: str, body: bytes, *, keeps_host: bool) -> Answer:
        """Ask the target in the same words; a signature holds for the host that it names."""
        connection = http.client.HTTPConnection(self.target, timeout=60)
        left_out = _OWN if keeps_host else {*_OWN, "host"}
        headers = {k: text for k, text in self.headers.items() if k.lower() not in left_out}
        if body:
            headers["Content-Length"] = str(len(body))
        connection.request(method, path, body=body or None, headers=headers)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer the client; to HEAD with the length that the target named."""
        is_head = self.command == "HEAD"
        self.send_response_only(status)
        for name, text in headers.items():
            if name.lower() not in _OWN and (is_head or name.lower() != "content-length"):
                self.send_header(name, text)
        if "date" not in {name.lower() for name in headers}:
            self.send_header("Date", self.date_time_string())
        if not is_head or "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", "0" if is_head else str(len(body)))
        self.end_headers()
        if not is_head:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
