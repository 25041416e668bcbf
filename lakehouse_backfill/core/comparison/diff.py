"""Diff and reconcile of two table states.

A diff chooses its engine by the bytes that must be read, and skips partitions that fingerprints
prove equal. `preview_diff` reads metadata only. `reconcile` compares count and checksum of each
partition.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from lakehouse_backfill.core.comparison import fingerprints
from lakehouse_backfill.core.runs.context import Context
from lakehouse_backfill.domain.checks import PartitionBalance
from lakehouse_backfill.domain.comparison.diff import Diff, DiffPreview, EngineChoice
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.plan import Plan, declared_schema_change
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.tables.table import TableInfo, TableRef, first_scope_column
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported
from lakehouse_backfill.ports.comparison import Differ, DiffRequest, SummedDiff


@dataclass(frozen=True)
class TableSides:
    """Two table states to compare, with the contract of the product if there is one."""

    old: TableRef
    new: TableRef
    contract: Contract | None = None


def reconcile(context: Context, sides: TableSides) -> tuple[PartitionBalance, ...]:
    """Compare count and checksum of each partition of two states.

    Checksums are sums over files: known files are not read again, and Spark starts for the rest
    only.
    """
    old, new = context.tables.resolve(sides.old), context.tables.resolve(sides.new)
    info = context.tables.describe(sides.new.table)
    scope = _all_partitions(context, sides, info, (old.snapshot_id, new.snapshot_id))
    context.progress.count("reconcile", 2, "states of the table")
    left = fingerprints.partition_checksums(context, sides.old.table, old.snapshot_id, scope)
    context.progress.advance(1, sum(one.rows for one in left.values()))
    right = fingerprints.partition_checksums(context, sides.new.table, new.snapshot_id, scope)
    context.progress.advance(1, sum(one.rows for one in right.values()))
    context.progress.finish()
    return fingerprints.partition_balances(scope.partitions, left, right)


def _all_partitions(
    context: Context, sides: TableSides, info: TableInfo | None, snapshots: tuple[int, int]
) -> Scope:
    if info is None:
        raise Unsupported(
            f"{sides.new.table} has no partitions to reconcile",
            fix="use diff, which compares whole tables",
        )
    field = context.tables.scope_field(info, first_scope_column(info))
    labels = {
        file.partition
        for table, snapshot in zip((sides.old.table, sides.new.table), snapshots, strict=True)
        for file in context.tables.files(table, snapshot, field)
    }
    ordered = sorted(label for label in labels if label is not None)
    return Scope(field=field, partitions=tuple(ordered))


MEBIBYTE = 1024 * 1024
#: Below this, reading the rows is as fast as looking up their fingerprints.
_FINGERPRINT_LOOKUP_MIN_BYTES = 32 * MEBIBYTE


@dataclass(frozen=True)
class DiffOptions:
    """What of two states is compared, and how; an empty key means that of the contract."""

    key: tuple[str, ...] = ()
    where: str | None = None
    samples: int = 5
    ignore: tuple[str, ...] = ()
    tolerances: tuple[Tolerance, ...] = ()

    def applied_to(self, request: DiffRequest) -> DiffRequest:
        """Return the request with these options."""
        return replace(
            request,
            key=self.key or request.key,
            where=self.where,
            samples=self.samples,
            ignore=(*request.ignore, *self.ignore),
            tolerances=self.tolerances,
        )


@dataclass(frozen=True)
class EngineDiff:
    """A diff, and the choice of its engine."""

    diff: Diff
    choice: EngineChoice


def request_for_states(context: Context, sides: TableSides, asked: DiffOptions) -> DiffRequest:
    """Build the request for two states, of one table or of two; raises NotFound."""
    old, new = context.tables.resolve(sides.old), context.tables.resolve(sides.new)
    request = DiffRequest(
        old_table=sides.old.table,
        old_snapshot_id=old.snapshot_id,
        new_table=sides.new.table,
        new_snapshot_id=new.snapshot_id,
        key=sides.contract.key if sides.contract else (),
        ignore=LINEAGE_NAMES,
        redaction=context.redaction(sides.contract),
    )
    return asked.applied_to(request)


def request_for_run(context: Context, run_id: str, asked: DiffOptions) -> DiffRequest:
    """Build the request for a run's candidate against what it replaces, in the run's partitions.

    Raises NotFound when nothing is staged.
    """
    plan = context.runs.plan(run_id)
    shadow = context.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(f"{run_id} has no staged candidate", fix=f"lakehouse-backfill run {run_id}")
    return asked.applied_to(candidate_request(context, plan, shadow.snapshot_id))


def candidate_request(
    context: Context, plan: Plan, shadow_snapshot_id: int | None, samples: int = 5
) -> DiffRequest:
    """Build the request for a candidate against what it replaces, in the run's partitions."""
    return DiffRequest(
        old_table=plan.resolved.target.table,
        old_snapshot_id=plan.resolved.target.snapshot_id,
        new_table=plan.shadow_table,
        new_snapshot_id=shadow_snapshot_id,
        key=plan.resolved.contract.key,
        scope=plan.resolved.scope,
        ignore=LINEAGE_NAMES,
        samples=samples,
        change=declared_schema_change(plan),
        distributions=plan.resolved.contract.watch.distributions != "off",
        redaction=context.redaction(plan.resolved.contract),
    )


def choose_for_request(
    context: Context, request: DiffRequest, limit_bytes: int | None = None
) -> EngineChoice:
    """Choose the engine by the bytes that must be read.

    Spark compares what the local engine cannot read, e.g. equality deletes. Without a limit that of
    the profile counts.
    """
    return _choose(context, request, limit_bytes)[0]


def _choose(
    context: Context, request: DiffRequest, limit_bytes: int | None = None
) -> tuple[EngineChoice, bool]:
    """Return the choice of the engine, and whether it adds up the sides."""
    limit = _local_limit_bytes(context) if limit_bytes is None else limit_bytes
    try:
        preview = context.differ("local").preview(request)
    except Unsupported as error:
        _require_known_formats(context, request)
        why = f"the engine in this process cannot: {error.problem}"
        return EngineChoice(engine="spark", why=why, bytes_to_read=None, limit_bytes=limit), False
    return choose_engine("auto", preview.bytes_to_read, limit), preview.adds_up


def _require_known_formats(context: Context, request: DiffRequest) -> None:
    """Raise Unsupported where no engine reads one of the tables, before Spark is started."""
    for table in (request.old_table, request.new_table):
        context.tables.describe(table)


def compute_diff(context: Context, request: DiffRequest) -> Diff:
    """Compare with the engine that fits."""
    return context.differ(choose_for_request(context, request).engine).diff(request)


@dataclass(frozen=True)
class ChosenDiff:
    """A diff that has not begun, by the engine that fits; `adds_up`: so will its sides be."""

    differ: Differ
    request: DiffRequest
    adds_up: bool

    def compute(self) -> SummedDiff:
        """Compare, and add up the sides."""
        return self.differ.diff_and_sum(self.request)


def choose_diff(context: Context, request: DiffRequest) -> ChosenDiff:
    """Choose the engine that fits; no row is read. Raises as `choose_for_request`."""
    choice, adds_up = _choose(context, request)
    return ChosenDiff(context.differ(choice.engine), request, adds_up)


def _local_limit_bytes(context: Context) -> int:
    """Return the maximum bytes of changed files that the local engine compares."""
    return context.profile.local_diff_limit_mib * MEBIBYTE


def compare_states(
    context: Context, request: DiffRequest, engine: str = "auto", limit_bytes: int | None = None
) -> EngineDiff:
    """Compare with the requested engine; `auto` chooses by the bytes that must be read.

    Partitions that fingerprints prove equal are not read, where that saves more than the look-up
    costs.
    """
    limit = _local_limit_bytes(context) if limit_bytes is None else limit_bytes
    if engine != "auto":
        choice = choose_engine(engine, None, limit)
    else:
        choice = choose_for_request(context, request, limit)
        if (choice.bytes_to_read or 0) > _FINGERPRINT_LOOKUP_MIN_BYTES:
            request = with_known_equal(context, request)
            choice = choose_for_request(context, request, limit) if request.known_equal else choice
    return EngineDiff(context.differ(choice.engine).diff(request), choice)


def preview_diff(
    context: Context, request: DiffRequest, engine: str = "auto", limit_bytes: int | None = None
) -> tuple[DiffPreview, EngineChoice]:
    """Return, from metadata, what is equal and what would be read; no row is read, no JVM started.

    Raises Unsupported where only Spark can list what delete files hide.
    """
    limit = _local_limit_bytes(context) if limit_bytes is None else limit_bytes
    preview = context.differ("local").preview(with_known_equal(context, request))
    return preview, choose_engine(engine, preview.bytes_to_read, limit)


def choose_engine(engine: str, bytes_to_read: int | None, limit_bytes: int) -> EngineChoice:
    """Choose the engine: the requested one, else by the bytes to read. Raises ConfigError."""
    if engine not in ("auto", "local", "spark"):
        raise ConfigError(f"no engine {engine!r}", fix="choose auto, local or spark")
    chosen: Literal["local", "spark"] = "spark" if engine == "spark" else "local"
    why = "it was asked for"
    if engine == "auto":
        weight = bytes_to_read or 0
        chosen = "local" if weight <= limit_bytes else "spark"
        size, limit = (f"{each / MEBIBYTE:,.1f} MiB" for each in (weight, limit_bytes))
        why = f"{size} to read, {'at most' if chosen == 'local' else 'more than'} {limit}"
    return EngineChoice(
        engine=chosen, why=why, bytes_to_read=bytes_to_read, limit_bytes=limit_bytes
    )


def with_known_equal(context: Context, request: DiffRequest) -> DiffRequest:
    """Add the partitions whose fingerprints are equal on both sides.

    Fingerprints do not cover columns that a run adds: then no partition counts as known, nor where
    files do not belong to partitions. Raises Tampered.
    """
    if request.change or None in (request.old_snapshot_id, request.new_snapshot_id):
        return request
    try:
        return replace(request, known_equal=_equal_by_fingerprint(context, request))
    except (ConfigError, NotFound, Unsupported) as error:
        # The diff then reads everything, and raises its own error for what it cannot do.
        context.journal.log("fingerprints not asked", problem=error.problem)
        return request


def _equal_by_fingerprint(context: Context, request: DiffRequest) -> frozenset[str]:
    scope = _differing_scope(context, request)
    if scope is None:
        return request.known_equal
    old, new = (
        fingerprints.look_up_fingerprints(context, table, snapshot_id, scope).known
        for table, snapshot_id in request.states
    )
    unread = {*old.unread, *new.unread}
    return frozenset(
        label
        for label, checksum in old.checksums.items()
        if label not in unread and new.checksums.get(label) == checksum
    )


def _differing_scope(context: Context, request: DiffRequest) -> Scope | None:
    """Return the partitions whose files differ; None where the sides share no partitions."""
    if request.scope is not None:
        return request.scope
    fields: list[ScopeField] = []
    for table, _ in request.states:
        info = context.tables.describe(table)
        if info is None or len(info.partitioning) > 1:
            return None
        try:
            fields.append(context.tables.scope_field(info, first_scope_column(info)))
        except (ConfigError, NotFound, Unsupported):
            return None
    if fields[0] != fields[1]:
        return None
    old, new = (
        Counter((file.path, file.partition) for file in context.tables.files(*state, fields[0]))
        for state in request.states
    )
    differing = {label for _, label in (old - new) + (new - old)}
    labels = tuple(sorted(label for label in differing if label is not None))
    return Scope(field=fields[0], partitions=labels) if labels else None
