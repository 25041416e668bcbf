"""A stored plan is the one that was made: its hash is worked out again whenever it is read (M4)."""

from __future__ import annotations

import json

from lakehouse_backfill.errors import Tampered
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.value import digest


def open_plan(run_id: str, text: str, manifest_hash: str) -> Plan:
    """Read a plan from its JSON text; raises Tampered when it is not what `manifest_hash` says.

    The hash is taken of the text as it is stored: a later release that knows more fields reads an
    old plan, and still finds its hash.
    """
    stored = json.loads(text)
    found = digest(stored["resolved"])
    if not found == stored["manifest_hash"] == manifest_hash or stored["run_id"] != run_id:
        raise Tampered(
            f"the plan of {run_id} was edited after it was made: its hash is {found[:12]}, "
            f"recorded are {str(stored['manifest_hash'])[:12]} and {manifest_hash[:12]}",
            state="nothing was computed or published; what readers see is unchanged",
            fix=f"put the row of {run_id} in pipeline_run back from an earlier snapshot of that "
            f"table; lakehouse-backfill log {run_id} shows which hash was approved",
        )
    return Plan.model_validate_json(text)
