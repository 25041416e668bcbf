"""Results of the methods that plan a cascade and take it through its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.command_lines import command_line, plan_command
from lakehouse_backfill.core.cascade.plan import publication_steps
from lakehouse_backfill.core.cascade.steps import CascadeMember
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.domain.cascade.graph import CascadeNode
from lakehouse_backfill.domain.partitions import describe_labels
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.results.base import Record, Result, optional

if TYPE_CHECKING:
    from lakehouse_backfill.core.cascade.plan import Cascade


class CascadePlanResult(Result):
    """What `plan --cascade` decided; `state` is None for a dry run.

    `publication_order` lists what becomes visible by one commit, in order.
    """

    cascade_id: str
    state: str | None
    graph_version: str
    nodes: tuple[CascadeNode, ...]
    publication_order: tuple[tuple[str, ...], ...]
    partitions_to_compute: int
    partitions_reused: int
    input_rows: int
    manifest_hashes: Mapping[str, str]
    undo: str
    notes: tuple[str, ...] = ()
    next_command: str | None = optional()

    @classmethod
    def of(cls, cascade: Cascade, *, is_registered: bool) -> CascadePlanResult:
        """Describe a cascade, and whether its runs are registered."""
        first = cascade.plans[0]
        forward = command_line("approve", cascade.cascade_id)
        again = f"{plan_command(first.manifest_file)} --cascade"
        return cls(
            cascade_id=cascade.cascade_id,
            state="planned" if is_registered else None,
            graph_version=cascade.graph_version,
            nodes=cascade.nodes,
            publication_order=publication_steps(cascade.nodes),
            partitions_to_compute=sum(len(node.partitions) for node in cascade.nodes),
            partitions_reused=sum(node.reused for node in cascade.nodes),
            input_rows=sum(plan.estimate.input_rows for plan in cascade.plans),
            manifest_hashes={plan.run_id: plan.manifest_hash for plan in cascade.plans},
            undo=f"{command_line('cancel', cascade.cascade_id)}; after publication: "
            + command_line("rollback", cascade.cascade_id, "--reason", "TEXT"),
            notes=cascade.notes,
            warnings=tuple(
                f"{plan.product}: {warning}" for plan in cascade.plans for warning in plan.warnings
            ),
            next_command=forward if is_registered else again,
        )


class MemberLine(Record):
    """A product of a cascade; without a run it is left out. `stale`: its input was staged again.

    `kept` are partitions that were not computed, as what they read is equal to live.
    """

    product: str
    decision: str
    run_id: str | None
    state: str | None
    version: int | None
    partitions: tuple[str, ...]
    stale: tuple[str, ...]
    because: tuple[str, ...]
    kept: tuple[str, ...] = ()


S = RunState
#: State of the least advanced run -> what the cascade waits for.
_STATES = (
    ({S.DRAFT, S.PLANNED}, "planned", "approve"),
    ({S.APPROVED, S.STAGING, S.STAGED, S.FAILED, S.PAUSED, S.HALTED, S.REJECTED}, "", "run"),
    ({S.VALIDATED}, "validated", "accept"),
    ({S.ACCEPTED, S.PUBLISHING, S.PUBLISH_HALTED}, "accepted", "publish"),
)


class CascadeResult(Result):
    """Where a cascade and its runs stand."""

    cascade_id: str
    state: str
    graph_version: str
    members: tuple[MemberLine, ...]
    readers_see: str
    publication_order: tuple[tuple[str, ...], ...]
    next_command: str | None = optional()

    @classmethod
    def of(
        cls,
        cascade: Cascade,
        members: tuple[CascadeMember, ...],
        versions: Mapping[str, int],
        **more: Any,
    ) -> CascadeResult:
        """Describe a cascade; `versions` are those that readers see, by product."""
        states = [member.status.state for member in members if member.status]
        is_stale = any(member.stale for member in members)
        state, verb = _summary(states, is_stale=is_stale)
        next_command = _next_command(verb, cascade.cascade_id)
        if any(_is_hidden(member) for member in members):
            state, next_command = "rollback cut off", command_line("recover", "--all")
        visible = [member for member in members if member.is_visible]
        return cls(
            cascade_id=cascade.cascade_id,
            state=state,
            graph_version=cascade.graph_version,
            members=tuple(
                MemberLine(
                    product=member.node.product,
                    decision=member.node.decision,
                    run_id=member.node.run_id,
                    state=member.status.state.value if member.status else None,
                    version=versions.get(member.node.product)
                    if member.status and member.status.state is S.PUBLISHED
                    else None,
                    partitions=member.node.partitions,
                    stale=member.stale,
                    because=(*_kept(member), *member.node.because),
                    kept=member.kept,
                )
                for member in members
            ),
            readers_see=_readers_see(len(visible), len(states)),
            publication_order=publication_steps(cascade.nodes),
            next_command=next_command,
            **more,
        )


def _kept(member: CascadeMember) -> tuple[str, ...]:
    if not member.kept:
        return ()
    shown = describe_labels(member.kept)
    return (f"{shown} not computed: input partitions equal to live; skipped",)


def _is_hidden(member: CascadeMember) -> bool:
    """Return whether a rollback took the version back, and was cut off before the run knew."""
    is_published = member.status is not None and member.status.state is S.PUBLISHED
    return is_published and not member.is_visible


def _next_command(verb: str, cascade_id: str) -> str | None:
    more = ("--reason", "TEXT") if verb == "rollback" else ()
    return command_line(verb, cascade_id, *more) if verb else None


def _summary(states: list[RunState], *, is_stale: bool) -> tuple[str, str]:
    """Return the state of a cascade, that of its least advanced run, and the next verb."""
    closed = {S.CANCELLED, S.SUPERSEDED}
    if any(state in closed for state in states):
        is_whole = all(state in closed for state in states)
        if is_whole:
            return "cancelled", ""
        is_left = any(state in lifecycle.MOVES["cancel"][0] for state in states)
        return "cancelled in part", "cancel" if is_left else ""
    if is_stale:
        return "stale", "run"
    for group, name, verb in _STATES:
        found = [state for state in states if state in group]
        if found:
            return name or _working_state(states), verb
    if all(state is S.ROLLED_BACK for state in states):
        return "rolled_back", ""
    is_whole = all(state is S.PUBLISHED for state in states)
    return ("published", "") if is_whole else ("rolled back in part", "rollback")


def _working_state(states: list[RunState]) -> str:
    stopped = {S.REJECTED: "rejected", S.HALTED: "halted", S.FAILED: "failed"}
    for state, name in stopped.items():
        if state in states:
            return name
    return "approved" if all(state is S.APPROVED for state in states) else "running"


def _readers_see(published: int, runs: int) -> str:
    if published == runs:
        return "the new versions of all products"
    if published:
        return f"the new versions of {published} of {runs} products"
    return "the accepted versions as before"
