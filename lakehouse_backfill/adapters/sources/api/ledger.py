"""The table of raw responses: each is stored before it is parsed, and read again after a cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from lakehouse_backfill.adapters.sources.api.client import ApiAnswer
from lakehouse_backfill.core.landing.pages import Place
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.declaration import RESPONSE_COLUMNS, ResponseDeclaration
from lakehouse_backfill.domain.sources.landings import LandingState, next_state
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.sources import RawTables


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
        fresh = {"position": {}, "step": 0, "token": token, "deliveries": (), "rows": 0}
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
        import pyarrow as pa

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
        rows = pa.table({name: [values[name]] for name, _, _ in RESPONSE_COLUMNS})
        table = self.declared.table
        following = next_state(state, position={"page": number}, rows=state.rows + 1)
        staged = self.raw_tables.stage(table, [rows], following)
        self.raw_tables.commit(table, (staged,), following)
        self._state = following
        return StoredPage(number, place, answer.body)
