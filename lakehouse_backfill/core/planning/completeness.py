"""Whether the pinned input has rows in every hour, day or month that a run reads (Q0)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime

from lakehouse_backfill.core.planning import windows
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.inspection import Period
from lakehouse_backfill.domain.manifest import RunManifest, Source
from lakehouse_backfill.domain.plan import SourcePin
from lakehouse_backfill.domain.scope import Scope, ScopeField
from lakehouse_backfill.errors import ConfigError

TimeSpan = tuple[datetime, datetime]
#: The first missing periods are named, up to this many.
MAX_NAMED_PERIODS = 5


def completeness_notes(
    manifest: RunManifest, contract: Contract, pins: tuple[SourcePin, ...]
) -> tuple[str, ...]:
    """Say, for the plan, what is taken for granted of the input and proven before staging.

    Raises ConfigError when it cannot be proven: hours of dates, or an input that the run lacks.
    """
    columns = {pin.name: {column.name: column.type for column in pin.columns} for pin in pins}
    for name, source in manifest.sources.items():
        if source.complete == "hour" and columns[name].get(source.range.column) == "date":
            raise ConfigError(
                f"sources.{name}.complete is hour, but {source.range.column} holds dates",
                fix="write day or month",
                field=f"sources.{name}.complete",
            )
    for assumption in contract.assumptions:
        if assumption.on not in columns:
            raise ConfigError(
                f"{contract.product} assumes of {assumption.on}: {assumption.text} But the run has "
                f"no input {assumption.on}",
                fix=f"name one of {', '.join(columns)} in assumptions of the contract, or add the "
                "input to the run manifest",
            )
    notes = [
        f"{name} must have rows in every {source.complete} that is read"
        for name, source in manifest.sources.items()
        if source.complete != "none"
    ]
    return (*notes, *(f"assumed of {one.on}: {one.text}" for one in contract.assumptions))


def completeness_period(source: Source) -> Period:
    """Give the period to look at: the declared one, else days, which are only reported."""
    return "day" if source.complete == "none" else source.complete


def expected_periods(pin: SourcePin, scope: Scope, unit: Period) -> tuple[str, ...]:
    """Label the periods that the run reads of a source, warm-up and cool-down included.

    What lies between two partitions that the run does not restate is left out.
    """
    field = ScopeField(column="period", transform=unit, type="timestamptz")
    labels = [label for span in _spans_to_read(pin, scope) for label in _periods(field, span)]
    return tuple(dict.fromkeys(labels))


def check_completeness(
    name: str, source: Source, wanted: tuple[str, ...], found: tuple[str, ...]
) -> CheckResult:
    """Give the gate of one source: blocking when the run manifest declares it complete."""
    unit, seen = completeness_period(source), set(found)
    missing = [label for label in wanted if label not in seen]
    detail = f"rows in all {len(wanted)} {unit}s that the run reads"
    if missing:
        more = len(missing) - MAX_NAMED_PERIODS
        detail = (
            f"no row on {len(missing)} of {len(wanted)} {unit}s: {', '.join(missing[:MAX_NAMED_PERIODS])}"
            + (f" and {more} more" if more > 0 else "")
        )
    return CheckResult(
        name=f"{name} has rows in every {unit}",
        group="input",
        passed=not missing,
        detail=detail,
        observed=len(missing),
        limit=0,
        blocking=source.complete != "none",
    )


def _spans_to_read(pin: SourcePin, scope: Scope) -> list[TimeSpan]:
    """The instants that the scope's partitions need, as few spans in order."""
    found: list[TimeSpan] = []
    for label in scope.partitions:
        one = windows.window_to_read(pin, Scope(field=scope.field, partitions=(label,)))
        if one[0] < one[1]:
            found.append(one)
    merged: list[TimeSpan] = []
    for first, stop in sorted(found):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return merged


def _periods(field: ScopeField, span: TimeSpan) -> Iterator[str]:
    label: str | None = partitions.partition_label(field, span[0])
    while label is not None and _start(field, label) < span[1]:
        yield label
        label = partitions.shift_label(field, label, 1)


def _start(field: ScopeField, label: str) -> datetime:
    lower = partitions.partition_row_range(field, label).lower
    if not isinstance(lower, date):
        raise TypeError(f"{label} is no period")
    return windows.to_utc_instant(lower)
