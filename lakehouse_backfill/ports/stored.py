"""What lies in the store of a table, as its metadata lists it and as it is; no JVM, no rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.stored import MetadataFile
from lakehouse_backfill.domain.table import LiveFile


class StoredFiles(Protocol):
    """Files of one snapshot's partitions; the cost follows them, not the table."""

    def files(self, table: str, snapshot_id: int, scope: Scope) -> tuple[LiveFile, ...]:
        """List the live data files of the scope, by path, as often as the snapshot's manifests do.

        Raises NotFound when table or snapshot are gone, Unsupported when a file lies in the scope
        and beside it.
        """
        ...

    def metadata(self, table: str, snapshot_id: int, scope: Scope) -> tuple[MetadataFile, ...]:
        """Hash the snapshot's manifest list and the manifests that may list files of the scope.

        By path; one that cannot be read is left out. Raises NotFound as `files` does.
        """
        ...

    def sizes(self, table: str, paths: Collection[str]) -> dict[str, int]:
        """Ask the store for the files' sizes; those that are gone are left out."""
        ...
