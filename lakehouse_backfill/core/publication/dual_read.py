"""Readers compare accepted and candidate before the switch.

Which readers have compared old and new, and what of it lets a run be published (U8).

dual-read: a reader's query on the accepted version and on the candidate, before the switch.

A dark candidate: what a run would publish, for validators only (U7).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lakehouse_backfill.core.approval.decisions import trusted_events
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.accepted import resolve_accepted
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery, TableState
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.errors import ApprovalMissing, ChecksFailed, ConfigError, NotFound

DUAL_READ_GATE = "dual_read"
ReaderOutcome = Literal["missing", "equal", "different", "accepted"]


@dataclass(frozen=True)
class ReaderComparison:
    """What is known of one reader's comparison on exactly the candidate that is asked about."""

    reader: str
    outcome: ReaderOutcome
    required: bool
    by: str | None = None
    at: str | None = None
    digest: str | None = None
    accepted_by: str | None = None
    reason: str | None = None


def candidate_binding(plan: Plan, snapshot_id: int | None) -> str:
    """Name a candidate: what a comparison is bound to."""
    return f"{plan.shadow_table}@{snapshot_id}"


def reader_comparisons(
    plan: Plan, events: Iterable[Event], snapshot_id: int | None
) -> tuple[ReaderComparison, ...]:
    """Give the newest comparison of each reader that is named, or that compared all the same.

    An accepted difference holds for exactly the comparison that was accepted. A rejection of the
    run takes both back.
    """
    declared, bound = plan.resolved.manifest.target.dual_read, candidate_binding(plan, snapshot_id)
    wanted = declared.readers if declared else ()
    found = {name: ReaderComparison(name, "missing", required=True) for name in wanted}
    for event in sorted(events, key=lambda event: event.seq):
        said = event.detail
        if event.verb == "reject":
            found = {name: ReaderComparison(name, "missing", required=True) for name in wanted}
        elif event.verb == "dual read" and said.get("bound_to") == bound:
            name = str(said["reader"])
            found[name] = ReaderComparison(
                name, "equal" if said["equal"] else "different", required=name in wanted,
                by=event.actor, at=event.at.isoformat(), digest=str(said["digest"]),
            )  # fmt: skip
        elif event.verb == "accept difference":
            known = found.get(str(said["reader"]))
            if known is not None and known.digest == said["digest"]:
                found[known.reader] = ReaderComparison(
                    known.reader, "accepted", required=known.required, by=known.by, at=known.at,
                    digest=known.digest, accepted_by=event.actor, reason=str(said["reason"]),
                )  # fmt: skip
    return tuple(found.values())


def require_reader_agreement(plan: Plan, events: Iterable[Event], snapshot_id: int | None) -> None:
    """Raise unless each named reader has compared exactly this candidate, and found it right.

    ApprovalMissing: one has not; ChecksFailed: its results differ, and nobody accepted that.
    """
    declared = plan.resolved.manifest.target.dual_read
    if declared is None:
        return
    found = [item for item in reader_comparisons(plan, events, snapshot_id) if item.required]
    missing = [item.reader for item in found if item.outcome == "missing"]
    state = "nothing was published; readers see what they saw before"
    if missing:
        raise ApprovalMissing(
            f"{plan.run_id}: gate {DUAL_READ_GATE} is closed: {', '.join(missing)} did not compare this "
            "candidate with what is accepted",
            state=state,
            fix=dual_read_command(plan.run_id, missing[0]),
        )
    different = [item.reader for item in found if item.outcome == "different"]
    if different and declared.require == "equal":
        raise ChecksFailed(
            f"{plan.run_id}: gate {DUAL_READ_GATE} is closed: {', '.join(different)} reads other results",
            state=state,
            fix=f"correct the run (plan --revise), or, for the record: "
            f"{dual_read_command(plan.run_id, different[0])} --accept-difference REASON",
        )


def dual_read_command(run_id: str, reader: str) -> str:
    """Give what people type to compare."""
    return (
        f"lakehouse-backfill dual-read {shlex.quote(run_id)} --reader {shlex.quote(reader)} "
        "--sql FILE"
    )


#: Evidence: one comparison of a reader.
DUAL_READ = "dual read"


@dataclass(frozen=True)
class DualReadResult:
    """A comparison with where the run's readers stand now."""

    status: RunStatus
    comparison: QueryComparison
    digest: str
    readers: tuple[ReaderComparison, ...]


def dual_read(
    context: Context, run_id: str, query: ReaderQuery, by: str, accept_difference: str | None = None
) -> DualReadResult:
    """Run the reader's query on both states, and record what came of it.

    The comparison is bound to exactly this candidate. With `accept_difference` (a reason) a
    difference is recorded as reviewed. Raises NotAllowed, NotFound, ConfigError (the query).
    """
    status, plan = context.runs.status(run_id), context.runs.plan(run_id)
    roles.require_validator(plan.resolved.contract, by)
    if accept_difference is not None:
        _require_reviewer(context, plan, by, accept_difference)
    lifecycle.require_legal_move(status, "dual read")
    context.require_no_other_driver(status)
    comparison = _compare(context, plan, query).model_copy(
        update={"by": by, "at": context.clock.now()}
    )
    digest = context.evidence.record(
        run_id, DUAL_READ, comparison.model_dump(mode="json"), status.seq
    )
    bound = candidate_binding(plan, comparison.new.snapshot_id)
    status = context.move(
        status, plan, "dual read", by, reader=query.reader, bound_to=bound,
        equal=comparison.equal, digest=digest,
    )  # fmt: skip
    if accept_difference is not None and not comparison.equal:
        status = context.move(
            status, plan, "accept difference", by, reader=query.reader, digest=digest,
            reason=accept_difference,
        )  # fmt: skip
    events = trusted_events(context, status)
    found = reader_comparisons(plan, events, comparison.new.snapshot_id)
    return DualReadResult(status, comparison, digest, found)


def _require_reviewer(context: Context, plan: Plan, by: str, reason: str) -> None:
    """Accepting a difference is a waiver: the same role, and four eyes where they are wanted."""
    roles.require_role(plan.resolved.contract, "waive", by)
    roles.require_four_eyes(plan, context.profile.environment, by)
    if not reason.strip():
        raise ConfigError(
            "accepting a difference needs a reason", fix="add it: --accept-difference REASON"
        )


def _compare(context: Context, plan: Plan, query: ReaderQuery) -> QueryComparison:
    new = staged_candidate(context, plan)
    try:
        accepted = resolve_accepted(context, plan.resolved.contract, strict=False)
        old = TableState(table=accepted.table, snapshot_id=accepted.snapshot_id)
    except NotFound:
        # Nothing was accepted yet: the reader sees no rows, in the candidate's columns.
        old = TableState(table=plan.shadow_table, snapshot_id=None)
    return context.reading.compare(query, old, new)


def staged_candidate(context: Context, plan: Plan) -> TableState:
    """Give what the run staged; raises NotFound when it staged nothing yet."""
    shadow = context.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(
            f"{plan.run_id} has no staged candidate", fix=f"lakehouse-backfill run {plan.run_id}"
        )
    return TableState(table=plan.shadow_table, snapshot_id=shadow.snapshot_id)


def require_dual_reads(plan: Plan, events: tuple[Event, ...], snapshot_id: int | None) -> None:
    """Raise ApprovalMissing or ChecksFailed unless the readers that are named agree."""
    require_reader_agreement(plan, events, snapshot_id)


def reader_records(
    context: Context, plan: Plan, events: tuple[Event, ...]
) -> list[dict[str, object]]:
    """List where the run's readers stand, for status, page and archive; empty without any."""
    is_asked = plan.resolved.manifest.target.dual_read is not None
    if not is_asked and not any(event.verb == "dual read" for event in events):
        return []
    shadow = context.tables.describe(plan.shadow_table)
    found = reader_comparisons(plan, events, shadow.snapshot_id if shadow else None)
    lines = []
    for item in found:
        known = context.evidence.document(plan.run_id, item.digest) if item.digest else None
        lines.append({**vars(item), "comparison": known})
    return lines


@dataclass(frozen=True)
class CandidateSnapshot:
    """The table and snapshot that hold a run's candidate."""

    table: str
    snapshot_id: int


def candidate(context: Context, run_id: str, by: str | None) -> CandidateSnapshot:
    """Resolve a run's candidate for somebody who may see it; raises NotFound, NotAllowed."""
    require_candidate_access(context, run_id, by)
    found = staged_candidate(context, context.runs.plan(run_id))
    if found.snapshot_id is None:
        raise NotFound(
            f"the candidate of {run_id} holds nothing yet",
            fix=f"lakehouse-backfill run {run_id}",
        )
    return CandidateSnapshot(found.table, found.snapshot_id)


def require_candidate_access(context: Context, run_id: str, by: str | None) -> None:
    """Raise NotAllowed unless the contract lets them read candidates; none named: everybody may."""
    roles.require_validator(context.runs.plan(run_id).resolved.contract, by)
