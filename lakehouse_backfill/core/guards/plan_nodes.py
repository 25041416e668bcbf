"""Catalyst's analysed plan as trees of nodes, read from the JSON that Spark writes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlanNode:
    """A node of a plan or of an expression: its class without package, its fields, its children."""

    name: str
    fields: dict[str, Any]
    children: tuple[PlanNode, ...] = ()
    #: Trees of expressions, by the field of the plan that holds them.
    expressions: dict[str, tuple[PlanNode, ...]] = field(default_factory=dict)
    #: Plans of subqueries inside its expressions.
    subplans: tuple[PlanNode, ...] = ()

    def walk(self) -> Iterator[PlanNode]:
        """Yield the node and all nodes below it, without subqueries."""
        yield self
        for child in self.children:
            yield from child.walk()

    def children_first(self) -> list[PlanNode]:
        """Return the node and all nodes below it; each after its children, the first child first.

        The first child may define what the others refer to. Without recursion: a plan may be
        thousands of nodes deep.
        """
        todo, nodes = [self], []
        while todo:
            node = todo.pop()
            nodes.append(node)
            todo += node.children
        return nodes[::-1]

    @property
    def is_half_join(self) -> bool:
        """Whether it is a join that yields the columns of its first side only."""
        kind = str(self.fields.get("joinType"))
        return self.name == "Join" and ("LeftSemi" in kind or "LeftAnti" in kind)

    @property
    def identity(self) -> int | None:
        """The id of an attribute or of the attribute that an alias makes."""
        found = self.fields.get("exprId")
        return int(found["id"]) if isinstance(found, dict) else None

    def child(self, name: str) -> PlanNode | None:
        """Return the child whose number a field holds."""
        number = self.fields.get(name)
        return self.children[number] if isinstance(number, int) else None


def read_plan(text: str) -> PlanNode:
    """Return the tree of a plan that Spark wrote as JSON."""
    return _tree(json.loads(text))


def _tree(nodes: Sequence[dict[str, Any]]) -> PlanNode:
    """Build the tree of a list of nodes in pre-order; a plan may be thousands of nodes deep."""
    built: list[PlanNode] = []
    for fields in reversed(nodes):
        count = int(fields.get("num-children", 0))
        children = tuple(built.pop() for _ in range(count))
        built.append(_node(fields, children))
    return built[-1]


def _node(fields: dict[str, Any], children: tuple[PlanNode, ...]) -> PlanNode:
    expressions: dict[str, tuple[PlanNode, ...]] = {}
    subplans: list[PlanNode] = []
    for name, value in fields.items():
        trees = tuple(_tree(one) for one in _node_lists(value))
        if name in ("plan", "innerChildren"):
            subplans += trees
        elif trees:
            expressions[name] = trees
    for tree in (tree for trees in expressions.values() for tree in trees):
        subplans += [plan for one in tree.walk() for plan in one.subplans]
    name = str(fields["class"]).rpartition(".")[2].rstrip("$")
    return PlanNode(name, fields, children, expressions, tuple(subplans))


def _node_lists(value: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the lists of nodes in a field, however deep they are nested in lists."""
    if not isinstance(value, list) or not value:
        return
    if isinstance(value[0], dict) and "class" in value[0]:
        yield value
    else:
        for inner in value:
            yield from _node_lists(inner)
