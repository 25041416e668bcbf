"""The S3 store when it is busy: a share of all requests is answered by 503, at random."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.stack.passing import Passing, PassingHandler
from tests.stack.servers import Seaweed

_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class BusyStore(Passing):
    """Passes requests on to the store, but for a share of them, which the store never sees.

    Each program meets refusals of its own; `clients` counts them by the first word that it says of
    itself.
    """

    store: Seaweed
    share: float
    seed: int = 1
    passed: int = 0
    refused: int = 0
    clients: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chances: dict[str, random.Random] = {}

    def handler(self) -> type[PassingHandler]:
        target = urlsplit(self.store.endpoint).netloc
        return type("BusyHandler", (_BusyHandler,), {"busy": self, "target": target})

    def refuses(self, client: str) -> bool:
        """Decide on one request."""
        with self._lock:
            chance = self._chances.setdefault(client, random.Random(f"{client} {self.seed}"))
            is_refused = chance.random() < self.share
            self.refused += is_refused
            self.passed += not is_refused
            self.clients[client] += is_refused
        return is_refused


class _BusyHandler(PassingHandler):
    busy: BusyStore

    def answer(self) -> None:
        body = self.body()
        if self.busy.refuses(self.headers.get("User-Agent", "").partition("/")[0]):
            self.send(503, {"Content-Type": "application/xml"}, _BUSY)
        else:
            self.send(*self.ask(self.command, self.path, body, keeps_host=True))
