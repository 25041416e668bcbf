"""Results for people: each command's result, drawn as text and tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TextIO

from lakehouse_backfill.cli.render import compare, gates, plans, publications, runs
from lakehouse_backfill.cli.render.page import TextPage

Data = Mapping[str, Any]

VIEWS: dict[str, Callable[[TextPage, Data], None]] = {
    "init": plans.render_init,
    "doctor": plans.render_doctor,
    "demo": plans.render_demo,
    "product add": plans.render_draft,
    "new": plans.render_draft,
    "schema": plans.render_schema,
    "plan": plans.render_plan,
    "approve": runs.render_decision,
    "accept": runs.render_decision,
    "reject": runs.render_decision,
    "cancel": runs.render_decision,
    "waive": runs.render_waive,
    "run": runs.render_run,
    "stage": runs.render_stage,
    "shadow open": runs.render_shadow_open,
    "shadow close": runs.render_stage,
    "validate": runs.render_validate,
    "status": runs.render_status,
    "log": runs.render_log,
    "chunks": runs.render_chunks,
    "diff": compare.render_diff,
    "reconcile": compare.render_reconcile,
    "publish": publications.render_publish,
    "dual-read": gates.render_dual_read,
    "rollback": publications.render_rollback,
    "versions": publications.render_versions,
    "evidence": publications.render_evidence,
    "recover": runs.render_recover,
    "maintain": publications.render_maintain,
    "verify": publications.render_verify,
    "reproduce": publications.render_reproduce,
    "audit verify": publications.render_audit_verify,
    "audit guarantees": publications.render_audit_guarantees,
}


def render_result(command: str, data: Data, stream: TextIO) -> None:
    """Draw the result of `command` on `stream`: no colour where it is no terminal."""
    VIEWS[command](TextPage(stream), data)
