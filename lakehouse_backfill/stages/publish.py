"""publish: reserve the version, swap the files in, move the pointer, say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lakehouse_backfill.errors import (
    ApprovalMissing,
    BackfillError,
    Blocked,
    Conflict,
    OutcomeUnknown,
    Unsupported,
)
from lakehouse_backfill.model.checks import Validation
from lakehouse_backfill.model.contract import Contract
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.publication import AdoptRequest, Pointer, Publication, Swap
from lakehouse_backfill.model.run import Event, RunStatus, State
from lakehouse_backfill.rules import lifecycle, publications, roles
from lakehouse_backfill.stages.decide import VALIDATION
from lakehouse_backfill.stages.workbench import Workbench

PUBLICATION = "publication"


@dataclass(frozen=True)
class Published:
    """What became visible."""

    publication: Publication
    swap: Swap | None
    was_published: bool


def publish(bench: Workbench, run_id: str, by: str) -> Published:
    """Make the accepted result of a run what readers see; a second call changes nothing.

    Order of side effects: run -> publishing; version reserved; files swapped in by one commit;
    pointer moved; run -> published; evidence. A conflict releases the version.
    Raises ApprovalMissing, NotAllowed, TargetChanged, PointerMoved, TooBusy, OutcomeUnknown.
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    pointer = bench.versions.pointer(plan.product)
    if status.state is State.PUBLISHED:
        return Published(_accepted_of(bench, plan), None, was_published=True)
    events = bench.runs.events(run_id)
    lifecycle.require_legal(status, "begin publishing")
    digest = check_publishable(bench, plan, events, by)
    publications.require_free(pointer, plan.product, run_id)
    bench.require_no_other_driver(status)
    status = bench.move(status, plan, "begin publishing", by, driver=bench.driver)
    finished = _finished_before(pointer, status, events)
    if finished is not None:
        show_accepted(bench, plan.resolved.contract, finished)
        _finish_run(bench, plan, status, finished, by)
        return Published(finished, None, was_published=True)
    return _publish(bench, plan, status, draft(bench, plan, events, digest, by), by)


def check_publishable(bench: Workbench, plan: Plan, events: tuple[Event, ...], by: str) -> str:
    """Check roles and decisions, and that the shadow is what was accepted; give the digest.

    Raises NotAllowed, ApprovalMissing, Blocked, Unsupported.
    """
    contract, mode = plan.resolved.contract, plan.resolved.manifest.target.publish_mode
    if plan.resolved.manifest.run.mode == "dry_run" or mode == "shadow_only":
        raise Blocked(f"{plan.run_id} can never be published: it is a {mode} run")
    if mode != ("pointer_swap" if contract.publication == "pinned" else "replace_partitions"):
        raise Unsupported(
            f"publish mode {mode} does not fit a product that is {contract.publication}",
            fix="replace_partitions for follow, pointer_swap for pinned products",
        )
    roles.require_role(contract, "publish", by)
    roles.require_decision(events, "approve", plan.manifest_hash, plan.run_id)
    found = bench.evidence.newest(plan.run_id, VALIDATION)
    if found is None:
        raise ApprovalMissing(f"{plan.run_id} was never validated")
    digest, document = found
    roles.require_decision(events, "accept", digest, plan.run_id)
    shadow = bench.tables.describe(plan.shadow_table)
    validated = Validation.model_validate(document).shadow_snapshot_id
    if shadow is None or shadow.snapshot_id != validated:
        raise ApprovalMissing(
            f"{plan.shadow_table} is not what was accepted: it changed after validation",
            state="nothing was published",
            fix=f"lakehouse-backfill validate {plan.run_id}, then accept it again",
        )
    return digest


def draft(
    bench: Workbench, plan: Plan, events: tuple[Event, ...], digest: str, by: str
) -> Publication:
    """Make the publication to reserve; version and superseded version are set when it is."""
    return Publication(
        product=plan.product,
        version=0,
        token=uuid4().hex,
        action="reserve",
        run_id=plan.run_id,
        table=plan.resolved.contract.table,
        snapshot_id=None,
        before_snapshot_id=None,
        scope=plan.resolved.scope,
        supersedes=None,
        at=bench.clock.now(),
        by=by,
        approved_by=roles.decisions(events, "approve", plan.manifest_hash),
        accepted_by=roles.decisions(events, "accept", digest),
        manifest_hash=plan.manifest_hash,
        result_digest=digest,
        reason=plan.resolved.manifest.run.reason,
    )


def reserve(bench: Workbench, wanted: Publication, head: int | None) -> Publication:
    """Reserve the next version, or take up the one that this run reserved before."""

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        publications.require_free(pointer, wanted.product, wanted.run_id)
        if pointer.pending is not None:
            return ()
        rows: tuple[Publication, ...] = ()
        if pointer.accepted is None:
            rows = (publications.baseline(wanted, head, wanted.scope, wanted.at),)
        current = pointer.accepted.version if pointer.accepted else 0
        version = pointer.last_version + 1
        return (*rows, wanted.model_copy(update={"version": version, "supersedes": current}))

    pending = bench.versions.move(wanted.product, decide).pending
    if pending is None:
        raise OutcomeUnknown(
            f"{wanted.product}: the reserved version is gone",
            state="nothing was published",
            fix=f"lakehouse-backfill publish {wanted.run_id}",
        )
    return pending


def finalise(bench: Workbench, reserved: Publication, swap: Swap, action: str) -> Publication:
    """Move the pointer to what was swapped in; the same again changes nothing."""
    row = reserved.model_copy(
        update={
            "action": action,
            "table": swap.table,
            "snapshot_id": swap.snapshot_id,
            "before_snapshot_id": swap.before_snapshot_id,
            "at": bench.clock.now(),
        }
    )

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        if pointer.accepted is not None and pointer.accepted.token == row.token:
            return ()
        return (row,)

    bench.versions.move(row.product, decide)
    return row


def show_accepted(bench: Workbench, contract: Contract, row: Publication) -> None:
    """Let the contract's view, if there is one, show what the pointer says."""
    if contract.view is not None:
        at = row.snapshot_id if contract.publication == "pinned" else None
        try:
            bench.views.show(contract.view, row.table, at)
        except BackfillError as error:
            error.state = f"version {row.version} is accepted; only {contract.view} shows less"
            raise


def release(bench: Workbench, reserved: Publication) -> None:
    """Give a reserved version back after a conflict; its number is not used again."""
    row = reserved.model_copy(update={"action": "release", "at": bench.clock.now()})

    def decide(pointer: Pointer) -> tuple[Publication, ...]:
        pending = pointer.pending
        return (row,) if pending is not None and pending.token == row.token else ()

    bench.versions.move(row.product, decide)


def _publish(
    bench: Workbench, plan: Plan, status: RunStatus, wanted: Publication, by: str
) -> Published:
    journal = bench.journal.bind(**plan.labels)
    try:
        reserved = reserve(bench, wanted, _head(bench, plan))
        with journal.span("publish", version=reserved.version, publication=reserved.token):
            swap = _expose(bench, plan, reserved)
    except (Conflict, Blocked, Unsupported) as error:
        pending = bench.versions.pointer(plan.product).pending
        if pending is not None and pending.run_id == plan.run_id:
            release(bench, pending)
        bench.move(status, plan, "release", by, problem=error.problem)
        raise
    publication = finalise(bench, reserved, swap, "publish")
    show_accepted(bench, plan.resolved.contract, publication)
    _finish_run(bench, plan, status, publication, by)
    return Published(publication, swap, was_published=False)


def _expose(bench: Workbench, plan: Plan, reserved: Publication) -> Swap:
    """Follow: adopt the files. Pinned: readers resolve the pointer, so nothing has to be done."""
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None:
        raise Blocked(f"shadow {plan.shadow_table} is gone", fix="stage the run again")
    if plan.resolved.contract.publication == "pinned":
        return _whole_table(bench, plan, shadow.snapshot_id, reserved)
    return bench.publisher.adopt(
        AdoptRequest(
            target=plan.resolved.target.table,
            base_snapshot_id=plan.resolved.target.snapshot_id,
            shadow=plan.shadow_table,
            shadow_snapshot_id=shadow.snapshot_id,
            chunk_ids=tuple(chunk.chunk_id for chunk in plan.resolved.chunks),
            scope=plan.resolved.scope,
            token=reserved.token,
            tags=tags(reserved),
            properties={
                "lakehouse-backfill.run-id": plan.run_id,
                "lakehouse-backfill.output-version": str(reserved.version),
                "lakehouse-backfill.manifest-hash": plan.manifest_hash,
                "lakehouse-backfill.result-digest": reserved.result_digest or "",
                **lineage_properties(plan),
            },
        )
    )


def lineage_properties(plan: Plan) -> dict[str, str]:
    """The lineage that every output snapshot carries in its summary (D3)."""
    manifest = plan.resolved.manifest
    inputs = [f"{pin.name}={pin.snapshot_id}" for pin in plan.resolved.sources]
    return {
        "lakehouse-backfill.transform": manifest.transform.name,
        "lakehouse-backfill.transform-version": manifest.transform.version,
        "lakehouse-backfill.processing-mode": manifest.run.mode,
        "lakehouse-backfill.input-snapshot-ids": ",".join(inputs),
        "lakehouse-backfill.restatement-reason": manifest.run.reason_code,
    }


def tags(row: Publication) -> dict[Any, str]:
    """The tags that keep both sides of a publication readable."""
    return {
        "before": f"lhb-before-{row.token[:12]}",
        "after": f"lhb-v{row.version}-{row.token[:12]}",
    }


def _whole_table(
    bench: Workbench, plan: Plan, snapshot_id: int | None, reserved: Publication
) -> Swap:
    if snapshot_id is None:
        raise Blocked(f"{plan.shadow_table} is empty; a pointer cannot lead to it")
    bench.pins.pin(plan.shadow_table, snapshot_id, tags(reserved)["after"])
    return Swap(
        table=plan.shadow_table,
        snapshot_id=snapshot_id,
        before_snapshot_id=plan.resolved.target.snapshot_id,
        files_added=0,
        files_removed=0,
        rows_added=0,
        rows_removed=0,
        attempts=1,
        seconds=0.0,
    )


def _head(bench: Workbench, plan: Plan) -> int | None:
    info = bench.tables.describe(plan.resolved.contract.table)
    return info.snapshot_id if info else None


def _finished_before(
    pointer: Pointer, status: RunStatus, events: tuple[Event, ...]
) -> Publication | None:
    """The pointer of a publication that was cut off right before the run's last event."""
    accepted = pointer.accepted
    was_publishing = events[-1].to_state is State.PUBLISHING
    if was_publishing and accepted is not None and accepted.run_id == status.run_id:
        return accepted if accepted.action == "publish" and pointer.pending is None else None
    return None


def _accepted_of(bench: Workbench, plan: Plan) -> Publication:
    for row in bench.versions.history(plan.product):
        if row.run_id == plan.run_id and row.action == "publish":
            return row
    raise OutcomeUnknown(f"{plan.run_id} is published, but no version names it")


def _finish_run(bench: Workbench, plan: Plan, status: RunStatus, row: Publication, by: str) -> None:
    document = row.model_dump(mode="json")
    digest = bench.evidence.record(plan.run_id, PUBLICATION, document)
    bench.move(
        status, plan, "finish publishing", by, version=row.version, token=row.token, digest=digest
    )
