"""The table of correction events: one append for each act, with its token (U9).

The files are written first, then one conditional append makes the events visible.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import NestedField

from lakehouse_backfill.adapters.iceberg.catalog import (
    COMMIT_BUDGET_S,
    is_lost_race,
    load_table,
    load_table_or_none,
    retry_attempts,
    translate_errors,
)
from lakehouse_backfill.adapters.iceberg.commit.swap import read_commit_result
from lakehouse_backfill.adapters.iceberg.metadata import (
    NEVER_EXPIRES_MS,
    PROPERTY_PREFIX,
    PUBLICATION_PROPERTY,
    RUN_ID_PROPERTY,
    find_publication_snapshot,
)
from lakehouse_backfill.adapters.iceberg.schema import TypeParser
from lakehouse_backfill.core.versions.corrections import (
    CORRECTION_COLUMNS,
    correction_events,
    reversed_events,
)
from lakehouse_backfill.domain.publication import CommitResult
from lakehouse_backfill.domain.rollout import (
    CompensationRequest,
    CorrectionEventsRequest,
    DifferingRow,
)
from lakehouse_backfill.errors import BackfillError, OutcomeUnknown, TooBusy, Unsupported
from lakehouse_backfill.fault_points import commit_window

#: Events in one batch in memory.
EVENT_BATCH_SIZE = 20_000
_NO_EVENT_VISIBLE = "no reader sees an event of this act; the product's table was not touched"


@dataclass(frozen=True)
class IcebergCorrections:
    """`ports.comparison.Corrections` on PyIceberg."""

    catalog: Catalog
    budget_s: float = COMMIT_BUDGET_S

    def write(self, request: CorrectionEventsRequest, rows: Iterable[DifferingRow]) -> CommitResult:
        """Write the events of a publication in one append; nothing if the token's append exists.

        Raises Unsupported (columns that are not ours), TooBusy, OutcomeUnknown.
        """
        self._create_if_missing(request.sink.table)
        marks = {
            RUN_ID_PROPERTY: request.run_id,
            f"{PROPERTY_PREFIX}output-version": str(request.version),
        }
        if request.evidence_digest:
            marks[f"{PROPERTY_PREFIX}evidence-digest"] = request.evidence_digest
        events = correction_events(request, rows)
        return self._append(request.sink.table, request.token, request.tag, events, marks)

    def compensate(self, request: CompensationRequest) -> CommitResult:
        """Write the reverse of publications' events, newest first, in one append; only once."""
        events = reversed_events(request, self._events_to_reverse(request))
        marks = {f"{PROPERTY_PREFIX}takes-back": ",".join(request.tokens)}
        return self._append(request.table, request.token, request.tag, events, marks)

    def find(self, table: str, token: str) -> CommitResult | None:
        """Look in the table for the append of `token`; None when there is none, or no table."""
        loaded = load_table_or_none(self.catalog, table)
        appended = None if loaded is None else find_publication_snapshot(loaded.metadata, token)
        return None if appended is None else read_commit_result(table, appended, 0.0)

    def _append(
        self,
        name: str,
        token: str,
        tag: str,
        made: Iterator[dict[str, Any]],
        marks: dict[str, str],
    ) -> CommitResult:
        started = time.monotonic()
        table = load_table(self.catalog, name)
        _require_correction_columns(name, table)
        appended = find_publication_snapshot(table.metadata, token)
        if appended is not None:
            return read_commit_result(name, appended, time.monotonic() - started)
        files = list(_write_event_files(table, made))
        for number in retry_attempts(self.budget_s):
            if self._commit(
                name, token, tag, files, {**marks, f"{PROPERTY_PREFIX}attempts": str(number)}
            ):
                appended = find_publication_snapshot(load_table(self.catalog, name).metadata, token)
                if appended is not None:
                    return read_commit_result(name, appended, time.monotonic() - started)
        raise TooBusy(
            f"other writers kept winning on {name} for {self.budget_s:.0f} s",
            state=_NO_EVENT_VISIBLE,
            fix="try again, or pause the other writer",
        )

    def _commit(
        self, name: str, token: str, tag: str, files: list[DataFile], marks: dict[str, str]
    ) -> bool:
        """Append the files to the current head; return False when another writer was first."""
        table = load_table(self.catalog, name)
        if find_publication_snapshot(table.metadata, token) is not None:
            return True
        _require_correction_columns(name, table)
        # PyIceberg's own retry would append a second time without a check of the token.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        transaction = table.transaction()
        summary = {**marks, PUBLICATION_PROPERTY: token}
        with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
            for file in files:
                append.append_data_file(file)
        ref = {
            "ref-name": tag,
            "type": SnapshotRefType.TAG,
            "snapshot-id": append.snapshot_id,
            "max-ref-age-ms": NEVER_EXPIRES_MS,
        }
        transaction._apply((SetSnapshotRefUpdate.model_validate(ref),), ())
        transaction.set_properties({PUBLICATION_PROPERTY: token})
        try:
            with commit_window("Corrections.append"):
                transaction.commit_transaction()
        except Exception as error:  # noqa: BLE001 (after any error the commit may have succeeded)
            return False if is_lost_race(error) else self._resolve_outcome(name, token, error)
        return True

    def _resolve_outcome(self, name: str, token: str, cause: Exception) -> bool:
        try:
            is_appended = (
                find_publication_snapshot(load_table(self.catalog, name).metadata, token)
                is not None
            )
        except BackfillError:
            is_appended = False
        if is_appended:
            return True
        raise OutcomeUnknown(
            f"the append to {name} may or may not have landed: {type(cause).__name__}: {cause}",
            state="either all events of this act are there, or none; no file was deleted",
            fix="repeat the same command: it looks at the table first",
        ) from cause

    def _create_if_missing(self, name: str) -> None:
        """Create the table with the documented columns unless it exists."""
        with translate_errors():
            if self.catalog.table_exists(name):
                return
            with commit_window("Catalog.create_namespace"):
                self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            try:
                with commit_window("Catalog.create_table"):
                    self.catalog.create_table(name, _schema(), properties={"format-version": "2"})
            except TableAlreadyExistsError:
                return

    def _events_to_reverse(self, request: CompensationRequest) -> Iterator[Mapping[str, Any]]:
        """Yield the events to reverse, newest first."""
        table = load_table(self.catalog, request.table)
        for token in request.tokens:
            with translate_errors():
                events = table.scan(row_filter=EqualTo(term="publication", value=token)).to_arrow()
            ordered = events.sort_by([("position", "descending")])
            for batch in ordered.to_batches(max_chunksize=EVENT_BATCH_SIZE):
                for event in batch.to_pylist():
                    partitions = request.partitions
                    if partitions is None or event["partition"] in partitions:
                        yield event


def _schema() -> Schema:
    parser = TypeParser()
    return Schema(
        *(
            NestedField(
                parser.next_id(), name, parser.parse(kind.rstrip("!")),
                required=kind.endswith("!"), doc=meaning,
            )
            for name, kind, meaning in CORRECTION_COLUMNS
        )
    )  # fmt: skip


def _require_correction_columns(name: str, table: Table) -> None:
    """Raise Unsupported unless the table has the documented columns; others may be optional."""
    fields = {field.name: field for field in table.schema().fields}
    faults = [
        f"{column} is {fields[column].field_type}, not {kind.rstrip('!')}"
        if column in fields
        else f"{column} {kind.rstrip('!')} is missing"
        for column, kind, _ in CORRECTION_COLUMNS
        if column not in fields or str(fields[column].field_type) != kind.rstrip("!")
    ]
    documented = {column for column, _, _ in CORRECTION_COLUMNS}
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
    with translate_errors():
        while batch := list(islice(made, EVENT_BATCH_SIZE)):
            rows = pa.Table.from_pylist(batch, schema=schema)
            yield from _dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io)
