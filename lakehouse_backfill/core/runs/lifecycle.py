"""Which moves a run may make, and which notes its log may get, in each state."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lakehouse_backfill.command_lines import PROGRAM
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.errors import Blocked, IllegalMove

S = RunState
_JUDGEABLE = frozenset({S.STAGED, S.VALIDATED, S.ACCEPTED, S.REJECTED})
_BEFORE_PUBLICATION = _JUDGEABLE | {S.PLANNED, S.APPROVED, S.STAGING, S.FAILED, S.PAUSED, S.HALTED}

#: verb -> (states it may start from, state it leads to)
MOVES: dict[str, tuple[frozenset[RunState], RunState]] = {
    "plan": (frozenset({S.DRAFT}), S.PLANNED),
    "approve": (frozenset({S.PLANNED}), S.APPROVED),
    "carry approval": (frozenset({S.PLANNED}), S.APPROVED),
    # Also after validation, for a shadow that is gone or was written to: staging again voids the
    # acceptance.
    "begin staging": (_BEFORE_PUBLICATION - {S.PLANNED}, S.STAGING),
    "finish staging": (frozenset({S.STAGING}), S.STAGED),
    "fail": (frozenset({S.STAGING}), S.FAILED),
    "halt": (frozenset({S.STAGING}), S.HALTED),
    # Before and while it is staged; afterwards nothing runs but short commands of a person.
    "pause": (frozenset({S.APPROVED, S.STAGING, S.FAILED}), S.PAUSED),
    "unpause": (frozenset({S.PAUSED}), S.APPROVED),
    "pass validation": (_JUDGEABLE, S.VALIDATED),
    "fail validation": (_JUDGEABLE, S.REJECTED),
    # When every failed gate was waived for exactly this result.
    "pass by waiver": (frozenset({S.REJECTED}), S.VALIDATED),
    "accept": (frozenset({S.VALIDATED}), S.ACCEPTED),
    "carry acceptance": (frozenset({S.VALIDATED}), S.ACCEPTED),
    "reject": (frozenset({S.PLANNED, S.APPROVED, S.STAGED, S.VALIDATED, S.ACCEPTED}), S.REJECTED),
    "begin publishing": (
        frozenset({S.ACCEPTED, S.PUBLISHING, S.PUBLISH_HALTED, S.ROLLED_BACK}),
        S.PUBLISHING,
    ),
    "release": (frozenset({S.PUBLISHING}), S.ACCEPTED),
    # Published in steps, and some steps are visible.
    "halt publication": (frozenset({S.PUBLISHING}), S.PUBLISH_HALTED),
    "finish publishing": (frozenset({S.PUBLISHING}), S.PUBLISHED),
    "roll back": (frozenset({S.PUBLISHED, S.PUBLISH_HALTED}), S.ROLLED_BACK),
    # A rolled-back run whose second publication failed is in the state accepted.
    "reinstate": (frozenset({S.ROLLED_BACK, S.ACCEPTED}), S.PUBLISHED),
    "reinstate in part": (frozenset({S.ROLLED_BACK, S.ACCEPTED}), S.PUBLISH_HALTED),
    "cancel": (_BEFORE_PUBLICATION, S.CANCELLED),
    "supersede": (
        _BEFORE_PUBLICATION - {S.STAGING} | {S.PUBLISH_HALTED, S.PUBLISHED, S.ROLLED_BACK},
        S.SUPERSEDED,
    ),
}

#: States in which a candidate can be compared with the accepted version.
_COMPARABLE = frozenset({S.STAGED, S.VALIDATED, S.ACCEPTED, S.ROLLED_BACK})

#: verb -> states in which it may be noted; a note does not change the state
NOTES: dict[str, frozenset[RunState]] = {
    "begin validation": _JUDGEABLE,
    "waive": frozenset({S.HALTED, S.REJECTED}),
    # The run's shadow and pins are removed: no further move is possible.
    "retire": frozenset({S.PUBLISHED, S.CANCELLED, S.SUPERSEDED, S.ROLLED_BACK}),
    # After `retire`: the files that the run staged, which were never published.
    "begin deleting files": frozenset({S.CANCELLED, S.SUPERSEDED}),
    "delete files": frozenset({S.CANCELLED, S.SUPERSEDED}),
    # What a person learned from the run.
    "note": frozenset(S) - {S.DRAFT, S.STAGING, S.PUBLISHING},
    # The snapshots of inputs that another run of the cascade staged.
    "bind inputs": _BEFORE_PUBLICATION - {S.PLANNED},
    "dual read": _COMPARABLE,
    "accept difference": _COMPARABLE,
}

#: verb -> the command that people type for it; internal verbs have none
COMMANDS_BY_VERB = {
    "approve": "approve",
    "begin staging": "run",
    "pause": "pause",
    "unpause": "unpause",
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
    "note": "note",
    "supersede": "plan --revise",
}

_AGAIN = (
    "a run that was published is not run again: its input was pinned, and readers rely on it; "
    "lakehouse-backfill plan --revise {run}"
)
#: (verb, state) -> what to do instead of a known anti-pattern (docs/anti-patterns.md)
_ADVICE = {
    ("begin publishing", S.STAGED): "lakehouse-backfill validate {run}, then accept it: what is "
    "only checked after publication was acted on already",
    ("begin staging", S.PUBLISHED): _AGAIN,
    ("begin staging", S.PUBLISH_HALTED): _AGAIN,
    ("begin staging", S.ROLLED_BACK): _AGAIN,
}

#: State -> the command that moves the run on; in the other states `status` says what to do.
_FORWARD_COMMANDS = {
    S.PLANNED: "approve {run}",
    S.APPROVED: "run {run}",
    S.STAGED: "validate {run}",
    S.VALIDATED: "accept {run}",
    S.ACCEPTED: "publish {run}",
    S.FAILED: "run {run}",
    S.PAUSED: "unpause {run}",
}

#: Commands for a run that gates rejected, but not for one that a person rejected.
COMMANDS_AFTER_GATES = ("run", "validate", "waive")

#: States in which a run still needs an action.
OPEN_STATES = frozenset(S) - {S.PUBLISHED, S.CANCELLED, S.SUPERSEDED, S.ROLLED_BACK}


def legal_verbs(state: RunState) -> tuple[str, ...]:
    """Return the verbs that may start from `state`."""
    return tuple(verb for verb, (sources, _) in MOVES.items() if state in sources)


def _legal_commands(state: RunState) -> str:
    """Return the commands that people may type for a run in `state`."""
    commands = [COMMANDS_BY_VERB[name] for name in legal_verbs(state) if name in COMMANDS_BY_VERB]
    commands = list(dict.fromkeys(commands))
    if state is not S.REJECTED:
        return ", ".join(commands) or "none: the run is closed"
    # The state does not show who rejected; after a person did, none of these is legal.
    after_gates = [command for command in commands if command in COMMANDS_AFTER_GATES]
    others = ", ".join(command for command in commands if command not in COMMANDS_AFTER_GATES)
    return f"{others}; and {', '.join(after_gates)} if gates rejected it, not a person"


def next_event(
    status: RunStatus, verb: str, *, actor: str, mode: str, at: datetime, detail: dict[str, Any]
) -> Event:
    """Build the event that moves the run by `verb`, or adds a note to it.

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
    """Raise Blocked when the run's shadow and pinned snapshots were removed."""
    retirement = next((event for event in events if event.verb == "retire"), None)
    if retirement is not None:
        raise Blocked(
            f"{retirement.run_id} cannot be published again: "
            f"{retirement.actor} let go on {retirement.at:%Y-%m-%d} what it kept",
            state="nothing was published",
            fix="plan the partitions again",
        )


def require_legal_move(status: RunStatus, verb: str) -> None:
    """Raise IllegalMove, with the legal verbs, when the run's state does not allow `verb`."""
    if status.state not in (MOVES[verb][0] if verb in MOVES else NOTES[verb]):
        legal = _legal_commands(status.state)
        forward = f"{PROGRAM} {_FORWARD_COMMANDS.get(status.state, 'status {run}')}"
        raise IllegalMove(
            f"{status.run_id} is {status.state.value}: "
            f"it cannot {COMMANDS_BY_VERB.get(verb, verb)}; legal now: {legal}",
            state=f"{status.run_id} stays {status.state.value}",
            fix=_ADVICE.get((verb, status.state), forward).format(run=status.run_id),
        )
