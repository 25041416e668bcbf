"""Messages of job code to declared sinks: the policy of the run decides, each one is recorded."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.core.guards.outside import inverses
from lakehouse_backfill.core.guards.outside.sinks import effective_policy
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.side_effects import record_message, recorded_messages
from lakehouse_backfill.domain.guards.outside import Sink
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import ConfigError, EnvironmentDown, LimitExceeded, NotFound

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

    def refusal(self, name: str) -> str:
        """Return why a message to the sink is refused; empty when its policy lets it pass."""
        sink = self._sink(name)
        if self._policy(sink) != "forbid":
            return ""
        return f"a message to the {sink.type} {name}, which this run forbids"

    def send(self, name: str, key: str, payload: Mapping[str, Any]) -> Any:
        """Act on a message as the policy says; return the answer of a mocked sink, else None.

        A message is recorded before it is sent, and its outcome afterwards; keys and contents are
        recorded as digests. Raises EnvironmentDown when the sink does not accept it: the same
        message again is sent with the same idempotency key.
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
            if self._epoch is not None and self._is_new(message):
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

    def _is_new(self, message: Mapping[str, str]) -> bool:
        """Return whether the message was not accepted before, in this run."""
        for one in recorded_messages(self._context, self._plan.run_id):
            if (one["sink"], one["key"]) != (message["sink"], message["key"]):
                continue
            if one["payload"] != message["payload"]:
                raise ConfigError(
                    f"the job sends two messages with one key to the sink {message['sink']}",
                    state="the second was not sent",
                    fix="make the key of what the message is about, and plan again",
                )
            if one["outcome"] in ("sent", "mocked"):
                return False
        return True

    def _act(
        self, sink: Sink, message: dict[str, str], key: str, payload: Mapping[str, Any]
    ) -> None:
        if message["policy"] == "mock":
            self._record(message, "mocked")
            return
        self._record(message, "sending")
        address = sink.sandbox if message["policy"] == "sandbox" else sink.webhook
        content = {"idempotency_key": key, "sink": sink.name, "payload": dict(payload)}
        if message["policy"] == "compensate":
            # Another run may send it again after it was undone.
            content["idempotency_key"] = f"{key}@{self._plan.run_id}"
            content["message_id"] = inverses.message_id(self._plan.run_id, message)
        outcome = inverses.call_sink(self._context, sink, address, content)
        self._record(message, "sent" if outcome.is_ok else "failed")
        if not outcome.is_ok:
            raise EnvironmentDown(
                f"the sink {sink.name} did not accept a message: {outcome.detail}",
                state="nothing was published; messages that it accepted are not sent again",
                fix=f"lakehouse-backfill run {self._plan.run_id}",
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
        record_message(self._context, self._plan.run_id, message, outcome, self._epoch or 0)

    def _answer(self, sink: Sink, key: str) -> Any:
        answers = json.loads(self._context.file_text(sink.answers or ""))
        if key not in answers:
            raise ConfigError(
                f"{sink.answers} has no answer for a message to the sink {sink.name}",
                state="nothing was sent",
                fix="add the answer under the message's key, and plan again",
            )
        return answers[key]
