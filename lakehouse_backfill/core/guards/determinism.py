"""What makes two runs on the same input differ, found in Python code of a job.

Findings name file and line. Those that a later sort makes harmless are left to the analysed plan
(`core/guards/analysed_plan.py`) unless the code shows that nothing sorts.

Findings in the code of a job: judged when planned; those that a person allows don't block.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache

from lakehouse_backfill.core.guards.python_source import PythonSource, Use, parse_job
from lakehouse_backfill.core.guards.sql_source import (
    ORDERLESS,
    RANDOM_KINDS,
    SEEDED,
    SORTING,
    SPARK_FUNCTIONS,
    python_kind,
    scan_sql,
    scan_sql_file,
)
from lakehouse_backfill.domain.guards.determinism import KINDS, Finding, KindName
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, RunManifest, TransformRef
from lakehouse_backfill.errors import Fault, NonDeterministic

_F = re.compile(r"pyspark\.sql\.(?:connect\.)?functions\.(?:builtin\.)?(\w+)")
_SPARK_READ = re.compile(
    r"(\.|\.getOrCreate\(\)\.|\.getActiveSession\(\)\.|\.active\(\)\.|\.newSession\(\)\.|^)"
    r"(read|readStream)(\(\))?\.(\w+(\(\))?\.)*(table|parquet|csv|json|orc|text|load|jdbc|xml)$"
)
_SPARK_TABLE = re.compile(r"^\.table$|(\.sparkSession|\(\))\.table$")
_SHUFFLES = re.compile(
    r"\.(repartition|repartitionByRange|groupBy|groupby|join|partitionBy|cogroup|rollup|cube)$"
)
#: Sorted, and since then changed row by row.
_SORTED = re.compile(
    r"\.(orderBy|sort)\(\)(\.(select|selectExpr|withColumns?|withColumns?Renamed|where|filter|drop|"
    r"alias|toDF|fillna|hint)\(\))*\.\w+$"
)
#: Methods of pandas that give the rows of a group an order.
_PANDAS_SORTS = (".sort_values", ".sort_index", ".nlargest", ".nsmallest")
_MUTATORS = frozenset(
    {"append", "add", "update", "setdefault", "pop", "popitem", "extend", "insert", "remove",
     "discard", "clear", "appendleft", "popleft"}
)  # fmt: skip
_SET_OPERATIONS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_SETS = frozenset({"builtins.set", "builtins.frozenset"})
_ORDERLESS = frozenset(
    f"builtins.{name}"
    for name in ("sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all", "dict")
)
_ORDERED_READERS = frozenset(
    f"builtins.{name}"
    for name in ("list", "tuple", "enumerate", "iter", "zip", "map", "filter", "next", "str")
)
#: Methods that take columns or values whose order doesn't matter.
_ORDERLESS_METHODS = (
    ".isin", ".drop", ".issubset", ".issuperset", ".union", ".intersection", ".update",
)  # fmt: skip
#: Methods that parse their first text as SQL.
SqlRules = Callable[[str, str, int], Iterable[Finding]]


def scan_python(
    source: PythonSource, name: str, version: str, sql: SqlRules | None = None
) -> tuple[Finding, ...]:
    """Return what is found in the code that the transform reaches, by file and line.

    `sql` judges texts of queries and expressions inside the code: (text, file, first line).
    """
    scan = _Scan(source, source.reached(name, version), sql)
    found = {(one.file, one.line, one.kind, one.found): one for one in scan.findings()}
    return tuple(found[key] for key in sorted(found))


class _Scan:
    """The rules over one job's source; each yields findings."""

    def __init__(self, source: PythonSource, reached: frozenset[str], sql: SqlRules | None) -> None:
        self._source = source
        self._reached = reached
        self._sql = sql
        self._uses = source.uses_of(reached)

    def findings(self) -> Iterator[Finding]:
        for use in self._uses:
            if use.kind == "import":
                continue
            yield from self._named(use)
            if use.kind == "call" and isinstance(use.node, ast.Call):
                yield from self._called(use, use.node)
        yield from self._set_orders()
        yield from self._global_state()

    def _named(self, use: Use) -> Iterator[Finding]:
        """Judge a name alone: a function that is passed on counts like one that is called."""
        kind = python_kind(use.name)
        call = use.node if use.kind == "call" and isinstance(use.node, ast.Call) else None
        if kind is not None and not _is_given_what_it_needs(use.name, call):
            yield _finding(kind, use, use.name)
        elif function := _F.fullmatch(use.name):
            yield from self._spark_function(use, function.group(1), call)
        elif _SPARK_READ.search(use.name) or (
            _SPARK_TABLE.search(use.name) and not (call and self._texts_of(call) & self._views)
        ):
            yield _finding("unpinned_read", use, use.name.lstrip("."))

    def _spark_function(self, use: Use, function: str, call: ast.Call | None) -> Iterator[Finding]:
        found = SPARK_FUNCTIONS.get(function)
        if found is None or (
            function == "unix_timestamp" and call and (call.args or call.keywords)
        ):
            return
        if found in ("unordered_collection", "unordered_first") and (
            self._has_sorting or call is None or id(call) in self._windowed
        ):
            return
        if found == "unordered_first" and self._has_unknown_window:
            return
        if found != "tied_rank":
            yield _finding(found, use, f"{function}()")

    @cached_property
    def _has_sorting(self) -> bool:
        """Whether anything reached sorts arrays, or reads them without their order.

        The analysed plan says whether these are the right ones.
        """
        names = {match.group(1) for use in self._uses if (match := _F.fullmatch(use.name))}
        return bool(names & (SORTING | ORDERLESS))

    @cached_property
    def _windowed(self) -> frozenset[int]:
        """Calls whose result has `.over(...)`: the analysed plan knows the window's order."""
        inside: set[int] = set()
        for use in self._uses:
            if use.name.endswith(".over") and isinstance(use.node, ast.Call):
                for name in ast.walk(use.node.func):
                    values = self._source.values(name) if isinstance(name, ast.Name) else [name]
                    inside |= {id(node) for value in values for node in ast.walk(value)}
        return frozenset(inside)

    @cached_property
    def _has_unknown_window(self) -> bool:
        """Whether anything that is not known, such as an element of a list, has `.over(...)`."""
        return any(
            use.name == ".over"
            and isinstance(use.node, ast.Call)
            and isinstance(base := getattr(use.node.func, "value", None), ast.Name)
            and self._source.values(base) == [base]
            for use in self._uses
        )

    def _called(self, use: Use, call: ast.Call) -> Iterator[Finding]:
        method = use.name.rpartition(".")[2]
        if _SHUFFLES.search(use.name):
            arguments = [*call.args, *(word.value for word in call.keywords)]
            names = frozenset().union(*(self._source.names_inside(one) for one in arguments))
            random = sorted(name for name in names if _is_random(name))
            if random:
                yield _finding("random_shuffle", use, f"{method}() by {_short(random[0])}")
        yield from self._limits(use, call, method)
        yield from self._zones(use, call, method)
        yield from self._texts(use, call, method)

    def _limits(self, use: Use, call: ast.Call, method: str) -> Iterator[Finding]:
        if not use.name.startswith(".") or _SORTED.search(use.name):
            return
        if method in ("tail", "drop_duplicates") and use.scope.definition in self._pandas_sorted:
            return
        seeded = any(word.arg == "random_state" for word in call.keywords)
        is_sample = method in ("sample", "sampleBy", "randomSplit") and not seeded
        if is_sample or (method in ("limit", "offset", "tail") and not _is_zero(call)):
            yield _finding("unordered_limit", use, f"{method}()")
        elif method in ("dropDuplicates", "drop_duplicates") and (call.args or call.keywords):
            yield _finding("unordered_first", use, f"{method}() of some columns")

    @cached_property
    def _pandas_sorted(self) -> frozenset[str]:
        """Functions that sort rows by a method that only pandas has: they take what it sorted."""
        return frozenset(
            use.scope.definition for use in self._uses if use.name.endswith(_PANDAS_SORTS)
        )

    def _zones(self, use: Use, call: ast.Call, method: str) -> Iterator[Finding]:
        given = len(call.args) + len(call.keywords)
        needed = 2 if use.name == "datetime.datetime.fromtimestamp" else 1
        if method in ("fromtimestamp", "astimezone") and given < needed:
            yield _finding("time_zone", use, f"{method}() without a zone")
        elif method in ("get", "set") and ".conf." in f".{use.name}" and _mentions_zone(call):
            yield _finding("time_zone", use, "the session's time zone")

    def _texts(self, use: Use, call: ast.Call, method: str) -> Iterator[Finding]:
        """Judge texts that Spark parses as SQL."""
        is_expression = bool(_F.fullmatch(use.name)) and method == "expr"
        if self._sql is None or not (is_expression or method in _SQL_METHODS):
            return
        given = {word.arg for word in call.keywords} | self._views
        for argument in [
            *call.args,
            *(one.value for one in call.keywords if one.arg == "sqlQuery"),
        ]:
            for value in self._source.values(argument):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    text = value.value if method == "sql" else f"SELECT {value.value}"
                    for one in self._sql(text, use.file, value.lineno):
                        if one.kind != "unpinned_read" or one.found.split()[-1] not in given:
                            yield one

    @cached_property
    def _views(self) -> frozenset[str]:
        """The names of temporary views that the code makes."""
        calls = [
            use.node
            for use in self._uses
            if use.name.rpartition(".")[2] in ("createOrReplaceTempView", "createTempView")
            and isinstance(use.node, ast.Call)
        ]
        return frozenset().union(*(self._texts_of(call) for call in calls))

    def _texts_of(self, call: ast.Call) -> frozenset[str]:
        """Return the texts that the first argument of a call may be, also by a variable."""
        arguments = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "name")]
        values = [value for one in arguments for value in self._source.values(one)]
        return frozenset(
            value.value
            for value in values
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
        )

    def _set_orders(self) -> Iterator[Finding]:
        """Find places where the order of a set's elements is read."""
        orderless = self._orderless | self._in_errors
        for place in self._source.places():
            if place.scope.definition not in self._reached:
                continue
            for expression in _read_in_order(place.node, orderless, self._source):
                if self._is_set(expression, 3):
                    found = "the order of a set"
                    yield Finding(
                        kind="hash_order", file=place.file, line=expression.lineno, found=found
                    )

    @cached_property
    def _orderless(self) -> frozenset[int]:
        """Arguments of calls for which the order of their elements doesn't matter."""
        found: set[int] = set()
        for use in self._uses:
            if isinstance(use.node, ast.Call) and (
                use.name in _ORDERLESS or use.name.endswith(_ORDERLESS_METHODS)
            ):
                found |= {id(argument) for argument in use.node.args}
        return frozenset(found)

    @cached_property
    def _in_errors(self) -> frozenset[int]:
        """Nodes inside the error of a `raise`, or the text of an `assert`: no row is made of it."""
        errors = [
            place.node.exc if isinstance(place.node, ast.Raise) else place.node.msg
            for place in self._source.places()
            if isinstance(place.node, (ast.Raise, ast.Assert))
        ]
        return frozenset(id(node) for one in errors if one is not None for node in ast.walk(one))

    def _is_set(self, node: ast.expr, depth: int) -> bool:
        for value in self._source.values(node):
            if isinstance(value, (ast.Set, ast.SetComp)):
                return True
            if isinstance(value, ast.Call) and self._source.names(value.func) & _SETS:
                return True
            is_operation = isinstance(value, ast.BinOp) and isinstance(value.op, _SET_OPERATIONS)
            if is_operation and depth and self._is_set(value.left, depth - 1):  # type: ignore[attr-defined]
                return True
        return False

    def _global_state(self) -> Iterator[Finding]:
        """Find functions that change variables of a module."""
        for place in self._source.places():
            node, scope = place.node, place.scope
            if scope.definition.endswith(":") or scope.definition not in self._reached:
                continue
            changed = self._changed_variable(node)
            if changed:
                yield Finding(
                    kind="global_state",
                    file=place.file,
                    line=place.line,
                    found=f"changes {changed}",
                )

    def _changed_variable(self, node: ast.AST) -> str | None:
        """Return the variable of the module that a node changes."""
        variable = self._source.module_variable
        if isinstance(node, ast.Global):
            return node.names[0]
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            return None if isinstance(node.ctx, ast.Load) else variable(node.value)
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            return variable(node.func.value)
        is_next = bool(node.args) and "builtins.next" in self._source.names(node.func)
        return variable(node.args[0]) if is_next else None


_SQL_METHODS = frozenset({"selectExpr", "sql", "where", "filter"})


def _is_given_what_it_needs(name: str, call: ast.Call | None) -> bool:
    """Return whether arguments make a name deterministic: a seed, a time to convert."""
    base = next((one for one in SEEDED if name == one), None)
    if base is not None:
        return call is None or bool(call.args or call.keywords)
    if any(name.startswith(f"{one}()") for one in SEEDED):
        return True
    if name in ("time.ctime", "time.asctime"):
        return call is not None and bool(call.args)
    return False


def _is_random(name: str) -> bool:
    match = _F.fullmatch(name)
    kind = SPARK_FUNCTIONS.get(match.group(1)) if match else python_kind(name)
    return kind in RANDOM_KINDS


def _short(name: str) -> str:
    match = _F.fullmatch(name)
    return f"{match.group(1)}()" if match else name


def _finding(kind: KindName, use: Use, found: str) -> Finding:
    return Finding(
        kind=kind, file=use.file, line=use.line, found=found, severity=KINDS[kind].severity
    )


def _is_zero(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _mentions_zone(call: ast.Call) -> bool:
    texts = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return any(isinstance(text, str) and "timezone" in text.lower() for text in texts)


def _read_in_order(
    node: ast.AST, orderless: frozenset[int], source: PythonSource
) -> Iterator[ast.expr]:
    """Yield the expressions whose elements a node reads one after the other."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.iter
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp)) and id(node) not in orderless:
        yield from (generator.iter for generator in node.generators)
    elif isinstance(node, ast.Starred) and id(node) not in orderless:
        yield node.value
    elif isinstance(node, ast.Call) and id(node) not in orderless:
        is_join = isinstance(node.func, ast.Attribute) and node.func.attr == "join"
        joins_texts = is_join and _is_text(node.func.value)  # type: ignore[attr-defined]
        if joins_texts or source.names(node.func) & _ORDERED_READERS:
            yield from node.args


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


ALLOW_FIX = (
    "write what each line suggests; or let a finding pass, for the record, by its kind, file and "
    "reason under safety.allow_nondeterminism of the run manifest, and plan again"
)


def scan_code(texts: Mapping[str, str], transform: TransformRef) -> tuple[Finding, ...]:
    """Return what is found in the code of a transform, given as text by path.

    Raises ConfigError for Python files that can't be parsed.
    """
    if transform.file.endswith(".sql"):
        return scan_sql_file(texts[transform.file], transform.file)
    python = {file: text for file, text in texts.items() if file.endswith(".py")}
    if transform.file not in python:
        return ()
    return _scan_once(parse_job(python, transform.file), transform.name, transform.version)


@lru_cache(maxsize=4)
def _scan_once(source: PythonSource, name: str, version: str) -> tuple[Finding, ...]:
    """Scan a parsed job: products of a cascade may share one."""
    return scan_python(source, name, version, scan_sql)


def judge_code(texts: Mapping[str, str], manifest: RunManifest) -> tuple[Finding, ...]:
    """Return the findings in the code that a run executes, with the reasons that allow them.

    Code of another engine is not judged. Raises NonDeterministic, which names each finding that
    blocks.
    """
    if manifest.transform.writer == "external":
        return ()
    found = with_allowances(scan_code(texts, manifest.transform), manifest)
    require_none_blocking(found, state=NOTHING_PLANNED)
    return found


def with_allowances(findings: Iterable[Finding], manifest: RunManifest) -> tuple[Finding, ...]:
    """Return the findings with the reasons that the manifest gives."""
    allowed = manifest.safety.allow_nondeterminism
    return tuple(
        one.model_copy(
            update={"allowed": next((each.reason for each in allowed if each.covers(one)), "")}
        )
        for one in findings
    )


def require_none_blocking(findings: Iterable[Finding], *, state: str) -> None:
    """Raise NonDeterministic, which names each finding that blocks and what to write instead."""
    blocking = [one for one in findings if one.is_blocking]
    if blocking:
        faults = tuple(
            Fault(one.file, one.line, one.kind, f"{one.found} {one.spec.problem}", one.spec.instead)
            for one in blocking
        )
        raise NonDeterministic(
            f"two runs of the job on the same input may differ, in {len(blocking)} places",
            faults=faults,
            state=state,
            fix=ALLOW_FIX,
        )


def describe_findings(findings: tuple[Finding, ...], manifest: RunManifest, files: int) -> str:
    """Describe in one phrase what the scan of the code found, for the checklist."""
    if manifest.transform.writer == "external":
        return "its code was not looked at for non-determinism"
    if not findings:
        return f"no non-determinism found in {files} files of code (docs/determinism.md)"
    texts = [
        f"{one.kind} at {one.place}" + (f" ({one.allowed})" if one.allowed else " (only shown)")
        for one in findings
    ]
    return f"non-determinism allowed or only shown: {', '.join(texts)}"
