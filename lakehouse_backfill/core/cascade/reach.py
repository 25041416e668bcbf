"""Which partitions of a product read the partitions of an upstream that change.

Pure decisions over labels. A partition is restated as a whole, so a day that changes widens a
product by month to the whole month.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.cascade.graph import Upstream
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest, unplannable
from lakehouse_backfill.domain.partitions import NULL_LABEL, ScopeField
from lakehouse_backfill.domain.serialization import PartitionValue
from lakehouse_backfill.errors import ConfigError

#: The label of an upstream partition -> the labels that read it.
CustomMapping = Callable[[str], Iterable[str]]
_TIME_TYPES = ("date", "timestamp", "timestamptz")
#: Units of partitions of time, finest first, with the fewest days that one has.
_UNIT_DAYS = {"hour": 1 / 24, "day": 1.0, "month": 28.0, "year": 365.0}
_UNITS = tuple(_UNIT_DAYS)


@dataclass(frozen=True)
class ReachedPartitions:
    """Partitions of a product that read what changes of one upstream.

    `widened` are those of which only a part is reached. `absent` are reached by a window, and left
    out: the product does not hold them yet.
    """

    upstream: str
    partitions: frozenset[str]
    widened: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MappedProduct:
    """A product as a mapping sees it: what names its partitions, and those that it holds."""

    product: str
    field: ScopeField
    held: frozenset[str]


def reached_partitions(
    upstream: Upstream,
    changed: tuple[ScopeField, Collection[str]],
    product: MappedProduct,
    custom: CustomMapping | None = None,
) -> ReachedPartitions:
    """Return the partitions of a product that read the changed partitions of an upstream.

    Raises ConfigError when the mapping does not fit the partitions of the two, or a custom function
    names what is no partition.
    """
    field, labels = changed
    if upstream.mapping == "all":
        return ReachedPartitions(upstream.product, product.held)
    if upstream.mapping == "custom":
        return ReachedPartitions(upstream.product, _by_function(upstream, labels, product, custom))
    if upstream.mapping == "aggregate":
        return _coarser(upstream, field, labels, product)
    _require_same_labels(upstream, field, product)
    if upstream.mapping == "same":
        return ReachedPartitions(upstream.product, frozenset(labels))
    return _window(upstream, labels, product)


def _window(
    upstream: Upstream, labels: Collection[str], product: MappedProduct
) -> ReachedPartitions:
    """A partition d reads d - before to d + after, so u reaches u - after to u + before."""
    reached = set(labels)
    for label in labels:
        for steps in range(-upstream.partitions_after, upstream.partitions_before + 1):
            near = partitions.shift_label(product.field, label, steps)
            if near is not None:
                reached.add(near)
    # A window reaches days that are still to come: they are computed when they are due.
    absent = reached - product.held - set(labels)
    return ReachedPartitions(
        upstream.product, frozenset(reached - absent), absent=frozenset(absent)
    )


def _coarser(
    upstream: Upstream, field: ScopeField, labels: Collection[str], product: MappedProduct
) -> ReachedPartitions:
    if _unit(field) is None or _unit(product.field) is None or _is_finer(product.field, field):
        raise _misfit(
            upstream,
            product,
            f"aggregate needs partitions of time that are at least as long as {_describe(field)}",
        )
    reached: dict[str, set[str]] = {}
    for label in labels:
        reached.setdefault(_containing_label(product.field, field, label), set()).add(label)
    widened = {
        whole
        for whole, parts in reached.items()
        if whole != NULL_LABEL
        and set(partitions.labels_within(field, product.field, whole)) - parts
    }
    return ReachedPartitions(upstream.product, frozenset(reached), widened=frozenset(widened))


def _containing_label(coarse: ScopeField, fine: ScopeField, label: str) -> str:
    return partitions.partition_label(coarse, partitions.partition_row_range(fine, label).lower)


def _by_function(
    upstream: Upstream,
    labels: Collection[str],
    product: MappedProduct,
    custom: CustomMapping | None,
) -> frozenset[str]:
    if custom is None:
        raise ValueError(f"the mapping of {upstream.product} has no function")
    found: set[str] = set()
    for label in sorted(labels):
        for named in custom(label):
            try:
                partitions.partition_row_range(product.field, named)
            except (ValueError, TypeError) as error:
                raise _misfit(
                    upstream,
                    product,
                    f"{upstream.function} of {upstream.file} returns {named!r} for {label}, which "
                    f"is no partition of {_describe(product.field)}",
                ) from error
            found.add(named)
    return frozenset(found)


def _require_same_labels(upstream: Upstream, field: ScopeField, product: MappedProduct) -> None:
    ours = product.field
    alike = _unit(ours) is not None and _unit(ours) == _unit(field)
    is_number = ours.is_number and field.is_number
    is_same = (ours.transform, ours.type) == (field.transform, field.type)
    if not (alike or is_number or is_same):
        raise _misfit(
            upstream,
            product,
            f"{upstream.mapping} needs partitions with the same labels, and those of the upstream "
            f"are {_describe(field)}",
        )
    if upstream.mapping == "window" and not (alike or is_number):
        raise _misfit(upstream, product, "a window needs partitions that have an order")


def _misfit(upstream: Upstream, product: MappedProduct, problem: str) -> ConfigError:
    return ConfigError(
        f"{product.product} ({_describe(product.field)}) does not fit its upstream "
        f"{upstream.product}: {problem}",
        state="nothing was planned, pinned or changed",
        fix=f"correct `upstreams` in catalog/contracts/{product.product}.yaml: same, window, "
        "aggregate, all or custom",
        field="upstreams",
    )


def _describe(field: ScopeField) -> str:
    return f"{field.transform}({field.column}) of type {field.type}"


def _unit(field: ScopeField) -> str | None:
    """Return how long a partition of time is: hour, day, month, year; None of others."""
    if field.type not in _TIME_TYPES or field.has_no_order:
        return None
    if field.transform == "identity":
        return "day" if field.type == "date" else None
    return field.transform


def _is_finer(one: ScopeField, other: ScopeField) -> bool:
    return _UNITS.index(str(_unit(one))) < _UNITS.index(str(_unit(other)))


def require_covered_reads(
    upstream: Upstream, contract: Contract, manifest: RunManifest, field: ScopeField
) -> None:
    """Raise Unsupported when a run reads more around a partition than the mapping says.

    A change would reach partitions that the cascade does not restate. Reference data is read whole.
    """
    if upstream.mapping in ("all", "custom"):
        return
    for name, reference in manifest.reference_data.items():
        if reference.table == contract.table:
            raise unplannable(
                f"{manifest.product} reads all of {upstream.product} as reference data ({name}), "
                f"but its mapping is {upstream.mapping}: a change would reach partitions that are "
                "not restated",
                fix=f"write mapping: all in catalog/contracts/{manifest.product}.yaml",
                field=f"reference_data.{name}",
            )
    unit = _unit(field)
    if unit is None:
        return
    is_window = upstream.mapping == "window"
    before = upstream.partitions_before * _UNIT_DAYS[unit] if is_window else 0
    after = upstream.partitions_after * _UNIT_DAYS[unit] if is_window else 0
    for name, source in manifest.sources.items():
        if source.table != contract.table:
            continue
        if source.warm_up_days <= before and source.cool_down_days <= after:
            continue
        raise unplannable(
            f"{manifest.product} reads {source.warm_up_days} days before and "
            f"{source.cool_down_days} after a partition of {upstream.product}, but its mapping is "
            f"{upstream.mapping}, which covers {before:g} before and {after:g} after: a change "
            "would reach partitions that are not restated",
            fix=f"write mapping: window with partitions_before and partitions_after in "
            f"catalog/contracts/{manifest.product}.yaml",
            field=f"sources.{name}.warm_up_days",
        )


def label_value(field: ScopeField, label: str) -> PartitionValue:
    """Return the value that names a partition in a run manifest."""
    if label == NULL_LABEL:
        return None
    if field.type == "string" and label.startswith("="):
        return label[1:]
    return label
