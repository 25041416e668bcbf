"""Which moves a run may make."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.errors import Blocked, IllegalMove

S = RunState

#: verb -> (states it may start from, state it leads to)
MOVES: dict[str, tuple[frozenset[RunState], RunState]] = {
    "plan": (frozenset({S.DRAFT}), S.PLANNED),
    "approve": (frozenset({S.PLANNED}), S.APPROVED),
    "carry approval": (frozenset({S.PLANNED}), S.APPROVED),
    "begin staging": (
        frozenset({S.APPROVED, S.STAGING, S.FAILED, S.PAUSED, S.HALTED, S.STAGED, S.REJECTED})
        # A shadow that is gone or was written to: staging again voids what was accepted.
        | {S.VALIDATED, S.ACCEPTED},
        S.STAGING,
    ),
    "finish staging": (frozenset({S.STAGING}), S.STAGED),
    "fail": (frozenset({S.STAGING}), S.FAILED),
    "halt": (frozenset({S.STAGING}), S.HALTED),
    "pause": (frozenset({S.STAGING}), S.PAUSED),
    "pass validation": (
        frozenset({S.STAGED, S.VALIDATED, S.ACCEPTED, S.REJECTED}),
        S.VALIDATED,
    ),
    "fail validation": (
        frozenset({S.STAGED, S.VALIDATED, S.ACCEPTED, S.REJECTED}),
        S.REJECTED,
    ),
    # When every gate that is closed was waived for exactly this result.
    "pass by waiver": (frozenset({S.REJECTED}), S.VALIDATED),
    "accept": (frozenset({S.VALIDATED}), S.ACCEPTED),
    "carry acceptance": (frozenset({S.VALIDATED}), S.ACCEPTED),
    "reject": (frozenset({S.PLANNED, S.APPROVED, S.STAGED, S.VALIDATED, S.ACCEPTED}), S.REJECTED),
    "begin publishing": (
        frozenset({S.ACCEPTED, S.PUBLISHING, S.PUBLISH_HALTED, S.ROLLED_BACK}),
        S.PUBLISHING,
    ),
    "release": (frozenset({S.PUBLISHING}), S.ACCEPTED),
    # Published in steps, of which some are visible.
    "halt publication": (frozenset({S.PUBLISHING}), S.PUBLISH_HALTED),
    "finish publishing": (frozenset({S.PUBLISHING}), S.PUBLISHED),
    "roll back": (frozenset({S.PUBLISHED, S.PUBLISH_HALTED}), S.ROLLED_BACK),
    # Accepted again is a run that was rolled back and could not be published a second time.
    "reinstate": (frozenset({S.ROLLED_BACK, S.ACCEPTED}), S.PUBLISHED),
    "reinstate in part": (frozenset({S.ROLLED_BACK, S.ACCEPTED}), S.PUBLISH_HALTED),
    "cancel": (
        frozenset(
            {S.PLANNED, S.APPROVED, S.STAGING, S.STAGED, S.VALIDATED, S.ACCEPTED}
            | {S.FAILED, S.REJECTED, S.PAUSED, S.HALTED}
        ),
        S.CANCELLED,
    ),
    "supersede": (
        frozenset(
            {S.PLANNED, S.APPROVED, S.STAGED, S.VALIDATED, S.ACCEPTED, S.FAILED}
            | {S.REJECTED, S.PAUSED, S.HALTED, S.PUBLISH_HALTED, S.PUBLISHED, S.ROLLED_BACK}
        ),
        S.SUPERSEDED,
    ),
}

#: States in which a candidate can be read beside the accepted version.
_COMPARABLE = frozenset({S.STAGED, S.VALIDATED, S.ACCEPTED, S.ROLLED_BACK})

#: verb -> states in which it may be noted; a note leaves the state as it is
NOTES: dict[str, frozenset[RunState]] = {
    "begin validation": frozenset({S.STAGED, S.VALIDATED, S.ACCEPTED, S.REJECTED}),
    "waive": frozenset({S.HALTED, S.REJECTED}),
    # What the run kept is let go: nothing can be done with it any more.
    "retire": frozenset({S.PUBLISHED, S.CANCELLED, S.SUPERSEDED, S.ROLLED_BACK}),
    "dual read": _COMPARABLE,
    "accept difference": _COMPARABLE,
}

#: verb -> what people type for it; the verbs of the machinery alone are not offered
COMMANDS_BY_VERB = {
    "approve": "approve",
    "begin staging": "run",
    "begin validation": "validate",
    "pass validation": "validate",
    "fail validation": "validate",
    "waive": "waive",
    "dual read": "dual-read",
    "accept difference": "dual-read",
    "pass by waiver": "waive",
    "accept": "accept",
    "reject": "reject",
    "begin publishing": "publish",
    "roll back": "rollback",
    "cancel": "cancel",
    "supersede": "plan --revise",
}

_AGAIN = (
    "a run that was published is not run again: its input was pinned, and readers rely on it; "
    "lakehouse-backfill plan MANIFEST --revise {run}"
)
#: (verb, state) -> what to do instead, where it is a known bad habit (docs/anti-patterns.md)
_ADVICE = {
    ("begin publishing", S.STAGED): "lakehouse-backfill validate {run}, then accept it: what is "
    "only checked after publication was acted on already",
    ("begin staging", S.PUBLISHED): _AGAIN,
    ("begin staging", S.PUBLISH_HALTED): _AGAIN,
    ("begin staging", S.ROLLED_BACK): _AGAIN,
}

#: What goes on with a run that gates rejected, but not with one that a person did.
COMMANDS_AFTER_GATES = ("run", "validate", "waive")

#: States in which a run still wants something from somebody.
OPEN_STATES = frozenset(S) - {S.PUBLISHED, S.CANCELLED, S.SUPERSEDED, S.ROLLED_BACK}


def legal_verbs(state: RunState) -> tuple[str, ...]:
    """Name the verbs that may start from `state`."""
    return tuple(verb for verb, (sources, _) in MOVES.items() if state in sources)


def _legal_commands(state: RunState) -> str:
    """Say what people may type for a run in `state`."""
    typed = [COMMANDS_BY_VERB[name] for name in legal_verbs(state) if name in COMMANDS_BY_VERB]
    typed = list(dict.fromkeys(typed))
    if state is not S.REJECTED:
        return ", ".join(typed) or "none: the run is closed"
    # The state does not tell who said no; after a person did, none of these is possible.
    again = [verb for verb in typed if verb in COMMANDS_AFTER_GATES]
    rest = ", ".join(verb for verb in typed if verb not in COMMANDS_AFTER_GATES)
    return f"{rest}; and {', '.join(again)} if gates rejected it, not a person"


def next_event(
    status: RunStatus, verb: str, *, actor: str, mode: str, at: datetime, detail: dict[str, Any]
) -> Event:
    """Make the event that moves the run by `verb`, or notes it.

    Raises IllegalMove, with the legal verbs, when the run's state does not allow it.
    """
    require_legal_move(status, verb)
    return Event(
        run_id=status.run_id,
        seq=status.seq + 1,
        at=at,
        actor=actor,
        verb=verb,
        from_state=status.state,
        to_state=MOVES[verb][1] if verb in MOVES else status.state,
        mode=mode,
        detail=detail,
    )


def require_not_retired(events: tuple[Event, ...]) -> None:
    """Raise Blocked when what the run kept was let go: its shadow, and the snapshots it read."""
    gone = next((event for event in events if event.verb == "retire"), None)
    if gone is not None:
        raise Blocked(
            f"{gone.run_id} cannot be published again: {gone.actor} let go on {gone.at:%Y-%m-%d} "
            "what it kept",
            state="nothing was published",
            fix="plan the partitions again",
        )


def require_legal_move(status: RunStatus, verb: str) -> None:
    """Raise IllegalMove, with the legal verbs, when the run's state does not allow `verb`."""
    if status.state not in (MOVES[verb][0] if verb in MOVES else NOTES[verb]):
        legal = _legal_commands(status.state)
        raise IllegalMove(
            f"{status.run_id} is {status.state.value}: it cannot {COMMANDS_BY_VERB.get(verb, verb)}; "
            f"legal now: {legal}",
            state=f"{status.run_id} stays {status.state.value}; nothing was changed",
            fix=_ADVICE.get((verb, status.state), "lakehouse-backfill status {run}").format(
                run=status.run_id
            ),
        )
