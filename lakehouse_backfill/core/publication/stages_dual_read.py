"""dual-read: a reader's query on the accepted version and on the candidate, before the switch."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse_backfill.core.approval.decide import trusted_events
from lakehouse_backfill.core.publication import dual_read as rules
from lakehouse_backfill.core.runs import lifecycle, roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions.accepted import resolve_accepted
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.rollout import QueryComparison, ReaderQuery, TableState
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.errors import ConfigError, NotFound

#: Evidence: one comparison of a reader.
DUAL_READ = "dual read"


@dataclass(frozen=True)
class DualReadResult:
    """A comparison with where the run's readers stand now."""

    status: RunStatus
    comparison: QueryComparison
    digest: str
    readers: tuple[rules.ReaderComparison, ...]


def dual_read(
    bench: Context, run_id: str, query: ReaderQuery, by: str, accept_difference: str | None = None
) -> DualReadResult:
    """Run the reader's query on both states, and record what came of it.

    The comparison is bound to exactly this candidate. With `accept_difference` (a reason) a
    difference is recorded as reviewed. Raises NotAllowed, NotFound, ConfigError (the query).
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    roles.require_validator(plan.resolved.contract, by)
    if accept_difference is not None:
        _require_reviewer(bench, plan, by, accept_difference)
    lifecycle.require_legal_move(status, "dual read")
    bench.require_no_other_driver(status)
    comparison = _compare(bench, plan, query).model_copy(update={"by": by, "at": bench.clock.now()})
    digest = bench.evidence.record(
        run_id, DUAL_READ, comparison.model_dump(mode="json"), status.seq
    )
    bound = rules.candidate_binding(plan, comparison.new.snapshot_id)
    status = bench.move(
        status, plan, "dual read", by, reader=query.reader, bound_to=bound,
        equal=comparison.equal, digest=digest,
    )  # fmt: skip
    if accept_difference is not None and not comparison.equal:
        status = bench.move(
            status, plan, "accept difference", by, reader=query.reader, digest=digest,
            reason=accept_difference,
        )  # fmt: skip
    events = trusted_events(bench, status)
    found = rules.reader_comparisons(plan, events, comparison.new.snapshot_id)
    return DualReadResult(status, comparison, digest, found)


def _require_reviewer(bench: Context, plan: Plan, by: str, reason: str) -> None:
    """Accepting a difference is a waiver: the same role, and four eyes where they are wanted."""
    roles.require_role(plan.resolved.contract, "waive", by)
    roles.require_four_eyes(plan, bench.profile.environment, by)
    if not reason.strip():
        raise ConfigError(
            "accepting a difference needs a reason", fix="add it: --accept-difference REASON"
        )


def _compare(bench: Context, plan: Plan, query: ReaderQuery) -> QueryComparison:
    new = staged_candidate(bench, plan)
    try:
        accepted = resolve_accepted(bench, plan.resolved.contract, strict=False)
        old = TableState(table=accepted.table, snapshot_id=accepted.snapshot_id)
    except NotFound:
        # Nothing was accepted yet: the reader sees no rows, in the candidate's columns.
        old = TableState(table=plan.shadow_table, snapshot_id=None)
    return bench.reading.compare(query, old, new)


def staged_candidate(bench: Context, plan: Plan) -> TableState:
    """Give what the run staged; raises NotFound when it staged nothing yet."""
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(
            f"{plan.run_id} has no staged candidate", fix=f"lakehouse-backfill run {plan.run_id}"
        )
    return TableState(table=plan.shadow_table, snapshot_id=shadow.snapshot_id)


def require_dual_reads(plan: Plan, events: tuple[Event, ...], snapshot_id: int | None) -> None:
    """Raise ApprovalMissing or ChecksFailed unless the readers that are named agree."""
    rules.require_reader_agreement(plan, events, snapshot_id)


def reader_records(
    bench: Context, plan: Plan, events: tuple[Event, ...]
) -> list[dict[str, object]]:
    """List where the run's readers stand, for status, page and archive; empty without any."""
    is_asked = plan.resolved.manifest.target.dual_read is not None
    if not is_asked and not any(event.verb == "dual read" for event in events):
        return []
    shadow = bench.tables.describe(plan.shadow_table)
    found = rules.reader_comparisons(plan, events, shadow.snapshot_id if shadow else None)
    lines = []
    for item in found:
        known = bench.evidence.document(plan.run_id, item.digest) if item.digest else None
        lines.append({**vars(item), "comparison": known})
    return lines
