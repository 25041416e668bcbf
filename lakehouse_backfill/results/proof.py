"""Results of the methods that prove what is stored, and of those that set a project up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.domain.checks import StoredCheck
from lakehouse_backfill.domain.tables.capabilities import Capabilities
from lakehouse_backfill.results.base import Record, Result, optional

if TYPE_CHECKING:
    from lakehouse_backfill.core.evidence.reproduce import (
        ProductGuarantees,
        ReproducedPartition,
        ReproduceOutcome,
    )
    from lakehouse_backfill.core.evidence.verification.verify import VerifyOutcome
    from lakehouse_backfill.core.runs.event_log import AuditVerdict

_UNCHANGED = "nothing was changed"


def _failures(checks: tuple[StoredCheck | GuaranteeCheck, ...]) -> str:
    return "; ".join(f"{one.name} ({one.because})" for one in checks if one.ok is False)


class VerifyResult(Result):
    """All comparisons of a run, which data was read for them, and whether anybody accepted it."""

    run_id: str
    deep: bool
    files_read: int
    partitions_read_by_spark: int
    accepted: bool
    intact: bool
    checks: tuple[StoredCheck, ...]

    @classmethod
    def of(
        cls, outcome: VerifyOutcome, files: tuple[StoredCheck, ...], *, deep: bool
    ) -> VerifyResult:
        """Describe the comparisons in the lake and of the evidence files."""
        checks = (*outcome.checks, *files)
        return cls(
            run_id=outcome.run_id,
            deep=deep,
            files_read=outcome.data_read.files,
            partitions_read_by_spark=outcome.data_read.partitions_by_spark,
            accepted=outcome.is_accepted,
            intact=all(check.ok is not False for check in checks),
            checks=checks,
        )

    def error(self) -> errors.BackfillError | None:
        """Return Tampered when something stored differs; ApprovalMissing when nobody accepted."""
        if self.intact and not self.accepted:
            return errors.ApprovalMissing(
                f"nobody has accepted {self.run_id}: there is nothing to compare its data with",
                state=f"what is recorded of it is as it was written; {_UNCHANGED}",
                fix=f"{command_line('status', self.run_id)} says what comes next",
            )
        if self.intact:
            return None
        what = "accepted" if self.accepted else "recorded"
        return errors.Tampered(
            f"{self.run_id}: what is stored is not what was {what}: {_failures(self.checks)}",
            state=_UNCHANGED,
            fix="find out who changed it; restore the file from a copy, or put the control table "
            "back to an earlier snapshot; docs/verification.md says what each finding means",
        )


class ReproduceResult(Result):
    """The recomputed partitions; `code` is the digest of the executed files."""

    run_id: str
    equal: bool
    code: str
    scratch_table: str
    partitions: tuple[ReproducedPartition, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, outcome: ReproduceOutcome) -> ReproduceResult:
        """Describe what was recomputed, partition by partition."""
        return cls.from_fields(outcome, equal=outcome.is_equal)

    def error(self) -> errors.BackfillError | None:
        """Return ChecksFailed when a partition came out differently."""
        wrong = [one.partition for one in self.partitions if not one.equal]
        if not wrong:
            return None
        return errors.ChecksFailed(
            f"{self.run_id}: {len(wrong)} partitions came out differently: {', '.join(wrong)}",
            state=f"{_UNCHANGED}; readers see what was accepted",
            fix=f"{command_line('verify', self.run_id)} --deep, to see whether what is "
            "stored was changed; else the job is not deterministic: "
            "lakehouse-backfill audit guarantees",
        )


class AuditVerifyResult(Result):
    """What the logs of all runs showed; `heads` are the newest hashes, to be kept elsewhere.

    `compared` is how many heads of an earlier result were looked for; absent: none was given.
    `signed` and `unsigned` count decisions and publications; absent: none is signed, nor has to be.
    `anchored` counts the compared records of the anchor, `unanchored` the heads that it lacks;
    absent: it was not asked.
    """

    events: int
    runs: int
    unchained: int
    first_bad: str | None
    heads: Mapping[str, str]
    products: int
    intact: bool
    compared: int | None = optional()
    signed: int | None = optional()
    unsigned: int | None = optional()
    anchored: int | None = optional()
    unanchored: int | None = optional()

    @classmethod
    def of(cls, found: AuditVerdict) -> AuditVerifyResult:
        """Describe a verdict on the logs."""
        return cls.from_fields(found, intact=found.is_intact)

    def error(self) -> errors.BackfillError | None:
        """Return Tampered when an event is not as it was written."""
        if self.intact:
            return None
        return errors.Tampered(
            f"what was recorded is not as it was written: {self.first_bad}",
            state="only control tables were read; the tables that readers see were not looked at",
            fix="find out who else writes to the control tables; docs/control-tables.md says what "
            "each finding means",
        )


class SampledChunk(Record):
    """The chunk of a product on which the guarantees were tested, and why this one."""

    product: str
    run_id: str | None
    chunk_id: str | None
    partitions: tuple[str, ...]
    because: str


class GuaranteeCheck(Record):
    """One guarantee on a sampled chunk; `ok` is None where nothing could be compared."""

    product: str
    run_id: str | None
    chunk_id: str | None
    name: str
    ok: bool | None
    expected: Any
    found: Any
    because: str


class AuditGuaranteesResult(Result):
    """What was sampled of each product, and which guarantees held."""

    sampled: tuple[SampledChunk, ...]
    held: bool
    checks: tuple[GuaranteeCheck, ...]

    @classmethod
    def of(cls, found: tuple[ProductGuarantees, ...]) -> AuditGuaranteesResult:
        """Describe the samples and their checks."""
        checks = tuple(
            GuaranteeCheck.from_fields(
                check, product=one.product, run_id=one.run_id, chunk_id=one.chunk_id
            )
            for one in found
            for check in one.checks
        )
        sampled = tuple(map(SampledChunk.from_fields, found))
        held = all(check.ok is not False for check in checks)
        return cls(sampled=sampled, held=held, checks=checks)

    def error(self) -> errors.BackfillError | None:
        """Return ChecksFailed when a guarantee does not hold."""
        if self.held:
            return None
        return errors.ChecksFailed(
            f"a guarantee does not hold: {_failures(self.checks)}",
            state=f"{_UNCHANGED}; only scratch tables were written, and dropped",
            fix="correct the job so that the same input gives the same rows, or report it",
        )


class DoctorCheck(Record):
    """One check of the environment, and its fix if it failed."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


class DoctorResult(Result):
    """The checks of the environment; `capabilities` is what the catalog was seen to do."""

    checks: tuple[DoctorCheck, ...]
    capabilities: Capabilities | None

    def error(self) -> errors.BackfillError | None:
        """Return EnvironmentDown when a check failed."""
        failed = [check for check in self.checks if not check.ok]
        if not failed:
            return None
        names = ", ".join(check.name for check in failed)
        return errors.EnvironmentDown(f"doctor found faults: {names}", fix=failed[0].fix)


class SessionResult(Result):
    """Whether the project has a warm session; `unusable` is why commands do not use it.

    `is_used`: a command uses it now. It ends once nobody has used it for `idle_minutes`.
    """

    is_on: bool
    is_used: bool
    pid: int | None
    since: datetime | None
    idle_minutes: float | None
    unusable: str


class ManifestDraft(Result):
    """The drafted file, and the questions that a person has to answer in it."""

    file: str
    questions: tuple[str, ...]


class ProductDraft(ManifestDraft):
    """The drafted contract; `suite` is the drafted suite, `key` the proposed key."""

    suite: str | None
    key: tuple[str, ...]


class InitResult(Result):
    """The files of a new project."""

    project: str
    files: tuple[str, ...]


class SchemaResult(Result):
    """The JSON Schema of a declaration."""

    kind: str
    schema: Mapping[str, Any]


class DemoResult(Result):
    """The steps of the demo; its project is kept."""

    project: str
    run_id: str
    steps: tuple[Mapping[str, Any], ...]
