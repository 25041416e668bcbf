"""The state machine of a run."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest

from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import IllegalMove

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def _status(state: RunState) -> RunStatus:
    return RunStatus(run_id="bf-1", product="a.b", state=state, seq=4, at=NOW)


@pytest.mark.req("V3")
@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("verb", sorted(lifecycle.MOVES))
def test_a_move_is_made_or_refused_with_the_legal_ones_named(verb: str, state: RunState) -> None:
    sources, to_state = lifecycle.MOVES[verb]
    make = lambda: lifecycle.next_event(  # noqa: E731
        _status(state), verb, actor="ana", mode="backfill", at=NOW, detail={}
    )
    if state in sources:
        assert (make().to_state, make().seq) == (to_state, 5)
        return
    with pytest.raises(IllegalMove) as refused:
        make()
    offered = re.split("; and |, ", refused.value.problem.partition("legal now: ")[2])
    if state is RunState.REJECTED:
        assert offered.pop() == "not a person"
        offered[-1] = offered[-1].removesuffix(" if gates rejected it")
    typed = {lifecycle.COMMANDS_BY_VERB.get(legal) for legal in lifecycle.legal_verbs(state)} - {
        None
    }
    assert set(offered) == (typed or {"none: the run is closed"})
    assert state.value in refused.value.state


@pytest.mark.req("V3")
def test_every_state_can_be_reached() -> None:
    reached = {RunState.DRAFT}
    for _ in RunState:
        for sources, to_state in lifecycle.MOVES.values():
            if sources & reached:
                reached.add(to_state)
    assert reached == set(RunState)


@pytest.mark.req("V3")
def test_nothing_leads_out_of_a_closed_run_but_a_publication_and_its_undo() -> None:
    for state in set(RunState) - lifecycle.OPEN_STATES:
        assert set(lifecycle.legal_verbs(state)) <= {
            "roll back", "reinstate", "reinstate in part", "begin publishing", "supersede",
        }  # fmt: skip


@pytest.mark.req("E5")
def test_a_run_cannot_be_published_without_an_accepted_result() -> None:
    for state in (
        RunState.PLANNED,
        RunState.APPROVED,
        RunState.STAGED,
        RunState.VALIDATED,
        RunState.REJECTED,
    ):
        assert "begin publishing" not in lifecycle.legal_verbs(state)
