"""The gates that a run manifest may turn into a report (`validation.gates`), by name.

Those that are left out guard what a publication rests on: chunks, scope, stored rows, schema.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from lakehouse_backfill.domain.checks import CheckGroup, CheckResult
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import ConfigError


class GateSelector(NamedTuple):
    """The results that a name stands for: those of a group, or one of it by its own name."""

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
    """Raise ConfigError for a gate that is none, or may not be turned into a report."""
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
    """Let the results of gates that the manifest only wants reported block nothing.

    A result that nobody may waive keeps blocking.
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
