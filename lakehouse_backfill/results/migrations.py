"""Results of `product migrate`."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.migration.migrate import MigrationOutcome
from lakehouse_backfill.domain.sources.migration import (
    MigrationDeclaration,
    MigrationState,
    MigrationSurvey,
)
from lakehouse_backfill.errors import BackfillError, RejectedInput
from lakehouse_backfill.results.base import Record, Result


class MigratedPartRecord(Record):
    """A file or range of keys: what is done with it, and why."""

    name: str
    action: str
    because: str
    rows: int
    size_bytes: int


class MigratePreviewResult(Result):
    """What `migrate` would do with each part of the old place."""

    migration: str
    table: str
    rows: int
    adopted: int
    rewritten: int
    rejected: int
    parts: tuple[MigratedPartRecord, ...]

    @staticmethod
    def of(
        declared: MigrationDeclaration, table: str, survey: MigrationSurvey
    ) -> MigratePreviewResult:
        """Describe a survey."""
        return MigratePreviewResult(
            migration=declared.migration,
            table=table,
            rows=sum(part.rows for part in survey.good),
            adopted=_count(survey, "adopt"),
            rewritten=_count(survey, "rewrite"),
            rejected=_count(survey, "reject"),
            parts=tuple(MigratedPartRecord.from_fields(part) for part in survey.parts),
            warnings=survey.notes,
        )


class MigrateResult(Result):
    """What a migration has done; `accepted` says whether readers see it."""

    migration: str
    migration_id: str | None
    product: str
    table: str
    accepted: bool
    snapshot_id: int | None
    rows: int
    adopted: int
    rewritten: int
    partitions: int
    evidence_digest: str | None
    keeps_files: bool
    resumed: bool
    #: Parts that were written again, and those that are bad.
    rewritten_parts: tuple[MigratedPartRecord, ...]
    rejected_parts: tuple[MigratedPartRecord, ...]
    readers: tuple[dict[str, Any], ...]
    blocked: bool

    def error(self) -> BackfillError | None:
        """Return what says that bad parts blocked the migration."""
        if not self.blocked:
            return None
        bad = self.rejected_parts
        more = f"; {len(bad) - 1} more" if len(bad) > 1 else ""
        error = RejectedInput(
            f"{len(bad)} parts of {self.migration} are bad: {bad[0].name}: {bad[0].because}{more}",
            state="nothing was migrated; the old place is as it was",
            fix="mend them, or write bad_parts: leave_out; then lakehouse-backfill product migrate "
            f"{self.migration}",
        )
        error.data["parts"] = [{"name": one.name, "because": one.because} for one in bad]
        return error

    @staticmethod
    def of(declared: MigrationDeclaration, table: str, done: MigrationOutcome) -> MigrateResult:
        """Describe the outcome of a migration."""
        state, proof, survey = done.state, done.proof or {}, done.survey
        return MigrateResult(
            migration=declared.migration,
            migration_id=state.migration_id if state else None,
            product=declared.product,
            table=table,
            accepted=done.snapshot_id is not None,
            snapshot_id=done.snapshot_id,
            rows=proof.get("rows", 0),
            adopted=_count(survey, "adopt") if state else 0,
            rewritten=_count(survey, "rewrite") if state else 0,
            partitions=len(proof.get("partitions", ())),
            evidence_digest=state.proof if state else None,
            keeps_files=bool(state and state.keeps_files),
            resumed=done.is_resumed,
            rewritten_parts=_parts(survey, "rewrite"),
            rejected_parts=_parts(survey, "reject"),
            readers=tuple(
                {name: answer[name] for name in ("reader", "equal")}
                for answer in proof.get("readers", ())
            ),
            blocked=state is None,
            warnings=done.notes,
        )


class MigrationUndoneResult(Result):
    """What `product migrate --undo` took back."""

    migration: str
    table: str
    migration_id: str | None

    @staticmethod
    def of(
        declared: MigrationDeclaration, table: str, state: MigrationState | None
    ) -> MigrationUndoneResult:
        """Describe what was taken back; nothing where there was no table."""
        return MigrationUndoneResult(
            migration=declared.migration,
            table=table,
            migration_id=state.migration_id if state else None,
        )


def _count(survey: MigrationSurvey, action: str) -> int:
    return sum(part.action == action for part in survey.parts)


def _parts(survey: MigrationSurvey, action: str) -> tuple[MigratedPartRecord, ...]:
    return tuple(
        MigratedPartRecord.from_fields(part) for part in survey.parts if part.action == action
    )
