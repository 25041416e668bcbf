"""Evidence documents, fingerprints of data files, and leases of pins, each in its control table."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.log_files import FilterValue
from lakehouse_backfill.adapters.iceberg.control.runs import require_not_fenced
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    EVIDENCE,
    FILE_FINGERPRINT,
    PIN_LEASE,
)
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables
from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.runs.event_log import matches_digest, open_document
from lakehouse_backfill.domain.comparison.checksums import Checksum, FileFingerprint
from lakehouse_backfill.domain.retention import PinLease
from lakehouse_backfill.domain.serialization import canonical_json, digest


class IcebergEvidence:
    """`ports.control.Evidence` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(EVIDENCE)
        self._fingerprints = tables.log(FILE_FINGERPRINT)
        self._leases = tables.log(PIN_LEASE)

    def record(self, run_id: str, kind: str, document: dict[str, Any], epoch: int) -> str:
        """Store a document and return its digest; if it is already the newest, do nothing.

        A document that is recorded again after another one is stored again, and is then the newest.
        So is a document whose row was edited. Raises RunMoved when a later epoch has fenced the
        run.
        """
        document_digest = digest(document)
        row = {
            "run_id": run_id,
            "kind": kind,
            "digest": document_digest,
            "document": canonical_json(document),
            "recorded_at": datetime.now(timezone.utc),
            "epoch": epoch,
        }

        def change(head: LogHead) -> LogAppend[str]:
            require_not_fenced(head, run_id, epoch)
            rows = head.rows({"run_id": run_id, "kind": kind}, ("digest",))
            is_newest = bool(rows) and rows[-1]["digest"] == document_digest
            if is_newest:
                # Documents may be long and many: only the one in question is read.
                same = {"run_id": run_id, "kind": kind, "digest": document_digest}
                is_newest = _is_row_intact(head.rows(same, ("digest", "document"))[-1])
            return LogAppend(result=document_digest, rows=() if is_newest else (row,))

        return self._log.append(change)

    def document(self, run_id: str, digest: str) -> dict[str, Any] | None:
        """Return the document of a run with this digest, or None.

        Raises Tampered when it was edited, and not recorded again since.
        """
        rows = self._log.head().rows({"run_id": run_id, "digest": digest}, ("kind", "document"))
        texts = [row["document"] for row in reversed(rows)]
        return open_document(run_id, rows[-1]["kind"], digest, texts) if rows else None

    def newest(self, run_id: str, kind: str) -> tuple[str, dict[str, Any]] | None:
        """Return the newest unedited document of a kind with its digest, or None."""
        where = {"run_id": run_id, "kind": kind}
        rows = self._log.head().rows(where, ("digest", "document"))
        intact = (row for row in reversed(rows) if _is_row_intact(row))
        return next(((row["digest"], json.loads(row["document"])) for row in intact), None)

    def all_of(self, run_id: str, kind: str) -> tuple[dict[str, Any], ...]:
        """Return all unedited documents of a kind, oldest first."""
        where = {"run_id": run_id, "kind": kind}
        rows = self._log.head().rows(where, ("digest", "document"))
        return tuple(json.loads(row["document"]) for row in rows if _is_row_intact(row))

    def newest_of(self, run_ids: Collection[str], kind: str) -> dict[str, dict[str, Any]]:
        """Return, by run, the newest unedited document of a kind; reads the table once."""
        if not run_ids:
            return {}
        where: dict[str, FilterValue] = {"run_id": frozenset(run_ids), "kind": kind}
        rows = self._log.head().rows(where, ("run_id", "digest", "document"))
        newest = {row["run_id"]: row["document"] for row in rows if _is_row_intact(row)}
        return {run_id: json.loads(document) for run_id, document in newest.items()}

    def find_fingerprints(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        """Return the fingerprints of the files, oldest first: one by file, reading, partition.

        Raises Tampered when two rows state different contents for one file.
        """
        if not paths:
            return ()
        stored = _read_fingerprints(self._fingerprints.head(), paths)
        return fingerprints.select_unstored((), stored)

    def record_fingerprints(self, found: tuple[FileFingerprint, ...]) -> None:
        """Store those that are not stored yet, in one commit; the same again does nothing.

        Raises Tampered, and stores nothing, when a file is stored with another content.
        """
        paths = {fingerprint.path for fingerprint in found}

        def change(head: LogHead) -> LogAppend[None]:
            new = fingerprints.select_unstored(_read_fingerprints(head, paths), found)
            return LogAppend(result=None, rows=tuple(map(_fingerprint_row, new)))

        if paths:
            self._fingerprints.append(change)

    def grant_leases(self, leases: tuple[PinLease, ...]) -> None:
        """Record leases in one commit; active leases are left out."""
        self._write_leases(leases, is_active=False)

    def end_leases(self, leases: tuple[PinLease, ...]) -> None:
        """Record in one commit that leases have ended; the same again does nothing."""
        ends = tuple(lease.model_copy(update={"action": "end"}) for lease in leases)
        self._write_leases(ends, is_active=True)

    def active_leases(self) -> tuple[PinLease, ...]:
        """List the leases that were granted and have not ended, oldest first."""
        return tuple(_active_leases(self._leases.head()).values())

    def _write_leases(self, leases: tuple[PinLease, ...], *, is_active: bool) -> None:
        if not leases:
            return

        def change(head: LogHead) -> LogAppend[None]:
            active = _active_leases(head)
            changed = [lease for lease in leases if (_lease_key(lease) in active) is is_active]
            return LogAppend(result=None, rows=tuple(PIN_LEASE.row(lease) for lease in changed))

        self._leases.append(change)


def _is_row_intact(row: Mapping[str, Any]) -> bool:
    return matches_digest(row["document"], row["digest"])


def _read_fingerprints(head: LogHead, paths: Collection[str]) -> list[FileFingerprint]:
    return [_fingerprint(row) for row in head.rows({"file_path": frozenset(paths)})]


def _fingerprint_row(one: FileFingerprint) -> dict[str, Any]:
    checksum = one.checksum
    return {
        **FILE_FINGERPRINT.row(one, checksum=checksum.text),
        "row_count": checksum.rows,
        "shape": checksum.shape,
    }


def _fingerprint(row: dict[str, Any]) -> FileFingerprint:
    checksum = Checksum.parse(row["checksum"])
    if not row["shape"].startswith(checksum.shape) or row["row_count"] != checksum.rows:
        raise fingerprints.tampered_file_error(
            row["file_path"], "its checksum, shape and row count contradict each other"
        )
    # The text of a checksum contains only the first digits of its shape.
    checksum = checksum.model_copy(update={"shape": row["shape"]})
    return FILE_FINGERPRINT.read(row, FileFingerprint, checksum=checksum)


def _active_leases(head: LogHead) -> dict[tuple[str, str], PinLease]:
    newest: dict[tuple[str, str], PinLease] = {}
    for row in head.rows():
        lease = PIN_LEASE.read(row, PinLease)
        newest.pop(_lease_key(lease), None)
        if lease.action == "grant":
            newest[_lease_key(lease)] = lease
    return newest


def _lease_key(lease: PinLease) -> tuple[str, str]:
    return lease.table, lease.tag
