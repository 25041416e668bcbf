"""Masks: whether they fit a contract's columns, the secret by id, and Iceberg's own metrics."""

from __future__ import annotations

from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.guards.privacy import KEYED_MASKS, ColumnPrivacy, MaskKeyPin, key_id
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.tables.table import TableInfo
from lakehouse_backfill.errors import ConfigError, Tampered
from lakehouse_backfill.ports.system import Secrets

_METRICS_PROPERTY = "write.metadata.metrics"
#: Metrics of a column that hold counts, and no value.
_COUNTS_ONLY = ("none", "counts")
#: Partition transforms whose labels are values of the column.
_LABELS_SHOW_VALUES = ("identity", "truncate")


def _contract_error(contract: Contract, problem: str, fix: str) -> ConfigError:
    return ConfigError(
        f"{contract.product}: {problem}",
        state=NOTHING_PLANNED,
        fix=f"{fix}, in catalog/contracts/{contract.product}.yaml",
    )


def require_valid_masks(contract: Contract) -> None:
    if contract.privacy is None:
        return
    known = {column.name: column for column in contract.columns}
    for name, declared in contract.privacy.columns.items():
        column = known.get(name)
        if column is None:
            raise _contract_error(
                contract, f"privacy.columns names {name}, which is no column", "correct the name"
            )
        fault = _mask_fault(contract, name, declared, column.type, is_required=column.required)
        if fault:
            raise _contract_error(contract, f"column {name} {fault}", "correct privacy.columns")
    keyed = [name for name, each in contract.masked_columns.items() if each.mask in KEYED_MASKS]
    key = contract.privacy.key
    if keyed and key is None:
        raise _contract_error(
            contract, f"{keyed[0]} has a keyed mask, and there is no secret", "write privacy.key"
        )
    if key is not None and bool(key.env) is bool(key.file):
        raise _contract_error(
            contract, "privacy.key has neither, or both, of env and file", "give one of them"
        )


def _mask_fault(
    contract: Contract, name: str, declared: ColumnPrivacy, type_text: str, *, is_required: bool
) -> str:
    fields = {item.root: item.transform for item in contract.partitioning}
    kind, label = declared.mask, fields.get(name, "").partition("[")[0]
    tombstoned = {column for item in contract.tombstones for column in item.columns}
    faults = {
        "is restricted, and partitions are named by its values, which stand in paths and labels":
            declared.classification == "restricted" and label in _LABELS_SHOW_VALUES,
        "is masked, and partitions are made of it": kind is not None and name in fields,
        f"cannot be masked by {kind}: it is {type_text}, not string":
            kind in (*KEYED_MASKS, "truncate") and type_text != "string",
        "is part of the key, which null and truncate would not keep unique":
            kind in ("null", "truncate") and name in contract.key,
        "is required, and its mask is null": kind == "null" and is_required,
        "needs `length` with truncate, and only there":
            (kind == "truncate") is not (declared.length is not None),
        "is masked, and tombstones name its raw values: erased rows would not be found":
            kind is not None and name in tombstoned,
    }  # fmt: skip
    return next((text for text, is_fault in faults.items() if is_fault), "")


def mask_notes(contract: Contract) -> tuple[str, ...]:
    if contract.privacy is None:
        return ()
    masks = [f"{name} by {each.mask}" for name, each in contract.masked_columns.items()]
    hidden = ", ".join(contract.restricted_columns)
    return (
        f"masked: {', '.join(masks) or 'no column'}; not shown in any report: {hidden or 'none'}; "
        "copies under other names are found in the analysed plan, before rows are written",
    )


def pin_mask_key(contract: Contract, secrets: Secrets) -> MaskKeyPin | None:
    """Return the secret of the masks by place and id.

    Raises ConfigError for masks that do not fit their columns, and when the secret is missing.
    """
    require_valid_masks(contract)
    key = contract.privacy.key if contract.privacy else None
    if key is None:
        return None
    return MaskKeyPin(place=key.place, version=key.version, key_id=key_id(secrets.read(key)))


def require_same_key(plan: Plan, secrets: Secrets) -> None:
    """Raise Tampered when the secret is not the one that the run was planned with."""
    pinned = plan.resolved.mask_key
    if pinned is None:
        return
    current = pin_mask_key(plan.resolved.contract, secrets)
    if current is None or current.key_id != pinned.key_id:
        raise Tampered(
            f"{pinned.place} holds another secret than when {plan.run_id} was planned (version "
            f"{pinned.version})",
            state="nothing was computed; readers see what they saw before",
            fix="put the secret of that version back; or write the new version in privacy.key of "
            "the contract, and plan again",
        )


def changed_key_notes(current: MaskKeyPin | None, before: MaskKeyPin | None) -> tuple[str, ...]:
    """Describe a secret that is another than that of the accepted version.

    Raises Tampered when its version says that it is the same.
    """
    if current is None or before is None or current.key_id == before.key_id:
        return ()
    if current.version == before.version:
        raise Tampered(
            f"{current.place} holds another secret than the accepted version was masked with, "
            f"under the same version {current.version}",
            state=NOTHING_PLANNED,
            fix="put the right secret there; or give the new one a new version in privacy.key",
        )
    return (
        f"masked with version {current.version} of the secret; other partitions were masked with "
        f"{before.version}: the same value has two masks",
    )


def metrics_properties(contract: Contract, info: TableInfo | None) -> dict[str, str]:
    """Return table properties that keep values of restricted columns out of Iceberg's manifests.

    The bounds of parts of a nested column have names of their own: then no column has bounds.
    """
    hidden = {name.casefold() for name in contract.restricted_columns}
    if not hidden:
        return {}
    found = {
        f"{_METRICS_PROPERTY}.column.{column.name}": "counts"
        for column in contract.columns
        if column.name.casefold() in hidden
    }
    nested = [
        column
        for column in contract.columns
        if column.name.casefold() in hidden and "<" in column.type
    ]
    if nested:
        found[f"{_METRICS_PROPERTY}.default"] = "counts"
    for key, mode in (info.properties if info else {}).items():
        column_name = key.removeprefix(f"{_METRICS_PROPERTY}.column.")
        is_hidden = column_name.partition(".")[0].casefold() in hidden
        if column_name != key and is_hidden and mode not in _COUNTS_ONLY:
            found[key] = "counts"
    return found


def metrics_notes(contract: Contract, info: TableInfo | None) -> tuple[str, ...]:
    """Name the properties without which commits of others write bounds of restricted columns."""
    if info is None:
        return ()
    missing = [
        name
        for name, mode in metrics_properties(contract, info).items()
        if info.properties.get(name) not in (mode, "none")
    ]
    if not missing:
        return ()
    return (
        f"commits of others to {info.table} write bounds of restricted columns into its manifests; "
        f"to stop that, set {missing[0]} = counts"
        + (f", and {len(missing) - 1} more (docs/privacy.md)" if len(missing) > 1 else ""),
    )
