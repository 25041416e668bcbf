"""The table of correction events: one append for each act, with its token (U9).

The files are written first, then one conditional append makes the events visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lakehouse_backfill.adapters.iceberg import catalog as catalogs
from lakehouse_backfill.adapters.iceberg import metadata
from lakehouse_backfill.adapters.iceberg.commit.snapshot_producer import set_tag_update
from lakehouse_backfill.adapters.iceberg.commit.token_commit import TokenCommit, read_commit_result
from lakehouse_backfill.adapters.iceberg.schema import TypeParser
from lakehouse_backfill.adapters.pyiceberg_rows import keep_null_lists
from lakehouse_backfill.core.versions import corrections
from lakehouse_backfill.domain import rollout
from lakehouse_backfill.domain.labels.names import table_parts
from lakehouse_backfill.domain.publication import MODE_PROPERTY, Publication
from lakehouse_backfill.domain.tables.commits import CommitResult
from lakehouse_backfill.errors import Tampered, Unsupported
from lakehouse_backfill.fault_points import commit_window

keep_null_lists()

#: Events in one batch in memory.
EVENT_BATCH_SIZE = 20_000
_NO_EVENT_VISIBLE = "no reader sees an event of this act; the product's table was not touched"


@dataclass(frozen=True)
class IcebergCorrections:
    """`ports.comparison.Corrections` on PyIceberg."""

    catalog: Catalog
    budget_s: float = catalogs.COMMIT_BUDGET_S

    def write(
        self, request: rollout.CorrectionEventsRequest, rows: Iterable[rollout.DifferingRow]
    ) -> CommitResult:
        """Write the events of a publication in one append; nothing if the token's append exists.

        Raises Unsupported (columns that are not ours), TooBusy, OutcomeUnknown.
        """
        self._create_if_missing(request.sink.table)
        row = request.publication
        marks = {
            metadata.RUN_ID_PROPERTY: str(row.run_id),
            f"{metadata.PROPERTY_PREFIX}output-version": str(row.version),
            MODE_PROPERTY: request.mode,
        }
        if row.evidence_digest:
            marks[f"{metadata.PROPERTY_PREFIX}evidence-digest"] = row.evidence_digest
        events = corrections.correction_events(request, rows)
        return self._append(request.sink.table, row, events, marks)

    def compensate(self, request: rollout.CompensationRequest) -> CommitResult:
        """Write the reverse of publications' events, newest first, in one append; only once."""
        events = corrections.reversed_events(request, self._events_to_reverse(request))
        marks = {
            f"{metadata.PROPERTY_PREFIX}takes-back": ",".join(request.tokens),
            MODE_PROPERTY: request.mode,
        }
        return self._append(request.table, request.publication, events, marks)

    def events_of(self, table: str, token: str) -> Iterator[Mapping[str, Any]]:
        """Yield the events of an act, in the order of their positions; one act is in memory.

        Raises Tampered when the table has not all of them.
        """
        found = self.find(table, token)
        loaded = catalogs.load_table(self.catalog, table)
        with catalogs.translate_errors():
            events = loaded.scan(row_filter=EqualTo(term="publication", value=token)).to_arrow()
        if found is None or events.num_rows != found.rows_added:
            raise Tampered(
                f"{table} has {events.num_rows:,} of the "
                f"{found.rows_added if found else 0:,} events of the act {token}",
                state="none of them was sent by this command",
                fix=f"roll {table} back to a snapshot that has them",
            )
        ordered = events.sort_by("position")
        for batch in ordered.to_batches(max_chunksize=EVENT_BATCH_SIZE):
            yield from batch.to_pylist()

    def find(self, table: str, token: str) -> CommitResult | None:
        """Look in the table for the append of `token`; None when there is none, or no table."""
        loaded = catalogs.load_table_or_none(self.catalog, table)
        appended = (
            None if loaded is None else metadata.find_publication_snapshot(loaded.metadata, token)
        )
        return None if appended is None else read_commit_result(table, appended, 0.0)

    def _append(
        self, name: str, row: Publication, events: Iterator[dict[str, Any]], marks: dict[str, str]
    ) -> CommitResult:
        started = time.monotonic()
        loaded = catalogs.load_table(self.catalog, name)
        _require_correction_columns(name, loaded)
        appended = metadata.find_publication_snapshot(loaded.metadata, row.token)
        if appended is None:
            # Written once, before the time of the attempts begins.
            files = list(_write_event_files(loaded, events))

            def prepare(table: Table, number: int) -> Callable[[], None]:
                _require_correction_columns(name, table)
                attempt = {metadata.ATTEMPTS_PROPERTY: str(number)}
                return _stage_append(
                    table, files, row.tags["after"], row.token, {**marks, **attempt}
                )

            commit = TokenCommit(
                self.catalog,
                name,
                row.token,
                action="append to",
                state=_NO_EVENT_VISIBLE,
                busy_fix="try again, or pause the other writer",
                unknown_state="either all events of this act are there, or none; no file was "
                "deleted",
            )
            appended = commit.run(prepare, self.budget_s)
        return read_commit_result(name, appended, time.monotonic() - started)

    def _create_if_missing(self, name: str) -> None:
        """Create the table with the documented columns unless it exists."""
        with catalogs.translate_errors():
            if self.catalog.table_exists(name):
                return
            with commit_window("Catalog.create_namespace"):
                self.catalog.create_namespace_if_not_exists(table_parts(name)[:-1])
            try:
                with commit_window("Catalog.create_table"):
                    self.catalog.create_table(name, _schema(), properties={"format-version": "2"})
            except TableAlreadyExistsError:
                return

    def _events_to_reverse(
        self, request: rollout.CompensationRequest
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the events to reverse, newest first."""
        table = catalogs.load_table(self.catalog, request.table)
        for token in request.tokens:
            with catalogs.translate_errors():
                events = table.scan(row_filter=EqualTo(term="publication", value=token)).to_arrow()
            ordered = events.sort_by([("position", "descending")])
            for batch in ordered.to_batches(max_chunksize=EVENT_BATCH_SIZE):
                for event in batch.to_pylist():
                    partitions = request.partitions
                    if partitions is None or event["partition"] in partitions:
                        yield event


def _stage_append(
    table: Table, files: list[DataFile], tag: str, token: str, marks: dict[str, str]
) -> Callable[[], None]:
    """Stage one append with its tag and token; return its commit."""
    # PyIceberg's own retry would append a second time without a check of the token.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    transaction, publication = table.transaction(), {metadata.PUBLICATION_PROPERTY: token}
    summary = {**marks, **publication}
    with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
        for file in files:
            append.append_data_file(file)
    transaction._apply((set_tag_update(tag, append.snapshot_id),), ())
    transaction.set_properties(publication)

    def land() -> None:
        with commit_window("Corrections.append"):
            transaction.commit_transaction()

    return land


def _schema() -> Schema:
    parser = TypeParser()
    return Schema(
        *(
            NestedField(
                parser.next_id(), name, parser.parse(kind.rstrip("!")),
                required=kind.endswith("!"), doc=meaning,
            )
            for name, kind, meaning in corrections.CORRECTION_COLUMNS
        )
    )  # fmt: skip


def _require_correction_columns(name: str, table: Table) -> None:
    """Raise Unsupported unless the table has the documented columns; others may be optional."""
    fields = {field.name: field for field in table.schema().fields}
    faults = [
        f"{column} is {fields[column].field_type}, not {kind.rstrip('!')}"
        if column in fields
        else f"{column} {kind.rstrip('!')} is missing"
        for column, kind, _ in corrections.CORRECTION_COLUMNS
        if column not in fields or str(fields[column].field_type) != kind.rstrip("!")
    ]
    documented = {column for column, _, _ in corrections.CORRECTION_COLUMNS}
    faults += [
        f"{field.name} is required and unknown"
        for field in fields.values()
        if field.required and field.name not in documented
    ]
    if faults:
        raise Unsupported(
            f"{name} is no table of correction events: {'; '.join(faults)}",
            state=_NO_EVENT_VISIBLE,
            fix="name another table in target.corrections, or one that does not exist: it is "
            "created with the columns of docs/corrections.md",
        )


def _write_event_files(table: Table, made: Iterator[dict[str, Any]]) -> Iterator[DataFile]:
    """Write the events to data files, one batch in memory at a time."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    schema = table.schema().as_arrow()
    with catalogs.translate_errors():
        while batch := list(islice(made, EVENT_BATCH_SIZE)):
            rows = pa.Table.from_pylist(batch, schema=schema)
            yield from _dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io)
