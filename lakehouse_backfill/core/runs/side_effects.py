"""Attempts of job code to reach outside, as evidence of its run.

An attempt was stopped when it was made. It is recorded, also when the job's code went on, and the
run that made it is not published unless a person waives the gate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.errors import WriteForbidden

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
