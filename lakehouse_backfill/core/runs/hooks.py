"""Hooks of a product's contract: called once per action, recorded, and resumed after a crash."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.outside import Hook, HookCall, HookMoment
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import Blocked

#: Verbs by which a run halts itself.
HALT_VERBS = ("halt", "halt publication")
#: Outcome of a hook that the profile switches off: it failed, so it is called once it is on again.
NOT_CALLED = "not called: hooks are switched off in the profile"


def call_hooks(
    context: Context, plan: Plan, on: HookMoment, act: str, epoch: int, **facts: Any
) -> tuple[HookCall, ...]:
    """Call the contract's hooks of a moment that did not succeed for this action before.

    `act` identifies the action, e.g. by its publication token. A retry calls only the hooks that
    failed or were interrupted. Each outcome is evidence of the run. A failed hook raises nothing.
    """
    return tuple(_call_hook(context, plan, hook, act, epoch, facts) for hook in _hooks(plan, on))


def _hooks(plan: Plan, on: HookMoment) -> list[Hook]:
    return [hook for hook in plan.resolved.contract.hooks if hook.on == on]


def require_hooks(
    context: Context, plan: Plan, on: HookMoment, act: str, epoch: int, **facts: Any
) -> None:
    """Call the hooks like `call_hooks`; raises Blocked, naming the first that failed."""
    for call in call_hooks(context, plan, on, act, epoch, **facts):
        if not call.is_ok:
            raise Blocked(
                f"hook {call.hook} failed {on}: {call.detail}",
                state="nothing was published; readers see what they saw before",
                fix=f"mend what the hook needs, then: lakehouse-backfill publish {plan.run_id}",
            )


def group_act_id(context: Context, plan: Plan) -> str:
    """Return the action id of a run that is published with others.

    It is the same in every process that resumes the publication.
    """
    first = 0
    for event in reversed(context.runs.events(plan.run_id)):
        if event.verb != "begin publishing":
            break
        first = event.seq
    return f"{plan.run_id}-together-{first}"


def released_token(history: tuple[Publication, ...], run_id: str) -> str | None:
    """Return the token of the run's last reservation if it was released, else None."""
    last = next((row for row in history if row.run_id == run_id), None)
    return last.token if last is not None and last.action == "release" else None


def notify_released(
    context: Context, plan: Plan, act: str, epoch: int, problem: str
) -> tuple[str, ...]:
    """Call after_publish where before_publish was called, so that paused jobs continue.

    Returns the hooks that failed. A process that crashed may have called before_publish without a
    record of it, so it counts as called.
    """
    if not _hooks(plan, "before_publish"):
        return ()
    facts = {"outcome": "given back", "problem": problem}
    calls = call_hooks(context, plan, "after_publish", _release_act_id(act), epoch, **facts)
    return tuple(call.hook for call in calls if not call.is_ok)


def pending_release_hooks(context: Context, plan: Plan, act: str) -> tuple[str, ...]:
    """Return the hooks that were not called, or failed, when the action was released."""
    if not _hooks(plan, "before_publish"):
        return ()
    return pending_hooks(context, plan, "after_publish", _release_act_id(act))


def _release_act_id(act: str) -> str:
    return f"{act}-given-back"


def notify_halted(context: Context, plan: Plan) -> tuple[str, ...]:
    """Call on_halt for the run's last halt unless recorded; return the hooks that failed."""
    halt = _last_halt(context, plan)
    if halt is None:
        return ()
    epoch = context.runs.status(plan.run_id).epoch
    problem = str(halt.detail.get("problem", ""))
    calls = call_hooks(context, plan, "on_halt", _halt_act_id(halt), epoch, problem=problem)
    return tuple(call.hook for call in calls if not call.is_ok)


def pending_halt_hooks(context: Context, plan: Plan) -> tuple[str, ...]:
    """Return the on_halt hooks that were not called, or failed, for the run's last halt."""
    halt = _last_halt(context, plan)
    return () if halt is None else pending_hooks(context, plan, "on_halt", _halt_act_id(halt))


def _last_halt(context: Context, plan: Plan) -> Event | None:
    """Return the run's last halt; the log is read only if the contract has an on_halt hook."""
    events = context.runs.events(plan.run_id) if _hooks(plan, "on_halt") else ()
    return next((event for event in reversed(events) if event.verb in HALT_VERBS), None)


def _halt_act_id(event: Event) -> str:
    return f"{event.run_id}-halt-{event.seq}"


def pending_hooks(context: Context, plan: Plan, on: HookMoment, act: str) -> tuple[str, ...]:
    """Return the hooks of a moment that have not succeeded for the action."""
    calls = {hook.name: _recorded_call(context, plan, hook, act) for hook in _hooks(plan, on)}
    return tuple(name for name, call in calls.items() if call is None or not call.is_ok)


def recorded_hook_calls(context: Context, plan: Plan, act: str) -> tuple[HookCall, ...]:
    """Return the last call of each hook that was called for the action, in contract order."""
    calls = (_recorded_call(context, plan, hook, act) for hook in plan.resolved.contract.hooks)
    return tuple(call for call in calls if call is not None)


def _call_hook(
    context: Context, plan: Plan, hook: Hook, act: str, epoch: int, facts: dict[str, Any]
) -> HookCall:
    recorded = _recorded_call(context, plan, hook, act)
    if recorded is not None and recorded.is_ok:
        return recorded
    if not context.profile.is_on("hooks", plan.product):
        call = HookCall(hook=hook.name, on=hook.on, is_ok=False, detail=NOT_CALLED, seconds=0.0)
        return _record_call(context, plan, hook, call, act, epoch)
    message = {
        "product": plan.product,
        "run_id": plan.run_id,
        "on": hook.on,
        "idempotency_key": f"{act}-{hook.name}",
        **facts,
    }
    return _record_call(context, plan, hook, context.hooks.call(hook, message), act, epoch)


def _record_call(
    context: Context, plan: Plan, hook: Hook, call: HookCall, act: str, epoch: int
) -> HookCall:
    document = {"act": act, **call.model_dump(mode="json")}
    context.evidence.record(plan.run_id, _evidence_kind(hook), document, epoch)
    context.journal.bind(**plan.labels).log(
        "hook called", hook=hook.name, on=hook.on, ok=call.is_ok, detail=call.detail
    )
    return call


def _recorded_call(context: Context, plan: Plan, hook: Hook, act: str) -> HookCall | None:
    found = context.evidence.newest(plan.run_id, _evidence_kind(hook))
    if found is None or found[1].get("act") != act:
        return None
    return HookCall.model_validate({k: v for k, v in found[1].items() if k != "act"})


def _evidence_kind(hook: Hook) -> str:
    return f"hook {hook.on} {hook.name}"
