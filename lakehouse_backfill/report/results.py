"""The `data` objects of the CLI contract, made from the results of verbs. Plain JSON types only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.approval.decisions import FailedGate
from lakehouse_backfill.core.comparison.diff import DiffResult
from lakehouse_backfill.core.evidence.status import SafetySummary
from lakehouse_backfill.core.planning import publish_modes, row_changes
from lakehouse_backfill.core.publication.post_publish import PostPublishOutcome
from lakehouse_backfill.core.publication.publication import PublishResult
from lakehouse_backfill.core.publication.rollback import RollbackResult
from lakehouse_backfill.core.runs.event_log import AuditVerdict
from lakehouse_backfill.core.validation.suites import AcceptedValidation, ValidationTiming
from lakehouse_backfill.core.versions import steps
from lakehouse_backfill.core.versions.pointer import RollbackTarget
from lakehouse_backfill.domain import table
from lakehouse_backfill.domain.checks import Diff, ValidationResult
from lakehouse_backfill.domain.diff import DiffPreview, EngineChoice
from lakehouse_backfill.domain.manifest import Target
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.domain.publication import Pointer, Publication
from lakehouse_backfill.domain.run import ChunkRecord, RunState, RunStatus
from lakehouse_backfill.domain.serialization import Value
from lakehouse_backfill.domain.table import StoredCheck, TableInfo

if TYPE_CHECKING:
    from lakehouse_backfill.core.evidence.reproduce import ProductGuarantees, ReproduceResult
    from lakehouse_backfill.core.evidence.verify import VerifyResult
    from lakehouse_backfill.core.retention.maintain import MaintainResult
    from lakehouse_backfill.domain.rollout import RetentionItem


Result = dict[str, Any]


def plain(value: Value) -> Result:
    """Return the JSON form of a value."""
    return value.model_dump(mode="json")


def state(status: RunStatus) -> Result:
    """Name a run and its state."""
    return {"run_id": status.run_id, "product": status.product, "state": status.state.value}


def shadow_opened(status: RunStatus, table: TableInfo, plan: Plan) -> Result:
    """Describe which table another engine is to write, which partitions of it, as whose rows."""
    return state(status) | {
        "table": table.table,
        "location": table.location,
        "base_snapshot_id": plan.resolved.target.snapshot_id,
        "scope_column": plan.resolved.scope.field.column,
        "partitions": list(plan.resolved.scope.partitions),
        "lineage": publish_modes.expected_lineage(plan),
        "next": errors.command_line("shadow", "close", plan.run_id),
    }


def _mode(target: Target) -> Result:
    """Describe how a run is published, and which rows of its partitions it takes (null: all)."""
    return {
        "publish_mode": target.publish_mode,
        "publishing": publish_modes.MODE_MEANINGS[target.publish_mode],
        "rows": row_changes.describe_row_predicate(target) or None,
        "schema_change": [table.describe_schema_step(step) for step in target.schema_change],
    }


def _pins_of(resolved: ResolvedManifest) -> list[Result]:
    """Name the snapshots that the run reads and changes."""
    pins: list[Result] = [
        {
            "name": pin.name,
            "role": pin.role,
            "table": pin.table,
            "requested": pin.requested,
            "snapshot_id": pin.snapshot_id,
            "schema_id": pin.schema_id,
            "mode": pin.mode,
        }
        for pin in resolved.sources
    ]
    target = resolved.target
    pins.append(
        {
            "name": "target",
            "role": "target",
            "table": target.table,
            "requested": target.table,
            "snapshot_id": target.snapshot_id,
            "schema_id": target.schema_id,
            "mode": "tag" if target.snapshot_id is not None else None,
        }
    )
    return pins


def plan_result(plan: Plan, status: RunStatus | None, proof: Result | None) -> Result:
    """Describe what `plan` found; `state` is null for a dry run."""
    resolved = plan.resolved
    target, pins = resolved.target, _pins_of(resolved)
    return {
        "run_id": plan.run_id,
        "product": plan.product,
        "state": status.state.value if status else None,
        "manifest_hash": plan.manifest_hash,
        "revises": plan.revises,
        "target": target.table,
        "shadow_table": plan.shadow_table,
        **_mode(resolved.manifest.target),
        "partitions": list(resolved.scope.partitions),
        "partition_field": plain(resolved.scope.field),
        "places": [plain(place) for place in plan.places],
        "chunks": [plain(chunk) for chunk in resolved.chunks],
        "pins": pins,
        "estimate": plain(plan.estimate),
        "consumers": [plain(consumer) for consumer in plan.consumers],
        "conflicts": [plain(conflict) for conflict in plan.conflicts],
        "checklist": [plain(question) for question in plan.checklist],
        "way": plain(plan.way) if plan.way else None,
        "notes": list(plan.notes),
        "warnings": list(plan.warnings),
        "undo": f"{errors.command_line('cancel', plan.run_id)}; after publication: "
        + errors.command_line("rollback", plan.product, "--reason", "TEXT"),
        "warm_up_proof": proof,
    }


def validation_result(
    status: RunStatus,
    validation: ValidationResult,
    digest: str,
    spent: ValidationTiming | None = None,
) -> Result:
    """Describe what `validate` found."""
    edge = plain(validation.edge) if validation.edge else None
    return state(status) | {
        # Gates that were waived for exactly this result do not keep it from passing.
        "passed": status.state is RunState.VALIDATED,
        "digest": digest,
        "checks": [plain(check) for check in validation.checks],
        "diff": diff_result(validation.diff),
        "partitions": [plain(row) for row in validation.balances],
        "totals": [plain(total) for total in validation.totals],
        "anomalies": [plain(report) for report in validation.anomalies],
        "edge": edge,
        "spent": spent.json_form if spent else None,
    }


def rejudged(product: str, found: AcceptedValidation) -> Result:
    """Describe what the suites found of an accepted version."""
    return {
        "product": product,
        "version": found.accepted.version,
        "table": found.accepted.table,
        "snapshot_id": found.accepted.snapshot_id,
        "changed_since": list(found.accepted.drifted),
        "passed": found.passed,
        "checks": [plain(check) for check in found.checks],
    }


def run_line(
    status: RunStatus,
    standing: SafetySummary,
    gates: tuple[FailedGate, ...] = (),
    waivers: Sequence[Result] = (),
) -> Result:
    """One run of `status`, with the three answers first; `gates` are those that stopped it.

    `waivers` are those that stand.
    """
    line: Result = {
        "is_safe": standing.is_safe,
        "readers_see": standing.readers_see,
        "next_command": standing.next_command,
        **state(status),
        "at": status.at.isoformat(),
        "driver": status.driver,
    }
    if waivers:
        line["waivers"] = list(waivers)
    if gates:
        line["gates"] = [vars(gate) for gate in gates]
        if all(gate.waived_by for gate in gates):
            line["next_command"] = f"lakehouse-backfill run {status.run_id}"
    return line


def gates_result(status: RunStatus, gates: tuple[FailedGate, ...]) -> Result:
    """Describe which gates stopped a run, which were waived, and how the others can be."""
    found = state(status) | {"gates": [vars(gate) for gate in gates]}
    if gates and status.state is RunState.HALTED and all(gate.waived_by for gate in gates):
        found["next_command"] = f"lakehouse-backfill run {status.run_id}"
    return found


def chunk_lines(plan: Plan, records: tuple[ChunkRecord, ...]) -> Result:
    """The chunks of a run: those in the ledger, and the pending ones."""
    found = {record.chunk_id: plain(record) for record in records}
    pending = {"status": "pending", "input_rows": None, "output_rows": None, "checksum": None}
    return {
        "run_id": plan.run_id,
        "chunks": [
            found.get(
                chunk.chunk_id,
                {"chunk_id": chunk.chunk_id, "partitions": list(chunk.partitions), **pending}
                | {"seconds": None},
            )
            for chunk in plan.resolved.chunks
        ],
    }


def audit_result(found: AuditVerdict) -> Result:
    """What a look at the logs of all runs found."""
    return {**vars(found), "intact": found.is_intact}


def diff_result(diff: Diff) -> Result:
    """A diff in the fields of the CLI contract."""
    data = plain(diff)
    data["summary"].pop("partition")
    summary = diff.summary
    data["equal"] = not (summary.added or summary.removed or summary.changed)
    return data


def compared_result(found: DiffResult) -> Result:
    """A diff with the engine that made it, and why."""
    return diff_result(found.diff) | {"engine_choice": plain(found.choice)}


def preview_result(found: DiffPreview, choice: EngineChoice) -> Result:
    """What a diff would read, and which engine would."""
    told = {"preview": True, "bytes_to_read": found.bytes_to_read}
    return plain(found) | told | {"engine": choice.engine, "engine_choice": plain(choice)}


def version_line(row: Publication) -> Result:
    """One accepted version."""
    return {
        "version": row.version,
        "action": row.action,
        "run_id": row.run_id,
        "table": row.table,
        "snapshot_id": row.snapshot_id,
        "accepted_at": row.at.isoformat(),
        "accepted_by": list(row.accepted_by) or [row.by],
        "approved_by": list(row.approved_by),
        "published_by": row.by,
        "supersedes": row.supersedes,
        "partitions": len(row.scope.partitions) if row.scope else 0,
        "reason": row.reason,
    }


def publish_result(status: RunStatus, published: PublishResult) -> Result:
    """Describe what became visible; `was_published`: it had been before, nothing was changed."""
    row, swap = published.publication, published.swap
    return state(status) | {
        "version": row.version,
        "table": row.table,
        "snapshot_id": row.snapshot_id,
        "files_added": swap.files_added if swap else 0,
        "files_removed": swap.files_removed if swap else 0,
        "rows_added": swap.rows_added if swap else 0,
        "rows_removed": swap.rows_removed if swap else 0,
        "seconds": round(swap.seconds, 3) if swap else 0.0,
        "attempts": swap.attempts if swap else 0,
        "was_published": published.was_published,
        "supersedes": row.supersedes,
    }


def followed(found: PostPublishOutcome) -> Result:
    """Describe which checks and hooks followed a publication, and how they ended."""
    return {
        "checks_after": [check.model_dump(mode="json") for check in found.checks],
        "hooks": [call.model_dump(mode="json") for call in found.calls],
    }


def publish_preview(plan: Plan, pointer: Pointer) -> Result:
    """Describe what `publish` would do."""
    return {
        "run_id": plan.run_id,
        "product": plan.product,
        "dry_run": True,
        "version": pointer.last_version + 1,
        "table": plan.resolved.target.table,
        "partitions": list(plan.resolved.scope.partitions),
        "publish_mode": plan.resolved.manifest.target.publish_mode,
        "steps": steps.preview_steps(plan),
    }


def rollback_result(done: RollbackResult) -> Result:
    """Describe where `rollback` led."""
    row, swap = done.publication, done.swap
    return {
        "product": row.product,
        "state": "rolled_back",
        "version": row.version,
        "table": row.table,
        "snapshot_id": swap.snapshot_id,
        "partitions": list(row.scope.partitions) if row.scope else [],
        "files_added": swap.files_added,
        "files_removed": swap.files_removed,
        "rows_added": swap.rows_added,
        "rows_removed": swap.rows_removed,
        "seconds": round(swap.seconds, 3),
        "reason": row.reason,
    }


def returned(row: Publication) -> Result:
    """Describe where the pointer of a pinned product went back to; no table was changed."""
    return {
        "product": row.product,
        "state": "rolled_back",
        "version": row.version,
        "table": row.table,
        "snapshot_id": row.snapshot_id,
        "reason": row.reason,
    }


def rollback_preview(product: str, way: RollbackTarget, columns: tuple[str, ...] = ()) -> Result:
    """Describe what `rollback` would do; `columns` are changes of the table's columns that stay."""
    return {
        "product": product,
        "dry_run": True,
        "version": way.version,
        "partitions": list(way.scope.partitions),
        "runs_undone": list(dict.fromkeys(row.run_id for row in way.undone if row.run_id)),
        "rewritten": [item.model_dump(mode="json") for item in way.rewrites],
        "columns_stay": list(columns),
    }


def maintained_result(done: MaintainResult, *, dry_run: bool) -> dict[str, Any]:
    """Return both lists, each item with its reason, and what is left to clean up by other means."""
    return {
        "dry_run": dry_run,
        "retired": [_line(item) for item in done.retired],
        "kept": [_line(item) for item in done.kept],
        "left": [one.model_dump(mode="json") for one in done.leftovers],
        "control_files": done.litter.model_dump(mode="json"),
        "versions_let_go": [
            {"product": item.product, "version": item.version}
            for item in done.retired
            if item.kind == "version"
        ],
    }


def _line(item: RetentionItem) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        "because": item.because,
        "product": item.product or None,
        "owner": item.owner or None,
        "until": item.until.isoformat() if item.until else None,
        "snapshot_id": item.snapshot_id,
        "run_id": item.run_id or None,
    }


def check_line(check: StoredCheck) -> dict[str, Any]:
    """Return one comparison; `ok` is null where nothing could be compared."""
    return check.model_dump(mode="json")


def verified(found: VerifyResult, files: tuple[StoredCheck, ...], *, deep: bool) -> dict[str, Any]:
    """Return all comparisons of a run, and which data was read for them."""
    checks = [check_line(check) for check in (*found.checks, *files)]
    return {
        "run_id": found.run_id,
        "deep": deep,
        "files_read": found.data_read.files,
        "partitions_read_by_spark": found.data_read.partitions_by_spark,
        "intact": all(check["ok"] is not False for check in checks),
        "checks": checks,
    }


def reproduced(found: ReproduceResult) -> dict[str, Any]:
    """Return what came out again, partition by partition."""
    return {
        "run_id": found.run_id,
        "equal": found.is_equal,
        "code": found.code,
        "scratch_table": found.scratch_table,
        "partitions": [vars(one) for one in found.partitions],
        "notes": list(found.notes),
    }


def guaranteed(found: tuple[ProductGuarantees, ...]) -> dict[str, Any]:
    """Return what was sampled of each product, and what held."""
    checks = [
        {"product": one.product, "run_id": one.run_id, "chunk_id": one.chunk_id} | check_line(check)
        for one in found
        for check in one.checks
    ]
    return {
        "sampled": [
            {
                "product": one.product,
                "run_id": one.run_id,
                "chunk_id": one.chunk_id,
                "partitions": list(one.partitions),
                "because": one.because,
            }
            for one in found
        ],
        "held": all(check["ok"] is not False for check in checks),
        "checks": checks,
    }
