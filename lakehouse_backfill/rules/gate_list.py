"""Every gate by name: when it is judged, whether it blocks, whether it may be waived and why not.

The page of checks is compared with this list, and the results of the gates are too.
"""

from __future__ import annotations

from typing import NamedTuple

from lakehouse_backfill.model.checks import CheckGroup, CheckResult


class Listed(NamedTuple):
    """One gate. Words in capitals stand for what the run says there; no `why_not`: waivable."""

    name: str
    group: CheckGroup
    when: str
    blocking: str
    why_not: str = ""


_STAGE_AGAIN = (
    "its rows would be published although they are not what was computed; plan --revise, and "
    "stage again"
)

GATES: tuple[Listed, ...] = (
    Listed("INPUT: EXPECTATION", "input", "input", "severity `critical`"),
    Listed("SOURCE has rows in every PERIOD", "input", "input", "`complete` is declared"),
    Listed("TEXT of an assumption", "input", "input", "yes"),
    Listed("chunk rows are all stored", "technical", "chunk", "yes", _STAGE_AGAIN),
    Listed("row count is in range", "technical", "chunk, result", "yes"),
    Listed("no partition becomes empty", "technical", "chunk, result", "yes"),
    Listed("rows lie inside the chunk", "technical", "chunk", "when no row lies inside, and no warm-up is declared"),
    Listed("keys have no nulls", "technical", "chunk", "yes"),
    Listed("keys are unique", "diff", "chunk, result", "yes"),
    Listed("EXPECTATION", "quality", "chunk, result", "severity `critical`"),
    Listed(
        "all chunks are staged", "technical", "result", "yes",
        "a part of the restatement would be missing; lakehouse-backfill run goes on with it",
    ),
    Listed(
        "nothing outside the partitions changed", "technical", "result", "yes",
        "the run may change its own partitions only; nothing else was approved",
    ),
    Listed("files have a sensible size", "technical", "result", "yes"),
    Listed("lineage is complete", "technical", "result", "yes"),
    Listed(
        "columns that consumers rely on", "schema", "result", "yes",
        "it is what the contract promises to consumers; change the contract with them, plan again",
    ),
    Listed(
        "stored rows are the computed rows", "reconciliation", "result", "`checksum: required`",
        _STAGE_AGAIN,
    ),
    Listed("MEASURE of the candidate equals COLUMN of SOURCE", "reconciliation", "result", "yes"),
    Listed(
        "diff and counts agree", "diff", "result", "yes",
        "the diff that people decide on would not be of these rows; validate again",
    ),
    Listed("MEASURE changes by at most SHARE", "business", "result", "yes"),
    Listed("edges are closed", "edge", "result", "yes"),
    Listed("FILE with golden rows", "golden", "result", "yes"),
    Listed("spot checks", "golden", "result", "yes"),
)  # fmt: skip


def why_not(check: CheckResult) -> str:
    """Say why a check may not be waived; empty when it may."""
    if check.waivable:
        return ""
    found = (gate.why_not for gate in GATES if (gate.name, gate.group) == (check.name, check.group))
    return next(found, "it guards the data itself")
