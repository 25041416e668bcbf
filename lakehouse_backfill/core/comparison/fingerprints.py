"""Partition checksums as sums over the fingerprints of data files.

Known files are added up, the others are read once and recorded. A file whose rows or bytes
contradict its fingerprint raises Tampered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakehouse_backfill.command_lines import command_line
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import PartitionBalance
from lakehouse_backfill.domain.comparison.checksums import Checksum, FileBytes, FileFingerprint
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import BackfillError, NotFound, Tampered

#: Checksums of what was read, by partition label and file.
ChecksumsByFile = Mapping[tuple[str, str], Checksum]


@dataclass(frozen=True)
class KnownChecksums:
    """What is known of a scope's live files before any row is read.

    `checksums` are those of partitions that need no reading. The `unread` partitions must be read,
    except for files in `skip`, whose checksums are in `summed` already.
    """

    checksums: dict[str, Checksum] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()
    summed: dict[str, Checksum] = field(default_factory=dict)
    #: Files that get a fingerprint when the unread partitions are read.
    to_hash: dict[str, LiveFile] = field(default_factory=dict)


def sum_known_checksums(
    files: Iterable[LiveFile], found: Mapping[str, FileFingerprint], scope: Collection[str]
) -> KnownChecksums:
    """Sum the known checksums by partition.

    Partitions that delete files touch must be read, and those of files that hold rows of several
    partitions or are listed more than once. Raises Tampered when a table lists a file with other
    rows or bytes than were hashed.
    """
    labels = frozenset(scope)
    inside = [(label, file) for file in files for label in _labels(file) if label in labels]
    listed = Counter(file.path for _, file in inside)
    must_read = {
        file.path for _, file in inside if file.deletes or file.spans or listed[file.path] > 1
    }
    whole = {label for label, file in inside if file.path in must_read}
    unknown = {label for label, file in inside if label in whole or _is_new(file, found)}
    checksums: dict[str, Checksum] = {}
    summed: dict[str, Checksum] = {}
    skip: set[str] = set()
    for label, file in inside:
        fingerprint = _fingerprint_of(file, found)
        if label in whole or fingerprint is None:
            continue
        require_listed_as_hashed(file, fingerprint)
        _add_up(summed if label in unknown else checksums, label, fingerprint.checksum)
        if label in unknown:
            skip.add(file.path)
    to_hash = {
        file.path: file for _, file in inside if file.path not in must_read and _is_new(file, found)
    }
    unread = tuple(label for label in scope if label in unknown)
    return KnownChecksums(checksums, unread, frozenset(skip), summed, to_hash)


def _add_up(sums: dict[str, Checksum], label: str, checksum: Checksum) -> None:
    sums[label] = sums[label] + checksum if label in sums else checksum


def match_fingerprints(
    files: Iterable[LiveFile], rows: Iterable[FileFingerprint], reading: str
) -> dict[str, FileFingerprint]:
    """Return, by path, the fingerprints of files under a reading and in their current partition."""
    places = {(file.path, file.partition) for file in files}
    return {
        row.path: row
        for row in rows
        if row.reading == reading and (row.path, row.partition) in places
    }


def complete_checksums(before: KnownChecksums, read: ChecksumsByFile) -> dict[str, Checksum]:
    """Add the checksums read of the unread partitions; those without rows are left out."""
    checksums = before.checksums | before.summed
    for (label, _), checksum in read.items():
        _add_up(checksums, label, checksum)
    return {label: checksum for label, checksum in checksums.items() if checksum.rows}


def checksums_by_label(read: ChecksumsByFile) -> dict[str, Checksum]:
    """Sum the checksums of the files of each partition."""
    return complete_checksums(KnownChecksums(), read)


def newly_read_files(
    before: KnownChecksums, read: ChecksumsByFile
) -> dict[str, tuple[LiveFile, Checksum]]:
    """Return the files that were read whole and have no fingerprint yet, with their checksums.

    Raises Tampered when a file holds another number of rows than its table declares.
    """
    new_files = {}
    for (label, path), checksum in read.items():
        file = before.to_hash.get(path)
        if file is None:
            continue
        if file.rows != checksum.rows or file.partition != label:
            raise Tampered(
                f"{path} holds {checksum.rows} rows of {label}, its table says {file.rows} "
                f"of {file.partition}",
                state="no fingerprint was recorded",
                fix="restore the file, or write the partition again",
            )
        new_files[path] = (file, checksum)
    return new_files


def require_same_rows(known: FileFingerprint, each: LiveFile, checksum: Checksum) -> None:
    """Raise Tampered when a known file was read and its rows differ."""
    require_listed_as_hashed(each, known)
    _require_equal_rows(each.path, checksum, known.checksum)


def _require_equal_rows(path: str, found: Checksum, known: Checksum) -> None:
    if found != known:
        raise tampered_file_error(path, f"rows {found.text}, known were {known.text}")


def require_listed_as_hashed(each: LiveFile, known: FileFingerprint) -> None:
    """Raise Tampered when a table lists a file with other rows or bytes than were hashed."""
    if (each.rows, each.size_bytes) != (known.checksum.rows, known.size_bytes):
        raise tampered_file_error(
            each.path,
            f"its table says {each.rows} rows, {each.size_bytes} bytes; "
            f"hashed were {known.checksum.rows} rows, {known.size_bytes} bytes",
        )


def select_unstored(
    stored: Sequence[FileFingerprint], found: Sequence[FileFingerprint]
) -> tuple[FileFingerprint, ...]:
    """Return the fingerprints that are not stored yet: one per file, reading and partition.

    Raises Tampered when two contradict.
    """
    rows: dict[tuple[str, str, str | None], FileFingerprint] = {}
    contents: dict[str, FileFingerprint] = {}
    unstored = []
    for number, one in enumerate((*stored, *found)):
        content_key = (one.path, one.reading, one.partition)
        if number >= len(stored) and content_key not in rows:
            unstored.append(one)
        known_rows = rows.setdefault(content_key, one)
        # A file's bytes are the same under all readings and partitions.
        known_bytes = contents.setdefault(one.path, one)
        if (known_bytes.size_bytes, known_bytes.sha256) != (one.size_bytes, one.sha256):
            raise tampered_file_error(
                one.path, f"SHA-256 {one.sha256[:12]}…, known was {known_bytes.sha256[:12]}…"
            )
        _require_equal_rows(one.path, one.checksum, known_rows.checksum)
    return tuple(unstored)


def tampered_file_error(path: str, what: str) -> Tampered:
    """Build the error that names a file which is not what was hashed."""
    return Tampered(
        f"{path} is not what was hashed: {what}. The file was swapped or edited, or its row in "
        "file_fingerprint was",
        state="nothing was recorded",
        fix=f"{command_line('audit', 'verify')}; restore the file from a copy",
    )


def _labels(each: LiveFile) -> tuple[str, ...]:
    return each.spans or ((each.partition,) if each.partition is not None else ())


def _is_new(each: LiveFile, found: Mapping[str, FileFingerprint]) -> bool:
    return _fingerprint_of(each, found) is None and each.rows > 0


def _fingerprint_of(each: LiveFile, found: Mapping[str, FileFingerprint]) -> FileFingerprint | None:
    """Return the file's fingerprint, unless it was taken in another partition.

    A file may lack the columns of its partition: under another one it reads as other rows.
    """
    one = found.get(each.path)
    return one if one is not None and one.partition == each.partition else None


@dataclass(frozen=True)
class FingerprintedState:
    """A table at a snapshot, its live files, and what is known of those in a scope."""

    table: str
    reading: str = ""
    files: list[LiveFile] = field(default_factory=list)
    known: KnownChecksums = field(default_factory=KnownChecksums)

    @property
    def is_known(self) -> bool:
        """Return whether the checksums of all partitions are known without reading a row."""
        return not self.known.unread


def look_up_fingerprints(
    context: Context,
    table: str,
    snapshot_id: int | None,
    scope: Scope,
    *,
    rely: bool = True,
    counting: Collection[str] = (),
) -> FingerprintedState:
    """Return what is known of a scope, from metadata and one control table; no row is read.

    Files carry their value counts of the columns in `counting`. With `rely` off nothing counts as
    known: everything is to be read, and `record_fingerprints` compares it with what was known.
    Raises Tampered.
    """
    if snapshot_id is None:
        return FingerprintedState(table)
    files = context.tables.files(table, snapshot_id, scope.field, counting)
    reading = context.stored_files.reading(table, snapshot_id)
    found = _stored_fingerprints(context, files, scope, reading) if rely else {}
    return FingerprintedState(
        table, reading, files, sum_known_checksums(files, found, scope.partitions)
    )


def partition_checksums(
    context: Context, table: str, snapshot_id: int | None, scope: Scope, run_id: str | None = None
) -> dict[str, Checksum]:
    """Return the checksum of each partition of the scope, without lineage columns.

    Partitions without rows are left out. Checksums are sums over live files: Spark reads only
    partitions that hold an unknown file, or that delete files touch. New fingerprints are recorded.
    Raises Tampered.
    """
    state = look_up_fingerprints(context, table, snapshot_id, scope)
    if snapshot_id is None or state.is_known:
        return complete_checksums(state.known, {})
    unknown = scope.model_copy(update={"partitions": state.known.unread})
    read = context.compute().measuring.by_file(
        table, snapshot_id, unknown, LINEAGE_NAMES, state.known.skip
    )
    try:
        record_fingerprints(context, [(state, read)], run_id)
    except Tampered:
        raise
    except BackfillError as error:
        # The result is still right; a user without write access reads again the next time.
        journal = context.journal_of(run_id)
        journal.log("fingerprints not kept", table=table, problem=error.problem)
    return complete_checksums(state.known, read)


def record_fingerprints(
    context: Context, read: Sequence[tuple[FingerprintedState, ChecksumsByFile]], run_id: str | None
) -> None:
    """Record the checksums of whole files, with the digests of their bytes, in one commit.

    Raises Tampered when a file contradicts its table or an earlier fingerprint; NotFound when a
    file is gone.
    """
    new = tuple(
        fingerprint
        for state, by_file in read
        for fingerprint in _new_fingerprints(context, state, by_file, run_id)
    )
    if new:
        context.evidence.record_fingerprints(new)


def _new_fingerprints(
    context: Context, state: FingerprintedState, read: ChecksumsByFile, run_id: str | None
) -> Iterator[FileFingerprint]:
    whole = newly_read_files(state.known, read)
    stored = context.evidence.find_fingerprints(whole)
    listed = [file for file, _ in whole.values()]
    for path, fingerprint in match_fingerprints(listed, stored, state.reading).items():
        require_same_rows(fingerprint, *whole.pop(path))
    digests = context.stored_files.digests(state.table, whole)
    for file, checksum in whole.values():
        content = _require_file_bytes(digests, file)
        yield FileFingerprint(
            path=file.path,
            table=state.table,
            reading=state.reading,
            partition=file.partition,
            size_bytes=content.size_bytes,
            checksum=checksum,
            sha256=content.sha256,
            run_id=run_id,
            at=context.clock.now(),
        )


def _stored_fingerprints(
    context: Context, files: list[LiveFile], scope: Scope, reading: str
) -> dict[str, FileFingerprint]:
    inside = [file for file in files if file.partition in scope.partitions]
    rows = context.evidence.find_fingerprints({file.path for file in inside})
    return match_fingerprints(inside, rows, reading)


def _require_file_bytes(digests: dict[str, FileBytes], each: LiveFile) -> FileBytes:
    """Return the bytes of a file that its table lists; raises NotFound, Tampered."""
    content = digests.get(each.path)
    if content is None:
        raise NotFound(f"{each.path} is gone", fix="restore the file from a copy")
    if content.size_bytes != each.size_bytes:
        what = f"its table says {each.size_bytes} bytes, {content.size_bytes} are there"
        raise tampered_file_error(each.path, what)
    return content


def checksum_shape(*sides: Mapping[str, Checksum]) -> str:
    """Return the shape of the first checksum; empty when there is none."""
    return next((checksum.shape for side in sides for checksum in side.values()), "")


def partition_balances(
    labels: tuple[str, ...], old: dict[str, Checksum], new: dict[str, Checksum]
) -> tuple[PartitionBalance, ...]:
    """Pair count and checksum of each partition; a partition without rows counts 0."""
    empty = Checksum.empty(checksum_shape(new, old))
    rows = []
    for label in labels:
        before, after = old.get(label, empty), new.get(label, empty)
        rows.append(
            PartitionBalance(
                partition=label,
                old_count=before.rows,
                new_count=after.rows,
                old_checksum=before.text,
                new_checksum=after.text,
                equal=before == after,
            )
        )
    return tuple(rows)
