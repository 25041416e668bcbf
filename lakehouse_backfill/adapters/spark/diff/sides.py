"""The two sides of a diff, under the same short column names and in comparable types.

Only rows that the shared files do not already decide are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakehouse_backfill.adapters.spark import dataframes, row_hash
from lakehouse_backfill.adapters.spark.dataframes import quoted_column
from lakehouse_backfill.adapters.spark.diff import files
from lakehouse_backfill.core.comparison.conditions import (
    condition_columns,
    render_condition,
    require_applicable_tolerances,
    require_ignored_columns_exist,
)
from lakehouse_backfill.domain import partitions
from lakehouse_backfill.domain.manifest import Tolerance
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.table import added_column_names
from lakehouse_backfill.errors import ConfigError, Unsupported
from lakehouse_backfill.ports.comparison import DiffRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


Use = Literal["key", "compared", "condition"]
_WHOLE = ("byte", "short", "integer", "long")
_NUMBERS = (*_WHOLE, "float", "double", "decimal")
_NESTED = ("struct", "array", "map")


@dataclass(frozen=True)
class SparkDiffColumn:
    """One column by name: its short name in compared frames, its type there, and its use."""

    name: str
    slot: str
    use: Use
    old: DataType | None
    new: DataType | None
    tolerance: Tolerance | None = None

    @property
    def kind(self) -> Literal["number", "category", "other"]:
        """What its distribution is described by."""
        kinds = {each.typeName() for each in (self.old, self.new) if each is not None}
        if kinds <= set(_NUMBERS):
            return "number"
        return "category" if kinds <= {"string", "char", "varchar", "boolean"} else "other"

    @property
    def is_whole(self) -> bool:
        """Whether the values of both sides are whole numbers."""
        return all(e is None or e.typeName() in _WHOLE for e in (self.old, self.new))

    @property
    def is_nested(self) -> bool:
        """Whether it holds structs, lists or maps (on any side)."""
        return any(e is not None and e.typeName() in _NESTED for e in (self.old, self.new))

    def of(self, own: DataType | None) -> Column:
        """Return a side's value in the type that both sides are compared in."""
        from pyspark.sql import functions as F

        common = common_type(self.old, self.new)
        if own is None:
            return F.lit(None).cast(common or "string")
        value = quoted_column(self.name)
        if common is not None:
            return _fitted(value, own, common)
        # Values of different types never equal each other; their text says which type it was.
        text = F.to_json(value) if own.typeName() in _NESTED else value.cast("string")
        return F.when(value.isNotNull(), F.concat(F.lit(f"{_type_text(own)}: "), text))


def columns_of_diff(
    old: StructType, new: StructType, key: tuple[str, ...], ignore: Collection[str],
    read: Collection[str], tolerances: tuple[Tolerance, ...] = (),
) -> tuple[SparkDiffColumn, ...]:  # fmt: skip
    """List the columns of both sides: in the order of the new side, then those only old has.

    Raises ConfigError when a side lacks a key column or a tolerance is of no compared number
    column, Unsupported when the types of a key column cannot be matched.
    """
    sides = [{field.name: field.dataType for field in schema.fields} for schema in (old, new)]
    require_ignored_columns_exist(ignore, sides)
    for name in key:
        _require_key(name, sides)
    limits = {one.column: one for one in tolerances}
    columns: list[SparkDiffColumn] = []
    for name in dict.fromkeys([*sides[1], *sides[0]]):
        if name in ignore and name not in key and name not in read:
            continue
        use: Use = "key" if name in key else "condition" if name in ignore else "compared"
        types = sides[0].get(name), sides[1].get(name)
        columns.append(SparkDiffColumn(name, f"c{len(columns)}", use, *types, limits.get(name)))
    kinds = {column.name: column.kind for column in columns if column.use == "compared"}
    require_applicable_tolerances(tolerances, kinds, key)
    return tuple(columns)


def aligned(
    frame: DataFrame,
    side: Literal["old", "new"],
    columns: tuple[SparkDiffColumn, ...],
    *extra: Column,
) -> DataFrame:
    """Return a side's rows under the short names, plus extra columns."""
    chosen = [each.of(each.old if side == "old" else each.new).alias(each.slot) for each in columns]
    return frame.select(*extra, *chosen)


def common_type(one: DataType | None, other: DataType | None) -> DataType | None:
    """Return the type in which values of both are compared exactly; None: they never equal."""
    from pyspark.sql import types as T

    if one is None or other is None:
        only = one or other
        return None if only is None else _without_maps(only)
    if one.simpleString() == other.simpleString():
        return _without_maps(one)
    names = {one.typeName(), other.typeName()}
    if names <= set(_WHOLE):
        return T.LongType()
    if names <= set(_NUMBERS):
        if names & {"float", "double"}:
            return T.DoubleType()
        return _common_decimal(one, other)
    if names == {"date", "timestamp_ntz"}:
        return T.TimestampNTZType()
    return _common_nested(one, other)


def _without_maps(kind: DataType) -> DataType:
    """Maps cannot be compared: they are by their entries, in the order of the keys."""
    from pyspark.sql import types as T

    if not isinstance(kind, T.MapType):
        return kind
    entry = T.StructType(
        [T.StructField("key", kind.keyType, nullable=False), T.StructField("value", kind.valueType)]
    )
    return T.ArrayType(entry)


def _common_nested(one: DataType, other: DataType) -> DataType | None:
    """Lists by their elements; structs by the fields of both, of which a side may lack some."""
    from pyspark.sql import types as T

    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        element = common_type(one.elementType, other.elementType)
        return None if element is None else T.ArrayType(element)
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        kinds = [{field.name: field.dataType for field in side.fields} for side in (one, other)]
        common = {
            name: common_type(kinds[0].get(name), kinds[1].get(name))
            for name in sorted({*kinds[0], *kinds[1]})
        }
        fields = [T.StructField(name, kind) for name, kind in common.items() if kind is not None]
        return T.StructType(fields) if len(fields) == len(common) else None
    return None


def _fitted(value: Column, own: DataType, common: DataType) -> Column:
    """Return the value in the common type; fields that its own type lacks are null."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if own.simpleString() == common.simpleString():
        return value
    if isinstance(own, T.MapType) and isinstance(common, T.ArrayType):
        return F.array_sort(F.map_entries(value)).cast(common)
    if isinstance(own, T.ArrayType) and isinstance(common, T.ArrayType):
        inner, wanted = own.elementType, common.elementType
        return F.transform(value, lambda element: _fitted(element, inner, wanted))
    if isinstance(own, T.StructType) and isinstance(common, T.StructType):
        held = {field.name: field.dataType for field in own.fields}
        fields = [
            (
                _fitted(value.getField(each.name), held[each.name], each.dataType)
                if each.name in held
                else F.lit(None).cast(each.dataType)
            ).alias(each.name)
            for each in common.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    return value.cast(common)


def _type_text(kind: DataType) -> str:
    """Name a type as Iceberg does."""
    names = {"bigint": "long", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
    plain = kind.simpleString()
    return names.get(plain, plain.replace(",", ", "))


def _common_decimal(one: DataType, other: DataType) -> DataType:
    from pyspark.sql import types as T

    kinds = [
        kind if isinstance(kind, T.DecimalType) else T.DecimalType(19, 0) for kind in (one, other)
    ]
    scale = max(kind.scale for kind in kinds)
    whole = max(kind.precision - kind.scale for kind in kinds)
    return T.DecimalType(min(whole + scale, 38), scale)


def _require_key(name: str, sides: list[dict[str, DataType]]) -> None:
    known = [side for side in sides if side]
    if not all(name in side for side in known):
        both = sorted(set.intersection(*(set(side) for side in known)))
        raise ConfigError(
            f"key column {name} is not on both sides",
            fix=f"choose key columns from: {', '.join(both)}",
        )
    types = [side[name] for side in known]
    nested = any(kind.typeName() in _NESTED for kind in types)
    if types and (nested or common_type(types[0], types[-1]) is None):
        raise Unsupported(
            f"key column {name} has types that cannot be matched: "
            + ", ".join(kind.simpleString() for kind in types),
            fix="choose key columns of one simple type",
        )


SideName = Literal["old", "new"]


@dataclass(frozen=True)
class _Side:
    """One snapshot of one table; None: it has no rows, and no columns of its own."""

    name: SideName
    table: str
    snapshot_id: int | None
    schema: StructType


class DiffSides:
    """Reads both sides of one request, without what their shared files already say."""

    def __init__(self, spark: SparkSession, catalog: str, request: DiffRequest) -> None:
        self._spark = spark
        self._catalog = catalog
        self._request = request
        self._old = self._side("old", request.old_table, request.old_snapshot_id)
        self._new = self._side("new", request.new_table, request.new_snapshot_id)
        self.columns = columns_of_diff(
            self._old.schema,
            self._new.schema,
            request.key,
            (*request.ignore, *added_column_names(request.change)),
            self._asked() | set(added_column_names(request.change)),
            request.tolerances,
        )
        both = [(side.table, side.snapshot_id, side.schema) for side in (self._old, self._new)]
        self.layout = files.find(spark, catalog, both, request.scope)
        self.split = self._split_files()

    def text(self, name: SideName) -> str:
        """Return `namespace.table@snapshot`, or `namespace.table (no rows)`."""
        side = self._named(name)
        known = side.snapshot_id is not None
        return f"{side.table}@{side.snapshot_id}" if known else f"{side.table} (no rows)"

    def wide(self, name: SideName) -> DataFrame:
        """Return a side's rows that must be compared, with their hash over the compared columns."""
        side = self._named(name)
        frame = self._aligned(side, self._rows(side, shared=False))
        left_out = [each.slot for each in self.columns if each.use != "compared"]
        hashed = row_hash.row_hash_column(frame.schema, (*left_out, LABEL))
        return frame.withColumn(HASH, hashed)

    def shared_rows(self) -> dict[str | None, int]:
        """Count the rows of skipped files by label; with a condition, those that meet it."""
        if self._request.where is None:
            return dict(self.split.unchanged)
        if not self.split.skipped:
            return {}
        from pyspark.sql import functions as F

        found = self._aligned(self._new, self._rows(self._new, shared=True))
        counts: Counter[str | None] = Counter()
        for row in found.groupBy(LABEL).agg(F.count(F.lit(1)).alias("n")).collect():
            counts[self.layout.label(row[LABEL])] += row["n"]
        return dict(counts)

    def _named(self, name: SideName) -> _Side:
        return self._old if name == "old" else self._new

    def _side(self, name: SideName, table: str, snapshot_id: int | None) -> _Side:
        from pyspark.sql.types import StructType

        if snapshot_id is None:
            return _Side(name, table, None, StructType([]))
        frame = dataframes.read_table(self._spark, self._catalog, table, snapshot_id)
        return _Side(name, table, snapshot_id, self._changed(name, frame).schema)

    def _changed(self, name: SideName, frame: DataFrame) -> DataFrame:
        return (
            dataframes.apply_schema_change(frame, self._request.change) if name == "old" else frame
        )

    def _aligned(self, side: _Side, frame: DataFrame) -> DataFrame:
        """Return rows as label and short names, cut to the request's condition."""
        label = self.layout.nothing() if side.snapshot_id is None else self.layout.raw()
        named = label.alias(LABEL)
        found = aligned(frame, side.name, self.columns, named)
        if self._request.where is None:
            return found
        slots = {each.name: each.slot for each in self.columns}
        text = render_condition(self._request.where, slots, "spark")
        return found.where(_condition(found, text, self._request.where))

    def _rows(self, side: _Side, *, shared: bool) -> DataFrame:
        """Read a side's rows of skipped files, or of all others, pruned to touched partitions."""
        from pyspark.sql import functions as F

        if side.snapshot_id is None:
            return dataframes.empty_frame(self._spark, side.schema)
        frame = dataframes.read_table(self._spark, self._catalog, side.table, side.snapshot_id)
        frame = self._pruned(side.table, frame, shared=shared)
        if self.split.skipped:
            is_skipped = F.col("_file").isin(sorted(self.split.skipped))
            frame = frame.where(is_skipped if shared else ~is_skipped)
        return self._changed(side.name, frame)

    def _pruned(self, table: str, frame: DataFrame, *, shared: bool) -> DataFrame:
        from pyspark.sql import functions as F

        wanted = self._request.scope.partitions if self._request.scope else None
        touched = None if shared else self.split.touched
        if touched is not None:
            wanted = tuple(label for label in (wanted or sorted(touched)) if label in touched)
        if wanted is not None and not wanted:
            return frame.where(F.lit(False))  # noqa: FBT003 (a Spark literal)
        if wanted is None or self.layout.field is None:
            return frame
        rows = partitions.scope_row_ranges(Scope(field=self.layout.field, partitions=wanted))
        return dataframes.restrict_to_ranges(self._spark, self._catalog, table, frame, rows)

    def _split_files(self) -> files.Split:
        lake = (self._spark, self._catalog)
        scope = self._request.scope
        listed = []
        for side in (self._old, self._new):
            own = files.of_side(*lake, side.table, side.snapshot_id, self.layout)
            listed.append(files.files_of(*lake, side.table, side.snapshot_id, own, scope))
        alike = self._reads_alike()
        return files.split(
            listed[0], listed[1], self.layout, scope,
            reads_alike=alike, known_equal=self._request.known_equal,
        )  # fmt: skip

    def _reads_alike(self) -> bool:
        """Return whether a file has the same rows on both sides; when unsure, no."""
        old, new = self._old, self._new
        if old.schema.simpleString() != new.schema.simpleString():
            return False
        if (old.table, old.snapshot_id) == (new.table, new.snapshot_id):
            return True
        ids = {
            files.schema_id(self._spark, self._catalog, side.table, side.snapshot_id)
            for side in (old, new)
            if side.snapshot_id is not None
        }
        return len(ids) == 1 and None not in ids

    def _asked(self) -> frozenset[str]:
        """Name the columns that the condition reads, in the tables' own spelling."""
        if self._request.where is None:
            return frozenset()
        asked = {name.lower() for name in condition_columns(self._request.where)}
        names = {*self._old.schema.names, *self._new.schema.names}
        return frozenset(name for name in names if name.lower() in asked)


def _condition(frame: DataFrame, text: str, where: str) -> Column:
    """Return the rendered condition after proving that it is a boolean; raises ConfigError."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    try:
        kind = frame.select(F.expr(text).alias("met")).schema["met"].dataType.typeName()
    except (AnalysisException, ParseException) as error:
        raise ConfigError(
            f"the condition {where!r} cannot be evaluated: {str(error).splitlines()[0]}",
            fix="compare columns with values of their own type",
        ) from error
    if kind != "boolean":
        raise ConfigError(
            f"the condition {where!r} gives {kind.upper()}, not true or false",
            fix="compare the value with something, e.g. flights > 3",
        )
    return F.expr(text)


LABEL = "lhb_label"


HASH = "lhb_hash"
