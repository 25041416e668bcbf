"""The subject of `verify`, and the comparison of its stored data (`verify --deep`).

`Verification` holds what was accepted and collects the checks; each check names what differs. Its
methods read the bytes of each data file and the rows of each partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from lakehouse_backfill.core.approval import acceptance
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import version_labels
from lakehouse_backfill.domain.checks import StoredCheck, ValidationResult
from lakehouse_backfill.domain.comparison.checksums import Checksum, FileBytes
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import LINEAGE_NAMES, Event
from lakehouse_backfill.domain.tables.commits import REWRITE_PROPERTY
from lakehouse_backfill.domain.tables.schema_change import added_column_names
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import BackfillError, LostFile, NotFound, Unsupported

#: Up to this many differences are named; the others are counted.
MAX_NAMED_DIFFERENCES = 10
#: Data files that are hashed before the progress moves on; the store reads several at a time.
_FILES_AT_ONCE = 32
#: Why the files of a version cannot be compared with those that were accepted.
REWRITTEN_ROWS_REASON = "its rows were written anew by Spark, into files of their own"


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


@dataclass
class DataRead:
    """What was read: the bytes of so many files, the rows of so many partitions by Spark."""

    files: int = 0
    partitions_by_spark: int = 0


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


@dataclass
class Verification:
    """A run, its log, the rows by which it became visible (oldest first), and the checks so far.

    `archive` is the archive of its acceptance, empty when there is none. `result` is the validated
    result; None: it is gone or was edited, so no rows can be compared.
    """

    context: Context
    plan: Plan
    events: tuple[Event, ...]
    publications: tuple[Publication, ...]
    checks: list[StoredCheck]
    archive: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    data_read: DataRead = field(default_factory=DataRead)

    @contextmanager
    def missing_as_check(
        self, name: str, unknown: type[BackfillError] | tuple[type[BackfillError], ...] = NotFound
    ) -> Iterator[None]:
        """Add a check instead of raising: a lost file fails, what retention removed is unknown.

        `unknown` are the errors after which nothing can be compared.
        """
        try:
            yield
        except LostFile as error:
            self.checks.append(failed_check(name, error.problem))
        except unknown as error:
            self.checks.append(unknown_check(name, error.problem))

    def check_version_labels(self) -> None:
        """Check that the table of versions says of each file what the pointer says.

        Whoever moves the pointer relabels after it, so a moment later the check may pass.
        """
        contract, name = self.plan.resolved.contract, "labels of the table of versions"
        if contract.versions_table is None or not self.publications:
            return
        with suppress(BackfillError):
            if self.context.contract(contract.product).versions_table != contract.versions_table:
                return  # The table of then does not follow the pointer any more.
        with self.missing_as_check(name):
            fault = version_labels.labels_fault(self.context, contract)
            if fault is not None:
                what = f"files of {contract.versions_table}, against those of the kept versions"
                self.checks.append(check_equal(name, "", fault, what))

    def earlier_publications(self) -> tuple[Publication, ...]:
        """Return the rows of results that were accepted before the one of the archive."""
        newest = self.archive.get("result_digest")
        return tuple(
            row
            for row in self.publications
            if row.result_digest != newest
            and acceptance.archive_digests(self.events, row.result_digest)
        )

    def current_publications(self) -> tuple[Publication, ...]:
        """Return the rows that are compared with the archive."""
        earlier = self.earlier_publications()
        return tuple(row for row in self.publications if row not in earlier)

    def archived_files(self, partitions: Iterable[str] | None = None) -> list[Any]:
        """Return the data files of the archive: all, or those of some partitions."""
        labels = None if partitions is None else set(partitions)
        files: list[Any] = self.archive["candidate"]["files"]
        return [file for file in files if labels is None or file["partition"] in labels]

    def snapshots(self) -> tuple[RunSnapshot, ...]:
        """Return the published snapshots.

        Before publication, and for correction events, return the candidate's.
        """
        candidate, scope = self.archive["candidate"], self.plan.resolved.scope
        rows = self.current_publications()
        if rows and self.plan.resolved.manifest.target.publish_mode != "correction_events":
            return tuple(
                RunSnapshot(
                    f"version {row.version}", row.table, row.snapshot_id, row.scope or scope,
                    self._is_rewritten(row.table, row.snapshot_id),
                )
                for row in rows
                if row.snapshot_id is not None
            )  # fmt: skip
        if candidate["snapshot_id"] is None:
            return ()
        return (RunSnapshot("the candidate", candidate["table"], candidate["snapshot_id"], scope),)

    def _is_rewritten(self, table: str, snapshot_id: int) -> bool:
        """Return whether a row rewrite made the snapshot; False when the snapshot is gone."""
        with suppress(NotFound):
            snapshot = self.context.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
            return REWRITE_PROPERTY in snapshot.summary
        return False

    def check_stored_data(self) -> None:
        """Read all data files of the run's partitions, and compare their bytes, then their rows.

        Spark does not read a partition whose files all have the bytes that were hashed when their
        rows were counted.
        """
        for snapshot in self.snapshots():
            with self.missing_as_check(f"bytes and rows of {snapshot.name}"):
                has_known_bytes = self._check_bytes(snapshot)
                self.data_read.files += len(has_known_bytes)
                if self.result is not None:
                    self._check_rows(snapshot, has_known_bytes)

    def _check_bytes(self, one: RunSnapshot) -> dict[str, bool]:
        """Hash the files; return by path whether the bytes are those recorded."""
        name = f"SHA-256 of the data files of {one.name}"
        if one.is_rewritten:
            self.checks.append(unknown_check(name, REWRITTEN_ROWS_REASON))
            return {}
        archived = self.archived_files(one.scope.partitions)
        read = self._read_files(one.table, archived)
        expected = {file["path"]: file["sha256"] for file in archived if "sha256" in file}
        found = {path: content.sha256 for path, content in read.items()}
        current = {path: found[path] for path in expected if path in found}
        self.checks.append(
            check_each_equal(name, expected, current, "data files (SHA-256)")
            if expected
            else unknown_check(name, "no data file had a fingerprint when it was accepted")
        )
        return {
            file["path"]: found.get(file["path"], "") == file.get("sha256") for file in archived
        }

    def _read_files(self, table: str, archived: list[Any]) -> dict[str, FileBytes]:
        """Hash the files, some at a time."""
        progress, read = self.context.progress, dict[str, FileBytes]()
        progress.count("verify, reading", len(archived), "data files")
        for first in range(0, len(archived), _FILES_AT_ONCE):
            paths = [file["path"] for file in archived[first : first + _FILES_AT_ONCE]]
            read |= self.context.stored_files.digests(table, paths)
            progress.advance(len(paths))
        progress.finish()
        return read

    def _check_rows(self, one: RunSnapshot, has_known_bytes: Mapping[str, bool]) -> None:
        accepted = self._accepted_checksums(one.scope.partitions)
        expected = _texts_with_rows(accepted)
        by_bytes: dict[str, str] = {}
        broken: dict[str, str] = {}
        if not one.is_rewritten:
            for label in expected:
                total = self._checksum_from_files(label, has_known_bytes)
                if total is not None and total.shape == accepted[label].shape:
                    by_bytes[label] = total.text
            for file in self.archived_files(one.scope.partitions):
                if "sha256" in file and not has_known_bytes[file["path"]]:
                    # The row checksums of this partition no longer hold.
                    broken[file["partition"]] = "not read: other bytes"
        to_read = tuple(x for x in one.scope.partitions if x not in {**by_bytes, **broken})
        read = _texts_with_rows(self._measure(one, to_read)) if to_read else {}
        check = check_each_equal(
            f"rows of {one.name}", expected, {**by_bytes, **broken, **read},
            "partitions (count and checksum)",
        )  # fmt: skip
        method = f"{len(by_bytes)} by the bytes of their files, {len(to_read)} read by Spark"
        self.checks.append(check.model_copy(update={"because": f"{check.because}; {method}"}))
        self.data_read.partitions_by_spark += len(to_read)

    def _accepted_checksums(self, labels: Sequence[str]) -> dict[str, Checksum]:
        return {
            balance.partition: Checksum.parse(balance.new_checksum)
            for balance in ValidationResult.model_validate(self.result).balances
            if balance.partition in labels
        }

    def _checksum_from_files(self, label: str, same: Mapping[str, bool]) -> Checksum | None:
        """Add up the checksums of a partition's files; None when one of them is not certain."""
        files = self.archived_files((label,))
        if not files or any(file["deletes"] or not same[file["path"]] for file in files):
            return None
        return reduce(Checksum.__add__, (Checksum.parse(file["checksum"]) for file in files))

    def _measure(self, one: RunSnapshot, labels: tuple[str, ...]) -> dict[str, Checksum]:
        added = added_column_names(declared_schema_change(self.plan))
        return self.context.compute().measuring.checksums(
            one.table,
            one.snapshot_id,
            one.scope.model_copy(update={"partitions": labels}),
            (*LINEAGE_NAMES, *added),
        )

    def check_head_rows(self, heads: Iterable[RunSnapshot]) -> None:
        """Read the rows that readers get where later commits left other files than those accepted.

        A compaction must not change rows, and where the history is gone nobody knows what changed
        them. Partitions that still have the accepted files are left out: those were compared
        before.
        """
        for head in heads:
            name = f"rows of {head.name}"
            with self.missing_as_check(name, (NotFound, Unsupported)):
                labels = self._refiled_partitions(head)
                if labels:
                    one = replace(head, scope=head.scope.model_copy(update={"partitions": labels}))
                    found = self._measure(one, labels)
                    self.checks.append(
                        _check_read_rows(name, self._accepted_checksums(labels), found)
                    )
                    self.data_read.partitions_by_spark += len(labels)

    def _refiled_partitions(self, head: RunSnapshot) -> tuple[str, ...]:
        """List the partitions whose files at the head are not those of the archive."""
        listed = self.context.stored_files.files(head.table, head.snapshot_id, head.scope)
        now = {(file.partition, file.path, *file.deletes) for file in listed}
        accepted = {
            (file["partition"], file["path"], *file["deletes"])
            for file in self.archived_files(head.scope.partitions)
        }
        other = {entry[0] for entry in now ^ accepted}
        return tuple(label for label in head.scope.partitions if label in other)


def _texts_with_rows(checksums: Mapping[str, Checksum]) -> dict[str, str]:
    """Return the checksums of the partitions that have rows, as text."""
    return {label: checksum.text for label, checksum in checksums.items() if checksum.rows}


def _check_read_rows(
    name: str, accepted: Mapping[str, Checksum], found: Mapping[str, Checksum]
) -> StoredCheck:
    """Compare checksums of rows; those of other columns are not comparable."""
    if {one.shape[:8] for one in found.values()} - {one.shape[:8] for one in accepted.values()}:
        return unknown_check(name, "the columns of the table changed since")
    check = check_each_equal(
        name, _texts_with_rows(accepted), _texts_with_rows(found), "partitions (count and checksum)"
    )
    reason = f"{check.because}; they have other files than those accepted, and Spark read them"
    return check.model_copy(update={"because": reason})
