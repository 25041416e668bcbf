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
from lakehouse_backfill.adapters.sources.formats import decode_json, exact_json, from_json_rows
from lakehouse_backfill.core.landing import pages
from lakehouse_backfill.core.landing.records import (
    JudgedRecord,
    KnownRecord,
    deleted_ids,
    judge_record,
    version_text,
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
    client: ApiClient | None
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
        name = canonical_json(place) if place is not None else self.source.source
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
                name: position[name]
                for name in ("continued", "sequence", "received")
                if name in position
            }
            position = {"landing": state.landing_id, "page": 0, **kept}
            # The begin is committed, so that a landing that is cut off finds its responses.
            yield SourceCheckpoint(parts=(), position=position)
        if not position.get("is_read"):
            self.ledger.open(state)
            yield from _Reading(self, state, position).checkpoints(survey.detail)

    def finish(self, state: LandingState) -> None:
        """Do nothing: what follows a commit lies in the lake."""

    def responses(self, first: pages.Place, committed: int) -> Iterator[StoredPage]:
        """Yield the stored responses, then those that are still to be requested.

        `committed`: the number of the last response whose records are landed.
        """
        place: pages.Place | None = first
        number, asked = 0, set[str]()
        for page in self.ledger.pages():
            if page.number > committed:
                # What was stored behind a page that was asked for again belongs to its old answer.
                if place is None or canonical_json(page.place) != canonical_json(place):
                    break
                try:
                    following = self._following(page, asked)
                    self.parsed(self.records(page))
                except Blocked:
                    break  # it cannot be landed: it is asked for again
            else:
                following = self._following(page, asked)
            yield page
            number, place = page.number, following
        while place is not None:
            if self.client is None:
                raise RuntimeError("this reader takes what a webhook received")
            answer = self.client.get(pages.query(self.declared, place))
            # A page that is asked for now is none of those whose records are landed.
            number = max(number, committed) + 1
            page = self.ledger.store(number, place, answer, self.clock.now())
            place = self._following(page, asked)
            yield page

    def _following(self, page: StoredPage, asked: set[str]) -> pages.Place | None:
        """Return the place after a page; raises Blocked for one that was `asked` for before."""
        body = self.body(page)
        following = pages.next_place(self.declared, page.place, body, self.records(page))
        asked.add(canonical_json(page.place))
        if following is not None and canonical_json(following) in asked:
            raise pages.repeated_page(following)
        return following

    def body(self, page: StoredPage) -> Any:
        try:
            return decode_body(page.body)
        except (ValueError, RecursionError):
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
                version_text(json.loads(row["record"], parse_float=Decimal), version)
                if version
                else None,
                row["change"] == "deletion",
            )
            for record_id, row in found.items()
        }

    def rows(self, judged: list[NumberedRecord]) -> pa.Table:
        """Return records in the columns of the raw table; raises Blocked for a wrong value."""
        import pyarrow as pa

        added = [
            {
                "record_id": one.record.record_id,
                "change": one.record.change,
                "record_hash": one.record.record_hash,
                "record": exact_json(one.record.record),
                "page": one.page,
                "sequence": one.sequence,
            }
            for one in judged
        ]
        parsed = self.parsed([one.record.record for one in judged])
        columns = [
            parsed[field.name]
            if field.name in parsed.column_names
            else pa.array([row[field.name] for row in added], field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def parsed(self, records: list[Mapping[str, Any]]) -> pa.Table:
        """Return records in the declared columns; raises Blocked for a wrong value."""
        import pyarrow as pa

        own = pa.schema([f for f in self.schema if f.name in {c.name for c in self.source.columns}])
        try:
            for record in records:
                exact_json(record).encode()  # half a surrogate pair is no text
            found = from_json_rows(records, own)
            missing = [f.name for f in own if not f.nullable and found[f.name].null_count]
        except (pa.ArrowException, ValueError, TypeError) as error:
            problem = f"records do not fit the declared columns: {type(error).__name__}"
            raise bad_answer(self.declared.url, problem) from None
        if missing:
            raise bad_answer(self.declared.url, f"records have no {', '.join(missing)}")
        return found


def decode_body(body: str) -> Any:
    """Return a body of JSON with exact numbers; raises ValueError, RecursionError."""
    text = body.removeprefix("\ufeff")
    return decode_json(text)


class NumberedRecord(NamedTuple):
    """A record that is landed, its response, and its place in the order of the table."""

    record: JudgedRecord
    page: int | None
    sequence: int


class _Reading:
    """The responses of one landing, from the position that is committed on."""

    def __init__(self, reader: ApiReader, state: LandingState, position: dict[str, Any]) -> None:
        self._reader = reader
        self._request = state.request
        self._began_at = state.started_at
        self._position = position
        self._known = reader.known()
        self._seen: set[str] = set()
        self._found: list[NumberedRecord] = []

    def checkpoints(self, first: pages.Place) -> Iterator[SourceCheckpoint]:
        """Yield a checkpoint for each group of responses, and one at the end."""
        declared, committed = self._reader.declared, self._position["page"]
        last: StoredPage | None = None
        for page in self._reader.responses(first, committed):
            last = page
            self._take(page, is_landed=page.number <= committed)
            if page.number - self._position["page"] >= declared.pages_per_commit:
                yield self._checkpoint(page=page.number)
        continued = {}
        if last is not None:
            body = self._reader.body(last)
            before = self._position.get("continued", {})
            place = pages.continued_from(declared, last.place, body)
            continued["continued"] = pages.without_gap(
                declared, (first, place), before, self._began_at
            )
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
        self._found.append(NumberedRecord(judged, page, sequence))

    def _checkpoint(self, **moved: Any) -> SourceCheckpoint:
        found, self._found = self._found, []
        sequence = self._position.get("sequence", 0) + len(found)
        self._position = {**self._position, **moved, "sequence": sequence}
        parts = (RecordsPart(self._reader, found),) if found else ()
        return SourceCheckpoint(parts=parts, position=self._position)


class RecordsPart(NamedTuple):
    """Records of some responses, and deletions."""

    reader: ApiReader
    found: list[NumberedRecord]

    def batches(self) -> Iterator[Any]:
        """Yield the records that are landed."""
        yield self.reader.rows(self.found)

    def landed(self, rows: int) -> None:
        """Return no row of the ledger of files."""

    def rejected(self, reason: str) -> None:
        """Return no row of the ledger of files."""
