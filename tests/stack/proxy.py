"""A proxy in front of an HTTP server that fails on purpose."""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from typing_extensions import Self

from tests.stack.passing import Answer, Passing, PassingHandler

UNREGISTER = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/unregister"

#: Where clients log in.
TOKENS = "/v1/oauth/tokens"


@dataclass
class Fault:
    """What happens to the next `times` requests of this method whose path matches.

    `when`: the server never sees the request (before), or does its work and the answer is lost
    (after). `status`: what is answered then; None: the connection is closed without an answer.
    `since`: nothing happens until that fault was met. `only_made`: what the server refuses is
    answered as it is, and the fault was met all the same. `answer`: the body, in place of an error.
    `then` is called before the answer; with status 200 the answer is upstream's own.
    """

    method: str
    path: str
    when: Literal["before", "after"] = "before"
    status: int | None = 503
    times: int = 1
    delay_s: float = 0.0
    met: int = 0
    since: Fault | None = None
    holds: str = ""
    lacks: str = ""
    kind: str = "FaultProxy"
    headers: Mapping[str, str] = field(default_factory=dict)
    chance: float = 1.0
    answer: str = ""
    only_made: bool = False
    then: Callable[[], object] = lambda: None

    def matches(self, method: str, path: str, body: bytes, chance: random.Random) -> bool:
        text = body.decode("utf-8", "replace")
        is_meant = re.fullmatch(self.method, method) and re.search(self.path, path)
        is_so = re.search(self.holds, text) and not (self.lacks and re.search(self.lacks, text))
        is_due = (self.since is None or self.since.met > 0) and self.met < self.times
        return bool(is_meant and is_so) and is_due and chance.random() < self.chance


@dataclass
class Proxy(Passing):
    """Passes everything on to `upstream`, but for its faults; `asked` lists what went through.

    `announces`: what the answer to `/v1/config` has beside what upstream says. `keys`: the
    idempotency keys of the changes, in their order. `knows_unregister`: offers that endpoint, by a
    drop upstream, which keeps the files. `rights_of` names the rights that a request needs: those
    in `used` were needed; with `allowed` all others are answered by 403. `vends` gives an answer
    about a table with credentials for it, to those who ask for that. With `clients`, secrets by
    name, it logs them in (OAuth2), and only `issued` tokens are let through.
    """

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str, int | None]] = field(default_factory=list)
    announces: Mapping[str, Any] = field(default_factory=dict)
    keys: list[str | None] = field(default_factory=list)
    seed: int = 1
    knows_unregister: bool = False
    rights_of: Callable[[str, str, bytes], set[str]] | None = None
    allowed: frozenset[str] | None = None
    used: set[str] = field(default_factory=set)
    vends: Callable[[bytes], bytes] | None = None
    clients: Mapping[str, str] = field(default_factory=dict)
    issued: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def __enter__(self) -> Self:
        super().__enter__()
        self.uri += urlsplit(self.upstream).path
        return self

    def handler(self) -> type[PassingHandler]:
        target = urlsplit(self.upstream).netloc
        return type("ProxyHandler", (_ProxyHandler,), {"proxy": self, "target": target})

    def fail(self, fault: Fault) -> Fault:
        """Let the fault come; gives it, so that a test can ask whether it was met."""
        self.faults.append(fault)
        return fault

    def meet(self, method: str, path: str, body: bytes) -> Fault | None:
        """Give the fault that this request meets, and count it."""
        with self._lock:
            for fault in self.faults:
                if fault.matches(method, path, body, self._chance):
                    fault.met += 1
                    return fault
        return None

    def denied(self, method: str, path: str, body: bytes) -> dict[str, object] | None:
        """Note the rights that the request needs; give the error where one is not allowed."""
        if self.rights_of is None:
            return None
        needed = self.rights_of(method, path, body)
        if self.allowed is None or needed <= self.allowed:
            self.used |= needed
            return None
        missing = ", ".join(sorted(needed - self.allowed))
        return {"message": f"no right: {missing}", "type": "ForbiddenException", "code": 403}

    def login(self, path: str, token: str, body: bytes) -> tuple[int, dict[str, object]] | None:
        """Give the answer to who logs in, or has not; None for all that is let through."""
        if not self.clients:
            return None
        if path.endswith(TOKENS):
            form = {name: texts[0] for name, texts in parse_qs(body.decode()).items()}
            if self.clients.get(form.get("client_id", "")) != form.get("client_secret"):
                return 401, {"error": "invalid_client", "error_description": "nobody known"}
            self.issued.append(f"issued-{uuid.uuid4().hex}")
            return 200, {"access_token": self.issued[-1], "token_type": "bearer"}
        if token.removeprefix("Bearer ") in self.issued:
            return None
        error = {"message": "not logged in", "type": "NotAuthorizedException", "code": 401}
        return 401, {"error": error}

    def config(self, answer: bytes) -> bytes:
        """Give the answer to `/v1/config` with what the proxy announces beside it."""
        words = {**json.loads(answer), **self.announces}
        if self.knows_unregister:
            words["endpoints"] = [*words.get("endpoints", ()), UNREGISTER]
        return json.dumps(words).encode()


class _ProxyHandler(PassingHandler):
    proxy: Proxy

    def answer(self) -> None:
        body = self.body()
        if self._is_left_alone():
            return None
        if self.command in ("POST", "DELETE"):
            self.proxy.keys.append(self.headers.get("Idempotency-Key"))
        if (denied := self.proxy.denied(self.command, self.path, body)) is not None:
            return self.send(403, {"Content-Type": "application/json"}, _json(denied))
        fault = self.proxy.meet(self.command, self.path, body)
        if fault is None:
            return self._pass_on(body)
        time.sleep(fault.delay_s)
        made = self._ask(body) if fault.when == "after" else None
        fault.then()
        if self._is_left_alone():
            return None
        if made and (made[0] == fault.status == 200 or (fault.only_made and made[0] >= 400)):
            self.proxy.asked.append((self.command, self.path, made[0]))
            return self.send(*made)
        self.proxy.asked.append((self.command, self.path, fault.status))
        if fault.status is None:
            self.close_connection = True
            return None
        words = {"message": "made up", "type": fault.kind, "code": fault.status}
        headers = {"Content-Type": "application/json", **fault.headers}
        return self.send(fault.status, headers, fault.answer.encode() or _json(words))

    def _is_left_alone(self) -> bool:
        """Close the connection where the proxy is away, in its own time."""
        if self.proxy.is_away:
            self.proxy.back.wait()
            self.close_connection = True
            return True
        return False

    def _pass_on(self, body: bytes) -> None:
        login = self.proxy.login(self.path, self.headers.get("Authorization", ""), body)
        if login is not None:
            return self.send(
                login[0], {"Content-Type": "application/json"}, json.dumps(login[1]).encode()
            )
        status, headers, answer = self._ask(body)
        self.proxy.asked.append((self.command, self.path, status))
        if urlsplit(self.path).path.endswith("/v1/config"):
            answer = self.proxy.config(answer)
        elif self.proxy.vends and self._asks_for_credentials(answer):
            answer = self.proxy.vends(answer)
        return self.send(status, headers, answer)

    def _asks_for_credentials(self, answer: bytes) -> bool:
        wanted = self.headers.get("X-Iceberg-Access-Delegation", "")
        return "vended-credentials" in wanted and b'"metadata":' in answer

    def _ask(self, body: bytes) -> Answer:
        method, path = self.command, self.path
        if self.proxy.knows_unregister and path.endswith("/unregister"):
            method, path = "DELETE", path.removesuffix("/unregister")
        return self.ask(method, path, body, keeps_host=False)


def _json(words: dict[str, object]) -> bytes:
    return json.dumps({"error": words}).encode()
