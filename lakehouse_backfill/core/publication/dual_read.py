"""Which readers have compared old and new, and what of it lets a run be published (U8)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import ApprovalMissing, ChecksFailed

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
