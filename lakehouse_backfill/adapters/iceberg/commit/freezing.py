"""What must stand still while a run is open: the partitioning, and if asked for the whole table."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lakehouse_backfill.adapters.iceberg.commit.conflicts import (
    CommitWindow,
    ErrorWording,
    describe_writer,
)
from lakehouse_backfill.adapters.iceberg.metadata import snapshot_operation, snapshot_summary
from lakehouse_backfill.adapters.iceberg.names import PUBLICATION_PROPERTY
from lakehouse_backfill.errors import TargetChanged


def refuse_foreign_commits(window: CommitWindow, verb: ErrorWording) -> None:
    """Raise TargetChanged for any commit in the window that is no publication of ours.

    Also when history in between is gone: nobody can tell then what came.
    """
    changes = window.changes()
    for snapshot in changes:
        if PUBLICATION_PROPERTY not in snapshot_summary(snapshot):
            what = (
                f"snapshot {snapshot.snapshot_id} ({snapshot_operation(snapshot)} by "
                f"{describe_writer(snapshot)}) came to it"
            )
            break
    else:
        if window.is_whole(changes):
            return
        what = "the history in between is gone"
    raise TargetChanged(
        f"{window.table} cannot be {verb.name}: it is frozen by `safety.freeze`, and since "
        f"snapshot {window.since_id}, {what}",
        state=verb.state,
        fix=f"pause its writers, and {verb.fix}",
    )


def partitioning_change(table: Table, spec_id: int | None) -> str:
    """Say how the table's partitioning changed since it had the spec; empty: it did not."""
    found = table.metadata.default_spec_id
    if spec_id is None or found == spec_id:
        return ""
    specs, schema = table.specs(), table.schema()
    old, new = (_describe_spec(specs[number], schema) for number in (spec_id, found))
    return f"its partitioning changed from {old} to {new}"


def _describe_spec(spec: PartitionSpec, schema: Schema) -> str:
    fields = [
        f"{field.transform}({schema.find_column_name(field.source_id)})" for field in spec.fields
    ]
    return ", ".join(fields) or "none"
