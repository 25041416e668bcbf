"""Exposes an accepted result by its publish mode, and proves what readers see.

Correction events leave the product's table as it is (U9). The proof after a swap reads no row: it
lists the files of the published snapshot, adds up their known fingerprints and compares the sums
with the accepted checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.approval.acceptance import known_file_fingerprints
from lakehouse_backfill.core.comparison import diff, fingerprints
from lakehouse_backfill.core.planning.target import catch_up, publish_modes
from lakehouse_backfill.core.runs import signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import corrections, version_labels
from lakehouse_backfill.core.versions.pointer import RollbackTarget, effective_publications
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.labels.names import table_parts
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, declared_schema_change, reference_data_version
from lakehouse_backfill.domain.publication import MODE_PROPERTY, Publication
from lakehouse_backfill.domain.rollout import CompensationRequest, CorrectionEventsRequest
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.domain.tables.commits import AdoptRequest, CommitResult
from lakehouse_backfill.errors import Blocked, Tampered, TargetChanged, Unsupported

CORRECTION_EVENTS_MODE = "correction_events"


def _expose_events(
    context: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Write one event for each key that differs between the accepted rows and the candidate.

    The product's own table stays as it is.
    Raises TargetChanged when the product's table changed in the partitions since the run was
    planned: the events would correct rows that readers no longer see. Raises Unsupported when
    events of another run correct the same partitions.
    """
    resolved = plan.resolved
    _refuse_changed_target(context, plan)
    history = context.versions.history(plan.product)
    # Two sets of events on the same rows would both claim to replace the rows of the table.
    for row, label in corrections.published_corrections(plan, history):
        raise corrections.published_corrections_error(plan, row, label)
    request = diff.candidate_request(context, plan, accepted.shadow_snapshot_id)
    return context.corrections.write(
        CorrectionEventsRequest(
            sink=corrections.correction_sink(resolved.manifest, resolved.contract),
            reason_code=resolved.manifest.run.reason_code,
            mode=resolved.manifest.run.mode,
            publication=reserved,
        ),
        context.differ(diff.choose_for_request(context, request).engine).differing(request),
    )


def require_no_published_corrections(context: Context, plan: Plan) -> None:
    """Raise Unsupported when published events correct rows of partitions that a run would replace.

    Consumers apply the events to the table: they would correct rows that it no longer holds.
    """
    if plan.resolved.manifest.target.publish_mode == CORRECTION_EVENTS_MODE:
        return
    for row, label in corrections.published_corrections(
        plan, context.versions.history(plan.product)
    ):
        made = context.runs.plan(str(row.run_id)).resolved.manifest.target.publish_mode
        if made == CORRECTION_EVENTS_MODE:
            raise corrections.published_corrections_error(plan, row, label)


def _refuse_changed_target(context: Context, plan: Plan) -> None:
    drift = _target_changes(context, plan)
    if drift is not None:
        raise TargetChanged(
            f"{plan.resolved.target.table} changed in the run's partitions: {drift}",
            state="no event was written; the shadow table is kept",
            fix=plan_command(revise=plan.run_id),
        )


def _target_changes(context: Context, plan: Plan) -> str | None:
    target = plan.resolved.target
    if target.snapshot_id is None:
        info = context.tables.describe(target.table)
        return f"{target.table} is not empty any more" if info and info.snapshot_id else None
    return context.publisher.changes(target.table, plan.resolved.scope, target.snapshot_id)


def is_rollback_of_events(way: RollbackTarget, table: str) -> bool:
    """Return whether a rollback undoes correction events.

    Raises Unsupported when it undoes both events and changes of the table.
    """
    kinds = {row.table != table for row in effective_publications(way.undone)}
    if len(kinds) == 2:
        raise Unsupported(
            f"{way.undone[0].product}: since version {way.version} both the table and its "
            "correction events changed; one rollback undoes one of them",
            state="nothing was rolled back",
            fix="roll back to the versions in between, one after the other: lakehouse-backfill "
            f"versions {way.undone[0].product}",
        )
    return kinds == {True}


def write_compensating_events(
    context: Context, way: RollbackTarget, row: Publication
) -> CommitResult:
    """Write the reverse of the undone events, in one append."""
    undone = effective_publications(way.undone)
    tables = sorted({publication.table for publication in undone})
    if len(tables) > 1:
        raise Unsupported(
            f"{row.product}: events went to {' and to '.join(tables)}; one rollback undoes one",
            state="nothing was rolled back",
            fix=f"choose a later version: lakehouse-backfill versions {row.product}",
        )
    return context.corrections.compensate(
        CompensationRequest(
            table=tables[0],
            tokens=tuple(publication.token for publication in undone),
            partitions=way.scope.partitions if way.is_partial else None,
            by_run=", ".join(way.runs_rolled_back) or "rollback",
            mode=context.mode_of(way.run_id),
            publication=row,
        )
    )


#: Snapshot summary property: the digest of the archive of the accepted result.
EVIDENCE_DIGEST_PROPERTY = "lakehouse-backfill.evidence-digest"
#: Snapshot summary property: the tables and snapshots that the output was computed from, as JSON.
REFRESH_STATE_PROPERTY = "lakehouse-backfill.refresh-state"


@dataclass(frozen=True)
class AcceptedResult:
    """The accepted result: its digest, and the shadow's snapshot that was validated."""

    digest: str
    shadow_snapshot_id: int | None


def expose_result(
    context: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Run the step of the publish mode that precedes the pointer move; once per publication token.

    It exposes the validated snapshot: later writes to the shadow are not accepted.
    """
    return _EXPOSE_BY_MODE[plan.resolved.manifest.target.publish_mode](
        context, plan, reserved, accepted
    )


def preview_result(context: Context, plan: Plan, accepted: AcceptedResult) -> None:
    """Raise what `expose_result` would raise of a followed table as it is now; write nothing."""
    if plan.resolved.manifest.target.publish_mode == CORRECTION_EVENTS_MODE:
        _refuse_changed_target(context, plan)
        return
    context.publisher.preview(
        publish_modes.adopt_request(plan, accepted.shadow_snapshot_id, "preview", {}, {})
    )


def adopt_shadows(
    context: Context, members: Sequence[tuple[Plan, Publication, AcceptedResult]]
) -> tuple[CommitResult, ...]:
    """Swap the shadows' files into several tables by one commit; once per publication token."""
    return context.publisher.adopt_together(
        tuple(_adopt_request(context, *member) for member in members)
    )


def _adopt_shadow(
    context: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Swap the shadow's files into the target."""
    return context.publisher.adopt(_adopt_request(context, plan, reserved, accepted))


def _adopt_request(
    context: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> AdoptRequest:
    properties = {
        **_version_properties(plan, reserved),
        "lakehouse-backfill.epoch": str(reserved.epoch),
        **_lineage_properties(plan),
        REFRESH_STATE_PROPERTY: canonical_json(refresh_state(context, plan)),
        **signers.binding_mark(context.profile, plan.resolved.contract.table),
    }
    request = publish_modes.adopt_request(
        plan, accepted.shadow_snapshot_id, reserved.token, reserved.tags, properties
    )
    if reserved.scope not in (None, request.scope):
        # One step of a run covers a part of its partitions.
        request = request.model_copy(update={"scope": reserved.scope, "within": request.scope})
    return request


def _version_properties(plan: Plan, reserved: Publication) -> dict[str, str]:
    """Return what identifies a version, with the digest of the accepted result's archive."""
    digest = reserved.evidence_digest
    return {
        "lakehouse-backfill.run-id": plan.run_id,
        "lakehouse-backfill.output-version": str(reserved.version),
        "lakehouse-backfill.manifest-hash": plan.manifest_hash,
        "lakehouse-backfill.result-digest": reserved.result_digest or "",
        **({EVIDENCE_DIGEST_PROPERTY: digest} if digest else {}),
    }


def _lineage_properties(plan: Plan) -> dict[str, str]:
    """Return the lineage that each output snapshot carries in its summary (D3)."""
    manifest = plan.resolved.manifest
    inputs = [f"{pin.name}={pin.snapshot_id}" for pin in plan.resolved.sources]
    # Earlier runs computed the chunks that were carried over.
    earlier_runs = {run for run in catch_up.origin_run_ids(plan) if run != plan.run_id}
    carried = (
        {"lakehouse-backfill.carried-from": ",".join(sorted(earlier_runs))} if earlier_runs else {}
    )
    reference = reference_data_version(plan)
    return {
        "lakehouse-backfill.transform": manifest.transform.name,
        "lakehouse-backfill.transform-version": manifest.transform.version,
        MODE_PROPERTY: manifest.run.mode,
        "lakehouse-backfill.input-snapshot-ids": ",".join(inputs),
        **({"lakehouse-backfill.reference-data-version": reference} if reference else {}),
        "lakehouse-backfill.restatement-reason": manifest.run.reason_code,
        **carried,
    }


def refresh_state(context: Context, plan: Plan) -> dict[str, Any]:
    """Return what an output was computed from, in the shape of a materialized view's refresh state.

    Iceberg's view spec names its fields; `range` adds the rows of a table that could be read. A
    table that is gone by now has no uuid.
    """
    states = []
    for pin in plan.resolved.sources:
        *namespace, name = table_parts(pin.table)
        info = context.tables.describe(pin.table)
        states.append(
            {
                "type": "table",
                "namespace": namespace,
                "name": name,
                "snapshot-id": pin.snapshot_id,
                **({"uuid": info.uuid} if info else {}),
                **(
                    {"range": pin.range.model_dump(mode="json", by_alias=True)} if pin.range else {}
                ),
            }
        )
    started_ms = int(plan.created_at.timestamp() * 1000)
    return {"source-states": states, "refresh-start-timestamp-ms": started_ms}


def _expose_pointer(
    context: Context, plan: Plan, reserved: Publication, accepted: AcceptedResult
) -> CommitResult:
    """Pin the snapshot to which the pointer will lead: readers resolve it, nothing is committed.

    A version that keeps a table of its own gets that table first; it outlives the shadow.
    """
    table, snapshot_id, resolved = plan.shadow_table, accepted.shadow_snapshot_id, plan.resolved
    if snapshot_id is None:
        raise Blocked(f"{table} is empty; a pointer cannot lead to it")
    if resolved.manifest.target.publish_mode == "versioned":
        table = publish_modes.version_table(resolved.contract.table, reserved.version)
        marks = _version_properties(plan, reserved)
        context.shadows.keep(plan.shadow_table, snapshot_id, table, marks)
    version_labels.open_table(context, resolved.contract, table, snapshot_id)
    context.pins.pin(table, snapshot_id, reserved.tags["after"])
    return CommitResult.of_pointer(table, snapshot_id, resolved.target.snapshot_id)


def swaps_files(plan: Plan) -> bool:
    """Return whether the run becomes visible by a commit of its target that swaps files in."""
    return _EXPOSE_BY_MODE[plan.resolved.manifest.target.publish_mode] is _adopt_shadow


def find_landed_swap(context: Context, plan: Plan, pending: Publication) -> CommitResult | None:
    """Find the commit that carries the token of a publication; None when nothing has landed."""
    resolved = plan.resolved
    if resolved.manifest.target.publish_mode == CORRECTION_EVENTS_MODE:
        sink = corrections.correction_sink(resolved.manifest, resolved.contract)
        return context.corrections.find(sink.table, pending.token)
    return context.publisher.find(resolved.target.table, pending.token)


_EXPOSE_BY_MODE: dict[str, Callable[[Context, Plan, Publication, AcceptedResult], CommitResult]] = {
    "replace_partitions": _adopt_shadow,
    "append": _adopt_shadow,
    "merge": _adopt_shadow,
    "pointer_swap": _expose_pointer,
    "versioned": _expose_pointer,
    "correction_events": _expose_events,
}


PUBLISHED_ROWS_CHECK = "what is published is what was accepted"


def compare_published_rows(context: Context, plan: Plan, row: Publication) -> dict[str, Any] | None:
    """Compare the published partitions with the accepted checksums; None: nothing was swapped.

    `passed` is None when a comparison needs to read rows: a file is not known, delete files touch a
    partition, or the run changes columns.
    """
    mode = plan.resolved.manifest.target.publish_mode
    if (
        publish_modes.is_pinned_product(plan)
        or mode == CORRECTION_EVENTS_MODE
        or row.snapshot_id is None
    ):
        return None
    try:
        passed, detail = _compare_with_accepted(context, plan, row)
    except Tampered as error:
        passed, detail = False, error.problem
    return {"name": PUBLISHED_ROWS_CHECK, "passed": passed, "detail": detail}


def _compare_with_accepted(
    context: Context, plan: Plan, row: Publication
) -> tuple[bool | None, str]:
    scope = row.scope or plan.resolved.scope
    known = _published_fingerprints(context, row, scope)
    judged = context.evidence.document(plan.run_id, row.result_digest or "")
    if judged is None or known is None or known.unread or declared_schema_change(plan):
        reason = "files that are not known" if known is None or known.unread else "changed columns"
        return None, f"not told without reading rows: {reason}"
    accepted_checksums = {each["partition"]: each["new_checksum"] for each in judged["balances"]}
    shape = fingerprints.checksum_shape(known.checksums)
    differing = tuple(
        label
        for label in scope.partitions
        if not _is_same_checksum(known.checksums.get(label), accepted_checksums.get(label), shape)
    )
    if differing:
        return False, f"{partitions.describe_labels(differing)} differ"
    return True, f"{len(scope.partitions)} partitions equal, by their files"


def _published_fingerprints(
    context: Context, row: Publication, scope: Scope
) -> fingerprints.KnownChecksums | None:
    """Return the known checksums of the published partitions.

    None: a file holds rows of partitions outside the scope.
    """
    files = context.stored_files.files(row.table, row.snapshot_id or 0, scope)
    if any(file.partition not in scope.partitions for file in files):
        return None
    known = known_file_fingerprints(context, row.table, row.snapshot_id or 0, files)
    return fingerprints.sum_known_checksums(files, known, scope.partitions)


def _is_same_checksum(seen: Checksum | None, wanted: str | None, shape: str) -> bool:
    """Compare with an accepted checksum; empty equals empty, whatever the column shape."""
    if wanted is None or Checksum.parse(wanted).rows == 0:
        return seen is None or seen.rows == 0
    return (seen or Checksum.empty(shape)).text == wanted
