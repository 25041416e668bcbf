"""Identity and archive of job code; approved files; proofs about its result before it runs.

The name and version of a transform mean one code (D6). The code of a run is stored in the lake when
the run is planned, so it outlives the project's folder. The files that decide what a run computes
and how it is judged are those that were approved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs import lifecycle
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest, unplannable
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest
from lakehouse_backfill.errors import (
    ApprovalMissing,
    Blocked,
    ChecksFailed,
    ConfigError,
    NotFound,
    Tampered,
)


def code_files(resolved: ResolvedManifest) -> dict[str, str]:
    """Return the SHA-256 of the job and of each module of the project that it imports, by path."""
    modules = {
        name: mark for name, mark in resolved.files.items() if name.endswith((".py", ".sql"))
    }
    return {**modules, resolved.manifest.transform.file: resolved.code_hash}


def code_texts(context: Context, resolved: ResolvedManifest) -> dict[str, str]:
    """Return the text of each file of `code_files`, read now."""
    return {file: context.file_text(file) for file in code_files(resolved)}


def is_dirty(git_commit: str | None) -> bool:
    """Return whether the project had changes that were not committed."""
    return git_commit is not None and git_commit.endswith("-dirty")


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
    document = {"files": _archive_entries(context, plan, files)}
    if previous := resolved.previous_code:
        document["previous_files"] = _archive_entries(
            context, plan, previous.files, previous.git_commit
        )
    context.evidence.record(plan.run_id, CODE_EVIDENCE, document, epoch=0)


def previous_plan(plan: Plan) -> Plan | None:
    """Return the plan with the code that its manifest names for rows that no run made.

    That code knew nothing of the run's deletions and schema change. None: no code is named.
    """
    resolved, previous = plan.resolved, plan.resolved.previous_code
    wanted = resolved.manifest.previous_code
    if previous is None or wanted is None:
        return None
    transform = resolved.manifest.transform.model_copy(
        update=previous.model_dump(include={"name", "version", "file"})
    )
    if wanted.config is not None:
        transform = transform.model_copy(update={"config": wanted.config})
    target = resolved.manifest.target.model_copy(update={"schema_change": ()})
    manifest = resolved.manifest.model_copy(update={"transform": transform, "target": target})
    update = {"manifest": manifest, "code_hash": previous.code_hash, "files": previous.files}
    update |= {"tombstones": (), "catch_up": None}
    return plan.model_copy(update={"resolved": resolved.model_copy(update=update)})


def check_previous_code(resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe the code that is named for the old rows.

    Raises ConfigError where its output cannot be compared with the rows of a partition.
    """
    manifest = resolved.manifest
    if resolved.previous_code is None:
        return ()
    unfit = ""
    if manifest.transform.writer == "external":
        unfit = "transform.writer external"
    if manifest.target.publish_mode == "merge":
        unfit = "target.publish_mode merge"
    if unfit:
        raise ConfigError(
            f"previous_code does not go with {unfit}: the partition's rows cannot be computed "
            "again from it",
            state=NOTHING_PLANNED,
            fix="remove previous_code; rows that no run made are then unexplained",
            field="previous_code",
        )
    return (
        f"rows that no run made are attributed by {resolved.previous_code}: the manifest names it, "
        "no run proves it",
    )


def require_allowed_version(
    manifest: RunManifest, contract: Contract, now: datetime
) -> tuple[str, ...]:
    """Return a warning for a version of the transform that will be refused from a day on.

    Raises Unsupported for one that the contract forbids, or that was deprecated until now.
    """
    transform = manifest.transform
    wanted = f"{transform.name} {transform.version}"
    warnings = []
    for rule in contract.transform_versions:
        if not rule.covers(transform.name, transform.version):
            continue
        is_over = rule.deprecated_after is not None and now.date() > rule.deprecated_after
        if rule.forbidden or is_over:
            since = "forbidden" if rule.forbidden else f"refused since {rule.deprecated_after}"
            raise unplannable(
                f"{wanted} is {since} by the contract of {contract.product}: {rule.reason}",
                fix=f"use a version of {transform.name} other than {rule.versions}, or let the "
                f"owner ({contract.owner}) change transform_versions of the contract",
                field="transform.version",
            )
        if rule.deprecated_after is not None:
            warnings.append(
                f"{wanted} is deprecated, and refused after {rule.deprecated_after}: {rule.reason}"
            )
    return tuple(warnings)


#: Each of them was compared with those before it when it was planned.
_RUNS_COMPARED = 5


def require_code_of_version(context: Context, resolved: ResolvedManifest) -> None:
    """Raise ConfigError when one of the newest runs has other code under this name and version."""
    transform, mine = resolved.manifest.transform, code_files(resolved)
    earlier = context.runs.code_of(transform.name, transform.version, _RUNS_COMPARED)
    for run_id, theirs in sorted(earlier.items()):
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
    kind, history = resolved.manifest.run.kind, context.versions.history
    if earlier or kind not in ("reprocessing", "repair", "replay"):
        return
    if any(row.action == "publish" for row in history(resolved.contract.product)):
        raise ConfigError(
            f"a {kind} uses the transform that computed the product, but no run of this lake used "
            f"{transform.name} {transform.version}",
            fix="write run.kind: restatement, or the name and version of the earlier transform",
            field="transform.version",
        )


def changed_code_files(context: Context, plan: Plan) -> tuple[str, ...]:
    """Name the files of code that are not, by now, what was approved: the archive is what runs."""

    def is_changed(file: str, approved: str) -> bool:
        try:
            return context.code_hash(file) != approved
        except (NotFound, ConfigError):
            return True

    code = sorted(code_files(plan.resolved).items())
    return tuple(file for file, approved in code if is_changed(file, approved))


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


def _archive_entries(
    context: Context, plan: Plan, files: Mapping[str, str], git_commit: str | None = None
) -> list[dict[str, Any]]:
    """Return the texts of files of the project, or of a commit, if they are the planned ones."""
    committed = context.committed_files(git_commit) if git_commit else None
    entries = []
    for file, sha256 in sorted(files.items()):
        if committed is None:
            text, found = context.file_text(file), context.code_hash(file)
        else:
            data = committed.get(file, b"")
            text, found = data.decode("utf-8", "replace"), hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise ApprovalMissing(
                f"{file} was edited while {plan.run_id} was being planned", fix="plan again"
            )
        is_kept = len(text) <= MAX_ARCHIVED_CHARACTERS
        entries.append({"file": file, "sha256": sha256, "text": text if is_kept else None})
    return entries


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
        fix=f"put {file} back, or {plan_command(plan.manifest_file, plan.run_id)}, and "
        "let it be "
        "approved again",
    )


def prove_warm_up(context: Context, plan: Plan) -> dict[str, Any]:
    """Compute the first partition with the declared warm-up and with twice as much.

    Raises ChecksFailed when they differ: then the declared warm-up is too short.
    """
    label = plan.resolved.scope.partitions[0]
    once, twice = context.compute().staging.prove_warm_up(plan, label)
    if once != twice:
        raise ChecksFailed(
            f"partition {label} comes out differently with twice the warm-up: {once.rows} rows "
            f"({once.text}) against {twice.rows} ({twice.text})",
            state="nothing was registered",
            fix="raise warm_up_days of the sources until the proof holds",
        )
    return {"partition": label, "declared": once.text, "doubled": twice.text, "equal": True}


def prove_determinism(context: Context, plan: Plan) -> dict[str, Any]:
    """Compute the first partition twice, with rows of the inputs and shuffles in another order.

    Raises ChecksFailed, which names the columns that differ: then a retry gives other rows.
    """
    label = plan.resolved.scope.partitions[0]
    proof = context.compute().staging.prove_determinism(plan, label)
    if not proof.is_equal:
        columns = ", ".join(proof.columns)
        differing = f"columns {columns} differ" if columns else "values lie in other rows"
        raise ChecksFailed(
            f"partition {label} comes out differently when its input comes in another order: "
            f"{differing}; {proof.first.rows} rows ({proof.first.text}) against "
            f"{proof.second.rows} ({proof.second.text})",
            state="nothing was registered",
            fix="look for what depends on the order of rows: docs/determinism.md",
        )
    first, second = proof.first.text, proof.second.text
    return {"partition": label, "first": first, "second": second, "equal": True}
