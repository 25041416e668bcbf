"""What lies in the store: files of metadata, and the checks of what is there against what was."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.domain.value import Value


class MetadataFile(Value):
    """A manifest list or a manifest of a snapshot, with its SHA-256.

    `listed_bytes` is the size that the manifest list gives a manifest; None for the list itself.
    """

    path: str
    size_bytes: int
    sha256: str
    listed_bytes: int | None = None


class StoredCheck(Value):
    """One comparison of what is stored with what was accepted; `because` says how it was made.

    `ok` is None where nothing could be compared: `because` then says why.
    """

    name: str
    ok: bool | None
    expected: Any = None
    found: Any = None
    because: str = ""
