"""The control tables: their names, columns and properties.

JSON documents, ids and hashes are strings, instants are `timestamptz` (microseconds, UTC). The
tables have no partitioning, and every column has a doc text, so every engine reads and shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from pydantic import BaseModel
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, NestedField, StringType

ModelT = TypeVar("ModelT", bound=BaseModel)
#: The first columns of every control table.
LOG_SEQ = "log_seq"
LOG_ID = "log_id"
_LOG_COLUMNS = (
    (LOG_SEQ, "long!", "Order of the rows: grows with every row appended."),
    (LOG_ID, "string!", "The commit that appended the row; shared by rows appended together."),
)

#: PyIceberg's own retries would append a second time on a newer head without a new decision
#: (48 duplicate versions in 160 moves), so only our loop retries.
CONTROL_TABLE_PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}


@dataclass(frozen=True)
class ControlTable:
    """One control table: its name, what a row is, and its columns (name, type, meaning).

    A type that ends in `!` is never null; `[string]` is a list of strings. `renamed` maps a field
    of the stored value to its column, where the names differ.
    """

    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    renamed: Mapping[str, str] = field(default_factory=dict)

    def schema(self) -> Schema:
        """Return the Iceberg schema, with a doc text on every column."""
        columns = (*_LOG_COLUMNS, *self.columns)
        nested_ids = count(len(columns) + 1)
        return Schema(
            *(
                NestedField(
                    field_id=number,
                    name=name,
                    field_type=_iceberg_type(text.rstrip("!"), nested_ids),
                    required=text.endswith("!"),
                    doc=doc,
                )
                for number, (name, text, doc) in enumerate(columns, start=1)
            )
        )

    def properties(self) -> dict[str, str]:
        """Return the table properties."""
        return {**CONTROL_TABLE_PROPERTIES, "comment": self.comment}

    def missing_columns(self, schema: Schema) -> tuple[tuple[str, IcebergType, str], ...]:
        """Return the columns, with type and meaning, that a table of an older release lacks."""
        present = set(schema.column_names)
        return tuple(
            (name, _iceberg_type(text.rstrip("!"), count(1)), doc)
            for name, text, doc in self.columns
            if name not in present
        )

    def row(self, value: BaseModel, **replaced: Any) -> dict[str, Any]:
        """Return the row of a stored value; `replaced` are fields stored in another form."""
        fields = {**value.model_dump(), **replaced}
        return {self.renamed.get(name, name): each for name, each in fields.items()}

    def fields(self, row: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
        """Return the fields of `model` that the row has a value for.

        A field with a default is left out if its value is null or its column is missing.
        """
        values = {name: row.get(self.renamed.get(name, name)) for name in model.model_fields}
        return {
            name: value
            for name, value in values.items()
            if value is not None or model.model_fields[name].is_required()
        }

    def read(self, row: Mapping[str, Any], model: type[ModelT], **replaced: Any) -> ModelT:
        """Return the stored value; `replaced` are fields that are stored in another form."""
        return model(**{**self.fields(row, model), **replaced})


def _iceberg_type(text: str, nested_ids: Iterator[int]) -> IcebergType:
    if text == "[string]":
        return ListType(element_id=next(nested_ids), element_type=StringType())
    return NestedField(0, "column", text).field_type


_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

#: Name of the view on `accepted_output_version`: one row per data_product.
CURRENT_VIEW = "accepted_output_current"
#: Columns that a table of an older release lacks until it is written to: not in the view.
_NEWER_COLUMNS = ("epoch", "returns_to", "driver", "seal", "signature")
#: The columns of an act: of which table and product, when, by whom.
_ACT_COLUMNS = {
    "table": "table_name",
    "product": "data_product",
    "at": "acted_at",
    "by": "acted_by",
}

PIPELINE_RUN = ControlTable(
    "pipeline_run",
    "One row per run: the approved intent, with everything resolved.",
    (
        ("run_id", "string!", "Id of the run."),
        ("data_product", "string!", "The product that the run restates."),
        ("kind", "string!", "backfill, reprocessing, restatement, repair, migration, …"),
        ("mode", "string!", "Execution mode: live, backfill, replay, dry_run, reconciliation."),
        ("requested_by", "string!", "Person or system that asked for the run."),
        ("reason", "string!", "Why, in a sentence that a consumer understands."),
        ("reason_code", "string!", "The reason as a code, for reports."),
        ("transform", "string!", "Name of the transform."),
        ("transform_version", "string!", "Semantic version of the transform."),
        ("git_commit", "string", "Commit of the project; null outside a repository."),
        ("target_table", "string!", "The table that is restated."),
        ("target_snapshot_id", "long", "Head of the target when planned; null if it was empty."),
        ("shadow_table", "string!", "The table that the run writes into."),
        ("partitions", "[string]", "The partitions that the run may change, in order."),
        ("manifest_hash", "string!", "SHA-256 of the resolved run manifest."),
        ("revises", "string", "The run that this one is a new revision of."),
        ("created_at", "timestamptz!", "When the run was planned."),
        ("created_by", "string!", "Who planned it."),
        ("plan", "string!", "The whole plan as JSON."),
    ),
)

RUN_EVENT = ControlTable(
    "run_event",
    "One row per event of a run; the newest (highest seq) says where the run stands.",
    (
        ("run_id", "string!", "Id of the run."),
        ("seq", "int!", "1, 2, 3 … within the run, without gaps."),
        ("data_product", "string!", "The product that the run restates."),
        ("at", "timestamptz!", "When it happened."),
        ("actor", "string!", "Who did it."),
        ("verb", "string!", "What was done, e.g. approve, begin staging."),
        ("from_state", "string!", "State before."),
        ("to_state", "string!", "State after; equal to from_state for a note."),
        ("mode", "string!", "Execution mode of the run."),
        ("driver", "string", "The process that drives the run from here on, if any."),
        ("detail", "string!", "Further facts as JSON."),
        ("epoch", "int", "Number of the event that began the newest lease; 0: there was none."),
        ("previous", "string", "Hash of the event before it; empty for the first one."),
        ("hash", "string", "SHA-256 over the row and `previous`; null: before events had one."),
    ),
    {"product": "data_product"},
)

ACCEPTED_OUTPUT_VERSION = ControlTable(
    "accepted_output_version",
    "One row per act on a product's accepted version; kept for ever. The newest row with action "
    "baseline, publish or rollback is what consumers read.",
    (
        ("data_product", "string!", "The product."),
        ("output_version", "long!", "1, 2, 3 … per product; 0: the state before the first run."),
        ("token", "string!", "Names the act; stands in the target's snapshot summary."),
        ("action", "string!", "baseline, reserve, publish, rollback, release or expire."),
        ("run_id", "string", "The run that made the version."),
        ("table_name", "string!", "The table that holds the version."),
        ("snapshot_id", "long", "Snapshot of that table that holds the version."),
        ("before_snapshot_id", "long", "Head of that table right before the act."),
        ("scope", "string", "The partitions that the act changed, as JSON."),
        ("supersedes", "long", "The version that was accepted before."),
        ("acted_at", "timestamptz!", "When the act was recorded."),
        ("acted_by", "string!", "Who acted."),
        ("approved_by", "[string]", "Who approved the intent."),
        ("accepted_by", "[string]", "Who accepted the result."),
        ("manifest_hash", "string", "The intent that was approved."),
        ("result_digest", "string", "The digest of checks and diff that was accepted."),
        ("evidence_digest", "string", "Digest of the archive of what was accepted."),
        ("reason", "string!", "Why."),
        ("epoch", "int", "Lease of the process that acted; null or 0: it acted without one."),
        ("returns_to", "long", "For a rollback: the version that it leads to."),
        ("driver", "string", "The process that acted."),
        ("seal", "string", "SHA-256 of the row and the seal of the product's row before it."),
        ("signature", "string", "Signed statement of who acted: a DSSE envelope in JSON."),
    ),
    {**_ACT_COLUMNS, "version": "output_version"},
)

BACKFILL_CHUNK_RUN = ControlTable(
    "backfill_chunk_run",
    "The chunk ledger, derived from the shadow's snapshot log; the newest row of a chunk counts.",
    (
        ("run_id", "string!", "Id of the run."),
        ("chunk_id", "string!", "Id of the chunk within the run."),
        ("partitions", "[string]", "Target partitions computed together."),
        ("status", "string!", "done or failed."),
        ("input_rows", "long!", "Rows read from the pinned inputs."),
        ("output_rows", "long!", "Rows written to the shadow."),
        ("outside_rows", "long!", "Rows computed outside the chunk's range and left out."),
        ("checksum", "string!", "Checksum of the rows written, with its algorithm."),
        ("seconds", "double!", "Wall-clock time of the chunk."),
        ("snapshot_id", "long", "The shadow's snapshot that holds the chunk."),
        ("finished_at", "timestamptz!", "When it was finished."),
        ("recovered", "boolean!", "Whether the row was written later, from the snapshot log."),
        ("epoch", "int", "Lease of the process that wrote the row; null or 0: it had none."),
        ("problem", "string", "Why the chunk failed; null or empty if it did not."),
        ("carried_from", "string", "The run that computed it, if this run took its files over."),
        ("left_out_rows", "long", "Rows left out because tombstones or deletions name them."),
        ("carried_rows", "long", "Rows of the base that were carried over unchanged."),
        ("stray_rows", "long", "Rows of the job that `row_predicate` does not name: left out."),
        ("inserted_rows", "long", "Merge: keys that were new."),
        ("updated_rows", "long", "Merge: keys whose row was replaced by a newer version."),
        ("deleted_rows", "long", "Merge: keys that an explicit delete removed."),
        ("ignored_rows", "long", "Merge: change rows without effect: older, or the same again."),
        ("rejected_rows", "long", "Rows that the transform rejected; null: it declares none."),
        ("reject_reasons", "[string]", "How many rows for which reason, the most first."),
        ("rejects_seal", "string", "SHA-256 of the seals of its rows in `reject_record`."),
        ("pace", "[string]", "What changed how many chunks are side by side, and why."),
        ("state", "string", "State of a stateful job: table, checksum, key, last partition."),
        ("late_rows", "long", "Late rows in the input of a stateful job; null: it judges none."),
    ),
)

FILE_FINGERPRINT = ControlTable(
    "file_fingerprint",
    "One row per data file and reading of it: files never change, so each is hashed once.",
    (
        ("file_path", "string!", "Path of the data file."),
        ("table_name", "string!", "The table for which it was hashed."),
        ("partition", "string", "Label of its partition; null if it is not in the scoped spec."),
        ("row_count", "long!", "Rows of the file."),
        ("size_bytes", "long!", "Size of the file."),
        ("checksum", "string!", "Order-independent checksum of its rows, with its algorithm."),
        ("sha256", "string", "SHA-256 of the file's bytes, as tamper evidence."),
        ("recorded_at", "timestamptz!", "When it was hashed."),
        ("shape", "string", "Digest of the hashed columns' names and types: part of the checksum."),
        ("reading", "string", "Digest of what the columns are in the table, field ids too."),
        ("run_id", "string", "The run that hashed it; null: a command beside runs."),
    ),
    {"path": "file_path", "table": "table_name", "at": "recorded_at"},
)

EVIDENCE = ControlTable(
    "evidence",
    "Documents that show why a run was accepted, each under its digest.",
    (
        ("run_id", "string!", "Id of the run."),
        ("kind", "string!", "What the document is, e.g. validation."),
        ("digest", "string!", "SHA-256 of the document's canonical JSON."),
        ("document", "string!", "The document as canonical JSON."),
        ("recorded_at", "timestamptz!", "When it was recorded."),
        ("epoch", "int", "Lease of the process that recorded it; null or 0: it had none."),
    ),
)

REJECT_RECORD = ControlTable(
    "reject_record",
    "Rows that transforms rejected: for each chunk, those with the newest `rejected_at` count.",
    (
        ("run_id", "string!", "Id of the run."),
        ("chunk_id", "string", "The chunk that met the record."),
        ("source", "string!", "Names of the sources in the run manifest."),
        ("record_key", "string", "Key of the record, as JSON; restricted columns are hidden."),
        ("reason", "string!", "Why it was rejected."),
        ("record", "string", "The record as JSON; restricted columns are hidden."),
        ("rejected_at", "timestamptz!", "When it was rejected."),
        ("seal", "string", "SHA-256 of the row; null: an older release wrote it."),
    ),
)

FILE_IMPORT_LEDGER = ControlTable(
    "file_import_ledger",
    "One row per attempt to import a landed file; the newest row of a file counts.",
    (
        ("file_id", "string!", "Id of the file."),
        ("path", "string!", "Where it lies."),
        ("size_bytes", "long!", "Size of the file."),
        ("content_hash", "string!", "SHA-256 of its bytes."),
        ("landing_manifest_id", "string", "The landing manifest that lists it."),
        ("produced_at", "timestamptz", "The producer's own timestamp."),
        ("business_date", "string", "The business date that it belongs to, ISO."),
        ("schema_version", "string", "Version of its schema."),
        ("attempt", "int!", "1, 2, 3 … per file."),
        ("status", "string!", "imported, duplicate, correction or rejected."),
        ("first_seen_at", "timestamptz!", "When it was first seen."),
        ("accepted_run_id", "string", "The run whose accepted output contains it."),
        ("source", "string", "The declared source that it was found in."),
        ("landing_id", "string", "The landing that met it; its rows have the same."),
        ("row_count", "long", "Rows that were landed of it; null if none were."),
        ("reason", "string", "Why it was not landed, or why it was landed again."),
    ),
)

REPLAY_JOB = ControlTable(
    "replay_job",
    "One row per state of a replay of events; the newest row of a job counts.",
    (
        ("replay_id", "string!", "Id of the replay."),
        ("run_id", "string!", "The run that it belongs to; the replay itself without a run."),
        ("topic", "string!", "Topic or table that is replayed."),
        ("start_offsets", "string!", "What is replayed, as JSON: first offsets, or a selection."),
        ("end_offsets", "string!", "Offsets to stop before, by partition, as JSON."),
        ("position", "string", "Checkpoint as JSON: offsets, or place in the order of events."),
        ("status", "string!", "planned, running, done, failed or cancelled."),
        ("events", "long!", "Events handled so far, over all commands of the replay."),
        ("suppressed", "long!", "Events whose outside effects were suppressed."),
        ("updated_at", "timestamptz!", "When the row was written."),
        ("handler", "string", "Handler and version; null: none."),
        ("snapshot_id", "long", "Snapshot of the table that is replayed."),
        ("total", "long", "Events to handle, counted when the replay began."),
        ("skipped", "long", "Events that do not concern the handler."),
        ("rejected", "long", "Events that the handler rejected."),
    ),
)

PROCESSED_EVENT = ControlTable(
    "processed_event",
    "One row per event that a handler has seen: makes handling idempotent.",
    (
        ("handler", "string!", "Name and version of the handler."),
        ("event_id", "string!", "Id of the event."),
        ("outcome", "string!", "done, skipped, suppressed or rejected."),
        ("run_id", "string", "The replay or run that handled it; null when live."),
        ("processed_at", "timestamptz!", "When it was handled."),
        ("source", "string", "The event store that it is from."),
        ("detail", "string", "Why it was rejected, or which messages were suppressed, as JSON."),
    ),
)

PIN_LEASE = ControlTable(
    "pin_lease",
    "One row when a run pins a snapshot, before the tag is created, and one when the pin ends; "
    "the newest row of a table and tag counts.",
    (
        ("table_name", "string!", "The table whose snapshot is pinned."),
        ("tag", "string!", "Name of the tag."),
        ("snapshot_id", "long!", "The snapshot that the tag keeps."),
        ("run_id", "string!", "The run that needs it."),
        ("data_product", "string!", "The product that the run restates."),
        ("owner", "string!", "Who asked for the run."),
        ("reason", "string!", "Why it is pinned; in a row that ends the pin: why it ended."),
        ("until", "timestamptz!", "Kept until then, and for as long as the run is open."),
        ("action", "string!", "grant or end."),
        ("acted_at", "timestamptz!", "When the row was written."),
        ("acted_by", "string!", "Who acted."),
    ),
    _ACT_COLUMNS,
)

CONTROL_TABLES = (
    PIPELINE_RUN,
    RUN_EVENT,
    ACCEPTED_OUTPUT_VERSION,
    BACKFILL_CHUNK_RUN,
    FILE_FINGERPRINT,
    EVIDENCE,
    REJECT_RECORD,
    FILE_IMPORT_LEDGER,
    REPLAY_JOB,
    PROCESSED_EVENT,
    PIN_LEASE,
)
#: Created together before the first row is written: one that is missing later was dropped. A table
#: that a later release adds does not belong here, as older lakes lack it until they are written to.
CONTROL_TABLE_NAMES = frozenset(table.name for table in CONTROL_TABLES)


def current_view_select(catalog: str, namespace: str) -> str:
    """Return the SELECT of the view `accepted_output_current`: one row per data_product.

    Both names are checked to be plain identifiers; no other text is inserted.
    """
    for name in (catalog, namespace):
        if not _PLAIN_IDENTIFIER.fullmatch(name):
            raise ValueError(f"{name!r} is not a plain identifier")
    columns = (name for name, _, _ in ACCEPTED_OUTPUT_VERSION.columns if name not in _NEWER_COLUMNS)
    names = ", ".join(columns)
    return (
        f"SELECT {names} FROM (SELECT *, row_number() OVER "  # noqa: S608 (checked identifiers)
        f"(PARTITION BY data_product ORDER BY {LOG_SEQ} DESC) AS newest "
        f"FROM `{catalog}`.`{namespace}`.{ACCEPTED_OUTPUT_VERSION.name} "
        f"WHERE action IN ('baseline', 'publish', 'rollback')) WHERE newest = 1"
    )
