"""Calls a sink, and undoes what a run sent under the policy `compensate` when the run is void."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.guards.outside.sinks import effective_policy
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.side_effects import record_message, recorded_messages
from lakehouse_backfill.domain.guards.outside import Hook, HookCall, Sink
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import Blocked, Tampered

#: States in which what a run sent must not hold any more.
VOID_STATES = frozenset({RunState.ROLLED_BACK, RunState.CANCELLED, RunState.SUPERSEDED})
#: A process may have stopped between the answer of a sink and its record.
_MAY_HOLD = ("sent", "sending", "unknown", "failed", "not undone")


def call_sink(
    context: Context, sink: Sink, address: str | None, content: Mapping[str, Any]
) -> HookCall:
    """Send one message to an address of a sink."""
    call = Hook(
        name=sink.name,
        on="before_publish",  # A call does not look at its moment.
        webhook=address,
        token_env=sink.token_env,
        timeout_seconds=sink.timeout_seconds,
    )
    return context.hooks.call(call, dict(content))


def message_id(run_id: str, message: Mapping[str, str]) -> str:
    """Return the name by which a sink is told to undo a message."""
    return f"{run_id}-{message['key']}"


def undo_messages(context: Context, run_id: str) -> tuple[str, ...]:
    """Call the inverse of each message that a void run sent; return those that stay to be undone.

    A run that is not void, and a message that is undone already, is left alone. Each outcome is
    evidence of the run. A failed inverse raises nothing: the same call tries it again.
    """
    status = context.runs.status(run_id)
    if status.state not in VOID_STATES:
        return ()
    plan, failed = context.runs.plan(run_id), []
    for sink, message in _to_undo(context, plan):
        content = {
            "idempotency_key": f"undo-{message_id(run_id, message)}",
            "undoes": message_id(run_id, message),
            "sink": sink.name,
        }
        call = call_sink(context, sink, sink.inverse, content)
        outcome = "undone" if call.is_ok else "not undone"
        record_message(context, run_id, message, outcome, status.epoch)
        if not call.is_ok:
            failed.append(_describe(sink, message))
    return tuple(failed)


def require_messages_hold(context: Context, plan: Plan) -> None:
    """Raise Blocked when a message of the run, or one that it relied on, was undone meanwhile.

    A publication sends nothing: readers would see rows whose message is not at the sink.
    """
    if lost := _lost_messages(context, plan):
        raise Blocked(
            f"{lost}: they were undone when the run that sent them became void",
            state="nothing was published",
            fix=f"plan the run again with --revise {plan.run_id}: it sends them again",
        )


def messages_not_sent_again(context: Context, runs: Iterable[str]) -> tuple[str, ...]:
    """Describe what runs whose rows readers get, or get again, lack at their sinks.

    A rollback to such a run sends nothing: what a message says is not kept, only the run's code
    knows it. Each text names the command that makes a run which sends it. Plans that were edited
    are left out: other checks name them.
    """
    found = []
    for run_id in runs:
        with suppress(Tampered):
            if lost := _lost_messages(context, context.runs.plan(run_id)):
                command = command_line("plan", "--revise", run_id)
                found.append(
                    f"{lost}, and a rollback sends none; `{command}` makes a run that does"
                )
    return tuple(found)


def messages_lost(context: Context, status: RunStatus) -> tuple[str, ...]:
    """Describe, in the same way, what a run lacks whose state says that readers get its rows."""
    is_seen = status.state in (RunState.PUBLISHED, RunState.PUBLISH_HALTED)
    return messages_not_sent_again(context, (status.run_id,) if is_seen else ())


def _lost_messages(context: Context, plan: Plan) -> str:
    """Describe the messages that were undone, or may have been; empty when all hold."""
    lost = [
        one["sink"]
        for one in _compensated(context, plan)
        if one["outcome"] in ("undone", "not undone") or _is_gone(context, one)
    ]
    names = ", ".join(sorted(set(lost)))
    return f"{len(lost)} messages of {plan.run_id} to {names} do not hold" if lost else ""


def has_sent(context: Context, plan: Plan) -> bool:
    """Return whether something that the run sent is undone once it is void."""
    return any(one["outcome"] in _MAY_HOLD for one in _compensated(context, plan))


def _compensated(context: Context, plan: Plan) -> list[dict[str, str]]:
    resolved = plan.resolved
    policies = {effective_policy(resolved.manifest, sink) for sink in resolved.contract.sinks}
    if "compensate" not in policies:
        return []
    messages = recorded_messages(context, plan.run_id)
    return [one for one in messages if one["policy"] == "compensate"]


def _is_gone(context: Context, message: Mapping[str, str]) -> bool:
    """Return whether a message that another run sent is not at the sink any more."""
    if message["outcome"] != "sent before":
        return False
    by = message["by"]
    is_void = context.runs.status(by).state in VOID_STATES
    return is_void or not any(
        (one["sink"], one["key"], one["outcome"]) == (message["sink"], message["key"], "sent")
        for one in recorded_messages(context, by)
    )


def pending_inverses(context: Context, run_id: str) -> tuple[str, ...]:
    """Return the messages of a void run whose inverse was not called, or failed."""
    if context.runs.status(run_id).state not in VOID_STATES:
        return ()
    try:
        plan = context.runs.plan(run_id)
    except Tampered:
        if recorded_messages(context, run_id):
            raise
        return ()  # A run that sent nothing has nothing to undo, whatever its plan says now.
    found = _to_undo(context, plan)
    return tuple(_describe(sink, message) for sink, message in found)


def _to_undo(context: Context, plan: Plan) -> list[tuple[Sink, Mapping[str, str]]]:
    resolved = plan.resolved
    sinks = {
        sink.name: sink
        for sink in resolved.contract.sinks
        if effective_policy(resolved.manifest, sink) == "compensate"
    }
    if not sinks:
        return []
    return [
        (sinks[message["sink"]], message)
        for message in recorded_messages(context, plan.run_id)
        if message["sink"] in sinks and message["outcome"] in _MAY_HOLD
    ]


def _describe(sink: Sink, message: Mapping[str, str]) -> str:
    return f"inverse of message {message['key']} to the sink {sink.name}"
