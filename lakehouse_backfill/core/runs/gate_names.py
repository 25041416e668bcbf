"""The gates that a run manifest may turn into a report (`validation.gates`), by name.

Those that are left out guard what a publication rests on: chunks, scope, stored rows, schema.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import ConfigError


class Gate(NamedTuple):
    """The results that a name stands for: those of a group, or one of it by its own name."""

    group: CheckGroup
    name: str | None = None


GATES: dict[str, Gate] = {
    "emptied_partitions": Gate("technical", "no partition becomes empty"),
    "row_count": Gate("technical", "row count is in range"),
    "file_sizes": Gate("technical", "files have a sensible size"),
    "lineage": Gate("technical", "lineage is complete"),
    "key_nulls": Gate("technical", "keys have no nulls"),
    "keys_unique": Gate("diff", "keys are unique"),
    "thresholds": Gate("business"),
    "suites": Gate("quality"),
    "edges": Gate("edge"),
    "golden": Gate("golden"),
    "anomalies": Gate("anomaly"),
    "distributions": Gate("distribution"),
}


def require_known(manifest: RunManifest) -> None:
    """Raise ConfigError for a gate that is none, or may not be turned into a report."""
    for name in manifest.validation.gates:
        if name not in GATES:
            raise ConfigError(
                f"validation.gates.{name} is no gate that a run manifest may name",
                fix=f"use one of: {', '.join(GATES)}",
                field=f"validation.gates.{name}",
            )


def apply(
    results: list[CheckResult], wanted: dict[str, Literal["block", "report"]]
) -> list[CheckResult]:
    """Let the results of gates that the manifest only wants reported block nothing.

    A result that nobody may waive keeps blocking.
    """
    reported = [GATES[name] for name, choice in wanted.items() if choice == "report"]
    return [
        result.model_copy(update={"blocking": False})
        if result.waivable and any(_is_of(result, gate) for gate in reported)
        else result
        for result in results
    ]


def _is_of(result: CheckResult, gate: Gate) -> bool:
    return result.group == gate.group and gate.name in (None, result.name)
