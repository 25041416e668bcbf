"""Documents that show why a run was accepted, on `evidence`."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from lakehouse_backfill.iceberg.control import ControlTables
from lakehouse_backfill.iceberg.control_log import Change, Head
from lakehouse_backfill.iceberg.control_schemas import EVIDENCE
from lakehouse_backfill.iceberg.fences import require_epoch
from lakehouse_backfill.model.value import canonical_json, digest


class IcebergEvidence:
    """`ports.control.Evidence` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(EVIDENCE)

    def record(self, run_id: str, kind: str, document: dict[str, Any], epoch: int) -> str:
        """Store a document and give its digest; if it is the newest already, do nothing.

        A document that came back after another one is stored again: it is the newest then.
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

        def change(head: Head) -> Change[str]:
            require_epoch(head, run_id, epoch)
            newest = _newest(head, run_id, kind, ("digest",))
            is_there = newest is not None and newest["digest"] == mark
            return Change(result=mark, rows=() if is_there else (row,))

        return self._log.append(change)

    def document(self, run_id: str, digest: str) -> dict[str, Any] | None:
        """The document of a run with this digest, or None."""
        rows = self._log.head().rows({"run_id": run_id, "digest": digest}, ("document",))
        return json.loads(rows[0]["document"]) if rows else None

    def newest(self, run_id: str, kind: str) -> tuple[str, dict[str, Any]] | None:
        """The newest document of a kind with its digest, or None."""
        row = _newest(self._log.head(), run_id, kind, ("digest", "document"))
        return None if row is None else (row["digest"], json.loads(row["document"]))


def _newest(head: Head, run_id: str, kind: str, columns: tuple[str, ...]) -> dict[str, Any] | None:
    rows = head.rows({"run_id": run_id, "kind": kind}, columns)
    return rows[-1] if rows else None
