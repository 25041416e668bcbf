"""Identity and archive of job code; approved files.

Which code a run executes, and whether its name and version still mean one thing (D6).

The code of a run is kept in the lake when it is planned: it outlives the project's folder.

The files that decide what a run computes and how it is judged are those that were approved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.planning import publish_modes
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.errors import ApprovalMissing, Blocked, ConfigError, NotFound, Tampered

_CODE = (".py", ".sql")
_DIRTY = "-dirty"


def code_files(resolved: ResolvedManifest) -> dict[str, str]:
    """Return the SHA-256 of the job and of each module of the project that it imports, by path."""
    modules = {name: mark for name, mark in resolved.files.items() if name.endswith(_CODE)}
    return {**modules, resolved.manifest.transform.file: resolved.code_hash}


def require_same_code(
    resolved: ResolvedManifest, earlier: Iterable[tuple[str, Mapping[str, str]]]
) -> None:
    """Raise ConfigError when a stored run executed other code under the same name and version.

    `earlier` are those runs with their code, `code_files` of each.
    """
    transform, mine = resolved.manifest.transform, code_files(resolved)
    for run_id, theirs in sorted(earlier, key=lambda one: one[0]):
        differing = sorted(
            name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)
        )
        if differing:
            raise ConfigError(
                f"{transform.name} {transform.version} is other code than in {run_id}: "
                f"{', '.join(differing)} differs",
                state="nothing was registered",
                fix=f"raise the version: in {transform.file} and in transform.version",
                field="transform.version",
            )


def is_dirty(git_commit: str | None) -> bool:
    """Return whether the project had changes that were not committed."""
    return git_commit is not None and git_commit.endswith(_DIRTY)


def require_committed(git_commit: str | None, *environments: str) -> None:
    """Raise Blocked for changes that are not committed, where the environment is prod."""
    if is_dirty(git_commit) and "prod" in environments:
        raise Blocked(
            f"the project has changes that are not committed ({git_commit}), and the profile is "
            "prod",
            state="nothing was decided or registered",
            fix="git commit them, then plan again",
        )


CODE_EVIDENCE = "code"
#: A file that is larger is named by its hash only.
MAX_ARCHIVED_CHARACTERS = 1_000_000


def archive_code(context: Context, plan: Plan) -> None:
    """Store the text of every file that decides what the run computes, beside its hash.

    Golden rows are data, not code: of them the hash alone is kept. Raises ApprovalMissing when a
    file changed since the plan was made from it.
    """
    resolved = plan.resolved
    files = {resolved.manifest.transform.file: resolved.code_hash, **resolved.files}
    files.pop(resolved.manifest.validation.golden or "", None)
    kept = [_archive_entry(context, plan, file, sha256) for file, sha256 in sorted(files.items())]
    found = {"files": kept} | _archive_previous_code(context, plan)
    context.evidence.record(plan.run_id, CODE_EVIDENCE, found, epoch=0)


def _archive_previous_code(context: Context, plan: Plan) -> dict[str, Any]:
    previous = plan.resolved.previous_code
    if previous is None:
        return {}
    committed = context.committed_files(previous.git_commit) if previous.git_commit else None
    kept = [
        _archive_entry(context, plan, file, sha256, committed)
        for file, sha256 in sorted(previous.files.items())
    ]
    return {"previous_files": kept}


def previous_plan(plan: Plan) -> Plan | None:
    """Return the plan with the code that its manifest names for rows that no run made.

    That code knew nothing of the run's deletions and schema change. None: no code is named.
    """
    resolved, previous = plan.resolved, plan.resolved.previous_code
    wanted = resolved.manifest.previous_code
    if previous is None or wanted is None:
        return None
    changes: dict[str, Any] = {"name": previous.name, "version": previous.version}
    changes |= {"file": previous.file}
    if wanted.config is not None:
        changes["config"] = wanted.config
    manifest = resolved.manifest.model_copy(
        update={
            "transform": resolved.manifest.transform.model_copy(update=changes),
            "target": resolved.manifest.target.model_copy(update={"schema_change": ()}),
        }
    )
    named: dict[str, Any] = {"manifest": manifest, "code_hash": previous.code_hash}
    named |= {"files": previous.files, "tombstones": (), "catch_up": None}
    return plan.model_copy(update={"resolved": resolved.model_copy(update=named)})


def check_previous_code(resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe the code that is named for the old rows.

    Raises ConfigError where its output cannot be compared with the rows of a partition.
    """
    manifest = resolved.manifest
    if resolved.previous_code is None:
        return ()
    unfit = {
        "target.publish_mode merge": manifest.target.publish_mode == "merge",
        "transform.writer external": manifest.transform.writer == "external",
    }
    for field in (name for name, is_used in unfit.items() if is_used):
        raise ConfigError(
            f"previous_code does not go with {field}: the partition's rows cannot be computed "
            "again from it",
            state=NOTHING_PLANNED,
            fix="remove previous_code; rows that no run made are then unexplained",
            field="previous_code",
        )
    return (
        f"rows that no run made are attributed by {resolved.previous_code}: the manifest names it, "
        "no run proves it",
    )


#: Each of them was compared with those before it when it was planned.
_RUNS_COMPARED = 5


def require_code_of_version(context: Context, resolved: ResolvedManifest) -> None:
    """Raise ConfigError when one of the newest runs has other code under this name and version."""
    transform = resolved.manifest.transform
    earlier = context.runs.code_of(transform.name, transform.version, _RUNS_COMPARED)
    require_same_code(resolved, sorted(earlier.items()))
    kind, product = resolved.manifest.run.kind, resolved.contract.product
    if kind in ("reprocessing", "repair") and not earlier and _has_runs(context, product):
        raise ConfigError(
            f"a {kind} uses the transform that computed the product, but no run of this lake used "
            f"{transform.name} {transform.version}",
            fix="write run.kind: restatement, or the name and version of the earlier transform",
            field="transform.version",
        )


def _has_runs(context: Context, product: str) -> bool:
    return any(row.action == "publish" for row in context.versions.history(product))


def changed_code_files(context: Context, plan: Plan) -> tuple[str, ...]:
    """Name the files of code that are not, by now, what was approved: the archive is what runs."""
    found = []
    for file, approved in sorted(code_files(plan.resolved).items()):
        try:
            is_same = context.code_hash(file) == approved
        except (NotFound, ConfigError):
            is_same = False
        if not is_same:
            found.append(file)
    return tuple(found)


def changed_code_notes(context: Context, run_id: str) -> list[str]:
    """Warn of files of an open run that differ from the approved code: they are not run."""
    with suppress(NotFound, Tampered):
        if context.runs.status(run_id).state not in lifecycle.OPEN_STATES:
            return []
        plan = context.runs.plan(run_id)
        if publish_modes.is_externally_written(plan):
            return []
        return [
            f"{file} is not, by now, what {run_id} was planned with: the archived code is what runs"
            for file in changed_code_files(context, plan)
        ]
    return []


def archived_code(context: Context, run_id: str) -> list[dict[str, Any]]:
    """Return the files as they were planned: path, SHA-256 and text (None: too large to keep)."""
    found = context.evidence.newest(run_id, CODE_EVIDENCE)
    return found[1]["files"] if found else []


def archived_texts(context: Context, run_id: str) -> list[dict[str, Any]]:
    """Return the files of `archived_code`, and those of the code named for the old rows."""
    found = context.evidence.newest(run_id, CODE_EVIDENCE)
    return [*found[1]["files"], *found[1].get("previous_files", ())] if found else []


def _archive_entry(
    context: Context,
    plan: Plan,
    file: str,
    sha256: str,
    committed: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """Return the text of a file of the project, or of a commit, if it is still the planned one."""
    if committed is None:
        text, found = context.file_text(file), context.code_hash(file)
    else:
        data = committed.get(file, b"")
        text, found = data.decode("utf-8", "replace"), hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ApprovalMissing(
            f"{file} was edited while {plan.run_id} was being planned", fix="plan again"
        )
    return {
        "file": file,
        "sha256": sha256,
        "text": text if len(text) <= MAX_ARCHIVED_CHARACTERS else None,
    }


def require_approved_files(context: Context, plan: Plan) -> None:
    """Raise ApprovalMissing, naming the file, when one is not what was planned and approved.

    Else the evidence would name checks that were not made. Code is another matter: what was kept
    of it when the run was planned is executed, whatever its files say by now.
    """
    resolved = plan.resolved
    planned = {resolved.manifest.transform.file: resolved.code_hash} | resolved.files
    kept = {
        one["file"]: one["sha256"]
        for one in archived_code(context, plan.run_id)
        if one["text"] is not None
    }
    code = code_files(resolved)
    for file, approved in planned.items():
        if file in code and kept.get(file) == approved:
            continue
        try:
            found = context.code_hash(file)
        except NotFound as error:
            raise _changed_file_error(
                plan, f"{file} is gone since {plan.run_id} was planned", file
            ) from error
        if found != approved:
            what = "its code is" if file == resolved.manifest.transform.file else "its SHA-256 is"
            raise _changed_file_error(
                plan,
                f"{file} changed since {plan.run_id} was planned: {what} {found[:12]}, approved "
                f"was {approved[:12]}",
                file,
            )


def _changed_file_error(plan: Plan, problem: str, file: str) -> ApprovalMissing:
    return ApprovalMissing(
        problem,
        state="nothing was computed",
        fix=f"put {file} back, or {errors.plan_command(plan.manifest_file, plan.run_id)}, and "
        "let it be "
        "approved again",
    )
