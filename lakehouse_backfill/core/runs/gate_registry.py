"""The registry of gates: name, group, the question that it answers, whether waivable and why not.

People read the question and a verdict; the name is what waivers and stored results know a gate by.

The documentation page of checks lists the same gates, and says when each is judged and whether it
blocks. The results of the gates are compared with both.

`REPORTABLE_GATES` lists the gates that a run manifest may turn into a report (`validation.gates`).
The others guard what a publication rests on: chunks, scope, stored rows, schema.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult
from lakehouse_backfill.domain.run import EDGES_DETAIL


class GateSpec(NamedTuple):
    """One gate; capital words of its name are placeholders, an empty `why_not` means waivable."""

    name: str
    group: CheckGroup
    question: str
    why_not: str = ""


_NOT_COMPUTED = (
    "its rows would be published although they are not what was computed; plan --revise, and "
    "stage again"
)

GATES = (
    GateSpec("SOURCE has rows in every PERIOD", "input", "Does SOURCE have rows in every PERIOD?"),
    GateSpec("INPUT: EXPECTATION", "input", "Does INPUT meet this: EXPECTATION?"),
    GateSpec("TEXT", "input", "Does the input hold what is assumed: TEXT?"),
    GateSpec(
        "chunk rows are all stored",
        "technical",
        "Is every computed row of the chunk stored?",
        _NOT_COMPUTED,
    ),
    GateSpec(
        "rows lie inside the chunk", "technical", "Does every computed row lie inside the chunk?"
    ),
    GateSpec(
        "rows are those of the row predicate",
        "technical",
        "Does every computed row match the row predicate?",
    ),
    GateSpec("keys have no nulls", "technical", "Does every row have a whole key?"),
    GateSpec("row count is in range", "technical", "Is the number of rows in its range?"),
    GateSpec("rejected rows are in range", "technical", "Is the share of rejected rows allowed?"),
    GateSpec("no partition becomes empty", "technical", "Does every partition keep rows?"),
    GateSpec("keys are unique", "diff", "Is every key unique?"),
    GateSpec("EXPECTATION", "quality", "Does the output meet this: EXPECTATION?"),
    GateSpec(
        "all chunks are staged",
        "technical",
        "Is every chunk staged?",
        "a part of the restatement would be missing; lakehouse-backfill run goes on with it",
    ),
    GateSpec(
        "nothing outside the partitions changed",
        "technical",
        "Is everything outside the partitions unchanged?",
        "the run may change its own partitions only; nothing else was approved",
    ),
    GateSpec("the run wrote only its shadow", "technical", "Did the run write its shadow only?"),
    GateSpec("files have a sensible size", "technical", "Do the files have a sensible size?"),
    GateSpec("lineage is complete", "technical", "Does every row name the run that made it?"),
    GateSpec(
        "no deleted row is written",
        "technical",
        "Do deleted rows stay deleted?",
        "a row that somebody had deleted would come back; stage again",
    ),
    GateSpec(
        "masked columns hold masked values only",
        "technical",
        "Do masked columns hold masked values only?",
        "raw values of restricted columns would be published; stage again",
    ),
    GateSpec(
        "columns that consumers rely on",
        "schema",
        "Are the columns there that consumers rely on?",
        "it is what the contract promises to consumers; change the contract with them, plan again",
    ),
    GateSpec(
        "stored rows are the computed rows",
        "reconciliation",
        "Are the stored rows the computed rows?",
        _NOT_COMPUTED,
    ),
    GateSpec(
        "other rows are unchanged",
        "reconciliation",
        "Are the rows that the predicate does not name unchanged?",
        "rows that nobody declared would change; plan --revise, and stage again",
    ),
    GateSpec(
        "other columns are unchanged",
        "reconciliation",
        "Are all other columns as before?",
        "columns that nobody declared would change; plan --revise, and stage again",
    ),
    GateSpec(
        "the same keys are there",
        "reconciliation",
        "Are the same rows there as before?",
        "rows would come or go, although only columns are restated; plan --revise, and stage again",
    ),
    GateSpec(
        "changes add up",
        "reconciliation",
        "Do the changes add up?",
        "rows would come or go that no change asked for; plan --revise, and stage again",
    ),
    GateSpec(
        "MEASURE of the candidate equals COLUMN of SOURCE",
        "reconciliation",
        "Does MEASURE of the candidate equal COLUMN of SOURCE?",
    ),
    GateSpec(
        "MEASURE of each partition equals COLUMN of SOURCE",
        "reconciliation",
        "Does MEASURE of each partition equal COLUMN of SOURCE?",
    ),
    GateSpec(
        "diff and counts agree",
        "diff",
        "Do diff and counts agree?",
        "the diff that people decide on would not be of these rows; validate again",
    ),
    GateSpec(
        "only named columns differ",
        "diff",
        "Do only the named columns differ?",
        "columns that nobody declared would change; plan --revise, and stage again",
    ),
    GateSpec(
        "MEASURE changes by at most SHARE", "business", "Does MEASURE change by at most SHARE?"
    ),
    GateSpec(
        "MEASURE changes by at most SHARE in each partition",
        "business",
        "Does MEASURE change by at most SHARE in each partition?",
    ),
    GateSpec(
        "MEASURE is like that of earlier partitions",
        "anomaly",
        "Is MEASURE like that of earlier partitions?",
    ),
    GateSpec("values are spread as before", "distribution", "Are values spread as before?"),
    GateSpec("edges are closed", "edge", "Does anything beyond the range change?"),
    GateSpec("FILE", "golden", "Are the rows of FILE as expected?"),
    GateSpec("spot checks", "golden", "Are the spot checks as expected?"),
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
    judged: bool = True,
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
        judged=judged,
    )


def fault_count_result(
    name: str, faults: int, detail: str, *, blocking: bool = True
) -> CheckResult:
    """Build the result of a registered gate that passes when it counts no fault."""
    return gate_result(
        name, passed=not faults, detail=detail, observed=faults, limit=0, blocking=blocking
    )


Verdict = Literal["passed", "failed", "waived", "failed without blocking", "not judged"]
#: In the order in which they are counted.
_VERDICTS: tuple[Verdict, ...] = ("failed", "waived", "failed without blocking", "not judged")


def find_verdict(check: CheckResult, *, is_waived: bool = False) -> Verdict:
    """Return the verdict of a check; one that looked at nothing is not called passed."""
    if check.passed:
        return "passed" if check.is_judged else "not judged"
    if not check.blocking:
        return "failed without blocking"
    return "waived" if is_waived else "failed"


def count_verdicts(verdicts: Iterable[Verdict], of: str = "") -> str:
    """Describe how many of all checks, or those `of` something, passed; what became of others."""
    counts = Counter(verdicts)
    others = [f"{counts[one]:,} {one}" for one in _VERDICTS if counts[one]]
    what = f"checks of {of}" if of else "checks"
    passed = f"{counts['passed']:,} of {counts.total():,} {what} passed"
    return ", ".join([passed, *others])


def gate_question(name: str, group: str = "") -> str:
    """Return the question that a gate of this name answers; the name itself where none is known.

    Without a group, names that any text may be are no gate's.
    """
    exact = [gate for gate in GATES if gate.name == name]
    for gate in exact or GATES:
        words = _PLACEHOLDER.findall(gate.name)
        if group not in ("", gate.group) or (not group and gate.name in words):
            continue
        if found := _name_pattern(gate.name).fullmatch(name):
            return _fill(gate.question, dict(zip(words, found.groups(), strict=True)))
    return name


def with_questions(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the detail of an event with questions in place of the names of gates.

    Of checksums beyond the edges it says how many there are.
    """
    group = str(detail.get("group") or "")
    told = dict(detail)
    if edges := told.pop(EDGES_DETAIL, None):
        told["computed beyond the edges"] = f"{len(edges)} partitions"
    if isinstance(told.get("gate"), str):
        told["gate"] = gate_question(told["gate"], group)
    if isinstance(told.get("failed"), (list, tuple)):
        told["failed"] = [gate_question(str(name)) for name in told["failed"]]
    return told


def _fill(question: str, texts: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda word: texts[word[0]].rstrip(".?"), question)


_PLACEHOLDER = re.compile(r"[A-Z]{4,}")


@cache
def _name_pattern(name: str) -> re.Pattern[str]:
    return re.compile(_PLACEHOLDER.sub("(.+)", re.escape(name)), re.DOTALL)


def check_title(check: CheckResult) -> str:
    """Return the question that a check answers, or its own name."""
    return gate_question(check.name, check.group)


def describe_checks(checks: Iterable[CheckResult]) -> str:
    """Return what checks asked, and what they found, in one line."""
    titles = ((check_title(check), check.detail) for check in checks)
    return "; ".join(
        f"{title} {detail}" if title.endswith("?") else f"{title}: {detail}"
        for title, detail in titles
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
    "rejects": GateSelector("technical", "rejected rows are in range"),
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
