"""Results of the methods that publish, roll back, recover and clean up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.core.versions import steps
from lakehouse_backfill.domain import publication
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.run import RunStatus
from lakehouse_backfill.domain.tables.commits import CommitResult, RequiredRewrite
from lakehouse_backfill.errors import BackfillError, OutcomeUnknown
from lakehouse_backfill.results.base import Record, Result, RunResult, optional
from lakehouse_backfill.results.runs import run_fields

if TYPE_CHECKING:
    from lakehouse_backfill.core.publication.dual_read import DualReadOutcome, ReaderComparison
    from lakehouse_backfill.core.publication.post_publish import PostPublishOutcome
    from lakehouse_backfill.core.publication.publication import PublishOutcome
    from lakehouse_backfill.core.publication.recover import RecoveryOutcome
    from lakehouse_backfill.core.publication.rollback import RollbackOutcome
    from lakehouse_backfill.core.publication.rollback_preview import RollbackPreview
    from lakehouse_backfill.core.retention.maintain import MaintainOutcome
    from lakehouse_backfill.core.runs.notes import RunNote
    from lakehouse_backfill.domain import rollout
    from lakehouse_backfill.domain.guards.outside import HookCall
    from lakehouse_backfill.domain.plan import Plan
    from lakehouse_backfill.domain.retention import (
        DeletedFiles,
        LeftoverFiles,
        OrphanFiles,
        RetentionItem,
    )


class NoteResult(RunResult):
    """The notes on a run, oldest first."""

    notes: tuple[RunNote, ...]


class PublishResult(RunResult):
    """What became visible; `was_published`: it had been before, and nothing was changed."""

    version: int
    table: str
    snapshot_id: int | None
    files_added: int
    files_removed: int
    rows_added: int
    rows_removed: int
    seconds: float
    attempts: int
    was_published: bool
    supersedes: int | None
    checks_after: tuple[CheckResult, ...] | None = optional()
    hooks: tuple[HookCall, ...] | None = optional()
    note_command: str | None = optional()

    @classmethod
    def of(
        cls,
        status: RunStatus,
        outcome: PublishOutcome,
        after: PostPublishOutcome | None = None,
        warnings: tuple[str, ...] = (),
    ) -> PublishResult:
        """Describe a publication, and the checks and hooks that followed it."""
        swap = outcome.swap
        return cls.from_fields(
            outcome.publication,
            **run_fields(status),
            **_swap_fields(swap),
            attempts=swap.attempts if swap else 0,
            was_published=outcome.was_published,
            checks_after=after.checks if after else None,
            hooks=after.calls if after else None,
            warnings=warnings,
        )


def _swap_fields(swap: CommitResult | None) -> dict[str, Any]:
    """Return what a swap changed; zeros where there was none."""
    counts = ("files_added", "files_removed", "rows_added", "rows_removed")
    return {
        **{name: getattr(swap, name, 0) for name in counts},
        "seconds": round(swap.seconds, 3) if swap else 0.0,
    }


class PublishPreviewResult(Result):
    """What `publish` would do."""

    run_id: str
    product: str
    dry_run: bool = True
    version: int
    table: str
    partitions: tuple[str, ...]
    publish_mode: str
    steps: list[list[str]]
    was_published: bool = False

    @classmethod
    def of(
        cls, plan: Plan, pointer: publication.Pointer, visible: publication.Publication | None
    ) -> PublishPreviewResult:
        """Describe the publication of a plan on the pointer, or the one that readers see."""
        return cls.from_fields(
            plan,
            version=visible.version if visible else pointer.last_version + 1,
            was_published=visible is not None,
            table=plan.resolved.target.table,
            partitions=plan.resolved.scope.partitions,
            publish_mode=plan.resolved.manifest.target.publish_mode,
            steps=steps.preview_steps(plan),
        )


class PublishTogetherResult(Result):
    """Runs that were published together: by this command, or found so."""

    published: tuple[PublishResult, ...]


class RollbackResult(Result):
    """Where `rollback` led; the fields of a swap are left out where only the pointer moved."""

    product: str
    state: str = "rolled_back"
    version: int
    table: str
    snapshot_id: int | None
    partitions: tuple[str, ...] | None = optional()
    files_added: int | None = optional()
    files_removed: int | None = optional()
    rows_added: int | None = optional()
    rows_removed: int | None = optional()
    seconds: float | None = optional()
    columns_stay: tuple[str, ...] | None = optional()
    messages_lost: tuple[str, ...] | None = optional()
    reason: str

    @classmethod
    def of(cls, outcome: RollbackOutcome, columns: tuple[str, ...] = ()) -> RollbackResult:
        """Describe a rollback by one swap; `columns` are changes that it does not undo."""
        row = outcome.publication
        return cls.from_fields(
            row,
            columns_stay=columns or None,
            messages_lost=outcome.messages_lost or None,
            snapshot_id=outcome.swap.snapshot_id,
            partitions=row.scope.partitions if row.scope else (),
            **_swap_fields(outcome.swap),
        )

    @classmethod
    def of_pointer(cls, row: publication.Publication, lost: tuple[str, ...] = ()) -> RollbackResult:
        """Describe where the pointer of a pinned product went; no table was changed."""
        return cls.from_fields(row, messages_lost=lost or None)


class RollbackPreviewResult(Result):
    """What `rollback` would do; `columns_stay` are changes of columns that it does not undo.

    `partitions` change; `unchanged` ones of its range hold already what they would get. Readers
    lose the output of `runs_undone` and get that of `runs_reinstated` again; `messages_lost` are
    those that sinks lack of these.
    """

    product: str
    dry_run: bool = True
    version: int
    partitions: tuple[str, ...]
    unchanged: tuple[str, ...]
    runs_undone: tuple[str, ...]
    runs_reinstated: tuple[str, ...]
    rewritten: tuple[RequiredRewrite, ...]
    columns_stay: tuple[str, ...]
    messages_lost: tuple[str, ...] | None = optional()

    @classmethod
    def of(cls, product: str, preview: RollbackPreview) -> RollbackPreviewResult:
        """Describe a rollback."""
        target = preview.target
        return cls(
            product=product,
            version=target.version,
            partitions=preview.changed,
            unchanged=preview.unchanged,
            runs_undone=target.runs_rolled_back,
            runs_reinstated=target.runs_reinstated,
            rewritten=tuple(target.rewrites),
            columns_stay=preview.columns_stay,
            messages_lost=preview.messages_lost or None,
        )


class RollbackTogetherResult(Result):
    """The products that were rolled back by one commit, or would."""

    rolled_back: tuple[RollbackResult | RollbackPreviewResult, ...]


class VersionLine(Record):
    """One accepted version; `partitions` is their number, `is_accepted`: readers get it now."""

    version: int
    action: str
    run_id: str | None
    table: str
    snapshot_id: int | None
    accepted_at: datetime
    accepted_by: tuple[str, ...]
    approved_by: tuple[str, ...]
    published_by: str
    supersedes: int | None
    partitions: int
    reason: str
    is_accepted: bool

    @classmethod
    def of(cls, row: publication.Publication, *, is_accepted: bool) -> VersionLine:
        """Describe a row of the pointer's table."""
        return cls.from_fields(
            row,
            is_accepted=is_accepted,
            accepted_at=row.at,
            accepted_by=row.accepted_by or (row.by,),
            published_by=row.by,
            partitions=len(row.scope.partitions) if row.scope else 0,
        )


class VersionsResult(Result):
    """The accepted versions of a product, newest first."""

    product: str
    versions: tuple[VersionLine, ...]


class EvidenceResult(Result):
    """The paths of the evidence page (`report`), its archive, and the index of all runs."""

    archive: str
    index: str


class DualReadResult(RunResult):
    """What a reader's query gave on old and candidate, and the comparisons of all readers."""

    digest: str
    comparison: rollout.QueryComparison
    equal: bool
    readers: tuple[ReaderComparison, ...]

    @classmethod
    def of(cls, outcome: DualReadOutcome) -> DualReadResult:
        """Describe a comparison."""
        return cls.from_fields(
            outcome, **run_fields(outcome.status), equal=outcome.comparison.equal
        )


class RecoverResult(Result):
    """What was found half done, and what was done about it (in a dry run: would be)."""

    actions: tuple[RecoveryOutcome, ...]
    dry_run: bool

    def error(self) -> BackfillError | None:
        """Return OutcomeUnknown while something is still half done."""
        left = [action for action in self.actions if not action.is_done]
        if not left:
            return None
        return OutcomeUnknown(
            f"{len(left)} of {len(self.actions)} actions failed; {left[0].subject}, "
            f"{left[0].action}: {left[0].result}",
            state="readers see old or new partitions, never a mix; everything is kept",
            fix="put right what the results name, then lakehouse-backfill recover --all",
        )


class RetentionLine(Record):
    """One thing that was removed or is kept, with the reason."""

    name: str
    kind: str
    because: str
    product: str | None
    owner: str | None
    until: datetime | None
    snapshot_id: int | None
    run_id: str | None

    @classmethod
    def of(cls, item: RetentionItem) -> RetentionLine:
        """Describe an item; empty texts become None."""
        texts = {name: getattr(item, name) or None for name in ("product", "owner", "run_id")}
        return cls.from_fields(item, **texts)


class MaintainResult(Result):
    """What was removed or deleted, what is kept, and which files are left, and why."""

    dry_run: bool
    retired: tuple[RetentionLine, ...]
    kept: tuple[RetentionLine, ...]
    deleted: tuple[DeletedFiles, ...]
    left: tuple[LeftoverFiles, ...]
    control_files: OrphanFiles
    versions_let_go: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, outcome: MaintainOutcome, *, dry_run: bool) -> MaintainResult:
        """Describe both lists, each item with its reason."""
        return cls(
            dry_run=dry_run,
            retired=tuple(RetentionLine.of(item) for item in outcome.retired),
            kept=tuple(RetentionLine.of(item) for item in outcome.kept),
            deleted=tuple(outcome.run_files.deleted),
            left=tuple(outcome.run_files.left),
            control_files=outcome.litter,
            versions_let_go=tuple(
                {"product": item.product, "version": item.version}
                for item in outcome.retired
                if item.kind == "version"
            ),
        )
