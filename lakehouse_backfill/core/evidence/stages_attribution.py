"""diff --attribute: why rows of a candidate differ, on sampled partitions of the run.

Nothing is computed for what does not differ; a run whose maker is unknown, and whose inputs' past
is gone, needs no engine either: then nothing can be said, and that is what is said.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse_backfill.core.comparison import diffing
from lakehouse_backfill.core.evidence import attribution
from lakehouse_backfill.core.planning import external
from lakehouse_backfill.core.planning.pinning import is_pin_expired
from lakehouse_backfill.core.publication.stages_dual_read import staged_candidate
from lakehouse_backfill.core.runs.workbench import Context
from lakehouse_backfill.domain.attribution import (
    Attribution,
    AttributionBasis,
    ExplainedRows,
    PartitionCauses,
)
from lakehouse_backfill.domain.carrying import TableState
from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.drift import Drift
from lakehouse_backfill.domain.plan import Plan, SourcePin
from lakehouse_backfill.domain.publication import Publication
from lakehouse_backfill.domain.scope import Scope
from lakehouse_backfill.domain.table import TableRef
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, NotFound, TargetChanged
from lakehouse_backfill.ports.attributing import InputSwapRequest, InputSwapResult

#: Evidence: the newest attribution of a run.
ATTRIBUTION = "attribution"
DEFAULT_PARTITIONS = 4


@dataclass(frozen=True)
class AttributionOptions:
    """How much is looked at; `keys` are those of source tables that are products themselves."""

    partitions: int = DEFAULT_PARTITIONS
    engine: str = "auto"
    samples: int = 5
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _PartitionOrigin:
    """What is known of how a partition came to be; `why` says why nothing is."""

    basis: AttributionBasis
    old: Plan | None = None
    pins: tuple[SourcePin, ...] = ()
    published: TableState | None = None
    live: tuple[str, ...] = ()
    why: str = ""


def attribute_changes(
    bench: Context, run_id: str, asked: AttributionOptions
) -> tuple[diffing.DiffResult, Attribution]:
    """Compare a run's candidate with what it replaces, and say why sampled rows differ.

    The result is recorded as evidence of the run. Raises NotFound when nothing is staged.
    """
    started = time.monotonic()
    status, plan = bench.runs.status(run_id), bench.runs.plan(run_id)
    wanted = diffing.request_for_run(bench, run_id, diffing.DiffOptions(samples=asked.samples))
    compared = diffing.compare_states(bench, wanted, asked.engine)
    diff = compared.diff
    changed = {
        str(row.partition): row.added + row.removed + row.changed
        for row in diff.partitions
        if row.partition is not None and (row.added or row.removed or row.changed)
    }
    chosen = attribution.sample_partitions(changed, asked.partitions, plan.manifest_hash)
    bench.progress.start("attributing", len(chosen), "partitions")
    parts = []
    for label in chosen:
        parts.append(_attribute_partition(bench, plan, label, changed[label], diff, asked))
        bench.progress.advance(rows=changed[label])
    bench.progress.finish()
    found = Attribution(
        run_id=run_id,
        product=plan.product,
        old=diff.old,
        new=diff.new,
        changed_rows=sum(changed.values()),
        changed_partitions=len(changed),
        sampled_rows=sum(changed[label] for label in chosen),
        partitions=tuple(parts),
        at=bench.clock.now(),
        seconds=round(time.monotonic() - started, 3),
    )
    bench.evidence.record(run_id, ATTRIBUTION, found.data(), status.seq)
    return compared, found


def _attribute_partition(
    bench: Context, plan: Plan, label: str, rows: int, diff: Diff, asked: AttributionOptions
) -> PartitionCauses:
    past = _partition_origin(bench, plan, label)
    if past.basis == "none":
        return _unexplained_partition(label, rows, diff, past)
    target = plan.resolved.target
    request = InputSwapRequest(
        partition=label,
        new=plan,
        candidate=TableState.model_validate(staged_candidate(bench, plan).model_dump()),
        replaced=TableState(table=target.table, snapshot_id=target.snapshot_id),
        old_pins=past.pins,
        old=past.old,
        published=past.published,
        keys={pin.name: asked.keys[pin.table] for pin in past.pins if pin.table in asked.keys},
        samples=asked.samples,
    )
    try:
        swapped = bench.compute().attributing.swap(request)
    except EnvironmentDown:
        raise
    except BackfillError as error:
        # Its code is not kept, or does not run any more: also that is no reason to say nothing.
        return _unexplained_partition(label, rows, diff, past, error.problem)
    groups = _group_patterns(swapped, asked.samples)
    notes = (past.why,) if past.why else ()
    return PartitionCauses(
        partition=label, changed_rows=sum(group.rows for group in groups), basis=past.basis,
        made_by=past.old.run_id if past.old else None, groups=groups, inputs=swapped.inputs,
        live=past.live, notes=(*notes, *swapped.notes),
    )  # fmt: skip


def _unexplained_partition(
    label: str, rows: int, diff: Diff, past: _PartitionOrigin, why: str | None = None
) -> PartitionCauses:
    """Say that nothing can be said, and why."""
    notes = tuple(note for note in (past.why, why) if note)
    return PartitionCauses(
        partition=label, changed_rows=rows, basis="none",
        made_by=past.old.run_id if past.old else None,
        groups=(_unexplained_group(label, rows, diff),), live=past.live, notes=notes,
    )  # fmt: skip


def _group_patterns(swapped: InputSwapResult, samples: int) -> tuple[ExplainedRows, ...]:
    """Sum up the patterns that have the same causes, the largest group first."""
    found: dict[tuple[object, ...], ExplainedRows] = {}
    for pattern in swapped.patterns:
        factors = attribution.find_factors(swapped.states, pattern.values, swapped.factors)
        known = found.get(factors)
        columns = dict(known.columns) if known else {}
        for name, count in pattern.columns.items():
            columns[name] = columns.get(name, 0) + count
        shown = (*(known.samples if known else ()), *pattern.samples)
        found[factors] = ExplainedRows(
            cause=attribution.classify_factors(factors), factors=factors,
            rows=pattern.rows + (known.rows if known else 0), columns=columns,
            samples=shown[:samples],
        )  # fmt: skip
    return tuple(sorted(found.values(), key=lambda group: (-group.rows, group.cause)))


def _unexplained_group(label: str, rows: int, diff: Diff) -> ExplainedRows:
    columns = {cell.column: cell.changed for cell in diff.cells if cell.partition == label}
    return ExplainedRows(
        cause="unexplained", factors=(attribution.UNEXPLAINED_FACTOR,), rows=rows, columns=columns
    )


def _partition_origin(bench: Context, plan: Plan, label: str) -> _PartitionOrigin:
    """Find out which run, or which inputs, made what the candidate replaces."""
    if external.is_externally_written(plan):
        return _PartitionOrigin(
            "none", why="another engine computed the candidate: it cannot be repeated"
        )
    row = attribution.publication_of_partition(bench.versions.history(plan.product), plan, label)
    try:
        return (
            _known_origin(bench, plan, label, row) if row else _assumed_origin(bench, plan, label)
        )
    except BackfillError as error:
        return _PartitionOrigin("none", why=f"what made it cannot be repeated: {error.problem}")


def _known_origin(bench: Context, plan: Plan, label: str, row: Publication) -> _PartitionOrigin:
    """Take pins and code of the run that computed the partition."""
    old = _computing_run(bench, bench.runs.plan(str(row.run_id)), label)
    if external.is_externally_written(old):
        return _PartitionOrigin("none", why=f"{old.run_id} was computed by another engine")
    gone = [f"{p.table}@{p.snapshot_id}" for p in old.resolved.sources if is_pin_expired(bench, p)]
    if gone:
        return _PartitionOrigin(
            "none", old, why=f"what {old.run_id} read is gone: {', '.join(gone)}"
        )
    published: TableState | None = TableState(table=row.table, snapshot_id=row.snapshot_id)
    why = ""
    try:
        bench.tables.resolve(TableRef(table=row.table, at=str(row.snapshot_id)))
    except NotFound:
        published = None
        why = "the published snapshot is gone: live writes are among what is unexplained"
    is_on_target = row.table == plan.resolved.target.table
    live = _live_commits(bench, plan, label, row.snapshot_id) if is_on_target else ()
    words = tuple(str(drift) for drift in live or ())
    return _PartitionOrigin("run", old, old.resolved.sources, published, words, why)


def _computing_run(bench: Context, plan: Plan, label: str) -> Plan:
    """Give the run that computed a partition: one that follows live data takes some over."""
    catch_up = plan.resolved.catch_up
    chunk = next((c for c in plan.resolved.chunks if label in c.partitions), None)
    origin = catch_up.origin(chunk.chunk_id) if catch_up and chunk else None
    return bench.runs.plan(origin.run_id) if origin else plan


def _assumed_origin(bench: Context, plan: Plan, label: str) -> _PartitionOrigin:
    """Take the inputs as they were when the partition was last written; its code is unknown."""
    written = _live_commits(bench, plan, label, None)
    if written is None:
        return _PartitionOrigin(
            "none", why="no known run made it, and the commits that did are gone"
        )
    if not written:
        return _PartitionOrigin("none", why="nothing was ever written there: all of it is new")
    newest = written[-1]
    pins = []
    for pin in plan.resolved.sources:
        then = bench.tables.resolve(TableRef(table=pin.table, at=newest.at.isoformat()))
        pins.append(pin.model_copy(update={"snapshot_id": then.snapshot_id}))
    why = (
        "no known run made it: compared with what the candidate's code makes of the inputs as "
        f"they were at {newest.at.isoformat(timespec='seconds')}, when it was last written; "
        "what that does not give is unexplained: other code, or live writes"
    )
    return _PartitionOrigin("assumed", pins=tuple(pins), live=(str(newest),), why=why)


def _live_commits(
    bench: Context, plan: Plan, label: str, since: int | None
) -> tuple[Drift, ...] | None:
    """Name the commits on the target up to the run's base that changed the partition.

    None: history is gone, so nobody can say.
    """
    target = plan.resolved.target
    if target.snapshot_id is None:
        return ()
    base = bench.tables.resolve(TableRef(table=target.table, at=str(target.snapshot_id)))
    scope = Scope(field=plan.resolved.scope.field, partitions=(label,))
    try:
        found = bench.publisher.drifts(target.table, scope, since)
    except (TargetChanged, NotFound):
        return None
    return tuple(d for d in found if d.at.timestamp() * 1000 <= base.committed_at_ms + 0.5)
