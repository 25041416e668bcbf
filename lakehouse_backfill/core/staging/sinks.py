"""Messages of job code to declared sinks: the policy of the run decides, each one is recorded."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.guards.outside.effect_log import (
    DeliveredMessages,
    Delivery,
    decide_delivery,
    is_held_over_runs,
    record_message,
    recorded_messages,
)
from lakehouse_backfill.core.guards.outside.sinks import effective_policy
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.guards.outside import Sink
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import (
    ConfigError,
    EnvironmentDown,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
)

#: More belong after the publication: each message is one commit of evidence or two.
MAX_MESSAGES = 200


class RunSinks:
    """The sinks of one run: a chunk that is staged sends; what only checks it sends nothing."""

    def __init__(self, context: Context, plan: Plan, epoch: int | None) -> None:
        """Set up; without an epoch nothing is sent or recorded."""
        self._context = context
        self._plan = plan
        self._epoch = epoch
        self._lock = threading.Lock()
        self._others = DeliveredMessages(context, plan.product, plan.run_id)

    def refusal(self, name: str) -> str:
        """Return why a message to the sink is refused; empty when its policy lets it pass."""
        sink = self._sink(name)
        if self._policy(sink) != "forbid":
            return ""
        return f"a message to the {sink.type} {name}, which this run forbids"

    def send(self, name: str, key: str, payload: Mapping[str, Any]) -> Any:
        """Act on a message as the policy says; return the answer of a mocked sink, else None.

        A message is recorded before it is sent, and its outcome afterwards; keys and contents are
        recorded as digests. What a run of the product has sent is not sent again. Raises
        EnvironmentDown when the sink does not accept it: the same message again is sent with the
        same idempotency key; OutcomeUnknown, and sends nothing, when an earlier attempt may have
        reached a sink that is not idempotent.
        """
        sink = self._sink(name)
        policy = self._policy(sink)
        message = {
            "sink": name,
            "type": sink.type,
            "policy": policy,
            "key": hashlib.sha256(key.encode()).hexdigest()[:16],
            "payload": digest(payload),
        }
        with self._lock:
            if self._epoch is not None:
                self._act(sink, message, key, payload)
        return self._answer(sink, key) if policy == "mock" else None

    def _sink(self, name: str) -> Sink:
        sinks = {sink.name: sink for sink in self._plan.resolved.contract.sinks}
        if name not in sinks:
            raise NotFound(
                f"the contract declares no sink {name}",
                state="nothing was sent",
                fix=f"its sinks are {', '.join(sinks) or 'none'}; declare it, and plan again",
            )
        return sinks[name]

    def _policy(self, sink: Sink) -> str:
        return effective_policy(self._plan.resolved.manifest, sink)

    def _own(self, message: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return what this run recorded under the message's key. Raises for other contents."""
        for one in recorded_messages(self._context, self._plan.run_id):
            if (one["sink"], one["key"]) != (message["sink"], message["key"]):
                continue
            if one["payload"] != message["payload"]:
                raise ConfigError(
                    f"the job sends two messages with one key to the sink {message['sink']}",
                    state="the second was not sent",
                    fix="make the key of what the message is about, and plan again",
                )
            return one
        return None

    def _act(
        self, sink: Sink, message: dict[str, str], key: str, payload: Mapping[str, Any]
    ) -> None:
        own = self._own(message)
        if message["policy"] == "mock":
            if own is None:
                self._record(message, "mocked")
            return
        delivery = self._begin(sink, message, own)
        if delivery.act == "refuse":
            self._refuse_unknown(sink, message, delivery)
        elif delivery.act == "send":
            self._deliver(sink, message, {"key": key, "payload": dict(payload)}, delivery)
        elif delivery.by:
            self._record({**message, "by": delivery.by}, "sent before")

    def _begin(
        self, sink: Sink, message: Mapping[str, str], own: Mapping[str, str] | None
    ) -> Delivery:
        """Decide what becomes of a message; record that it is being sent before it is.

        Other runs are looked at again after the record: of two runs that send at the same time, at
        least one sees the other.
        """
        begun, delivery = None, self._decide(sink, message, own)
        while delivery.act == "send" and delivery != begun:
            begun = delivery
            self._record(_keyed(message, delivery), "sending")
            delivery = self._decide(sink, message, own)
        return delivery

    def _decide(
        self, sink: Sink, message: Mapping[str, str], own: Mapping[str, str] | None
    ) -> Delivery:
        is_held = is_held_over_runs(message["policy"], sink)
        others = self._others.under_key(message) if is_held else ()
        # A sandbox is no receiver that acts: it may get a message twice.
        is_idempotent = sink.idempotent or message["policy"] == "sandbox"
        return decide_delivery(message, own, others, is_idempotent=is_idempotent)

    def _deliver(
        self, sink: Sink, message: dict[str, str], said: dict[str, Any], delivery: Delivery
    ) -> None:
        address = sink.sandbox if message["policy"] == "sandbox" else sink.webhook
        content = {
            "idempotency_key": said["key"], "sink": sink.name, "payload": said["payload"],
        }  # fmt: skip
        if delivery.has_own_key or message["policy"] == "compensate":
            # The receiver knows the key: of other contents, or of what was undone.
            content["idempotency_key"] = f"{said['key']}@{self._plan.run_id}"
        if message["policy"] == "compensate":
            content["message_id"] = effect_log.message_id(self._plan.run_id, message)
        outcome = effect_log.call_sink(self._context, sink, address, content)
        failed = "unknown" if outcome.may_have_arrived else "failed"
        self._record(_keyed(message, delivery), "sent" if outcome.is_ok else failed)
        if not outcome.is_ok:
            raise EnvironmentDown(
                f"the sink {sink.name} did not accept a message: {outcome.detail}",
                state="nothing was published; messages that it accepted are not sent again"
                + ("; whether this one arrived is unknown" if outcome.may_have_arrived else ""),
                fix=f"lakehouse-backfill run {self._plan.run_id}",
            )

    def _refuse_unknown(
        self, sink: Sink, message: Mapping[str, str], delivery: Delivery
    ) -> NoReturn:
        """Raise OutcomeUnknown: an earlier attempt may have reached a receiver that acts twice."""
        if delivery.by:
            self._record({**message, "by": delivery.by}, "not sent")
        else:
            self._record(_keyed(message, delivery), "unknown")
        raise OutcomeUnknown(
            f"{delivery.by or self._plan.run_id} began to send message {message['key']} to the "
            f"sink {sink.name}, and whether it arrived is unknown; the sink is not declared "
            "idempotent",
            state="it was not sent again; nothing was published",
            fix="look at the receiver. If it ignores a key that it knows, declare idempotent: "
            "true; if the message did not arrive, send it under another key in the job; if it did, "
            f"write safety.sinks: {{{sink.name}: mock}}; then plan again",
        )

    def _record(self, message: Mapping[str, str], outcome: str) -> None:
        known = recorded_messages(self._context, self._plan.run_id)
        is_known = any(
            (one["sink"], one["key"]) == (message["sink"], message["key"]) for one in known
        )
        if len(known) - is_known >= MAX_MESSAGES:
            raise LimitExceeded(
                f"the job sends more than {MAX_MESSAGES} messages",
                state="the message was not sent",
                fix="send them after the publication, by a hook of the contract",
            )
        timed = {**message, "at": self._context.clock.now().isoformat()}
        record_message(self._context, self._plan.run_id, timed, outcome, self._epoch or 0)

    def _answer(self, sink: Sink, key: str) -> Any:
        answers = json.loads(self._context.file_text(sink.answers or ""))
        if key not in answers:
            raise ConfigError(
                f"{sink.answers} has no answer for a message to the sink {sink.name}",
                state="nothing was sent",
                fix="add the answer under the message's key, and plan again",
            )
        return answers[key]


def _keyed(message: Mapping[str, str], delivery: Delivery) -> dict[str, str]:
    """Return the message with what its idempotency key names beside the job's key."""
    return {**message, "keyed_by": "run"} if delivery.has_own_key else dict(message)
