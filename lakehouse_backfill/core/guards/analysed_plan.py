"""What makes two runs differ, found in Catalyst's analysed plan of a transform's output.

The whole tree is walked: an attribute that refers to a random value counts as deterministic for
Spark (SPARK-51016), so each attribute carries what its value is made of. What never reaches the
output, and decides about no row, is not reported; a sorted array has no order of arrival.

Finds the line of the code that an analysed plan comes from: a plan has functions, no lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from lakehouse_backfill.core.guards.plan_nodes import PlanNode, read_plan
from lakehouse_backfill.core.guards.python_source import parse_job
from lakehouse_backfill.core.guards.sql_source import RANDOM_KINDS
from lakehouse_backfill.domain.guards.determinism import KINDS, Finding, KindName, Severity
from lakehouse_backfill.domain.manifest import TransformRef


class PlanFact(NamedTuple):
    """One source of non-determinism: the function or operation, and the columns that it takes."""

    kind: KindName
    function: str
    columns: tuple[str, ...]
    severity: Severity

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.columns)})"


#: Expressions that are not pure: kind and name in SQL.
_IMPURE: dict[str, tuple[KindName, str]] = {
    "CurrentDate": ("wall_clock", "current_date"), "Now": ("wall_clock", "now"),
    "CurrentTimestamp": ("wall_clock", "current_timestamp"),
    "LocalTimestamp": ("wall_clock", "localtimestamp"),
    "CurrentTime": ("wall_clock", "current_time"),
    "Rand": ("random_value", "rand"), "Randn": ("random_value", "randn"),
    "Shuffle": ("random_value", "shuffle"), "Uniform": ("random_value", "uniform"),
    "RandStr": ("random_value", "randstr"), "Uuid": ("generated_id", "uuid"),
    "MonotonicallyIncreasingID": ("generated_id", "monotonically_increasing_id"),
    "SparkPartitionID": ("generated_id", "spark_partition_id"),
    "InputFileName": ("file_name", "input_file_name"),
    "InputFileBlockStart": ("file_name", "input_file_block_start"),
    "InputFileBlockLength": ("file_name", "input_file_block_length"),
    "CurrentUser": ("environment", "current_user"),
    "CurrentDatabase": ("environment", "current_database"),
    "CurrentCatalog": ("environment", "current_catalog"),
    "CurrentTimeZone": ("time_zone", "current_timezone"),
}  # fmt: skip
#: Aggregates that depend on the order of rows.
_ARRIVAL: dict[str, tuple[KindName, str]] = {
    "CollectList": ("unordered_collection", "collect_list"),
    "CollectSet": ("unordered_collection", "collect_set"),
    "ListAgg": ("unordered_collection", "listagg"),
    "First": ("unordered_first", "first"), "Last": ("unordered_first", "last"),
    "AnyValue": ("unordered_first", "any_value"),
    "MaxBy": ("tied_rank", "max_by"), "MinBy": ("tied_rank", "min_by"),
    "Mode": ("tied_rank", "mode"),
}  # fmt: skip
_RANKS = {"RowNumber": "row_number", "NTile": "ntile", "Lead": "lead", "Lag": "lag",
          "NthValue": "nth_value"}  # fmt: skip
#: Aggregates that add in floating point whatever they are given.
_MOMENTS = {
    "StddevSamp": "stddev", "StddevPop": "stddev_pop", "VarianceSamp": "variance",
    "VariancePop": "var_pop", "Skewness": "skewness", "Kurtosis": "kurtosis", "Corr": "corr",
    "CovSample": "covar_samp", "CovPopulation": "covar_pop",
    "ApproximatePercentile": "percentile_approx",
}  # fmt: skip
_SUMS = {"Sum": "sum", "Average": "avg", "TrySum": "try_sum", "TryAverage": "try_avg"}
#: The order of an array's elements ends here.
_ORDERING = frozenset({"SortArray", "ArraySort"})
_ORDERLESS = frozenset(
    {"Size", "ArraySize", "ArrayContains", "ArrayMax", "ArrayMin", "ArraysOverlap"}
)
_FLOATS = frozenset({"float", "double"})
_WHOLE = frozenset({"byte", "short", "integer", "long", "tinyint", "smallint", "int", "bigint"})
#: Functions of numbers whose result is no floating-point number.
_WHOLE_RESULTS = frozenset({"Floor", "Ceil", "Length", "Size", "Murmur3Hash", "XxHash64", "Hour"})

Facts = frozenset[PlanFact]
_NONE: Facts = frozenset()


def find_in_plan(plan_json: str) -> tuple[PlanFact, ...]:
    """Return what decides about rows or values of the output."""
    walk = _PlanWalk()
    root = read_plan(plan_json)
    outputs = walk.visit(root)
    for attribute in outputs:
        walk.found |= walk.facts.get(attribute, _NONE)
    return tuple(sorted(walk.found))


class _PlanWalk:
    """Walks a plan from its leaves upwards; `facts` holds what each attribute is made of."""

    def __init__(self) -> None:
        self.facts: dict[int, Facts] = {}
        self.found: set[PlanFact] = set()
        #: By node: sets of attributes that no two rows share.
        self._unique: dict[int, list[frozenset[int]]] = {}
        self._common: dict[int, list[int]] = {}

    def visit(self, root: PlanNode) -> list[int]:
        """Judge a plan and all below it; return the attributes that it yields."""
        outputs: dict[int, list[int]] = {}
        for node in root.children_first():
            outputs[id(node)] = self._visit(node, [outputs[id(child)] for child in node.children])
        return outputs[id(root)]

    def _visit(self, node: PlanNode, below: list[list[int]]) -> list[int]:
        for subplan in node.subplans:
            self.found |= self._of(self.visit(subplan))
        inputs = [attribute for outputs in below for attribute in outputs]
        self._define(node)
        outputs = self._outputs(node, below, inputs)
        self._judge(node, inputs)
        self._unique[id(node)] = self._unique_keys(node)
        return outputs

    def _define(self, node: PlanNode) -> None:
        """Record what the attributes that a node makes are made of."""
        for name in ("projectList", "aggregateExpressions", "windowExpressions"):
            for tree in node.expressions.get(name, ()):
                if tree.identity is not None and tree.name != "AttributeReference":
                    self.facts[tree.identity] = self._expression(tree, node)
        if node.name == "Generate":
            made = self._expressions(node, ("generator",))
            for tree in node.expressions.get("generatorOutput", ()):
                if tree.identity is not None:
                    self.facts[tree.identity] = made

    def _outputs(self, node: PlanNode, below: list[list[int]], inputs: list[int]) -> list[int]:
        lists = {"Project": "projectList", "Aggregate": "aggregateExpressions"}
        if node.name in lists:
            return _identities(node.expressions.get(lists[node.name], ()))
        if node.name in _COMMON_TABLES:
            return self._common_table(node, below, inputs)
        if node.name in ("Union", "Intersect", "Except"):
            for other in below[1:]:
                self._pass_on(other, below[0])
            return below[0]
        if "output" in node.fields:
            outputs = _identities(node.expressions.get("output", ()))
            for made in set(outputs) - set(inputs):
                self.facts[made] = self._of(inputs)
            return outputs
        if node.is_half_join:
            return below[0]
        names = ("windowExpressions", "generatorOutput")
        return inputs + _identities(
            tree for name in names for tree in node.expressions.get(name, ())
        )

    def _common_table(self, node: PlanNode, below: list[list[int]], inputs: list[int]) -> list[int]:
        """Return the attributes of a common table expression, or of a reference to one."""
        if node.name == "CTERelationDef":
            self._common[int(node.fields["id"])] = inputs
            return inputs
        if node.name == "WithCTE":
            return below[-1]
        outputs = _identities(node.expressions.get("output", ()))
        self._pass_on(self._common.get(int(node.fields["cteId"]), []), outputs)
        return outputs

    def _pass_on(self, sources: list[int], targets: list[int]) -> None:
        for source, target in zip(sources, targets, strict=False):
            self.facts[target] = self.facts.get(target, _NONE) | self.facts.get(source, _NONE)

    def _judge(self, node: PlanNode, inputs: list[int]) -> None:
        """Report what decides which rows there are."""
        deciding = self._expressions(node, ("condition", "groupingExpressions", "keys"))
        if node.name not in ("Project", "Window"):
            self.found |= deciding
        moving = deciding if node.name in ("Join", "Aggregate", "Deduplicate") else _NONE
        moving |= self._expressions(node, ("partitionExpressions", "partitionSpec"))
        if node.name in ("Distinct", "Intersect", "Except"):
            moving |= self._of(inputs)
        if node.name == "Sort" and node.fields.get("global"):
            moving |= self._expressions(node, ("order",))
        for fact in moving:
            if fact.kind in RANDOM_KINDS:
                word = _MOVES.get(node.name, node.name)
                self.found.add(_fact("random_shuffle", f"{word} by {fact.function}"))
        self.found.update(self._chosen_rows(node, inputs))
        if node.name == "LogicalRelation":
            self.found.add(_fact("unpinned_read", "read of files"))
        # Pinned inputs are read at a version; Spark leaves the field out of a read without one.
        if node.name == "DataSourceV2Relation" and "timeTravelSpec" not in node.fields:
            self.found.add(_fact("unpinned_read", "read of a table"))

    def _chosen_rows(self, node: PlanNode, inputs: list[int]) -> Iterator[PlanFact]:
        """Report operations that keep some rows by the order in which they come."""
        if node.name == "Sample":
            yield _fact("unordered_limit", "sample")
        elif node.name == "Deduplicate":
            if set(inputs) - set(_identities(node.expressions.get("keys", ()))):
                yield _fact("unordered_first", "dropDuplicates")
        elif node.name in ("GlobalLimit", "Offset", "Tail"):
            yield from self._limit(node)

    def _limit(self, node: PlanNode) -> Iterator[PlanFact]:
        limits = [one.fields.get("value") for one in node.expressions.get("limitExpr", ())]
        child = _through(node.children[0], _KEEPING_ORDER)
        if "0" in limits or (child.name == "Aggregate" and not child.fields["groupingExpressions"]):
            return
        if child.name != "Sort":
            yield _fact("unordered_limit", "limit")
        elif not self._is_unique(child.expressions.get("order", ()), child.children[0]):
            yield _fact("tied_rank", "limit of sorted rows")

    def _unique_keys(self, node: PlanNode) -> list[frozenset[int]]:
        if node.name == "Aggregate":
            grouped = frozenset(_identities(node.expressions.get("groupingExpressions", ())))
            return [grouped] if grouped else []
        if node.name == "Deduplicate":
            return [frozenset(_identities(node.expressions.get("keys", ())))]
        if node.name in _KEEPING_KEYS and node.children:
            return self._unique.get(id(node.children[0]), [])
        return []

    def _is_unique(self, trees: Iterable[PlanNode], below: PlanNode) -> bool:
        """Return whether no two rows agree in the plain columns of the expressions."""
        inside = (one for tree in trees for one in tree.walk() if one.name == "AttributeReference")
        ids = frozenset(_identities(inside))
        return any(key <= ids for key in self._unique.get(id(below), []))

    def _of(self, attributes: Iterable[int]) -> Facts:
        return frozenset().union(*(self.facts.get(one, _NONE) for one in attributes))

    def _expressions(self, node: PlanNode, names: tuple[str, ...]) -> Facts:
        found = [
            self._expression(tree, node)
            for name in names
            for tree in node.expressions.get(name, ())
        ]
        return frozenset().union(*found)

    def _expression(self, tree: PlanNode, plan: PlanNode, *, ordered: bool = False) -> Facts:
        """Return what the value of an expression is made of."""
        if tree.name == "AttributeReference":
            return self.facts.get(tree.identity or -1, _NONE)
        if tree.name == "WindowExpression":
            return self._window(tree, plan)
        inner = frozenset().union(
            *(self._expression(child, plan, ordered=ordered) for child in tree.children)
        )
        if tree.name in _ORDERING or tree.name in _ORDERLESS:
            return frozenset(fact for fact in inner if fact.kind != "unordered_collection")
        return inner | frozenset(self._own(tree, plan, ordered=ordered))

    def _own(self, tree: PlanNode, plan: PlanNode, *, ordered: bool) -> Iterator[PlanFact]:
        """Yield what an expression adds by itself."""
        if found := _IMPURE.get(tree.name):
            yield _fact(*found, tree)
        elif tree.name == "PythonUDF" and tree.fields.get("udfDeterministic") is False:
            yield _fact("random_value", str(tree.fields.get("name")), tree)
        elif found := _ARRIVAL.get(tree.name):
            grouped = set(_identities(plan.expressions.get("groupingExpressions", ())))
            is_fixed = set(_identities(tree.walk())) <= grouped or tree.fields.get(
                "orderExpressions"
            )
            if not ordered and not is_fixed:
                yield _fact(*found, tree)
        elif ((name := _MOMENTS.get(tree.name)) and not ordered) or (
            (name := _SUMS.get(tree.name)) and not ordered and _is_float(tree.children[0])
        ):
            yield _fact("float_sum", name, tree)

    def _window(self, tree: PlanNode, plan: PlanNode) -> Facts:
        function, spec = tree.child("windowFunction"), tree.child("windowSpec")
        if function is None or spec is None:
            return _NONE
        order = [spec.children[number] for number in spec.fields.get("orderSpec", ())]
        keys = [spec.children[number] for number in spec.fields.get("partitionSpec", ())]
        inner = self._expression(function, plan, ordered=bool(order))
        inner |= frozenset().union(*(self._expression(one, plan) for one in (*order, *keys)))
        inner |= frozenset(
            _fact("random_shuffle", f"partitionBy by {fact.function}")
            for one in keys
            for fact in self._expression(one, plan)
            if fact.kind in RANDOM_KINDS
        )
        names = {one.name for one in function.walk()}
        name = next((_RANKS[one] for one in sorted(names & _RANKS.keys())), "")
        arrival = next((_ARRIVAL[one][1] for one in sorted(names & _ARRIVAL.keys())), "")
        if (name or (arrival and order)) and not self._is_unique([*order, *keys], plan.children[0]):
            columns = _columns([*keys, *order])
            has_order = any(
                one.name == "AttributeReference" for each in order for one in each.walk()
            )
            severity: Severity = "warn" if has_order else "block"
            inner |= {PlanFact("tied_rank", name or arrival, columns, severity)}
        return inner


_COMMON_TABLES = frozenset({"CTERelationDef", "CTERelationRef", "WithCTE"})
_MOVES = {
    "RepartitionByExpression": "repartition", "Aggregate": "groupBy", "Join": "join",
    "Deduplicate": "dropDuplicates", "Distinct": "distinct", "Sort": "orderBy",
    "Window": "partitionBy",
}  # fmt: skip
_KEEPING_ORDER = ("LocalLimit", "Project", "Filter", "SubqueryAlias", "View")
_KEEPING_KEYS = frozenset(
    {"Project", "Filter", "SubqueryAlias", "View", "Window", "Sort", "RepartitionByExpression",
     "Repartition", "GlobalLimit", "LocalLimit"}
)  # fmt: skip


def _fact(kind: KindName, function: str, tree: PlanNode | None = None) -> PlanFact:
    columns = () if tree is None else _columns(tree.children)
    return PlanFact(kind, function, columns, KINDS[kind].severity)


def _columns(trees: Iterable[PlanNode]) -> tuple[str, ...]:
    found = [
        str(one.fields.get("name"))
        for tree in trees
        for one in tree.walk()
        if one.name == "AttributeReference"
    ]
    return tuple(dict.fromkeys(found))


def _identities(trees: Iterable[PlanNode]) -> list[int]:
    return [tree.identity for tree in trees if tree.identity is not None]


def _through(node: PlanNode, names: tuple[str, ...]) -> PlanNode:
    while node.name in names and node.children:
        node = node.children[0]
    return node


def _is_float(tree: PlanNode) -> bool:
    """Return whether an expression is a floating-point number that may not be a whole one."""
    if tree.name == "Cast" and _type(tree) in _FLOATS:
        child = tree.children[0]
        return _type(child) not in _WHOLE and not _is_whole(child)
    if tree.name == "Literal":
        return False
    kind = _type(tree)
    if kind:
        return kind in _FLOATS
    return not _is_whole(tree) and any(_is_float(child) for child in tree.children)


def _is_whole(tree: PlanNode) -> bool:
    return tree.name in _WHOLE_RESULTS


def _type(tree: PlanNode) -> str:
    found = tree.fields.get("dataType")
    return found if isinstance(found, str) else ""


#: Other names in code for what a plan calls by the name at the left.
_NAMES = {
    "avg": ("avg", "mean"), "stddev": ("stddev", "stddev_samp", "std"),
    "variance": ("variance", "var_samp"), "sum": ("sum", "sum_distinct"),
    "current_date": ("current_date", "curdate"), "collect_list": ("collect_list", "array_agg"),
    "listagg": ("listagg", "string_agg"),
    "first": ("first", "first_value"), "last": ("last", "last_value"),
    "dropDuplicates": ("dropDuplicates", "drop_duplicates"), "limit": ("limit", "head", "take"),
    "sample": ("sample", "sampleBy", "randomSplit", "tablesample"),
    "groupBy": ("groupBy", "groupby", "group"), "orderBy": ("orderBy", "sort", "order"),
    "partitionBy": ("partitionBy", "over", "partition"),
    "repartition": ("repartition", "repartitionByRange", "distribute"),
    "read": ("table", "load", "parquet", "csv", "json", "orc", "sql"),
}  # fmt: skip


def locate_facts(
    facts: Iterable[PlanFact], texts: Mapping[str, str], transform: TransformRef
) -> tuple[Finding, ...]:
    """Return a finding for each fact, with the line of the code that most likely makes it.

    Line 0: the code doesn't name it, as it stands in a package, or is put together at run time.
    """
    lines = list(_code_lines(texts, transform))
    return tuple(_locate(fact, lines, transform.file) for fact in facts)


def _locate(fact: PlanFact, lines: list[tuple[str, int, str, str]], job: str) -> Finding:
    first = fact.function.split()[0]
    names = _NAMES.get(first, (first,))
    found = [one for one in lines if one[2].lower() in (name.lower() for name in names)]
    best = [one for one in found if any(column in one[3] for column in fact.columns)] or found
    file, line = best[0][:2] if best else (job, 0)
    others = "".join(f", or line {other}" for _, other, _, _ in best[1:3])
    return Finding(
        kind=fact.kind, file=file, line=line, found=f"{fact}{others}", severity=fact.severity
    )


def _code_lines(
    texts: Mapping[str, str], transform: TransformRef
) -> Iterator[tuple[str, int, str, str]]:
    """Yield file, line, name and text of each function that the code calls."""
    if transform.file.endswith(".sql"):
        yield from _sql_lines(texts.get(transform.file, ""), transform.file, 1)
        return
    python = {file: text for file, text in texts.items() if file.endswith(".py")}
    if transform.file not in python:
        return
    source = parse_job(python, transform.file)
    reached = source.reached(transform.name, transform.version)
    for use in source.uses_of(reached):
        if use.kind == "call":
            name = use.name.rpartition(".")[2]
            line = getattr(use.node, "end_lineno", use.line) if "." in use.name else use.line
            yield use.file, _call_line(use.node, line), name, ast.unparse(use.node)
    for place in source.places():
        value = place.node.value if isinstance(place.node, ast.Constant) else None
        if isinstance(value, str) and place.scope.definition in reached:
            yield place.file, place.line, value, value
            yield from _sql_lines(value, place.file, place.line)


def _call_line(node: ast.AST, default: int) -> int:
    """Return the line of a method's name, in a chain over several lines."""
    function = getattr(node, "func", None)
    end = getattr(function, "end_lineno", None)
    return end if isinstance(end, int) else default


def _sql_lines(text: str, file: str, first: int) -> Iterator[tuple[str, int, str, str]]:
    for number, row in enumerate(text.splitlines()):
        for match in re.finditer(r"(\w+)", row.partition("--")[0]):
            yield file, first + number, match.group(1), row
