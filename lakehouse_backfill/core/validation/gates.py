"""Technical, schema and reconciliation gates.

What the numbers of a staged run mean: one CheckResult per gate.

Whether totals changed by no more than their owner lets pass unseen (Q6).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lakehouse_backfill.domain import table
from lakehouse_backfill.domain.checks import CheckResult, Diff, MeasureTotal, PartitionBalance
from lakehouse_backfill.domain.contract import Contract, Threshold
from lakehouse_backfill.domain.diff import Checksum
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.run import ChunkRecord
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.domain.table import LiveFile, SchemaChange, TableInfo

#: Iceberg's default of write.target-file-size-bytes.
DEFAULT_FILE_BYTES = 512 * 1024 * 1024
#: A partition may have this many files, however small.
ALWAYS_ALLOWED_FILES = 8
#: Lineage columns that are never null in a row that a run made.
REQUIRED_LINEAGE = (
    "produced_by_run_id",
    "produced_by_transform",
    "transform_version",
    "input_snapshot_id",
    "processing_mode",
    "restatement_reason",
    "produced_at",
)


def check_chunks_complete(plan: Plan, chunks: tuple[ChunkRecord, ...]) -> CheckResult:
    """Every chunk of the plan is in the ledger as done."""
    wanted = {chunk.chunk_id for chunk in plan.resolved.chunks}
    done = {chunk.chunk_id for chunk in chunks if chunk.status == "done"}
    missing = sorted(wanted - done)
    return CheckResult(
        name="all chunks are staged",
        group="technical",
        passed=not missing,
        detail=f"{len(done)} of {len(wanted)}" + (f"; missing {missing[0]}" if missing else ""),
        observed=len(done),
        limit=len(wanted),
        waivable=False,
    )


def check_partitions_written(plan: Plan, new: dict[str, Checksum], old: set[str]) -> CheckResult:
    """Every partition that holds rows now holds rows in the candidate too."""
    gone = old - set(new)
    return check_none_emptied([label for label in plan.resolved.scope.partitions if label in gone])


def check_none_emptied(emptied: Sequence[str]) -> CheckResult:
    """No partition that readers see rows in loses all of them; `emptied` are those that do."""
    return CheckResult(
        name="no partition becomes empty",
        group="technical",
        passed=not emptied,
        detail=f"{len(emptied)} become empty" + (f", first {emptied[0]}" if emptied else ""),
        observed=len(emptied),
        limit=0,
    )


def check_row_count(plan: Plan, chunks: tuple[ChunkRecord, ...]) -> CheckResult:
    """The output is not empty and below the declared maximum."""
    rows = sum(chunk.output_rows for chunk in chunks)
    limit = plan.resolved.manifest.safety.max_rows
    return CheckResult(
        name="row count is in range",
        group="technical",
        passed=rows > 0 and (limit is None or rows <= limit),
        detail=f"{rows} rows" + (f", at most {limit}" if limit else ""),
        observed=rows,
        limit=limit,
    )


def check_outside_unchanged(
    base: list[LiveFile], shadow: list[LiveFile], plan: Plan
) -> CheckResult:
    """Outside the scope, base and candidate consist of the very same files and deletes."""
    scope = set(plan.resolved.scope.partitions)
    old = Counter(file.content for file in base if not file.is_in(scope))
    new = Counter(file.content for file in shadow if not file.is_in(scope))
    differing = ((old - new) + (new - old)).total()
    return CheckResult(
        name="nothing outside the partitions changed",
        group="technical",
        passed=old == new,
        detail=f"{(old & new).total()} files shared, {differing} differ",
        observed=differing,
        limit=0,
        waivable=False,
    )


def check_file_sizes(plan: Plan, files: list[LiveFile], shadow: TableInfo) -> CheckResult:
    """No restated partition consists of many more files than its size asks for."""
    target = int(shadow.properties.get("write.target-file-size-bytes", DEFAULT_FILE_BYTES))
    scope, sizes = set(plan.resolved.scope.partitions), defaultdict[str, list[int]](list)
    for file in files:
        if file.partition in scope:
            sizes[file.partition or ""].append(file.size_bytes)
    worst = [
        label
        for label, found in sizes.items()
        if len(found) > max(ALWAYS_ALLOWED_FILES, 2 * -(-sum(found) // target))
    ]
    most = max((len(found) for found in sizes.values()), default=0)
    return CheckResult(
        name="files have a sensible size",
        group="technical",
        passed=not worst,
        detail=f"at most {most} files in a partition"
        + (f"; too many small ones in {worst[0]}" if worst else ""),
        observed=most,
        limit=ALWAYS_ALLOWED_FILES,
    )


def check_lineage_complete(
    counts: tuple[MeasureTotal, ...], rows: int, carried_of: int | None = None
) -> CheckResult:
    """Every restated row says which run made it.

    Where rows are carried over, of `carried_of` old ones, as many may say nothing as did before.
    """
    holes = [
        total.name
        for total in counts
        if rows - int(total.new or 0)
        > (0 if carried_of is None else carried_of - int(total.old or 0))
    ]
    return CheckResult(
        name="lineage is complete",
        group="technical",
        passed=not holes,
        detail=f"{rows} rows" + (f"; {holes[0]} has nulls" if holes else ""),
        observed=len(holes),
        limit=0,
    )


def check_schema_kept(
    contract: Contract, shadow: TableInfo, change: SchemaChange = ()
) -> tuple[CheckResult, ...]:
    """Each column that consumers rely on is there with its type; a required one stays required.

    A declared change is allowed, and nothing else: the new name, and the new type.
    """
    results = []
    names, types = (
        table.renamed_columns(change),
        table.widened_columns(change),
    )
    before = {new: old for old, new in names.items()}
    for wanted in contract.columns:
        found = shadow.column(names.get(wanted.name, wanted.name))
        wider = types.get(before.get(wanted.name, wanted.name))
        problem = ""
        if found is None:
            problem = "is missing"
        elif _normalise_type(found.type) not in (_normalise_type(wanted.type), wider):
            problem = f"is {found.type}, the contract says {wanted.type}"
        elif wanted.required and not found.required:
            problem = "may be null, the contract says required"
        if problem:
            results.append(_schema(f"{wanted.name} {problem}", passed=False))
    return tuple(results) or (_schema(f"{len(contract.columns)} columns kept", passed=True),)


def check_stored_as_computed(
    plan: Plan, chunks: tuple[ChunkRecord, ...], stored: dict[str, Checksum], shape: str
) -> CheckResult:
    """What the shadow holds is what the chunks computed: equal checksums, chunk by chunk."""
    recorded = {chunk.chunk_id: chunk.checksum for chunk in chunks}
    empty = {chunk.chunk_id for chunk in chunks if chunk.output_rows == 0}
    wrong = []
    for chunk in plan.resolved.chunks:
        total = Checksum.empty(shape)
        for label in chunk.partitions:
            total = total + stored[label] if label in stored else total
        if chunk.chunk_id in empty and total.rows == 0:
            continue  # No rows have no shape that could be compared.
        if recorded.get(chunk.chunk_id) != total.text:
            wrong.append(chunk.chunk_id)
    return CheckResult(
        name="stored rows are the computed rows",
        group="reconciliation",
        passed=not wrong,
        detail=f"{len(recorded) - len(wrong)} chunk checksums equal"
        + (f"; differs: {wrong[0]}" if wrong else ""),
        observed=len(wrong),
        limit=0,
        blocking=plan.resolved.manifest.validation.checksum == "required",
        waivable=False,
    )


def check_diff_adds_up(diff: Diff, rows: tuple[PartitionBalance, ...]) -> CheckResult:
    """The diff saw exactly the rows that were counted on both sides."""
    counted = (sum(row.old_count for row in rows), sum(row.new_count for row in rows))
    seen = (diff.summary.old_rows, diff.summary.new_rows)
    return CheckResult(
        name="diff and counts agree",
        group="diff",
        passed=seen == counted,
        detail=f"diff {seen[0]} -> {seen[1]}, counted {counted[0]} -> {counted[1]}",
        observed=list(seen),
        limit=list(counted),
        waivable=False,
    )


def check_keys_unique(duplicates: int, where: str = "candidate") -> CheckResult:
    """No key stands twice in what was staged; what stood twice before may be what is put right."""
    return CheckResult(
        name="keys are unique",
        group="diff",
        passed=duplicates == 0,
        detail=f"{duplicates} duplicate keys in the {where}",
        observed=duplicates,
        limit=0,
    )


def _schema(detail: str, *, passed: bool) -> CheckResult:
    return CheckResult(
        name="columns that consumers rely on",
        group="schema",
        passed=passed,
        detail=detail,
        waivable=False,
    )


def _normalise_type(type_text: str) -> str:
    return type_text.replace(" ", "").lower()


#: Against 0, any other total is a change without a share: no limit lets it pass.
_FROM_NOTHING = math.inf

Amount = int | float | str | None


class _TotalChange(NamedTuple):
    """One total that is judged: where (empty: the measure as a whole), and how far it moved."""

    where: str
    old: Amount
    new: Amount
    share: float


def check_thresholds(
    declared: tuple[Threshold, ...], totals: tuple[MeasureTotal, ...], old_rows: int
) -> tuple[CheckResult, ...]:
    """A declared total changed by no more than the owner lets pass unseen.

    Where the partitions held no row, nothing that readers know can change. A measure that counts
    by value is judged value by value; `each_partition` judges partition by partition.
    """
    return tuple(_check_threshold(item, totals, old_rows) for item in declared)


def measure_totals(measure: str, totals: tuple[MeasureTotal, ...]) -> tuple[MeasureTotal, ...]:
    """Give the total of a measure, or those of each value that it counts."""
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
        detail=f"{where}{worst.old} -> {worst.new} ({_describe_share(worst.share)}){more}",
        observed=to_json_value(worst.share),
        limit=item.max_change,
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


def _describe_share(share: float) -> str:
    return f"{share:+.2%}" if math.isfinite(share) else "no share of the old"


def _share(before: Amount, after: Amount) -> float:
    old, new = float(before or 0), float(after or 0)
    if not (math.isfinite(old) and math.isfinite(new)):
        return math.inf  # No number changes by a share, and NaN would hide behind others.
    return abs(new - old) / abs(old) if old else _FROM_NOTHING if new else 0.0
