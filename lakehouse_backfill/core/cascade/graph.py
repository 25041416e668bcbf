"""The graph of products: who reads whom, the order of work, and what no contract declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from lakehouse_backfill.core.planning.plan import DeclaredRun
from lakehouse_backfill.domain.cascade.graph import Upstream
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED
from lakehouse_backfill.domain.serialization import digest
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
