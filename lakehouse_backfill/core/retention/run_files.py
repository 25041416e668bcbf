"""Delete what runs staged and nobody published, once their shadows are dropped.

A run takes over files of another one only while it is open, and its plan names that one's shadow.
So after a shadow is dropped the open runs are read again: any run that is registered later finds no
shadow, and what others took over before is in their tables. In doubt files are kept, and listed
with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.pointer import ACCEPTED_ACTIONS
from lakehouse_backfill.domain.labels.names import namespace_text
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.retention import (
    DeletedFiles,
    LeftoverFiles,
    RetentionItem,
    RunFacts,
    StagedFiles,
    StagedShadow,
)
from lakehouse_backfill.errors import BackfillError, Blocked


@dataclass
class RunFilesOutcome:
    """What was deleted (or, in a dry run, would be) by run, and what is left, and why."""

    deleted: list[DeletedFiles] = field(default_factory=list)
    left: list[LeftoverFiles] = field(default_factory=list)


@dataclass(frozen=True)
class _Lake:
    """What decides whether a run's files may go, read after the shadows were dropped."""

    runs: Mapping[str, RunFacts]
    rows: Mapping[str, tuple[Publication, ...]]
    #: The runs that need a shadow, by its name: open runs, and those that pinned a snapshot of it.
    needs: Mapping[str, str]
    dropped: frozenset[str]

    def tables(self, product: str) -> frozenset[str]:
        """Return the tables that versions of the product are in, and the shadows of its runs."""
        versions = {row.table for row in self.rows.get(product, ()) if row.table}
        return frozenset(
            versions | {run.shadow for run in self.runs.values() if run.product == product}
        )

    def published(self) -> frozenset[str]:
        """Return the runs of which any version was ever accepted."""
        rows = [row for found in self.rows.values() for row in found]
        return frozenset(
            row.run_id for row in rows if row.run_id and row.action in ACCEPTED_ACTIONS
        )

    def pending(self) -> frozenset[str]:
        """Return the runs that reserved a version and did not release it."""
        last = {row.run_id: row.action for found in self.rows.values() for row in found}
        return frozenset(run for run, action in last.items() if run and action == "reserve")


def carried_shadows(plan: Plan) -> tuple[str, ...]:
    """Name the shadows of earlier revisions that hold chunks which the run takes over."""
    follow = plan.resolved.catch_up
    taken = (*follow.carried, *follow.erased) if follow else ()
    return tuple(dict.fromkeys(chunk.shadow_table for chunk in taken))


def read_candidates(plan: Plan) -> tuple[str, ...]:
    """Name the shadows of other runs of the cascade that the run reads, once they are known."""
    pins = plan.resolved.sources
    return tuple(dict.fromkeys(pin.table for pin in pins if pin.candidate and pin.is_bound))


def delete_run_files(
    context: Context,
    runs: Mapping[str, RunFacts],
    retired: list[RetentionItem],
    by: str,
    *,
    product: str | None,
    dry_run: bool,
) -> RunFilesOutcome:
    """Delete the files of runs that were never published, whose shadows are dropped.

    A dry run looks at the shadows in `retired` as if they were dropped. An interrupted deletion is
    completed: it is recorded in the run before its first file and after its last.
    """
    done = RunFilesOutcome()
    dropped = {item.name: item.run_id for item in retired if item.kind == "shadow"}
    waiting = {*context.audit.pending_deletions()}
    if dry_run:
        waiting |= {run for name, run in dropped.items() if run and runs[run].shadow == name}
    waiting = {run for run in waiting if product in (None, runs[run].product)}
    if not waiting:
        return done
    lake = _read_lake(context, runs, frozenset(dropped if dry_run else ()))
    shadows = {*context.shadows.list()} - lake.dropped
    busy = {run.product for run in runs.values() if run.shadow in shadows}
    unpublished = sorted(waiting - lake.published())
    context.progress.count("maintain, files of", len(unpublished), "runs")
    for run_id in unpublished:
        run, staged = runs[run_id], None
        try:
            staged = _staged_shadow(context, run)
            if staged is not None:
                done.deleted.append(_delete_one(context, lake, staged, by, dry_run=dry_run))
        except BackfillError as error:
            done.left.append(_leftover(run, staged, error, is_busy=run.product in busy))
        context.progress.advance()
    context.progress.finish()
    return done


def _read_lake(context: Context, runs: Mapping[str, RunFacts], dropped: frozenset[str]) -> _Lake:
    shadows = {run_id: run.shadow for run_id, run in runs.items()}
    needs = {
        lease.table: lease.run_id
        for lease in context.evidence.active_leases()
        if shadows.get(lease.run_id) != lease.table
    }
    for status in context.runs.list(open_only=True):
        plan = context.runs.plan(status.run_id)
        needs |= dict.fromkeys((*carried_shadows(plan), *read_candidates(plan)), status.run_id)
    rows = {product: found for product, (found, _) in context.audit.products().items()}
    return _Lake(runs, rows, needs, dropped)


def _staged_shadow(context: Context, run: RunFacts) -> StagedShadow | None:
    """Return what the run's `retire` event says of its shadow, or the catalog before it."""
    events = context.runs.events(run.run_id)
    event_log.require_intact_log(context.runs.status(run.run_id), events)
    recorded = [event.detail["staged"] for event in events if "staged" in event.detail]
    found = recorded[-1] if recorded else context.run_files.describe(run.shadow)
    if found is None:
        return None
    return StagedShadow(
        run_id=run.run_id, product=run.product, shadow=run.shadow, target=run.target, **found
    )


def _delete_one(
    context: Context, lake: _Lake, staged: StagedShadow, by: str, *, dry_run: bool
) -> DeletedFiles:
    """Delete the files of one run; raises a BackfillError where they are kept."""
    _require_unneeded(lake, staged)
    plan, events = context.runs.plan(staged.run_id), context.runs.events(staged.run_id)
    is_begun = any(event.verb == "begin deleting files" for event in events)
    found = context.run_files.find(
        staged, plan.resolved.scope, lake.tables(staged.product), lake.dropped, is_begun=is_begun
    ) or StagedFiles(groups=(), files=0, size_bytes=0, held={})
    namespace = context.profile.shadow_namespace
    holding = next((name for name in found.held if namespace_text(name) == namespace), None)
    if holding:
        raise Blocked(
            f"{holding} lists {found.held[holding]} files of {staged.shadow}",
            fix=f"lakehouse-backfill maintain again, once {holding} is dropped",
        )
    deleted = DeletedFiles(
        run_id=staged.run_id, product=staged.product, shadow=staged.shadow, files=found.files,
        size_bytes=found.size_bytes, kept_files=sum(found.held.values()),
    )  # fmt: skip
    if not dry_run:
        counts: dict[str, Any] = {
            "files": found.files,
            "size_bytes": found.size_bytes,
            "held": found.held,
        }
        status = context.runs.status(staged.run_id)
        if not is_begun:
            status = context.move(status, plan, "begin deleting files", by, **counts)
        context.run_files.delete(staged, found.groups)
        context.move(status, plan, "delete files", by, **counts)
    return deleted


def _require_unneeded(lake: _Lake, staged: StagedShadow) -> None:
    """Raise Blocked while another run needs the shadow, or this one publishes it."""
    if staged.shadow in lake.needs:
        needing = lake.needs[staged.shadow]
        raise Blocked(
            f"{needing} needs files of {staged.shadow}",
            fix=f"lakehouse-backfill maintain again, once {needing} is closed",
        )
    if staged.run_id in lake.pending():
        raise Blocked(
            f"{staged.run_id} began to publish {staged.shadow}, and nothing says how it ended",
            fix="lakehouse-backfill recover --all",
        )


def _leftover(
    run: RunFacts, staged: StagedShadow | None, error: BackfillError, *, is_busy: bool
) -> LeftoverFiles:
    command = None
    if staged is not None and not is_busy:
        command = (
            f"CALL system.remove_orphan_files(table => '{run.target}', "
            f"location => '{staged.location}', dry_run => true)"
        )
    return LeftoverFiles(
        shadow=run.shadow,
        size_bytes=staged.size_bytes if staged else 0,
        location=staged.location if staged else "",
        command=command,
        run_id=run.run_id,
        because=error.problem,
        fix=error.fix,
    )
