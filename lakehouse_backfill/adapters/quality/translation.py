"""Translates expectations into rules that engines count: a table of translators.

Each translator is held against Great Expectations by a contract test, on random rows: the same
verdict and the same number of unexpected rows. What is not translated exactly (an argument that is
not known here, a type of another kind) is not translated at all: Great Expectations judges it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from typing import Any

from lakehouse_backfill.domain.checks import (
    Greater,
    Matches,
    NotNull,
    OneOf,
    RowCount,
    RowRule,
    Unique,
    Within,
)

_Arguments = Mapping[str, Any]
_Types = Mapping[str, str]
_Rule = RowRule | RowCount | None

_WHOLE_NUMBERS = ("int", "long")
_NUMBERS = (*_WHOLE_NUMBERS, "float", "double")
#: Types whose equal values are one value for every engine; floats (NaN, -0.0) are not.
EXACT_TYPES = (*_WHOLE_NUMBERS, "string", "date", "timestamp", "timestamptz")
_NESTED_TYPES = ("struct", "list", "map")
_BOUNDS = ("min_value", "max_value", "strict_min", "strict_max")


def translate_expectation(
    entry: Mapping[str, Any], parameters: Mapping[str, Any], types: _Types
) -> _Rule:
    """Return the rule of an entry of a suite file; None when it has none that says just the same.

    `types` are Iceberg's types of the columns, by name.
    """
    translate = _TRANSLATORS.get(entry["type"])
    if translate is None or entry.get("severity", "critical") != "critical":
        return None
    arguments = {
        name: _filled(value, parameters)
        for name, value in entry["kwargs"].items()
        if not (name == "mostly" and value == 1)
    }
    known = set(_ARGUMENTS[translate])
    return translate(arguments, types) if set(arguments) <= known else None


def _filled(value: Any, parameters: Mapping[str, Any]) -> Any:
    if isinstance(value, dict) and set(value) == {"$PARAMETER"}:
        return parameters.get(value["$PARAMETER"])
    return value


def _not_null(arguments: _Arguments, types: _Types) -> _Rule:
    column = arguments.get("column", "")
    is_plain = column in types and not types[column].startswith(_NESTED_TYPES)
    return NotNull(column) if is_plain else None


def _in_set(arguments: _Arguments, types: _Types) -> _Rule:
    return _one_of(arguments, types, is_excluded=False)


def _not_in_set(arguments: _Arguments, types: _Types) -> _Rule:
    return _one_of(arguments, types, is_excluded=True)


def _one_of(arguments: _Arguments, types: _Types, *, is_excluded: bool) -> _Rule:
    column, values = arguments.get("column", ""), arguments.get("value_set")
    kinds = {"string": str, "int": int, "long": int, "date": date}
    kind = kinds.get(types.get(column, ""))
    if kind is None or not isinstance(values, list) or not values:
        return None
    if any(type(value) is not kind for value in values):
        return None
    if kind is int and any(abs(value) >= _LONG_END for value in values):
        return None
    return OneOf(column, tuple(values), is_excluded)


_LONG_END = 2**63


def _between(arguments: _Arguments, types: _Types) -> _Rule:
    column = arguments.get("column", "")
    read = _BOUND_READERS.get(types.get(column, ""))
    return _within(arguments, read) if read is not None else None


def _lengths_between(arguments: _Arguments, types: _Types) -> _Rule:
    if types.get(arguments.get("column", "")) != "string":
        return None
    return _within(arguments, _whole_number, of_length=True)


def _lengths_equal(arguments: _Arguments, types: _Types) -> _Rule:
    given = {"column": arguments.get("column", "")}
    length = arguments.get("value")
    return _lengths_between({**given, "min_value": length, "max_value": length}, types)


def _within(arguments: _Arguments, read: Callable[[Any], Any], *, of_length: bool = False) -> _Rule:
    given = {name: arguments.get(name) for name in _BOUNDS}
    bounds = [None if given[name] is None else read(given[name]) for name in _BOUNDS[:2]]
    if [value is None for value in bounds] != [given[name] is None for name in _BOUNDS[:2]]:
        return None
    low, high = bounds
    if low is None and high is None:
        return None
    if low is not None and high is not None and low > high:
        return None
    if any(given[name] not in (None, True, False) for name in _BOUNDS[2:]):
        return None
    return Within(
        arguments["column"], low, high,
        bool(given["strict_min"]), bool(given["strict_max"]), of_length,
    )  # fmt: skip


def _number(value: Any) -> Any:
    is_number = type(value) in (int, float) and value == value and abs(value) < _EXACT_NUMBER
    return value if is_number else None


#: Up to here a whole number and the float of the same value compare alike with every number.
_EXACT_NUMBER = 2**53


def _whole_number(value: Any) -> Any:
    found = _number(value)
    return int(found) if found is not None and found == int(found) else None


def _day(value: Any) -> Any:
    if type(value) is not str or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _local_time(value: Any) -> Any:
    form = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d)?"
    if type(value) is not str or not re.fullmatch(form, value):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _instant(value: Any) -> Any:
    found = _local_time(value)
    # The session's time zone is always UTC.
    return found and found.replace(tzinfo=timezone.utc)


_BOUND_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_NUMBERS, _number),
    "date": _day,
    "timestamp": _local_time,
    "timestamptz": _instant,
}


def _matches(arguments: _Arguments, types: _Types) -> _Rule:
    return _pattern(arguments, types, is_excluded=False)


def _not_matches(arguments: _Arguments, types: _Types) -> _Rule:
    return _pattern(arguments, types, is_excluded=True)


def _pattern(arguments: _Arguments, types: _Types, *, is_excluded: bool) -> _Rule:
    column, pattern = arguments.get("column", ""), arguments.get("regex")
    if types.get(column) != "string" or not isinstance(pattern, str):
        return None
    return Matches(column, pattern, is_excluded) if is_plain_pattern(pattern) else None


#: What Java's regular expressions, which Spark has, and RE2 take alike: letters, digits, groups,
#: quantifiers, anchors, and classes without classes inside.
_PLAIN_PATTERN = re.compile(
    r"(?:(?:[A-Za-z0-9 _:/,@#%=~.-]|\\[dw.+*?()|/-]|\)"
    r"|\[\^?(?:[A-Za-z0-9]-[A-Za-z0-9]|[A-Za-z0-9 _:/,@#%=~.]|\\[dw.-])+-?\])"
    r"(?:[+*?]|\{\d{1,2}(?:,\d{0,2})?\})?"
    r"|[\^$|]|\((?:\?:)?)+"
)


def is_plain_pattern(pattern: str) -> bool:
    """Return whether all engines read a pattern alike."""
    if not _PLAIN_PATTERN.fullmatch(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _unique(arguments: _Arguments, types: _Types) -> _Rule:
    column = arguments.get("column", "")
    return Unique(column) if types.get(column) in EXACT_TYPES else None


def _pair_greater(arguments: _Arguments, types: _Types) -> _Rule:
    names = [arguments.get(f"column_{letter}", "") for letter in "AB"]
    or_equal = arguments.get("or_equal")
    if any(name not in types for name in names) or or_equal not in (None, True, False):
        return None
    first, second = (types[name] for name in names)
    are_numbers = {first, second} <= set(_WHOLE_NUMBERS)
    if not are_numbers and (first != second or first not in (*EXACT_TYPES, "float", "double")):
        return None
    return Greater(names[0], names[1], bool(or_equal))


def _row_count(arguments: _Arguments, types: _Types) -> _Rule:  # noqa: ARG001 (one signature)
    bounds = [arguments.get(name) for name in ("min_value", "max_value")]
    if bounds == [None, None] or any(type(one) not in (int, type(None)) for one in bounds):
        return None
    return RowCount(*bounds)


_ARGUMENTS: dict[Callable[[_Arguments, _Types], _Rule], tuple[str, ...]] = {
    _not_null: ("column",),
    _in_set: ("column", "value_set"),
    _not_in_set: ("column", "value_set"),
    _between: ("column", *_BOUNDS),
    _lengths_between: ("column", *_BOUNDS),
    _lengths_equal: ("column", "value"),
    _matches: ("column", "regex"),
    _not_matches: ("column", "regex"),
    _unique: ("column",),
    _pair_greater: ("column_A", "column_B", "or_equal"),
    _row_count: ("min_value", "max_value"),
}
_TRANSLATORS: dict[str, Callable[[_Arguments, _Types], _Rule]] = {
    "expect_column_values_to_not_be_null": _not_null,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": _not_in_set,
    "expect_column_values_to_be_between": _between,
    "expect_column_value_lengths_to_be_between": _lengths_between,
    "expect_column_value_lengths_to_equal": _lengths_equal,
    "expect_column_values_to_match_regex": _matches,
    "expect_column_values_to_not_match_regex": _not_matches,
    "expect_column_values_to_be_unique": _unique,
    "expect_column_pair_values_a_to_be_greater_than_b": _pair_greater,
    "expect_table_row_count_to_be_between": _row_count,
}
