"""Whether a message reaches its sink once: what the runs of a product recorded decides.

A message is the same one if sink, key and contents are. It is not sent again where a run has sent
it, and not where nobody knows whether it arrived, unless the receiver ignores a key that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lakehouse_backfill.core.guards.outside.sinks import REACHING
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.lifecycle import OPEN_STATES
from lakehouse_backfill.core.runs.side_effects import messages_of
from lakehouse_backfill.domain.guards.outside import Sink
from lakehouse_backfill.domain.run import RunState, RunStatus

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
