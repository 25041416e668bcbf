"""The restatement notice: what consumers of a product have to know of a publication or rollback.

It is evidence of the run, as text and as fields, and goes out with the hooks of the same moment.
"""

from __future__ import annotations

from typing import Any

from lakehouse_backfill.core.approval.decisions import VALIDATION
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Consumer
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication

NOTICE = "restatement-notice"


def record_notice(context: Context, plan: Plan, row: Publication, epoch: int) -> dict[str, Any]:
    """Record the notice of a publication or rollback, and return what hooks get of it.

    Empty, and nothing is recorded, where the contract declares no consumer. The same act again
    changes nothing.
    """
    if not plan.resolved.contract.consumers:
        return {}
    found = context.evidence.newest(plan.run_id, VALIDATION)
    document = make_notice(plan, row, found[1] if found else {})
    context.evidence.record(plan.run_id, NOTICE, document, epoch)
    return {"notice": document}


def make_notice(plan: Plan, row: Publication, validation: dict[str, Any]) -> dict[str, Any]:
    """Return the notice: its fields, and the same as a text to send.

    A consumer who does not tolerate restatement, or follows the snapshots, is told what to do.
    """
    contract, is_back = plan.resolved.contract, row.action == "rollback"
    consumers = contract.consumers or ()
    scope = row.scope or plan.resolved.scope
    summary = (validation.get("diff") or {}).get("summary") or {}
    changes = {name: int(summary.get(name, 0)) for name in ("added", "removed", "changed")}
    verb = "rolled back" if is_back else "restated"
    lines = [
        f"{contract.product} was {verb} at {row.at:%Y-%m-%d %H:%M}Z: "
        f"{partitions.describe_labels(scope.partitions)} of {scope.field.column}.",
        f"Why: {row.reason or plan.resolved.manifest.run.reason}.",
    ]
    if is_back:
        lines.append("These partitions hold the rows from before again.")
    elif summary:
        lines.append(
            "Rows by key: " + ", ".join(f"{n:,} {name}" for name, n in changes.items()) + "."
        )
    advice = {one.name: _advice(one) for one in consumers}
    lines += [f"{name}: {text}" for name, text in advice.items()]
    lines.append(f"Questions: {contract.owner}. Run {plan.run_id}, version {row.version}.")
    return {
        "act": "rollback" if is_back else "publish",
        "token": row.token,
        "product": contract.product,
        "table": row.table,
        "run_id": plan.run_id,
        "version": row.version,
        "at": row.at.isoformat(),
        "by": row.by,
        "reason": row.reason,
        "column": scope.field.column,
        "partitions": list(scope.partitions),
        "rows": changes if summary and not is_back else {},
        "consumers": [
            {"name": one.name, "contact": one.contact, "advice": advice[one.name]}
            for one in consumers
        ],
        "text": "\n".join(lines),
    }


def _advice(consumer: Consumer) -> str:
    """Return what a consumer has to do."""
    if consumer.reads == "stream":
        return "read these partitions again: a stream does not see the replaced rows by itself."
    if not consumer.tolerates_restatement:
        return "compare what you derived from these partitions; history changed under you."
    return "the next read gets these rows; nothing has to be done."
