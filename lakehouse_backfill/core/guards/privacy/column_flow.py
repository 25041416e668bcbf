"""Whether restricted columns of inputs travel, under any name, to columns of a lower class."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill.core.guards.privacy.plan_lineage import (
    TracedInput,
    all_origins,
    trace_columns,
    trace_copies,
)
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.run import REJECT_REASON
from lakehouse_backfill.errors import Blocked

#: Evidence of a run with masks: the column of an input that each column of the output copies, in
#: all chunks.
COPIED_COLUMNS = "copied columns"
#: By column of the output, the restricted columns of inputs (`input.column`) that it is made of.
ColumnFlow = Mapping[str, tuple[str, ...]]


def hidden_columns(pin: SourcePin) -> frozenset[str]:
    """Return the restricted columns of an input, in lower case."""
    declared = pin.privacy
    if declared is None:
        return frozenset()
    return frozenset(
        column.name.casefold()
        for column in pin.columns
        if declared.class_of(column.name) == "restricted"
    )


def restricted_flow(resolved: ResolvedManifest, plan_json: str | None) -> ColumnFlow:
    """Return what the columns of an output are made of, by the analysed plan of its transform.

    Without a plan, all columns count as made of all restricted columns.
    """
    inputs = _traced_inputs(resolved)
    if not all_origins(inputs):
        return {}
    if plan_json is None:
        found = {column.name: all_origins(inputs) for column in resolved.contract.columns}
    else:
        found = trace_columns(plan_json, inputs)
    return {name: tuple(sorted(origins)) for name, origins in found.items() if origins}


def copied_columns(resolved: ResolvedManifest, plan_json: str | None) -> dict[str, str]:
    """Return, by column of the output, the column of an input (`input.column`) that it copies.

    Empty where nothing is masked, and without a plan: `plan_lineage.trace_copies`.
    """
    if plan_json is None or not resolved.contract.masked_columns:
        return {}
    return trace_copies(plan_json, _traced_inputs(resolved))


def copies_of_run(context: Context, plan: Plan) -> dict[str, str] | None:
    """Return what the columns of a run copy in all chunks that were judged; None: none was."""
    recorded = context.evidence.newest(plan.run_id, COPIED_COLUMNS)
    return dict(recorded[1]["columns"]) if recorded else None


def _traced_inputs(resolved: ResolvedManifest) -> tuple[TracedInput, ...]:
    return tuple(
        TracedInput(
            name=pin.name,
            columns=frozenset(column.name.casefold() for column in pin.columns),
            restricted=hidden_columns(pin),
        )
        for pin in resolved.sources
    )


def waived_columns(resolved: ResolvedManifest) -> frozenset[str]:
    """Return the columns that a person lets hold restricted values in this run, in lower case."""
    return frozenset(one.column.casefold() for one in resolved.manifest.safety.restricted_flows)


def require_declared_flow(resolved: ResolvedManifest, flow: ColumnFlow, *, state: str) -> None:
    """Raise Blocked, naming each, for columns of a lower class that hold restricted values.

    A column is as high when it is restricted itself, or masked. The flag of deleted keys in a merge
    is not stored, and of reasons to reject a row only those that stand in the job's code.
    """
    contract, merge = resolved.contract, resolved.manifest.target.merge
    accepted = {name.casefold() for name in contract.restricted_columns} | waived_columns(resolved)
    accepted.add(REJECT_REASON)
    if merge is not None and merge.deleted is not None:
        accepted |= {merge.deleted.casefold()}
    low = {
        name: origins
        for name, origins in flow.items()
        if name.casefold() not in accepted and contract.class_of(name) != "restricted"
    }
    if low:
        texts = [
            f"{name} (of class {contract.class_of(name) or 'none'}) is made of {', '.join(origins)}"
            for name, origins in low.items()
        ]
        raise Blocked(
            f"restricted columns would travel to {len(low)} columns of a lower class: "
            + "; ".join(texts),
            state=state,
            fix="leave these columns out; mask them, or declare them as restricted, under "
            f"privacy.columns in catalog/contracts/{contract.product}.yaml; or write "
            "safety.restricted_flows (column, by, reason) in the run manifest, which whoever "
            "approves the run sees; and plan again",
        )
