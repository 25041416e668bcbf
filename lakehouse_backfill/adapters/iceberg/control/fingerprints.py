"""Fingerprints of data files, on `file_fingerprint`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lakehouse_backfill.adapters.iceberg.control.control import ControlTables
from lakehouse_backfill.adapters.iceberg.control.control_log import LogAppend, LogHead
from lakehouse_backfill.adapters.iceberg.control.control_schemas import FILE_FINGERPRINT
from lakehouse_backfill.core.comparison.fingerprints import (
    deduplicate_fingerprints,
    select_unstored,
    tampered_file_error,
)
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.fingerprint import FileFingerprint


class IcebergFingerprints:
    """`ports.fingerprints.Fingerprints` on PyIceberg."""

    def __init__(self, tables: ControlTables) -> None:
        self._log = tables.log(FILE_FINGERPRINT)

    def find(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        """All fingerprints of the files, oldest first: one of each file, reading and partition.

        Raises Tampered when two rows give one file different contents.
        """
        return (
            deduplicate_fingerprints(_read_fingerprints(self._log.head(), paths)) if paths else ()
        )

    def record(self, found: tuple[FileFingerprint, ...]) -> None:
        """Store those that are not stored yet, in one commit; the same again does nothing.

        Raises Tampered, and stores nothing, when a file is known with another content.
        """
        paths = {one.path for one in found}

        def change(head: LogHead) -> LogAppend[None]:
            new = select_unstored(_read_fingerprints(head, paths), found)
            return LogAppend(result=None, rows=tuple(_fingerprint_row(one) for one in new))

        if paths:
            self._log.append(change)


def _read_fingerprints(head: LogHead, paths: Collection[str]) -> list[FileFingerprint]:
    return [_fingerprint(row) for row in head.rows({"file_path": frozenset(paths)})]


def _fingerprint_row(one: FileFingerprint) -> dict[str, Any]:
    return {
        "file_path": one.path,
        "table_name": one.table,
        "partition": one.partition,
        "row_count": one.checksum.rows,
        "size_bytes": one.size_bytes,
        "checksum": one.checksum.text,
        "sha256": one.sha256,
        "recorded_at": one.at,
        "shape": one.checksum.shape,
        "reading": one.reading,
        "run_id": one.run_id,
    }


def _fingerprint(row: dict[str, Any]) -> FileFingerprint:
    checksum = Checksum.parse(row["checksum"])
    if not row["shape"].startswith(checksum.shape) or row["row_count"] != checksum.rows:
        raise tampered_file_error(
            row["file_path"], "its checksum, shape and row count contradict each other"
        )
    # The text of a checksum has the first digits of its shape only.
    checksum = checksum.model_copy(update={"shape": row["shape"]})
    return FileFingerprint(
        path=row["file_path"],
        table=row["table_name"],
        reading=row["reading"],
        partition=row["partition"],
        size_bytes=row["size_bytes"],
        checksum=checksum,
        sha256=row["sha256"],
        run_id=row["run_id"],
        at=row["recorded_at"],
    )
