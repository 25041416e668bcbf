"""What a proof says that did not come out: which check, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse_backfill.commands import command_line
from lakehouse_backfill.errors import BackfillError, ChecksFailed, Tampered

_UNCHANGED = "nothing was changed"


def error_of_proof(command: str, data: Mapping[str, Any]) -> BackfillError | None:
    """Give the error of `verify`, `reproduce` or `audit guarantees`; None: all of it held."""
    failed = [check for check in data.get("checks", ()) if check["ok"] is False]
    names = "; ".join(f"{check['name']} ({check['because']})" for check in failed)
    if command == "verify":
        if not failed:
            return None
        return Tampered(
            f"{data['run_id']}: what is stored is not what was accepted: {names}",
            state=_UNCHANGED,
            fix="find out who changed it; restore the file from a copy, or put the control table "
            "back to an earlier snapshot; docs/verification.md says what each finding means",
        )
    if command == "reproduce":
        wrong = [one["partition"] for one in data.get("partitions", ()) if not one["equal"]]
        if not wrong:
            return None
        return ChecksFailed(
            f"{data['run_id']}: {len(wrong)} partitions came out differently: {', '.join(wrong)}",
            state=f"{_UNCHANGED}; readers see what was accepted",
            fix=f"{command_line('verify', str(data['run_id']))} --deep, to see whether what is stored "
            "was changed; else the job is not deterministic: lakehouse-backfill audit guarantees",
        )
    if not failed:
        return None
    return ChecksFailed(
        f"what is promised does not hold: {names}",
        state=f"{_UNCHANGED}; only scratch tables were written, and dropped",
        fix="correct the job so that the same input gives the same rows, or report it",
    )
