"""verify --deep: the bytes of each data file, and the rows of each partition, as accepted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

from lakehouse_backfill.core.evidence import verifying
from lakehouse_backfill.core.evidence.verifying import AcceptanceArchive, unknown_check
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.checksum import Checksum
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.stored import StoredCheck
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.domain.table_commit import REWRITE_PROPERTY
from lakehouse_backfill.errors import NotFound


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
    by_rows: bool = False


def run_snapshots(
    bench: Context, plan: Plan, rows: tuple[Publication, ...], archive: AcceptanceArchive
) -> tuple[RunSnapshot, ...]:
    """Give the snapshots that were published; before that, or of events, the candidate's."""
    candidate, scope = archive["candidate"], plan.resolved.scope
    is_events = plan.resolved.manifest.target.publish_mode == "correction_events"
    if rows and not is_events:
        return tuple(
            RunSnapshot(
                f"version {row.version}", row.table, row.snapshot_id, row.scope or scope,
                _is_rewritten(bench, row.table, row.snapshot_id),
            )
            for row in rows
            if row.snapshot_id is not None
        )  # fmt: skip
    if candidate["snapshot_id"] is None:
        return ()
    return (RunSnapshot("the candidate", candidate["table"], candidate["snapshot_id"], scope),)


def _is_rewritten(bench: Context, table: str, snapshot_id: int) -> bool:
    """Tell whether a swap by rows made the snapshot; of one that is gone nothing is compared."""
    with suppress(NotFound):
        return (
            REWRITE_PROPERTY
            in bench.tables.resolve(TableRef(table=table, at=str(snapshot_id))).summary
        )
    return False


def check_stored_data(
    bench: Context,
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
    for one in run_snapshots(bench, plan, rows, archive):
        try:
            compared, same = _check_bytes(bench, one, archive)
            found.append(compared)
            files += len(same)
            if result is not None:
                check, by_spark = _check_rows(bench, plan, one, archive, (result, same))
                found.append(check)
                partitions += by_spark
        except NotFound as error:
            found.append(unknown_check(f"bytes and rows of {one.name}", error.problem))
    return found, DataRead(files, partitions)


def _check_bytes(
    bench: Context, one: RunSnapshot, archive: AcceptanceArchive
) -> tuple[StoredCheck, dict[str, bool]]:
    """Hash the files; give of each whether its bytes are known to be those that were hashed."""
    name = f"SHA-256 of the data files of {one.name}"
    if one.by_rows:
        return unknown_check(name, verifying.REWRITTEN_ROWS_REASON), {}
    archived = verifying.archived_files(archive, one.scope.partitions)
    read = bench.data_files.digests(one.table, [file["path"] for file in archived])
    expected = {file["path"]: file["sha256"] for file in archived if "sha256" in file}
    found = {path: bytes_.sha256 for path, bytes_ in read.items()}
    same = {file["path"]: found.get(file["path"], "") == file.get("sha256") for file in archived}
    if not expected:
        return unknown_check(name, "no data file had a fingerprint when it was accepted"), same
    held = {path: found[path] for path in expected if path in found}
    return verifying.check_each_equal(name, expected, held, "data files (SHA-256)"), same


def _check_rows(
    bench: Context,
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
        if not one.by_rows
        and (total := _checksum_from_files(archive, label, same)) is not None
        and total.shape == accepted[label].shape
    }
    broken = dict.fromkeys(_corrupt_partitions(archive, one, same), "not read: other bytes")
    left = tuple(label for label in one.scope.partitions if label not in {**by_bytes, **broken})
    found = {**by_bytes, **broken, **_read_checksums(bench, plan, one, left)}
    check = verifying.check_each_equal(
        f"rows of {one.name}", expected, found, "partitions (count and checksum)"
    )
    how = f"{len(by_bytes)} by the bytes of their files, {len(left)} read by Spark"
    return check.model_copy(update={"because": f"{check.because}; {how}"}), len(left)


def _corrupt_partitions(
    archive: AcceptanceArchive, one: RunSnapshot, same: Mapping[str, bool]
) -> list[str]:
    """Name the partitions with a file of other bytes: what its rows are says nothing any more."""
    if one.by_rows:
        return []
    archived = verifying.archived_files(archive, one.scope.partitions)
    return [file["partition"] for file in archived if "sha256" in file and not same[file["path"]]]


def _checksum_from_files(
    archive: AcceptanceArchive, label: str, same: Mapping[str, bool]
) -> Checksum | None:
    """Add up the files of a partition; None: one of them says nothing certain of its rows."""
    files = verifying.archived_files(archive, (label,))
    if not files or any(file["deletes"] or not same[file["path"]] for file in files):
        return None
    return reduce(Checksum.__add__, (Checksum.parse(file["checksum"]) for file in files))


def _read_checksums(
    bench: Context, plan: Plan, one: RunSnapshot, labels: tuple[str, ...]
) -> dict[str, str]:
    if not labels:
        return {}
    added = rules_schema_change.added_column_names(rules_schema_change.declared_schema_change(plan))
    found = bench.compute().measuring.checksums(
        one.table,
        one.snapshot_id,
        one.scope.model_copy(update={"partitions": labels}),
        (*LINEAGE_NAMES, *added),
    )
    return {label: checksum.text for label, checksum in found.items() if checksum.rows}
