"""What came to a table since a run, or an accepted version, read it."""

from __future__ import annotations

from datetime import datetime

from lakehouse_backfill.domain.value import Value


class Drift(Value):
    """One commit that changed rows of a scope; `partitions` are those of the scope that it changed.

    `only_deletes`: rows only disappeared, as far as metadata tells: whole files went, or delete
    files came, and no data file was added. A copy-on-write delete adds files, so it is not told
    from an update.
    """

    snapshot_id: int
    operation: str
    writer: str
    at: datetime
    partitions: tuple[str, ...]
    only_deletes: bool

    def __str__(self) -> str:
        at = self.at.isoformat(timespec="seconds")
        return f"snapshot {self.snapshot_id} ({self.operation} by {self.writer} at {at})"
