"""Take a run of the fake product through its verbs, as far as a test needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakehouse_backfill.core.approval import decisions
from lakehouse_backfill.core.planning.plan import make_plan, register_plan
from lakehouse_backfill.core.publication.publish import publish
from lakehouse_backfill.core.publication.rollback import RollbackOutcome, plan_rollback, rollback
from lakehouse_backfill.core.runs import event_log
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.staging.stage import stage
from lakehouse_backfill.core.validation.validate import validate
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, RunState
from tests.support.fakes.compute import FakeCompute
from tests.support.fakes.context import PRODUCT, context, contract, declared, lake
from tests.support.fakes.lake import Content, FakeLake


def world(**engine: Any) -> tuple[FakeLake, Context]:
    """The lake of the product and a context over it; `engine` is what its FakeCompute gets."""
    where = lake()
    return where, context(where, FakeCompute(where, **engine))


def planned_run(found: Context, wanted: Any = None, revise: str | None = None) -> str:
    """Plan a run as bob and register it; give its id, as all of these do."""
    plan, _ = register_plan(found, make_plan(found, wanted or declared(), "bob", revise), "bob")
    return plan.run_id


def approved_run(found: Context, wanted: Any = None) -> str:
    run_id = planned_run(found, wanted)
    decisions.approve(found, run_id, "ana", "")
    return run_id


def staged_run(found: Context, wanted: Any = None) -> str:
    run_id = approved_run(found, wanted)
    stage(found, run_id, "bob")
    return run_id


def validated_run(found: Context, wanted: Any = None) -> str:
    run_id = staged_run(found, wanted)
    validate(found, run_id, "bob")
    return run_id


def accepted_run(found: Context, wanted: Any = None) -> str:
    run_id = validated_run(found, wanted)
    decisions.accept(found, run_id, "ana", "")
    return run_id


def published_run(found: Context, wanted: Any = None) -> str:
    run_id = accepted_run(found, wanted)
    publish(found, run_id, "bob")
    return run_id


def roll_back(
    found: Context, to: int | None = None, only: tuple[str, ...] = (), of: Contract | None = None
) -> RollbackOutcome:
    """Roll the product back: by one version, or `to` one; all partitions, or `only` some."""
    way = plan_rollback(found, PRODUCT, to, only)
    return rollback(found, of or contract(), way, "wrong", "ana")


def state_of(found: Context, run_id: str) -> RunState:
    return found.runs.status(run_id).state


def content_of(where: FakeLake, table: str = PRODUCT) -> Content:
    """What readers of the newest snapshot see: label -> files."""
    return where.tables[table].content(where.tables[table].head)


def pending_of(found: Context, product: str = PRODUCT) -> Publication | None:
    return found.versions.pointer(product).pending


def note_calls(owner: Any, method: str) -> list[tuple[Any, ...]]:
    """Keep the arguments of each call of a method from now on; the calls go through."""
    calls: list[tuple[Any, ...]] = []
    through = getattr(owner, method)

    def noted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return through(*arguments, **named)

    setattr(owner, method, noted)
    return calls


def rewrite_log(found: Context, run_id: str, edit: Callable[[list[Event]], list[Event]]) -> None:
    """Make a run's log anew, with all hashes and its state, as who can write to all may do."""
    runs: Any = found.runs
    previous, log = "", []
    for number, event in enumerate(edit(list(runs.log[run_id])), start=1):
        bare = event.model_copy(update={"seq": number, "previous": previous, "hash": ""})
        previous = event_log.event_seal(bare)
        log.append(bare.model_copy(update={"hash": previous}))
    runs.log[run_id] = log
    update = {"seq": len(log), "head": previous, "state": log[-1].to_state}
    runs.statuses[run_id] = runs.statuses[run_id].model_copy(update=update)
