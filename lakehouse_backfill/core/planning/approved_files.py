"""The files that decide what a run computes and how it is judged are those that were approved."""

from __future__ import annotations

from typing import Any

from lakehouse_backfill import commands
from lakehouse_backfill.core.planning.code_identity import code_files
from lakehouse_backfill.core.planning.keeping_code import archived_code
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.errors import ApprovalMissing, NotFound


def require_approved_files(bench: Context, plan: Plan) -> None:
    """Raise ApprovalMissing, naming the file, when one is not what was planned and approved.

    Else the evidence would name checks that were not made. Code is another matter: what was kept
    of it when the run was planned is executed, whatever its files say by now.
    """
    resolved = plan.resolved
    planned = {resolved.manifest.transform.file: resolved.code_hash} | resolved.files
    kept = {
        one["file"]: one["sha256"] for one in archived_code(bench, plan.run_id) if _is_archived(one)
    }
    code = code_files(resolved)
    for file, approved in planned.items():
        if file in code and kept.get(file) == approved:
            continue
        try:
            found = bench.code_hash(file)
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


def _is_archived(one: dict[str, Any]) -> bool:
    return one["text"] is not None


def _changed_file_error(plan: Plan, problem: str, file: str) -> ApprovalMissing:
    return ApprovalMissing(
        problem,
        state="nothing was computed",
        fix=f"put {file} back, or {commands.plan_command(plan.manifest_file, plan.run_id)}, and let it be "
        "approved again",
    )
