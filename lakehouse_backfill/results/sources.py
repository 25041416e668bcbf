"""Results of `land`."""

from __future__ import annotations

from lakehouse_backfill.core.landing.land import LandingOutcome
from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.domain.sources.landings import LandingSurvey
from lakehouse_backfill.errors import BackfillError, RejectedInput
from lakehouse_backfill.results.base import Record, Result, optional


class PlannedPartRecord(Record):
    """A part of a source, such as a file, and what is planned for it."""

    name: str
    action: str
    because: str


class PlannedOffsetsRecord(Record):
    """Offsets of one partition of a topic that are read, the last one not included."""

    partition: int
    first: int
    stop: int


class DeliveryRecord(Record):
    """One file of a landing: its row of `file_import_ledger`."""

    path: str
    status: str
    attempt: int
    row_count: int | None
    business_date: str | None
    reason: str | None


class LandPreviewResult(Result):
    """What `land` would read."""

    source: str
    kind: str
    table: str
    size_bytes: int
    parts: tuple[PlannedPartRecord, ...]
    offsets: tuple[PlannedOffsetsRecord, ...] | None = optional()
    throughput: str | None = optional()

    @staticmethod
    def of(source: SourceDeclaration, survey: LandingSurvey) -> LandPreviewResult:
        """Describe the survey of a source."""
        return LandPreviewResult(
            source=source.source,
            kind=source.kind,
            table=source.table,
            size_bytes=survey.size_bytes,
            parts=tuple(PlannedPartRecord(**part._asdict()) for part in survey.parts),
            offsets=tuple(PlannedOffsetsRecord(**one._asdict()) for one in survey.offsets) or None,
            throughput=survey.throughput or None,
            warnings=survey.notes,
        )


class LandResult(Result):
    """What `land` has brought in, and the snapshot that holds it."""

    source: str
    kind: str
    table: str
    landing_id: str | None
    snapshot_id: int | None
    tag: str | None
    rows: int
    rejected: int
    skipped: int
    resumed: bool
    files: tuple[DeliveryRecord, ...]
    still_rejected: tuple[str, ...] | None = optional()

    def error(self) -> BackfillError | None:
        """Return what says that files were rejected: those that wait for them must know."""
        bad = [f"{one.path}: {one.reason}" for one in self.files if one.status == "rejected"]
        bad = [*bad, *(self.still_rejected or ())]
        if not bad:
            return None
        others = f"; {len(bad) - 1} more" if len(bad) > 1 else ""
        return RejectedInput(
            f"{len(bad)} parts of {self.source} were rejected: {bad[0]}{others}",
            state="each was rejected as a whole; all others were landed",
            fix=f"have them delivered again, then: lakehouse-backfill land {self.source}",
        )

    @staticmethod
    def of(
        source: SourceDeclaration, done: LandingOutcome, notes: tuple[str, ...] = ()
    ) -> LandResult:
        """Describe the outcome of a landing."""
        state = done.state
        return LandResult(
            source=source.source,
            kind=source.kind,
            table=source.table,
            landing_id=state.landing_id if state else None,
            snapshot_id=done.snapshot.snapshot_id,
            tag=done.snapshot.tag,
            rows=state.rows if state else 0,
            rejected=state.rejected if state else 0,
            skipped=sum(part.action == "skip" for part in done.survey.parts),
            resumed=done.is_resumed,
            files=tuple(DeliveryRecord.from_fields(one) for one in done.deliveries),
            still_rejected=done.still_rejected or None,
            warnings=(*notes, *done.survey.notes),
        )


class ReceiveResult(Result):
    """What the receiver of a webhook has brought in.

    `requests` were kept and acknowledged, `repeated` were known deliveries, `refused` got another
    answer. `waiting` are kept, and are landed by the next `land` of the source.
    """

    source: str
    table: str
    landing_id: str | None
    snapshot_id: int | None
    tag: str | None
    rows: int
    requests: int
    repeated: int
    refused: int
    waiting: int
