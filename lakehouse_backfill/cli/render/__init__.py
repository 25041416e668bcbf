"""Results for people: each command's result, drawn as text and tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TextIO

from lakehouse_backfill.cli.render import (
    audits,
    compare,
    plans,
    publications,
    retention,
    rollout,
    runs,
    setup,
)
from lakehouse_backfill.cli.render.page import Page

Data = Mapping[str, Any]

VIEWS: dict[str, Callable[[Page, Data], None]] = {
    "init": setup.init,
    "doctor": setup.doctor,
    "demo": setup.demo,
    "product add": setup.draft,
    "new": setup.draft,
    "schema": setup.schema,
    "plan": plans.plan,
    "approve": runs.decision,
    "accept": runs.decision,
    "reject": runs.decision,
    "cancel": runs.decision,
    "waive": runs.waived,
    "run": runs.driven,
    "stage": runs.staged,
    "shadow open": runs.shadow_opened,
    "shadow close": runs.staged,
    "validate": runs.validated,
    "status": runs.status,
    "log": runs.log,
    "chunks": runs.chunks,
    "diff": compare.diff,
    "reconcile": compare.reconcile,
    "publish": publications.publish,
    "dual-read": rollout.dual_read,
    "rollback": publications.rollback,
    "versions": publications.versions,
    "evidence": publications.evidence,
    "recover": runs.recovered,
    "maintain": retention.maintained,
    "verify": audits.compared,
    "reproduce": audits.reproduced,
    "audit verify": audits.verified,
    "audit guarantees": audits.guaranteed,
}


def render(command: str, data: Data, stream: TextIO) -> None:
    """Draw the result of `command` on `stream`: no colour where it is no terminal."""
    VIEWS[command](Page(stream), data)
