"""Comparison of stored data with what was accepted (`verify`, and `verify --deep`).

The first part compares control rows, listed files, sizes and metadata. `check_stored_data` reads
the bytes of each data file and the rows of each partition. Each check names what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from lakehouse_backfill.errors import LostFile, NotFound, Unsupported

#: Up to this many differences are named; the others are counted.
MAX_NAMED_DIFFERENCES = 10
#: Why the files of a version cannot be compared with those that were accepted.
REWRITTEN_ROWS_REASON = "its rows were written anew by Spark, into files of their own"
AcceptanceArchive = Mapping[str, Any]


def check_equal(name: str, expected: Any, found: Any, because: str) -> StoredCheck:
    """Compare one value."""
    return StoredCheck(
        name=name, ok=expected == found, expected=expected, found=found, because=because
    )


def unknown_check(name: str, because: str) -> StoredCheck:
    """Build the check of something that cannot be compared, with the reason."""
    return StoredCheck(name=name, ok=None, because=because)


def failed_check(name: str, because: str) -> StoredCheck:
    """Build the failed check of something that is missing or unreadable."""
    return StoredCheck(name=name, ok=False, because=because)


def check_each_equal(
    name: str, expected: Mapping[str, Any], found: Mapping[str, Any], what: str
) -> StoredCheck:
    """Compare values by name; a name that is missing on either side differs."""
    differing = [
        key
        for key in sorted(expected.keys() | found.keys())
        if key not in found or key not in expected or expected[key] != found[key]
    ]
    if not differing:
        return StoredCheck(
            name=name, ok=True, expected=len(expected), found=len(found),
            because=f"{len(expected)} {what} compared",
        )  # fmt: skip
    named = differing[:MAX_NAMED_DIFFERENCES]
    return StoredCheck(
        name=name,
        ok=False,
        expected={key: expected.get(key, "nothing") for key in named},
        found={key: found.get(key, "gone") for key in named},
        because=f"{len(differing)} of {len(expected)} {what} differ: {', '.join(named)}",
    )


def archived_files(
    archive: AcceptanceArchive, partitions: Iterable[str] | None = None
) -> list[Any]:
    """Return the data files of the archive: all, or those of some partitions."""
    labels = None if partitions is None else set(partitions)
    files: list[Any] = archive["candidate"]["files"]
    return [file for file in files if labels is None or file["partition"] in labels]


def check_listed_files(
    name: str, archived: Sequence[Any], files: Iterable[LiveFile]
) -> StoredCheck:
    """Compare what a snapshot's manifests list with what was accepted: path, size, rows."""
    expected = {file["path"]: [file["size_bytes"], file["rows"]] for file in archived}
    found = {file.path: [file.size_bytes, file.rows] for file in files}
    return check_each_equal(name, expected, found, "data files (size, rows)")


def check_stored_sizes(name: str, archived: Sequence[Any], sizes: Mapping[str, int]) -> StoredCheck:
    """Compare the sizes of the files in the store with those that were accepted."""
    expected = {file["path"]: file["size_bytes"] for file in archived}
    found = {path: size for path, size in sizes.items() if path in expected}
    return check_each_equal(name, expected, found, "data files (bytes in the store)")


def check_candidate_metadata(
    archive: AcceptanceArchive, files: Iterable[MetadataFile]
) -> StoredCheck:
    """Compare the candidate's manifests that still exist with those that were accepted."""
    name = "metadata of the candidate"
    expected = {file["path"]: file["sha256"] for file in archive["candidate"]["metadata"]}
    found = {file.path: file.sha256 for file in files}
    remaining = {path: sha256 for path, sha256 in expected.items() if path in found}
    if not remaining:
        return unknown_check(name, "none of its manifest lists and manifests is there any more")
    check = check_each_equal(name, remaining, found, "manifest lists and manifests (SHA-256)")
    missing = len(expected) - len(remaining)
    return check.model_copy(update={"because": check.because + f"; {missing} gone" * bool(missing)})


def check_manifest_sizes(name: str, files: Iterable[MetadataFile]) -> StoredCheck:
    """Compare the sizes of manifests with those that their manifest list declares."""
    files = [file for file in files if file.listed_bytes is not None]
    expected = {file.path: file.listed_bytes for file in files}
    found = {file.path: file.size_bytes for file in files}
    return check_each_equal(name, expected, found, "manifests (bytes)")


def check_ledger(archive: AcceptanceArchive, records: Iterable[ChunkRecord]) -> StoredCheck:
    """Compare the rows of the chunk ledger with what was accepted."""
    fields = ("output_rows", "checksum", "snapshot_id")
    expected = {
        chunk["chunk_id"]: {name: chunk[name] for name in fields} for chunk in archive["chunks"]
    }
    found = {chunk.chunk_id: {name: getattr(chunk, name) for name in fields} for chunk in records}
    return check_each_equal("chunk ledger", expected, found, "rows of backfill_chunk_run")


def check_chunk_commits(
    records: Iterable[ChunkRecord], found: Iterable[ChunkCommit]
) -> StoredCheck:
    """Compare the ledger with the summaries of the commits that it was written from."""
    expected = {chunk.chunk_id: [chunk.snapshot_id, chunk.output_rows] for chunk in records}
    newest = {chunk.chunk_id: [chunk.snapshot_id, chunk.added_rows] for chunk in found}
    return check_each_equal(
        "commits of the chunks", expected, newest, "chunks (snapshot, rows in its summary)"
    )


def check_pointer_row(row: Publication, told: Mapping[str, Any] | None) -> StoredCheck:
    """Compare a row of the pointer with the publication that the run's log names."""
    name = f"row of version {row.version}"
    if told is None:
        return failed_check(name, "the run's log names a publication that is not stored any more")
    found = row.model_dump(mode="json")
    logged = {field: told[field] for field in found if field in told}
    return check_each_equal(
        name, logged, {field: found[field] for field in logged},
        "fields of accepted_output_version, against the publication named in the log",
    )  # fmt: skip


def check_fingerprints(archived: Sequence[Any], rows: Mapping[str, tuple[str, str]]) -> StoredCheck:
    """Compare rows of file_fingerprint (SHA-256, checksum) with what was accepted."""
    name = "fingerprints"
    expected = {
        file["path"]: [file["sha256"], file["checksum"]] for file in archived if "sha256" in file
    }
    if not expected:
        return unknown_check(name, "no data file had a fingerprint when the run was accepted")
    found = {path: list(digests) for path, digests in rows.items() if path in expected}
    return check_each_equal(name, expected, found, "rows of file_fingerprint (SHA-256, checksum)")


@dataclass(frozen=True)
class DataRead:
    """What was read: the bytes of so many files, the rows of so many partitions by Spark."""

    files: int = 0
    partitions_by_spark: int = 0


NO_DATA_READ = DataRead()


@dataclass(frozen=True)
class RunSnapshot:
    """A snapshot that holds the run's rows of some partitions, with its display name.

    `is_rewritten`: Spark wrote the rows into new files, so the files of the candidate do not apply.
    """

    name: str
    table: str
    snapshot_id: int
    scope: Scope
    is_rewritten: bool = False


def run_snapshots(
    context: Context, plan: Plan, rows: tuple[Publication, ...], archive: AcceptanceArchive
) -> tuple[RunSnapshot, ...]:
    """Return the published snapshots.

    Before publication, and for correction events, return the candidate's.
    """
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
    """Return whether a row rewrite made the snapshot; False when the snapshot is gone."""
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

    Spark does not read a partition whose files all have the bytes that were hashed when their rows
    were counted.
    """
    checks: list[StoredCheck] = []
    files = partitions = 0
    for snapshot in run_snapshots(context, plan, rows, archive):
        try:
            byte_check, same = _check_bytes(context, snapshot, archive)
            checks.append(byte_check)
            files += len(same)
            if result is not None:
                check, by_spark = _check_rows(context, plan, snapshot, archive, (result, same))
                checks.append(check)
                partitions += by_spark
        except LostFile as error:
            checks.append(failed_check(f"bytes and rows of {snapshot.name}", error.problem))
        except NotFound as error:
            checks.append(unknown_check(f"bytes and rows of {snapshot.name}", error.problem))
    return checks, DataRead(files, partitions)


def _check_bytes(
    context: Context, one: RunSnapshot, archive: AcceptanceArchive
) -> tuple[StoredCheck, dict[str, bool]]:
    """Hash the files; return the check, and by path whether the bytes are those recorded."""
    name = f"SHA-256 of the data files of {one.name}"
    if one.is_rewritten:
        return unknown_check(name, REWRITTEN_ROWS_REASON), {}
    archived = archived_files(archive, one.scope.partitions)
    read = context.data_files.digests(one.table, [file["path"] for file in archived])
    expected = {file["path"]: file["sha256"] for file in archived if "sha256" in file}
    found = {path: content.sha256 for path, content in read.items()}
    is_same = {file["path"]: found.get(file["path"], "") == file.get("sha256") for file in archived}
    if not expected:
        return unknown_check(name, "no data file had a fingerprint when it was accepted"), is_same
    current = {path: found[path] for path in expected if path in found}
    return check_each_equal(name, expected, current, "data files (SHA-256)"), is_same


def _check_rows(
    context: Context,
    plan: Plan,
    one: RunSnapshot,
    archive: AcceptanceArchive,
    known: tuple[Mapping[str, Any], Mapping[str, bool]],
) -> tuple[StoredCheck, int]:
    result, same = known
    accepted = _accepted_checksums(result, one.scope.partitions)
    expected = {label: checksum.text for label, checksum in accepted.items() if checksum.rows}
    by_bytes = {
        label: total.text
        for label in expected
        if not one.is_rewritten
        and (total := _checksum_from_files(archive, label, same)) is not None
        and total.shape == accepted[label].shape
    }
    broken = dict.fromkeys(_corrupt_partitions(archive, one, same), "not read: other bytes")
    to_read = tuple(label for label in one.scope.partitions if label not in {**by_bytes, **broken})
    found = {**by_bytes, **broken, **_read_checksums(context, plan, one, to_read)}
    check = check_each_equal(
        f"rows of {one.name}", expected, found, "partitions (count and checksum)"
    )
    method = f"{len(by_bytes)} by the bytes of their files, {len(to_read)} read by Spark"
    return check.model_copy(update={"because": f"{check.because}; {method}"}), len(to_read)


def _accepted_checksums(result: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Checksum]:
    return {
        balance.partition: Checksum.parse(balance.new_checksum)
        for balance in ValidationResult.model_validate(result).balances
        if balance.partition in labels
    }


def _corrupt_partitions(
    archive: AcceptanceArchive, one: RunSnapshot, same: Mapping[str, bool]
) -> list[str]:
    """List the partitions with a file of changed bytes: their row checksums no longer hold."""
    if one.is_rewritten:
        return []
    archived = archived_files(archive, one.scope.partitions)
    return [file["partition"] for file in archived if "sha256" in file and not same[file["path"]]]


def _checksum_from_files(
    archive: AcceptanceArchive, label: str, same: Mapping[str, bool]
) -> Checksum | None:
    """Add up the checksums of a partition's files; None when one of them is not certain."""
    files = archived_files(archive, (label,))
    if not files or any(file["deletes"] or not same[file["path"]] for file in files):
        return None
    return reduce(Checksum.__add__, (Checksum.parse(file["checksum"]) for file in files))


def _read_checksums(
    context: Context, plan: Plan, one: RunSnapshot, labels: tuple[str, ...]
) -> dict[str, str]:
    found = _measure(context, plan, one, labels) if labels else {}
    return {label: checksum.text for label, checksum in found.items() if checksum.rows}


def _measure(
    context: Context, plan: Plan, one: RunSnapshot, labels: tuple[str, ...]
) -> dict[str, Checksum]:
    added = table.added_column_names(declared_schema_change(plan))
    return context.compute().measuring.checksums(
        one.table,
        one.snapshot_id,
        one.scope.model_copy(update={"partitions": labels}),
        (*LINEAGE_NAMES, *added),
    )


def check_head_rows(
    context: Context,
    plan: Plan,
    heads: Sequence[RunSnapshot],
    archive: AcceptanceArchive,
    result: Mapping[str, Any],
) -> tuple[list[StoredCheck], int]:
    """Read the rows that readers get where later commits left other files than those accepted.

    A compaction must not change rows, and where the history is gone nobody knows what changed them.
    Partitions that still have the accepted files are left out: those were compared before.
    """
    checks, read = [], 0
    for head in heads:
        name = f"rows of {head.name}"
        try:
            labels = _refiled_partitions(context, head, archive)
            if labels:
                one = replace(head, scope=head.scope.model_copy(update={"partitions": labels}))
                checks.append(_check_read_rows(name, _accepted_checksums(result, labels),
                                               _measure(context, plan, one, labels)))  # fmt: skip
                read += len(labels)
        except LostFile as error:
            checks.append(failed_check(name, error.problem))
        except (NotFound, Unsupported) as error:
            checks.append(unknown_check(name, error.problem))
    return checks, read


def _refiled_partitions(
    context: Context, head: RunSnapshot, archive: AcceptanceArchive
) -> tuple[str, ...]:
    """List the partitions whose files at the head are not those of the archive."""
    listed = context.stored.files(head.table, head.snapshot_id, head.scope)
    now = {(file.partition, file.path, *file.deletes) for file in listed}
    accepted = {
        (file["partition"], file["path"], *file["deletes"])
        for file in archived_files(archive, head.scope.partitions)
    }
    other = {entry[0] for entry in now ^ accepted}
    return tuple(label for label in head.scope.partitions if label in other)


def _check_read_rows(
    name: str, accepted: Mapping[str, Checksum], found: Mapping[str, Checksum]
) -> StoredCheck:
    """Compare checksums of rows; those of other columns are not comparable."""
    if {one.shape[:8] for one in found.values()} - {one.shape[:8] for one in accepted.values()}:
        return unknown_check(name, "the columns of the table changed since")
    check = check_each_equal(
        name,
        {label: checksum.text for label, checksum in accepted.items() if checksum.rows},
        {label: checksum.text for label, checksum in found.items() if checksum.rows},
        "partitions (count and checksum)",
    )
    reason = f"{check.because}; they have other files than those accepted, and Spark read them"
    return check.model_copy(update={"because": reason})
