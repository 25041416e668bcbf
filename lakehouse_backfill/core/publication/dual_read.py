"""Dual reads: readers compare the accepted version with the candidate before the switch (U7, U8).

A reader's query runs on both states and the comparison is recorded. The manifest names the readers
that must have compared before the run may be published. A candidate can be read by validators only.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from lakehouse_backfill.core.approval.decisions import require_decider, trusted_events
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions.readers import resolve_accepted
from lakehouse_backfill.domain.catch_up import TableState
from lakehouse_backfill.domain.guards.privacy import Redaction
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.errors import ApprovalMissing, ChecksFailed, ConfigError, NotFound

DUAL_READ_GATE = "dual_read"
ReaderOutcome = Literal["missing", "equal", "different", "accepted"]


@dataclass(frozen=True)
class ReaderComparison:
    """The newest comparison of one reader, for exactly one candidate."""

    reader: str
    outcome: ReaderOutcome
    required: bool
    by: str | None = None
    at: str | None = None
    digest: str | None = None
    accepted_by: str | None = None
    reason: str | None = None


def candidate_binding(plan: Plan, snapshot_id: int | None) -> str:
    """Return the name of a candidate, to which comparisons are bound."""
    return f"{plan.shadow_table}@{snapshot_id}"


def reader_comparisons(
    plan: Plan, events: Iterable[Event], snapshot_id: int | None
) -> tuple[ReaderComparison, ...]:
    """Return the newest comparison of each required reader, and of other readers that compared.

    An accepted difference counts only for the comparison that was accepted. A rejection of the run
    cancels both.
    """
    declared, bound = plan.resolved.manifest.target.dual_read, candidate_binding(plan, snapshot_id)
    required = declared.readers if declared else ()
    missing = {name: ReaderComparison(name, "missing", required=True) for name in required}
    comparisons = dict(missing)
    for event in sorted(events, key=lambda event: event.seq):
        detail = event.detail
        if event.verb == "reject":
            comparisons = dict(missing)
        elif event.verb == "dual read" and detail.get("bound_to") == bound:
            name = str(detail["reader"])
            comparisons[name] = ReaderComparison(
                name, "equal" if detail["equal"] else "different", required=name in required,
                by=event.actor, at=event.at.isoformat(), digest=str(detail["digest"]),
            )  # fmt: skip
        elif event.verb == "accept difference":
            known = comparisons.get(str(detail["reader"]))
            if known is not None and known.digest == detail["digest"]:
                comparisons[known.reader] = replace(
                    known, outcome="accepted", accepted_by=event.actor,
                    reason=str(detail["reason"]),
                )  # fmt: skip
    return tuple(comparisons.values())


def require_dual_reads(plan: Plan, events: Iterable[Event], snapshot_id: int | None) -> None:
    """Raise unless each required reader has compared exactly this candidate and agrees with it.

    ApprovalMissing: a comparison is missing. ChecksFailed: results differ, and the difference is
    not accepted.
    """
    declared = plan.resolved.manifest.target.dual_read
    if declared is None:
        return
    readers: dict[ReaderOutcome, list[str]] = {"missing": [], "different": []}
    for comparison in reader_comparisons(plan, events, snapshot_id):
        if comparison.required:
            readers.setdefault(comparison.outcome, []).append(comparison.reader)
    missing, different = readers["missing"], readers["different"]
    state = "nothing was published; readers see what they saw before"
    if missing:
        raise ApprovalMissing(
            f"{plan.run_id}: gate {DUAL_READ_GATE} is closed: {', '.join(missing)} did not "
            "compare this candidate with what is accepted",
            state=state,
            fix=dual_read_command(plan.run_id, missing[0]),
        )
    if different and declared.require == "equal":
        raise ChecksFailed(
            f"{plan.run_id}: gate {DUAL_READ_GATE} is closed: {', '.join(different)} reads "
            "other results",
            state=state,
            fix=f"correct the run (plan --revise), or, for the record: "
            f"{dual_read_command(plan.run_id, different[0])} --accept-difference REASON",
        )


def dual_read_command(run_id: str, reader: str) -> str:
    """Return the command that runs a comparison."""
    return (
        f"lakehouse-backfill dual-read {shlex.quote(run_id)} --reader {shlex.quote(reader)} "
        "--sql FILE"
    )


#: Evidence document: one comparison of a reader.
DUAL_READ = "dual read"


@dataclass(frozen=True)
class DualReadOutcome:
    """A comparison, and the comparisons of all readers of the run."""

    status: RunStatus
    comparison: QueryComparison
    digest: str
    readers: tuple[ReaderComparison, ...]


def dual_read(
    context: Context, run_id: str, query: ReaderQuery, by: str, accept_difference: str | None = None
) -> DualReadOutcome:
    """Run the reader's query on both states and record the comparison.

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
    readers = reader_comparisons(plan, events, comparison.new.snapshot_id)
    return DualReadOutcome(status, comparison, digest, readers)


def _require_reviewer(context: Context, plan: Plan, by: str, reason: str) -> None:
    """Check the role and the reason of a person who accepts a difference.

    Accepting a difference is a waiver: it needs the same role, and four eyes where they are
    required.
    """
    require_decider(context, plan, "waive", by)
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
        # Nothing is accepted yet: the old side is the candidate's table without rows.
        old = TableState(table=plan.shadow_table, snapshot_id=None)
    if not plan.resolved.contract.restricted_columns:
        return context.row_reader.compare_query(query, old, new)
    try:
        found = context.row_reader.compare_query(query, old, new)
    except ConfigError as error:
        raise ConfigError(
            f"the query of {query.reader} cannot be run; the engine's text may quote a restricted "
            "value, and is not shown",
            fix="try the query on made-up rows with the product's columns",
        ) from (error if error.__cause__ is None else None)
    # Which columns of the product are in a column of the answer is not known.
    hidden = Redaction.of(found.columns)
    return found.model_copy(
        update={
            "only_old": tuple(hidden.row(row) for row in found.only_old),
            "only_new": tuple(hidden.row(row) for row in found.only_new),
        }
    )


def staged_candidate(context: Context, plan: Plan) -> TableState:
    """Return the staged table of a run; raises NotFound when nothing is staged."""
    shadow = context.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(
            f"{plan.run_id} has no staged candidate", fix=f"lakehouse-backfill run {plan.run_id}"
        )
    return TableState(table=plan.shadow_table, snapshot_id=shadow.snapshot_id)


def reader_records(
    context: Context, plan: Plan, events: tuple[Event, ...]
) -> list[dict[str, object]]:
    """List the comparisons of the run's readers, for status, page and archive.

    The list is empty when no reader is required and none has compared.
    """
    is_declared = plan.resolved.manifest.target.dual_read is not None
    if not is_declared and not any(event.verb == "dual read" for event in events):
        return []
    shadow = context.tables.describe(plan.shadow_table)
    comparisons = reader_comparisons(plan, events, shadow.snapshot_id if shadow else None)
    records = []
    for comparison in comparisons:
        document = (
            context.evidence.document(plan.run_id, comparison.digest) if comparison.digest else None
        )
        records.append({**vars(comparison), "comparison": document})
    return records


def candidate(context: Context, run_id: str, by: str | None) -> tuple[str, int]:
    """Return table and snapshot of a run's candidate for a permitted reader.

    Raises NotFound, NotAllowed.
    """
    require_candidate_access(context, run_id, by)
    staged = staged_candidate(context, context.runs.plan(run_id))
    if staged.snapshot_id is None:
        raise NotFound(
            f"the candidate of {run_id} holds nothing yet", fix=f"lakehouse-backfill run {run_id}"
        )
    return staged.table, staged.snapshot_id


def require_candidate_access(context: Context, run_id: str, by: str | None) -> None:
    """Raise NotAllowed unless the contract lets `by` read candidates.

    A contract that names no validators lets everyone read them.
    """
    roles.require_validator(context.runs.plan(run_id).resolved.contract, by)
