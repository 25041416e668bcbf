"""Evidence documents, fingerprints of data files, and leases of pins, each in its control table."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.log import (
    LogAppend,
    LogHead,
    row_fields,
    stored_row,
)
from lakehouse_backfill.adapters.iceberg.control.schemas import (
    EVIDENCE,
    FILE_FINGERPRINT,
    PIN_LEASE,
)
from lakehouse_backfill.adapters.iceberg.control.tables import ControlTables, require_not_fenced
from lakehouse_backfill.core.comparison.fingerprints import (
    deduplicate_fingerprints,
    select_unstored,
    tampered_file_error,
)
from lakehouse_backfill.core.runs.event_log import matches_digest, open_document
from lakehouse_backfill.domain.diff import Checksum, FileFingerprint
from lakehouse_backfill.domain.rollout import PinLease
from lakehouse_backfill.domain.serialization import canonical_json, digest


class IcebergEvidence:
    """`ports.control.Evidence` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(EVIDENCE)

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
            rows = head.rows({"run_id": run_id, "kind": kind}, ("digest", "document"))
            newest = rows[-1] if rows else None
            is_newest = (
                newest is not None
                and newest["digest"] == document_digest
                and _is_row_intact(newest)
            )
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


def _is_row_intact(row: Mapping[str, Any]) -> bool:
    return matches_digest(row["document"], row["digest"])


class IcebergFingerprints:
    """`ports.control.Fingerprints` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(FILE_FINGERPRINT)

    def find(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        """Return the fingerprints of the files, oldest first: one by file, reading, partition.

        Raises Tampered when two rows state different contents for one file.
        """
        return (
            deduplicate_fingerprints(_read_fingerprints(self._log.head(), paths)) if paths else ()
        )

    def record(self, found: tuple[FileFingerprint, ...]) -> None:
        """Store those that are not stored yet, in one commit; the same again does nothing.

        Raises Tampered, and stores nothing, when a file is stored with another content.
        """
        paths = {fingerprint.path for fingerprint in found}

        def change(head: LogHead) -> LogAppend[None]:
            new = select_unstored(_read_fingerprints(head, paths), found)
            return LogAppend(
                result=None, rows=tuple(_fingerprint_row(fingerprint) for fingerprint in new)
            )

        if paths:
            self._log.append(change)


def _read_fingerprints(head: LogHead, paths: Collection[str]) -> list[FileFingerprint]:
    return [_fingerprint(row) for row in head.rows({"file_path": frozenset(paths)})]


def _fingerprint_row(one: FileFingerprint) -> dict[str, Any]:
    checksum = one.checksum
    return {
        **stored_row(FILE_FINGERPRINT, one, checksum=checksum.text),
        "row_count": checksum.rows,
        "shape": checksum.shape,
    }


def _fingerprint(row: dict[str, Any]) -> FileFingerprint:
    checksum = Checksum.parse(row["checksum"])
    if not row["shape"].startswith(checksum.shape) or row["row_count"] != checksum.rows:
        raise tampered_file_error(
            row["file_path"], "its checksum, shape and row count contradict each other"
        )
    # The text of a checksum contains only the first digits of its shape.
    checksum = checksum.model_copy(update={"shape": row["shape"]})
    return FileFingerprint(
        **{**row_fields(FILE_FINGERPRINT, row, FileFingerprint), "checksum": checksum}
    )


class IcebergPinLeases:
    """`ports.control.PinLeases` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(PIN_LEASE)

    def grant(self, leases: tuple[PinLease, ...]) -> None:
        """Record leases in one commit; active leases are left out."""
        self._write(leases, is_standing=False)

    def end(self, leases: tuple[PinLease, ...]) -> None:
        """Record in one commit that leases have ended; the same again does nothing."""
        ends = tuple(lease.model_copy(update={"action": "end"}) for lease in leases)
        self._write(ends, is_standing=True)

    def standing(self) -> tuple[PinLease, ...]:
        """List the leases that were granted and have not ended, oldest first."""
        return tuple(_active_leases(self._log.head()).values())

    def _write(self, leases: tuple[PinLease, ...], *, is_standing: bool) -> None:
        if not leases:
            return

        def change(head: LogHead) -> LogAppend[None]:
            active = _active_leases(head)
            changed = [lease for lease in leases if (_lease_key(lease) in active) is is_standing]
            return LogAppend(
                result=None, rows=tuple(stored_row(PIN_LEASE, lease) for lease in changed)
            )

        self._log.append(change)


def _active_leases(head: LogHead) -> dict[tuple[str, str], PinLease]:
    newest: dict[tuple[str, str], PinLease] = {}
    for row in head.rows():
        lease = PinLease(**row_fields(PIN_LEASE, row, PinLease))
        newest.pop(_lease_key(lease), None)
        if lease.action == "grant":
            newest[_lease_key(lease)] = lease
    return newest


def _lease_key(lease: PinLease) -> tuple[str, str]:
    return lease.table, lease.tag
