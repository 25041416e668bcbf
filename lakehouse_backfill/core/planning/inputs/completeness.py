"""Whether the pinned input has rows in every hour, day or month that a run reads (Q0)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from lakehouse_backfill.core.planning.inputs.read_windows import (
    needed_window,
    window_to_read,
)
from lakehouse_backfill.core.planning.scope.resolve import PARTITIONS_FIELD
from lakehouse_backfill.core.runs import roles
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CheckResult
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.labels.instants import FIRST_INSTANT, as_instant, shift_instant
from lakehouse_backfill.domain.manifest import RunManifest, Source, unplannable
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import ResolvedManifest, SourcePin
from lakehouse_backfill.domain.run import Period
from lakehouse_backfill.domain.tables.table import TableRef
from lakehouse_backfill.errors import ConfigError, NotFound

TimeSpan = tuple[datetime, datetime]


#: The first missing periods are named, up to this many.
MAX_NAMED_PERIODS = 5


def completeness_notes(
    manifest: RunManifest, contract: Contract, pins: tuple[SourcePin, ...]
) -> tuple[str, ...]:
    """Describe what the plan assumes of the input, which is proven before staging.

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


def named_instants(context: Context, pins: tuple[SourcePin, ...]) -> dict[str, datetime]:
    """Return when the states were committed that a manifest names for its inputs with `at`.

    What came later is not in them. An input that is read as it is now is left out.
    """
    found: dict[str, datetime] = {}
    for pin in pins:
        ref = TableRef.parse(pin.requested) if "@" in pin.requested else None
        with suppress(NotFound):
            committed_ms = context.tables.resolve(ref).committed_at_ms if ref else 0
            if committed_ms:
                found[pin.name] = datetime.fromtimestamp(committed_ms / 1000, timezone.utc)
    return found


def incomplete_partitions(
    manifest: RunManifest,
    scope: Scope,
    pins: tuple[SourcePin, ...],
    now: datetime,
    named: Mapping[str, datetime],
) -> dict[str, tuple[str, datetime]]:
    """Return the partitions whose input is not complete yet: the input, and when it will be.

    An instant's rows are there once `complete_after_hours` have passed. A partition that is no time
    reads the whole declared range, and so does that of null. `named` is as of `named_instants`.
    """
    found: dict[str, tuple[str, datetime]] = {}
    for pin in pins:
        if pin.range is None:
            continue
        freshness = timedelta(hours=manifest.sources[pin.name].complete_after_hours)
        known_until = min(now, named.get(pin.name, now))
        whole = needed_window(pin, scope)
        if whole is not None and shift_instant(whole[1], freshness) <= known_until:
            continue
        for label in scope.partitions:
            window = needed_window(pin, Scope(field=scope.field, partitions=(label,)))
            end = window[1] if window else as_instant(pin.range.to)
            complete_at = shift_instant(end, freshness)
            if complete_at > max(known_until, found.get(label, ("", FIRST_INSTANT))[1]):
                found[label] = pin.name, complete_at
    return found


def check_complete_input(context: Context, resolved: ResolvedManifest) -> tuple[str, ...]:
    """Return, as a note, what a person allowed of partitions whose input is not complete yet.

    Raises Unsupported when nobody did, NotAllowed when that person may not.
    """
    manifest, scope, now = resolved.manifest, resolved.scope, context.clock.now()
    named = named_instants(context, resolved.sources)
    found = incomplete_partitions(manifest, scope, resolved.sources, now, named)
    if not found:
        return ()
    labels = tuple(label for label in scope.partitions if label in found)
    name, complete_at = found[labels[0]]
    state, fix = "", f"end target.partitions before {labels[0]}, or plan again then"
    if all(needed_window(pin, scope) is None for pin in resolved.sources if pin.name == name):
        fix = f"end sources.{name}.range before {now:%Y-%m-%d %H:%M} UTC, or plan again then"
    if named.get(name, now) < min(now, complete_at):
        state = f"; {name} is read as it was at {named[name]:%Y-%m-%d %H:%M} UTC"
        fix = f"end target.partitions before {labels[0]}, or name a later state: sources.{name}.at"
    text = (
        f"{partitions.describe_labels(labels)}: its input is not complete yet (that of {labels[0]} "
        f"in {name} is complete from {complete_at:%Y-%m-%d %H:%M} UTC on{state})"
    )
    exception = manifest.safety.incomplete_input
    if exception is None:
        raise unplannable(
            text,
            fix=f"{fix}; or write safety.incomplete_input (by, reason) in the run manifest, which "
            "whoever approves the run sees",
            field=PARTITIONS_FIELD,
        )
    roles.require_role(resolved.contract, "waive", exception.by, resolved.environment)
    return (f"{text}: written in the manifest, in {exception.by}'s name: {exception.reason}",)


def completeness_period(source: Source) -> Period:
    """Return the period to look at: the declared one, else days, which are only reported."""
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
    """Return the gate of one source: blocking when the run manifest declares it complete."""
    unit, seen = completeness_period(source), set(found)
    missing = [label for label in wanted if label not in seen]
    detail = f"rows in all {len(wanted):,} {unit}s that the run reads"
    if missing:
        more = len(missing) - MAX_NAMED_PERIODS
        detail = (
            f"no row on {len(missing):,} of {len(wanted):,} {unit}s: "
            f"{', '.join(missing[:MAX_NAMED_PERIODS])}" + (f" and {more} more" if more > 0 else "")
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
    """Return the instants that the scope's partitions need, as few spans in order."""
    found: list[TimeSpan] = []
    for label in scope.partitions:
        one = window_to_read(pin, Scope(field=scope.field, partitions=(label,)))
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
    last = partitions.partition_label(field, span[1] - timedelta.resolution)
    while label is not None:
        yield label
        label = partitions.shift_label(field, label, 1) if label != last else None
