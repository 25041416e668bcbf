"""What a run did outside, as its evidence: attempts of job code, and messages to sinks.

An attempt was stopped when it was made. It is recorded, also when the job's code went on, and the
run that made it is not published unless a person waives the gate.

A message is the same one if sink, key and contents are. It is not sent again where a run has sent
it, and not where nobody knows whether it arrived, unless the receiver ignores a key that it knows.
What a run sent under the policy `compensate` is undone when the run is void.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.guards.outside.sinks import REACHING, effective_policy
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.lifecycle import OPEN_STATES
from lakehouse_backfill.domain.guards.outside import Hook, HookCall, Sink
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.errors import Blocked, Tampered, WriteForbidden

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


ATTEMPTS_EVIDENCE = "side effects"
MESSAGES_EVIDENCE = "messages to sinks"
#: Computations that only look at a run; their attempts are evidence of their own.
Check = Literal["attribution", "reproduction"]


@contextmanager
def record_attempts(context: Context, run_id: str, epoch: int) -> Iterator[None]:
    """Store the attempts that an error of the block names, under the run; the error goes on."""
    try:
        yield
    except WriteForbidden as error:
        if attempts := error.data.get("attempts"):
            document = {"attempts": attempts}
            context.evidence.record(run_id, ATTEMPTS_EVIDENCE, document, epoch)
        raise


@contextmanager
def record_attempts_of_check(
    context: Context, run_id: str, check: Check, epoch: int
) -> Iterator[None]:
    """Store the attempts of code that a check of a run executes, with those of earlier checks.

    Such code may be that of an earlier run; attempts name their file and line.
    """
    try:
        yield
    except WriteForbidden as error:
        if attempts := error.data.get("attempts"):
            known = _attempts_of_check(context, run_id, check)
            new = [{**one, "during": check} for one in attempts]
            document = {"attempts": [*known, *(one for one in new if one not in known)]}
            context.evidence.record(run_id, f"{ATTEMPTS_EVIDENCE} of {check}", document, epoch)
        raise


def recorded_attempts(context: Context, run_id: str) -> tuple[dict[str, Any], ...]:
    """Return what the run's code tried the last time that it was stopped, staged or reproduced."""
    found = context.evidence.newest(run_id, ATTEMPTS_EVIDENCE)
    staged = tuple(found[1]["attempts"]) if found else ()
    return (*staged, *_attempts_of_check(context, run_id, "reproduction"))


def all_recorded_attempts(context: Context, run_id: str) -> tuple[dict[str, Any], ...]:
    """Return also what code tried that attribution executed, as it does that of earlier runs."""
    own = recorded_attempts(context, run_id)
    return (*own, *_attempts_of_check(context, run_id, "attribution"))


def _attempts_of_check(context: Context, run_id: str, check: Check) -> list[dict[str, Any]]:
    found = context.evidence.newest(run_id, f"{ATTEMPTS_EVIDENCE} of {check}")
    return list(found[1]["attempts"]) if found else []


def recorded_messages(context: Context, run_id: str) -> tuple[dict[str, str], ...]:
    """Return the messages of the run's code to declared sinks, each with its last outcome."""
    found = context.evidence.newest(run_id, MESSAGES_EVIDENCE)
    return tuple(found[1]["messages"]) if found else ()


def messages_of(
    context: Context, run_ids: Collection[str]
) -> dict[str, tuple[dict[str, str], ...]]:
    """Return the messages of several runs, by run; runs without any are left out."""
    found = context.evidence.newest_of(run_ids, MESSAGES_EVIDENCE)
    return {run_id: tuple(document["messages"]) for run_id, document in found.items()}


def record_message(
    context: Context, run_id: str, message: Mapping[str, str], outcome: str, epoch: int
) -> None:
    """Store the last outcome of a message; sink and key tell messages apart."""
    others = [
        one
        for one in recorded_messages(context, run_id)
        if (one["sink"], one["key"]) != (message["sink"], message["key"])
    ]
    document = {"messages": [*others, {**message, "outcome": outcome}]}
    context.evidence.record(run_id, MESSAGES_EVIDENCE, document, epoch)


def effect_records(context: Context, run_id: str) -> dict[str, Any]:
    """Return attempts and messages for the evidence of a run; what it lacks is left out."""
    found = {
        "attempts": all_recorded_attempts(context, run_id),
        "messages": recorded_messages(context, run_id),
    }
    return {name: list(records) for name, records in found.items() if records}


def describe_attempts(attempts: Iterable[dict[str, Any]]) -> list[str]:
    """Return each attempt once, as a text: what, sink, file and line."""
    texts = (
        f"{one['what']} (sink: {one['sink']}) at {one['file']}:{one['line']}"
        + (f", during {one['during']}" if one.get("during") else "")
        for one in attempts
    )
    return list(dict.fromkeys(texts))


Message = Mapping[str, str]
#: Outcomes of which a process, or an answer, left nothing but a beginning.
UNKNOWN_OUTCOMES = ("sending", "unknown")
#: Outcomes after which the same run does not send the message again.
_FINAL_OUTCOMES = ("sent", "mocked")


@dataclass(frozen=True)
class Delivery:
    """What becomes of a message, and because of which run."""

    act: Literal["send", "skip", "refuse"]
    #: Another run that sent the message, or may have sent it.
    by: str = ""
    #: Whether the idempotency key names the run: another run sent other contents under the key.
    has_own_key: bool = False


def is_held_over_runs(policy: str, sink: Sink) -> bool:
    """Return whether a message that another run sent is not sent again under the policy."""
    return policy in ("dedupe", "compensate") or (policy == "allow" and sink.idempotent)


def decide_delivery(
    message: Message,
    own: Message | None,
    others: Iterable[tuple[str, Message]],
    *,
    is_idempotent: bool,
) -> Delivery:
    """Return what becomes of a message after what this run, and others, recorded under its key.

    `others` hold what may be at the sink, by run. The newest of them counts: contents that were
    sent, changed and changed back are sent again.
    """
    if own is not None and own["outcome"] in _FINAL_OUTCOMES:
        return Delivery("skip")
    by, other = max(others, key=lambda one: one[1].get("at", ""), default=("", None))
    is_same = other is not None and other["payload"] == message["payload"]
    is_known = other is not None and other["outcome"] not in UNKNOWN_OUTCOMES
    if is_same and is_known:
        return Delivery("skip", by)
    if own is not None and own["outcome"] in UNKNOWN_OUTCOMES:
        act: Literal["send", "refuse"] = "send" if is_idempotent else "refuse"
        return Delivery(act, has_own_key=own.get("keyed_by") == "run")
    if other is None:
        return Delivery("send")
    if not is_same:
        return Delivery("send", by, has_own_key=True)
    # Only under the very key of the other run does the receiver know the message.
    has_same_key = message["policy"] != "compensate" and other.get("keyed_by") != "run"
    return Delivery("send" if is_idempotent and has_same_key else "refuse", by)


class DeliveredMessages:
    """What other runs of a product have at its sinks; runs that have ended are read once."""

    def __init__(self, context: Context, product: str, run_id: str) -> None:
        """Look at the runs of `product`, except `run_id`."""
        self._context = context
        self._product = product
        self._run_id = run_id
        self._ended: dict[str, tuple[Message, ...]] = {}

    def under_key(self, message: Message) -> tuple[tuple[str, Message], ...]:
        """Return, by run, what is or may be at the message's sink under its key."""
        runs = [
            run
            for run in self._context.runs.list(open_only=False)
            if run.product == self._product and run.run_id != self._run_id
        ]
        unread = {run.run_id for run in runs} - set(self._ended)
        found = {**self._ended, **messages_of(self._context, unread)}
        self._ended |= {
            run.run_id: found.get(run.run_id, ()) for run in runs if run.state not in OPEN_STATES
        }
        return tuple(
            (run.run_id, one)
            for run in runs
            for one in found.get(run.run_id, ())
            if (one["sink"], one["key"]) == (message["sink"], message["key"])
            and _may_be_there(one, run)
        )


def _may_be_there(message: Message, run: RunStatus) -> bool:
    """Return whether a message of a run is, or may be, at its sink, and stays there.

    What is undone when its run becomes void counts from the run's publication on: a run that relied
    on it before would lose its message.
    """
    if message["policy"] == "compensate":
        return message["outcome"] == "sent" and run.state is RunState.PUBLISHED
    return message["policy"] in REACHING and message["outcome"] in ("sent", *UNKNOWN_OUTCOMES)
