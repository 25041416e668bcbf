"""The evidence document of a run, as typed values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse_backfill.core.approval.decisions import (
    INPUT_SCOPE,
    RESULT_SCOPE,
    Waiver,
    WaiverSubject,
    find_waiver,
)
from lakehouse_backfill.core.evidence.status import SafetySummary
from lakehouse_backfill.domain.checks import CheckResult, ValidationResult
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.run import ChunkRecord, Event, RunStatus
from lakehouse_backfill.report.html import format_moment

#: Verbs by which a person ends a run -> what the page says of it.
ENDING_WORDS = {"reject": "rejected", "cancel": "cancelled", "roll back": "rolled back"}


@dataclass(frozen=True)
class CheckVerdict:
    """A check, what it was about (input, a chunk's id, result), and who let a failed one pass."""

    check: CheckResult
    scope: str
    waiver: Waiver | None

    @property
    def subject(self) -> str:
        """Describe what it was about; a chunk and the result may have checks of one name."""
        return describe_subject(self.scope)

    @property
    def is_open(self) -> bool:
        """Whether it stops the run: it blocks, did not pass, and nobody waived it."""
        return self.check.blocking and not self.check.passed and self.waiver is None

    @property
    def is_chunk(self) -> bool:
        """Whether it is about a chunk."""
        return self.scope not in (INPUT_SCOPE, RESULT_SCOPE)


@dataclass(frozen=True)
class Dossier:
    """Everything that the page shows; None: the run has not come that far."""

    run: RunStatus
    safety_summary: SafetySummary
    plan: Plan
    scope: str
    events: tuple[Event, ...]
    approvals: tuple[dict[str, Any], ...]
    chunks: tuple[ChunkRecord, ...]
    input_checks: tuple[CheckResult, ...]
    validation: ValidationResult | None
    validation_digest: str | None
    publication: Publication | None
    chunk_checks: tuple[dict[str, Any], ...] = ()
    waivers: tuple[Waiver, ...] = ()
    code: tuple[dict[str, Any], ...] = ()
    dual_reads: tuple[dict[str, Any], ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    attribution: dict[str, Any] | None = None

    @property
    def verdicts(self) -> tuple[CheckVerdict, ...]:
        """All checks: of the input, of each chunk, of the result; with the waivers that hold."""
        found = list(
            self._verdicts_of(
                self.input_checks, WaiverSubject(INPUT_SCOPE, self.plan.manifest_hash)
            )
        )
        for chunk in self.chunk_checks:
            name = str(chunk["chunk_id"])
            checks = tuple(CheckResult.model_validate(check) for check in chunk["checks"])
            found += self._verdicts_of(checks, WaiverSubject(name, f"{name}@{chunk['checksum']}"))
        if self.validation is not None:
            judged = WaiverSubject(RESULT_SCOPE, self.validation_digest or "")
            found += self._verdicts_of(self.validation.checks, judged)
        return tuple(found)

    def _verdicts_of(
        self, checks: tuple[CheckResult, ...], judged: WaiverSubject
    ) -> Iterator[CheckVerdict]:
        for check in checks:
            waiver = None if check.passed else find_waiver(check, judged, self.waivers)
            yield CheckVerdict(check, judged.scope, waiver)

    @property
    def is_first_load(self) -> bool:
        """Whether nothing was there before: the run brings the first rows of its partitions."""
        return self.validation is not None and not self.validation.diff.summary.old_rows

    @property
    def ending(self) -> Event | None:
        """The event by which a person rejected, cancelled or rolled back the run; else None."""
        moves = [event for event in self.events if event.to_state is not event.from_state]
        newest = max(moves, key=lambda event: event.seq, default=None)
        if newest is None or newest.to_state is not self.run.state:
            return None
        return newest if newest.verb in ENDING_WORDS else None

    @property
    def ending_sentence(self) -> str:
        """Record in one sentence who ended the run, why and when; empty when nobody did."""
        event = self.ending
        if event is None:
            return ""
        done, reason = ENDING_WORDS[event.verb], event.detail.get("reason") or "no reason given"
        return f"{done.capitalize()} by {event.actor}: {reason} ({format_moment(event.at)})"

    @property
    def chain_head(self) -> str:
        """The hash that seals the run's events; empty when they carry none."""
        return self.run.head or (self.events[-1].hash if self.events else "")

    def deciders(self, decision: str) -> str:
        """Name who decided, or `nobody yet`."""
        names = [str(item["by"]) for item in self.approvals if item["decision"] == decision]
        return ", ".join(names) or "nobody yet"


def describe_subject(scope: str) -> str:
    """Describe what the checks of a scope are about."""
    return scope if scope in (INPUT_SCOPE, RESULT_SCOPE) else f"chunk {scope}"


def _read_waiver(item: dict[str, Any]) -> Waiver:
    return Waiver(
        gate=str(item["gate"]),
        group=str(item["group"]),
        subject=WaiverSubject(str(item["scope"]), str(item["bound_to"])),
        by=str(item["by"]),
        at=str(item["at"]),
        observed=item.get("observed"),
        reason=str(item.get("reason", "")),
    )


def read_dossier(document: dict[str, Any]) -> Dossier:
    """Read an evidence document; raises ValidationError when it is none."""
    validation, publication = document.get("validation"), document.get("publication")
    return Dossier(
        run=RunStatus.model_validate(document["run"]),
        safety_summary=SafetySummary(**document["standing"]),
        plan=Plan.model_validate(document["plan"]),
        scope=str(document["scope"]),
        events=tuple(Event.model_validate(event) for event in document["events"]),
        approvals=tuple(document["approvals"]),
        chunks=tuple(ChunkRecord.model_validate(chunk) for chunk in document["chunks"]),
        input_checks=tuple(CheckResult.model_validate(item) for item in document["input_checks"]),
        validation=ValidationResult.model_validate(validation) if validation else None,
        validation_digest=document.get("validation_digest"),
        publication=Publication.model_validate(publication) if publication else None,
        chunk_checks=tuple(document.get("chunk_checks") or ()),
        waivers=tuple(_read_waiver(item) for item in document.get("waivers") or ()),
        code=tuple(document.get("code") or ()),
        dual_reads=tuple(document.get("dual_reads") or ()),
        steps=tuple(document.get("steps") or ()),
        attribution=document.get("attribution"),
    )
