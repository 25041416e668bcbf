"""What a data file holds: the checksum of its rows as they read, and the digest of its bytes."""

from __future__ import annotations

from datetime import datetime

from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.value import Value


class FileBytes(Value):
    """A file's bytes as they lie in the store: how many, and their SHA-256 (64 hex digits)."""

    size_bytes: int
    sha256: str


class FileFingerprint(Value):
    """One data file, hashed once: its rows without those that delete files hide, and its bytes.

    `reading` names what the columns of the table are to the file (field ids, names, types): under
    another schema the same bytes read as other rows, and have another fingerprint.
    """

    path: str
    table: str
    reading: str
    partition: str | None
    size_bytes: int
    checksum: Checksum
    sha256: str
    run_id: str | None
    at: datetime
