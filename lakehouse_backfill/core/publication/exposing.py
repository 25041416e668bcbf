"""Making an accepted result what readers see, by the publish mode of its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lakehouse_backfill.core.planning import catching_up, external, modes
from lakehouse_backfill.core.publication.corrections import write_correction_events
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.core.versions import corrections
from lakehouse_backfill.core.versions.reserving import publication_tags
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import AdoptRequest, CommitResult, Publication
from lakehouse_backfill.errors import Blocked

#: In the summary of what was published: the digest of the archive of what was accepted.
EVIDENCE_DIGEST_PROPERTY = "lakehouse-backfill.evidence-digest"


@dataclass(frozen=True)
class AcceptedResult:
    """The result that was accepted: its digest, and the shadow's snapshot that was judged."""

    digest: str
    shadow_snapshot_id: int | None


def expose_result(
    bench: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Do what the run's publish mode does before the pointer moves; once per publication token.

    Of the snapshot that was judged: what was written to the shadow since is not accepted.
    """
    return _EXPOSE_BY_MODE[plan.resolved.manifest.target.publish_mode](
        bench, plan, reserved, accepted
    )


def _adopt_shadow(
    bench: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Swap the shadow's files into the target."""
    properties = {
        "lakehouse-backfill.run-id": plan.run_id,
        "lakehouse-backfill.output-version": str(reserved.version),
        "lakehouse-backfill.manifest-hash": plan.manifest_hash,
        "lakehouse-backfill.result-digest": reserved.result_digest or "",
        **evidence_digest_property(reserved),
        "lakehouse-backfill.epoch": str(reserved.epoch),
        **lineage_properties(plan),
    }
    shadow_snapshot_id = accepted.shadow_snapshot_id
    request = adopt_request(
        plan, shadow_snapshot_id, reserved.token, publication_tags(reserved), properties
    )
    return bench.publisher.adopt(narrow_to_reserved(request, reserved))


def evidence_digest_property(reserved: Publication) -> dict[str, str]:
    """Anchor the archive of what was accepted in what the publication writes."""
    digest = reserved.evidence_digest
    return {EVIDENCE_DIGEST_PROPERTY: digest} if digest else {}


def narrow_to_reserved(request: AdoptRequest, reserved: Publication) -> AdoptRequest:
    """Take only the partitions that were reserved: one step of a run may be a part of it."""
    if reserved.scope is None or reserved.scope == request.scope:
        return request
    return request.model_copy(update={"scope": reserved.scope, "within": request.scope})


def adopt_request(
    plan: Plan,
    shadow_snapshot_id: int | None,
    token: str,
    tags: dict[Literal["before", "after"], str],
    properties: dict[str, str],
) -> AdoptRequest:
    """Ask for the run's partitions of the shadow, in place of the target's."""
    # Another engine knows nothing of chunks: what it wrote was measured when the shadow was closed.
    chunks = () if external.is_externally_written(plan) else plan.resolved.chunks
    return AdoptRequest(
        target=plan.resolved.target.table,
        base_snapshot_id=plan.resolved.target.snapshot_id,
        shadow=plan.shadow_table,
        shadow_snapshot_id=shadow_snapshot_id,
        chunk_ids=tuple(chunk.chunk_id for chunk in chunks),
        scope=plan.resolved.scope,
        token=token,
        tags=tags,
        properties=properties,
        is_frozen=plan.resolved.manifest.safety.freeze,
        operation="append" if modes.is_append(plan) else "overwrite",
        schema_change=rules_schema_change.declared_schema_change(plan),
        base_schema_id=plan.resolved.target.schema_id,
    )


def lineage_properties(plan: Plan) -> dict[str, str]:
    """The lineage that every output snapshot carries in its summary (D3)."""
    manifest = plan.resolved.manifest
    inputs = [f"{pin.name}={pin.snapshot_id}" for pin in plan.resolved.sources]
    # Chunks that were taken over were computed from earlier ones.
    older = {run for run in catching_up.origin_run_ids(plan) if run != plan.run_id}
    carried = {"lakehouse-backfill.carried-from": ",".join(sorted(older))} if older else {}
    return {
        "lakehouse-backfill.transform": manifest.transform.name,
        "lakehouse-backfill.transform-version": manifest.transform.version,
        "lakehouse-backfill.processing-mode": manifest.run.mode,
        "lakehouse-backfill.input-snapshot-ids": ",".join(inputs),
        "lakehouse-backfill.restatement-reason": manifest.run.reason_code,
        **carried,
    }


def _expose_pointer(
    bench: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Keep the shadow's snapshot: readers resolve the pointer, so nothing has to be committed."""
    snapshot_id = _judged_snapshot_id(plan, accepted)
    return _pin_version(bench, plan, reserved, plan.shadow_table, snapshot_id)


def _expose_version_table(
    bench: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Give the version a table of its own, by name; it stays when the shadow goes."""
    snapshot_id = _judged_snapshot_id(plan, accepted)
    name = modes.version_table(plan.resolved.contract.table, reserved.version)
    marks = {
        "lakehouse-backfill.run-id": plan.run_id,
        "lakehouse-backfill.output-version": str(reserved.version),
        "lakehouse-backfill.manifest-hash": plan.manifest_hash,
        "lakehouse-backfill.result-digest": reserved.result_digest or "",
        **evidence_digest_property(reserved),
    }
    bench.shadows.keep(plan.shadow_table, snapshot_id, name, marks)
    return _pin_version(bench, plan, reserved, name, snapshot_id)


def _judged_snapshot_id(plan: Plan, accepted: AcceptedResult) -> int:
    if accepted.shadow_snapshot_id is None:
        raise Blocked(f"{plan.shadow_table} is empty; a pointer cannot lead to it")
    return accepted.shadow_snapshot_id


def _pin_version(
    bench: Context, plan: Plan, reserved: Publication, table: str, snapshot_id: int
) -> CommitResult:
    """Pin what the pointer will lead to."""
    bench.pins.pin(table, snapshot_id, publication_tags(reserved)["after"])
    return CommitResult(
        table=table,
        snapshot_id=snapshot_id,
        before_snapshot_id=plan.resolved.target.snapshot_id,
        files_added=0,
        files_removed=0,
        rows_added=0,
        rows_removed=0,
        attempts=1,
        seconds=0.0,
    )


def _expose_events(
    bench: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Write what differs to a table of events; the product's own stays as it is."""
    return write_correction_events(bench, plan, reserved, accepted.shadow_snapshot_id)


def find_landed_swap(bench: Context, plan: Plan, pending: Publication) -> CommitResult | None:
    """Look where the publication commits for its token."""
    resolved = plan.resolved
    if resolved.manifest.target.publish_mode == "correction_events":
        sink = corrections.correction_sink(resolved.manifest, resolved.contract)
        return bench.corrections.find(sink.table, pending.token)
    return bench.publisher.find(resolved.target.table, pending.token)


_EXPOSE_BY_MODE: dict[str, Callable[[Context, Plan, Publication, AcceptedResult], CommitResult]] = {
    "replace_partitions": _adopt_shadow,
    "append": _adopt_shadow,
    "merge": _adopt_shadow,
    "pointer_swap": _expose_pointer,
    "versioned": _expose_version_table,
    "correction_events": _expose_events,
}
