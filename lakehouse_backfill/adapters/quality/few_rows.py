"""Few rows in this process: what Great Expectations judges alike on them with pandas and on Spark.

On Spark an expectation costs hundreds of calls to the JVM and jobs of its own, however few the rows
are. Which expectations have the same verdict and count on both is held by a contract test; all
others, and values that the two read in different ways, stay on Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.quality.translation import EXACT_TYPES, translate_expectation
from lakehouse_backfill.domain.checks import Greater, Matches, OneOf, RowCount, columns_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from great_expectations.expectations.expectation import Expectation

    from lakehouse_backfill.ports.compute import Frame

#: More rows, or more values, than these stay on Spark; so does a column with a longer text.
MAX_ROWS, MAX_VALUES, MAX_TEXT = 50_000, 1_000_000, 400
_TYPES = {"bigint": "long", "timestamp_ntz": "timestamp", "timestamp": "timestamptz"}
_TIMES = ("date", "timestamp", "timestamptz")
#: Types of Spark whose values are not fetched: Arrow lacks some, and others may be of any size.
_NOT_FETCHED = (
    "array", "binary", "geography", "geometry", "interval", "map", "struct", "variant", "void",
)  # fmt: skip
_TEXTS = ("string", "varchar", "char")
#: Of values beyond, pandas has no times.
_FIRST_DAY, _LAST_DAY = date(1678, 1, 1), date(2261, 12, 31)
_SHAPE = "expect_table_columns_to_match_ordered_list"
_COMPOUND = "expect_compound_columns_to_be_unique"


@dataclass(frozen=True)
class FewRows:
    """The rows of a frame as Arrow, and Iceberg's types of all its columns by name.

    `rows` lack the columns that were not fetched; a text has at most `MAX_TEXT` + 1 characters.
    """

    rows: pa.Table
    types: Mapping[str, str]

    @classmethod
    def of(cls, frame: Frame, rows: int | None = None) -> FewRows | None:
        """Fetch the rows of a frame of Spark by one job; None for many, or nothing to fetch.

        `rows` is about how many there are: too many are not fetched to find that out. None, too,
        where they cannot be read: Great Expectations then says so of each expectation.
        """
        source: Any = frame
        fetched = [
            _fetched_column(source, name, kind)
            for name, kind in source.dtypes
            if not kind.startswith(_NOT_FETCHED)
        ]
        if not fetched:
            return None
        most = min(MAX_ROWS, MAX_VALUES // len(fetched))
        if rows is not None and rows > most:
            return None
        try:
            found = source.select(*fetched).limit(most + 1).toArrow()
        except Exception:  # noqa: BLE001 (an engine raises many kinds)
            return None
        types = {name: _TYPES.get(kind, kind) for name, kind in source.dtypes}
        return cls(found, types) if len(found) <= most else None

    def judges(self, entry: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
        """Return whether an expectation has the same verdict and count here as on Spark."""
        kind, given = entry["type"], dict(entry["kwargs"])
        if kind == _SHAPE:
            return set(given) == {"column_list"}
        if kind == _COMPOUND:
            names = given.get("column_list", ())
            return set(given) == {"column_list"} and all(
                self.types.get(name) in EXACT_TYPES
                and self._is_held(name)
                and not self._has(name, "null")
                for name in names
            )
        # Severity and `mostly` are applied to the same counts.
        given.pop("mostly", None)
        plain = {"type": kind, "kwargs": given}
        rule = translate_expectation(plain, parameters, self.types)
        if rule is None or isinstance(rule, RowCount):
            return rule is not None
        names = columns_of(rule)
        if not all(map(self._is_held, names)):
            return False
        if isinstance(rule, OneOf) and any(_is_far_day(value) for value in rule.values):
            return False
        if isinstance(rule, Greater):
            return not any(self._has(name, "null") for name in names)
        return not (isinstance(rule, Matches) and self._has(rule.column, "odd text"))

    def rewritten(self, expectation: Expectation) -> Expectation:
        """Return an expectation whose bounds are times as pandas compares them, not days."""
        bounds = {name: getattr(expectation, name, None) for name in ("min_value", "max_value")}
        days = {name: _as_times(bound) for name, bound in bounds.items() if _is_day(bound)}
        return expectation.copy(update=days) if days else expectation

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a suite, dates as pandas holds them."""
        return {name: _as_times(value) for name, value in given.items()}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows: times as pandas' times in UTC, all else as Python's values.

        Columns that are left to Spark hold nothing.
        """
        import pandas as pd

        columns: dict[str, Any] = {}
        for name in self.types:
            if not self._is_held(name):
                columns[name] = pd.Series([None] * len(self.rows), dtype=object)
                continue
            values = self.rows[name]
            if self.types[name] in _TIMES:
                columns[name] = pd.Series(_as_nanoseconds(values).to_numpy(zero_copy_only=False))
            else:
                columns[name] = pd.Series(values.to_pylist(), dtype=object)
        found: pd.DataFrame = pd.DataFrame(columns, columns=[*self.types])
        return found

    def shown(self, entry: Mapping[str, Any], values: list[Any]) -> list[Any]:
        """Return examples as Spark shows them: days without a time of day."""
        kwargs = entry["kwargs"]
        pair = (kwargs.get("column_A"), kwargs.get("column_B"))
        found: list[Any] = []
        for value in values:
            if isinstance(value, dict):
                found.append({name: self._shown(name, each) for name, each in value.items()})
            elif isinstance(value, (list, tuple)):
                found.append([self._shown(*each) for each in zip(pair, value, strict=True)])
            else:
                found.append(self._shown(kwargs.get("column"), value))
        return found

    def _shown(self, name: str | None, value: Any) -> Any:
        kind = self.types.get(name or "")
        if kind not in _TIMES or value is None:
            return value
        if str(value) == "NaT":
            return None
        return str(value)[:10] if kind == "date" else str(value).removesuffix(".000000000")

    def _is_held(self, name: str) -> bool:
        """Return whether the values of a column are all here, and read as Spark reads them."""
        left = ("nan", "far time", "long text")
        return name in self.rows.column_names and not any(self._has(name, one) for one in left)

    def _has(self, name: str, oddity: str) -> bool:
        if name not in self._oddities:
            self._oddities[name] = _oddities_of(self.rows[name])
        return oddity in self._oddities[name]

    @cached_property
    def _oddities(self) -> dict[str, frozenset[str]]:
        return {}


def quote_column(name: str) -> str:
    """Quote a column's name for a frame of Spark."""
    return "`" + name.replace("`", "``") + "`"


def _fetched_column(frame: Any, name: str, kind: str) -> Any:
    column = frame[quote_column(name)]
    # So that few rows are few bytes.
    return column.substr(1, MAX_TEXT + 1).alias(name) if kind.startswith(_TEXTS) else column


def _is_far_day(value: Any) -> bool:
    return _is_day(value) and not _FIRST_DAY <= value <= _LAST_DAY


def _as_times(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_times(each) for each in value]
    # Without a zone, as the columns of the frame.
    return datetime.combine(value, time()) if _is_day(value) else value


def _is_day(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _as_nanoseconds(values: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    micros = values.cast(pa.timestamp("us", getattr(values.type, "tz", None)))
    # In UTC, and without a zone: bounds of suites have none.
    return micros.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.timestamp("ns"))


def _oddities_of(values: pa.ChunkedArray) -> frozenset[str]:
    """Return what of a column's values pandas and Spark read in different ways."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = {"null"} if values.null_count else set()
    kind = values.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        # pandas takes it for null.
        found.add("nan")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Of Java and Python, classes of characters and ends of lines differ beyond these.
        plain = pc.match_substring_regex(values, r"^[\x20-\x7e]*$")
        if not pc.all(plain, min_count=0).as_py():
            found.add("odd text")
        if (pc.max(pc.utf8_length(values)).as_py() or 0) > MAX_TEXT:
            found.add("long text")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        try:
            _as_nanoseconds(values)
        except pa.ArrowInvalid:
            found.add("far time")
    return frozenset(found)
