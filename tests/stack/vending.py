"""Vended credentials, as Lakekeeper and Polaris hand them out: each ends at its table's prefix.

A door before the S3 store knows whom each key was given for. It lets through what lies there, and
logs every request. The keys are identities of the store itself, so that signatures stay as they
are. Keys end early, so that a commit outlives them.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit

from tests.stack.servers import HOST, VENDED, Identity, Seaweed

#: Headers that belong to one connection, not to what is passed on.
_OWN = {"connection", "expect", "keep-alive", "transfer-encoding"}
_KEY = re.compile(r"Credential=([^/]+)/")
_DENIED = b"<Error><Code>AccessDenied</Code><Message>%s</Message></Error>"


@dataclass(frozen=True)
class Grant:
    """What a key opens, and until when, on the clock of this process."""

    identity: Identity
    place: str
    ends: float

    def covers(self, places: list[str]) -> bool:
        return all(one.startswith(f"{self.place}/") for one in places)


@dataclass
class Door:
    """Passes requests on to the store where the key's rights reach.

    `asked`: key's place, method, what was asked for, the answer's status.
    """

    store: Seaweed
    lasts_s: float = 3600.0
    asked: list[tuple[str, str, str, int]] = field(default_factory=list)
    grants: dict[str, Grant] = field(default_factory=dict)

    def __enter__(self) -> Door:
        self._lock, self._numbers = threading.Lock(), count()
        handler = type("DoorHandler", (_DoorHandler,), {"door": self})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self._server.daemon_threads = True
        self.uri = f"http://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def vend(self, answer: bytes) -> bytes:
        """Give the answer about a table with credentials for its place."""
        words = json.loads(answer)
        place = words["metadata"]["location"].removeprefix("s3://").rstrip("/")
        grant = self._grant(place)
        config = {
            "s3.access-key-id": grant.identity.name,
            "s3.secret-access-key": grant.identity.secret,
            "s3.session-token-expires-at-ms": str(int(grant.ends * 1000)),
        }
        words["storage-credentials"] = [{"prefix": f"s3://{place}", "config": config}]
        words["config"] = {
            **words.get("config", {}), "s3.endpoint": self.uri, "s3.region": "us-east-1",
            "s3.path-style-access": "true", "client.region": "us-east-1",
        }  # fmt: skip
        return json.dumps(words).encode()

    def _grant(self, place: str) -> Grant:
        """Give the place's newest key while it lasts half of its time, else another one."""
        with self._lock:
            for grant in self.grants.values():
                if grant.place == place and grant.ends - time.time() > self.lasts_s / 2:
                    return grant
            identity = VENDED[next(self._numbers) % len(VENDED)]
            made = Grant(identity, place, time.time() + self.lasts_s)
            self.grants[identity.name] = made
            return made

    def refused(self) -> list[tuple[str, str, str, int]]:
        """List what was asked for outside of a key's place, or after its end."""
        return [one for one in self.asked if one[3] == http.client.FORBIDDEN]


class _DoorHandler(BaseHTTPRequestHandler):
    door: Door
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self._body()
        key = _KEY.search(self.headers.get("Authorization", ""))
        grant = self.door.grants.get(key[1]) if key else None
        places = list(_places(self.path, body))
        if grant is None or not grant.covers(places) or time.time() > grant.ends:
            status, headers, answer = http.client.FORBIDDEN, {}, _DENIED % self.path.encode()
        else:
            status, headers, answer = self._ask(body)
        who = grant.place if grant else "nobody"
        self.door.asked.append((who, self.command, ", ".join(places), status))
        self._send(status, headers, answer)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _answer  # noqa: N815 (http.server's names)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """Trailers are part of the body that Amazon's clients send."""
        return b"".join(parts)

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Ask the store in the same words: the signature holds for the host that it names."""
        target = urlsplit(self.door.store.endpoint).netloc
        connection = http.client.HTTPConnection(target, timeout=60)
        headers = {k: text for k, text in self.headers.items() if k.lower() not in _OWN}
        if body:
            headers["Content-Length"] = str(len(body))
        connection.request(self.command, self.path, body=body or None, headers=headers)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        is_head = self.command == "HEAD"
        self.send_response(status)
        for name, text in headers.items():
            if name.lower() not in _OWN and (is_head or name.lower() != "content-length"):
                self.send_header(name, text)
        if not is_head or "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", "0" if is_head else str(len(body)))
        self.end_headers()
        if not is_head:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _places(path: str, body: bytes) -> Iterator[str]:
    """Give what a request is about: objects, or all below a prefix."""
    parts = urlsplit(path)
    name, query = unquote(parts.path).strip("/"), parse_qs(parts.query, keep_blank_values=True)
    if "delete" in query:
        for found in re.findall(rb"<Key>([^<]*)</Key>", body):
            yield f"{name}/{found.decode()}"
    elif "/" not in name:
        yield f"{name}/{query.get('prefix', [''])[0]}"
    else:
        yield unquote(parts.path).removeprefix("/")
