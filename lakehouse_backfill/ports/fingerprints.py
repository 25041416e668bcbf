"""Fingerprints of data files, and what they are taken of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from lakehouse_backfill.domain.fingerprint import FileBytes, FileFingerprint
from lakehouse_backfill.fault_points import side_effect


class Fingerprints(Protocol):
    """What is known of data files: they never change, so each is hashed once in its life.

    Rows have no epoch: whoever writes one, what a file holds is the same.
    """

    def find(self, paths: Collection[str]) -> tuple[FileFingerprint, ...]:
        """All fingerprints of the files, oldest first: one of each file, reading and partition.

        Raises Tampered when two rows give one file different contents.
        """
        ...

    @side_effect
    def record(self, found: tuple[FileFingerprint, ...]) -> None:
        """Store those that are not stored yet, in one commit; the same again does nothing.

        Raises Tampered, and stores nothing, when a file is known with another content: it is not
        the file that was hashed then, or its row was edited.
        """
        ...


class DataFiles(Protocol):
    """Data files as they lie in the store, and how a table reads them; no JVM."""

    def reading(self, table: str, snapshot_id: int) -> str:
        """Give the digest of what the columns of a snapshot are: field ids, names, types.

        A file has the same rows under equal readings. Lineage columns, order, documentation and
        whether a column is required do not count, nor do promotions that keep the row hash.
        """
        ...

    def digests(self, table: str, paths: Collection[str]) -> dict[str, FileBytes]:
        """Read the files' bytes, several at a time; those that are gone are left out."""
        ...
