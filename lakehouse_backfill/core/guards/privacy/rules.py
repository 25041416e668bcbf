"""Privacy decisions before a run: masks, purpose, permission to replay, retention, flow of columns.

Nothing here reads a row. Flow is known by column names: a column of the output with the name of an
input's column, or with a declared `from`, holds its values. What a transform copies under another
name is found in the analysed plan, when it is staged (`column_flow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta

from lakehouse_backfill.core.guards.privacy import masks
from lakehouse_backfill.core.guards.privacy.column_flow import (
    hidden_columns,
    require_declared_flow,
    restricted_flow,
    waived_columns,
)
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Assumption, Contract, SuiteRef
from lakehouse_backfill.domain.guards.privacy import (
    EVERYBODY,
    KEYED_MASKS,
    Classification,
    InputPrivacy,
    Redaction,
    class_rank,
)
from lakehouse_backfill.domain.labels.instants import as_instant
from lakehouse_backfill.domain.manifest import (
    NOTHING_PLANNED,
    Reference,
    RunManifest,
    Source,
    unplannable,
)
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin
from lakehouse_backfill.errors import BackfillError, ConfigError, NotAllowed


def input_privacy(
    name: str, item: Source | Reference, contracts: Mapping[str, Contract]
) -> InputPrivacy | None:
    """Return what is declared of an input. Raises ConfigError when manifest and contract do."""
    contract = contracts.get(item.table)
    if contract is None:
        return item.privacy
    if item.privacy is not None:
        raise ConfigError(
            f"input {name}: {item.table} has a contract, which alone says how private it is",
            state=NOTHING_PLANNED,
            fix=f"remove `privacy` of {name}, or change the contract of {contract.product}",
        )
    days = contract.retention_days
    own = contract.privacy.columns if contract.privacy else {}
    return InputPrivacy(
        classification=contract.classification,
        columns={name: c.classification for name, c in own.items() if c.classification},
        purposes=contract.privacy.purposes if contract.privacy else {},
        retention_days=days if isinstance(days, int) else None,
    )


def check_privacy(resolved: ResolvedManifest, now: datetime) -> tuple[str, ...]:
    """Check all that can be decided before a run; return what an approver should know.

    Raises ConfigError (declarations that do not fit), NotAllowed (purpose, replay), Unsupported
    (retention, flow to a lower class).
    """
    manifest, contract = resolved.manifest, resolved.contract
    _require_no_literals(manifest, contract, resolved.sources)
    _require_purpose(manifest, contract, resolved.sources)
    _require_no_flow_down(resolved)
    _require_masks_once(contract, resolved)
    notes = _check_waived_flows(resolved)
    return _check_retention(resolved, now) + notes + masks.mask_notes(contract)


def _require_no_literals(
    manifest: RunManifest, contract: Contract, sources: Iterable[SourcePin]
) -> None:
    """Raise where a declaration would put values of restricted columns into plans or totals."""
    own = {name.casefold() for name in contract.restricted_columns}
    inputs = {pin.name: hidden_columns(pin) for pin in sources}
    for field, names in _fields_with_values(manifest, contract):
        hidden = [name for name in names if name.casefold() in own]
        if hidden:
            raise unplannable(
                f"{field} holds values of {hidden[0]}, which is restricted: they would be stored "
                "with the plan, or shown as totals",
                fix="leave the column out there; count rows instead of adding up values",
                field=field,
            )
    for field, origin in _input_values(manifest, contract):
        name, _, column = origin.partition(".")
        if column.casefold() in inputs.get(name, ()):
            raise unplannable(
                f"{field} reads values of {origin}, which is restricted: they would stand in "
                "queries and totals",
                fix="leave the column out there",
                field=field,
            )


def _fields_with_values(
    manifest: RunManifest, contract: Contract
) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "target.row_predicate", tuple(manifest.target.row_predicate or ())
    for spot in manifest.validation.spot_checks:
        yield "validation.spot_checks", (*spot.key, *spot.expect)
    for measure in contract.measures:
        names = tuple(name for name in (measure.sum, measure.counts_by) if name)
        yield f"the contract's measure {measure.name}", names
    sink = manifest.target.publish_mode == "correction_events"
    if sink and not (contract.privacy and contract.privacy.key):
        # Without a secret, the keys of all events would read the same.
        yield "target.publish_mode correction_events, without privacy.key,", contract.key


def _input_values(manifest: RunManifest, contract: Contract) -> Iterator[tuple[str, str]]:
    suites: list[SuiteRef | Assumption] = [*contract.suites, *manifest.validation.suites]
    for suite in [*suites, *contract.assumptions]:
        for origin in suite.parameters.values():
            yield f"the parameter of {suite.file}", origin
    for total in contract.source_totals:
        for column in (total.sum, total.counts_by, total.partition):
            if column:
                yield f"the contract's source total {total.measure}", f"{total.source}.{column}"


def _require_purpose(
    manifest: RunManifest, contract: Contract, sources: Iterable[SourcePin]
) -> None:
    """Raise NotAllowed unless product and inputs may be used for the run's purpose.

    A restricted input that nobody declared a purpose for may not be replayed: that its rows are
    still there is no permission.
    """
    for what, purposes in _declared_purposes(contract, sources):
        _require_permitted(manifest, what, purposes)


def require_permitted_person(resolved: ResolvedManifest, person: str) -> None:
    """Raise NotAllowed unless who plans, or runs, may replay product and inputs, too.

    The requester is a name in a file, which anybody may write; a plan may be run by others.
    """
    manifest = resolved.manifest
    run = manifest.run.model_copy(update={"requested_by": person})
    asked = manifest.model_copy(update={"run": run})
    for what, purposes in _declared_purposes(resolved.contract, resolved.sources):
        _require_permitted(asked, what, purposes)


def require_permission_now(context: Context, plan: Plan, by: str) -> None:
    """Raise what `check_privacy` does for retention and purpose, before anything is computed.

    A permission may have ended since the run was planned: by time, or by the product's contract.
    That of the plan is asked, and that of the project; for who planned, and for `by`, who computes.
    """
    now = context.clock.now()
    for contract in (plan.resolved.contract, context.contract(plan.product)):
        resolved = plan.resolved.model_copy(update={"contract": contract})
        try:
            _check_retention(resolved, now)
            _require_purpose(resolved.manifest, contract, resolved.sources)
            for person in dict.fromkeys((plan.created_by, by)):
                require_permitted_person(resolved, person)
        except BackfillError as error:
            error.state = "nothing was computed; readers see what they saw before"
            raise


def _declared_purposes(
    contract: Contract, sources: Iterable[SourcePin]
) -> Iterator[tuple[str, Mapping[str, tuple[str, ...]]]]:
    """Yield product and inputs with the purposes that their rows may be used for."""
    own = contract.privacy.purposes if contract.privacy else {}
    if own:
        yield contract.product, own
    for pin in sources:
        declared = pin.privacy
        if declared is not None and (declared.purposes or declared.is_restricted):
            yield f"{pin.table} (input {pin.name})", declared.purposes


def _require_permitted(
    manifest: RunManifest, what: str, purposes: Mapping[str, tuple[str, ...]]
) -> None:
    run, names = manifest.run, ", ".join(purposes) or "none"
    if run.purpose is None or run.purpose not in purposes:
        given = f"is for {run.purpose}" if run.purpose else "names no purpose"
        raise NotAllowed(
            f"the run {given}, and the purposes that {what} may be used for are: {names}",
            state=NOTHING_PLANNED,
            fix="write run.purpose, one of them, in the run manifest; or let the owner of the data "
            "add the purpose, and who may replay for it, to privacy.purposes",
        )
    holders = purposes[run.purpose]
    if EVERYBODY not in holders and run.requested_by not in holders:
        raise NotAllowed(
            f"{run.requested_by} may not replay {what} for {run.purpose}; who may: "
            f"{', '.join(holders) or 'nobody'}",
            state=NOTHING_PLANNED,
            fix="let one of them request, plan and run it (run.requested_by, --by), or let the "
            "owner of the data change privacy.purposes",
        )


def flows(contract: Contract, sources: Iterable[SourcePin]) -> Iterator[tuple[str, str, str]]:
    """Yield the column of the output, with input and column whose values it holds by name."""
    declared = contract.privacy.columns if contract.privacy else {}
    for pin in sources:
        given = {column.name.casefold(): column.name for column in pin.columns}
        for column in contract.columns:
            origins = declared[column.name].from_ if column.name in declared else ()
            names = [one.partition(".")[2] for one in origins if one.partition(".")[0] == pin.name]
            for name in dict.fromkeys([column.name, *names]):
                if name.casefold() in given:
                    yield column.name, pin.name, given[name.casefold()]


def raw_origins(
    contract: Contract, sources: Iterable[SourcePin]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return, by column with a keyed mask, the inputs and columns that hold its raw values.

    A truncated value may equal a raw one, so those columns are not compared.
    """
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for column, name, origin in flows(contract, sources):
        declared = contract.masked_columns.get(column)
        if declared is not None and declared.mask in KEYED_MASKS:
            found[column] = (*found.get(column, ()), (name, origin))
    return found


def input_redaction(plan: Plan, name: str) -> Redaction:
    """Return what results about an input hide: its own restricted columns, and the product's."""
    pin = next((one for one in plan.resolved.sources if one.name == name), None)
    own = plan.resolved.contract.restricted_columns
    return Redaction.of((*own, *(hidden_columns(pin) if pin else ())))


def _require_no_flow_down(resolved: ResolvedManifest) -> None:
    """Raise Unsupported when a restricted column of an input lands, unmasked, in a lower class."""
    contract, waived = resolved.contract, waived_columns(resolved)
    pins = {pin.name: pin for pin in resolved.sources}
    for column, name, origin in flows(contract, resolved.sources):
        declared = pins[name].privacy
        theirs: Classification | None = declared.class_of(origin) if declared else None
        mine = contract.class_of(column)
        if theirs != "restricted" or column in contract.masked_columns:
            continue
        if column.casefold() in waived:
            continue
        if class_rank(mine) < class_rank(theirs):
            raise unplannable(
                f"{column} would hold {name}.{origin}, which is restricted, and is "
                f"{mine or 'of no class'} itself",
                fix=f"mask it, or write classification: restricted: privacy.columns.{column} in "
                f"catalog/contracts/{contract.product}.yaml; or leave the column out",
                field=f"sources.{name}",
            )


def _check_waived_flows(resolved: ResolvedManifest) -> tuple[str, ...]:
    """Describe columns that a person lets hold restricted values; raise NotAllowed for others.

    What another engine computes cannot be followed: all of its columns may hold such values.
    """
    manifest, contract = resolved.manifest, resolved.contract
    for one in manifest.safety.restricted_flows:
        roles.require_role(contract, "waive", one.by, resolved.environment)
    if manifest.transform.writer == "external":
        require_declared_flow(resolved, restricted_flow(resolved, None), state=NOTHING_PLANNED)
    return tuple(
        f"{one.column} may be made of restricted columns: written in the manifest, in "
        f"{one.by}'s name: {one.reason}"
        for one in manifest.safety.restricted_flows
    )


def _require_masks_once(contract: Contract, resolved: ResolvedManifest) -> None:
    """Raise where a run would mask values that are masked already."""
    keyed = [name for name, each in contract.masked_columns.items() if each.mask in KEYED_MASKS]
    for column, name, origin in flows(contract, resolved.sources):
        pin = next(one for one in resolved.sources if one.name == name)
        if column in keyed and pin.table == resolved.target.table:
            raise unplannable(
                f"{column} would be masked twice: input {name} is the product itself, whose "
                f"{origin} may hold masked values",
                fix="read the raw column from its source",
                field=f"sources.{name}",
            )


def _check_retention(resolved: ResolvedManifest, now: datetime) -> tuple[str, ...]:
    """Raise Unsupported for partitions, or input, that the retention says to have erased."""
    manifest, contract = resolved.manifest, resolved.contract
    faults = []
    if isinstance(contract.retention_days, int):
        old = expired_partitions(resolved.scope, contract.retention_days, now)
        if old:
            faults.append(
                f"{partitions.describe_labels(old)} of {contract.product} are older than its "
                f"retention of {contract.retention_days} days"
            )
    for pin in resolved.sources:
        days = pin.privacy.retention_days if pin.privacy else None
        if pin.range is not None and days is not None:
            first = as_instant(pin.range.from_)
            if first < now - timedelta(days=days):
                faults.append(
                    f"input {pin.name} is read from {first:%Y-%m-%d} on, and {pin.table} may be "
                    f"kept {days} days"
                )
    if not faults:
        return ()
    text, exception = "; ".join(faults), manifest.safety.retention_exception
    if exception is None:
        raise unplannable(
            text,
            fix="leave what is older out; or write safety.retention_exception (by, reason) in the "
            "run manifest, which whoever approves the run sees",
            field="safety.retention_exception",
        )
    roles.require_role(contract, "waive", exception.by, resolved.environment)
    return (f"{text}: written in the manifest, in {exception.by}'s name: {exception.reason}",)


def expired_partitions(scope: Scope, days: int, now: datetime) -> tuple[str, ...]:
    """Return the partitions whose newest possible row is older than `days`; by time only."""
    limit, found = now - timedelta(days=days), []
    for label in scope.partitions:
        stop = partitions.partition_row_range(scope.field, label).upper
        if isinstance(stop, date) and as_instant(stop) <= limit:
            found.append(label)
    return tuple(found)
