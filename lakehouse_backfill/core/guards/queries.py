"""Separates queries without side effects from every other SQL text, by parsing."""

from __future__ import annotations

import logging
import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# sqlglot warns about each statement that it parses as a generic command; those are refused below.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

#: `spark.sql(text, name=frame)` replaces `{name}`; it is parsed as a table of that name.
_FRAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: Functions that call arbitrary Java methods from inside a query.
REFLECTION_FUNCTIONS = frozenset({"reflect", "java_method", "try_reflect"})
_SIDE_EFFECT_NODES = (exp.DML, exp.DDL, exp.Command, exp.QueryTransform, exp.Into)


class NotAQuery(ValueError):
    """The text is not one single query; the message states what it is instead."""


def parse_query(text: str) -> exp.Query:
    """Parse `text` as exactly one query without side effects; raises NotAQuery."""
    try:
        parsed = sqlglot.parse(_FRAME.sub(r"\1", text), read="spark")
    except SqlglotError as error:
        raise NotAQuery(f"not readable as one query ({_first_line(error)})") from error
    statements = [statement for statement in parsed if statement is not None]
    if len(statements) != 1:
        raise NotAQuery(f"{len(statements)} statements instead of one query")
    statement = statements[0]
    if not isinstance(statement, exp.Query) or isinstance(statement, exp.DML):
        raise NotAQuery(f"{_statement_kind(statement)} instead of a query")
    for node in statement.walk():
        _refuse_side_effects(node)
    return statement


def referenced_tables(query: exp.Query) -> set[str]:
    """Return the names of the tables that a query reads, without its common table expressions."""
    own = {cte.alias_or_name.lower() for cte in query.find_all(exp.CTE)}
    names = {
        ".".join(part.name for part in table.parts)
        for table in query.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier)
    }
    return {name for name in names if name.lower() not in own}


def _refuse_side_effects(node: exp.Expr) -> None:
    if isinstance(node, _SIDE_EFFECT_NODES) and not isinstance(node, exp.Query):
        raise NotAQuery(f"{_statement_kind(node)} inside a query")
    if isinstance(node, exp.Anonymous) and node.name.lower() in REFLECTION_FUNCTIONS:
        raise NotAQuery(f"call of {node.name}, which runs arbitrary Java code")


def _statement_kind(node: exp.Expr) -> str:
    if isinstance(node, exp.Command):
        return str(node.this).upper()
    return node.key.upper()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
