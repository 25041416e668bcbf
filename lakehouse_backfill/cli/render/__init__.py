"""Results for people: each kind of result, drawn as text and tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from lakehouse_backfill.cli.render import (
    compare,
    events,
    gates,
    lineage,
    migrations,
    plans,
    publications,
    runs,
    sources,
)
from lakehouse_backfill.cli.render.page import TextPage
from lakehouse_backfill.command_lines import DEFAULT_INVOCATION, Invocation

if TYPE_CHECKING:
    from lakehouse_backfill.results.base import Result

#: By the name of the class, so that only the classes that a command needs are loaded.
VIEWS: dict[str, Callable[[TextPage, Any], None]] = {
    "InitResult": plans.render_init,
    "DoctorResult": plans.render_doctor,
    "SessionResult": plans.render_session,
    "DemoResult": plans.render_demo,
    "ProductDraft": plans.render_product_draft,
    "ManifestDraft": plans.render_manifest_draft,
    "SchemaResult": plans.render_schema,
    "LandResult": sources.render_land,
    "ReceiveResult": sources.render_receive,
    "LandPreviewResult": sources.render_land_preview,
    "MigrateResult": migrations.render_migrate,
    "MigratePreviewResult": migrations.render_migrate_preview,
    "MigrationUndoneResult": migrations.render_migration_undone,
    "EventCheckResult": events.render_event_check,
    "ReplayResult": events.render_replay,
    "TopicReplayResult": events.render_topic_replay,
    "RebuildResult": events.render_rebuild,
    "PlanResult": plans.render_plan,
    "ShowResult": plans.render_whole_plan,
    "CascadePlanResult": lineage.render_cascade_plan,
    "CascadeResult": lineage.render_cascade,
    "TryResult": runs.render_try,
    "RehearsalResult": plans.render_rehearsal,
    "DecisionResult": runs.render_decision,
    "NoteResult": runs.render_note,
    "WaiveResult": runs.render_waive,
    "RunProgressResult": runs.render_run,
    "RunPreviewResult": runs.render_run_preview,
    "StageResult": runs.render_stage,
    "ShadowOpenResult": runs.render_shadow_open,
    "ValidateResult": runs.render_validate,
    "RejudgeResult": runs.render_rejudge,
    "StatusResult": runs.render_status,
    "ListResult": runs.render_list,
    "AlertsResult": runs.render_alerts,
    "MetricsResult": runs.render_metrics,
    "LogResult": runs.render_log,
    "ChunksResult": runs.render_chunks,
    "RecoverResult": runs.render_recover,
    "DiffResult": compare.render_diff,
    "DiffPreviewResult": compare.render_preview,
    "ReconcileResult": compare.render_reconcile,
    "DualReadResult": gates.render_dual_read,
    "PublishResult": publications.render_publish,
    "PublishPreviewResult": publications.render_publish_preview,
    "PublishTogetherResult": publications.render_publish_together,
    "RollbackResult": publications.render_rollback,
    "RollbackPreviewResult": publications.render_rollback_preview,
    "RollbackTogetherResult": publications.render_rollback_together,
    "VersionsResult": publications.render_versions,
    "EvidenceResult": publications.render_evidence,
    "MaintainResult": publications.render_maintain,
    "VerifyResult": publications.render_verify,
    "ReproduceResult": publications.render_reproduce,
    "StaleResult": lineage.render_stale,
    "LineageResult": lineage.render_lineage,
    "WhyResult": lineage.render_why,
    "AuditVerifyResult": publications.render_audit_verify,
    "AuditGuaranteesResult": publications.render_audit_guarantees,
}


def render_result(
    result: Result, stream: TextIO, invocation: Invocation = DEFAULT_INVOCATION
) -> None:
    """Draw a result on `stream`: no colour where it is no terminal."""
    VIEWS[type(result).__name__](TextPage(stream, invocation), result)
