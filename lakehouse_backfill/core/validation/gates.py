"""Technical, schema, reconciliation and business gates: one CheckResult per gate.

All functions are pure: they judge numbers that were measured before. Thresholds check that totals
changed by no more than their owner allows without review (Q6).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from lakehouse_backfill.core.planning.scope.key_chunks import is_by_key
from lakehouse_backfill.core.planning.target import file_sizes
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.domain.checks import CheckResult, MeasureTotal, PartitionBalance
from lakehouse_backfill.domain.comparison.checksums import Checksum
from lakehouse_backfill.domain.comparison.diff import Diff
from lakehouse_backfill.domain.contract import Contract, Threshold
from lakehouse_backfill.domain.guards.privacy import MaskedColumn
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import LINEAGE_NAMES, ChunkRecord
from lakehouse_backfill.domain.serialization import show_amount, to_json_value
from lakehouse_backfill.domain.tables.files import LiveFile
from lakehouse_backfill.domain.tables.schema_change import (
    SchemaChange,
    normalise_type,
    renamed_columns,
    widened_columns,
)
from lakehouse_backfill.domain.tables.table import TableInfo

_REASONS_SHOWN = 5
#: Lineage columns that are never null in a row that a run made.
REQUIRED_LINEAGE = tuple(
    name
    for name in LINEAGE_NAMES
    if name not in ("input_range_start", "input_range_end", "reference_data_version")
)


def check_chunks_complete(plan: Plan, chunks: tuple[ChunkRecord, ...]) -> CheckResult:
    """Check that every chunk of the plan is done in the ledger."""
    planned = {chunk.chunk_id for chunk in plan.resolved.chunks}
    done = {chunk.chunk_id for chunk in chunks if chunk.status == "done"}
    missing = sorted(planned - done)
    return gate_registry.gate_result(
        "all chunks are staged",
        passed=not missing,
        detail=f"{len(done):,} of {len(planned):,}"
        + (f"; missing {missing[0]}" if missing else ""),
        observed=len(done),
        limit=len(planned),
    )


def check_none_emptied(emptied: Sequence[str]) -> CheckResult:
    """Check that no visible partition loses all its rows; `emptied` are those that do."""
    detail = f"{len(emptied):,} become empty" + (f", first {emptied[0]}" if emptied else "")
    return gate_registry.fault_count_result("no partition becomes empty", len(emptied), detail)


def check_row_count(plan: Plan, rows: int, *, is_whole: bool = True) -> CheckResult:
    """Check that the rows are within the declared maximum, and the whole output is not empty."""
    limit = plan.resolved.manifest.safety.max_rows
    until = "" if is_whole else " up to this chunk"
    return gate_registry.gate_result(
        "row count is in range",
        passed=(rows > 0 or not is_whole) and (limit is None or rows <= limit),
        detail=f"{rows:,} rows{until}" + (f", at most {limit:,}" if limit else ""),
        observed=rows,
        limit=limit,
    )


def check_rejects(plan: Plan, chunks: Iterable[ChunkRecord]) -> tuple[CheckResult, ...]:
    """Check that chunks rejected no larger share than allowed; no check where none can.

    The share is of the rows that the transform made for the chunks. A chunk that was carried over
    counts where it was computed.
    """
    known = [chunk for chunk in chunks if chunk.rejected_rows is not None]
    if not known:
        return ()
    rejected = sum(chunk.rejected_rows or 0 for chunk in known)
    rows = rejected + sum(map(_computed_rows, known))
    allowed = plan.resolved.manifest.safety.max_rejected_share
    share = rejected / rows if rows else 0.0
    reasons = Counter[str]()
    for text in (text for chunk in known for text in chunk.reject_reasons):
        count, _, reason = text.partition(" ")
        reasons[reason] += int(count.replace(",", ""))
    shown = [f"{count:,} {reason}" for reason, count in reasons.most_common(_REASONS_SHOWN)]
    named = f": {'; '.join(shown)}" if shown else ""
    result = gate_registry.gate_result(
        "rejected rows are in range",
        passed=share <= allowed,
        detail=f"{rejected:,} of {rows:,} rows rejected ({share:.2%}), "
        f"at most {allowed:.2%}{named}",
        observed=share,
        limit=allowed,
    )
    return (result,)


def _computed_rows(chunk: ChunkRecord) -> int:
    """Return how many rows of a chunk its transform made: of a merge, the change rows by key."""
    merged = (
        chunk.inserted_rows, chunk.updated_rows, chunk.deleted_rows, chunk.ignored_rows,
    )  # fmt: skip
    if any(count is not None for count in merged):
        return sum(count or 0 for count in merged)
    others = (chunk.stray_rows or 0) + (chunk.left_out_rows or 0)
    return chunk.output_rows - (chunk.carried_rows or 0) + others


def check_outside_unchanged(
    base: list[LiveFile], shadow: list[LiveFile], plan: Plan
) -> CheckResult:
    """Check that base and candidate have the same files and deletes outside the scope."""
    scope = set(plan.resolved.scope.partitions)
    old = Counter(file.content for file in base if not file.is_in(scope))
    new = Counter(file.content for file in shadow if not file.is_in(scope))
    differing = ((old - new) + (new - old)).total()
    detail = f"{(old & new).total():,} files shared, {differing:,} differ"
    return gate_registry.fault_count_result(
        "nothing outside the partitions changed", differing, detail
    )


def check_file_sizes(plan: Plan, files: list[LiveFile], shadow: TableInfo) -> CheckResult:
    """Check that no restated partition has many more files than its size needs.

    The detail has the numbers: files, their mean size beside the table's target, and the partition
    that has most more than it may.
    """
    target = file_sizes.target_file_bytes(shadow.properties)
    scope = set(plan.resolved.scope.partitions)
    sizes = defaultdict[tuple[str, str], list[int]](list)
    for file in files:
        if file.partition in scope:
            sizes[file.partition or "", file.place].append(file.size_bytes)
    # Each chunk by key ends with a file of its own.
    parts = len(plan.resolved.chunks) - 1 if is_by_key(plan.resolved.chunks) else 0
    over = {
        place: len(own) - file_sizes.allowed_files(sum(own), target) - parts
        for place, own in sizes.items()
    }
    fragmented = [place for place, excess in over.items() if excess > 0]
    max_files = max((len(own) for own in sizes.values()), default=0)
    number, total = sum(map(len, sizes.values())), sum(map(sum, sizes.values()))
    detail = f"at most {max_files:,} files in a partition"
    if number:
        detail += f"; {number:,} files, {total // number:,} bytes on average, target {target:,}"
    if fragmented:
        worst = max(fragmented, key=lambda place: over[place])
        held = len(sizes[worst])
        detail += f"; {worst[0]} has {held:,}, and may have {held - over[worst]:,}"
        detail += f" (so {len(fragmented):,} partitions)" if len(fragmented) > 1 else ""
    return gate_registry.gate_result(
        "files have a sensible size",
        passed=not fragmented,
        detail=detail,
        observed=max_files,
        limit=file_sizes.ALWAYS_ALLOWED_FILES + parts,
    )


def check_lineage_complete(
    counts: tuple[MeasureTotal, ...], rows: int, carried_of: int | None = None
) -> CheckResult:
    """Check that every restated row names the run that made it.

    Where rows are carried over from `carried_of` old ones, as many may lack lineage as before.
    """
    holes = [
        total.name
        for total in counts
        if rows - int(total.new or 0)
        > (0 if carried_of is None else carried_of - int(total.old or 0))
    ]
    detail = f"{rows:,} rows" + (f"; {holes[0]} has nulls" if holes else "")
    return gate_registry.fault_count_result("lineage is complete", len(holes), detail)


def check_schema_kept(
    contract: Contract, shadow: TableInfo, change: SchemaChange = ()
) -> tuple[CheckResult, ...]:
    """Check that each column of the contract has its type, and that required ones stay required.

    A declared change is allowed, and nothing else: the new name, and the new type.
    """
    problems = []
    names, types = renamed_columns(change), widened_columns(change)
    before = {new: old for old, new in names.items()}
    for declared in contract.columns:
        column = shadow.column(names.get(declared.name, declared.name))
        widened = types.get(before.get(declared.name, declared.name))
        if column is None:
            problems.append(f"{declared.name} is missing")
        elif _comparable(column.type) not in (_comparable(declared.type), widened):
            problems.append(f"{declared.name} is {column.type}, the contract says {declared.type}")
        elif declared.required and not column.required:
            problems.append(f"{declared.name} may be null, the contract says required")
    return tuple(
        gate_registry.gate_result(
            "columns that consumers rely on", passed=not problems, detail=detail
        )
        for detail in problems or [f"{len(contract.columns)} columns kept"]
    )


def _comparable(type_text: str) -> str:
    return normalise_type(type_text).lower()


def check_stored_as_computed(
    plan: Plan, chunks: tuple[ChunkRecord, ...], stored: dict[str, Checksum], shape: str
) -> CheckResult:
    """Check that the shadow holds what was computed: equal checksums, chunk by chunk."""
    recorded = {chunk.chunk_id: chunk.checksum for chunk in chunks}
    differing = _differing_chunks(plan, chunks, stored, shape)
    detail = f"{len(recorded) - len(differing):,} chunk checksums equal"
    if is_by_key(plan.resolved.chunks):
        detail = f"sum of {len(recorded):,} chunk checksums, against the whole table"
    if differing:
        detail += f"; differs: {differing[0]}"
    blocking = plan.resolved.manifest.validation.checksum == "required"
    return gate_registry.fault_count_result(
        "stored rows are the computed rows", len(differing), detail, blocking=blocking
    )


def _differing_chunks(
    plan: Plan, chunks: tuple[ChunkRecord, ...], stored: dict[str, Checksum], shape: str
) -> list[str]:
    """Return the chunks whose partitions hold other rows than they wrote.

    Of chunks by key only the sum can be compared: all of them differ, or none.
    """
    recorded = {chunk.chunk_id: chunk.checksum for chunk in chunks}
    empty = {chunk.chunk_id for chunk in chunks if chunk.output_rows == 0}
    planned, differing = plan.resolved.chunks, list[str]()
    if is_by_key(planned):
        filled = [Checksum.parse(text) for name, text in recorded.items() if name not in empty]
        written = reduce(Checksum.__add__, filled) if filled else None
        held = [stored[label] for label in planned[0].partitions if label in stored]
        found = [one.text for one in held if one.rows]
        is_same = found == ([written.text] if written else [])
        return [] if is_same else [chunk.chunk_id for chunk in planned]
    for chunk in planned:
        total = Checksum.empty(shape)
        for label in chunk.partitions:
            total = total + stored[label] if label in stored else total
        if chunk.chunk_id in empty and total.rows == 0:
            continue  # Without rows there is no shape to compare.
        if recorded.get(chunk.chunk_id) != total.text:
            differing.append(chunk.chunk_id)
    return differing


def check_diff_adds_up(diff: Diff, rows: tuple[PartitionBalance, ...]) -> CheckResult:
    """Check that the diff saw exactly the rows that were counted on both sides."""
    counted = (sum(row.old_count for row in rows), sum(row.new_count for row in rows))
    seen = (diff.summary.old_rows, diff.summary.new_rows)
    return gate_registry.gate_result(
        "diff and counts agree",
        passed=seen == counted,
        detail=f"diff {seen[0]:,} -> {seen[1]:,}, counted {counted[0]:,} -> {counted[1]:,}",
        observed=list(seen),
        limit=list(counted),
    )


def check_keys_unique(duplicates: int, where: str = "candidate") -> CheckResult:
    """Check that no key is duplicated in what was staged.

    Old duplicates do not count: the run may be their correction.
    """
    return gate_registry.fault_count_result(
        "keys are unique", duplicates, f"{duplicates:,} duplicate keys in the {where}"
    )


#: A change from 0 has no share: no limit allows it.
_FROM_NOTHING = math.inf

Amount = int | float | str | None


class _TotalChange(NamedTuple):
    """One judged total: `where` is empty for the whole measure, `share` the relative change."""

    where: str
    old: Amount
    new: Amount
    share: float


def check_thresholds(
    declared: tuple[Threshold, ...], totals: tuple[MeasureTotal, ...], old_rows: int
) -> tuple[CheckResult, ...]:
    """Check that each declared total changed by no more than its owner allows without review.

    Where the partitions held no row, nothing that readers know can change. A measure that counts by
    value is judged value by value; `each_partition` judges partition by partition.
    """
    return tuple(_check_threshold(item, totals, old_rows) for item in declared)


def measure_totals(measure: str, totals: tuple[MeasureTotal, ...]) -> tuple[MeasureTotal, ...]:
    """Return the total of a measure, or those of each value that it counts."""
    return tuple(total for total in totals if measure in (total.of or total.name, total.name))


def _check_threshold(
    item: Threshold, totals: tuple[MeasureTotal, ...], old_rows: int
) -> CheckResult:
    changes = [
        one for total in measure_totals(item.measure, totals) for one in _changes(item, total)
    ]
    # A measure without a value on either side has not changed.
    worst = max(changes, key=lambda one: one.share, default=_TotalChange("", None, None, 0.0))
    over = sum(one.share > item.max_change for one in changes)
    each = " in each partition" if item.each_partition else ""
    where = f"{worst.where}: " if worst.where else ""
    more = f"; {over} of {len(changes)} change by more" if over > 1 else ""
    return CheckResult(
        name=f"{item.measure} changes by at most {item.max_change:.1%}{each}",
        group="business",
        passed=worst.share <= item.max_change or not old_rows,
        detail=f"{where}{show_amount(worst.old)} -> {show_amount(worst.new)} "
        f"({_describe_share(worst)}){more}",
        observed=to_json_value(worst.share),
        limit=item.max_change,
        judged=bool(old_rows),
    )


def _changes(item: Threshold, total: MeasureTotal) -> Iterator[_TotalChange]:
    if not item.each_partition:
        name = total.name if total.of else ""
        yield _TotalChange(name, total.old, total.new, _share(total.old, total.new))
        return
    for point in total.series:
        if point.old is not None:
            name = f"{point.partition}, {total.name}" if total.of else point.partition
            yield _TotalChange(name, point.old, point.new, _share(point.old, point.new))


def _describe_share(change: _TotalChange) -> str:
    if not math.isfinite(change.share):
        return "no share of the old"
    is_fall = float(change.new or 0) < float(change.old or 0)
    return f"{-change.share if is_fall else change.share:+.2%}"


def _share(before: Amount, after: Amount) -> float:
    old, new = float(before or 0), float(after or 0)
    if not (math.isfinite(old) and math.isfinite(new)):
        return math.inf  # NaN has no share of change, and would hide behind other numbers.
    return abs(new - old) / abs(old) if old else _FROM_NOTHING if new else 0.0


def check_masks(columns: Iterable[MaskedColumn]) -> CheckResult:
    """Check that masked columns hold only what their masks make, by shape and against the input.

    Without a fault it counts as judged only where each value was compared with the one it must be.
    """
    faults, texts, is_judged = 0, [], True
    for one in columns:
        faults += one.misshapen + (one.raw or 0) + (one.foreign or 0)
        text = f"{one.column}: {one.misshapen:,} of {one.values:,} values have another shape"
        if one.raw is not None:
            text += f", {one.raw:,} are raw values of an input"
        elif one.foreign is None and one.unseen:
            text += ", not compared with raw values"
        if one.foreign is not None:
            rows = f"of the rows with the same {', '.join(one.by)}" if one.by else "of any row"
            text += f", {one.foreign:,} are not the mask of {one.made_of} {rows}"
        if one.ambiguous:
            text += f"; of {one.ambiguous:,} it is not known which of several values is theirs"
        if one.unseen:
            text += f"; not computed again: {one.unseen}"
        is_judged = is_judged and one.is_whole
        texts.append(text)
    return gate_registry.gate_result(
        "masked columns hold masked values only", passed=not faults, detail="; ".join(texts),
        observed=faults, limit=0, judged=is_judged or bool(faults),
    )  # fmt: skip
