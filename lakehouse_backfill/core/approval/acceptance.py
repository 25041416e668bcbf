"""The archive of what was accepted: made once, when it is accepted, and anchored in what follows.

Its SHA-256 stands in the event of the acceptance, in the pointer's row and in the summary of the
snapshot that was published. It is stored under that digest, and nothing rewrites it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.comparison.fingerprints import match_fingerprints
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import ValidationResult
from lakehouse_backfill.domain.comparison.checksums import FileFingerprint
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import Event, RunStatus
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.errors import Blocked, Tampered

ACCEPTANCE = "acceptance"
_ARCHIVE_FORMAT = 1
#: What is accepted of a chunk: not its duration, nor who recorded it.
_CHUNK_FIELDS = {
    "chunk_id", "partitions", "output_rows", "checksum", "snapshot_id", "rejected_rows",
    "rejects_seal",
}  # fmt: skip
_FILE_FIELDS = {"path", "partition", "rows", "size_bytes", "deletes"}


def archive_acceptance(
    context: Context,
    plan: Plan,
    status: RunStatus,
    found: tuple[str, ValidationResult],
    by: tuple[str, ...],
) -> str:
    """Store what is being accepted, down to each data file, and give the archive's digest.

    `found` is the validation with its digest. Raises NotFound when the candidate is gone.
    """
    digest, validation = found
    events = context.runs.events(plan.run_id)
    document = {
        "form": _ARCHIVE_FORMAT,
        "run_id": plan.run_id,
        "product": plan.product,
        "manifest_hash": plan.manifest_hash,
        "result_digest": digest,
        "approved_by": list(roles.decision_makers(events, "approve", plan.manifest_hash)),
        "accepted_by": [*roles.decision_makers(events, "accept", digest), *by],
        "log": {"seq": status.seq, "head": status.head},
        "candidate": _candidate_document(context, plan, validation.shadow_snapshot_id),
        "chunks": [
            record.model_dump(mode="json", include=_CHUNK_FIELDS)
            for record in context.runs.chunks(plan.run_id)
        ],
    }
    # No lease is needed to decide; the number of the run's last event passes every fence.
    return context.evidence.record(plan.run_id, ACCEPTANCE, document, status.seq)


def newest_archive_digest(events: tuple[Event, ...], result_digest: str) -> str | None:
    """Return the digest of the newest archive of a result; None: an older release accepted it."""
    return next(reversed(archive_digests(events, result_digest)), None)


def archive_digests(events: tuple[Event, ...], result_digest: str | None) -> tuple[str | None, ...]:
    """Return the archive digests of a result by the log, oldest first; () if not accepted."""
    verbs = ("accept", roles.CARRIED_DECISION_VERBS["accept"])
    made = [e for e in events if e.verb in verbs and e.detail.get("bound_to") == result_digest]
    return tuple(e.detail.get("archive") for e in sorted(made, key=lambda event: event.seq))


def require_accepted_bytes(
    context: Context, plan: Plan, events: tuple[Event, ...], result_digest: str
) -> None:
    """Hash the candidate's data files; raise Tampered unless each has the bytes that were accepted.

    Files without a fingerprint in the archive are not compared; it is said how many.
    """
    archive = newest_archive_digest(events, result_digest)
    document = context.evidence.document(plan.run_id, archive) if archive else None
    if document is None:
        raise Blocked(
            f"{plan.run_id} was accepted without an archive, so its files cannot be compared",
            state="nothing was published",
            fix=f"lakehouse-backfill accept {plan.run_id} again, or publish --no-check-files",
        )
    candidate = document["candidate"]
    expected = {file["path"]: file["sha256"] for file in candidate["files"] if "sha256" in file}
    found = context.stored_files.digests(candidate["table"], expected)
    if unknown := len(candidate["files"]) - len(expected):
        context.progress.say(
            f"{unknown} of {len(candidate['files'])} staged files have no stored hash: their bytes "
            "were not compared with what was accepted"
        )
    context.journal.bind(**plan.labels).log(
        "staged files hashed", files=len(found), unknown=unknown
    )
    digests = {path: content.sha256 for path, content in found.items()}
    wrong = sorted(path for path, sha256 in expected.items() if digests.get(path) != sha256)
    if wrong:
        raise Tampered(
            f"{len(wrong)} staged files are not what was accepted, the first is {wrong[0]}",
            state="nothing was published; the shadow table is kept",
            fix=f"lakehouse-backfill verify {plan.run_id} --deep names all; then "
            f"{plan_command(plan.manifest_file, plan.run_id)}",
        )


def _candidate_document(context: Context, plan: Plan, snapshot_id: int | None) -> dict[str, Any]:
    table, scope = plan.shadow_table, plan.resolved.scope
    if snapshot_id is None:
        return {"table": table, "snapshot_id": None, "metadata": [], "files": []}
    files = context.stored_files.files(table, snapshot_id, scope)
    known = known_file_fingerprints(context, table, snapshot_id, files)
    return {
        "table": table,
        "snapshot_id": snapshot_id,
        "metadata": [
            file.model_dump(mode="json", exclude={"listed_bytes"})
            for file in context.stored_files.metadata(table, snapshot_id, scope)
        ],
        "files": [_file_entry(file, known) for file in files],
    }


def known_file_fingerprints(
    context: Context, table: str, snapshot_id: int, files: Collection[LiveFile]
) -> dict[str, FileFingerprint]:
    """Return what is known of the files as the snapshot reads them, by path."""
    reading = context.stored_files.reading(table, snapshot_id)
    found = context.evidence.find_fingerprints({file.path for file in files})
    return match_fingerprints(files, found, reading)


def _file_entry(file: LiveFile, known: Mapping[str, FileFingerprint]) -> dict[str, Any]:
    entry = file.model_dump(mode="json", include=_FILE_FIELDS)
    fingerprint = known.get(file.path)
    if fingerprint is None or fingerprint.partition != file.partition:
        return entry
    return entry | {"sha256": fingerprint.sha256, "checksum": fingerprint.checksum.text}
