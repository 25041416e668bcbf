"""Columns of an output are followed back to restricted columns of inputs, under any name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakehouse_backfill.core.guards.privacy.column_flow import (
    TracedInput,
    trace_columns,
    trace_copies,
)

pytestmark = pytest.mark.req("E3")

Tree = list[dict[str, Any]]
PEOPLE = TracedInput("people", frozenset({"day", "mail", "pay"}), frozenset({"mail", "pay"}))
CITIES = TracedInput("cities", frozenset({"day", "city"}), frozenset())
MAIL, PAY = frozenset({"people.mail"}), frozenset({"people.pay"})
BOTH = MAIL | PAY


def node(kind: str, *children: Tree, **fields: Any) -> Tree:
    """A node of Spark's JSON in pre-order."""
    below = [one for child in children for one in child]
    return [{"class": f"org.x.{kind}", "num-children": len(children), **fields}, *below]


def attribute(number: int, name: str) -> Tree:
    return node("AttributeReference", name=name, exprId={"id": number})


def alias(number: int, name: str, *children: Tree) -> Tree:
    return node("Alias", *children, name=name, exprId={"id": number})


def table(*names: str, first: int = 1, kind: str = "DataSourceV2Relation") -> Tree:
    return node(kind, output=[attribute(first + at, name) for at, name in enumerate(names)])


def people(first: int = 1) -> Tree:
    return table("day", "mail", "pay", first=first)


def project(child: Tree, *columns: Tree) -> Tree:
    return node("Project", child, projectList=list(columns))


DAY, MAIL_OF, PAY_OF = attribute(1, "day"), attribute(2, "mail"), attribute(3, "pay")


def traced(plan: Tree) -> dict[str, frozenset[str]]:
    found = trace_columns(json.dumps(plan), (PEOPLE, CITIES))
    return {name: origins for name, origins in found.items() if origins}


RENAMED = project(people(), DAY, alias(7, "Contact", MAIL_OF))
TOLD = project(people(), DAY, alias(7, "x", node("Lower", MAIL_OF)), alias(8, "n", node("Literal")))
PLANS: dict[str, tuple[Tree, dict[str, frozenset[str]]]] = {
    "the input itself": (people(), {"mail": MAIL, "pay": PAY}),
    "another name": (RENAMED, {"contact": MAIL}),
    "twice another name": (project(RENAMED, alias(9, "c", attribute(7, "Contact"))), {"c": MAIL}),
    "an expression of two": (
        project(people(), alias(7, "both", node("Concat", MAIL_OF, node("Cast", PAY_OF)))),
        {"both": BOTH},
    ),
    "a structure": (
        project(people(), alias(7, "s", node("CreateNamedStruct", node("Literal"), MAIL_OF))),
        {"s": MAIL},
    ),
    "a function in Python": (
        project(people(), alias(7, "u", node("PythonUDF", DAY, MAIL_OF))),
        {"u": MAIL},
    ),
    "an untouched neighbour": (project(TOLD, DAY, attribute(8, "n")), {}),
    "below a filter, a sort and a limit": (
        node("GlobalLimit", node("Sort", node("Filter", RENAMED, condition=MAIL_OF))),
        {"contact": MAIL},
    ),
    "an aggregate": (
        node("Aggregate", people(), groupingExpressions=[DAY], aggregateExpressions=[
            DAY, alias(7, "most", node("AggregateExpression", node("Max", PAY_OF))),
            alias(8, "n", node("AggregateExpression", node("Count", MAIL_OF))),
        ]),
        {"most": PAY},
    ),
    "a join with another input": (
        project(
            node("Join", people(), table("day", "city", first=11), joinType="Inner"),
            attribute(12, "city"), alias(7, "m", MAIL_OF),
        ),
        {"m": MAIL},
    ),
    "a half join shows one side": (
        node("Join", table("day", "city", first=11), people(), joinType={"object": "LeftSemi"}),
        {},
    ),
    "the second part of a union": (
        node("Union",
             project(table("day", "city", first=11), alias(21, "text", attribute(12, "city"))),
             project(people(), alias(22, "other", MAIL_OF))),
        {"text": MAIL},
    ),
    "a value of another row": (
        node("Window", people(), windowExpressions=[alias(7, "before", node(
            "WindowExpression", node("Lag", PAY_OF), node("WindowSpecDefinition", DAY),
            windowFunction=0, windowSpec=1,
        ))]),
        {"mail": MAIL, "pay": PAY, "before": PAY},
    ),
    "a number by an order of restricted values": (
        project(node("Window", people(), windowExpressions=[alias(7, "n", node(
            "WindowExpression", node("RowNumber"), node("WindowSpecDefinition", PAY_OF),
            windowFunction=0, windowSpec=1,
        ))]), attribute(7, "n")),
        {},
    ),
    "parts of a text as rows": (
        project(
            node("Generate", people(), generator=node("Explode", node("Split", MAIL_OF)),
                 generatorOutput=[attribute(9, "part")]),
            DAY, attribute(9, "part"),
        ),
        {"part": MAIL},
    ),
    "rows made by a function in Python": (
        node("MapInPandas", people(), output=[attribute(9, "any"), attribute(10, "other")]),
        {"any": BOTH, "other": BOTH},
    ),
    "columns as rows": (
        node("Expand", RENAMED, projections=None, output=[DAY, attribute(10, "value")]),
        {"value": MAIL},
    ),
    "what a subquery takes from the query around it": (
        project(people(), alias(30, "x", node("ScalarSubquery", plan=project(
            table("day", "city", first=11),
            alias(31, "y", node("OuterReference", e=MAIL_OF)),
        )))),
        {"x": MAIL},
    ),
    "a plan that nobody knows": (
        node("Shaken", project(people(), DAY, alias(7, "m", MAIL_OF))),
        {"day": MAIL, "m": MAIL},
    ),
    "rows that the code made itself": (table("a", kind="LogicalRDD"), {"a": BOTH}),
    "numbers in a range": (table("id", kind="Range"), {}),
    "an attribute that nothing made": (project(people(), attribute(99, "ghost")), {"ghost": BOTH}),
    "a subquery as a value": (
        project(table("day", "city", first=11),
                alias(30, "most", node("ScalarSubquery", plan=project(people(), PAY_OF)))),
        {"most": PAY},
    ),
    "a table that is no input, by its names": (table("mail", "x", first=50), {"mail": MAIL}),
    "a common table": (
        node("WithCTE",
             node("CTERelationDef", RENAMED, id=5),
             project(
                 node("Join",
                      node("CTERelationRef", cteId=5, output=[DAY, attribute(7, "Contact")]),
                      node("CTERelationRef", cteId=5,
                           output=[attribute(41, "day"), attribute(42, "contact")])),
                 alias(43, "c", attribute(42, "contact")), alias(44, "own", attribute(7, "C")))),
        {"c": MAIL, "own": MAIL},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_a_column_is_followed_through(case: str) -> None:
    plan, expected = PLANS[case]
    assert traced(plan) == expected


#: Plans whose columns are, or are not, one column of one input.
COPIES: dict[str, tuple[Tree, dict[str, str]]] = {
    "another name": (RENAMED, {"day": "people.day", "contact": "people.mail"}),
    "an expression beside a copy": (TOLD, {"day": "people.day"}),
    "a value that is filled in": (
        project(people(), alias(7, "mail", node("Coalesce", MAIL_OF, node("Literal")))), {},
    ),
    "below a filter and a join": (
        node("Join", node("Filter", RENAMED, condition=MAIL_OF),
             table("town", "city", first=11, kind="LogicalRelation"), joinType="LeftOuter"),
        # The second table has the columns of no input: it may be any.
        {"day": "people.day", "contact": "people.mail"},
    ),
    "a union of two columns": (
        node("Union", project(people(), alias(21, "a", MAIL_OF)),
             project(people(5), alias(22, "a", attribute(7, "pay")))), {},
    ),
    "a union with the same column": (
        node("Union", project(people(), alias(21, "a", MAIL_OF)),
             project(people(5), alias(22, "a", attribute(6, "mail")))), {"a": "people.mail"},
    ),
    "a union with an expression": (
        node("Union", project(people(), alias(21, "a", MAIL_OF)),
             project(people(5), alias(22, "a", node("Lower", attribute(6, "mail"))))), {},
    ),
    "a union whose first side is not known": (
        node("Union", node("LocalRelation", output=[attribute(21, "a")]),
             project(people(5), alias(22, "a", attribute(6, "mail")))), {},
    ),
    "an operation that is not known": (node("Odd", RENAMED), {}),
    "rows made by a function in Python": (
        node("MapInPandas", people(), output=[attribute(9, "mail")]), {},
    ),
    "one name twice": (project(people(), alias(7, "a", MAIL_OF), alias(8, "a", PAY_OF)), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_only_a_column_that_nothing_makes_counts_as_a_copy(name: str) -> None:
    plan, expected = COPIES[name]
    assert trace_copies(json.dumps(plan), (PEOPLE, CITIES)) == expected
