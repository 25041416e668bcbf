"""Documents that show why a run was accepted, on `evidence`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.control_schemas import EVIDENCE
from lakehouse_backfill.adapters.iceberg.control.fences import require_not_fenced
from lakehouse_backfill.core.runs.sealed import matches_digest, open_document
from lakehouse_backfill.domain.value import canonical_json, digest


class IcebergEvidence:
    """`ports.control.Evidence` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(EVIDENCE)

    def record(self, run_id: str, kind: str, document: dict[str, Any], epoch: int) -> str:
        """Store a document and give its digest; if it is the newest already, do nothing.

        A document that came back after another one is stored again: it is the newest then. So is
        one whose row was edited.
        Raises RunMoved when a later epoch has fenced the run.
        """
        mark = digest(document)
        row = {
            "run_id": run_id,
            "kind": kind,
            "digest": mark,
            "document": canonical_json(document),
            "recorded_at": datetime.now(timezone.utc),
            "epoch": epoch,
        }

        def change(head: LogHead) -> LogAppend[str]:
            require_not_fenced(head, run_id, epoch)
            rows = head.rows({"run_id": run_id, "kind": kind}, ("digest", "document"))
            newest = rows[-1] if rows else None
            is_there = newest is not None and newest["digest"] == mark and _is_row_intact(newest)
            return LogAppend(result=mark, rows=() if is_there else (row,))

        return self._log.append(change)

    def document(self, run_id: str, digest: str) -> dict[str, Any] | None:
        """The document of a run with this digest, or None.

        Raises Tampered when it was edited, and not recorded again since.
        """
        rows = self._log.head().rows({"run_id": run_id, "digest": digest}, ("kind", "document"))
        texts = [row["document"] for row in reversed(rows)]
        return open_document(run_id, rows[-1]["kind"], digest, texts) if rows else None

    def newest(self, run_id: str, kind: str) -> tuple[str, dict[str, Any]] | None:
        """The newest document of a kind with its digest, or None; one that was edited is none."""
        where = {"run_id": run_id, "kind": kind}
        rows = self._log.head().rows(where, ("digest", "document"))
        right = (row for row in reversed(rows) if _is_row_intact(row))
        return next(((row["digest"], json.loads(row["document"])) for row in right), None)


def _is_row_intact(row: Mapping[str, Any]) -> bool:
    return matches_digest(row["document"], row["digest"])
