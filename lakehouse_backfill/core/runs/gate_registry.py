"""The registry of gates: name, when judged, whether blocking, whether waivable and why not.

The documentation page of checks is compared with this list, and so are the results of the gates.

`REPORTABLE_GATES` lists the gates that a run manifest may turn into a report (`validation.gates`).
The others guard what a publication rests on: chunks, scope, stored rows, schema.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import ConfigError


class GateSpec(NamedTuple):
    """One gate; capital words are placeholders, an empty `why_not` means waivable."""

    name: str
    group: CheckGroup
    when: str
    blocking: str
    about: str
    why_not: str = ""


_NOT_COMPUTED = (
    "its rows would be published although they are not what was computed; plan --revise, and "
    "stage again"
)

GATES: tuple[GateSpec, ...] = (
    GateSpec(
        "SOURCE has rows in every PERIOD", "input", "input", "when `complete` is declared",
        "hours, days or months that the run reads, warm-up included, without a row",
    ),
    GateSpec(
        "INPUT: EXPECTATION", "input", "input", "severity `critical`",
        "suites `on` a source or reference",
    ),
    GateSpec(
        "TEXT", "input", "input", "yes",
        "an assumption of the contract, under its own words: its suite",
    ),
    GateSpec(
        "chunk rows are all stored", "technical", "chunk", "yes",
        "the shadow holds as many rows of the chunk as were computed", _NOT_COMPUTED,
    ),
    GateSpec(
        "rows lie inside the chunk", "technical", "chunk", "when no row lies inside",
        "a job without warm-up computes no rows of other partitions",
    ),
    GateSpec(
        "rows are those of the row predicate", "technical", "chunk", "with `row_predicate`",
        "a job without warm-up computes no other rows of the partitions",
    ),
    GateSpec(
        "keys have no nulls", "technical", "chunk", "yes", "nulls in columns of the key",
    ),
    GateSpec(
        "row count is in range", "technical", "chunk, result", "yes",
        "rows so far against `safety.max_rows`; the result is not empty",
    ),
    GateSpec(
        "no partition becomes empty", "technical", "chunk, result", "yes",
        "a partition that readers see rows in holds some in the candidate too",
    ),
    GateSpec(
        "keys are unique", "diff", "chunk, result", "yes", "keys that stand twice",
    ),
    GateSpec(
        "EXPECTATION", "quality", "chunk, result", "severity `critical`",
        "suites `on` output; of a chunk only what holds row by row",
    ),
    GateSpec(
        "all chunks are staged", "technical", "result", "yes",
        "each chunk of the plan is done in the ledger",
        "a part of the restatement would be missing; lakehouse-backfill run goes on with it",
    ),
    GateSpec(
        "nothing outside the partitions changed", "technical", "result", "yes",
        "the files of all other partitions are those of the base",
        "the run may change its own partitions only; nothing else was approved",
    ),
    GateSpec(
        "the run wrote only its shadow", "technical", "result", "yes",
        "no commit to another table, since staging began, by the application that staged",
    ),
    GateSpec(
        "files have a sensible size", "technical", "result", "yes",
        "no partition consists of many small files",
    ),
    GateSpec(
        "lineage is complete", "technical", "result", "yes",
        "each row says which run made it, where the table has lineage columns",
    ),
    GateSpec(
        "no deleted row is written", "technical", "result",
        "when tombstones are declared, or rows were deleted live",
        "no row that tombstones name, or that was deleted on the target since the pin",
        "a row that somebody had deleted would come back; stage again",
    ),
    GateSpec(
        "columns that consumers rely on", "schema", "result", "yes",
        "columns of the contract, with type and nullability",
        "it is what the contract promises to consumers; change the contract with them, plan again",
    ),
    GateSpec(
        "stored rows are the computed rows", "reconciliation", "result", "`checksum: required`",
        "checksum of each chunk, computed against stored", _NOT_COMPUTED,
    ),
    GateSpec(
        "other rows are unchanged", "reconciliation", "result", "with `row_predicate`",
        "count and checksum of the rows that it does not name, all columns, in each partition",
        "rows that nobody declared would change; plan --revise, and stage again",
    ),
    GateSpec(
        "changes add up", "reconciliation", "result", "with publish mode `merge`",
        "old rows, plus keys inserted, minus keys deleted, are the candidate's rows",
        "rows would come or go that no change asked for; plan --revise, and stage again",
    ),
    GateSpec(
        "MEASURE of the candidate equals COLUMN of SOURCE", "reconciliation", "result", "yes",
        "`source_totals` of the contract",
    ),
    GateSpec(
        "MEASURE of each partition equals COLUMN of SOURCE", "reconciliation", "result", "yes",
        "`source_totals` of the contract that name a `partition`",
    ),
    GateSpec(
        "diff and counts agree", "diff", "result", "yes",
        "the diff saw exactly the rows that were counted",
        "the diff that people decide on would not be of these rows; validate again",
    ),
    GateSpec(
        "MEASURE changes by at most SHARE", "business", "result", "yes",
        "`thresholds` of the contract; the waiver is the owner's recorded review",
    ),
    GateSpec(
        "MEASURE changes by at most SHARE in each partition", "business", "result", "yes",
        "the same, partition by partition: `each_partition`",
    ),
    GateSpec(
        "MEASURE is like that of earlier partitions", "anomaly", "result",
        "with `watch.anomalies: block`",
        "row count and measures of each partition: robust z over 8 to 16 earlier ones",
    ),
    GateSpec(
        "values are spread as before", "distribution", "result",
        "with `watch.distributions: block`",
        "each column, old against new: PSI of categories, KS of numbers",
    ),
    GateSpec(
        "edges are closed", "edge", "result", "yes",
        "partitions beyond the range come out as they are accepted",
    ),
    GateSpec("FILE", "golden", "result", "yes", "rows of the golden file"),
    GateSpec("spot checks", "golden", "result", "yes", "named records"),
)  # fmt: skip


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


def require_known_gates(manifest: RunManifest) -> None:
    """Raise ConfigError for a gate that does not exist or may not be turned into a report."""
    for name in manifest.validation.gates:
        if name not in REPORTABLE_GATES:
            raise ConfigError(
                f"validation.gates.{name} is no gate that a run manifest may name",
                fix=f"use one of: {', '.join(REPORTABLE_GATES)}",
                field=f"validation.gates.{name}",
            )


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
