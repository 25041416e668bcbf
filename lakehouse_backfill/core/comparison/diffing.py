"""What `diff` does: two states are compared by the engine that fits, or only weighed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from lakehouse_backfill.core.comparison import fingerprinting
from lakehouse_backfill.core.comparison.reconciling import Sides
from lakehouse_backfill.core.runs.workbench import Workbench
from lakehouse_backfill.domain import rules_schema_change
from lakehouse_backfill.domain.checks import Diff
from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.preview import DiffPreview, EngineChoice
from lakehouse_backfill.domain.scope import Scope, ScopeField
from lakehouse_backfill.domain.table import TableInfo
from lakehouse_backfill.domain.tolerance import Tolerance
from lakehouse_backfill.errors import ConfigError, NotFound, Unsupported
from lakehouse_backfill.ports.diffing import DiffRequest

MEBIBYTE = 1024 * 1024
#: Below this reading the rows is as fast as asking what is known of their files.
_WORTH_ASKING_BYTES = 32 * MEBIBYTE


@dataclass(frozen=True)
class Asked:
    """What of two states is compared, and how; no key: that of the contract."""

    key: tuple[str, ...] = ()
    where: str | None = None
    samples: int = 5
    ignore: tuple[str, ...] = ()
    tolerances: tuple[Tolerance, ...] = ()


@dataclass(frozen=True)
class Compared:
    """A diff, and why this engine made it."""

    diff: Diff
    choice: EngineChoice


def request_of_states(bench: Workbench, sides: Sides, asked: Asked) -> DiffRequest:
    """Ask for two table states, of one table or of two; raises NotFound."""
    old, new = bench.tables.resolve(sides.old), bench.tables.resolve(sides.new)
    return DiffRequest(
        old_table=sides.old.table,
        old_snapshot_id=old.snapshot_id,
        new_table=sides.new.table,
        new_snapshot_id=new.snapshot_id,
        key=asked.key or (sides.contract.key if sides.contract else ()),
        ignore=(*LINEAGE_NAMES, *asked.ignore),
        samples=asked.samples,
        where=asked.where,
        tolerances=asked.tolerances,
    )


def request_of_run(bench: Workbench, run_id: str, asked: Asked) -> DiffRequest:
    """Ask for a run's candidate against what it replaces, in the run's partitions."""
    plan = bench.runs.plan(run_id)
    shadow = bench.tables.describe(plan.shadow_table)
    if shadow is None:
        raise NotFound(f"{run_id} has no staged candidate", fix=f"lakehouse-backfill run {run_id}")
    found = candidate_request(plan, shadow, asked.samples, asked.where)
    return replace(
        found,
        key=asked.key or found.key,
        ignore=(*found.ignore, *asked.ignore),
        tolerances=asked.tolerances,
    )


def candidate_request(
    plan: Plan, shadow: TableInfo, samples: int, where: str | None = None
) -> DiffRequest:
    """Ask for a run's candidate against what it replaces, in the run's partitions."""
    return DiffRequest(
        old_table=plan.resolved.target.table,
        old_snapshot_id=plan.resolved.target.snapshot_id,
        new_table=shadow.table,
        new_snapshot_id=shadow.snapshot_id,
        key=plan.resolved.contract.key,
        scope=plan.resolved.scope,
        ignore=LINEAGE_NAMES,
        samples=samples,
        where=where,
        change=rules_schema_change.of_plan(plan),
        distributions=plan.resolved.contract.watch.distributions != "off",
    )


def engine_for(bench: Workbench, request: DiffRequest) -> str:
    """Choose the engine by the bytes that must be read.

    What the engine in this process cannot read, equality deletes for one, Spark does.
    """
    try:
        weight = bench.differ("local").weigh(request)
    except Unsupported:
        return "spark"
    return chosen("auto", weight, limit_of(bench)).engine


def diff(bench: Workbench, request: DiffRequest) -> Diff:
    """Compare with the engine that fits."""
    return bench.differ(engine_for(bench, request)).diff(request)


def limit_of(bench: Workbench) -> int:
    """Tell up to how many bytes of changed files the engine in this process compares them."""
    return bench.profile.local_diff_limit_mib * 1024 * 1024


def compare(
    bench: Workbench, request: DiffRequest, engine: str = "auto", limit_bytes: int | None = None
) -> Compared:
    """Compare with the engine asked for; `auto` chooses by the bytes that must be read.

    Partitions that fingerprints prove to be equal are not read, where that saves more than asking.
    """
    limit = limit_of(bench) if limit_bytes is None else limit_bytes
    weight: int | None = None
    if engine == "auto":
        try:
            weight = bench.differ("local").weigh(request)
        except Unsupported as error:
            choice = EngineChoice(
                engine="spark",
                why=f"the engine in this process cannot: {error.problem}",
                bytes_to_read=None,
                limit_bytes=limit,
            )
            return Compared(bench.differ("spark").diff(request), choice)
        if weight > _WORTH_ASKING_BYTES:
            request = with_known(bench, request)
            weight = bench.differ("local").weigh(request) if request.known_equal else weight
    choice = chosen(engine, weight, limit)
    return Compared(bench.differ(choice.engine).diff(request), choice)


def preview(
    bench: Workbench, request: DiffRequest, engine: str = "auto", limit_bytes: int | None = None
) -> tuple[DiffPreview, EngineChoice]:
    """Say from metadata what is the same and what would be read; no row is read, no JVM started.

    Raises Unsupported where only Spark can list what delete files hide.
    """
    limit = limit_of(bench) if limit_bytes is None else limit_bytes
    found = bench.differ("local").preview(with_known(bench, request))
    return found, chosen(engine, found.bytes_to_read, limit)


def chosen(engine: str, bytes_to_read: int | None, limit_bytes: int) -> EngineChoice:
    """Choose the engine: the one asked for, else by how much must be read. Raises ConfigError."""
    if engine not in ("auto", "local", "spark"):
        raise ConfigError(f"no engine {engine!r}", fix="choose auto, local or spark")
    named: Literal["local", "spark"] = "spark" if engine == "spark" else "local"
    why = "it was asked for"
    if engine == "auto":
        weight = bytes_to_read or 0
        named = "local" if weight <= limit_bytes else "spark"
        size, limit = (f"{each / MEBIBYTE:,.1f} MiB" for each in (weight, limit_bytes))
        why = f"{size} to read, {'at most' if named == 'local' else 'more than'} {limit}"
    return EngineChoice(engine=named, why=why, bytes_to_read=bytes_to_read, limit_bytes=limit_bytes)


def with_known(bench: Workbench, request: DiffRequest) -> DiffRequest:
    """Add the partitions whose fingerprints are the same on both sides.

    Fingerprints say nothing of columns that a run adds, so there nothing counts as known, nor where
    files cannot be told apart by partitions. Raises Tampered.
    """
    if request.change or None in _snapshots(request):
        return request
    try:
        return replace(request, known_equal=_known_equal(bench, request))
    except (ConfigError, NotFound, Unsupported) as error:
        # The diff reads all of it then, and says itself what it cannot do.
        bench.journal.log("fingerprints not asked", problem=error.problem)
        return request


def _known_equal(bench: Workbench, request: DiffRequest) -> frozenset[str]:
    scope = _scope(bench, request)
    if scope is None:
        return request.known_equal
    old, new = (
        fingerprinting.look(bench, table, snapshot_id, scope).known
        for table, snapshot_id in _states(request)
    )
    unread = {*old.unknown, *new.unknown}
    return frozenset(
        label
        for label, checksum in old.checksums.items()
        if label not in unread and new.checksums.get(label) == checksum
    )


def _states(request: DiffRequest) -> tuple[tuple[str, int | None], tuple[str, int | None]]:
    return (
        (request.old_table, request.old_snapshot_id),
        (request.new_table, request.new_snapshot_id),
    )


def _snapshots(request: DiffRequest) -> tuple[int | None, int | None]:
    return request.old_snapshot_id, request.new_snapshot_id


def _scope(bench: Workbench, request: DiffRequest) -> Scope | None:
    """Give the partitions whose files differ; None where the sides have no common partitions."""
    if request.scope is not None:
        return request.scope
    fields: list[ScopeField] = []
    for table, _ in _states(request):
        info = bench.tables.describe(table)
        if info is None or len(info.partitioning) != 1:
            return None
        try:
            fields.append(bench.tables.scope_field(info, info.partitioning[0].column))
        except (ConfigError, NotFound, Unsupported):
            return None
    if fields[0] != fields[1]:
        return None
    old, new = (
        Counter((file.path, file.partition) for file in bench.tables.files(*state, fields[0]))
        for state in _states(request)
    )
    differing = {label for _, label in (old - new) + (new - old)}
    labels = tuple(sorted(label for label in differing if label is not None))
    return Scope(field=fields[0], partitions=labels) if labels else None
