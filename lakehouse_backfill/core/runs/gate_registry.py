"""The registry of gates: name, group, whether waivable and why not.

The documentation page of checks lists the same gates, and says when each is judged and whether it
blocks. The results of the gates are compared with both.

`REPORTABLE_GATES` lists the gates that a run manifest may turn into a report (`validation.gates`).
The others guard what a publication rests on: chunks, scope, stored rows, schema.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult


class GateSpec(NamedTuple):
    """One gate; capital words of its name are placeholders, an empty `why_not` means waivable."""

    name: str
    group: CheckGroup
    why_not: str = ""


_NOT_COMPUTED = (
    "its rows would be published although they are not what was computed; plan --revise, and "
    "stage again"
)

GATES = (
    GateSpec("SOURCE has rows in every PERIOD", "input"),
    GateSpec("INPUT: EXPECTATION", "input"),
    GateSpec("TEXT", "input"),
    GateSpec("chunk rows are all stored", "technical", _NOT_COMPUTED),
    GateSpec("rows lie inside the chunk", "technical"),
    GateSpec("rows are those of the row predicate", "technical"),
    GateSpec("keys have no nulls", "technical"),
    GateSpec("row count is in range", "technical"),
    GateSpec("no partition becomes empty", "technical"),
    GateSpec("keys are unique", "diff"),
    GateSpec("EXPECTATION", "quality"),
    GateSpec(
        "all chunks are staged",
        "technical",
        "a part of the restatement would be missing; lakehouse-backfill run goes on with it",
    ),
    GateSpec(
        "nothing outside the partitions changed",
        "technical",
        "the run may change its own partitions only; nothing else was approved",
    ),
    GateSpec("the run wrote only its shadow", "technical"),
    GateSpec("files have a sensible size", "technical"),
    GateSpec("lineage is complete", "technical"),
    GateSpec(
        "no deleted row is written",
        "technical",
        "a row that somebody had deleted would come back; stage again",
    ),
    GateSpec(
        "masked columns hold masked values only",
        "technical",
        "raw values of restricted columns would be published; stage again",
    ),
    GateSpec(
        "columns that consumers rely on",
        "schema",
        "it is what the contract promises to consumers; change the contract with them, plan again",
    ),
    GateSpec("stored rows are the computed rows", "reconciliation", _NOT_COMPUTED),
    GateSpec(
        "other rows are unchanged",
        "reconciliation",
        "rows that nobody declared would change; plan --revise, and stage again",
    ),
    GateSpec(
        "changes add up",
        "reconciliation",
        "rows would come or go that no change asked for; plan --revise, and stage again",
    ),
    GateSpec("MEASURE of the candidate equals COLUMN of SOURCE", "reconciliation"),
    GateSpec("MEASURE of each partition equals COLUMN of SOURCE", "reconciliation"),
    GateSpec(
        "diff and counts agree",
        "diff",
        "the diff that people decide on would not be of these rows; validate again",
    ),
    GateSpec("MEASURE changes by at most SHARE", "business"),
    GateSpec("MEASURE changes by at most SHARE in each partition", "business"),
    GateSpec("MEASURE is like that of earlier partitions", "anomaly"),
    GateSpec("values are spread as before", "distribution"),
    GateSpec("edges are closed", "edge"),
    GateSpec("FILE", "golden"),
    GateSpec("spot checks", "golden"),
)


_GATES_BY_NAME = {gate.name: gate for gate in GATES}


def gate_result(
    name: str,
    *,
    passed: bool,
    detail: str,
    observed: Any = None,
    limit: Any = None,
    blocking: bool = True,
) -> CheckResult:
    """Build the result of a registered gate, which has a fixed name; its group is the gate's."""
    gate = _GATES_BY_NAME[name]
    return CheckResult(
        name=name,
        group=gate.group,
        passed=passed,
        detail=detail,
        observed=observed,
        limit=limit,
        blocking=blocking,
        waivable=not gate.why_not,
    )


def fault_count_result(
    name: str, faults: int, detail: str, *, blocking: bool = True
) -> CheckResult:
    """Build the result of a registered gate that passes when it counts no fault."""
    return gate_result(
        name, passed=not faults, detail=detail, observed=faults, limit=0, blocking=blocking
    )


def why_not_waivable(check: CheckResult) -> str:
    """Return why a check may not be waived; empty when it may."""
    if check.waivable:
        return ""
    reasons = (
        gate.why_not for gate in GATES if (gate.name, gate.group) == (check.name, check.group)
    )
    return next(reasons, "it guards the data itself")


class GateSelector(NamedTuple):
    """The results that a manifest name selects: all of a group, or one gate of it."""

    group: CheckGroup
    name: str | None = None


REPORTABLE_GATES: dict[str, GateSelector] = {
    "emptied_partitions": GateSelector("technical", "no partition becomes empty"),
    "row_count": GateSelector("technical", "row count is in range"),
    "file_sizes": GateSelector("technical", "files have a sensible size"),
    "lineage": GateSelector("technical", "lineage is complete"),
    "key_nulls": GateSelector("technical", "keys have no nulls"),
    "keys_unique": GateSelector("diff", "keys are unique"),
    "thresholds": GateSelector("business"),
    "suites": GateSelector("quality"),
    "edges": GateSelector("edge"),
    "golden": GateSelector("golden"),
    "anomalies": GateSelector("anomaly"),
    "distributions": GateSelector("distribution"),
}


def apply_gate_choices(
    results: list[CheckResult], wanted: dict[str, Literal["block", "report"]]
) -> list[CheckResult]:
    """Return the results with the gates that the manifest sets to `report` as non-blocking.

    A result that is not waivable stays blocking.
    """
    reported = [REPORTABLE_GATES[name] for name, choice in wanted.items() if choice == "report"]
    return [
        result.model_copy(update={"blocking": False})
        if result.waivable and any(_is_selected(result, gate) for gate in reported)
        else result
        for result in results
    ]


def _is_selected(result: CheckResult, gate: GateSelector) -> bool:
    return result.group == gate.group and gate.name in (None, result.name)
