"""Where the rows that a run replaces came from: the run that made them, its code and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lakehouse_backfill import errors
from lakehouse_backfill.core.planning import job_code
from lakehouse_backfill.core.planning.inputs.pins import expired_pins
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer
from lakehouse_backfill.domain.catch_up import Drift, TableState
from lakehouse_backfill.domain.comparison.attribution import AttributionBasis
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.tables.table import TableRef


def publication_of_partition(
    history: Sequence[Publication], plan: Plan, label: str
) -> Publication | None:
    """Return the publication whose rows readers saw in a partition when the run was planned.

    None: no run computed them, or the publication was rolled back since.
    """
    earlier = tuple(
        row for row in history if row.at <= plan.created_at and row.run_id != plan.run_id
    )
    accepted = pointer.accepted_rows(earlier)
    if not accepted:
        return None
    visible_runs = pointer.runs_by_version(earlier)[accepted[0].version]
    for row in earlier:
        if row.action != "publish" or row.run_id not in visible_runs:
            continue
        if label in pointer.changed_labels(row, plan.resolved.scope.field):
            _, rolled_back = pointer.rolled_back_since(earlier, str(row.run_id))
            if label not in rolled_back:
                return row
    return None


@dataclass(frozen=True)
class RowOrigin:
    """What is known of how a partition was computed; `reason` explains what is missing."""

    basis: AttributionBasis
    old_plan: Plan | None = None
    pins: tuple[SourcePin, ...] = ()
    published: TableState | None = None
    live_commits: tuple[str, ...] = ()
    reason: str = ""
    named_code: str | None = None
    is_code_unknown: bool = False

    @property
    def made_by(self) -> str | None:
        """The run that computed the partition; the plan with named code is no run."""
        return self.old_plan.run_id if self.old_plan and self.named_code is None else None


def find_origin(context: Context, plan: Plan, label: str) -> RowOrigin:
    """Find the run, or the inputs, that produced the rows which the candidate replaces."""
    if publish_modes.is_externally_written(plan):
        return RowOrigin(
            "none", reason="another engine computed the candidate: it cannot be repeated"
        )
    row = publication_of_partition(context.versions.history(plan.product), plan, label)
    try:
        if row is None:
            return _unrecorded_origin(context, plan, label)
        return _known_origin(context, plan, label, row)
    except errors.BackfillError as error:
        return RowOrigin("none", reason=f"what made it cannot be repeated: {error.problem}")


def _known_origin(context: Context, plan: Plan, label: str, row: Publication) -> RowOrigin:
    """Return the pins and the code of the run that computed the partition."""
    old = computing_run(context, context.runs.plan(str(row.run_id)), label)
    if publish_modes.is_externally_written(old):
        return RowOrigin("none", reason=f"{old.run_id} was computed by another engine")
    expired = [f"{pin.table}@{pin.snapshot_id}" for pin in expired_pins(context, old)]
    if expired:
        return RowOrigin(
            "none", old, reason=f"what {old.run_id} read is gone: {', '.join(expired)}"
        )
    published: TableState | None = TableState(table=row.table, snapshot_id=row.snapshot_id)
    reason = ""
    try:
        context.tables.resolve(TableRef(table=row.table, at=str(row.snapshot_id)))
    except errors.NotFound:
        published = None
        reason = "the published snapshot is gone: live writes are among what is unexplained"
    is_on_target = row.table == plan.resolved.target.table
    commits = _live_commits(context, plan, label, row.snapshot_id) if is_on_target else ()
    commit_texts = tuple(str(drift) for drift in commits or ())
    return RowOrigin("run", old, old.resolved.sources, published, commit_texts, reason)


def computing_run(context: Context, plan: Plan, label: str) -> Plan:
    """Return the run that computed a partition; a catch-up run carries some over from another."""
    catch_up = plan.resolved.catch_up
    chunk = next((one for one in plan.resolved.chunks if label in one.partitions), None)
    origin = catch_up.origin(chunk.chunk_id) if catch_up and chunk else None
    return context.runs.plan(origin.run_id) if origin else plan


def _unrecorded_origin(context: Context, plan: Plan, label: str) -> RowOrigin:
    """Use the code that the manifest names, on the inputs at the time of the last write.

    Without named code, the candidate's is used: then only changes of the inputs are explained.
    """
    named, code = job_code.previous_plan(plan), plan.resolved.previous_code
    written = _live_commits(context, plan, label, None)
    if written is None and named is None:
        return RowOrigin(
            "none", reason="no known run made it, and its commits are gone", is_code_unknown=True
        )
    if written is not None and not written:
        return RowOrigin("none", reason="nothing was ever written there: all of it is new")
    newest = written[-1] if written else None
    commits = (str(newest),) if newest else ()
    if named is None and newest is not None:
        pins = tuple(_pin_at(context, pin, newest.at) for pin in plan.resolved.sources)
        reason = (
            "no known run made it: compared with what the candidate's code makes of the inputs as "
            f"they were at {newest.at.isoformat(timespec='seconds')}, when it was last written; "
            "what that does not give is unexplained: other code, or live writes"
        )
        return RowOrigin(
            "assumed", pins=pins, live_commits=commits, reason=reason, is_code_unknown=True
        )
    pins, how = _named_code_pins(context, plan, newest)
    reason = f"no known run made it: computed again by {code}, named by the manifest, on {how}"
    return RowOrigin(
        "named", named, pins, live_commits=commits, reason=reason, named_code=str(code)
    )


def _named_code_pins(
    context: Context, plan: Plan, newest: Drift | None
) -> tuple[tuple[SourcePin, ...], str]:
    """Return the inputs at the last write, and what they are; the run's own where those are gone.

    They may be gone because the input is younger than the rows, or because its history expired.
    """
    if newest is None:
        return plan.resolved.sources, "the inputs of this run: when it was written is not known"
    pins, gone = [], []
    for pin in plan.resolved.sources:
        try:
            pins.append(_pin_at(context, pin, newest.at))
        except errors.NotFound:
            pins.append(pin)
            gone.append(pin.name)
    how = f"the inputs as they were at {newest.at.isoformat(timespec='seconds')}, when it was "
    how += "last written"
    if gone:
        how += f" (as this run reads them: {', '.join(gone)}, whose state of then is gone)"
    return tuple(pins), how


def _pin_at(context: Context, pin: SourcePin, at: datetime) -> SourcePin:
    snapshot = context.tables.resolve(TableRef(table=pin.table, at=at.isoformat()))
    return pin.model_copy(update={"snapshot_id": snapshot.snapshot_id})


def _live_commits(
    context: Context, plan: Plan, label: str, since: int | None
) -> tuple[Drift, ...] | None:
    """List the commits on the target up to the run's base that changed the partition.

    None when the history is expired.
    """
    target = plan.resolved.target
    if target.snapshot_id is None:
        return ()
    base = context.tables.resolve(TableRef(table=target.table, at=str(target.snapshot_id)))
    scope = Scope(field=plan.resolved.scope.field.whole, partitions=(label,))
    try:
        drifts = context.publisher.drifts(target.table, scope, since)
    except (errors.TargetChanged, errors.NotFound):
        return None
    return tuple(
        drift for drift in drifts if drift.at.timestamp() * 1000 <= base.committed_at_ms + 0.5
    )


def is_same_origin(one: RowOrigin, other: RowOrigin) -> bool:
    """Return whether the same run made both, of the same inputs, and as much is known of it."""
    return (one.basis, one.made_by, one.published, one.reason, one.pins) == (
        other.basis, other.made_by, other.published, other.reason, other.pins,
    )  # fmt: skip


def has_other_inputs(plan: Plan, past: RowOrigin) -> bool:
    """Return whether the plan reads an input, but reference data, at another state."""
    old = {pin.name: pin for pin in past.pins}
    return any(
        pin.role != "reference"
        and pin.name in old
        and (old[pin.name].table, old[pin.name].snapshot_id) != (pin.table, pin.snapshot_id)
        for pin in plan.resolved.sources
    )
