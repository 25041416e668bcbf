"""Whether restricted columns of inputs travel, under any name, to columns of a lower class.

Catalyst's analysed plan tells which columns of inputs each column of an output is made of:
attributes are followed by id through aliases, expressions, joins, aggregates, unions, windows,
generators, subqueries and functions in Python. What the walk does not know counts as made of all
columns below it; a leaf that is no table, as made of all restricted columns of all inputs.

Values flow; conditions do not: a filter, a join or a grouping by a restricted column decides which
rows there are, and is not reported. Numbers of rows and of nulls are no values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from lakehouse_backfill.core.guards.plan_nodes import PlanNode, read_plan
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.plan import Plan, ResolvedManifest, SourcePin
from lakehouse_backfill.domain.run import REJECT_REASON
from lakehouse_backfill.errors import Blocked

#: Evidence of a run with masks: the column of an input that each column of the output copies, in
#: all chunks.
COPIED_COLUMNS = "copied columns"
#: By column of the output, the restricted columns of inputs (`input.column`) that it is made of.
ColumnFlow = Mapping[str, tuple[str, ...]]


def hidden_columns(pin: SourcePin) -> frozenset[str]:
    """Return the restricted columns of an input, in lower case."""
    declared = pin.privacy
    if declared is None:
        return frozenset()
    return frozenset(
        column.name.casefold()
        for column in pin.columns
        if declared.class_of(column.name) == "restricted"
    )


def restricted_flow(resolved: ResolvedManifest, plan_json: str | None) -> ColumnFlow:
    """Return what the columns of an output are made of, by the analysed plan of its transform.

    Without a plan, all columns count as made of all restricted columns.
    """
    inputs = _traced_inputs(resolved)
    if not all_origins(inputs):
        return {}
    if plan_json is None:
        found = {column.name: all_origins(inputs) for column in resolved.contract.columns}
    else:
        found = trace_columns(plan_json, inputs)
    return {name: tuple(sorted(origins)) for name, origins in found.items() if origins}


def copied_columns(resolved: ResolvedManifest, plan_json: str | None) -> dict[str, str]:
    """Return, by column of the output, the column of an input (`input.column`) that it copies.

    Empty where nothing is masked, and without a plan: `plan_lineage.trace_copies`.
    """
    if plan_json is None or not resolved.contract.masked_columns:
        return {}
    return trace_copies(plan_json, _traced_inputs(resolved))


def copies_of_run(context: Context, plan: Plan) -> dict[str, str] | None:
    """Return what the columns of a run copy in all chunks that were judged; None: none was."""
    recorded = context.evidence.newest(plan.run_id, COPIED_COLUMNS)
    return dict(recorded[1]["columns"]) if recorded else None


def _traced_inputs(resolved: ResolvedManifest) -> tuple[TracedInput, ...]:
    return tuple(
        TracedInput(
            name=pin.name,
            columns=frozenset(column.name.casefold() for column in pin.columns),
            restricted=hidden_columns(pin),
        )
        for pin in resolved.sources
    )


def waived_columns(resolved: ResolvedManifest) -> frozenset[str]:
    """Return the columns that a person lets hold restricted values in this run, in lower case."""
    return frozenset(one.column.casefold() for one in resolved.manifest.safety.restricted_flows)


def require_declared_flow(resolved: ResolvedManifest, flow: ColumnFlow, *, state: str) -> None:
    """Raise Blocked, naming each, for columns of a lower class that hold restricted values.

    A column is as high when it is restricted itself, or masked. The flag of deleted keys in a merge
    is not stored, and of reasons to reject a row only those that stand in the job's code.
    """
    contract, merge = resolved.contract, resolved.manifest.target.merge
    accepted = {name.casefold() for name in contract.restricted_columns} | waived_columns(resolved)
    accepted.add(REJECT_REASON)
    if merge is not None and merge.deleted is not None:
        accepted |= {merge.deleted.casefold()}
    low = {
        name: origins
        for name, origins in flow.items()
        if name.casefold() not in accepted and contract.class_of(name) != "restricted"
    }
    if low:
        texts = [
            f"{name} (of class {contract.class_of(name) or 'none'}) is made of {', '.join(origins)}"
            for name, origins in low.items()
        ]
        raise Blocked(
            f"restricted columns would travel to {len(low)} columns of a lower class: "
            + "; ".join(texts),
            state=state,
            fix="leave these columns out; mask them, or declare them as restricted, under "
            f"privacy.columns in catalog/contracts/{contract.product}.yaml; or write "
            "safety.restricted_flows (column, by, reason) in the run manifest, which whoever "
            "approves the run sees; and plan again",
        )


#: Restricted columns of inputs, as `input.column`.
Origins = frozenset[str]
_NOTHING: Origins = frozenset()


class TracedInput(NamedTuple):
    """An input: the names of its columns and of its restricted ones, in lower case."""

    name: str
    columns: frozenset[str]
    restricted: frozenset[str]

    def origins(self, columns: Collection[str]) -> Origins:
        """Return those of the columns that are restricted, with the input's name."""
        return frozenset(f"{self.name}.{one}" for one in self.restricted.intersection(columns))


#: Plans whose columns are those of their children, besides those that they name.
_KNOWN = frozenset(
    {"Project", "Aggregate", "Window", "Generate", "Union", "Intersect", "Except", "Join",
     "LateralJoin", "AsOfJoin", "Filter", "Sort", "SubqueryAlias", "View", "GlobalLimit",
     "LocalLimit", "Offset", "Tail", "Sample", "Distinct", "Deduplicate", "Repartition",
     "RepartitionByExpression", "RebalancePartitions", "WithCTE", "CTERelationDef",
     "CTERelationRef", "ResolvedHint", "CollectMetrics"}
)  # fmt: skip
#: Plans whose columns have the names, and ids, of the first child's.
_FIRST_NAMES = frozenset({"Union", "Intersect", "Except"})
_LISTS = {"Project": "projectList", "Aggregate": "aggregateExpressions"}
_MAKING = ("projectList", "aggregateExpressions", "windowExpressions")
_TABLES = frozenset({"DataSourceV2Relation", "LogicalRelation", "HiveTableRelation"})
_WITHOUT_VALUES = frozenset({"OneRowRelation", "Range"})
#: Expressions that tell how many there are.
_COUNTS = frozenset({"Count", "IsNull", "IsNotNull", "RowNumber", "NTile"})


def trace_columns(plan_json: str, inputs: Iterable[TracedInput]) -> dict[str, Origins]:
    """Return, by column of the output in lower case, the restricted columns it is made of."""
    walk = _LineageWalk(tuple(inputs))
    found: dict[str, Origins] = {}
    for attribute in walk.visit(read_plan(plan_json)):
        name = walk.names.get(attribute, "")
        found[name] = found.get(name, _NOTHING) | walk.of([attribute])
    return found


def trace_copies(plan_json: str, inputs: Iterable[TracedInput]) -> dict[str, str]:
    """Return the columns of the output that are one column of one input, as `input.column`.

    By name of the output's column in lower case. A column that an expression makes, or that may
    come from several columns, is left out.
    """
    walk = _LineageWalk(tuple(inputs))
    found: dict[str, str] = {}
    outputs = walk.visit(read_plan(plan_json))
    names = [walk.names.get(one, "") for one in outputs]
    for attribute, name in zip(outputs, names, strict=True):
        copied = walk.copies.get(attribute, _NOTHING)
        if len(copied) == 1 and names.count(name) == 1:
            found[name] = next(iter(copied))
    return found


def all_origins(inputs: Iterable[TracedInput]) -> Origins:
    """Return all restricted columns of all inputs."""
    return _NOTHING.union(*(one.origins(one.restricted) for one in inputs))


class _LineageWalk:
    """Walks a plan from its leaves upwards.

    `names` holds the name of each attribute, `copies` the columns of inputs that it may be a copy
    of; none for one that is made by an expression.
    """

    def __init__(self, inputs: tuple[TracedInput, ...]) -> None:
        self.names: dict[int, str] = {}
        self.copies: dict[int, Origins] = {}
        self._origins: dict[int, Origins] = {}
        self._inputs = inputs
        self._everything = all_origins(inputs)
        self._common: dict[int, list[int]] = {}

    def visit(self, root: PlanNode) -> list[int]:
        """Trace a plan and all below it; return the attributes that it yields."""
        outputs: dict[int, list[int]] = {}
        for node in root.children_first():
            outputs[id(node)] = self._visit(node, [outputs[id(child)] for child in node.children])
        return outputs[id(root)]

    def of(self, attributes: Iterable[int]) -> Origins:
        """Return what attributes are made of; one that nothing has made, of everything."""
        return _NOTHING.union(*(self._origins.get(one, self._everything) for one in attributes))

    def _visit(self, node: PlanNode, below: list[list[int]]) -> list[int]:
        if not node.children:
            return self._leaf(node)
        inputs = [attribute for outputs in below for attribute in outputs]
        self._define(node)
        if node.name in _LISTS:
            return self._identities(node, (_LISTS[node.name],))
        if node.name in _FIRST_NAMES:
            for other in below[1:]:
                self._pass_on(other, below[0])
            return below[0]
        if node.name == "WithCTE" or node.is_half_join:
            return below[0 if node.is_half_join else -1]
        if "output" in node.fields:
            return self._new_outputs(node, inputs)
        return self._passed_through(node, inputs)

    def _passed_through(self, node: PlanNode, inputs: list[int]) -> list[int]:
        if node.name == "CTERelationDef":
            self._common[int(node.fields["id"])] = inputs
        if node.name == "LateralJoin":
            inputs = inputs + [one for plan in node.subplans for one in self.visit(plan)]
        if node.name not in _KNOWN:
            self._make_of_all(node, inputs)
        return inputs + self._identities(node, ("windowExpressions", "generatorOutput"))

    def _leaf(self, node: PlanNode) -> list[int]:
        if node.name == "CTERelationRef":
            return self._common_reference(node)
        trees = [tree for tree in node.expressions.get("output", ()) if tree.identity is not None]
        names = {_name(tree) for tree in trees}
        alike = [one for one in self._inputs if one.columns == names]
        same = alike or list(self._inputs)
        for tree in trees:
            if node.name in _TABLES:
                made = _NOTHING.union(*(one.origins([_name(tree)]) for one in same))
                copied = frozenset(f"{one.name}.{_name(tree)}" for one in alike)
            else:
                made = _NOTHING if node.name in _WITHOUT_VALUES else self._everything
                copied = _NOTHING
            self._record(tree, made, copied)
        return self._identities(node, ("output",))

    def _common_reference(self, node: PlanNode) -> list[int]:
        outputs = self._identities(node, ("output",))
        common = self._common.get(int(node.fields["cteId"]))
        # A reference into its own definition, as recursion makes it, is not followed.
        if common is None or len(common) != len(outputs):
            common = [-1] * len(outputs)
        self._pass_on(common, outputs)
        for source, target in zip(common, outputs, strict=True):
            self.copies[target] = self.copies.get(source, _NOTHING)
        return outputs

    def _define(self, node: PlanNode) -> None:
        """Record what the attributes that a node makes are made of."""
        for name in _MAKING:
            for tree in node.expressions.get(name, ()):
                if tree.identity is not None and tree.name != "AttributeReference":
                    self._record(tree, self._expression(tree), self._renamed(tree))
        if node.name == "Generate":
            made = self._expressions(node.expressions.get("generator", ()))
            for tree in node.expressions.get("generatorOutput", ()):
                self._record(tree, made)

    def _new_outputs(self, node: PlanNode, inputs: list[int]) -> list[int]:
        """Trace a function over rows: what it makes may hold any value of them."""
        for tree in node.expressions.get("output", ()):
            if tree.identity not in inputs:
                self._record(tree, self.of(inputs))
        return self._identities(node, ("output",))

    def _make_of_all(self, node: PlanNode, inputs: list[int]) -> None:
        """Count all columns of a plan that is not known as made of all columns below it."""
        made = self.of(inputs)
        for attribute in inputs:
            self._origins[attribute], self.copies[attribute] = made, _NOTHING
        for trees in node.expressions.values():
            for tree in trees:
                if tree.identity is not None and tree.identity not in inputs:
                    self._record(tree, made)

    def _pass_on(self, sources: list[int], targets: list[int]) -> None:
        for source, target in zip(sources, targets, strict=False):
            self._origins[target] = self._origins.get(target, _NOTHING) | self.of([source])
            ours, theirs = (self.copies.get(one, _NOTHING) for one in (target, source))
            # Of two sides of a union, one that an expression makes leaves no copy.
            self.copies[target] = ours | theirs if ours and theirs else _NOTHING

    def _renamed(self, tree: PlanNode) -> Origins:
        """Return what an alias of a single attribute is a copy of."""
        child = tree.children[0] if tree.name == "Alias" and len(tree.children) == 1 else None
        if child is None or child.name != "AttributeReference" or child.identity is None:
            return _NOTHING
        return self.copies.get(child.identity, _NOTHING)

    def _record(self, tree: PlanNode, made: Origins, copied: Origins = _NOTHING) -> None:
        if tree.identity is not None:
            self._origins[tree.identity] = made
            self.copies[tree.identity] = copied
            self.names[tree.identity] = _name(tree)

    def _identities(self, node: PlanNode, names: tuple[str, ...]) -> list[int]:
        trees = [tree for name in names for tree in node.expressions.get(name, ())]
        for tree in trees:
            if tree.identity is not None:
                self.names.setdefault(tree.identity, _name(tree))
        return [tree.identity for tree in trees if tree.identity is not None]

    def _expressions(self, trees: Iterable[PlanNode]) -> Origins:
        return _NOTHING.union(*(self._expression(tree) for tree in trees))

    def _expression(self, tree: PlanNode) -> Origins:
        """Return what the value of an expression is made of."""
        if tree.name == "AttributeReference":
            return self.of([-1 if tree.identity is None else tree.identity])
        if tree.name in _COUNTS:
            return _NOTHING
        if tree.name == "WindowExpression" and (function := tree.child("windowFunction")):
            return self._expression(function)
        if tree.name == "BoundReference" or tree.name.startswith("Unresolved"):
            return self._everything
        made = self._expressions(tree.children)
        for trees in tree.expressions.values():
            # What a subquery takes from the query around it is in a field of its own.
            made |= self._expressions(trees)
        for plan in tree.subplans:
            made |= self.of(self.visit(plan))
        return made


def _name(tree: PlanNode) -> str:
    return str(tree.fields.get("name", "")).casefold()
