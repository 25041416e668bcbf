"""The one JSON object of `--json`, and the error that a result stands for, if any."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TextIO

from lakehouse_backfill.errors import (
    MANIFEST_PLACEHOLDER,
    BackfillError,
    ChecksFailed,
    ConfigError,
    EnvironmentDown,
    OutcomeUnknown,
    Tampered,
    command_line,
    plan_command,
)

_UNCHANGED = "nothing was changed"


def error_of_proof(command: str, data: Mapping[str, Any]) -> BackfillError | None:
    """Return the error of `verify`, `reproduce` or `audit guarantees`; None: all of it held."""
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
            fix=f"{command_line('verify', str(data['run_id']))} --deep, to see whether what is "
            "stored was changed; else the job is not deterministic: "
            "lakehouse-backfill audit guarantees",
        )
    if not failed:
        return None
    return ChecksFailed(
        f"what is promised does not hold: {names}",
        state=f"{_UNCHANGED}; only scratch tables were written, and dropped",
        fix="correct the job so that the same input gives the same rows, or report it",
    )


Data = Mapping[str, Any]


def build_envelope(
    command: str, data: Data | None = None, error: BackfillError | None = None
) -> dict[str, Any]:
    """Make the object that `--json` prints; its fields are the CLI contract."""
    shown = dict(data or {})
    warnings = list(shown.pop("warnings", ()))
    return {
        "command": command,
        "ok": error is None,
        "exit_code": error.exit_code if error else 0,
        "data": shown,
        "warnings": warnings,
        "error": None if error is None else error_fields(error),
    }


def error_fields(error: BackfillError) -> dict[str, Any]:
    """Return the fields of an error; one about declarations also lists its faults."""
    fields: dict[str, Any] = {
        "code": error.code,
        "problem": error.problem,
        "state": error.state,
        "fix": error.fix,
    }
    if isinstance(error, ConfigError) or error.faults:
        fields["faults"] = [vars(fault) for fault in error.faults]
    if error.data:
        fields["data"] = error.data
    return fields


def write_json(value: Any, stream: TextIO) -> None:
    """Write one JSON object and a newline; numbers that JSON does not know become text."""
    text = json.dumps(_finite_values(value), ensure_ascii=False, allow_nan=False, default=str)
    stream.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    stream.flush()


def error_of_result(command: str, data: Data) -> BackfillError | None:
    """Return whether a result that was reached says no: closed gates, or a sick environment."""
    if command == "doctor":
        sick = [check for check in data.get("checks", ()) if not check["ok"]]
        names = ", ".join(str(check["name"]) for check in sick)
        fix = next((str(check.get("fix") or "") for check in sick), "")
        return EnvironmentDown(f"doctor found faults: {names}", fix=fix) if sick else None
    if command == "audit verify" and not data.get("intact"):
        return Tampered(
            f"what was recorded is not as it was written: {data.get('first_bad')}",
            state="only control tables were read; the tables that readers see were not looked at",
            fix="find out who else writes to the control tables; docs/control-tables.md says what "
            "each finding means",
        )
    if command in ("verify", "reproduce", "audit guarantees"):
        return error_of_proof(command, data)
    if command == "diff" and data.get("must_be_equal"):
        return _unequal_error(data)
    if command == "recover" and not all(item["is_done"] for item in data.get("actions", ())):
        return OutcomeUnknown(
            "something is still half done",
            state="readers see old or new partitions, never a mix; everything is kept",
            fix="put right what the results name, then lakehouse-backfill recover --all",
        )
    is_stopped = command == "run" and data.get("state") in ("rejected", "halted", "publish_halted")
    if data.get("passed") is False or is_stopped:
        run = data.get("run_id", "RUN")
        closed = [check for check in data.get("checks", ()) if _is_closed(check)]
        names = ", ".join(str(check.get("name")) for check in closed)
        if command == "validate" and "run_id" not in data:
            return ChecksFailed(
                f"{data.get('product')} as published: {_closed_gates_text(len(closed))} closed: "
                f"{names}",
                state="readers go on seeing it; nothing was changed",
                fix=f"restate it: {command_line('new', str(data.get('product')))} --from P --to P "
                "--reason TEXT",
            )
        return ChecksFailed(
            f"{run}: {_closed_gates_text(len(closed))} closed{': ' if names else ''}{names}",
            state="nothing was published; the shadow table is kept",
            fix=f"{command_line('evidence', str(run))}, then "
            f"{plan_command(_manifest_file(data), str(run))}" + _waive_hint(str(run), closed),
        )
    return None


def _manifest_file(data: Data) -> str:
    return str(data.get("manifest_file") or MANIFEST_PLACEHOLDER)


def _waive_hint(run: str, closed: list[Mapping[str, Any]]) -> str:
    """Offer the way on for gates that guard no data; one that does leaves no such way."""
    if not closed:
        return f"; which gates: {command_line('status', run)}"
    if not all(check.get("waivable", True) for check in closed):
        return ""
    gate = str(closed[0].get("name"))
    waive = command_line("waive", run, gate, "--by", "WHO", "--reason", "TEXT")
    return f"; or, for the record: {waive}"


def _unequal_error(data: Data) -> BackfillError | None:
    """Describe that two states differ, or that a preview alone does not prove them to be equal."""
    if data.get("equal", data.get("identical")):
        return None
    if data.get("preview"):
        return ChecksFailed("not proven to be equal without reading rows", fix="without --preview")
    summary = data["summary"]
    counts = ", ".join(f"{summary[name]:,} {name}" for name in ("added", "removed", "changed"))
    return ChecksFailed(f"old and new differ: {counts}", fix="look at the samples")


def _closed_gates_text(gates: int) -> str:
    return {0: "gates are", 1: "1 gate is"}.get(gates, f"{gates} gates are")


def _is_closed(check: Mapping[str, Any]) -> bool:
    return not check.get("passed", True) and bool(check.get("blocking", True))


def _finite_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
