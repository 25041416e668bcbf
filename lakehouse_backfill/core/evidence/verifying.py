"""Comparing what is stored with what was accepted: each finding names what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lakehouse_backfill.domain.publication import ChunkCommit, Publication
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.stored import MetadataFile, StoredCheck
from lakehouse_backfill.domain.table import LiveFile

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
