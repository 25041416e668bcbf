"""What is stored is what was made: hashes are worked out again whenever it is read (M4)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.value import digest
from lakehouse_backfill.errors import Tampered


def open_plan(run_id: str, text: str, manifest_hash: str) -> Plan:
    """Read a plan from its JSON text; raises Tampered when it is not what `manifest_hash` says.

    The hash is taken of the text as it is stored: a later release that knows more fields reads an
    old plan, and still finds its hash.
    """
    try:
        stored = json.loads(text)
        found, recorded = digest(stored["resolved"]), str(stored["manifest_hash"])
        is_whole = found == recorded == manifest_hash and stored["run_id"] == run_id
    except (ValueError, TypeError, KeyError) as error:
        raise _edited_plan_error(
            run_id, f"it is no plan any more ({type(error).__name__})"
        ) from error
    if not is_whole:
        raise _edited_plan_error(
            run_id,
            f"its hash is {found[:12]}, recorded are {recorded[:12]} and {manifest_hash[:12]}",
        )
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        first = ".".join(str(part) for part in error.errors()[0]["loc"])
        what = f"its field {first} cannot be read, unless a later release made it"
        raise _edited_plan_error(run_id, what) from error


def open_document(run_id: str, kind: str, mark: str, texts: Iterable[str]) -> dict[str, Any] | None:
    """Read the document of this digest from the texts stored under it; None: there are none.

    Raises Tampered when no text is what the digest was taken of.
    """
    is_there = False
    for text in texts:
        is_there = True
        if matches_digest(text, mark):
            found: dict[str, Any] = json.loads(text)
            return found
    if is_there:
        verb = "validate" if kind == "validation" else "run"
        raise Tampered(
            f"the {kind} of {run_id} was edited after it was recorded",
            state="nothing was decided or published",
            fix=f"lakehouse-backfill {verb} {run_id}, which judges and records it again",
        )
    return None


def matches_digest(text: str, mark: str) -> bool:
    """Tell whether a stored document is the one whose digest was taken."""
    return sha256(text.encode()).hexdigest() == mark


def _edited_plan_error(run_id: str, what: str) -> Tampered:
    return Tampered(
        f"the plan of {run_id} was edited after it was made: {what}",
        state="nothing was computed or published; what readers see is unchanged",
        fix=f"put the row of {run_id} in pipeline_run back from an earlier snapshot of that "
        f"table; lakehouse-backfill log {run_id} shows which hash was approved",
    )
