"""File bytes and partition rows against what was accepted.

Comparing what is stored with what was accepted: each finding names what differs.

verify --deep: the bytes of each data file, and the rows of each partition, as accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import table
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.publication import REWRITE_PROPERTY, ChunkCommit, Publication
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkRecord
from lakehouse_backfill.domain.table import LiveFile, MetadataFile, StoredCheck, TableRef
from lakehouse_backfill.errors import NotFound

#: So many differing things are named; the others are counted.
MAX_NAMED_DIFFERENCES = 10
#: Why the files of a version say nothing of those that were accepted.
REWRITTEN_ROWS_REASON = "its rows were written anew by Spark, into files of their own"
AcceptanceArchive = Mapping[str, Any]


def check_equal(name: str, expected: Any, found: Any, because: str) -> StoredCheck:
    """Compare one value."""
    return StoredCheck(
        name=name, ok=expected == found, expected=expected, found=found, because=because
    )


def unknown_check(name: str, because: str) -> StoredCheck:
    """Say that something cannot be compared, and why."""
    return StoredCheck(name=name, ok=None, because=because)


def failed_check(name: str, because: str) -> StoredCheck:
    """Say what is wrong with something that is not there as it should be."""
    return StoredCheck(name=name, ok=False, because=because)


def check_each_equal(
    name: str, expected: Mapping[str, Any], found: Mapping[str, Any], what: str
) -> StoredCheck:
    """Compare things by name; one that is missing on either side differs."""
    wrong = [
        key
        for key in sorted(expected.keys() | found.keys())
        if key not in found or key not in expected or expected[key] != found[key]
    ]
    if not wrong:
        return StoredCheck(
            name=name, ok=True, expected=len(expected), found=len(found),
            because=f"{len(expected)} {what} compared",
        )  # fmt: skip
    some = wrong[:MAX_NAMED_DIFFERENCES]
    return StoredCheck(
        name=name,
        ok=False,
        expected={key: expected.get(key, "nothing") for key in some},
        found={key: found.get(key, "gone") for key in some},
        because=f"{len(wrong)} of {len(expected)} {what} differ: {', '.join(some)}",
    )


def archived_files(
    archive: AcceptanceArchive, partitions: Iterable[str] | None = None
) -> list[Any]:
    """Give the data files of the archive, all or those of some partitions."""
    wanted = None if partitions is None else set(partitions)
    files: list[Any] = archive["candidate"]["files"]
    return [file for file in files if wanted is None or file["partition"] in wanted]


def check_listed_files(
    name: str, archived: Sequence[Any], files: Iterable[LiveFile]
) -> StoredCheck:
    """Compare what a snapshot's manifests list with what was accepted: path, size, rows."""
    expected = {one["path"]: [one["size_bytes"], one["rows"]] for one in archived}
    found = {one.path: [one.size_bytes, one.rows] for one in files}
    return check_each_equal(name, expected, found, "data files (size, rows)")


def check_stored_sizes(name: str, archived: Sequence[Any], sizes: Mapping[str, int]) -> StoredCheck:
    """Compare the sizes of the files in the store with those that were accepted."""
    expected = {one["path"]: one["size_bytes"] for one in archived}
    found = {path: size for path, size in sizes.items() if path in expected}
    return check_each_equal(name, expected, found, "data files (bytes in the store)")


def check_candidate_metadata(
    archive: AcceptanceArchive, files: Iterable[MetadataFile]
) -> StoredCheck:
    """Compare the candidate's manifests that are still there with those that were accepted."""
    name = "metadata of the candidate"
    expected = {one["path"]: one["sha256"] for one in archive["candidate"]["metadata"]}
    found = {one.path: one.sha256 for one in files}
    left = {path: mark for path, mark in expected.items() if path in found}
    if not left:
        return unknown_check(name, "none of its manifest lists and manifests is there any more")
    check = check_each_equal(name, left, found, "manifest lists and manifests (SHA-256)")
    gone = len(expected) - len(left)
    return check.model_copy(update={"because": check.because + f"; {gone} gone" * bool(gone)})


def check_manifest_sizes(name: str, files: Iterable[MetadataFile]) -> StoredCheck:
    """Compare the sizes of manifests with those that their manifest list gives."""
    files = [file for file in files if file.listed_bytes is not None]
    expected = {file.path: file.listed_bytes for file in files}
    found = {file.path: file.size_bytes for file in files}
    return check_each_equal(name, expected, found, "manifests (bytes)")


def check_ledger(archive: AcceptanceArchive, records: Iterable[ChunkRecord]) -> StoredCheck:
    """Compare the rows of the chunk ledger with what was accepted."""
    fields = ("output_rows", "checksum", "snapshot_id")
    expected = {one["chunk_id"]: {name: one[name] for name in fields} for one in archive["chunks"]}
    found = {one.chunk_id: {name: getattr(one, name) for name in fields} for one in records}
    return check_each_equal("chunk ledger", expected, found, "rows of backfill_chunk_run")


def check_chunk_commits(
    records: Iterable[ChunkRecord], found: Iterable[ChunkCommit]
) -> StoredCheck:
    """Compare the ledger with the summaries of the commits that it was written from."""
    expected = {one.chunk_id: [one.snapshot_id, one.output_rows] for one in records}
    newest = {one.chunk_id: [one.snapshot_id, one.added_rows] for one in found}
    return check_each_equal(
        "commits of the chunks", expected, newest, "chunks (snapshot, rows in its summary)"
    )


def check_pointer_row(row: Publication, told: Mapping[str, Any] | None) -> StoredCheck:
    """Compare a row of the pointer with the publication that the run's log names."""
    name = f"row of version {row.version}"
    if told is None:
        return failed_check(name, "the run's log names a publication that is not stored any more")
    found = row.model_dump(mode="json")
    known = {field: told[field] for field in found if field in told}
    return check_each_equal(
        name, known, {field: found[field] for field in known},
        "fields of accepted_output_version, against the publication named in the log",
    )  # fmt: skip


def check_fingerprints(archived: Sequence[Any], rows: Mapping[str, tuple[str, str]]) -> StoredCheck:
    """Compare rows of file_fingerprint (SHA-256, checksum) with what was accepted."""
    name = "fingerprints"
    expected = {
        one["path"]: [one["sha256"], one["checksum"]] for one in archived if "sha256" in one
    }
    if not expected:
        return unknown_check(name, "no data file had a fingerprint when the run was accepted")
    found = {path: list(both) for path, both in rows.items() if path in expected}
    return check_each_equal(name, expected, found, "rows of file_fingerprint (SHA-256, checksum)")


@dataclass(frozen=True)
class DataRead:
    """What was read: bytes of so many files, rows of so many partitions by Spark."""

    files: int = 0
    partitions_by_spark: int = 0


NO_DATA_READ = DataRead()


@dataclass(frozen=True)
class RunSnapshot:
    """A snapshot that holds the run's rows of some partitions, and how to call it.

    `by_rows`: in files that Spark wrote there anew, so that those of the candidate say nothing.
    """

    name: str
    table: str
    snapshot_id: int
    scope: Scope
    is_rewritten: bool = False


def run_snapshots(
    context: Context, plan: Plan, rows: tuple[Publication, ...], archive: AcceptanceArchive
) -> tuple[RunSnapshot, ...]:
    """Give the snapshots that were published; before that, or of events, the candidate's."""
    candidate, scope = archive["candidate"], plan.resolved.scope
    is_events = plan.resolved.manifest.target.publish_mode == "correction_events"
    if rows and not is_events:
        return tuple(
            RunSnapshot(
                f"version {row.version}", row.table, row.snapshot_id, row.scope or scope,
                _is_rewritten(context, row.table, row.snapshot_id),
            )
            for row in rows
            if row.snapshot_id is not None
        )  # fmt: skip
    if candidate["snapshot_id"] is None:
        return ()
    return (RunSnapshot("the candidate", candidate["table"], candidate["snapshot_id"], scope),)


def _is_rewritten(context: Context, table: str, snapshot_id: int) -> bool:
    """Tell whether a swap by rows made the snapshot; of one that is gone nothing is compared."""
    with suppress(NotFound):
        return (
            REWRITE_PROPERTY
            in context.tables.resolve(TableRef(table=table, at=str(snapshot_id))).summary
        )
    return False


def check_stored_data(
    context: Context,
    plan: Plan,
    rows: tuple[Publication, ...],
    archive: AcceptanceArchive,
    result: Mapping[str, Any] | None,
) -> tuple[list[StoredCheck], DataRead]:
    """Read all data files of the run's partitions, and compare their bytes, then their rows.

    Rows of a partition need no reading by Spark where the bytes of all its files are those whose
    rows were counted and hashed when they were written.
    """
    found: list[StoredCheck] = []
    files = partitions = 0
    for one in run_snapshots(context, plan, rows, archive):
        try:
            compared, same = _check_bytes(context, one, archive)
            found.append(compared)
            files += len(same)
            if result is not None:
                check, by_spark = _check_rows(context, plan, one, archive, (result, same))
                found.append(check)
                partitions += by_spark
        except NotFound as error:
            found.append(unknown_check(f"bytes and rows of {one.name}", error.problem))
    return found, DataRead(files, partitions)


def _check_bytes(
    context: Context, one: RunSnapshot, archive: AcceptanceArchive
) -> tuple[StoredCheck, dict[str, bool]]:
    """Hash the files; give of each whether its bytes are known to be those that were hashed."""
    name = f"SHA-256 of the data files of {one.name}"
    if one.is_rewritten:
        return unknown_check(name, REWRITTEN_ROWS_REASON), {}
    archived = archived_files(archive, one.scope.partitions)
    read = context.data_files.digests(one.table, [file["path"] for file in archived])
    expected = {file["path"]: file["sha256"] for file in archived if "sha256" in file}
    found = {path: bytes_.sha256 for path, bytes_ in read.items()}
    same = {file["path"]: found.get(file["path"], "") == file.get("sha256") for file in archived}
    if not expected:
        return unknown_check(name, "no data file had a fingerprint when it was accepted"), same
    held = {path: found[path] for path in expected if path in found}
    return check_each_equal(name, expected, held, "data files (SHA-256)"), same


def _check_rows(
    context: Context,
    plan: Plan,
    one: RunSnapshot,
    archive: AcceptanceArchive,
    known: tuple[Mapping[str, Any], Mapping[str, bool]],
) -> tuple[StoredCheck, int]:
    result, same = known
    accepted = {
        balance.partition: Checksum.parse(balance.new_checksum)
        for balance in ValidationResult.model_validate(result).balances
        if balance.partition in one.scope.partitions
    }
    expected = {label: checksum.text for label, checksum in accepted.items() if checksum.rows}
    by_bytes = {
        label: total.text
        for label in expected
        if not one.is_rewritten
        and (total := _checksum_from_files(archive, label, same)) is not None
        and total.shape == accepted[label].shape
    }
    broken = dict.fromkeys(_corrupt_partitions(archive, one, same), "not read: other bytes")
    left = tuple(label for label in one.scope.partitions if label not in {**by_bytes, **broken})
    found = {**by_bytes, **broken, **_read_checksums(context, plan, one, left)}
    check = check_each_equal(
        f"rows of {one.name}", expected, found, "partitions (count and checksum)"
    )
    how = f"{len(by_bytes)} by the bytes of their files, {len(left)} read by Spark"
    return check.model_copy(update={"because": f"{check.because}; {how}"}), len(left)


def _corrupt_partitions(
    archive: AcceptanceArchive, one: RunSnapshot, same: Mapping[str, bool]
) -> list[str]:
    """Name the partitions with a file of other bytes: what its rows are says nothing any more."""
    if one.is_rewritten:
        return []
    archived = archived_files(archive, one.scope.partitions)
    return [file["partition"] for file in archived if "sha256" in file and not same[file["path"]]]


def _checksum_from_files(
    archive: AcceptanceArchive, label: str, same: Mapping[str, bool]
) -> Checksum | None:
    """Add up the files of a partition; None: one of them says nothing certain of its rows."""
    files = archived_files(archive, (label,))
    if not files or any(file["deletes"] or not same[file["path"]] for file in files):
        return None
    return reduce(Checksum.__add__, (Checksum.parse(file["checksum"]) for file in files))


def _read_checksums(
    context: Context, plan: Plan, one: RunSnapshot, labels: tuple[str, ...]
) -> dict[str, str]:
    if not labels:
        return {}
    added = table.added_column_names(declared_schema_change(plan))
    found = context.compute().measuring.checksums(
        one.table,
        one.snapshot_id,
        one.scope.model_copy(update={"partitions": labels}),
        (*LINEAGE_NAMES, *added),
    )
    return {label: checksum.text for label, checksum in found.items() if checksum.rows}
