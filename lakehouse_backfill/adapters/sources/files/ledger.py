"""Rows of the ledger of files, and the archive that follows it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from lakehouse_backfill.adapters.sources.files.config import FilePlaces, StoreFolder
from lakehouse_backfill.adapters.sources.files.errors import translate_store_errors
from lakehouse_backfill.core.landing.deliveries import DeliveryVerdict
from lakehouse_backfill.domain.sources.landings import (
    FileDelivery,
    FileStatus,
    FoundFile,
    LandingState,
)

_HASHED_AT_ONCE = 8 * 1024 * 1024
_STATUS: dict[str, FileStatus] = {
    "import": "imported",
    "replace": "imported",
    "correction": "correction",
    "duplicate": "duplicate",
    "reject": "rejected",
}


@dataclass(frozen=True)
class JudgedFile:
    """A file, what is done with it, and when it was first seen."""

    file: FoundFile
    verdict: DeliveryVerdict
    first_seen_at: datetime

    def delivery(
        self, source: str, landing_id: str, rows: int | None, reason: str | None = None
    ) -> FileDelivery:
        """Return its row of the ledger; with a reason it is rejected."""
        file, verdict = self.file, self.verdict
        status = "rejected" if reason is not None else _STATUS[verdict.action]
        return FileDelivery(
            file_id=file.path,
            path=file.path,
            size_bytes=file.size_bytes,
            content_hash=file.content_hash,
            landing_manifest_id=file.manifest_id,
            produced_at=file.produced_at,
            business_date=file.business_date.isoformat() if file.business_date else None,
            schema_version=file.schema_version,
            attempt=verdict.attempt,
            status=status,
            first_seen_at=self.first_seen_at,
            source=source,
            landing_id=landing_id,
            row_count=rows,
            reason=reason if reason is not None else verdict.because or None,
        )


def archive_files(places: FilePlaces, state: LandingState) -> None:
    """Move the files of a commit into the archive of accepted or rejected ones.

    Each landing has a folder of its own there. A file that was moved already is left alone, and so
    is one that was replaced in the folder since it was read: it has another hash.
    """
    if places.accepted is None or places.rejected is None:
        return
    for one in state.deliveries:
        folder = places.accepted if one.is_landed else places.rejected
        _move(places.inbox, folder, one, f"{state.landing_id}/{one.path}")


def hash_of(folder: StoreFolder, name: str) -> str:
    """Return the SHA-256 of a file; raises SourceDown."""
    path, hashed = folder.path(name), hashlib.sha256()
    with (
        translate_store_errors(path),
        folder.store.open_input_stream(path, compression=None) as file,
    ):
        while chunk := file.read(_HASHED_AT_ONCE):
            hashed.update(chunk)
    return hashed.hexdigest()


def _move(inbox: StoreFolder, archive: StoreFolder, one: FileDelivery, name: str) -> None:
    from pyarrow.fs import FileType

    source, target = inbox.path(one.path), archive.path(name)
    with translate_store_errors(source):
        found = inbox.store.get_file_info(source)
        if found.type != FileType.File or hash_of(inbox, one.path) != one.content_hash:
            return
        if archive.store.get_file_info(target).type == FileType.File:
            if hash_of(archive, name) == one.content_hash:
                # A copy that was cut off before its last step.
                inbox.store.delete_file(source)
                return
            # An earlier delivery of the path to the same landing.
            target = f"{target}.{one.attempt}"
        archive.store.create_dir(target.rpartition("/")[0], recursive=True)
        if inbox.store.equals(archive.store):
            try:
                inbox.store.move(source, target)
                return
            except OSError:
                pass  # another device: copied below
        _copy_then_delete(inbox, archive, source, target)


def _copy_then_delete(inbox: StoreFolder, archive: StoreFolder, source: str, target: str) -> None:
    """Copy under a name of its own first: a copy that was cut off never looks like the file."""
    with inbox.store.open_input_stream(source, compression=None) as reader:
        unfinished = f"{target}.partial"
        with archive.store.open_output_stream(unfinished, compression=None) as writer:
            while chunk := reader.read(_HASHED_AT_ONCE):
                writer.write(chunk)
    archive.store.move(unfinished, target)
    inbox.store.delete_file(source)
