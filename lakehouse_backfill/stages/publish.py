"""publish: reserve the version, swap the files in, move the pointer, say so."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from lakehouse_backfill.errors import (
    ApprovalMissing,
    Blocked,
    Unsupported,
)
from lakehouse_backfill.model.checks import Validation
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.publication import AdoptRequest, Publication, Swap
from lakehouse_backfill.model.run import Event, RunStatus, State
from lakehouse_backfill.rules import lifecycle, publications, roles
from lakehouse_backfill.stages.decide import VALIDATION
from lakehouse_backfill.stages.reserving import (
    REFUSALS,
    finalise,
    release,
    reserve,
    show_accepted,
    tags,
)
from lakehouse_backfill.stages.workbench import Workbench

PUBLICATION = "publication"


@dataclass(frozen=True)
class Published:
    """What became visible."""

    publication: Publication
    swap: Swap | None
    was_published: bool


def publish(bench: Workbench, run_id: str, by: str, **detail: str) -> Published:
    """Make the accepted result of a run what readers see; a second call changes nothing.

    `detail` is written beside the move to publishing.

    Order of side effects: run -> publishing; version reserved; files swapped in by one commit;
    pointer moved; view shown; evidence; run -> published. A conflict releases the version.
    Raises ApprovalMissing, NotAllowed, TargetChanged, PointerMoved, TooBusy, OutcomeUnknown.
    """
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    history = bench.versions.history(plan.product)
    visible = publications.visible(history, run_id)
    if status.state is State.PUBLISHED:
        if visible is not None:
            show_accepted(bench, plan.resolved.contract, visible)
            return Published(visible, None, was_published=True)
        # A rollback was cut off after it moved the pointer, before it told the run.
        status = bench.move(status, plan, "roll back", by, reason="its version is not accepted")
    events = bench.runs.events(run_id)
    lifecycle.require_legal(status, "begin publishing")
    digest = check_publishable(bench, plan, events, by)
    was_publishing = status.state is State.PUBLISHING
    status = bench.drive(status, plan, "begin publishing", by, **detail)
    if was_publishing and visible is not None:
        # It was cut off after the pointer moved, before the run's last event.
        _finish(bench, plan, status, visible, by)
        return Published(visible, None, was_published=True)
    wanted = draft(bench, plan, events, digest, by)
    return _publish(bench, plan, status, wanted.model_copy(update={"epoch": status.epoch}), by)


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


def _publish(
    bench: Workbench, plan: Plan, status: RunStatus, wanted: Publication, by: str
) -> Published:
    journal = bench.journal.bind(**plan.labels)
    try:
        is_pinned = plan.resolved.contract.publication == "pinned"
        base = plan.resolved.target if is_pinned else None
        reserved = reserve(bench, wanted, _head(bench, plan), base)
        with journal.span("publish", version=reserved.version, publication=reserved.token):
            swap = _expose(bench, plan, reserved)
    except REFUSALS as error:
        pending = bench.versions.pointer(plan.product).pending
        if pending is not None and pending.run_id == plan.run_id and pending.epoch <= wanted.epoch:
            release(bench, pending)
        bench.move(status, plan, "release", by, problem=error.problem)
        raise
    publication = finalise(bench, reserved, swap, "publish")
    _finish(bench, plan, status, publication, by)
    return Published(publication, swap, was_published=False)


def _finish(bench: Workbench, plan: Plan, status: RunStatus, row: Publication, by: str) -> None:
    """Show and record what the pointer says by now; a view that fails leaves nothing unfinished."""
    try:
        show_accepted(bench, plan.resolved.contract, row)
    finally:
        digest = bench.evidence.record(
            plan.run_id, PUBLICATION, row.model_dump(mode="json"), status.epoch
        )
        bench.move(
            status, plan, "finish publishing", by,
            version=row.version, token=row.token, digest=digest,
        )  # fmt: skip


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
                "lakehouse-backfill.epoch": str(reserved.epoch),
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
