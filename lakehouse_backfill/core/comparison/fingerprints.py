"""Partition checksums as sums over files.

What fingerprints say: sums of partitions from files, what must be read, who tampered.

Checksums of partitions as sums over files: what is known is added up, the rest is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakehouse_backfill import errors
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import PartitionBalance
from lakehouse_backfill.domain.diff import Checksum, FileBytes, FileFingerprint
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.table import LiveFile
from lakehouse_backfill.errors import BackfillError, NotFound, Tampered

#: Checksums of what was read, by partition label and file.
ChecksumsByFile = Mapping[tuple[str, str], Checksum]


@dataclass(frozen=True)
class KnownChecksums:
    """What is known of a scope's live files before any row is read.

    `checksums` are those of partitions of which nothing has to be read; the rows of `unknown` ones
    have to be, but for files in `skip`, whose checksums are in `summed` already.
    """

    checksums: dict[str, Checksum] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()
    summed: dict[str, Checksum] = field(default_factory=dict)
    #: Files that a reading of the unknown partitions would give a fingerprint of.
    to_hash: dict[str, LiveFile] = field(default_factory=dict)


def sum_known_checksums(
    files: Iterable[LiveFile], found: Mapping[str, FileFingerprint], scope: Collection[str]
) -> KnownChecksums:
    """Sum what is known by partition.

    Partitions that delete files touch must be read, and those of files that hold rows of several
    or are listed more than once. Raises Tampered when a table lists a file with other rows or bytes
    than were hashed.
    """
    wanted = frozenset(scope)
    inside = [(label, each) for each in files for label in _labels(each) if label in wanted]
    listed = Counter(each.path for _, each in inside)
    whole = {label for label, each in inside if not _is_simple(each) or listed[each.path] > 1}
    unknown = {label for label, each in inside if label in whole or _is_new(each, found)}
    checksums: dict[str, Checksum] = {}
    summed: dict[str, Checksum] = {}
    skip: set[str] = set()
    for label, each in inside:
        one = _fingerprint_of(each, found)
        if label in whole or one is None:
            continue
        require_listed_as_hashed(each, one)
        into = summed if label in unknown else checksums
        into[label] = into[label] + one.checksum if label in into else one.checksum
        if label in unknown:
            skip.add(each.path)
    simple = [e for _, e in inside if _is_simple(e) and listed[e.path] == 1]
    to_hash = {each.path: each for each in simple if _is_new(each, found)}
    order = tuple(label for label in scope if label in unknown)
    return KnownChecksums(checksums, order, frozenset(skip), summed, to_hash)


def match_fingerprints(
    files: Iterable[LiveFile], rows: Iterable[FileFingerprint], reading: str
) -> dict[str, FileFingerprint]:
    """Give, by path, the fingerprints of the files under a reading and where they lie now."""
    places = {(each.path, each.partition) for each in files}
    return {
        one.path: one
        for one in rows
        if one.reading == reading and (one.path, one.partition) in places
    }


def complete_checksums(before: KnownChecksums, read: ChecksumsByFile) -> dict[str, Checksum]:
    """Add what was read of the unknown partitions; those without rows are left out."""
    found = dict(before.checksums)
    found |= before.summed
    for (label, _), checksum in read.items():
        found[label] = found[label] + checksum if label in found else checksum
    return {label: checksum for label, checksum in found.items() if checksum.rows}


def checksums_by_label(read: ChecksumsByFile) -> dict[str, Checksum]:
    """Add up the files of each partition."""
    return complete_checksums(KnownChecksums(), read)


def newly_read_files(
    before: KnownChecksums, read: ChecksumsByFile
) -> dict[str, tuple[LiveFile, Checksum]]:
    """Give the files that were read whole, and are not known yet, with their checksums.

    Raises Tampered when a file holds another number of rows than its table says.
    """
    found = {}
    for (label, path), checksum in read.items():
        each = before.to_hash.get(path)
        if each is None:
            continue
        if each.rows != checksum.rows or each.partition != label:
            raise Tampered(
                f"{path} holds {checksum.rows} rows of {label}, its table says {each.rows} "
                f"of {each.partition}",
                state="no fingerprint was recorded",
                fix="restore the file, or write the partition again",
            )
        found[path] = (each, checksum)
    return found


def require_same_rows(known: FileFingerprint, each: LiveFile, checksum: Checksum) -> None:
    """Raise Tampered when a file that is known was read, and holds other rows now."""
    require_listed_as_hashed(each, known)
    if known.checksum != checksum:
        raise tampered_file_error(
            each.path, f"rows {checksum.text}, known were {known.checksum.text}"
        )


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
    """Give those that are not stored yet; raises Tampered where one contradicts what is known."""
    seen = _Contents()
    for one in stored:
        seen.add(one)
    return tuple([one for one in found if seen.add(one)])


def deduplicate_fingerprints(stored: Sequence[FileFingerprint]) -> tuple[FileFingerprint, ...]:
    """Give one of each file, reading and partition; raises Tampered when rows contradict."""
    return select_unstored((), stored)


class _Contents:
    """What files hold, by reading and partition; their bytes are the same under all of them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str | None], FileFingerprint] = {}
        self._bytes: dict[str, FileFingerprint] = {}

    def add(self, one: FileFingerprint) -> bool:
        """Tell whether the file was not known under the reading and there; raises Tampered."""
        place = (one.path, one.reading, one.partition)
        is_new = place not in self._rows
        same = self._rows.setdefault(place, one)
        first = self._bytes.setdefault(one.path, one)
        if (first.size_bytes, first.sha256) != (one.size_bytes, one.sha256):
            raise tampered_file_error(
                one.path, f"SHA-256 {one.sha256[:12]}…, known was {first.sha256[:12]}…"
            )
        if same.checksum != one.checksum:
            raise tampered_file_error(
                one.path, f"rows {one.checksum.text}, known were {same.checksum.text}"
            )
        return is_new


def tampered_file_error(path: str, what: str) -> Tampered:
    """Make the error that names a file which is not what was hashed."""
    return Tampered(
        f"{path} is not what was hashed: {what}. The file was swapped or edited, or its row in "
        "file_fingerprint was",
        state="nothing was recorded",
        fix=f"{errors.command_line('audit', 'verify')}; restore the file from a copy",
    )


def _labels(each: LiveFile) -> tuple[str, ...]:
    return each.spans or ((each.partition,) if each.partition is not None else ())


def _is_simple(each: LiveFile) -> bool:
    """Tell whether the file lies in one partition, and no delete file hides rows of it."""
    return not each.deletes and not each.spans


def _is_new(each: LiveFile, found: Mapping[str, FileFingerprint]) -> bool:
    return _fingerprint_of(each, found) is None and each.rows > 0


def _fingerprint_of(each: LiveFile, found: Mapping[str, FileFingerprint]) -> FileFingerprint | None:
    """Give the file's fingerprint, unless it was taken where the file lay in another partition.

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
        """Whether the checksums of all partitions are known without reading a row."""
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
    """Say what is known of a scope, by metadata and one control table: no row is read.

    Files say how many values they hold of the columns in `counting`.
    With `rely` off nothing counts as known: all of it is to be read, and `keep` holds what is read
    against what was known. Raises Tampered.
    """
    if snapshot_id is None:
        return FingerprintedState(table)
    files = context.tables.files(table, snapshot_id, scope.field, counting)
    reading = context.data_files.reading(table, snapshot_id)
    found = _stored_fingerprints(context, files, scope, reading) if rely else {}
    return FingerprintedState(
        table, reading, files, sum_known_checksums(files, found, scope.partitions)
    )


def partition_checksums(
    context: Context, table: str, snapshot_id: int | None, scope: Scope, run_id: str | None = None
) -> dict[str, Checksum]:
    """Checksum of each partition of the scope, without lineage columns; those without rows are out.

    Sums over live files. Spark reads only partitions that hold a file which is not known, or that
    delete files touch; what is learnt of files is kept. Raises Tampered.
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
        # The answer is right all the same; who may not write there pays again the next time.
        context.journal.log("fingerprints not kept", table=table, problem=error.problem)
    return complete_checksums(state.known, read)


def record_fingerprints(
    context: Context, read: Sequence[tuple[FingerprintedState, ChecksumsByFile]], run_id: str | None
) -> None:
    """Record what readings showed of whole files, with the digest of their bytes; one commit.

    Raises Tampered when a file is not what its table, or an earlier fingerprint, says; NotFound.
    """
    new = tuple(
        one for state, by_file in read for one in _new_fingerprints(context, state, by_file, run_id)
    )
    if new:
        context.fingerprints.record(new)


def _new_fingerprints(
    context: Context, state: FingerprintedState, read: ChecksumsByFile, run_id: str | None
) -> Iterator[FileFingerprint]:
    whole = newly_read_files(state.known, read)
    stored = context.fingerprints.find(whole)
    listed = [each for each, _ in whole.values()]
    for path, one in match_fingerprints(listed, stored, state.reading).items():
        require_same_rows(one, *whole.pop(path))
    digests = context.data_files.digests(state.table, whole)
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
            at=context.clock.now(),
        )


def _stored_fingerprints(
    context: Context, files: list[LiveFile], scope: Scope, reading: str
) -> dict[str, FileFingerprint]:
    inside = [each for each in files if each.partition in scope.partitions]
    rows = context.fingerprints.find({each.path for each in inside})
    return match_fingerprints(inside, rows, reading)


def _require_file_bytes(digests: dict[str, FileBytes], each: LiveFile) -> FileBytes:
    """Give the bytes of a file that its table lists; raises NotFound, Tampered."""
    found = digests.get(each.path)
    if found is None:
        raise NotFound(f"{each.path} is gone", fix="restore the file from a copy")
    if found.size_bytes != each.size_bytes:
        what = f"its table says {each.size_bytes} bytes, {found.size_bytes} are there"
        raise tampered_file_error(each.path, what)
    return found


def partition_balances(
    labels: tuple[str, ...], old: dict[str, Checksum], new: dict[str, Checksum], shape: str
) -> tuple[PartitionBalance, ...]:
    """Set count and checksum of each partition side by side; a partition without rows counts 0."""
    none = Checksum.empty(shape)
    rows = []
    for label in labels:
        left, right = old.get(label, none), new.get(label, none)
        rows.append(
            PartitionBalance(
                partition=label,
                old_count=left.rows,
                new_count=right.rows,
                old_checksum=left.text,
                new_checksum=right.text,
                equal=left == right,
            )
        )
    return tuple(rows)
