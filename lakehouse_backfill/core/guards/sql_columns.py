"""Columns of a SQL transform that no pinned input has, found when the run is planned.

Only what is certain is named: where a query reads what is not known here (a table function, a
pivot, a lateral view), the engine decides later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from lakehouse_backfill.core.guards.queries import NotAQuery, parse_query, referenced_tables
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, TransformRef
from lakehouse_backfill.errors import ConfigError, Fault

if TYPE_CHECKING:
    from lakehouse_backfill.domain.plan import SourcePin

#: Words that stand where a column may: units of time, and functions without parentheses.
_NO_COLUMNS = frozenset(
    {
        *("year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second"),
        *("millisecond", "microsecond", "current_date", "current_timestamp", "current_time"),
        *("current_user", "session_user", "user", "localtimestamp", "current_catalog"),
        *("current_database", "current_schema", "current_timezone"),
    }
)
_MAX_NAMED = 8


def require_resolved_columns(
    texts: Mapping[str, str], transform: TransformRef, sources: Sequence[SourcePin]
) -> None:
    """Raise ConfigError for a SQL transform that is no query, or that names unknown columns.

    Also for one that names an input without braces. Each fault has file and line. Code of another
    engine, and Python, is not looked at.
    """
    file = transform.file
    if transform.writer == "external" or not file.endswith(".sql"):
        return
    text = texts[file]
    try:
        query = parse_query(text)
    except NotAQuery as error:
        fault = Fault(file, _error_line(error), "query", str(error), "write one SELECT")
        raise _faulty(f"{file} is no query", (fault,)) from error
    if bare := tuple(_bare_inputs(file, text, query, sources)):
        problem = f"{file} reads inputs as if they were tables of the catalog"
        raise _faulty(problem, bare, "write the names of inputs in braces")
    inputs = {pin.name.lower(): tuple(one.name for one in pin.columns) for pin in sources}
    faults = tuple(
        Fault(file, line, name, "no input has such a column", _fix(name, columns))
        for line, name, columns in unresolved_columns(query, inputs)
    )
    if faults:
        count = "a column" if len(faults) == 1 else f"{len(faults)} columns"
        raise _faulty(f"{file} names {count} that its pinned inputs do not have", faults)


def _bare_inputs(
    file: str, text: str, query: exp.Query, sources: Sequence[SourcePin]
) -> Iterator[Fault]:
    """Yield the inputs that are nowhere in braces: the engine would look for such a table."""
    tables = referenced_tables(query)
    for pin in sources:
        if pin.name in tables and f"{{{pin.name}}}" not in text:
            word = re.compile(rf"\b{re.escape(pin.name)}\b")
            lines = text.splitlines()
            line = next(
                (n for n, row in enumerate(lines, 1) if row[:2] != "--" and word.search(row)), 1
            )
            yield Fault(file, line, pin.name, "an input without braces", f"write {{{pin.name}}}")


def _faulty(
    problem: str,
    faults: tuple[Fault, ...],
    fix: str = "correct the query, or pin an input that has the column",
) -> ConfigError:
    return ConfigError(problem, state=NOTHING_PLANNED, fix=fix, faults=faults)


def _error_line(error: NotAQuery) -> int:
    found = getattr(error.__cause__, "errors", None) or [{}]
    return int(found[0].get("line") or 1)


def _fix(name: str, columns: tuple[str, ...]) -> str:
    by_lower = {column.lower(): column for column in columns}
    near = get_close_matches(name.rpartition(".")[2].lower(), by_lower, 1)
    if near:
        return f"perhaps {by_lower[near[0]]}"
    more = f", and {len(columns) - _MAX_NAMED} more" if len(columns) > _MAX_NAMED else ""
    return f"there are {', '.join(columns[:_MAX_NAMED])}{more}"


def unresolved_columns(
    query: exp.Query, inputs: Mapping[str, tuple[str, ...]]
) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return line and name of each column that does not resolve, and the columns that there are.

    `inputs` has the columns of each input, by its name in lower case; without any it is not known.
    """
    resolver = _Resolver(inputs)
    found: dict[tuple[int, str], tuple[str, ...]] = {}
    try:
        scopes = traverse_scope(query)
        for scope in scopes:
            for column, columns in resolver.unresolved(scope):
                name = ".".join(part.name for part in column.parts)
                line = int(column.parts[0].meta.get("line") or 1)
                found.setdefault((line, name), columns)
    except (SqlglotError, RecursionError):
        return []
    return [(line, name, columns) for (line, name), columns in sorted(found.items())]


def column_sources(text: str, sources: Sequence[SourcePin]) -> dict[str, tuple[str, ...]]:
    """Return the columns of inputs (`input.column`) that each column of a query is made of.

    A star stands for the columns of the pinned inputs. Empty where the query cannot be followed.
    Conditions and joins, which decide about rows, are not among them.
    """
    from sqlglot.lineage import lineage
    from sqlglot.optimizer.qualify import qualify

    types = {pin.name: {one.name: one.type for one in pin.columns} for pin in sources}
    try:
        query = parse_query(text)
        if query.find(exp.Star) is not None:
            query = qualify(
                query, schema=_untyped(types), dialect="spark", quote_identifiers=False,
                validate_qualify_columns=False,
            )  # fmt: skip
        names = _first_names(query) or ()
        found = {}
        for name in names:
            nodes = lineage(name, query.copy(), schema=_untyped(types), dialect="spark").walk()
            origins = {
                f"{node.source.name}.{node.name.rpartition('.')[2]}"
                for node in nodes
                if isinstance(node.source, exp.Table) and not node.downstream
            }
            found[name] = tuple(sorted(origins))
    except (NotAQuery, SqlglotError, RecursionError, ValueError):
        return {}
    return found


def _untyped(columns: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """Return the columns without their types, which sqlglot would have to know."""
    return {table: dict.fromkeys(names, "unknown") for table, names in columns.items()}


class _Resolver:
    """Looks up names in the scopes of one query; None stands for columns that are not known."""

    def __init__(self, inputs: Mapping[str, tuple[str, ...]]) -> None:
        self._inputs = inputs
        self._outputs: dict[int, tuple[str, ...] | None] = {}

    def unresolved(self, scope: Scope) -> Iterator[tuple[exp.Column, tuple[str, ...]]]:
        """Yield each column of the scope that neither it nor one around it can give."""
        if not isinstance(scope.expression, exp.Select):
            return
        around = list(_with_parents(scope))
        tables = [(one, self._tables(one)) for one in around]
        everything = _joined(columns for _, found in tables for columns in found.values())
        if everything is None or any(_is_odd(one) for one in around):
            return
        known = {name.lower() for name in everything}
        known |= {name.lower() for one in around for name in _aliases(one)}
        by_table = {
            name: columns for _, found in reversed(tables) for name, columns in found.items()
        }
        for column in scope.columns:
            # Those of a query inside this one are looked up there, and around it.
            is_own = column.find_ancestor(exp.Select, exp.SetOperation) is scope.expression
            if not is_own or _is_word(column) or isinstance(column.this, exp.Star):
                continue
            first = column.parts[0].name.lower()
            own = by_table.get(column.table.lower()) if len(column.parts) == 2 else None
            if own is not None:
                # A column of that name may hold a struct with the field.
                is_found = column.name.lower() in {one.lower() for one in own} or first in known
            else:
                is_found = first in known or first in by_table
            if not is_found and not column.name.startswith("_"):
                yield column, own or everything

    def _tables(self, scope: Scope) -> dict[str, tuple[str, ...] | None]:
        """Return the columns of what the scope reads, by the name that it has there."""
        sources = {name: source for name, (_, source) in scope.selected_sources.items()}
        # A semi or anti join is not selected from, but its condition names it.
        joined = (join.this.alias_or_name for join in scope.expression.args.get("joins") or ())
        sources |= {name: scope.sources[name] for name in joined if name in scope.sources}
        return {name.lower(): self._columns(source) for name, source in sources.items()}

    def _columns(self, source: exp.Expr | Scope) -> tuple[str, ...] | None:
        if isinstance(source, Scope):
            return self._outputs_of(source)
        if not isinstance(source, exp.Table) or source.args.get("pivots") or source.args.get("db"):
            return None
        if source.alias_column_names:
            return tuple(source.alias_column_names)
        return self._inputs.get(source.name.lower()) or None

    def _outputs_of(self, scope: Scope) -> tuple[str, ...] | None:
        """Return the columns that a subquery gives."""
        if id(scope) not in self._outputs:
            # A recursive query asks for itself: not known.
            self._outputs[id(scope)] = None
            self._outputs[id(scope)] = self._selected(scope)
        return self._outputs[id(scope)]

    def _selected(self, scope: Scope) -> tuple[str, ...] | None:
        query, holder = scope.expression, scope.expression.parent
        if isinstance(holder, exp.CTE | exp.Subquery) and holder.alias_column_names:
            return tuple(holder.alias_column_names)
        if isinstance(query, exp.SetOperation):
            return _first_names(query)
        if not isinstance(query, exp.Select) or _is_odd(scope):
            return None
        names: list[str] = []
        for each in query.selects:
            columns = self._star(scope, each) if _is_whole_star(each) else _name(each)
            if columns is None:
                return None
            names += columns
        return tuple(names)

    def _star(self, scope: Scope, star: exp.Expr) -> tuple[str, ...] | None:
        tables = self._tables(scope)
        if isinstance(star, exp.Column):
            return tables.get(star.table.lower())
        return _joined(tables.values())


def _with_parents(scope: Scope) -> Iterator[Scope]:
    found: Scope | None = scope
    while found is not None:
        yield found
        found = found.parent


def _joined(found: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return all columns together; None when some are not known."""
    parts = list(found)
    if any(part is None for part in parts):
        return None
    return tuple(dict.fromkeys(name for part in parts for name in part or ()))


def _is_odd(scope: Scope) -> bool:
    """Return whether the scope reads what is not looked into here."""
    query = scope.expression
    return bool(query.args.get("laterals") or query.args.get("pivots")) or any(
        not isinstance(join.this, exp.Table | exp.Subquery) or join.this.args.get("pivots")
        for join in query.args.get("joins") or ()
    )


def _aliases(scope: Scope) -> list[str]:
    """Return the names that later columns, HAVING and ORDER BY of the query may use."""
    query = scope.expression
    selects = query.selects if isinstance(query, exp.Query) else []
    return [each.alias for each in selects if each.alias]


def _first_names(query: exp.Expr) -> tuple[str, ...] | None:
    """Return the names that a union takes from its first query; None where it has a star."""
    while isinstance(query, exp.SetOperation):
        query = query.this.unnest()
    if not isinstance(query, exp.Select) or any(map(_is_whole_star, query.selects)):
        return None
    return _joined(_name(each) for each in query.selects)


def _is_whole_star(select: exp.Expr) -> bool:
    return isinstance(select, exp.Star) or (
        isinstance(select, exp.Column) and isinstance(select.this, exp.Star)
    )


def _name(select: exp.Expr) -> tuple[str, ...] | None:
    """Return the name of a selected column; None where the engine makes one up."""
    return (select.alias_or_name,) if isinstance(select, exp.Column | exp.Alias) else None


def _is_word(column: exp.Column) -> bool:
    """Return whether a name is a word of the language, or names an argument."""
    is_named_argument = isinstance(column.parent, exp.Kwarg | exp.PropertyEQ)
    return is_named_argument or (len(column.parts) == 1 and column.name.lower() in _NO_COLUMNS)
