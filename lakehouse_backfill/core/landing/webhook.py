"""The verb `land --listen`: what a webhook received becomes rows, in one commit for each group.

Side effects of a group, in order: 1 the raw table, if it does not exist · 2 the requests as they
came · 3 data files that no reader sees · 4 one commit on the raw table, with the rows and the
numbers of the requests · 5 the requests are dropped from the folder in which they waited. No other
landing is open between two groups, so that a source can be read and reconciled meanwhile.
"""

from __future__ import annotations

from lakehouse_backfill.core.landing.land import LandingPorts, own_state
from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.domain.sources.landings import (
    LandedSnapshot,
    LandingRequest,
    LandingState,
    new_landing_id,
    next_state,
)
from lakehouse_backfill.errors import Conflict, EnvironmentDown, OutcomeUnknown


def land_waiting(
    ports: LandingPorts, source: SourceDeclaration, session: LandingState
) -> LandingState | None:
    """Land the first group of the requests that wait; None when none waits.

    `session`: the landing that the rows belong to, with its rows so far. Raises Conflict when
    another landing of the source is open, or lands at the same time: the requests wait.
    """
    before = own_state(ports, source)
    if before is not None and not before.is_complete:
        raise Conflict(
            f"{before.landing_id} of {source.source} is not complete",
            state="received requests wait, and are landed after it",
            fix=f"wait for it; if it was cut off: lakehouse-backfill land {source.source}",
        )
    survey = ports.reader.survey(LandingRequest(), ())
    if not survey.parts:
        return None
    ports.raw_tables.ensure(source)
    began = session.model_copy(
        update={
            "position": before.position if before else {},
            "token": before.token if before else "",
        }
    )
    for group in ports.reader.checkpoints(survey, began):
        staged = tuple(
            ports.raw_tables.stage(source.table, part.batches(), began) for part in group.parts
        )
        landed = sum(one.rows for one in staged)
        state = next_state(
            began, position=group.position, rows=session.rows + landed, is_complete=True
        )
        ports.raw_tables.commit(source.table, staged, state)
        ports.reader.finish(state)
        ports.journal.bind(processing_mode=state.mode).log(
            "received", source=source.source, landing=state.landing_id, rows=landed,
            step=state.step,
        )  # fmt: skip
        return state
    return None


def land_all_waiting(
    ports: LandingPorts, source: SourceDeclaration, session: LandingState
) -> tuple[LandingState, str]:
    """Land group after group until no request waits; return the session, and why some still wait.

    What another writer or an outage prevents is tried again by the next call.
    """
    while True:
        try:
            landed = land_waiting(ports, source, session)
        except (Conflict, OutcomeUnknown, EnvironmentDown) as error:
            return session, error.problem
        if landed is None:
            return session, ""
        session = landed.model_copy(update={"is_complete": False})


def new_session(ports: LandingPorts, source: SourceDeclaration) -> LandingState:
    """Return the landing that received rows belong to, until the receiver ends."""
    now, request = ports.clock.now(), LandingRequest()
    landing_id = new_landing_id(f"{source.source} received", request, now)
    return LandingState(
        landing_id=landing_id, source=source.source, request=request, started_at=now
    )


def seal_received(
    ports: LandingPorts, source: SourceDeclaration, session: LandingState
) -> LandedSnapshot:
    """Tag the newest snapshot with the landing of a session.

    Raises Conflict when another landing is open, or lands at the same time: its own tag holds the
    rows too.
    """
    before = own_state(ports, source)
    if before is None or not before.is_complete:
        raise Conflict(
            f"another landing of {source.source} is open",
            state="the received rows are landed; this landing has no tag",
            fix=f"lakehouse-backfill land {source.source} tags them",
        )
    began = session.model_copy(update={"position": before.position, "token": before.token})
    state = next_state(began, is_complete=True)
    return ports.raw_tables.seal(source.table, state, source.keep_days)
