"""Compares two snapshots by a shuffle, for changes that do not fit one machine: the Differ port.

It can also yield every differing row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.spark.dataframes import spark_errors
from lakehouse_backfill.adapters.spark.diff import distributions
from lakehouse_backfill.adapters.spark.diff.rows import (
    ADDED,
    ANY,
    CHANGED,
    NEW,
    OLD,
    REMOVED,
    UNCHANGED,
    Found,
    Wide,
    changed_counts,
    classified,
    distinct_rows,
    find,
    narrow,
    samples,
)
from lakehouse_backfill.adapters.spark.diff.sides import HASH, LABEL, DiffSides, SparkDiffColumn
from lakehouse_backfill.adapters.spark.session import write_guard
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.checks import CellDiff, Diff, PartitionDiff
from lakehouse_backfill.domain.diff import DiffPreview
from lakehouse_backfill.domain.rollout import DifferingRow
from lakehouse_backfill.domain.serialization import to_json_value
from lakehouse_backfill.domain.table import AddedColumn, added_column_names
from lakehouse_backfill.errors import Unsupported
from lakehouse_backfill.ports.comparison import DiffRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_OLD, _NEW = "lhb_old", "lhb_new"


def differing(sides: DiffSides) -> Iterator[DifferingRow]:
    """Yield changed, added and removed rows; those of one partition are here at a time.

    A key that a side holds more than once is not paired, as in the local engine.
    """
    keys = [column for column in sides.columns if column.use == "key"]
    values = [column for column in sides.columns if column.use == "compared"]
    by = [LABEL, *(key.slot for key in keys)]
    slots = [*by, *(value.slot for value in values)]
    old, new = sides.wide("old").select(*slots), sides.wide("new").select(*slots)
    found = (_paired(old, new, by) if keys else _single(old, new)).persist()
    try:
        for raw in _labels(found):
            for row in _ordered(found, raw, keys):
                before, after = (_named(row[side], [*keys, *values]) for side in (_OLD, _NEW))
                whole = before or after or {}
                key = {column.name: whole[column.name] for column in keys} if keys else whole
                yield DifferingRow(sides.layout.label(raw), key, before, after)
    finally:
        found.unpersist()


def _labels(found: DataFrame) -> list[Any]:
    rows = found.select(LABEL).distinct().orderBy(LABEL).collect()
    return [row[LABEL] for row in rows]


def _ordered(found: DataFrame, raw: Any, keys: list[SparkDiffColumn]) -> list[dict[str, Any]]:
    """Return one partition's rows by Arrow, whose values are those of the local engine."""
    from pyspark.sql import functions as F

    one = found.where(F.col(LABEL).eqNullSafe(F.lit(raw)))
    order = [
        F.coalesce(F.col(f"{_OLD}.{key.slot}"), F.col(f"{_NEW}.{key.slot}")).asc_nulls_first()
        for key in keys
    ]
    rows: list[dict[str, Any]] = (one.orderBy(*order) if order else one).toArrow().to_pylist()
    return rows


def _single(old: DataFrame, new: DataFrame) -> DataFrame:
    """Rows of one side that the other lacks, as multisets: each is a row of its own."""
    from pyspark.sql import functions as F

    removed, added = old.exceptAll(new), new.exceptAll(old)
    row = F.struct(*old.columns)
    none = F.when(F.lit(False), row)  # noqa: FBT003 (a null of the rows' type)
    label = F.col(LABEL)
    gone = removed.select(label, row.alias(_OLD), none.alias(_NEW))
    return gone.unionByName(added.select(label, none.alias(_OLD), row.alias(_NEW)))


def _paired(old: DataFrame, new: DataFrame, by: list[str]) -> DataFrame:
    """Rows with one key on both sides stand together; those of a repeated key stand alone."""
    from pyspark.sql import functions as F

    twice = _repeated(old, by).union(_repeated(new, by)).distinct()
    bags = _single(_within(old, twice, by, "left_semi"), _within(new, twice, by, "left_semi"))
    removed = _within(old, twice, by, "left_anti").exceptAll(new)
    added = _within(new, twice, by, "left_anti").exceptAll(old)
    o = removed.select(*(F.col(name).alias(f"o_{name}") for name in by), _struct(removed, _OLD))
    n = added.select(*(F.col(name).alias(f"n_{name}") for name in by), _struct(added, _NEW))
    condition = _all([F.col(f"o_{name}").eqNullSafe(F.col(f"n_{name}")) for name in by])
    label = F.when(F.col(_OLD).isNotNull(), F.col(f"o_{by[0]}")).otherwise(F.col(f"n_{by[0]}"))
    pairs = o.join(n, condition, "full_outer").select(label.alias(LABEL), F.col(_OLD), F.col(_NEW))
    return pairs.unionByName(bags)


def _repeated(side: DataFrame, by: list[str]) -> DataFrame:
    from pyspark.sql import functions as F

    return side.groupBy(*by).agg(F.count(F.lit(1)).alias("n")).where("n > 1").select(*by)


def _within(side: DataFrame, keys: DataFrame, by: list[str], how: str) -> DataFrame:
    named = keys.toDF(*(f"k_{name}" for name in by))
    condition = _all([side[name].eqNullSafe(named[f"k_{name}"]) for name in by])
    return side.join(named, condition, how)


def _struct(side: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F

    return F.struct(*side.columns).alias(name)


def _all(conditions: list[Column]) -> Column:
    first, *others = conditions
    for condition in others:
        first = first & condition
    return first


def _named(row: Any, columns: list[SparkDiffColumn]) -> dict[str, Any] | None:
    if row is None:
        return None
    return {column.name: to_json_value(row[column.slot]) for column in columns}


_COUNTS = (
    OLD,
    NEW,
    ADDED,
    REMOVED,
    CHANGED,
    UNCHANGED,
)
_DUPLICATES = "lhb_duplicates"


class SparkDiffer:
    """The Differ for large changes; its results are those of the local engine.

    Compared on partition, key and row hash; only changed keys are joined back to whole rows. Files
    that both sides share are not compared, and partitions that only hold such files are not read.
    """

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog

    def diff(self, request: DiffRequest) -> Diff:
        """Compare by key; shared files are skipped. Raises NotFound, Unsupported, ConfigError."""
        doing = f"comparing {request.old_table} with {request.new_table}"
        # A job's code may be at work on another thread; this reads layouts by DESCRIBE.
        with spark_errors(doing), write_guard.allow_own_writes():
            sides = DiffSides(self._spark, self._catalog, request)
            return _Comparison(sides, request).run()

    def differing(self, request: DiffRequest) -> Iterator[DifferingRow]:
        """Yield every row that differs, whole; only one partition of the result is here at once."""
        doing = f"comparing {request.old_table} with {request.new_table}"
        with spark_errors(doing), write_guard.allow_own_writes():
            yield from differing(DiffSides(self._spark, self._catalog, request))

    def weigh(self, request: DiffRequest) -> int:
        """Return from metadata the bytes that a diff would read: files of one side only."""
        doing = f"weighing {request.old_table} against {request.new_table}"
        with spark_errors(doing), write_guard.allow_own_writes():
            return DiffSides(self._spark, self._catalog, request).split.differing_bytes

    def preview(self, request: DiffRequest) -> DiffPreview:
        """Refuse: what metadata tells is told without Spark."""
        raise Unsupported(
            f"a preview of {request.old_table} against {request.new_table} needs no Spark",
            fix="ask the engine in this process",
        )


class _Comparison:
    """One diff on its way."""

    def __init__(self, sides: DiffSides, request: DiffRequest) -> None:
        self._sides = sides
        self._request = request

    def run(self) -> Diff:
        """Compare what the files do not already say."""
        sides = self._sides
        old, new = sides.wide("old"), sides.wide("new")
        wide = Wide(old, new, sides.columns)
        keys = [each.slot for each in wide.key]
        narrow = [_narrow(side, keys) for side in (old, new)]
        rows = distinct_rows(narrow[0], narrow[1], keys).persist()
        counted = classified(rows, keys)
        try:
            by_label, duplicates = self._counts(counted)
            many = sum(map(_differing, by_label.values()))
            are_once = bool(keys) and not duplicates
            found = find(wide, rows, counted, many, are_once=are_once)
            try:
                return self._described(wide, found, by_label, duplicates)
            finally:
                found.let_go()
        finally:
            rows.unpersist()

    def _described(
        self,
        wide: Wide,
        found: Found,
        by_label: dict[str | None, dict[str, int]],
        duplicates: int,
    ) -> Diff:
        request, sides = self._request, self._sides
        changed = changed_counts(wide, found) if found.many else {}
        self._tolerate(by_label, changed)
        examples = samples(wide, found, request.samples) if found.many else ()
        partitioned = self._partitions(by_label)
        cells, whole = self._cells(partitioned, changed), _summary(partitioned)
        moved = distributions.Moved(request.distributions, bool(whole.added or whole.removed))
        known = found if 2 * found.many <= whole.old_rows else None
        columns = distributions.column_diffs(wide, _by_column(cells), moved, known)
        return Diff(
            old=sides.text("old"),
            new=sides.text("new"),
            key=request.key,
            summary=whole,
            partitions=partitioned,
            columns=columns,
            samples=examples,
            files=sides.split.files,
            engine="spark",
            duplicate_keys=duplicates,
            cells=cells,
            added_columns=self._added(wide.new),
        )

    def _added(self, new: DataFrame) -> tuple[AddedColumn, ...]:
        from pyspark.sql import functions as F

        names = added_column_names(self._request.change)
        if not names:
            return ()
        slots = {each.name: each.slot for each in self._sides.columns}
        found = new.agg(*(F.count(slots[name]).alias(slots[name]) for name in names)).collect()[0]
        return tuple(AddedColumn(name=name, rows=int(found[slots[name]])) for name in names)

    def _counts(self, counted: DataFrame) -> tuple[dict[str | None, dict[str, int]], int]:
        from pyspark.sql import functions as F

        twice = F.when((F.col(OLD) > 1) | (F.col(NEW) > 1), F.lit(1))
        found = (
            counted.groupBy(LABEL)
            .agg(*(F.sum(name).alias(name) for name in _COUNTS), F.count(twice).alias(_DUPLICATES))
            .collect()
        )
        by_label = {self._sides.layout.label(row[LABEL]): row.asDict() for row in found}
        duplicates = sum(row[_DUPLICATES] for row in found) if self._request.key else 0
        return by_label, duplicates

    def _tolerate(
        self, by_label: dict[str | None, dict[str, int]], changed: dict[Any, dict[str, int]]
    ) -> None:
        """Count rows as unchanged whose values differ by no more than the tolerances."""
        if not self._request.tolerances:
            return
        differing = {self._sides.layout.label(raw): found for raw, found in changed.items()}
        for label, counts in by_label.items():
            beyond = differing.get(label, {}).get(ANY, 0)
            counts[UNCHANGED] += counts[CHANGED] - beyond
            counts[CHANGED] = beyond

    def _cells(
        self, found: tuple[PartitionDiff, ...], changed: dict[Any, dict[str, int]]
    ) -> tuple[CellDiff, ...]:
        """Return what changed by partition and column, in the order of both; never zero."""
        by_label = {self._sides.layout.label(raw): counts for raw, counts in changed.items()}
        return tuple(
            CellDiff(partition=each.partition, column=column.name, changed=count)
            for each in found
            for column in self._sides.columns
            if (count := by_label.get(each.partition, {}).get(column.slot, 0))
        )

    def _partitions(self, by_label: dict[str | None, dict[str, int]]) -> tuple[PartitionDiff, ...]:
        shared = self._sides.shared_rows()
        field = self._sides.layout.field
        known = [label for label in {*by_label, *shared} if label is not None]
        ordered = sorted(known, key=partitions.label_sort_key(field) if field else None)
        nothing: list[str | None] = [None] if None in {*by_label, *shared} else []
        return tuple(
            _partition(label, by_label.get(label, {}), shared.get(label, 0))
            for label in [*nothing, *ordered]
            if by_label.get(label) or shared.get(label)
        )


def _narrow(frame: DataFrame, keys: list[str]) -> DataFrame:
    from pyspark.sql import functions as F

    return narrow(frame, F.col(LABEL), keys, F.col(HASH))


def _partition(label: str | None, counts: dict[str, int], shared: int) -> PartitionDiff:
    old, new, added, removed, changed, same = (counts.get(name) or 0 for name in _COUNTS)
    return PartitionDiff(
        partition=label,
        old_rows=old + shared,
        new_rows=new + shared,
        added=added,
        removed=removed,
        changed=changed,
        unchanged=same + shared,
    )


def _differing(counts: dict[str, int]) -> int:
    """Count the rows of both sides that have no equal on the other."""
    added, removed, changed = (counts[name] or 0 for name in (ADDED, REMOVED, CHANGED))
    return added + removed + 2 * changed


def _by_column(cells: tuple[CellDiff, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for cell in cells:
        found[cell.column] += cell.changed
    return found


def _summary(found: tuple[PartitionDiff, ...]) -> PartitionDiff:
    names = ("old_rows", "new_rows", "added", "removed", "changed", "unchanged")
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    return PartitionDiff(partition=None, **sums)
