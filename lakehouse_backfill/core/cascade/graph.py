"""The graph of products: who reads whom, the order of work, and what no contract declares.

Which partitions of a product read the partitions of an upstream that change.

Pure decisions over labels. A partition is restated as a whole, so a day that changes widens a
product by month to the whole month.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from lakehouse_backfill.core.planning.plan import DeclaredRun
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.cascade.graph import Upstream
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels import spans
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest, unplannable
from lakehouse_backfill.domain.partitions import NULL_LABEL, ScopeField
from lakehouse_backfill.domain.serialization import PartitionValue, digest
from lakehouse_backfill.errors import ConfigError


@dataclass(frozen=True)
class ProductGraph:
    """The products of a project and their declared upstreams."""

    contracts: Mapping[str, Contract]

    def upstreams(self, product: str) -> tuple[Upstream, ...]:
        """Return what a product declares to be computed from, also what has no contract."""
        contract = self.contracts.get(product)
        return contract.upstreams if contract else ()

    @cached_property
    def _readers(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for product, contract in sorted(self.contracts.items()):
            for upstream in contract.upstreams:
                found.setdefault(upstream.product, []).append(product)
        return {product: tuple(readers) for product, readers in found.items()}

    def downstream_of(self, product: str) -> frozenset[str]:
        """Return everything that is computed from a product, directly or not; without itself."""
        found: set[str] = set()
        waiting = [product]
        while waiting:
            for reader in self._readers.get(waiting.pop(), ()):
                if reader not in found:
                    found.add(reader)
                    waiting.append(reader)
        return frozenset(found)

    def order_from(self, product: str) -> tuple[str, ...]:
        """Return a product and everything downstream of it, each after all of its upstreams.

        Among products that are ready, critical ones come first, then by name. Raises ConfigError
        for a cycle, with its path.
        """
        members = {product} | self.downstream_of(product)
        sorter: TopologicalSorter[str] = TopologicalSorter(
            {
                one: {up.product for up in self.upstreams(one) if up.product in members}
                for one in members
            }
        )
        try:
            sorter.prepare()
        except CycleError as error:
            raise _cycle_error(error.args[1]) from error
        order: list[str] = []
        ready: list[str] = []
        while sorter.is_active():
            ready.extend(sorter.get_ready())
            ready.sort(key=self._urgency)
            done = ready.pop(0)
            order.append(done)
            sorter.done(done)
        return tuple(order)

    def _urgency(self, product: str) -> tuple[bool, str]:
        contract = self.contracts.get(product)
        return not (contract and contract.critical), product


def _cycle_error(path: Iterable[str]) -> ConfigError:
    # graphlib names each product before the one that is computed from it.
    return ConfigError(
        f"products are computed from each other in a circle: {' -> '.join(path)}",
        state=NOTHING_PLANNED,
        fix="remove one of them from `upstreams` of the next one's contract",
        field="upstreams",
    )


def graph_version(
    graph: ProductGraph,
    order: Iterable[str],
    declared: Mapping[str, DeclaredRun],
    code_hash: Callable[[str], str],
) -> str:
    """Return the SHA-256 of what the products of a cascade declare, and of the code that runs.

    It changes with any contract, the function of a mapping, a run manifest, and any file of a job.
    """
    document = {}
    for product in order:
        contract, run = graph.contracts[product], declared.get(product)
        document[product] = {
            "contract": contract.model_dump(mode="json"),
            "manifest": run and run.manifest.model_dump(mode="json"),
            "code": run and run.code_hash,
            "files": dict(run.files) if run else {},
            "mappings": {one.file: code_hash(one.file) for one in contract.upstreams if one.file},
        }
    return digest(document)


def require_declared_reads(
    graph: ProductGraph, members: Iterable[str], declared: Mapping[str, DeclaredRun]
) -> None:
    """Raise ConfigError when a run reads the table of a product that it does not declare upstream.

    It would read the old rows, while the cascade restates them. `declared` are the runs of all
    products that a cascade can restate, and the first one; `members` the products that this one
    restates.
    """
    tables = {graph.contracts[product].table: product for product in members}
    for product, run in sorted(declared.items()):
        known = {upstream.product for upstream in run.contract.upstreams}
        for name, item in run.manifest.inputs.items():
            read = tables.get(item.table)
            if read is None or read == product or read in known:
                continue
            raise ConfigError(
                f"{product} reads {item.table} as {name} ({run.manifest_file}), and does not "
                f"declare {read} as an upstream: it would keep what it made of the old rows",
                state=NOTHING_PLANNED,
                fix=f"add {{product: {read}, mapping: …}} to `upstreams` in "
                f"catalog/contracts/{product}.yaml",
                field="upstreams",
            )


def unread_upstreams(graph: ProductGraph, run: DeclaredRun) -> tuple[str, ...]:
    """Return the declared upstreams whose table the run does not read."""
    tables = set(run.manifest.input_tables)
    return tuple(
        upstream.product
        for upstream in run.contract.upstreams
        if upstream.product in graph.contracts
        and graph.contracts[upstream.product].table not in tables
    )


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
        if whole != NULL_LABEL and set(spans.labels_within(field, product.field, whole)) - parts
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
    _require_bounded_state(upstream, manifest)
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


def _require_bounded_state(upstream: Upstream, manifest: RunManifest) -> None:
    """Raise Unsupported for a state that holds all earlier rows: a change reaches what follows."""
    if manifest.stateful is None or manifest.stateful.warm_up_days:
        return
    raise unplannable(
        f"a state of {manifest.product} reaches back without an end, but its mapping of "
        f"{upstream.product} is {upstream.mapping}: a change would reach all later partitions, "
        "which are not restated",
        fix=f"write mapping: all in catalog/contracts/{manifest.product}.yaml, or "
        "stateful.warm_up_days in the run manifest",
        field="stateful.warm_up_days",
    )


def label_value(field: ScopeField, label: str) -> PartitionValue:
    """Return the value that names a partition in a run manifest."""
    if label == NULL_LABEL:
        return None
    if field.type == "string" and label.startswith("="):
        return label[1:]
    return label
