"""Edges that are computed beside the chunks: validation compares them, and computes none again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from lakehouse_backfill.core.guards.outside.effect_log import recorded_attempts
from lakehouse_backfill.core.staging.pause import pause
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.checks import EdgePartition
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import EDGES_DETAIL, RunState
from lakehouse_backfill.errors import ChecksFailed, EnvironmentDown, RunPaused, WriteForbidden
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import context, declared, lake
from tests.support.fakes.steps import approved_run, note_calls, staged_run

BEYOND = ("2020-01-01", "2020-01-04")


class _Watched(Future[dict[str, Checksum]]):
    """Edges that somebody looks at; `when_looked_at` is called once."""

    when_looked_at: Callable[[], object] | None = None

    def done(self) -> bool:
        act, self.when_looked_at = self.when_looked_at, None
        if act is not None:
            act()
        return super().done()


class _Unfinished(FakeCompute):
    """An engine whose edges end with `outcome`, or once they are interrupted."""

    outcome: Exception | None = None
    is_gone = False
    #: What another process does while the edges are waited for.
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def begin_edges(self, plan: Any, around: Any) -> Future[dict[str, Checksum]]:
        self.computed = _Watched()
        self.computed.when_looked_at = self.meanwhile
        if self.outcome is not None:
            self.computed.set_exception(self.outcome)
        return self.computed

    def interrupt(self, plan: Plan) -> None:
        super().interrupt(plan)
        self.computed.set_exception(EnvironmentDown("the job was cancelled", fix="again"))
        if self.is_gone:
            raise ConnectionError("no engine answers")


def edges_of(
    engine: FakeCompute, **changes: Any
) -> tuple[tuple[EdgePartition, ...], Any, list[str]]:
    """Stage and validate; return the edges, what the log keeps, and all that was computed."""
    found = context(engine.lake, engine)
    calls = note_calls(engine, "edge_checksums")
    run_id = staged_run(found, declared(**changes))
    kept = found.runs.events(run_id)[-1].detail.get(EDGES_DETAIL)
    edge = validate(found, run_id, "bob")[1].edge
    computed = [label for _, around in calls for some in around.values() for label in some]
    return edge.partitions if edge else (), kept, computed


@pytest.mark.req("Q10")
@pytest.mark.parametrize("differing", [set(), {"2020-01-04"}])
def test_edges_are_computed_once_and_the_log_keeps_their_checksums(differing: set[str]) -> None:
    edges, kept, computed = edges_of(FakeCompute(lake(), open_edges=differing))
    assert tuple(sorted(kept)) == BEYOND
    assert {one.partition for one in edges if one.differing_rows} == differing
    assert len(computed) == len(set(computed))
    assert set(computed) == {one.partition for one in edges}


@pytest.mark.req("Q10")
def test_what_fails_beside_the_chunks_is_computed_by_validation() -> None:
    engine = _Unfinished(lake(), open_edges={"2020-01-04"})
    engine.outcome = EnvironmentDown("an executor was lost", fix="again")
    edges, kept, computed = edges_of(engine)
    assert kept is None
    assert {one.partition for one in edges if one.differing_rows} == {"2020-01-04"}
    assert set(BEYOND) < set(computed)


@pytest.mark.req("Q10")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"validation": {"edge_partitions": 40}}, id="many partitions"),
        pytest.param({"target": {"row_predicate": {"amount": [1]}}}, id="some rows"),
        pytest.param({"validation": {"edge_partitions": 0}}, id="no edges"),
        pytest.param({"limits": {"rows_per_minute": 1_000_000}}, id="a limit of rows"),
    ],
)
def test_runs_whose_edges_the_log_does_not_keep(changes: dict[str, Any]) -> None:
    wide = {"raw": {"range": {"column": "day", "from": "2019-10-01", "to": "2020-04-01"}}}
    engine = FakeCompute(lake())
    begun = note_calls(engine, "begin_edges")
    _, kept, _ = edges_of(engine, sources=wide, **changes)
    assert (kept, begun) == (None, [])


@pytest.mark.parametrize("is_gone", [False, True])
def test_edges_of_a_run_whose_chunk_fails_are_not_computed_on(*, is_gone: bool) -> None:
    engine = _Unfinished(lake(), chunk_duplicates=1)
    engine.is_gone = is_gone
    found = context(engine.lake, engine)
    run_id = approved_run(found)
    with pytest.raises(ChecksFailed):
        stage(found, run_id, "bob")
    assert found.runs.status(run_id).state is RunState.HALTED
    assert engine.interrupted == [run_id]


def test_what_job_code_tries_while_edges_are_computed_fails_the_run() -> None:
    engine = _Unfinished(lake())
    tried = {"sink": "network", "what": "socket.connect", "file": "jobs/a.py", "line": 7}
    engine.outcome = WriteForbidden("stopped", fix="remove it", data={"attempts": [tried]})
    found = context(engine.lake, engine)
    run_id = approved_run(found)
    with pytest.raises(WriteForbidden):
        stage(found, run_id, "bob")
    assert found.runs.status(run_id).state is RunState.FAILED
    assert recorded_attempts(found, run_id) == (tried,)


def test_a_pause_ends_the_wait_for_edges_and_says_who_paused() -> None:
    engine = _Unfinished(lake())
    found = context(engine.lake, engine, driver="one")
    other = context(
        engine.lake, engine, driver="two", runs=found.runs, versions=found.versions,
        evidence=found.evidence,
    )  # fmt: skip
    run_id = approved_run(found)
    engine.meanwhile = lambda: pause(other, run_id, "bob", "live jobs", now=True)
    with pytest.raises(RunPaused, match="bob paused"):
        stage(found, run_id, "bob")
    assert run_id in engine.interrupted
