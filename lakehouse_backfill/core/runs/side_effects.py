"""Attempts of job code to reach outside, as evidence of its run.

An attempt was stopped when it was made. It is recorded, also when the job's code went on, and the
run that made it is not published unless a person waives the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.errors import WriteForbidden

ATTEMPTS_EVIDENCE = "side effects"
MESSAGES_EVIDENCE = "messages to sinks"


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


def recorded_attempts(context: Context, run_id: str) -> tuple[dict[str, Any], ...]:
    """Return what the run's code tried the last time that it was stopped."""
    found = context.evidence.newest(run_id, ATTEMPTS_EVIDENCE)
    return tuple(found[1]["attempts"]) if found else ()


def recorded_messages(context: Context, run_id: str) -> tuple[dict[str, str], ...]:
    """Return the messages of the run's code to declared sinks, each with its last outcome."""
    found = context.evidence.newest(run_id, MESSAGES_EVIDENCE)
    return tuple(found[1]["messages"]) if found else ()


def effect_records(context: Context, run_id: str) -> dict[str, Any]:
    """Return attempts and messages for the evidence of a run; what it lacks is left out."""
    found = {
        "attempts": recorded_attempts(context, run_id),
        "messages": recorded_messages(context, run_id),
    }
    return {name: list(records) for name, records in found.items() if records}


def describe_attempts(attempts: Iterable[dict[str, Any]]) -> list[str]:
    """Return each attempt once, as a text: what, sink, file and line."""
    texts = (
        f"{one['what']} (sink: {one['sink']}) at {one['file']}:{one['line']}" for one in attempts
    )
    return list(dict.fromkeys(texts))
