"""Whether restricted columns of inputs travel, under any name, to columns of a lower class."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill.core.guards.privacy.plan_lineage import (
    TracedInput,
    all_origins,
    trace_columns,
)
from lakehouse_backfill.domain.plan import ResolvedManifest, SourcePin
from lakehouse_backfill.errors import Blocked

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
    inputs = tuple(
        TracedInput(
            name=pin.name,
            columns=frozenset(column.name.casefold() for column in pin.columns),
            restricted=hidden_columns(pin),
        )
        for pin in resolved.sources
    )
    if not all_origins(inputs):
        return {}
    if plan_json is None:
        found = {column.name: all_origins(inputs) for column in resolved.contract.columns}
    else:
        found = trace_columns(plan_json, inputs)
    return {name: tuple(sorted(origins)) for name, origins in found.items() if origins}


def waived_columns(resolved: ResolvedManifest) -> frozenset[str]:
    """Return the columns that a person lets hold restricted values in this run, in lower case."""
    return frozenset(one.column.casefold() for one in resolved.manifest.safety.restricted_flows)


def require_declared_flow(resolved: ResolvedManifest, flow: ColumnFlow, *, state: str) -> None:
    """Raise Blocked, naming each, for columns of a lower class that hold restricted values.

    A column is as high when it is restricted itself, or masked. The flag of deleted keys in a merge
    is not stored.
    """
    contract, merge = resolved.contract, resolved.manifest.target.merge
    accepted = {name.casefold() for name in contract.restricted_columns} | waived_columns(resolved)
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
