"""Checksums of partitions as sums over files: what is known is added up, the rest is read once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.comparison.fingerprints import ChecksumsByFile, KnownChecksums
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.fingerprint import FileBytes, FileFingerprint
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table import LiveFile
from lakehouse_backfill.errors import BackfillError, NotFound, Tampered


@dataclass(frozen=True)
class FingerprintedState:
    """A table at a snapshot, its live files, and what is known of those in a scope."""

    table: str
    reading: str = ""
    files: list[LiveFile] = field(default_factory=list)
    known: KnownChecksums = field(default_factory=KnownChecksums)

    @property
    def is_known(self) -> bool:
        """Whether the checksums of all partitions are known without reading a row."""
        return not self.known.unknown


def look_up_fingerprints(
    bench: Context,
    table: str,
    snapshot_id: int | None,
    scope: Scope,
    *,
    rely: bool = True,
    counting: Collection[str] = (),
) -> FingerprintedState:
    """Say what is known of a scope, by metadata and one control table: no row is read.

    Files say how many values they hold of the columns in `counting`.
    With `rely` off nothing counts as known: all of it is to be read, and `keep` holds what is read
    against what was known. Raises Tampered.
    """
    if snapshot_id is None:
        return FingerprintedState(table)
    files = bench.tables.files(table, snapshot_id, scope.field, counting)
    reading = bench.data_files.reading(table, snapshot_id)
    found = _stored_fingerprints(bench, files, scope, reading) if rely else {}
    return FingerprintedState(
        table, reading, files, fingerprints.sum_known_checksums(files, found, scope.partitions)
    )


def partition_checksums(
    bench: Context, table: str, snapshot_id: int | None, scope: Scope, run_id: str | None = None
) -> dict[str, Checksum]:
    """Checksum of each partition of the scope, without lineage columns; those without rows are out.

    Sums over live files. Spark reads only partitions that hold a file which is not known, or that
    delete files touch; what is learnt of files is kept. Raises Tampered.
    """
    state = look_up_fingerprints(bench, table, snapshot_id, scope)
    if snapshot_id is None or state.is_known:
        return fingerprints.complete_checksums(state.known, {})
    unknown = scope.model_copy(update={"partitions": state.known.unknown})
    read = bench.compute().measuring.by_file(
        table, snapshot_id, unknown, LINEAGE_NAMES, state.known.skip
    )
    try:
        record_fingerprints(bench, [(state, read)], run_id)
    except Tampered:
        raise
    except BackfillError as error:
        # The answer is right all the same; who may not write there pays again the next time.
        bench.journal.log("fingerprints not kept", table=table, problem=error.problem)
    return fingerprints.complete_checksums(state.known, read)


def record_fingerprints(
    bench: Context, read: Sequence[tuple[FingerprintedState, ChecksumsByFile]], run_id: str | None
) -> None:
    """Record what readings showed of whole files, with the digest of their bytes; one commit.

    Raises Tampered when a file is not what its table, or an earlier fingerprint, says; NotFound.
    """
    new = tuple(
        one for state, by_file in read for one in _new_fingerprints(bench, state, by_file, run_id)
    )
    if new:
        bench.fingerprints.record(new)


def _new_fingerprints(
    bench: Context, state: FingerprintedState, read: ChecksumsByFile, run_id: str | None
) -> Iterator[FileFingerprint]:
    whole = fingerprints.newly_read_files(state.known, read)
    stored = bench.fingerprints.find(whole)
    listed = [each for each, _ in whole.values()]
    for path, one in fingerprints.match_fingerprints(listed, stored, state.reading).items():
        fingerprints.require_same_rows(one, *whole.pop(path))
    digests = bench.data_files.digests(state.table, whole)
    for each, checksum in whole.values():
        content = _require_file_bytes(digests, each)
        yield FileFingerprint(
            path=each.path,
            table=state.table,
            reading=state.reading,
            partition=each.partition,
            size_bytes=content.size_bytes,
            checksum=checksum,
            sha256=content.sha256,
            run_id=run_id,
            at=bench.clock.now(),
        )


def _stored_fingerprints(
    bench: Context, files: list[LiveFile], scope: Scope, reading: str
) -> dict[str, FileFingerprint]:
    inside = [each for each in files if each.partition in scope.partitions]
    rows = bench.fingerprints.find({each.path for each in inside})
    return fingerprints.match_fingerprints(inside, rows, reading)


def _require_file_bytes(digests: dict[str, FileBytes], each: LiveFile) -> FileBytes:
    """Give the bytes of a file that its table lists; raises NotFound, Tampered."""
    found = digests.get(each.path)
    if found is None:
        raise NotFound(f"{each.path} is gone", fix="restore the file from a copy")
    if found.size_bytes != each.size_bytes:
        what = f"its table says {each.size_bytes} bytes, {found.size_bytes} are there"
        raise fingerprints.tampered_file_error(each.path, what)
    return found
