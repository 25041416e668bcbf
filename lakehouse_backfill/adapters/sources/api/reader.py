"""An API: its responses are stored first, then parsed into records, each landed once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from lakehouse_backfill.adapters.sources.api.capabilities import API
from lakehouse_backfill.adapters.sources.api.client import ApiClient
from lakehouse_backfill.adapters.sources.api.errors import bad_answer
from lakehouse_backfill.adapters.sources.api.ledger import ResponseLedger, StoredPage
from lakehouse_backfill.adapters.sources.formats import from_json_rows
from lakehouse_backfill.core.landing import pages
from lakehouse_backfill.core.landing.records import (
    JudgedRecord,
    KnownRecord,
    deleted_ids,
    judge_record,
)
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.sources.declaration import (
    ApiSource,
    SourceDeclaration,
    WindowPaging,
)
from lakehouse_backfill.domain.sources.landings import (
    FileDelivery,
    LandingRequest,
    LandingState,
    LandingSurvey,
    PlannedPart,
)
from lakehouse_backfill.errors import Blocked, ConfigError
from lakehouse_backfill.ports.sources import RawTables, SourceCheckpoint
from lakehouse_backfill.ports.system import Clock

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ApiReader:
    """`ports.sources.SourceReader` for an HTTP API."""

    source: SourceDeclaration
    schema: pa.Schema
    client: ApiClient
    ledger: ResponseLedger
    raw_tables: RawTables
    clock: Clock
    capabilities = API

    @property
    def declared(self) -> ApiSource:
        if self.source.api is None:
            raise ConfigError(f"{self.source.source} declares no API", fix="add api:")
        return self.source.api

    def survey(self, request: LandingRequest, known: tuple[FileDelivery, ...]) -> LandingSurvey:  # noqa: ARG002 (the ledger of files has none of an API)
        """Return where the landing begins; nothing is requested."""
        state = self.raw_tables.state(self.source.table)
        begun = state is not None and not state.is_complete
        continued = state.position.get("continued", {}) if state else {}
        place = pages.first_place(self.declared, request, continued, self._began(state, begun))
        name = canonical_json(place) if place is not None else self.declared.url
        action = "nothing" if place is None else "reconcile" if request.reconcile else "read"
        because = "continued" if begun else ""
        return LandingSurvey(parts=(PlannedPart(name, action, because),), detail=place)

    def _began(self, state: LandingState | None, begun: bool) -> datetime:  # noqa: FBT001 (one fact of the caller)
        """Return the end of open ranges: a landing that is continued keeps that of its begin."""
        return state.started_at if state is not None and begun else self.clock.now()

    def checkpoints(self, survey: LandingSurvey, state: LandingState) -> Iterator[SourceCheckpoint]:
        """Yield groups of responses; each response is stored before its records are parsed."""
        position = state.position
        if position.get("landing") != state.landing_id:
            if survey.detail is None:
                return
            kept: dict[str, Any] = {
                name: position[name] for name in ("continued", "sequence") if name in position
            }
            position = {"landing": state.landing_id, "page": 0, **kept}
            # The begin is committed, so that a landing that is cut off finds its responses.
            yield SourceCheckpoint(parts=(), position=position)
        if not position.get("is_read"):
            self.ledger.open(state)
            yield from _Reading(self, state.request, position).checkpoints(survey.detail)

    def finish(self, state: LandingState) -> None:
        """Do nothing: what follows a commit lies in the lake."""

    def responses(self, first: pages.Place) -> Iterator[StoredPage]:
        """Yield the stored responses, then those that are still to be requested."""
        place: pages.Place | None = first
        number = 0
        for page in self.ledger.pages():
            try:
                following = self._following(page)
            except Blocked:
                break  # it is no page of records: it is asked for again
            yield page
            number, place = page.number, following
        while place is not None:
            answer = self.client.get(pages.query(self.declared, place))
            number += 1
            page = self.ledger.store(number, place, answer, self.clock.now())
            place = self._following(page)
            yield page

    def _following(self, page: StoredPage) -> pages.Place | None:
        body = self.body(page)
        return pages.next_place(self.declared, page.place, body, self.records(page))

    def body(self, page: StoredPage) -> Any:
        try:
            return json.loads(page.body, parse_float=Decimal)
        except ValueError:
            raise bad_answer(self.declared.url, f"response {page.number} is no JSON") from None

    def records(self, page: StoredPage) -> list[Mapping[str, Any]]:
        found = pages.records_of(self.declared, self.body(page))
        for record in found:
            if record.get(self.declared.id) is None:
                problem = f"a record of response {page.number} has no {self.declared.id}"
                raise bad_answer(self.declared.url, problem)
        return found

    def newest(self, *columns: str) -> dict[str, Mapping[str, Any]]:
        """Return of each record the row that counts, with some of its columns."""
        newest: dict[str, Mapping[str, Any]] = {}
        wanted = ("record_id", "sequence", *columns)
        for row in self.raw_tables.rows(self.source.table, {}, wanted):
            before = newest.get(row["record_id"])
            if before is None or before["sequence"] < row["sequence"]:
                newest[row["record_id"]] = row
        return newest

    def known(self) -> dict[str, KnownRecord]:
        """Return the newest landed state of each record."""
        version = self.declared.version
        found = self.newest("record_hash", "change", *(("record",) if version else ()))
        return {
            record_id: KnownRecord(
                row["record_hash"],
                str(json.loads(row["record"]).get(version)) if version else None,
                row["change"] == "deletion",
            )
            for record_id, row in found.items()
        }

    def rows(self, judged: list[_NumberedRecord]) -> pa.Table:
        """Return records in the columns of the raw table; raises Blocked for a wrong value."""
        import pyarrow as pa

        added = [
            {
                "record_id": one.record.record_id,
                "change": one.record.change,
                "record_hash": one.record.record_hash,
                "record": json.dumps(dict(one.record.record), default=str, ensure_ascii=False),
                "page": one.page,
                "sequence": one.sequence,
            }
            for one in judged
        ]
        own = pa.schema([f for f in self.schema if f.name in {c.name for c in self.source.columns}])
        try:
            parsed = from_json_rows([one.record.record for one in judged], own)
        except (pa.ArrowException, ValueError, TypeError) as error:
            problem = f"records do not fit the declared columns: {type(error).__name__}"
            raise bad_answer(self.declared.url, problem) from None
        columns = [
            parsed[field.name]
            if field.name in parsed.column_names
            else pa.array([row[field.name] for row in added], field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)


class _NumberedRecord(NamedTuple):
    """A record that is landed, its response, and its place in the order of the table."""

    record: JudgedRecord
    page: int | None
    sequence: int


class _Reading:
    """The responses of one landing, from the position that is committed on."""

    def __init__(
        self, reader: ApiReader, request: LandingRequest, position: dict[str, Any]
    ) -> None:
        self._reader = reader
        self._request = request
        self._position = position
        self._known = reader.known()
        self._seen: set[str] = set()
        self._found: list[_NumberedRecord] = []

    def checkpoints(self, first: pages.Place) -> Iterator[SourceCheckpoint]:
        """Yield a checkpoint for each group of responses, and one at the end."""
        declared, committed = self._reader.declared, self._position["page"]
        last: StoredPage | None = None
        for page in self._reader.responses(first):
            last = page
            self._take(page, is_landed=page.number <= committed)
            if page.number - self._position["page"] >= declared.pages_per_commit:
                yield self._checkpoint(page=page.number)
        continued = {}
        if last is not None:
            body = self._reader.body(last)
            continued["continued"] = pages.continued_from(declared, last.place, body)
        if self._request.reconcile:
            # Deletions are known once every page was met, and land with the last records.
            self._take_deletions()
        yield self._checkpoint(page=last.number if last else 0, is_read=True, **continued)

    def _take(self, page: StoredPage, *, is_landed: bool) -> None:
        declared = self._reader.declared
        for record in self._reader.records(page):
            self._seen.add(str(record[declared.id]))
            if not is_landed:
                judged = judge_record(record, declared.id, declared.version, self._known)
                if judged is not None:
                    self._add(judged, page.number)

    def _take_deletions(self) -> None:
        newest = self._reader.newest("record", *self._column())
        for record_id in deleted_ids(self._known, self._in_range(newest), frozenset(self._seen)):
            record = json.loads(newest[record_id]["record"], parse_float=Decimal)
            hashed = self._known[record_id].record_hash
            self._add(JudgedRecord(record_id, "deletion", hashed, record), None)

    def _column(self) -> tuple[str, ...]:
        declared = self._reader.declared.paging
        return (declared.column,) if isinstance(declared, WindowPaging) else ()

    def _in_range(self, newest: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """Yield the landed records whose newest state lies in the range."""
        for record_id, row in newest.items():
            moments = [row[name] for name in self._column()]
            if all(one is not None and self._request.covers(one) for one in moments):
                yield record_id

    def _add(self, judged: JudgedRecord, page: int | None) -> None:
        sequence = self._position.get("sequence", 0) + len(self._found) + 1
        self._found.append(_NumberedRecord(judged, page, sequence))

    def _checkpoint(self, **moved: Any) -> SourceCheckpoint:
        found, self._found = self._found, []
        sequence = self._position.get("sequence", 0) + len(found)
        self._position = {**self._position, **moved, "sequence": sequence}
        parts = (_RecordsPart(self._reader, found),) if found else ()
        return SourceCheckpoint(parts=parts, position=self._position)


class _RecordsPart(NamedTuple):
    """Records of some responses, and deletions."""

    reader: ApiReader
    found: list[_NumberedRecord]

    def batches(self) -> Iterator[Any]:
        """Yield the records that are landed."""
        yield self.reader.rows(self.found)

    def landed(self, rows: int) -> None:
        """Return no row of the ledger of files."""

    def rejected(self, reason: str) -> None:
        """Return no row of the ledger of files."""
