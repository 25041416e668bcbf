"""Vended credentials, as Lakekeeper and Polaris hand them out: each ends at its table's prefix.

A door before the S3 store knows whom each key was given for. It lets through what lies there, and
logs every request. The keys are identities of the store itself, so that signatures stay as they
are. Keys end early, so that a commit outlives them.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit

from tests.stack.passing import Answer, Passing, PassingHandler
from tests.stack.servers import VENDED, Identity, Seaweed

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
class Door(Passing):
    """Passes requests on to the store where the key's rights reach.

    `asked`: key's place, method, what was asked for, the answer's status. `clients`: the programs
    that asked, by the first word that they say of themselves, each with its methods.
    """

    store: Seaweed
    lasts_s: float = 3600.0
    asked: list[tuple[str, str, str, int]] = field(default_factory=list)
    grants: dict[str, Grant] = field(default_factory=dict)
    clients: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _numbers: Iterator[int] = field(default_factory=count)

    def handler(self) -> type[PassingHandler]:
        target = urlsplit(self.store.endpoint).netloc
        return type("DoorHandler", (_DoorHandler,), {"door": self, "target": target})

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


class _DoorHandler(PassingHandler):
    door: Door

    def answer(self) -> None:
        body = self.body()
        key = _KEY.search(self.headers.get("Authorization", ""))
        grant = self.door.grants.get(key[1]) if key else None
        places = list(_places(self.path, body))
        found: Answer
        if grant is None or not grant.covers(places) or time.time() > grant.ends:
            found = http.client.FORBIDDEN, {}, _DENIED % self.path.encode()
        else:
            found = self.ask(self.command, self.path, body, keeps_host=True)
        who = grant.place if grant else "nobody"
        self.door.asked.append((who, self.command, ", ".join(places), found[0]))
        self.door.clients[self.headers.get("User-Agent", "").partition("/")[0]].add(self.command)
        self.send(*found)


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
