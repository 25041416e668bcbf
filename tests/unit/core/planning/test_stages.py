"""What a plan lists is what its run does, in that order, for every publish mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning import stages
from lakehouse_backfill.core.planning.target.publish_modes import MODE_MEANINGS
from lakehouse_backfill.core.publication.publish import publish, run_until_decision
from lakehouse_backfill.core.retention.maintain import maintain
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.external import shadow_close, shadow_open
from lakehouse_backfill.domain.partitions import Chunk
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState
from tests.support.examples.plans import a_plan, with_fields
from tests.support.fakes.context import PRODUCT, contract, declared, lake
from tests.support.fakes.lake import FakeLake
from tests.support.fakes.steps import planned_run
from tests.support.fakes.timed import timed_world

Seen = list[tuple[str, tuple[str, ...]]]
#: Events of a run's log that are a stage of their own.
_EVENTS = {
    "approve": "approve", "accept": "accept", "retire": "retire", "dual read": "dual_read",
    "pass validation": "judge_result", "begin publishing": "order_publication",
}  # fmt: skip
#: Evidence that is a stage of its own.
_DOCUMENTS = {
    "input-checks": "judge_input", "rollout": "check_step", "after-publish": "check_published",
}  # fmt: skip


#: Calls that are a stage whatever they are given.
_ACTS = {
    "runs.register": "pin", "tables.create": "create_target", "shadows.open": "open_shadow",
    "corrections.write": "expose", "shadows.keep": "expose", "views.show": "refresh_view",
    "version_tables.show": "label_rows",
}  # fmt: skip
_HOOKS = {"before_publish": "hooks_before", "after_publish": "hooks_after"}


def _labels(around: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(label for some in around.values() for label in some)


class _Noted:
    """A port whose calls are noted, as the stage that each of them is; the calls go through."""

    def __init__(self, port: Any, name: str, see: Callable[..., None]) -> None:
        self._port, self._name, self._see = port, name, see

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._port, method)
        if not callable(found):
            return found

        def noted(*arguments: Any, **named: Any) -> Any:
            done = found(*arguments, **named)
            self._see(f"{self._name}.{method}", arguments, done)
            return done

        return noted


class _Witness:
    """Notes what a run really does: commits, events, evidence and calls, each as a stage."""

    def __init__(self, found: Context) -> None:
        self.seen: Seen = []
        self.state = ""
        compute = found.compute()
        ports = (
            "tables", "pins", "shadows", "publisher", "runs", "versions", "evidence", "views",
            "hooks", "corrections", "version_tables",
        )  # fmt: skip
        noted = {name: _Noted(getattr(found, name), name, self.see) for name in ports}
        engine = _Noted(compute, "compute", self.see)
        self.context = replace(found, compute=lambda: engine, **noted)
        engine.staging = engine

    def see(self, act: str, arguments: tuple[Any, ...], done: Any) -> None:
        kind, labels = self._stage(act, arguments, done)
        if kind and (kind, labels) not in self.seen[-1:]:
            self.seen.append((kind, labels))

    def _stage(self, act: str, arguments: tuple[Any, ...], done: Any) -> Any:
        first = arguments[0] if arguments else None
        if act in _ACTS:
            return _ACTS[act], ()
        read: Callable[[], Any] = {
            "runs.append": lambda: self._event(first),
            "evidence.record": lambda: (_DOCUMENTS.get(arguments[1]), self._step(arguments[2])),
            "runs.record_chunk": lambda: ("chunk", first.partitions),
            "compute.begin_edges": lambda: ("compute_edges", _labels(arguments[1])),
            "compute.edge_checksums": lambda: ("compute_edges", _labels(arguments[1])),
            "hooks.call": lambda: (_HOOKS[first.on], ()),
            "publisher.adopt": lambda: ("expose", first.scope.partitions if first.within else ()),
            "pins.pin": lambda: ("expose" if self.state == "publishing" else None, ()),
            "versions.move": lambda: self._move(done),
        }.get(act, lambda: (None, ()))
        return read()

    def _event(self, event: Any) -> Any:
        self.state = event.to_state.value
        return _EVENTS.get(event.verb), ()

    def _move(self, pointer: Any) -> Any:
        if not pointer.accepted or pointer.pending is not None:
            return None, ()
        return "move_pointer", pointer.accepted.scope.partitions if self._is_stepwise else ()

    _is_stepwise = False

    def _step(self, document: dict[str, Any]) -> tuple[str, ...]:
        if "steps" not in document:
            return ()
        return tuple(document["steps"][-1]["partitions"])


LATER = {"partitions": {"column": "day", "from": "2020-02-01", "to": "2020-02-03"}}
WIDE = {"raw": {"range": {"column": "day", "from": "2019-12-01", "to": "2020-03-01"}}}
PINNED = contract(publication="pinned")
EVENTS = {"publish_mode": "correction_events", "corrections": {"table": "gold.events"}}
HOOKS = [
    {"name": "pause", "on": "before_publish", "command": ["pause"]},
    {"name": "resume", "on": "after_publish", "command": ["resume"]},
]
COMPLETE = {"raw": {"complete": "day"}}
CASES: dict[str, dict[str, Any]] = {
    "replace_partitions": {},
    "append": {"target": {"publish_mode": "append", **LATER}, "sources": WIDE},
    "merge": {"target": {"publish_mode": "merge", "merge": {"version": "amount"}}},
    "correction_events": {"target": EVENTS},
    "pointer_swap": {"target": {"publish_mode": "pointer_swap"}, "contract": PINNED},
    "versioned": {"target": {"publish_mode": "versioned"}, "contract": PINNED},
    "versioned, rows labelled in one table": {
        "target": {"publish_mode": "versioned"},
        "contract": contract(
            publication="pinned", versions_table="silver.daily_versions", view="gold.daily_view"
        ),
    },
    "shadow_only": {"target": {"publish_mode": "shadow_only"}},
    "hooks, view and checks after it": {
        "contract": contract(hooks=HOOKS, after_publish={}, view="gold.daily_view")
    },
    "in steps": {
        "target": {
            "progressive": {"partitions_per_step": 2},
            "partitions": {"column": "day", "from": "2020-01-01", "to": "2020-01-05"},
        }
    },
    "no edges": {"validation": {"edge_partitions": 0}},
    "without a person before the publication": {"safety": {"manual_publish": False}},
    "no accepted rows, several chunks": {"target": LATER, "sources": WIDE},
}


def run_as_planned(found: Context, plan: Plan) -> None:
    """Do what people and `run` do, from the approval to the end of the run."""
    run_id = plan.run_id
    decisions.approve(found, run_id, "ana", "")
    run_until_decision(found, run_id, "bob")
    if plan.resolved.manifest.target.publish_mode == "shadow_only":
        decisions.cancel(found, run_id, "ana", "looked at")
        return
    decisions.accept(found, run_id, "ana", "")
    if plan.resolved.manifest.safety.manual_publish:
        publish(found, run_id, "ana")
    else:
        run_until_decision(found, run_id, "bob")


def listed(plan: Plan) -> Seen:
    """The stages of the plan; what only names the kind of chunk is left out."""
    found = stages.plan_stages(plan)
    return [
        ("chunk" if one.kind in stages.CHUNK_KINDS else one.kind, one.partitions) for one in found
    ]


def witnessed(where: FakeLake, **changes: Any) -> tuple[Plan, Seen]:
    compute, found = timed_world(where)
    witness = _Witness(found)
    wanted = declared(**changes)
    witness._is_stepwise = wanted.manifest.target.progressive is not None
    plan = found.runs.plan(planned_run(witness.context, wanted))
    run_as_planned(witness.context, plan)
    compute.clock.sleep(100 * 86_400)
    maintain(witness.context, {PRODUCT: wanted.contract}, "ana")
    return plan, witness.seen


@pytest.mark.req("P1")
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_a_run_does_what_its_plan_lists_in_that_order(changes) -> None:
    plan, seen = witnessed(lake(), **changes)
    planned = listed(plan)
    if not plan.resolved.manifest.safety.manual_publish:
        # No person gives the command: the event is there, and no stage of the plan.
        seen.remove(("order_publication", ()))
    assert seen == planned


@pytest.mark.req("P1")
def test_every_publish_mode_is_among_the_cases() -> None:
    assert set(MODE_MEANINGS) <= set(CASES)


@pytest.mark.req("P1")
def test_a_table_that_does_not_exist_is_created_before_its_shadow() -> None:
    where = FakeLake()
    where.add("bronze.raw", **{"2020-01-01": "raw-1"})
    plan, seen = witnessed(where)
    assert seen == listed(plan)
    assert [kind for kind, _ in seen].index("create_target") + 1 == [
        kind for kind, _ in seen
    ].index("open_shadow")


@pytest.mark.req("P1")
def test_another_engine_writes_between_two_stages_of_ours() -> None:
    where = lake()
    _, found = timed_world(where)
    witness = _Witness(found)
    wanted = declared(
        transform={"file": "jobs/daily.sql", "writer": "external"},
        validation={"edge_partitions": 0},
    )
    run_id = planned_run(witness.context, wanted)
    plan = found.runs.plan(run_id)
    decisions.approve(witness.context, run_id, "ana", "")
    shadow_open(witness.context, run_id, "bob")
    for day in plan.resolved.scope.partitions:
        where.write(plan.shadow_table, day, f"theirs {day}")
    witness.seen.append(("write_shadow", ()))
    shadow_close(witness.context, run_id, "bob")
    # The shadow that is closed is looked up again, and made no second time.
    seen = list(dict.fromkeys(witness.seen))
    assert seen == listed(plan)[: len(seen)]
    assert seen[-1] == ("chunk", ("2020-01-03",))
    assert [one.kind for one in stages.chunk_stages(plan)] == ["measure_chunk"] * 2


@pytest.mark.req("P1")
def test_what_readers_compare_comes_before_the_acceptance() -> None:
    target = {"dual_read": {"readers": ["bi"], "require": "recorded"}}
    _, found = timed_world(lake())
    plan = found.runs.plan(planned_run(found, declared(target=target)))
    kinds = [one.kind for one in stages.plan_stages(plan)]
    assert kinds[kinds.index("judge_result") :][1:4] == [
        "dual_read", "accept", "order_publication",
    ]  # fmt: skip


# --- what comes next ------------------------------------------------------------------------------


#: The command that begins a phase.
_COMMANDS = {
    "approval": "approve",
    "staging": "run",
    "validation": "validate",
    "acceptance": "accept",
    "publication": "publish",
    "upkeep": "maintain",
}


@pytest.mark.req("P1")
@pytest.mark.parametrize("state", list(RunState), ids=lambda state: state.value)
def test_the_command_that_the_log_names_is_that_of_the_next_stage(state) -> None:
    stage = stages.next_stage(a_plan(), state)
    command = lifecycle._FORWARD_COMMANDS.get(state)
    if command is None:
        # People decide here, an act is under way, or nothing is left but upkeep.
        assert state not in (RunState.PLANNED, RunState.STAGED, RunState.VALIDATED)
        return
    assert stage is not None
    if state is RunState.PAUSED:
        # Somebody stopped it: nothing goes on before it is let go on.
        assert command == "unpause {run}"
        return
    assert command == f"{_COMMANDS[stage.phase]} {{run}}"


def test_a_publication_that_was_begun_waits_for_nobody() -> None:
    plan = a_plan()
    waiting, begun = (
        stages.next_stage(plan, state) for state in (RunState.ACCEPTED, RunState.PUBLISHING)
    )
    assert waiting is not None
    assert begun is not None
    assert (waiting.kind, waiting.by) == ("order_publication", "person")
    assert (begun.kind, begun.by) == ("expose", "toolkit")


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_a_run_that_is_never_published_waits_for_nobody_after_its_checks(changes) -> None:
    _, found = timed_world(lake())
    plan = found.runs.plan(planned_run(found, declared(**changes)))
    never = with_fields(plan, resolved__manifest__run__mode="dry_run")
    assert stages.next_stage(never, RunState.VALIDATED) is None
    assert stages.next_stage(never, RunState.ACCEPTED) is None


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_chunks_are_staged_once_each_in_the_order_of_the_plan(sizes) -> None:
    labels = iter(f"2020-01-{number:03}" for number in range(sum(sizes)))
    chunks = tuple(
        Chunk(chunk_id=f"c{number}", partitions=tuple(next(labels) for _ in range(size)))
        for number, size in enumerate(sizes)
    )
    plan = with_fields(a_plan(), resolved__chunks=chunks)
    assert tuple(one.chunk for one in stages.chunk_stages(plan)) == chunks
    phases = [one.phase for one in stages.plan_stages(plan)]
    order = ("plan", "approval", "staging", "validation", "acceptance", "publication", "upkeep")
    assert phases == sorted(phases, key=order.index)
