"""Why rows differ and why the result is trusted: causes, checks, decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.validation import suites
from lakehouse_backfill.domain.diff import CAUSE_CLASSES, describe_factors
from lakehouse_backfill.report.dossier import Dossier, describe_subject
from lakehouse_backfill.report.html import format_percent

#: What each class means, in the order of the bars; the letters stand on their grounds.
CAUSE_MEANINGS: dict[str, tuple[str, str]] = {
    "code": ("C", "the new code gives another row for the same inputs"),
    "late_input": ("L", "rows that came to a source later"),
    "upstream": ("U", "rows of a source that were changed since"),
    "reference": ("R", "reference data that moved"),
    "deletion": ("D", "deleted, in a source or in the table, or to be left out"),
    "live_write": ("W", "a live commit had changed what a run published"),
    "several": ("S", "more than one of these took part"),
    "unexplained": ("?", "nothing that was swapped gives this difference"),
}


@dataclass(frozen=True)
class Cause:
    """A class of causes as the legend shows it."""

    name: str
    letter: str
    meaning: str
    style: str


@dataclass(frozen=True)
class CauseShare:
    """The rows of one partition that have one cause."""

    cause: Cause
    rows: int
    text: str


_CAUSES = {
    name: Cause(name.replace("_", " "), *CAUSE_MEANINGS[name], f"k{place}")
    for place, name in enumerate(CAUSE_MEANINGS, start=1)
}


def causes_facts(dossier: Dossier) -> dict[str, Any]:
    """Return the causes on the sampled partitions, or how to ask for them."""
    found = dossier.attribution
    if found is None:
        return {"command": errors.command_line("diff", dossier.run.run_id, "--attribute")}
    groups = [group for part in found["partitions"] for group in part["groups"]]
    used = {group["cause"] for group in groups}
    return {
        "legend": [_CAUSES[name] for name in CAUSE_CLASSES if name in used],
        "bars": [(part, _cause_shares(part)) for part in found["partitions"]],
        "samples": [(group["factors"], one) for group in groups for one in group["samples"]],
        "describe_factors": describe_factors,
    }


def _cause_shares(part: dict[str, Any]) -> list[CauseShare]:
    """Return the shares of one partition; one that is not zero is never drawn as nothing."""
    rows = dict.fromkeys(CAUSE_CLASSES, 0)
    for group in part["groups"]:
        rows[group["cause"]] += group["rows"]
    whole = sum(rows.values())
    return [
        CauseShare(
            _CAUSES[name], count, f"{_CAUSES[name].name} {count:,} ({format_percent(count, whole)})"
        )
        for name, count in rows.items()
        if count
    ]


def checks_facts(dossier: Dossier) -> dict[str, Any]:
    """Return how long the suites took."""
    return {"timing": suites.newest_validation_timing(dossier.events)}


def decisions_facts(_dossier: Dossier) -> dict[str, Any]:
    """Return how the subject of a waiver is described."""
    return {"describe_subject": describe_subject}
