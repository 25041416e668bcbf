"""What a landing has done so far: the values that its commits carry, and rows of its ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from pydantic import Field

from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.serialization import Value, digest

FileStatus = Literal["imported", "duplicate", "correction", "rejected"]


class FileDelivery(Value):
    """One attempt to import a file: a row of `file_import_ledger`."""

    file_id: str
    path: str
    size_bytes: int
    content_hash: str
    landing_manifest_id: str | None = None
    produced_at: datetime | None = None
    business_date: str | None = None
    schema_version: str | None = None
    attempt: int = Field(ge=1)
    status: FileStatus
    first_seen_at: datetime
    accepted_run_id: str | None = None
    source: str | None = None
    landing_id: str | None = None
    row_count: int | None = None
    reason: str | None = None

    @property
    def is_landed(self) -> bool:
        """Whether its rows are in the raw table, or were until a later attempt replaced them."""
        return self.status in ("imported", "correction")


class LandingState(Value):
    """Where a landing stands; each commit to the raw table carries the newest one."""

    landing_id: str
    source: str
    request: LandingRequest
    step: int = 0
    position: dict[str, Any] = Field(default_factory=dict)
    rows: int = 0
    rejected: int = 0
    #: Rows of the ledger of the newest commit: the ledger is written after it.
    deliveries: tuple[FileDelivery, ...] = ()
    is_complete: bool = False
    started_at: datetime
    #: Names one commit, and the commit whose state it was decided on: so a commit of unknown
    #: outcome is found, and one that was decided on an older state is refused.
    token: str = ""
    follows: str = ""

    @property
    def mode(self) -> str:
        """The mode of the landing: of its commits and log lines."""
        return "reconciliation" if self.request.reconcile else "live"


class LandingRequest(Value):
    """What a landing shall read: a half-open range of business dates or instants, or all."""

    from_: date | datetime | None = None
    to: date | datetime | None = None
    reconcile: bool = False

    def holds(self, day: date | None) -> bool:
        """Return whether a business date is in the range; without a range all are."""
        if self.from_ is None and self.to is None:
            return True
        if day is None:
            return False
        return not (
            (self.from_ is not None and day < _day(self.from_))
            or (self.to is not None and day >= _day(self.to))
        )

    def covers(self, moment: date | datetime) -> bool:
        """Return whether an instant or a day lies in the range; without a range all do."""
        found, first, stop = (
            None if one is None else as_instant(one) for one in (moment, self.from_, self.to)
        )
        if found is None:
            return False
        return (first is None or first <= found) and (stop is None or found < stop)


LandingState.model_rebuild()


def next_state(state: LandingState, **changes: Any) -> LandingState:
    """Return the state after the next commit: it names the commit that it follows."""
    links = {"step": state.step + 1, "follows": state.token, "token": uuid4().hex}
    return state.model_copy(update={**changes, **links})


def _day(moment: date | datetime) -> date:
    return moment.date() if isinstance(moment, datetime) else moment


def new_landing_id(source: str, request: LandingRequest, began_at: datetime) -> str:
    """Return the id of a landing that begins now."""
    return f"ld-{digest([source, request, began_at.isoformat()])[:10]}"


class SourceCapabilities(NamedTuple):
    """What a kind of source can do; the same questions to each kind."""

    kind: str
    #: From where an interrupted landing goes on.
    resumes_at: str
    #: What --from and --to are compared with; empty: nothing.
    range_of: str
    #: Whether deletions in the source are found.
    finds_deletions: bool


class PlannedRange(NamedTuple):
    """Offsets of one partition that a landing reads: from `first` up to `stop`, without it."""

    partition: int
    first: int
    stop: int


@dataclass(frozen=True)
class LandingSurvey:
    """What a landing will read, found without reading rows."""

    #: Named parts, such as files, with what is planned for each.
    parts: tuple[PlannedPart, ...] = ()
    size_bytes: int = 0
    notes: tuple[str, ...] = ()
    #: Offsets that a landing of a topic reads, without those that were landed before.
    offsets: tuple[PlannedRange, ...] = ()
    #: How much progress there will be, and in what; None: one for each part that is not skipped.
    progress: tuple[int, str] | None = None
    #: How fast the source is read against what it gets, as far as it was measured.
    throughput: str = ""
    #: What the reader keeps between survey and read.
    detail: Any = field(default=None, compare=False)


class PlannedPart(NamedTuple):
    """A part of a source and what is planned for it: import, skip, duplicate."""

    name: str
    action: str
    because: str


@dataclass(frozen=True)
class LandedSnapshot:
    """The raw table after a commit of a landing."""

    table: str
    snapshot_id: int | None
    tag: str | None = None


class FoundFile(NamedTuple):
    """A file that lies in the folder of a source; its path is relative to that folder."""

    path: str
    size_bytes: int
    content_hash: str
    produced_at: datetime | None = None
    business_date: date | None = None
    manifest_id: str | None = None
    schema_version: str | None = None
    expected_rows: int | None = None


class ExpectedFile(Value):
    """One file that a landing manifest lists."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    rows: int | None = None
    business_date: date | None = None
    produced_at: datetime | None = None
    schema_version: str | None = None

    @property
    def content_hash(self) -> str | None:
        """The SHA-256 as this package writes it: tools differ in the case of its letters."""
        return None if self.sha256 is None else self.sha256.strip().lower()


class LandingManifest(Value):
    """The producer's list of the files of one delivery."""

    id: str
    files: tuple[ExpectedFile, ...]
