"""Partitions that a run of a cascade need not compute, as their live rows would come out again.

A run before it may have computed rows that are equal to the live ones. A partition that reads only
such rows would come out as it is, if a run of the same code computed it from what is live. Whatever
is not proven by checksums, metadata and logs is computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from lakehouse_backfill.core.approval.decisions import logged_validation, trusted_events
from lakehouse_backfill.core.evidence.inputs.changes import (
    InputReader,
    published_candidate,
    unseen_windows,
)
from lakehouse_backfill.core.evidence.inputs.rows import RowSpans
from lakehouse_backfill.core.evidence.lineage import PartitionOrigins
from lakehouse_backfill.core.planning.inputs.read_windows import window_to_read
from lakehouse_backfill.core.planning.other_runs import recipe_of
from lakehouse_backfill.core.planning.scope.key_chunks import is_by_key
from lakehouse_backfill.core.planning.target import publish_modes
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import PartitionBalance, ValidationResult
from lakehouse_backfill.domain.labels.grains import without_cut_grains
from lakehouse_backfill.domain.partitions import RowRange, Scope
from lakehouse_backfill.domain.plan import (
    Plan,
    ResolvedManifest,
    ReusedPartition,
    SourcePin,
)
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.errors import BackfillError

#: The rows of an input that differ: ranges of them; None: any may.
Differences = tuple[RowRange | None, ...]
REUSE_NOTE = (
    "partitions whose input partitions turn out equal to live are not computed: their live rows "
    "stay, if a run of the same code computed them from what is live"
)


def may_reuse(resolved: ResolvedManifest) -> bool:
    """Return whether partitions of a run may be kept: it replaces them whole, and reads candidates.

    Rows with masks, tombstones or a state, of another engine, or published step by step are
    computed.
    """
    manifest, contract = resolved.manifest, resolved.contract
    is_plain = manifest.target.publish_mode in ("replace_partitions", "pointer_swap")
    # A recipe that carries rows equals none, not even itself.
    return (
        any(pin.candidate for pin in resolved.sources)
        and is_plain
        and recipe_of(resolved) == recipe_of(resolved)
        and not (manifest.target.columns or manifest.target.progressive)
        and not (contract.masked_columns or resolved.tombstones)
        and manifest.transform.writer != "external"
        and manifest.stateful is None
    )


def reusable_partitions(context: Context, plan: Plan) -> tuple[ReusedPartition, ...]:
    """Return the partitions of a run that would come out as their live rows are.

    `plan` names the validated snapshots of its candidates. What cannot be told is left out.
    """
    if not plan.resolved.may_reuse or plan.findings:
        return ()
    found = tuple(_Comparison(context, plan).reusable())
    resolved = plan.resolved
    kept = without_cut_grains(resolved.contract, resolved.scope, (one.partition for one in found))
    return tuple(one for one in found if one.partition in kept)


def untouched_labels(
    scope: Scope, labels: Iterable[str], pins: Iterable[tuple[SourcePin, Differences]]
) -> frozenset[str]:
    """Return the partitions that read no row that differs, warm-up and cool-down included.

    An input without a range is read whole. The partition of null is always left out.
    """
    found = {label for label in labels if label != partitions.NULL_LABEL}
    for pin, differing in pins:
        if not differing:
            continue
        if pin.range is None:
            return frozenset()
        # A row without a time is in no window.
        spans = RowSpans((None if rows and rows.is_null else rows, rows) for rows in differing)
        for label in tuple(found):
            own = Scope(field=scope.field, partitions=(label,))
            if any(True for _ in spans.within(window_to_read(pin, own))):
                found.discard(label)
    return frozenset(found)


def differing_labels(
    labels: Iterable[str], balances: Mapping[str, PartitionBalance]
) -> frozenset[str]:
    """Return the partitions that are not proven equal by count and checksum of both sides."""

    def is_equal(label: str) -> bool:
        one = balances.get(label)
        if one is None or not one.equal or one.old_count != one.new_count:
            return False
        return one.old_checksum == one.new_checksum

    return frozenset(label for label in labels if not is_equal(label))


class _Comparison:
    """Compares what a run reads with what the runs read that made the live rows."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context, self._plan = context, plan
        self._origins = PartitionOrigins(context, plan.product)
        self._inputs = InputReader(context)

    def reusable(self) -> Iterator[ReusedPartition]:
        """Yield the partitions in order; those of a run of which something is unknown are none."""
        if is_by_key(self._plan.resolved.chunks):
            return  # One chunk would keep the rows of all of them.
        by_run: dict[str, list[str]] = defaultdict(list)
        made_by = self._origins.made_by
        for label in self._plan.resolved.scope.partitions:
            if len(made_by.get(label, ())) == 1:
                by_run[made_by[label][0]].append(label)
        found: dict[str, ReusedPartition] = {}
        for run_id, labels in by_run.items():
            with suppress(BackfillError):
                found |= {one.partition: one for one in self._of_run(run_id, labels)}
        yield from (found[one] for one in self._plan.resolved.scope.partitions if one in found)

    def _of_run(self, run_id: str, labels: list[str]) -> Iterator[ReusedPartition]:
        made, mine = self._origins.plan(run_id), self._plan.resolved
        if made.findings or recipe_of(made.resolved) != recipe_of(mine):
            return
        if any(one.rejected_rows is not None for one in self._context.runs.chunks(run_id)):
            return
        accepted, unchanged = self._validation(made), self._unchanged(run_id, labels)
        if accepted is None or not unchanged:
            return
        before = {pin.name: pin for pin in made.resolved.sources}
        pins = [(pin, self._differences(before[pin.name], pin)) for pin in mine.sources]
        untouched = untouched_labels(mine.scope, unchanged, pins)
        balances = {one.partition: one for one in accepted.balances}
        for label in unchanged:
            one = balances.get(label)
            if label in untouched and one is not None:
                yield ReusedPartition(
                    partition=label, run_id=run_id, rows=one.new_count, checksum=one.new_checksum
                )

    def _validation(self, plan: Plan) -> ValidationResult | None:
        status = self._context.runs.status(plan.run_id)
        events = trusted_events(self._context, status)
        logged = logged_validation(self._context, events, plan.run_id)
        return logged[1] if logged else None

    def _unchanged(self, run_id: str, labels: list[str]) -> list[str]:
        """Return the partitions of which the base of the run holds what a run published."""
        target, history = self._plan.resolved.target, self._origins.history
        if publish_modes.is_pinned_product(self._plan):
            newest = history[0] if history else None
            is_base = newest is not None and (newest.table, newest.snapshot_id) == (
                target.table, target.snapshot_id,
            )  # fmt: skip
            return labels if is_base else []
        found, left = list[str](), labels
        # A run that published step by step has a row for each step: live commits lie in between.
        for row in history:
            if (row.run_id, row.action) == (run_id, "publish") and row.scope is not None:
                own = tuple(one for one in left if one in row.scope.partitions)
                left = [one for one in left if one not in own]
                found += own if self._is_unchanged_since(row, own) else ()
        return found

    def _is_unchanged_since(self, row: Publication, labels: tuple[str, ...]) -> bool:
        target, until = self._plan.resolved.target.table, self._plan.resolved.target.snapshot_id
        if row.table != target or row.snapshot_id is None or not labels:
            return False
        scope = Scope(field=self._plan.resolved.scope.field, partitions=labels)
        return row.snapshot_id == until or not self._context.publisher.drifts(
            target, scope, row.snapshot_id, until
        )

    def _differences(self, before: SourcePin, now: SourcePin) -> Differences:
        """Return what differs between what the live rows were made of, and what the run reads."""
        candidate = now.candidate
        base = candidate or now
        found = self._since(before, (base.table, base.snapshot_id))
        return (*found, *self._of_candidate(now)) if candidate else found

    def _since(self, before: SourcePin, base: tuple[str, int]) -> Differences:
        if (before.table, before.snapshot_id) == base:
            return ()
        published = published_candidate(self._context, before)
        if not isinstance(published, SourcePin) or published.table != base[0]:
            return (None,)
        column = published.range.column if published.range else ""
        windows = [*unseen_windows(self._context, before), (published, base[1])]
        return tuple(
            one.span
            for pin, until in windows
            if pin.snapshot_id != until
            for one in self._inputs.changes_until(pin, column, until)
        )

    def _of_candidate(self, pin: SourcePin) -> Differences:
        """Return the rows of a candidate that are not proven equal to the live ones."""
        if pin.candidate is None:
            return ()
        made = self._context.runs.plan(pin.candidate.run_id)
        judged, scope = self._validation(made), made.resolved.scope
        # Lineage columns are not part of checksums, and differ by run.
        if judged is None or made.resolved.contract.lineage_columns:
            return (None,)
        if (pin.table, pin.snapshot_id) != (made.shadow_table, judged.shadow_snapshot_id):
            return (None,)
        balances = {one.partition: one for one in judged.balances}
        differing = differing_labels(scope.partitions, balances)
        if differing and (pin.range is None or pin.range.column != scope.field.column):
            return (None,)
        return tuple(partitions.partition_row_range(scope.field, one) for one in differing)
