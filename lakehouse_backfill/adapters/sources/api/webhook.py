"""What a webhook received: requests of the spool become rows of the raw table of its API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse_backfill.adapters.sources.api.capabilities import API
from lakehouse_backfill.adapters.sources.api.ledger import received_of
from lakehouse_backfill.adapters.sources.api.reader import (
    ApiReader,
    NumberedRecord,
    RecordsPart,
    decode_body,
)
from lakehouse_backfill.adapters.sources.api.spool import ReceivedRequest, RequestSpool
from lakehouse_backfill.core.landing import pages
from lakehouse_backfill.core.landing.records import KnownRecord, is_overtaken, judge_record
from lakehouse_backfill.domain.sources.declaration import Webhook
from lakehouse_backfill.domain.sources.landings import (
    FileDelivery,
    LandingRequest,
    LandingState,
    LandingSurvey,
    PlannedPart,
)
from lakehouse_backfill.errors import Blocked, ConfigError
from lakehouse_backfill.ports.sources import SourceCheckpoint

#: Bodies of one commit; one body may be larger.
_GROUP_CHARACTERS = 64 * 1024 * 1024


@dataclass
class WebhookReader:
    """`ports.sources.SourceReader` for the requests that wait in a spool."""

    api: ApiReader
    spool: RequestSpool
    capabilities = API
    #: The landed records, and the commit that they were read after.
    _known: dict[str, KnownRecord] = field(default_factory=dict)
    _known_at: str | None = None

    @property
    def declared(self) -> Webhook:
        """The declared webhook; raises ConfigError when there is none."""
        found = self.api.declared.webhook
        if found is None:
            name = self.api.source.source
            raise ConfigError(f"{name} declares no webhook", fix="add api.webhook")
        return found

    def survey(self, request: LandingRequest, known: tuple[FileDelivery, ...]) -> LandingSurvey:  # noqa: ARG002 (the port's signature)
        """Return which requests wait; those that are landed already are dropped first."""
        state = self.api.raw_tables.state(self.api.source.table)
        landed = received_of(state).get(self.spool.spool_id, 0)
        stored = self.api.raw_tables.state(self.api.source.response_table)
        self.spool.number_after(max(landed, received_of(stored).get(self.spool.spool_id, 0)))
        waiting = self.spool.waiting()
        if waiting and waiting[0] <= landed:
            self.spool.drop(landed)
        found = [number for number in waiting if number > landed]
        parts = tuple(PlannedPart(str(number), "import", "") for number in found)
        return LandingSurvey(parts=parts, detail=found)

    def checkpoints(self, survey: LandingSurvey, state: LandingState) -> Iterator[SourceCheckpoint]:
        """Yield one checkpoint with the first of the requests that wait, as many as may be in it.

        Their bodies are stored as they came before that.
        """
        requests = self._next_group(survey.detail[: self.declared.requests_per_commit])
        if not requests:
            return
        self.api.ledger.open(state)
        self.api.ledger.store_received(self.spool.spool_id, requests)
        if self._known_at != state.token:
            self._known = self.api.known()
        # What follows is known once it is committed.
        self._known_at = None
        found = self._judged(requests, state.position.get("sequence", 0))
        received = {**received_of(state), self.spool.spool_id: requests[-1].number}
        position = {
            **{name: one for name, one in state.position.items() if name == "continued"},
            "landing": state.landing_id, "page": 0, "is_read": True,
            "sequence": state.position.get("sequence", 0) + len(found), "received": received,
        }  # fmt: skip
        yield SourceCheckpoint((RecordsPart(self.api, found),) if found else (), position)

    def finish(self, state: LandingState) -> None:
        """Drop the requests that a commit has landed; again changes nothing."""
        self._known_at = state.token
        self.spool.drop(received_of(state).get(self.spool.spool_id, 0))

    def check(self, body: str) -> None:
        """Raise Blocked for a body that could not be landed: it must not be acknowledged."""
        self.api.parsed(self._records(body))

    def deliveries(self) -> set[str]:
        """Return the names of the deliveries that are stored or wait."""
        waiting = self.spool.read(self.spool.waiting())
        own = {one.delivery for one in waiting if one.delivery is not None}
        return self.api.ledger.deliveries() | own

    def _next_group(self, numbers: list[int]) -> list[ReceivedRequest]:
        """Return the first of these requests, as many as fit into memory together."""
        found, size = [], 0
        for one in self.spool.read(numbers):
            found.append(one)
            size += len(one.body)
            if size >= _GROUP_CHARACTERS:
                break
        return found

    def _judged(self, requests: list[ReceivedRequest], sequence: int) -> list[NumberedRecord]:
        declared, found = self.api.declared, list[NumberedRecord]()
        for request in requests:
            for record in self._records(request.body):
                if is_overtaken(record, declared.id, declared.version, self._known):
                    continue
                judged = judge_record(record, declared.id, declared.version, self._known)
                if judged is not None:
                    place = sequence + len(found) + 1
                    found.append(NumberedRecord(judged, request.number, place))
        return found

    def _records(self, body: str) -> list[Mapping[str, Any]]:
        """Return the records of a body; raises Blocked."""
        try:
            whole = decode_body(body)
        except (ValueError, RecursionError):
            raise _bad_request("is no JSON") from None
        path, key = self.declared.records, self.api.declared.id
        found = pages.value_at(whole, path) if path else whole
        records = found if isinstance(found, list) else [found]
        if not all(isinstance(one, dict) for one in records):
            raise _bad_request(f"holds no records at {path!r}")
        if any(one.get(key) is None for one in records):
            raise _bad_request(f"holds a record without {key}")
        return records


def _bad_request(problem: str) -> Blocked:
    return Blocked(
        f"a received request {problem}",
        state="what was landed before it stays; it waits in the folder of received requests",
        fix="mend `api.webhook` in the declaration, then give the command again",
    )
