"""Decisions about grains: a run restates whole ones, and what is derived for it is widened."""

from __future__ import annotations

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.grains import (
    contract_grain,
    describe_grain,
    grain_fault,
    grain_of,
    group_by_grain,
    whole_grains,
)
from lakehouse_backfill.domain.labels.values import Grain
from lakehouse_backfill.domain.manifest import unplannable
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.errors import ConfigError

_FIELD = "target.partitions"


def require_whole_grains(contract: Contract, scope: Scope) -> tuple[str, ...]:
    """Return the note on the grains of a scope, for the plan; empty without a declared grain.

    Raises ConfigError for a grain that does not fit the table, Unsupported for a scope that holds a
    part of one: it names the missing partitions and the whole scope.
    """
    field, grain = scope.field, contract_grain(contract, scope.field)
    if grain is None:
        return ()
    if fault := grain_fault(field.transform, field.type, grain):
        raise ConfigError(
            f"the grain of {field.column} in the contract of {contract.product} does not fit the "
            f"table: {fault}",
            fix=f"correct partitioning in catalog/contracts/{contract.product}.yaml",
        )
    whole = whole_grains(field, grain, scope.partitions)
    own = frozenset(scope.partitions)
    if missing := tuple(label for label in whole if label not in own):
        cut = tuple(dict.fromkeys(grain_of(field, grain, label) for label in missing))
        raise unplannable(
            f"the run would restate a part of {partitions.describe_labels(cut)}, but "
            f"{contract.product} aggregates by {describe_grain(grain)} of {field.column}: "
            f"{partitions.describe_labels(missing)} would stay as computed before",
            fix=f"write target.partitions {_as_written(field, whole)}, and widen the ranges of the "
            "sources",
            field=_FIELD,
        )
    count, unit = len(group_by_grain(field, grain, whole)), describe_grain(grain)
    return (
        f"grain: {count} whole {unit}{'s' if count > 1 else ''} of {field.column}; chunks may be "
        "finer, but totals, keys and suites are judged once all chunks are staged, and no part of "
        "a grain is published or rolled back alone",
    )


def _as_written(field: ScopeField, labels: tuple[str, ...]) -> str:
    """Return what a person writes for the partitions: a range where they follow each other."""
    following = [partitions.shift_label(field, label, 1) for label in labels]
    if len(labels) > 1 and following[:-1] == list(labels[1:]) and following[-1] is not None:
        return f"from: {labels[0]}, to: {following[-1]}"
    return f"values: [{', '.join(labels)}]"


def widening_note(
    contract: Contract, field: ScopeField, labels: tuple[str, ...], whole: tuple[str, ...]
) -> str:
    """Return why more partitions than those found are restated; empty where no more are."""
    grain: Grain | None = contract_grain(contract, field)
    added = len(whole) - len(frozenset(labels))
    if grain is None or added <= 0:
        return ""
    return (
        f"widened by {added} partition{'s' if added > 1 else ''} to whole {describe_grain(grain)}s "
        f"of {field.column}, by which {contract.product} aggregates"
    )
