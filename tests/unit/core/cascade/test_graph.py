"""The order of a cascade, cycles, and reads that no contract declares."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse_backfill.core.cascade.graph import (
    ProductGraph,
    graph_version,
    require_declared_reads,
)
from lakehouse_backfill.core.cascade.plan import publication_steps, require_one_commit
from lakehouse_backfill.core.planning.plan import DeclaredRun
from lakehouse_backfill.domain.cascade.graph import CascadeNode
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.errors import ConfigError, Unsupported
from tests.support.fakes.context import contract, declared

pytestmark = pytest.mark.req("P4")


def product(name: str, *upstreams: str, **terms: Any) -> Contract:
    reads = [{"product": one} for one in upstreams]
    return contract(product=name, table=name, upstreams=reads, **terms)


def graph(*contracts: Contract) -> ProductGraph:
    return ProductGraph({one.product: one for one in contracts})


@st.composite
def random_edges(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    """Products by name, each with earlier ones of a hidden order as upstreams."""
    count = draw(st.integers(1, 12))
    names = draw(st.permutations([f"s.p{number}" for number in range(count)]))
    return {
        name: tuple(draw(st.sets(st.sampled_from(names[:place]), max_size=3))) if place else ()
        for place, name in enumerate(names)
    }


def reaches(edges: dict[str, tuple[str, ...]], root: str, name: str) -> bool:
    return root in edges[name] or any(reaches(edges, root, one) for one in edges[name])


@settings(deadline=None)
@given(random_edges(), st.data())
def test_the_order_holds_exactly_what_is_downstream_each_after_its_upstreams(
    edges: dict[str, tuple[str, ...]], data: st.DataObject
) -> None:
    root = data.draw(st.sampled_from(sorted(edges)))
    critical = data.draw(st.sets(st.sampled_from(sorted(edges))))
    found = graph(*(product(one, *ups, critical=one in critical) for one, ups in edges.items()))
    order = found.order_from(root)
    assert set(order) == {root} | {one for one in edges if reaches(edges, root, one)}
    assert order[0] == root
    for place, name in enumerate(order):
        assert set(edges[name]) & set(order) <= set(order[:place])
        # Nothing that is ready at this place is more urgent.
        ready = {one for one in order[place:] if set(edges[one]) & set(order) <= set(order[:place])}
        assert name == min(ready, key=lambda one: (one not in critical, one))


def test_a_cycle_is_an_error_with_its_path() -> None:
    found = graph(product("s.a", "s.c"), product("s.b", "s.a"), product("s.c", "s.b"))
    with pytest.raises(ConfigError, match=r"in a circle: s\.\w -> s\.\w -> s\.\w -> s\.\w"):
        found.order_from("s.a")


def run_of(one: Contract, table: str) -> DeclaredRun:
    return declared(contract=one, product=one.product, sources={"raw": {"table": table}})


def test_reading_a_product_of_the_cascade_without_declaring_it_is_an_error() -> None:
    a, b = product("s.a"), product("s.b")
    with pytest.raises(ConfigError, match=r"s\.b reads s\.a as raw .* does not declare s\.a"):
        require_declared_reads(graph(a, b), ("s.a",), {"s.b": run_of(b, "s.a")})
    known = product("s.b", "s.a")
    require_declared_reads(graph(a, known), ("s.a",), {"s.b": run_of(known, "s.a")})
    require_declared_reads(graph(a, b), ("s.a",), {"s.b": run_of(b, "bronze.raw")})


@pytest.mark.parametrize(
    "changed",
    [
        {"upstreams": [{"product": "s.a", "mapping": "all"}]},
        {"critical": True},
        {"cascade": {"manifest": "other.yaml"}},
        {"owner": "somebody else"},
    ],
    ids=["mapping", "critical", "template", "other"],
)
def test_the_graph_version_changes_with_what_contracts_declare(changed: dict[str, Any]) -> None:
    a, before = product("s.a"), product("s.b", "s.a", cascade={"manifest": "b.yaml"})
    after = Contract.model_validate(before.model_dump(by_alias=True, mode="json") | changed)
    versions = {
        graph_version(graph(a, b), ("s.a", "s.b"), {"s.b": run_of(b, "s.a")}, str)
        for b in (before, after)
    }
    assert len(versions) == 2


def test_the_graph_version_changes_with_code() -> None:
    a, b = product("s.a"), product("s.b", "s.a")
    runs = [
        declared(contract=b, product="s.b", transform={"version": one})
        for one in ("1.0.0", "1.0.1")
    ]
    versions = [graph_version(graph(a, b), ("s.a", "s.b"), {"s.b": run}, str) for run in runs]
    assert versions[0] != versions[1]


def test_the_graph_version_changes_with_a_run_manifest() -> None:
    a, b = product("s.a"), product("s.b", "s.a")
    runs = [
        declared(contract=b, product="s.b", validation={"edge_partitions": one}) for one in (0, 1)
    ]
    versions = [graph_version(graph(a, b), ("s.a", "s.b"), {"s.b": run}, str) for run in runs]
    assert versions[0] != versions[1]


def node(name: str, publication: str, *upstreams: str) -> CascadeNode:
    return CascadeNode.model_validate(
        {
            "product": name, "decision": "pulled in", "run_id": f"bf-{name}",
            "publication": publication, "upstreams": upstreams,
        }
    )  # fmt: skip


@pytest.mark.req("U2")
def test_pinned_products_are_one_step_between_followed_ones_in_order() -> None:
    nodes = (
        node("f1", "follow"), node("p1", "pinned", "f1"), node("p2", "pinned", "p1"),
        node("f2", "follow", "p1"), node("f3", "follow", "f2"),
    )  # fmt: skip
    require_one_commit(nodes)
    assert publication_steps(nodes) == (("f1",), ("p1", "p2"), ("f2",), ("f3",))


@pytest.mark.req("U2")
def test_a_followed_product_between_pinned_ones_is_refused() -> None:
    nodes = (node("p1", "pinned"), node("f", "follow", "p1"), node("p2", "pinned", "f"))
    with pytest.raises(Unsupported, match="f is followed, and lies between p1 and p2"):
        require_one_commit(nodes)
