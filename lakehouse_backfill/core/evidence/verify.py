"""`verify` and `audit verify`: whether what is stored is what was accepted. Nothing is changed.

`audit_verify` checks that logs, pointers and plans are as they were written. `verify` checks
everything that the acceptance of one run rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lakehouse_backfill.core.approval import acceptance
from lakehouse_backfill.core.approval.decisions import logged_validation_document
from lakehouse_backfill.core.evidence import deep_verify
from lakehouse_backfill.core.evidence.deep_verify import (
    AcceptanceArchive,
    check_equal,
    failed_check,
    unknown_check,
)
from lakehouse_backfill.core.planning import publish_modes
from lakehouse_backfill.core.publication.expose import EVIDENCE_DIGEST_PROPERTY
from lakehouse_backfill.core.runs import event_log, roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.runs.event_log import AuditVerdict
from lakehouse_backfill.core.versions import pointer, readers
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.table import StoredCheck, TableRef
from lakehouse_backfill.errors import LostFile, NotFound, Tampered, TooBusy

#: Events written during a read look like an edit, so the read is repeated.
_MAX_READS = 10
_ACCEPT_VERBS = ("accept", roles.CARRIED_DECISION_VERBS["accept"])


def audit_verify(context: Context, kept_heads: Mapping[str, str] | None = None) -> AuditVerdict:
    """Check each run's chain of events, the seal over all of them, and the states in use.

    Then check the pointer of each product against its rows, and each plan against its hash. Heads
    that were kept of an earlier verdict must still be hashes of events.

    Raises TooBusy when events keep being written in between.
    """
    for _ in range(_MAX_READS):
        seal = context.audit.seal()
        chains, statuses = context.audit.chains(), context.runs.list(open_only=True)
        if context.audit.seal() == seal:
            products = context.audit.products()
            bad_plans = context.audit.bad_plans() | context.audit.bad_documents()
            recorded = {
                table: frozenset(
                    run_id
                    for run_id in runs
                    # A run without events here may have been registered since they were read.
                    if run_id in chains or not context.runs.events(run_id)
                )
                for table, runs in context.audit.recorded_runs().items()
            }
            bad_plans |= _runs_without_ledger(context, chains, recorded)
            return event_log.verify_logs(
                chains, seal, statuses, products, bad_plans, recorded, kept_heads
            )
    raise TooBusy("runs kept moving while their logs were read", fix="try again")


def _runs_without_ledger(
    context: Context, chains: event_log.EventChains, recorded: dict[str, frozenset[str]]
) -> dict[str, str]:
    """Return the runs that staged chunks, by their log, of which the chunk ledger has no row."""
    known = recorded.get(LEDGER_TABLE, chains.keys())
    missing = {}
    for run_id in chains.keys() - known:
        if all(event.verb != "finish staging" for event in chains[run_id]):
            continue
        with suppress(NotFound, Tampered):
            plan = context.runs.plan(run_id)
            if plan.resolved.chunks and not publish_modes.is_externally_written(plan):
                missing[run_id] = f"{run_id} staged chunks by its log; {LEDGER_TABLE} has no row"
    return missing


#: The control table of the chunks.
LEDGER_TABLE = "backfill_chunk_run"
EARLIER_ACCEPTANCE = "an earlier acceptance"
#: The check that compares the head of the table: it can fail when all evidence is whole.
READERS_CHECK = "what readers get now"


@dataclass(frozen=True)
class VerifyOutcome:
    """The checks of a run, and how much data was read for them: none, bytes, or rows by Spark."""

    run_id: str
    checks: tuple[StoredCheck, ...]
    data_read: deep_verify.DataRead
    is_accepted: bool = False

    @property
    def is_intact(self) -> bool:
        """Return whether nothing that could be compared differs."""
        return all(check.ok is not False for check in self.checks)


@dataclass(frozen=True)
class VerifySubject:
    """A run, its log, and the rows by which it became visible, oldest first."""

    context: Context
    plan: Plan
    events: tuple[Event, ...]
    publications: tuple[Publication, ...]
    archive: AcceptanceArchive | None = None

    def earlier_publications(self) -> tuple[Publication, ...]:
        """Return the rows of results that were accepted before the one of the archive."""
        newest = (self.archive or {}).get("result_digest")
        other = (row for row in self.publications if row.result_digest != newest)
        return tuple(
            earlier
            for earlier in other
            if acceptance.archive_digests(self.events, earlier.result_digest)
        )

    def current_publications(self) -> tuple[Publication, ...]:
        """Return the rows that are compared with the archive."""
        earlier = self.earlier_publications()
        return tuple(row for row in self.publications if row not in earlier)


def verify(context: Context, run_id: str, *, deep: bool = False) -> VerifyOutcome:
    """Compare what is stored with what was accepted; `deep` also reads the data files.

    File sizes are looked up and metadata is hashed. Control rows are compared with each other, with
    the archive of the acceptance and with the log. Without `deep` no data is read. No JVM is
    started where fingerprints suffice. Raises NotFound when there is no such run.
    """
    status = context.runs.status(run_id)
    events = context.runs.events(run_id)
    verdict = audit_verify(context)
    checks = [
        StoredCheck(
            name="log and pointers",
            ok=verdict.is_intact,
            found=verdict.first_bad,
            because=f"{verdict.events} events of {verdict.runs} runs, {verdict.products} products: "
            "chains, seals, pointers and plans",
        )
    ]
    plan, check = _check_plan(context, run_id, events)
    checks.append(check)
    is_accepted = any(event.verb in _ACCEPT_VERBS for event in events)
    if plan is None:
        return VerifyOutcome(run_id, tuple(checks), deep_verify.NO_DATA_READ, is_accepted)
    history = context.versions.history(status.product)
    publications = [
        row for row in reversed(history) if (row.action, row.run_id) == ("publish", run_id)
    ]
    subject = VerifySubject(context, plan, events, tuple(publications))
    result, check = _check_validation(subject)
    subject, archived = _check_archive(subject)
    checks += [check, *archived]
    if subject.archive is None:
        return VerifyOutcome(run_id, tuple(checks), deep_verify.NO_DATA_READ, is_accepted)
    checks += [*_check_control_rows(subject), *_check_anchors(subject), *_check_files(subject)]
    view = _reader_view(subject)
    checks += _check_readers(view)
    read = deep_verify.NO_DATA_READ
    if deep:
        deep_checks, read = _check_data(subject, subject.archive, result, view)
        checks += deep_checks
    return VerifyOutcome(run_id, tuple(checks), read, is_accepted)


def _check_plan(
    context: Context, run_id: str, events: tuple[Event, ...]
) -> tuple[Plan | None, StoredCheck]:
    name = "plan"
    try:
        plan = context.runs.plan(run_id)
    except (Tampered, NotFound) as error:
        return None, failed_check(name, error.problem)
    hashes = [str(event.detail.get("manifest_hash")) for event in events if event.verb == "plan"]
    return plan, check_equal(
        name, hashes[0] if hashes else None, plan.resolved.manifest_hash,
        "its manifest hash, worked out again, against the first event of the log",
    )  # fmt: skip


def _check_validation(subject: VerifySubject) -> tuple[dict[str, Any] | None, StoredCheck]:
    name, run_id = "validation", subject.plan.run_id
    try:
        found = logged_validation_document(subject.context, subject.events, run_id)
    except Tampered as error:
        return None, failed_check(name, error.problem)
    if found is None:
        was_passed = any(event.verb == "pass validation" for event in subject.events)
        return None, failed_check(name, "it is gone") if was_passed else unknown_check(
            name, "it was never validated"
        )
    digest, document = found
    published_digests = [row.result_digest for row in subject.publications]
    if (
        published_digests
        and published_digests[-1] != digest
        and acceptance.archive_digests(subject.events, published_digests[-1])
    ):
        # The digest of the document was verified: it is newer than the published result.
        return document, unknown_check(name, f"{EARLIER_ACCEPTANCE}: it was validated again since")
    return document, check_equal(
        name, (published_digests or [digest])[-1], digest, "its digest, worked out again"
    )


def _check_archive(subject: VerifySubject) -> tuple[VerifySubject, tuple[StoredCheck, ...]]:
    name, context, run_id = "archive of the acceptance", subject.context, subject.plan.run_id
    acceptances = [event for event in subject.events if event.verb in _ACCEPT_VERBS]
    if not acceptances:
        return subject, (unknown_check(name, "nobody has accepted the run"),)
    bound_to = str(acceptances[-1].detail.get("bound_to"))
    digest = acceptance.newest_archive_digest(subject.events, bound_to)
    if digest is None:
        return subject, (unknown_check(name, "an older release accepted it, and made no archive"),)
    try:
        document = context.evidence.document(run_id, digest)
    except Tampered as error:
        return subject, (failed_check(name, error.problem),)
    if document is None:
        return subject, (failed_check(name, f"the log names {digest[:12]}, which is not stored"),)
    archived = replace(subject, archive=document)
    seq = document["log"]["seq"]
    head = next((event.hash for event in subject.events if event.seq == seq), "")
    expected = [subject.plan.manifest_hash, bound_to, head]
    recorded = [document["manifest_hash"], document["result_digest"], document["log"]["head"]]
    because = "its digest is that of the log; its manifest hash, result digest and head of the log"
    return archived, (check_equal(name, expected, recorded, because),)


def _check_control_rows(subject: VerifySubject) -> list[StoredCheck]:
    """Check rows of control tables against the archive, the log, and each other."""
    context, plan, archive = subject.context, subject.plan, subject.archive or {}
    records = context.ledger.chunks(plan.run_id)
    checks = [deep_verify.check_ledger(archive, records)]
    if not publish_modes.is_externally_written(plan):
        shadow = plan.shadow_table
        checks.append(
            _compare_or_unknown(
                "commits of the chunks",
                lambda: deep_verify.check_chunk_commits(records, context.shadows.chunks(shadow)),
            )
        )
    checks.append(_check_fingerprint_rows(subject))
    logged = _logged_publication(subject)
    matching_rows = (
        row for row in subject.publications if logged is None or logged.get("token") == row.token
    )
    return [*checks, *(deep_verify.check_pointer_row(row, logged) for row in matching_rows)]


def _logged_publication(subject: VerifySubject) -> dict[str, Any] | None:
    """Return the last publication that the log names."""
    digests = [
        event.detail["digest"] for event in subject.events if event.verb == "finish publishing"
    ]
    if not digests:
        return {}
    try:
        return subject.context.evidence.document(subject.plan.run_id, str(digests[-1]))
    except Tampered:
        return None


def _check_fingerprint_rows(subject: VerifySubject) -> StoredCheck:
    context, plan, archive = subject.context, subject.plan, subject.archive or {}
    archived = deep_verify.archived_files(archive)
    try:
        rows = context.fingerprints.find([entry["path"] for entry in archived])
    except Tampered as error:
        return failed_check("fingerprints", error.problem)
    # A file may be hashed under several readings; the archive holds that of the candidate.
    archived_checksums = {entry["path"]: entry.get("checksum") for entry in archived}
    digests = {entry.path: (entry.sha256, entry.checksum.text) for entry in rows}
    digests |= {
        entry.path: (entry.sha256, entry.checksum.text)
        for entry in rows
        if entry.checksum.text == archived_checksums.get(entry.path)
    }
    context.journal.bind(**plan.labels).log("fingerprints compared", files=len(digests))
    return deep_verify.check_fingerprints(archived, digests)


def _check_anchors(subject: VerifySubject) -> list[StoredCheck]:
    """Check the archive's digest in pointer rows and in summaries of snapshots."""
    checks = []
    for row in subject.publications:
        name = f"archive in the row of version {row.version}"
        # A result may be accepted twice, each time with its own archive.
        archive_digests = acceptance.archive_digests(subject.events, row.result_digest)
        digest = (
            row.evidence_digest
            if row.evidence_digest in archive_digests
            else (archive_digests or (None,))[-1]
        )
        checks.append(check_equal(name, digest, row.evidence_digest, "accepted_output_version"))
        if publish_modes.is_pinned_product(subject.plan) or row.snapshot_id is None:
            continue
        checks.append(_check_summary(subject, row, digest))
    return checks


def _check_summary(subject: VerifySubject, row: Publication, digest: str | None) -> StoredCheck:
    name, at = f"archive in the summary of version {row.version}", str(row.snapshot_id)
    expected = {
        EVIDENCE_DIGEST_PROPERTY: digest,
        "lakehouse-backfill.publication": row.token,
        "lakehouse-backfill.run-id": subject.plan.run_id,
    }

    def compare() -> StoredCheck:
        snapshot = subject.context.tables.resolve(TableRef(table=row.table, at=at))
        held = {key: snapshot.summary.get(key) for key in expected}
        return check_equal(name, expected, held, f"snapshot {at} of {row.table}")

    return _compare_or_unknown(name, compare)


def _check_files(subject: VerifySubject) -> list[StoredCheck]:
    """Check data files and manifests: as listed, and as stored."""
    archive, stored = subject.archive or {}, subject.context.stored
    candidate, scope = archive["candidate"], subject.plan.resolved.scope
    table, snapshot_id = candidate["table"], candidate["snapshot_id"]
    checks = []
    if snapshot_id is not None:
        name = "metadata of the candidate"
        checks.append(
            _compare_or_unknown(
                name,
                lambda: deep_verify.check_candidate_metadata(
                    archive, stored.metadata(table, snapshot_id, scope)
                ),
            )
        )
    for row in deep_verify.run_snapshots(
        subject.context, subject.plan, subject.current_publications(), archive
    ):
        checks += _check_snapshot_files(subject, row)
    reason = f"{EARLIER_ACCEPTANCE}; the archive is of a later one"
    return [
        *checks,
        *(
            unknown_check(f"files of version {row.version}", reason)
            for row in subject.earlier_publications()
        ),
    ]


def _check_data(
    subject: VerifySubject,
    archive: AcceptanceArchive,
    result: dict[str, Any] | None,
    view: readers.ReaderView,
) -> tuple[list[StoredCheck], deep_verify.DataRead]:
    """Read the data of the publications, and that of the head where it has other files."""
    context, plan = subject.context, subject.plan
    checks, read = deep_verify.check_stored_data(
        context, plan, subject.current_publications(), archive, result
    )
    if result is None:
        return checks, read
    heads = _heads_to_read(subject, view)
    at_head, by_spark = deep_verify.check_head_rows(context, plan, heads, archive, result)
    total = read.partitions_by_spark + by_spark
    return [*checks, *at_head], replace(read, partitions_by_spark=total)


def _reader_view(subject: VerifySubject) -> readers.ReaderView:
    history = subject.context.versions.history(subject.plan.product)
    return readers.look_at_readers(subject.context, history, subject.plan.run_id)


def _heads_to_read(
    subject: VerifySubject, view: readers.ReaderView
) -> list[deep_verify.RunSnapshot]:
    """Return the head of the target, unless it is the run's own snapshot, with partitions to read.

    These are the visible ones of the run that no commit is known to have changed.
    """
    plan = subject.plan
    history = subject.context.versions.history(plan.product)
    seen = pointer.run_visibility(history, plan.run_id)
    table = plan.resolved.target.table
    head = view.heads.get(table)
    visible = seen.visible - seen.replaced - view.changed.keys()
    return [
        deep_verify.RunSnapshot(
            f"{table} at its head, which readers get", table, head,
            row.scope.model_copy(update={"partitions": labels}),
        )
        for row in subject.current_publications()
        if row.table == table and row.scope is not None and head not in (None, row.snapshot_id)
        if (labels := tuple(label for label in row.scope.partitions if label in visible))
    ]  # fmt: skip


def _check_readers(view: readers.ReaderView) -> list[StoredCheck]:
    """Compare the head of the table, which readers get, with the rows of the publications."""
    if view == readers.ReaderView():
        return []
    heads = ", ".join(f"{name} at snapshot {head}" for name, head in view.heads.items())
    total = len(view.same) + len(view.changed) + len(view.unknown)
    ok = False if view.changed else None if view.unknown else True
    because = f"{len(view.same)} of {total} partitions as the publications left them; {heads}"
    check = StoredCheck(
        name=READERS_CHECK,
        ok=ok,
        expected=total,
        found=len(view.same),
        because="; ".join(part for part in (view.exceptions(), because) if part),
    )
    return [check]


def _check_snapshot_files(
    subject: VerifySubject, row: deep_verify.RunSnapshot
) -> list[StoredCheck]:
    archive, stored = subject.archive or {}, subject.context.stored
    archived = deep_verify.archived_files(archive, row.scope.partitions)
    names = [f"{what} {row.name}" for what in ("data files listed by", "manifests of", "files of")]
    stored_table = row.table
    if row.is_rewritten:
        # The accepted files are in the candidate's table; the version lists other files.
        stored_table = archive["candidate"]["table"]
        names[2] = f"files of the candidate of {row.name}"
    return [
        unknown_check(names[0], deep_verify.REWRITTEN_ROWS_REASON)
        if row.is_rewritten
        else _compare_or_unknown(
            names[0],
            lambda: deep_verify.check_listed_files(
                names[0], archived, stored.files(row.table, row.snapshot_id, row.scope)
            ),
        ),
        _compare_or_unknown(
            names[1],
            lambda: deep_verify.check_manifest_sizes(
                names[1], stored.metadata(row.table, row.snapshot_id, row.scope)
            ),
        ),
        _compare_or_unknown(
            names[2],
            lambda: deep_verify.check_stored_sizes(
                names[2], archived, stored.sizes(stored_table, [file["path"] for file in archived])
            ),
        ),
    ]


def _compare_or_unknown(name: str, compare: Callable[[], StoredCheck]) -> StoredCheck:
    """Compare; what retention removed since is unknown, what is lost or damaged has failed."""
    try:
        return compare()
    except LostFile as error:
        return failed_check(name, error.problem)
    except NotFound as error:
        return unknown_check(name, error.problem)
