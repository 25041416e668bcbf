"""The S3 store when it is busy: a share of all requests is answered by 503, at random."""

from __future__ import annotations

import random
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.stack.passing import Passing, PassingHandler
from tests.stack.servers import Seaweed

_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class BusyStore(Passing):
    """Passes requests on to the store, but for a share of them, which the store never sees."""

    store: Seaweed
    share: float
    seed: int = 1
    passed: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def handler(self) -> type[PassingHandler]:
        target = urlsplit(self.store.endpoint).netloc
        return type("BusyHandler", (_BusyHandler,), {"busy": self, "target": target})

    def refuses(self) -> bool:
        """Decide on one request."""
        with self._lock:
            is_refused = self._chance.random() < self.share
            self.refused += is_refused
            self.passed += not is_refused
        return is_refused


class _BusyHandler(PassingHandler):
    busy: BusyStore

    def answer(self) -> None:
        body = self.body()
        if self.busy.refuses():
            self.send(503, {"Content-Type": "application/xml"}, _BUSY)
        else:
            self.send(*self.ask(self.command, self.path, body, keeps_host=True))
