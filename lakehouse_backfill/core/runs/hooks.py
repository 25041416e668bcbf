"""Hooks of a product's contract: called once per act, recorded, and resumed after a crash."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Hook, HookCall, HookMoment
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.errors import Blocked

#: Verbs by which a run halts itself.
HALT_VERBS = ("halt", "halt publication")


def call_hooks(
    context: Context, plan: Plan, on: HookMoment, act: str, epoch: int, **facts: Any
) -> tuple[HookCall, ...]:
    """Call the contract's hooks of a moment that did not succeed for this act before.

    `act` names the act, e.g. by its publication token: whoever repeats it calls again only what
    failed or was cut off. Each outcome is evidence of the run. Raises nothing for a failed hook.
    """
    wanted = [hook for hook in plan.resolved.contract.hooks if hook.on == on]
    return tuple(_call_hook(context, plan, hook, act, epoch, facts) for hook in wanted)


def require_hooks(
    context: Context, plan: Plan, on: HookMoment, act: str, epoch: int, **facts: Any
) -> None:
    """Call the hooks likewise; raises Blocked, naming the first that failed."""
    for call in call_hooks(context, plan, on, act, epoch, **facts):
        if not call.is_ok:
            raise Blocked(
                f"hook {call.hook} failed {on}: {call.detail}",
                state="nothing was published; readers see what they saw before",
                fix=f"mend what the hook needs, then: lakehouse-backfill publish {plan.run_id}",
            )


def group_act_id(context: Context, plan: Plan) -> str:
    """Name the act of a run that is published with others: the same for whoever goes on with it."""
    first = 0
    for event in reversed(context.runs.events(plan.run_id)):
        if event.verb != "begin publishing":
            break
        first = event.seq
    return f"{plan.run_id}-together-{first}"


def released_token(history: tuple[Publication, ...], run_id: str) -> str | None:
    """Name the run's last reservation when it was given back, None when it was not."""
    last = next((row for row in history if row.run_id == run_id), None)
    return last.token if last is not None and last.action == "release" else None


def notify_released(
    context: Context, plan: Plan, act: str, epoch: int, problem: str
) -> tuple[str, ...]:
    """Call after_publish where before_publish was: what it paused has to go on; name what failed.

    A process that died may have called before_publish and not have said so: it counts as called.
    """
    if not any(hook.on == "before_publish" for hook in plan.resolved.contract.hooks):
        return ()
    calls = call_hooks(
        context, plan, "after_publish", _release_act_id(act), epoch,
        outcome="given back", problem=problem,
    )  # fmt: skip
    return tuple(call.hook for call in calls if not call.is_ok)


def pending_release_hooks(context: Context, plan: Plan, act: str) -> tuple[str, ...]:
    """Name the hooks that were not called, or failed, when the act was given back."""
    if not any(hook.on == "before_publish" for hook in plan.resolved.contract.hooks):
        return ()
    return pending_hooks(context, plan, "after_publish", _release_act_id(act))


def _release_act_id(act: str) -> str:
    return f"{act}-given-back"


def notify_halted(context: Context, plan: Plan) -> tuple[str, ...]:
    """Call on_halt for the run's last halt, if that was not done; name the hooks that failed."""
    halt = _last_halt(context, plan)
    if halt is None:
        return ()
    epoch = context.runs.status(plan.run_id).epoch
    problem = str(halt.detail.get("problem", ""))
    calls = call_hooks(context, plan, "on_halt", _halt_act_id(halt), epoch, problem=problem)
    return tuple(call.hook for call in calls if not call.is_ok)


def pending_halt_hooks(context: Context, plan: Plan) -> tuple[str, ...]:
    """Name the on_halt hooks that were not called, or failed, for the run's last halt."""
    halt = _last_halt(context, plan)
    return () if halt is None else pending_hooks(context, plan, "on_halt", _halt_act_id(halt))


def _last_halt(context: Context, plan: Plan) -> Event | None:
    """Give the run's last halt; the log is read only where a hook wants to hear of it."""
    if not any(hook.on == "on_halt" for hook in plan.resolved.contract.hooks):
        return None
    halts = [event for event in context.runs.events(plan.run_id) if event.verb in HALT_VERBS]
    return halts[-1] if halts else None


def _halt_act_id(event: Event) -> str:
    return f"{event.run_id}-halt-{event.seq}"


def pending_hooks(context: Context, plan: Plan, on: HookMoment, act: str) -> tuple[str, ...]:
    """Name the hooks of a moment that have not succeeded for the act."""
    hooks = [hook for hook in plan.resolved.contract.hooks if hook.on == on]
    return tuple(hook.name for hook in hooks if not _has_succeeded(context, plan, hook, act))


def recorded_hook_calls(context: Context, plan: Plan, act: str) -> tuple[HookCall, ...]:
    """Give the last call of each hook that was called for the act, in the contract's order."""
    found = (_recorded_call(context, plan, hook, act) for hook in plan.resolved.contract.hooks)
    return tuple(call for call in found if call is not None)


def _call_hook(
    context: Context, plan: Plan, hook: Hook, act: str, epoch: int, facts: dict[str, Any]
) -> HookCall:
    known = _recorded_call(context, plan, hook, act)
    if known is not None and known.is_ok:
        return known
    message = {
        "product": plan.product,
        "run_id": plan.run_id,
        "on": hook.on,
        "idempotency_key": f"{act}-{hook.name}",
        **facts,
    }
    call = context.hooks.call(hook, message)
    document = {"act": act, **call.model_dump(mode="json")}
    context.evidence.record(plan.run_id, _evidence_kind(hook), document, epoch)
    context.journal.bind(**plan.labels).log(
        "hook called", hook=hook.name, on=hook.on, ok=call.is_ok, detail=call.detail
    )
    return call


def _has_succeeded(context: Context, plan: Plan, hook: Hook, act: str) -> bool:
    known = _recorded_call(context, plan, hook, act)
    return known is not None and known.is_ok


def _recorded_call(context: Context, plan: Plan, hook: Hook, act: str) -> HookCall | None:
    found = context.evidence.newest(plan.run_id, _evidence_kind(hook))
    if found is None or found[1].get("act") != act:
        return None
    return HookCall.model_validate({k: v for k, v in found[1].items() if k != "act"})


def _evidence_kind(hook: Hook) -> str:
    return f"hook {hook.on} {hook.name}"
