"""Inputs of the runs of a cascade: candidates of the runs before, else what readers see."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_backfill import errors
from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.cascade.graph import ProductGraph
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.cascade.graph import CandidatePin
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin, declared_schema_change
from lakehouse_backfill.domain.tables.table import TableRef


def candidate_pins(
    context: Context, graph: ProductGraph, plans: Mapping[str, Plan], resolved: ResolvedManifest
) -> tuple[SourcePin, ...]:
    """Return the pins of a run: a declared upstream that `plans` restates is a candidate.

    Another declared upstream that is pinned is read as its readers see it. Raises ConfigError (a
    fixed state of what is restated), Unsupported.
    """
    tables = {
        graph.contracts[one.product].table: graph.contracts[one.product]
        for one in resolved.contract.upstreams
        if one.product in graph.contracts
    }
    found = []
    for pin in resolved.sources:
        contract = tables.get(pin.table)
        plan = plans.get(contract.product) if contract else None
        if contract is None:
            found.append(pin)
        elif (fixed_by := _fixed_by(resolved.manifest, pin)) is not None:
            if plan is not None:
                raise _fixed_state_error(pin, contract, resolved, fixed_by)
            found.append(pin)
        elif plan is not None:
            found.append(_candidate_pin(context, pin, plan))
        else:
            found.append(_accepted_pin(context, pin, contract))
    return tuple(found)


#: Which reference data is read, where the rows to be replaced say it.
_SEMANTICS_OF_OLD_ROWS = frozenset({"as_recorded", "as_used_by_original"})


def _fixed_by(manifest: RunManifest, pin: SourcePin) -> str | None:
    """Return the field that fixes the state that an input is read at; None if it follows."""
    if manifest.inputs[pin.name].at is not None:
        return "at"
    reference = manifest.reference_data.get(pin.name)
    is_old = reference is not None and reference.semantics in _SEMANTICS_OF_OLD_ROWS
    return "semantics" if is_old else None


def _fixed_state_error(
    pin: SourcePin, contract: Contract, resolved: ResolvedManifest, fixed_by: str
) -> errors.ConfigError:
    return errors.ConfigError(
        f"{resolved.manifest.product} reads {pin.requested}, and the cascade restates "
        f"{contract.product}: a fixed state of it would not change",
        state=NOTHING_PLANNED,
        fix=f"leave `{fixed_by}` of {pin.name} out",
        field=f"{'sources' if pin.role == 'source' else 'reference_data'}.{pin.name}.{fixed_by}",
    )


def _candidate_pin(context: Context, pin: SourcePin, plan: Plan) -> SourcePin:
    target = plan.resolved.target
    if target.snapshot_id is None:
        raise errors.Unsupported(
            f"{plan.product} holds nothing yet, so what reads it cannot be planned",
            state=NOTHING_PLANNED,
            fix=f"{plan_command(plan.manifest_file)}, without --cascade, and publish that first",
        )
    if declared_schema_change(plan):
        raise errors.Unsupported(
            f"the run of {plan.product} changes columns, and {pin.name} would be read with them",
            state=NOTHING_PLANNED,
            fix=f"{plan_command(plan.manifest_file)}, without --cascade, and publish that first",
        )
    candidate = CandidatePin(
        run_id=plan.run_id,
        manifest_hash=plan.manifest_hash,
        product=plan.product,
        product_table=plan.resolved.contract.table,
        table=target.table,
        snapshot_id=target.snapshot_id,
    )
    found = _at(context, pin, target.table, target.snapshot_id)
    return found.model_copy(update={"candidate": candidate})


def _accepted_pin(context: Context, pin: SourcePin, contract: Contract) -> SourcePin:
    """Return the pin of what readers of a pinned product see: not the head of its table."""
    accepted = context.versions.pointer(contract.product).accepted
    if contract.publication != "pinned" or accepted is None or accepted.snapshot_id is None:
        return pin
    return _at(context, pin, accepted.table, accepted.snapshot_id)


def _at(context: Context, pin: SourcePin, table: str, snapshot_id: int) -> SourcePin:
    snapshot = context.tables.resolve(TableRef(table=table, at=str(snapshot_id)))
    return pin.model_copy(
        update={
            "table": table,
            "snapshot_id": snapshot_id,
            "schema_id": snapshot.schema_id,
            "columns": snapshot.columns,
        }
    )
