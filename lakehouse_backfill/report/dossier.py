"""The evidence document of a run, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from lakehouse_backfill.command_lines import Invocation
from lakehouse_backfill.core.approval import signatures
from lakehouse_backfill.core.approval.decisions import (
    INPUT_SCOPE,
    RESULT_SCOPE,
    Waiver,
    WaiverSubject,
    find_waiver,
)
from lakehouse_backfill.core.evidence.status import SafetySummary
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.validation import suites
from lakehouse_backfill.domain.checks import CheckResult, ValidationResult
from lakehouse_backfill.domain.identity.statement import SIGNATURE
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
        return Dossier.describe_subject(self.scope)

    @property
    def title(self) -> str:
        """The question that the check answers."""
        return gate_registry.check_title(self.check)

    @property
    def verdict(self) -> gate_registry.Verdict:
        """What came of it."""
        return gate_registry.find_verdict(self.check, is_waived=self.waiver is not None)

    @property
    def is_open(self) -> bool:
        """Whether it stops the run: it blocks, did not pass, and nobody waived it."""
        return self.check.blocking and not self.check.passed and self.waiver is None

    @property
    def is_chunk(self) -> bool:
        """Whether it is about a chunk."""
        return self.scope not in (INPUT_SCOPE, RESULT_SCOPE)


class ChunkVerdict(BaseModel):
    """The checks of one chunk, and the checksum of the rows that they judged."""

    chunk_id: str
    checksum: str
    checks: tuple[CheckResult, ...]


def _read_waiver(item: dict[str, Any]) -> Waiver:
    return Waiver(
        subject=WaiverSubject(item["scope"], item["bound_to"]),
        observed=item.get("observed"),
        reason=item.get("reason", ""),
        signature=item.get("signature", signatures.UNSIGNED),
        **{name: item[name] for name in ("gate", "group", "by", "at")},
    )


class Dossier(BaseModel):
    """Everything that the page shows; None: the run has not come that far."""

    model_config = ConfigDict(frozen=True)

    run: RunStatus
    safety_summary: SafetySummary = Field(alias="standing")
    #: The lake, as the call named it that wrote the page; empty: the profiles' default.
    profile: str = ""
    plan: Plan
    scope: str
    events: tuple[Event, ...]
    approvals: tuple[dict[str, Any], ...]
    chunks: tuple[ChunkRecord, ...]
    input_checks: tuple[CheckResult, ...]
    validation: ValidationResult | None = None
    validation_digest: str | None = None
    publication: Publication | None = None
    chunk_checks: tuple[ChunkVerdict, ...] = ()
    waivers: tuple[Annotated[Waiver, PlainValidator(_read_waiver)], ...] = ()
    code: tuple[dict[str, Any], ...] = ()
    dual_reads: tuple[dict[str, Any], ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    attribution: dict[str, Any] | None = None
    #: Outside effects that the code tried, and its messages to declared sinks.
    attempts: tuple[dict[str, Any], ...] = ()
    messages: tuple[dict[str, Any], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Give the default to what a document, maybe an older one, holds as null."""
        return {name: value for name, value in document.items() if value is not None}

    def typed(self, command: str) -> str:
        """Return a command as it is typed to reach the lake of the page."""
        return Invocation(profile=self.profile).complete(command)

    @cached_property
    def verdicts(self) -> tuple[CheckVerdict, ...]:
        """All checks: of the input, of each chunk, of the result; with the waivers that hold."""
        judged = [(WaiverSubject(INPUT_SCOPE, self.plan.manifest_hash), self.input_checks)]
        for chunk in self.chunk_checks:
            bound_to = f"{chunk.chunk_id}@{chunk.checksum}"
            judged.append((WaiverSubject(chunk.chunk_id, bound_to), chunk.checks))
        if self.validation is not None:
            subject = WaiverSubject(RESULT_SCOPE, self.validation_digest or "")
            judged.append((subject, self.validation.checks))
        return tuple(
            CheckVerdict(
                check,
                subject.scope,
                None if check.passed else find_waiver(check, subject, self.waivers),
            )
            for subject, checks in judged
            for check in checks
        )

    @property
    def verdict_counts(self) -> str:
        """How many of all checks passed; the first screen and the section say the same."""
        return gate_registry.count_verdicts(each.verdict for each in self.verdicts)

    @property
    def verdict_subjects(self) -> str:
        """What the checks that are counted are about; `why` counts those of the result."""
        chunks = sum(each.is_chunk for each in self.verdicts)
        inputs = len(self.input_checks)
        counts = {"the input": inputs, "chunks": chunks}
        counts["the result"] = len(self.verdicts) - inputs - chunks
        return ", ".join(f"{count:,} of {name}" for name, count in counts.items() if count)

    @property
    def validation_timing(self) -> suites.ValidationTiming | None:
        """How long the suites took; None where they were not timed."""
        return suites.newest_validation_timing(self.events)

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
    def ending_signature(self) -> str:
        """Describe the signature of who ended the run; a cancellation or rollback has another."""
        event = self.ending
        if event is None or event.verb != "reject":
            return "-"
        return signatures.describe_stored(event.detail.get(SIGNATURE))

    @property
    def publication_signature(self) -> str:
        """Describe the signature of who published the run."""
        return signatures.describe_stored(self.publication and self.publication.signature)

    @property
    def chain_head(self) -> str:
        """The hash that seals the run's events; empty when they carry none."""
        return self.run.head or (self.events[-1].hash if self.events else "")

    def deciders(self, decision: str) -> str:
        """Name who decided, or `nobody yet`."""
        names = [str(item["by"]) for item in self.approvals if item["decision"] == decision]
        return ", ".join(names) or "nobody yet"

    @staticmethod
    def shown_detail(event: Event) -> dict[str, Any]:
        """Return the detail of an event with a description in place of its signature."""
        stored = event.detail.get(SIGNATURE)
        text = {SIGNATURE: signatures.describe_stored(stored)} if stored else {}
        return {**gate_registry.with_questions(event.detail), **text}

    @staticmethod
    def describe_subject(scope: str) -> str:
        """Describe what the checks of a scope are about."""
        return scope if scope in (INPUT_SCOPE, RESULT_SCOPE) else f"chunk {scope}"
