"""The files that decide what a run computes and how it is judged are those that were approved."""

from __future__ import annotations

from lakehouse_backfill.errors import ApprovalMissing, NotFound
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.rules import commands
from lakehouse_backfill.stages.workbench import Workbench


def require_approved_files(bench: Workbench, plan: Plan) -> None:
    """Raise ApprovalMissing, naming the file, when one is not what was planned and approved.

    Else the evidence would name code or checks that did not run, or chunks of one run would mix
    two versions.
    """
    resolved = plan.resolved
    planned = {resolved.manifest.transform.file: resolved.code_hash} | resolved.files
    for file, approved in planned.items():
        try:
            found = bench.code_hash(file)
        except NotFound as error:
            raise _changed(plan, f"{file} is gone since {plan.run_id} was planned", file) from error
        if found != approved:
            what = "its code is" if file == resolved.manifest.transform.file else "its SHA-256 is"
            raise _changed(
                plan,
                f"{file} changed since {plan.run_id} was planned: {what} {found[:12]}, approved "
                f"was {approved[:12]}",
                file,
            )


def _changed(plan: Plan, problem: str, file: str) -> ApprovalMissing:
    return ApprovalMissing(
        problem,
        state="nothing was computed",
        fix=f"put {file} back, or {commands.plan(plan.manifest_file, plan.run_id)}, and let it be "
        "approved again",
    )
