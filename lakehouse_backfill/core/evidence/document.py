"""The evidence document of a run, and the records that it is made of; nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lakehouse_backfill.core.approval import decisions, signatures
from lakehouse_backfill.core.evidence.status import summarise_run_safety
from lakehouse_backfill.core.guards.outside import effect_log
from lakehouse_backfill.core.publication.dual_read import reader_records
from lakehouse_backfill.core.runs import event_log, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.notes import run_notes
from lakehouse_backfill.core.versions import steps
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.identity.statement import SIGNATURE
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.errors import NotFound, Tampered


def _archived(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out that a decision is not signed: archives of older releases do not mention it."""
    return [
        {name: each for name, each in record.items() if each != signatures.UNSIGNED}
        for record in records
    ]


def evidence_document(context: Context, run_id: str) -> dict[str, Any]:
    """Build the document of everything that shows why a run was, or was not, accepted."""
    # `status` of a run shows its records alone, and loads nothing that stages or publishes.
    from lakehouse_backfill.core.evidence.attribution import ATTRIBUTION
    from lakehouse_backfill.core.planning.job_code import archived_code
    from lakehouse_backfill.core.publication.publication import PUBLICATION
    from lakehouse_backfill.core.staging.checks import INPUT_CHECKS, stored_verdicts

    plan, status = context.runs.plan(run_id), context.runs.status(run_id)
    events = context.runs.events(run_id)
    found = decisions.logged_validation_document(context, events, run_id)
    digest, validation = found or (None, None)
    publication = _newest(context, run_id, PUBLICATION)
    verified = publication.pop("verified", None)
    safety = summarise_run_safety(context, status, was_empty=has_no_old_rows(validation), look=True)
    return {
        "run": status.model_dump(mode="json"),
        "standing": vars(safety),
        "plan": plan.model_dump(mode="json"),
        "scope": partitions.describe_labels(plan.resolved.scope.partitions),
        "events": [event.model_dump(mode="json") for event in events],
        "approvals": _archived(approval_records(events, plan, digest)),
        "chunks": [chunk.model_dump(mode="json") for chunk in context.runs.chunks(run_id)],
        "input_checks": _newest(context, run_id, INPUT_CHECKS).get("checks", []),
        "chunk_checks": stored_verdicts(context, run_id),
        "waivers": _archived(waiver_records(events)),
        **rollout_records(context, run_id, events),
        **effect_log.effect_records(context, run_id),
        "attribution": _newest(context, run_id, ATTRIBUTION) or None,
        "validation": validation,
        "validation_digest": digest,
        "publication": publication or None,
        "published_rows": verified,
        "code": archived_code(context, run_id),
    }


def approval_records(
    events: tuple[Event, ...], plan: Plan, digest: str | None
) -> list[dict[str, Any]]:
    """List the decisions in force, each with the digest that it is bound to."""
    subjects = {"approve": plan.manifest_hash, "accept": digest or ""}
    return [
        {
            "decision": decision,
            "by": ", ".join(roles.event_deciders(event)),
            "at": event.at.isoformat(),
            "bound_to": event.detail["bound_to"],
            "reason": event.detail.get("reason", ""),
            "signature": signatures.describe_stored(event.detail.get(SIGNATURE)),
        }
        for event in events
        for decision, subject in subjects.items()
        if event.verb in (decision, roles.CARRIED_DECISION_VERBS[decision])
        and event.detail.get("bound_to") == subject
        and set(roles.event_deciders(event))
        <= set(roles.decision_makers(events, decision, subject))
    ]


def decision_records(events: tuple[Event, ...]) -> list[dict[str, Any]]:
    """List the decisions in force by the log alone, each with what is stored of its signature."""
    ends = [event for event in events if event.verb in ("pass validation", "fail validation")]
    hashes = [event.detail.get("manifest_hash") for event in events if event.verb == "plan"]
    subjects = {
        "approve": hashes[0] if hashes else None,
        "accept": ends[-1].detail.get("digest") if ends else None,
    }
    return [
        {
            "decision": decision,
            "by": ", ".join(roles.event_deciders(event)),
            "at": event.at.isoformat(),
            "signature": signatures.describe_stored(event.detail.get(SIGNATURE)),
        }
        for event in event_log.events_since_rejection(events)
        for decision, subject in subjects.items()
        if event.verb in (decision, roles.CARRIED_DECISION_VERBS[decision])
        and event.detail.get("bound_to") == subject
    ]


def waiver_records(events: tuple[Event, ...]) -> list[dict[str, Any]]:
    """List the waivers in force, each with the exact content that it is bound to."""
    return [
        {
            "gate": waiver.gate,
            "group": waiver.group,
            "scope": waiver.subject.scope,
            "bound_to": waiver.subject.bound_to,
            "by": waiver.by,
            "at": waiver.at,
            "observed": waiver.observed,
            "reason": waiver.reason,
            "signature": signatures.describe_stored(waiver.signature),
        }
        for waiver in decisions.waivers_in_force(events)
    ]


def note_texts(events: tuple[Event, ...]) -> tuple[str, ...]:
    """Return the notes on a run, each with who wrote it and when."""
    return tuple(f"{one.text} ({one.by}, {one.at:%Y-%m-%d})" for one in run_notes(events))


def rollout_records(
    context: Context, run_id: str, events: tuple[Event, ...]
) -> dict[str, list[dict[str, Any]]]:
    """Return the dual reads and the published steps of a run; lists that are empty are omitted.

    Empty when the plan, a record or the shadow is missing or was edited; `verify` reports that.
    """
    with suppress(NotFound, Tampered):
        plan, recorded = context.runs.plan(run_id), dict[str, Any]()
        if steps.is_stepwise(plan):
            from lakehouse_backfill.core.publication.progressive import ROLLOUT_STEPS

            recorded = _newest(context, run_id, ROLLOUT_STEPS)
        records = {
            "dual_reads": reader_records(context, plan, events),
            "steps": list(recorded.get("steps", ())),
        }
        return {name: lines for name, lines in records.items() if lines}
    return {}


def _newest(context: Context, run_id: str, kind: str) -> dict[str, Any]:
    """Return the newest document of a kind of evidence; empty when there is none."""
    found = context.evidence.newest(run_id, kind)
    return found[1] if found else {}


def run_has_no_old_rows(context: Context, events: tuple[Event, ...], run_id: str) -> bool:
    """Return whether a run brings the first rows of its partitions.

    False when its validation was edited; `verify` reports that.
    """
    with suppress(Tampered):
        validation = decisions.logged_validation_document(context, events, run_id)
        return has_no_old_rows(validation and validation[1])
    return False


def has_no_old_rows(validation: Mapping[str, Any] | None) -> bool:
    """Return whether a validated run brings the first rows of its partitions."""
    return validation is not None and not validation["diff"]["summary"]["old_rows"]


def stopping_gates(context: Context, status: RunStatus) -> tuple[decisions.FailedGate, ...]:
    """List the gates that stop the run; empty unless it is halted or rejected."""
    if status.state not in (RunState.HALTED, RunState.REJECTED):
        return ()
    return decisions.failed_gates(context, status.run_id)
