"""status, log, chunks, versions, evidence: where things stand; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.core.approval import waivers
from lakehouse_backfill.core.approval.decide import logged_validation_document
from lakehouse_backfill.core.approval.waive import FailedGate, failed_gates
from lakehouse_backfill.core.evidence.stages_attribution import ATTRIBUTION
from lakehouse_backfill.core.evidence.standing import SafetySummary, summarise_safety
from lakehouse_backfill.core.planning import external
from lakehouse_backfill.core.planning.keeping_code import archived_code
from lakehouse_backfill.core.publication.landing import PUBLICATION
from lakehouse_backfill.core.publication.progressive import ROLLOUT_STEPS
from lakehouse_backfill.core.publication.stages_dual_read import reader_records
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.staging.chunk_checks import CHUNK_CHECKS
from lakehouse_backfill.core.staging.input_checks import INPUT_CHECKS
from lakehouse_backfill.core.versions import publications, rollout
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event, RunState, RunStatus
from lakehouse_backfill.errors import NotFound, Tampered

WAITING_FOR_PEOPLE = (
    "planned", "validated", "accepted", "rejected", "halted", "publish_halted", "failed",
)  # fmt: skip

#: States after which people plan the same file again: only then is the plan read for its name.
REPLANNED_STATES = (RunState.HALTED, RunState.REJECTED, RunState.CANCELLED)
#: States in which somebody has to write the shadow: only then is the plan read for who that is.
EXTERNAL_WRITE_STATES = (RunState.APPROVED, RunState.PAUSED, RunState.FAILED, RunState.HALTED)


def list_runs(bench: Context, *, everything: bool) -> list[RunStatus]:
    """List runs, those that wait for a person first, then the newest."""
    found = bench.runs.list(open_only=not everything)
    newest = sorted(found, key=lambda item: item.at, reverse=True)
    return sorted(newest, key=lambda item: item.state.value not in WAITING_FOR_PEOPLE)


def summarise_run_safety(
    bench: Context, status: RunStatus, *, was_empty: bool = False
) -> SafetySummary:
    """Say whether data is safe, what readers see, what to type next.

    `was_empty`: its partitions had no rows before.
    """
    gone: tuple[str, ...] = ()
    version = 0
    if status.state is RunState.PUBLISHED:
        history = bench.versions.history(status.product)
        version, gone = publications.rolled_back_since(history, status.run_id)
    found = summarise_safety(
        status.state, status.run_id, status.product, gone=gone, version=version,
        driver=status.driver, is_driven=bench.is_driven(status),
        manifest_file=_manifest_file(bench, status), was_empty=was_empty,
        is_external=_is_external(bench, status),
    )  # fmt: skip
    if status.state is RunState.PUBLISH_HALTED:
        with suppress(NotFound, Tampered):
            said = rollout.describe_visible_partitions(
                bench.versions.history(status.product), bench.runs.plan(status.run_id)
            )
            return replace(found, readers_see=said)
    return found


def rollout_records(
    bench: Context, run_id: str, events: tuple[Event, ...]
) -> dict[str, list[dict[str, Any]]]:
    """Say what readers compared, and which steps were published; nothing where nothing is."""
    with suppress(NotFound, Tampered):
        plan = bench.runs.plan(run_id)
        known = bench.evidence.newest(run_id, ROLLOUT_STEPS) if rollout.is_stepwise(plan) else None
        found = {
            "dual_reads": reader_records(bench, plan, events),
            "steps": list(known[1]["steps"]) if known else [],
        }
        return {name: lines for name, lines in found.items() if lines}
    return {}


def run_has_no_old_rows(bench: Context, events: tuple[Event, ...], run_id: str) -> bool:
    """Tell the same of a run; an edited validation tells nothing, and says so elsewhere."""
    with suppress(Tampered):
        found = logged_validation_document(bench, events, run_id)
        return has_no_old_rows(found and found[1])
    return False


def has_no_old_rows(validation: Mapping[str, Any] | None) -> bool:
    """Tell whether a run that was validated brings the first rows of its partitions."""
    return validation is not None and not validation["diff"]["summary"]["old_rows"]


def _manifest_file(bench: Context, status: RunStatus) -> str:
    """Name the file to plan again; a plan that was edited is no reason to say nothing at all."""
    if status.state in REPLANNED_STATES:
        with suppress(NotFound, Tampered):
            return bench.runs.plan(status.run_id).manifest_file
    return commands.MANIFEST_PLACEHOLDER


def _is_external(bench: Context, status: RunStatus) -> bool:
    """Tell whether another engine writes the shadow, where that changes what to do next."""
    if status.state in EXTERNAL_WRITE_STATES:
        with suppress(NotFound, Tampered):
            return external.is_externally_written(bench.runs.plan(status.run_id))
    return False


def approval_records(
    events: tuple[Event, ...], plan: Plan, digest: str | None
) -> list[dict[str, Any]]:
    """List the decisions that still stand, each with what it is bound to."""
    bound = {"approve": plan.manifest_hash, "accept": digest or ""}
    return [
        {
            "decision": decision,
            "by": ", ".join(roles.event_deciders(event)),
            "at": event.at.isoformat(),
            "bound_to": event.detail["bound_to"],
            "reason": event.detail.get("reason", ""),
        }
        for event in events
        for decision, subject in bound.items()
        if event.verb in (decision, roles.CARRIED_DECISION_VERBS[decision])
        and event.detail.get("bound_to") == subject
        and set(roles.event_deciders(event))
        <= set(roles.decision_makers(events, decision, subject))
    ]


def waiver_records(events: tuple[Event, ...]) -> list[dict[str, Any]]:
    """List the waivers that still stand, each with the exact content that it is bound to."""
    return [
        {
            "gate": waiver.gate,
            "group": waiver.group,
            "scope": waiver.judged.scope,
            "bound_to": waiver.judged.bound_to,
            "by": waiver.by,
            "at": waiver.at,
            "observed": waiver.observed,
            "reason": waiver.reason,
        }
        for waiver in waivers.waivers_in_force(events)
    ]


def stopping_gates(bench: Context, status: RunStatus) -> tuple[FailedGate, ...]:
    """List the gates that keep the run where it is; none when it is not a gate that does."""
    if status.state not in (RunState.HALTED, RunState.REJECTED):
        return ()
    return failed_gates(bench, status.run_id)


def accepted_versions(bench: Context, product: str) -> list[Publication]:
    """The accepted versions of a product, newest first; raises NotFound when there is none."""
    rows = [
        row
        for row in bench.versions.history(product)
        if row.action in publications.ACCEPTED_ACTIONS
    ]
    if not rows:
        raise NotFound(
            f"{product} has no accepted version yet",
            fix="lakehouse-backfill status, to see what waits for publication",
        )
    return rows


def evidence_document(bench: Context, run_id: str) -> dict[str, Any]:
    """Gather everything that shows why a run was (or was not) accepted, as one document."""
    plan, status = bench.runs.plan(run_id), bench.runs.status(run_id)
    events = bench.runs.events(run_id)
    validation = logged_validation_document(bench, events, run_id)
    chunk_checks = bench.evidence.newest(run_id, CHUNK_CHECKS)
    inputs = bench.evidence.newest(run_id, INPUT_CHECKS)
    publication = bench.evidence.newest(run_id, PUBLICATION)
    verified = publication[1].pop("verified", None) if publication else None
    attribution = bench.evidence.newest(run_id, ATTRIBUTION)
    digest = validation[0] if validation else None
    return {
        "run": status.model_dump(mode="json"),
        "standing": vars(
            summarise_run_safety(
                bench, status, was_empty=has_no_old_rows(validation and validation[1])
            )
        ),
        "plan": plan.model_dump(mode="json"),
        "scope": partitions.describe_labels(plan.resolved.scope.partitions),
        "events": [event.model_dump(mode="json") for event in events],
        "approvals": approval_records(events, plan, digest),
        "chunks": [chunk.model_dump(mode="json") for chunk in bench.ledger.chunks(run_id)],
        "input_checks": inputs[1]["checks"] if inputs else [],
        "chunk_checks": chunk_checks[1]["chunks"] if chunk_checks else [],
        "waivers": waiver_records(events),
        **rollout_records(bench, run_id, events),
        "attribution": attribution[1] if attribution else None,
        "validation": validation[1] if validation else None,
        "validation_digest": digest,
        "publication": publication[1] if publication else None,
        "published_rows": verified,
        "code": archived_code(bench, run_id),
    }
