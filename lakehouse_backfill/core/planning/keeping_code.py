"""The code of a run is kept in the lake when it is planned: it outlives the project's folder."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from lakehouse_backfill.core.planning import code_identity, external
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.errors import ApprovalMissing, ConfigError, NotFound, Tampered

CODE_EVIDENCE = "code"
#: A file that is larger is named by its hash only.
MAX_ARCHIVED_CHARACTERS = 1_000_000


def archive_code(bench: Context, plan: Plan) -> None:
    """Store the text of every file that decides what the run computes, beside its hash.

    Golden rows are data, not code: of them the hash alone is kept. Raises ApprovalMissing when a
    file changed since the plan was made from it.
    """
    resolved = plan.resolved
    files = {resolved.manifest.transform.file: resolved.code_hash, **resolved.files}
    files.pop(resolved.manifest.validation.golden or "", None)
    kept = [_archive_entry(bench, plan, file, sha256) for file, sha256 in sorted(files.items())]
    bench.evidence.record(plan.run_id, CODE_EVIDENCE, {"files": kept}, epoch=0)


def require_code_of_version(bench: Context, resolved: ResolvedManifest) -> None:
    """Raise ConfigError when a stored run executed other code under this name and version."""
    transform = resolved.manifest.transform
    earlier = bench.runs.code_of(transform.name, transform.version)
    code_identity.require_same_code(resolved, sorted(earlier.items()))


def changed_code_files(bench: Context, plan: Plan) -> tuple[str, ...]:
    """Name the files of code that are not, by now, what was approved: the archive is what runs."""
    found = []
    for file, approved in sorted(code_identity.code_files(plan.resolved).items()):
        try:
            is_same = bench.code_hash(file) == approved
        except (NotFound, ConfigError):
            is_same = False
        if not is_same:
            found.append(file)
    return tuple(found)


def changed_code_notes(bench: Context, run_id: str) -> list[str]:
    """Say of an open run that files of its code differ from what was approved: they are not run."""
    with suppress(NotFound, Tampered):
        if bench.runs.status(run_id).state not in lifecycle.OPEN_STATES:
            return []
        plan = bench.runs.plan(run_id)
        if external.is_externally_written(plan):
            return []
        return [
            f"{file} is not, by now, what {run_id} was planned with: the archived code is what runs"
            for file in changed_code_files(bench, plan)
        ]
    return []


def archived_code(bench: Context, run_id: str) -> list[dict[str, Any]]:
    """Give the files as they were planned: path, SHA-256 and text (None: too large to keep)."""
    found = bench.evidence.newest(run_id, CODE_EVIDENCE)
    return found[1]["files"] if found else []


def _archive_entry(bench: Context, plan: Plan, file: str, sha256: str) -> dict[str, Any]:
    text = bench.file_text(file)
    if bench.code_hash(file) != sha256:
        raise ApprovalMissing(
            f"{file} was edited while {plan.run_id} was being planned",
            fix="plan again",
        )
    return {
        "file": file,
        "sha256": sha256,
        "text": text if len(text) <= MAX_ARCHIVED_CHARACTERS else None,
    }
