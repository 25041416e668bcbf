"""The evidence document of a run, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.model.checks import CheckResult, Validation
from lakehouse_backfill.model.plan import Plan
from lakehouse_backfill.model.publication import Publication
from lakehouse_backfill.model.run import ChunkRecord, Event, RunStatus
from lakehouse_backfill.rules.standing import Standing


@dataclass(frozen=True)
class Dossier:
    """Everything that the page shows; None: the run has not come that far."""

    run: RunStatus
    standing: Standing
    plan: Plan
    scope: str
    events: tuple[Event, ...]
    approvals: tuple[dict[str, Any], ...]
    chunks: tuple[ChunkRecord, ...]
    input_checks: tuple[CheckResult, ...]
    validation: Validation | None
    validation_digest: str | None
    publication: Publication | None

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """The checks of the input and of the output."""
        return self.input_checks + (self.validation.checks if self.validation else ())

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The blocking checks that did not pass."""
        return tuple(check for check in self.checks if check.blocking and not check.passed)

    def deciders(self, decision: str) -> str:
        """Name who decided, or `nobody yet`."""
        names = [str(item["by"]) for item in self.approvals if item["decision"] == decision]
        return ", ".join(names) or "nobody yet"


def read(document: dict[str, Any]) -> Dossier:
    """Read an evidence document; raises ValidationError when it is none."""
    validation, publication = document.get("validation"), document.get("publication")
    return Dossier(
        run=RunStatus.model_validate(document["run"]),
        standing=Standing(**document["standing"]),
        plan=Plan.model_validate(document["plan"]),
        scope=str(document["scope"]),
        events=tuple(Event.model_validate(event) for event in document["events"]),
        approvals=tuple(document["approvals"]),
        chunks=tuple(ChunkRecord.model_validate(chunk) for chunk in document["chunks"]),
        input_checks=tuple(CheckResult.model_validate(item) for item in document["input_checks"]),
        validation=Validation.model_validate(validation) if validation else None,
        validation_digest=document.get("validation_digest"),
        publication=Publication.model_validate(publication) if publication else None,
    )
