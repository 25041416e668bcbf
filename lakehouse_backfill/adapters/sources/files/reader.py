"""Files in a folder or bucket: found, judged by the ledger, and read whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lakehouse_backfill.adapters.sources.files import formats
from lakehouse_backfill.adapters.sources.files.capabilities import FILES
from lakehouse_backfill.adapters.sources.files.config import FilePlaces
from lakehouse_backfill.adapters.sources.files.errors import bad_file, translate_store_errors
from lakehouse_backfill.adapters.sources.files.ledger import JudgedFile, archive_files, hash_of
from lakehouse_backfill.core.landing import deliveries
from lakehouse_backfill.domain.sources.declaration import (
    FILE_COLUMNS,
    FileSource,
    SourceDeclaration,
)
from lakehouse_backfill.domain.sources.landings import (
    ExpectedFile,
    FileDelivery,
    FoundFile,
    LandingManifest,
    LandingRequest,
    LandingState,
    LandingSurvey,
    PlannedPart,
)
from lakehouse_backfill.errors import Blocked, ConfigError
from lakehouse_backfill.ports.sources import SourceCheckpoint

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FileReader:
    """`ports.sources.SourceReader` for files."""

    source: SourceDeclaration
    places: FilePlaces
    schema: pa.Schema
    now: Callable[[], datetime]
    capabilities = FILES

    @property
    def _declared(self) -> FileSource:
        if self.source.files is None:
            raise ConfigError(f"{self.source.source} declares no files", fix="add files:")
        return self.source.files

    def survey(self, request: LandingRequest, known: tuple[FileDelivery, ...]) -> LandingSurvey:
        """Return which files are there and what is done with each; rows are not read.

        Raises Blocked when the landing manifest does not fit, SourceDown.
        """
        declared, ledger = self._declared, deliveries.KnownDeliveries(known)
        manifest = self._read_manifest()
        expected = {one.path: one for one in manifest.files} if manifest else {}
        found = {}
        for name, size in self._list_names().items():
            listed = expected.get(name)
            day = listed.business_date if listed and listed.business_date else self._day_of(name)
            if request.holds(day):
                found[name] = self._describe(name, size, day, listed, manifest)
        if manifest is not None:
            wanted = self._in_range(manifest, request)
            deliveries.check_landing_manifest(wanted, found, ledger)
        policy, stays = declared.on_duplicate, self.places.keeps_files
        judged = deliveries.without_repeated_content(
            [
                (file, deliveries.judge_delivery(file, ledger, policy, stays=stays))
                for file in found.values()
            ],
            policy,
        )
        news = [self._judged(file, verdict, ledger) for file, verdict in judged]
        wanted_files = [one for one in news if self._is_news(one, ledger)]
        return LandingSurvey(
            parts=tuple(
                PlannedPart(file.path, verdict.action, verdict.because) for file, verdict in judged
            ),
            size_bytes=sum(one.file.size_bytes for one in wanted_files if one.verdict.is_read),
            detail=(tuple(wanted_files), ledger),
        )

    def checkpoints(self, survey: LandingSurvey, state: LandingState) -> Iterator[SourceCheckpoint]:
        """Yield groups of files; each file is read when its group is taken."""
        files, ledger = survey.detail
        at_once = self._declared.files_per_commit
        for start in range(0, len(files), at_once):
            group = files[start : start + at_once]
            read = [one for one in group if one.verdict.is_read]
            yield SourceCheckpoint(
                parts=tuple(_FilePart(self, one, state.landing_id, ledger) for one in read),
                position=state.position,
                deliveries=tuple(
                    one.delivery(self.source.source, state.landing_id, None)
                    for one in group
                    if not one.verdict.is_read
                ),
                replaces=tuple(one.file.path for one in read if one.verdict.action == "replace"),
            )

    def finish(self, state: LandingState) -> None:
        """Archive the files of the newest commit; again changes nothing."""
        archive_files(self.places, state)

    def read_rows(self, one: JudgedFile) -> pa.Table:
        """Return the rows of a file in the columns of the raw table; raises RejectedInput."""
        import pyarrow as pa

        file, declared = one.file, self._declared
        if file.size_bytes > declared.max_file_mib * 1024 * 1024:
            raise bad_file(file.path, f"is larger than max_file_mib: {declared.max_file_mib}")
        content = self._read_whole(file.path)
        if hashlib.sha256(content).hexdigest() != file.content_hash:
            raise bad_file(file.path, "was changed while it was read")
        of_file = {name for name, _, _ in FILE_COLUMNS}
        schema = pa.schema([field for field in self.schema if field.name not in of_file])
        rows = formats.parse(declared, file.path, content, schema, self.source.change_log)
        if file.expected_rows is not None and rows.num_rows != file.expected_rows:
            because = f"has {rows.num_rows} rows; its landing manifest says {file.expected_rows}"
            raise bad_file(file.path, because)
        return self._with_file_columns(rows, one)

    def _with_file_columns(self, rows: pa.Table, one: JudgedFile) -> pa.Table:
        import pyarrow as pa

        count = rows.num_rows
        values = {
            "source_file": one.file.path,
            "source_attempt": one.verdict.attempt,
            "business_date": one.file.business_date,
        }
        columns = {name: rows[name] for name in rows.column_names}
        columns["source_row"] = pa.array(range(1, count + 1), pa.int64())
        for name, value in values.items():
            columns[name] = pa.repeat(pa.scalar(value, self.schema.field(name).type), count)
        return pa.table([columns[field.name] for field in self.schema], schema=self.schema)

    def _read_whole(self, name: str) -> bytes:
        path = self.places.inbox.path(name)
        store = self.places.inbox.store
        with translate_store_errors(path), store.open_input_stream(path, compression=None) as file:
            return bytes(file.read())

    def _list_names(self) -> dict[str, int]:
        listed = self._declared.landing_manifest
        leave_out = frozenset({listed.file}) if listed else frozenset()
        return self.places.list_names(self._declared.pattern, leave_out)

    def _describe(
        self,
        name: str,
        size: int,
        day: date | None,
        listed: ExpectedFile | None,
        manifest: LandingManifest | None,
    ) -> FoundFile:
        path, content_hash = self.places.inbox.path(name), hash_of(self.places.inbox, name)
        with translate_store_errors(path):
            changed_at = self.places.inbox.store.get_file_info(path).mtime
        if changed_at is not None and changed_at.tzinfo is None:
            changed_at = changed_at.replace(tzinfo=timezone.utc)
        return FoundFile(
            path=name,
            size_bytes=size,
            content_hash=content_hash,
            produced_at=(listed.produced_at if listed else None) or changed_at,
            business_date=day,
            manifest_id=manifest.id if manifest and listed else None,
            schema_version=(listed.schema_version if listed else None)
            or self._declared.schema_version,
            expected_rows=listed.rows if listed else None,
        )

    def _judged(
        self,
        file: FoundFile,
        verdict: deliveries.DeliveryVerdict,
        ledger: deliveries.KnownDeliveries,
    ) -> JudgedFile:
        first = ledger.first_seen(file)
        return JudgedFile(file, verdict, first.first_seen_at if first else self.now())

    def _is_news(self, one: JudgedFile, ledger: deliveries.KnownDeliveries) -> bool:
        """Return whether a file is read or recorded; a file that stays is judged every time."""
        if one.verdict.action == "skip":
            return False
        if one.verdict.is_read or not self.places.keeps_files:
            return True
        status = "rejected" if one.verdict.action == "reject" else "duplicate"
        return not deliveries.is_recorded(one.file, ledger, status, one.verdict.because)

    def _day_of(self, name: str) -> date | None:
        """Return the business date in a name; None where it has none."""
        if self._declared.business_date is None:
            return None
        found = re.search(self._declared.business_date, name)
        text = ((found.group(1) if found else "") or "").replace("-", "")
        try:
            return datetime.strptime(text, "%Y%m%d").date()  # noqa: DTZ007 (a date, no instant)
        except ValueError:
            return None

    def _in_range(self, manifest: LandingManifest, request: LandingRequest) -> LandingManifest:
        listed = tuple(
            one
            for one in manifest.files
            if request.holds(one.business_date or self._day_of(one.path))
        )
        return manifest.model_copy(update={"files": listed})

    def _read_manifest(self) -> LandingManifest | None:
        """Read the list of expected files; raises Blocked when it is missing or is no list."""
        from pyarrow.fs import FileType

        declared = self._declared.landing_manifest
        if declared is None:
            return None
        path = self.places.inbox.path(declared.file)
        with translate_store_errors(path):
            is_there = self.places.inbox.store.get_file_info(path).type == FileType.File
        if not is_there:
            if not declared.required:
                return None
            raise _manifest_error(f"the landing manifest {declared.file} is not there")
        try:
            return LandingManifest.model_validate(json.loads(self._read_whole(declared.file)))
        except (ValueError, ValidationError) as error:
            problem = " ".join(str(error).split())[:200]
            raise _manifest_error(f"{declared.file} is no landing manifest: {problem}") from error


def _manifest_error(problem: str) -> Blocked:
    return Blocked(
        problem,
        state="nothing was landed",
        fix="wait for the producer to complete the delivery, then give the command again",
    )


@dataclass(frozen=True)
class _FilePart:
    """One file, landed whole or rejected whole."""

    reader: FileReader
    one: JudgedFile
    landing_id: str
    ledger: deliveries.KnownDeliveries

    def batches(self) -> Iterator[Any]:
        """Yield its rows; raises RejectedInput before the first one when the file is bad."""
        yield self.reader.read_rows(self.one)

    def landed(self, rows: int) -> FileDelivery:
        """Return its row of the ledger."""
        return self.one.delivery(self.reader.source.source, self.landing_id, rows)

    def rejected(self, reason: str) -> FileDelivery | None:
        """Return its row of the ledger; None when the ledger says the same of it already."""
        stays = self.reader.places.keeps_files
        if stays and deliveries.is_recorded(self.one.file, self.ledger, "rejected", reason):
            return None
        return self.one.delivery(self.reader.source.source, self.landing_id, None, reason)
