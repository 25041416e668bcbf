"""The table of raw responses: each is stored before it is parsed, and read again after a cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from lakehouse_backfill.adapters.sources.api.client import ApiAnswer
from lakehouse_backfill.adapters.sources.api.spool import ReceivedRequest
from lakehouse_backfill.core.landing.pages import Place
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.declaration import RESPONSE_COLUMNS, ResponseDeclaration
from lakehouse_backfill.domain.sources.landings import LandingState, next_state
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.sources import RawTables


def received_of(state: LandingState | None) -> dict[str, int]:
    """Return the highest number of a received request that is stored, by the id of its spool."""
    return dict(state.position.get("received", {})) if state is not None else {}


#: Status of what came by itself: it was acknowledged so.
_RECEIVED = 200


class StoredPage(NamedTuple):
    """A stored response: its number, the place of its request, and its body."""

    number: int
    place: Place
    body: str


@dataclass
class ResponseLedger:
    """The stored responses of one source."""

    raw_tables: RawTables
    declared: ResponseDeclaration
    _state: LandingState | None = None

    def open(self, landing: LandingState) -> None:
        """Take the table over for a landing; it is made when it does not exist."""
        self.raw_tables.ensure(self.declared)
        before = self.raw_tables.state(self.declared.table)
        if before is not None and before.source != landing.source:
            raise Unsupported(
                f"{self.declared.table} is a table of the source {before.source}",
                state="nothing was landed",
                fix=f"name another `table` in catalog/sources/{landing.source}.yaml: the responses "
                "need a table of their own",
            )
        if before is not None and before.landing_id == landing.landing_id:
            self._state = before
            return
        token = before.token if before else ""
        kept = {"received": received_of(before)} if received_of(before) else {}
        fresh = {"position": kept, "step": 0, "token": token, "deliveries": (), "rows": 0}
        self._state = landing.model_copy(update=fresh)

    def pages(self) -> Iterator[StoredPage]:
        """Yield the responses of this landing in order; of a repeated page the newest."""
        if self._state is None or not self._state.step:
            return
        columns = ("page", "request", "body", "received_at")
        rows = self.raw_tables.rows(
            self.declared.table, {"landing_id": self._state.landing_id}, columns
        )
        newest: dict[int, StoredPage] = {}
        for row in sorted(rows, key=lambda row: (row["page"], row["received_at"])):
            place = json.loads(row["request"])
            newest[row["page"]] = StoredPage(row["page"], place, row["body"])
        yield from newest.values()

    def store(self, number: int, place: Place, answer: ApiAnswer, at: datetime) -> StoredPage:
        """Store one response by a commit of its own; raises Conflict when another landing does."""
        state = self._state
        if state is None:
            raise RuntimeError("the ledger was not opened")
        values: dict[str, Any] = {
            "page": number,
            "request": canonical_json(place),
            "status": answer.status,
            "body": answer.body,
            "body_hash": hashlib.sha256(answer.body.encode()).hexdigest(),
            "received_at": at,
        }
        self._append([values], {**state.position, "page": number})
        return StoredPage(number, place, answer.body)

    def store_received(self, spool_id: str, requests: list[ReceivedRequest]) -> None:
        """Store received requests by one commit; those that are stored already are left out."""
        if self._state is None:
            raise RuntimeError("the ledger was not opened")
        stored = received_of(self._state)
        rows: list[dict[str, Any]] = [
            {
                "page": one.number,
                "request": canonical_json({"spool": spool_id, "delivery": one.delivery}),
                "status": _RECEIVED,
                "body": one.body,
                "body_hash": hashlib.sha256(one.body.encode()).hexdigest(),
                "received_at": one.received_at,
            }
            for one in requests
            if one.number > stored.get(spool_id, 0)
        ]
        if rows:
            stored[spool_id] = rows[-1]["page"]
            self._append(rows, {**self._state.position, "received": stored})

    def deliveries(self) -> set[str]:
        """Return the names of the deliveries that were received and are stored."""
        found = set()
        for row in self.raw_tables.rows(self.declared.table, {}, ("request",)):
            delivery = json.loads(row["request"]).get("delivery")
            if delivery is not None:
                found.add(str(delivery))
        return found

    def _append(self, rows: list[dict[str, Any]], position: dict[str, Any]) -> None:
        import pyarrow as pa

        state, table = self._state, self.declared.table
        if state is None:
            raise RuntimeError("the ledger was not opened")
        found = pa.table({name: [row[name] for row in rows] for name, _, _ in RESPONSE_COLUMNS})
        following = next_state(state, position=position, rows=state.rows + len(rows))
        staged = self.raw_tables.stage(table, [found], following)
        self.raw_tables.commit(table, (staged,), following)
        self._state = following
