"""`verify`: what one acceptance rests on. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.core.approval import acceptance, signatures
from lakehouse_backfill.core.approval.decisions import logged_validation_document
from lakehouse_backfill.core.evidence.verification import deep_verify
from lakehouse_backfill.core.evidence.verification.audit import LEDGER_TABLE, audit_verify
from lakehouse_backfill.core.evidence.verification.deep_verify import (
    Verification,
    check_each_equal,
    check_equal,
    failed_check,
    unknown_check,
)
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.publication.expose import EVIDENCE_DIGEST_PROPERTY
from lakehouse_backfill.core.runs import roles, signers
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.core.versions import pointer, readers
from lakehouse_backfill.domain.checks import StoredCheck
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import Event
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import NotFound, Tampered

_ACCEPT_VERBS = ("accept", roles.CARRIED_DECISION_VERBS["accept"])
#: Said of a chunk by archive and ledger.
_LEDGER_FIELDS = ("output_rows", "checksum", "snapshot_id", "rejected_rows", "rejects_seal")
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
        return VerifyOutcome(run_id, tuple(checks), deep_verify.DataRead(), is_accepted)
    history = context.versions.history(status.product)
    publications = pointer.published_rows(reversed(history), run_id)
    subject = Verification(context, plan, events, publications, checks)
    _check_signatures(subject)
    _check_validation(subject)
    _check_archive(subject)
    if limit := context.proof_limit():
        checks.append(unknown_check("lists of files", limit))
    if subject.archive:
        _check_control_rows(subject)
        _check_anchors(subject)
        _check_files(subject)
        # Read again, as others may have published while files were checked.
        history = context.versions.history(status.product)
        view = readers.look_at_readers(context, history, run_id)
        _check_readers(subject, view)
        subject.check_version_labels()
        if deep:
            subject.check_stored_data()
            if subject.result is not None:
                history = context.versions.history(status.product)
                subject.check_head_rows(_heads_to_read(subject, history, view))
    return VerifyOutcome(run_id, tuple(checks), subject.data_read, is_accepted)


def _check_signatures(subject: Verification) -> None:
    """Check who signed the decisions and publications of the run.

    One without a signature is a failure only where signatures are required.
    """
    is_required = signers.is_signature_required(subject.context.profile, subject.plan)
    contract = subject.plan.resolved.contract
    found = signatures.run_verdicts(subject.context, subject.events, subject.publications, contract)
    if not is_required and all(one.is_unsigned for one in found):
        if found:
            reason = "nothing is signed: who decided is the login's name, or that of --by"
            subject.checks.append(unknown_check("signatures", reason))
        return
    for one in found:
        name = f"signature of {one.what}"
        if one.fault or (is_required and not one.is_signed):
            subject.checks.append(failed_check(name, one.fault or signatures.UNSIGNED))
        elif one.is_signed:
            because = signatures.describe_key(one.key, one.by)
            subject.checks.append(StoredCheck(name=name, ok=True, because=because))
        else:
            subject.checks.append(unknown_check(name, signatures.UNSIGNED))


def _check_plan(
    context: Context, run_id: str, events: tuple[Event, ...]
) -> tuple[Plan | None, StoredCheck]:
    name = "plan"
    try:
        plan = context.runs.plan(run_id)
    except (Tampered, NotFound) as error:
        return None, failed_check(name, error.problem)
    first = next((event.detail for event in events if event.verb == "plan"), {})
    if first.get(signers.REGISTERED) not in (None, plan.registered_digest):
        return plan, failed_check(name, "it is not the one that was registered")
    return plan, check_equal(
        name, first.get("manifest_hash"), plan.resolved.manifest_hash,
        "its manifest hash, worked out again, against the first event of the log",
    )  # fmt: skip


def _check_validation(subject: Verification) -> None:
    """Check the newest validation, and keep it as the result to compare rows with."""
    name, events = "validation", subject.events
    try:
        found = logged_validation_document(subject.context, events, subject.plan.run_id)
    except Tampered as error:
        subject.checks.append(failed_check(name, error.problem))
        return
    if found is None:
        was_passed = any(event.verb == "pass validation" for event in events)
        subject.checks.append(
            failed_check(name, "it is gone")
            if was_passed
            else unknown_check(name, "it was never validated")
        )
        return
    digest, subject.result = found
    published = subject.publications[-1].result_digest if subject.publications else digest
    if published != digest and acceptance.archive_digests(events, published):
        # The digest of the document was verified: it is newer than the published result.
        reason = f"{EARLIER_ACCEPTANCE}: it was validated again since"
        subject.checks.append(unknown_check(name, reason))
        return
    subject.checks.append(check_equal(name, published, digest, "its digest, worked out again"))


def _check_archive(subject: Verification) -> None:
    """Check the archive of the newest acceptance, and keep it as what the rest is compared with."""
    check, subject.archive = _load_archive(subject)
    subject.checks.append(check)


def _load_archive(subject: Verification) -> tuple[StoredCheck, Mapping[str, Any]]:
    name, nothing = "archive of the acceptance", dict[str, Any]()
    acceptances = [event for event in subject.events if event.verb in _ACCEPT_VERBS]
    if not acceptances:
        return unknown_check(name, "nobody has accepted the run"), nothing
    bound_to = str(acceptances[-1].detail.get("bound_to"))
    digest = acceptance.newest_archive_digest(subject.events, bound_to)
    if digest is None:
        return unknown_check(name, "an older release accepted it, and made no archive"), nothing
    try:
        document = subject.context.evidence.document(subject.plan.run_id, digest)
    except Tampered as error:
        return failed_check(name, error.problem), nothing
    if document is None:
        return failed_check(name, f"the log names {digest[:12]}, which is not stored"), nothing
    seq = document["log"]["seq"]
    head = next((event.hash for event in subject.events if event.seq == seq), "")
    expected = [subject.plan.manifest_hash, bound_to, head]
    recorded = [document["manifest_hash"], document["result_digest"], document["log"]["head"]]
    because = "its digest is that of the log; its manifest hash, result digest and head of the log"
    return check_equal(name, expected, recorded, because), document


def _check_control_rows(subject: Verification) -> None:
    """Check rows of control tables against the archive, the log, and each other."""
    context, plan = subject.context, subject.plan
    records = context.runs.chunks(plan.run_id)
    archived = {
        # Archives of older releases say less of a chunk.
        chunk["chunk_id"]: {name: chunk[name] for name in _LEDGER_FIELDS if name in chunk}
        for chunk in subject.archive["chunks"]
    }
    stored = {
        row.chunk_id: {name: getattr(row, name) for name in archived.get(row.chunk_id, ())}
        for row in records
    }
    subject.checks.append(
        check_each_equal("chunk ledger", archived, stored, f"rows of {LEDGER_TABLE}")
    )
    if not publish_modes.is_externally_written(plan):
        name = "commits of the chunks"
        with subject.missing_as_check(name):
            commits = context.shadows.chunks(plan.shadow_table)
            expected = {one.chunk_id: [one.snapshot_id, plan.rows_written(one)] for one in records}
            found = {chunk.chunk_id: [chunk.snapshot_id, chunk.added_rows] for chunk in commits}
            what = "chunks (snapshot, rows in its summary)"
            subject.checks.append(check_each_equal(name, expected, found, what))
    subject.checks.append(_check_fingerprint_rows(subject))
    logged = _logged_publication(subject)
    subject.checks += [
        _check_pointer_row(row, logged)
        for row in subject.publications
        if logged is None or logged.get("token") == row.token
    ]


def _check_pointer_row(row: Publication, logged: Mapping[str, Any] | None) -> StoredCheck:
    """Compare a row of the pointer with the publication that the run's log names."""
    name = f"row of version {row.version}"
    if logged is None:
        return failed_check(name, "the run's log names a publication that is not stored any more")
    found = row.model_dump(mode="json")
    expected = {field: logged[field] for field in found if field in logged}
    return check_each_equal(
        name, expected, {field: found[field] for field in expected},
        "fields of accepted_output_version, against the publication named in the log",
    )  # fmt: skip


def _logged_publication(subject: Verification) -> dict[str, Any] | None:
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


def _check_fingerprint_rows(subject: Verification) -> StoredCheck:
    """Compare rows of file_fingerprint (SHA-256, checksum) with what was accepted."""
    name, context, archived = "fingerprints", subject.context, subject.archived_files()
    try:
        rows = context.evidence.find_fingerprints([entry["path"] for entry in archived])
    except Tampered as error:
        return failed_check(name, error.problem)
    # A file may be hashed under several readings; the archive holds that of the candidate.
    checksums = {entry["path"]: entry.get("checksum") for entry in archived}
    in_order = sorted(rows, key=lambda row: row.checksum.text == checksums.get(row.path))
    found = {row.path: [row.sha256, row.checksum.text] for row in in_order}
    context.journal.bind(**subject.plan.labels).log("fingerprints compared", files=len(found))
    expected = {
        file["path"]: [file["sha256"], file["checksum"]] for file in archived if "sha256" in file
    }
    if not expected:
        return unknown_check(name, "no data file had a fingerprint when the run was accepted")
    found = {path: digests for path, digests in found.items() if path in expected}
    return check_each_equal(name, expected, found, "rows of file_fingerprint (SHA-256, checksum)")


def _check_anchors(subject: Verification) -> None:
    """Check the archive's digest in pointer rows and in summaries of snapshots."""
    for row in subject.publications:
        # A result may be accepted twice, each time with its own archive.
        digests = acceptance.archive_digests(subject.events, row.result_digest)
        digest = row.evidence_digest
        if digest not in digests:
            digest = digests[-1] if digests else None
        name = f"archive in the row of version {row.version}"
        subject.checks.append(
            check_equal(name, digest, row.evidence_digest, "accepted_output_version")
        )
        if publish_modes.is_pinned_product(subject.plan) or row.snapshot_id is None:
            continue
        name, at = f"archive in the summary of version {row.version}", str(row.snapshot_id)
        expected = {
            EVIDENCE_DIGEST_PROPERTY: digest,
            "lakehouse-backfill.publication": row.token,
            "lakehouse-backfill.run-id": subject.plan.run_id,
        }
        with subject.missing_as_check(name):
            snapshot = subject.context.tables.resolve(TableRef(table=row.table, at=at))
            held = {key: snapshot.summary.get(key) for key in expected}
            subject.checks.append(
                check_equal(name, expected, held, f"snapshot {at} of {row.table}")
            )


def _check_files(subject: Verification) -> None:
    """Check data files and manifests: as listed, and as stored."""
    if subject.archive["candidate"]["snapshot_id"] is not None:
        _check_candidate_metadata(subject)
    for snapshot in subject.snapshots():
        _check_snapshot_files(subject, snapshot)
    reason = f"{EARLIER_ACCEPTANCE}; the archive is of a later one"
    subject.checks += [
        unknown_check(f"files of version {row.version}", reason)
        for row in subject.earlier_publications()
    ]


def _check_candidate_metadata(subject: Verification) -> None:
    """Compare the candidate's manifests that still exist with those that were accepted."""
    name, candidate = "metadata of the candidate", subject.archive["candidate"]
    with subject.missing_as_check(name):
        files = subject.context.stored_files.metadata(
            candidate["table"], candidate["snapshot_id"], subject.plan.resolved.scope
        )
        accepted = {file["path"]: file["sha256"] for file in candidate["metadata"]}
        found = {file.path: file.sha256 for file in files}
        remaining = {path: sha256 for path, sha256 in accepted.items() if path in found}
        if not remaining:
            reason = "none of its manifest lists and manifests is there any more"
            subject.checks.append(unknown_check(name, reason))
            return
        what = "manifest lists and manifests (SHA-256)"
        check = check_each_equal(name, remaining, found, what)
        missing = len(accepted) - len(remaining)
        because = check.because + f"; {missing} gone" * bool(missing)
        subject.checks.append(check.model_copy(update={"because": because}))


def _check_snapshot_files(subject: Verification, row: deep_verify.RunSnapshot) -> None:
    """Compare files and manifests as a snapshot lists them, and as the store has them."""
    stored, checks = subject.context.stored_files, subject.checks
    archived = subject.archived_files(row.scope.partitions)
    name = f"data files listed by {row.name}"
    if row.is_rewritten:
        checks.append(unknown_check(name, deep_verify.REWRITTEN_ROWS_REASON))
    else:
        with subject.missing_as_check(name):
            listed = stored.files(row.table, row.snapshot_id, row.scope)
            expected = {file["path"]: [file["size_bytes"], file["rows"]] for file in archived}
            found = {file.path: [file.size_bytes, file.rows] for file in listed}
            checks.append(check_each_equal(name, expected, found, "data files (size, rows)"))
    name = f"manifests of {row.name}"
    with subject.missing_as_check(name):
        metadata = stored.metadata(row.table, row.snapshot_id, row.scope)
        manifests = [file for file in metadata if file.listed_bytes is not None]
        declared = {file.path: file.listed_bytes for file in manifests}
        sizes = {file.path: file.size_bytes for file in manifests}
        checks.append(check_each_equal(name, declared, sizes, "manifests (bytes)"))
    name, table = f"files of {row.name}", row.table
    if row.is_rewritten:
        # The accepted files are in the candidate's table; the version lists other files.
        name, table = f"files of the candidate of {row.name}", subject.archive["candidate"]["table"]
    with subject.missing_as_check(name):
        accepted = {file["path"]: file["size_bytes"] for file in archived}
        held = stored.sizes(table, list(accepted))
        sizes = {path: size for path, size in held.items() if path in accepted}
        checks.append(check_each_equal(name, accepted, sizes, "data files (bytes in the store)"))


def _heads_to_read(
    subject: Verification, history: tuple[Publication, ...], view: readers.ReaderView
) -> list[deep_verify.RunSnapshot]:
    """Return the head of the target, unless it is the run's own snapshot, with partitions to read.

    These are the visible ones of the run that no commit is known to have changed.
    """
    seen = pointer.run_visibility(history, subject.plan.run_id)
    table = subject.plan.resolved.target.table
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


def _check_readers(subject: Verification, view: readers.ReaderView) -> None:
    """Compare the head of the table, which readers get, with the rows of the publications."""
    if view == readers.ReaderView():
        return
    heads = ", ".join(f"{name} at snapshot {head}" for name, head in view.heads.items())
    total = len(view.same) + len(view.changed) + len(view.unknown)
    because = f"{len(view.same)} of {total} partitions as the publications left them; {heads}"
    because = "; ".join(part for part in (view.exceptions(), because) if part)
    ok = False if view.changed else None if view.unknown else True
    subject.checks.append(
        StoredCheck(
            name=READERS_CHECK, ok=ok, expected=total, found=len(view.same), because=because
        )
    )
