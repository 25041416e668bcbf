"""Which failed gates somebody in the role let pass, and for exactly what (Q8).

A waiver is bound to what was judged: an input gate to the manifest hash, which names the pinned
snapshots; a chunk gate to the chunk's checksum; a result gate to the digest of the validation.
Another input, chunk or result needs another waiver. A rejection takes back every waiver before it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple

from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.run import ChunkRecord, Event

INPUT_SCOPE, RESULT_SCOPE = "input", "result"
#: Verbs with which checks stop a run.
STOP_VERBS = ("halt", "fail validation")


class WaiverSubject(NamedTuple):
    """What checks were about: its name (`input`, a chunk's id, `result`), and its exact content."""

    scope: str
    bound_to: str


class Waiver(NamedTuple):
    """One failed gate that may be passed, once, by whom and why."""

    gate: str
    group: str
    judged: WaiverSubject
    by: str
    at: str
    observed: Any
    reason: str


def chunk_subject(record: ChunkRecord) -> WaiverSubject:
    """Name a staged chunk and its content."""
    return WaiverSubject(record.chunk_id, f"{record.chunk_id}@{record.checksum}")


def waivers_in_force(events: Iterable[Event]) -> tuple[Waiver, ...]:
    """List the waivers that no rejection took back since, oldest first."""
    found: list[Waiver] = []
    for event in sorted(events, key=lambda event: event.seq):
        if event.verb == "reject":
            found.clear()
        elif event.verb == "waive":
            said = event.detail
            found.append(
                Waiver(
                    gate=said["gate"],
                    group=said["group"],
                    judged=WaiverSubject(said["scope"], said["bound_to"]),
                    by=event.actor,
                    at=event.at.isoformat(),
                    observed=said.get("observed"),
                    reason=said.get("reason", ""),
                )
            )
    return tuple(found)


def find_waiver(
    check: CheckResult, judged: WaiverSubject, waivers: Iterable[Waiver]
) -> Waiver | None:
    """Give the waiver that lets a check pass: of this gate, and on exactly this content."""
    if not check.waivable:
        return None
    wanted = (check.name, check.group, judged)
    return next((one for one in waivers if (one.gate, one.group, one.judged) == wanted), None)


def failed_blocking_checks(checks: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Keep the blocking checks that did not pass."""
    return tuple(check for check in checks if check.blocking and not check.passed)


def unwaived_failures(
    checks: Iterable[CheckResult], judged: WaiverSubject, waivers: Iterable[Waiver]
) -> tuple[CheckResult, ...]:
    """Keep the blocking checks that neither passed nor were waived."""
    waivers = tuple(waivers)
    return tuple(
        one for one in failed_blocking_checks(checks) if find_waiver(one, judged, waivers) is None
    )


def stopping_event(events: Iterable[Event]) -> Event | None:
    """Give the event with which checks stopped the run, if nothing moved it since.

    A person's rejection is no such stop: waivers do not undo it.
    """
    moves = [event for event in events if event.verb not in lifecycle.NOTES]
    last = max(moves, key=lambda event: event.seq, default=None)
    return last if last is not None and last.verb in STOP_VERBS else None


def stop_detail(
    judged: WaiverSubject, digest: str, closed: Iterable[CheckResult]
) -> dict[str, Any]:
    """Say in the run's log which gates stopped it; `digest` names the document with the checks."""
    said: dict[str, Any] = {
        "scope": judged.scope,
        "bound_to": judged.bound_to,
        "digest": digest,
        "failed": [check.name for check in closed],
    }
    return (
        said if judged.scope in (INPUT_SCOPE, RESULT_SCOPE) else said | {"chunk_id": judged.scope}
    )


def waive_command(run_id: str, gate: str) -> str:
    """Give what people type to waive a gate."""
    return f"lakehouse-backfill waive {run_id} {shlex.quote(gate)} --by WHO --reason TEXT"


def waive_instructions(run_id: str, closed: Iterable[CheckResult]) -> str:
    """Give the command for the first gate that may be waived, and what lists the others."""
    found = [check.name for check in closed if check.waivable]
    if not found:
        return "none of these gates may be waived"
    more = f" (all: lakehouse-backfill waive {run_id} --list)" if len(found) > 1 else ""
    return f"{waive_command(run_id, found[0])}{more}, then lakehouse-backfill run {run_id}"
