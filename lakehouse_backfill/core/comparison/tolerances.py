"""Reading tolerances, and holding them against a table's columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal, InvalidOperation

from lakehouse_backfill.domain.lineage import LINEAGE_NAMES
from lakehouse_backfill.domain.tolerance import Tolerance
from lakehouse_backfill.errors import ConfigError

#: Decimals of more digits than this are subtracted as floating numbers, by every engine.
EXACT_DIGITS = 37
_SMALLEST, _LARGEST = Decimal("1e-18"), Decimal("1e18")


def parse_tolerances(texts: Iterable[str]) -> tuple[Tolerance, ...]:
    """Read `COLUMN=0.01` (in the column's unit) and `COLUMN=1%` (of the greater value).

    Raises ConfigError for what is neither, and for a column that is named twice.
    """
    found: dict[str, Tolerance] = {}
    for text in texts:
        one = _parse_tolerance(text)
        if one.column in found:
            raise ConfigError(
                f"there are two tolerances for column {one.column}", fix="give one of them"
            )
        found[one.column] = one
    return tuple(found.values())


def require_applicable_tolerances(
    tolerances: Iterable[Tolerance], kinds: Mapping[str, str], key: Collection[str]
) -> None:
    """Raise ConfigError unless each tolerance is of a compared number column.

    `kinds` tells by name of each compared column whether it is a `number`. Without a key no row is
    another's counterpart, so nothing can be nearly equal.
    """
    for one in tolerances:
        if not key:
            raise ConfigError(
                f"a tolerance for {one.column} needs a key, which says what rows are compared",
                fix="name the key columns: --key a,b",
            )
        if kinds.get(one.column) != "number":
            numbers = ", ".join(name for name, kind in kinds.items() if kind == "number")
            raise ConfigError(
                f"{one.column} is no compared column of numbers, so it can have no tolerance",
                fix=f"choose from: {numbers or 'there is none'}",
            )


def require_ignored_columns_exist(ignore: Iterable[str], sides: Iterable[Collection[str]]) -> None:
    """Raise ConfigError when no side has a column that is to be ignored: a slip would go unseen.

    Lineage columns are always ignored, whether a table has them or not.
    """
    known = {name for side in sides for name in side}
    for name in ignore:
        if known and name not in known and name not in LINEAGE_NAMES:
            raise ConfigError(
                f"there is no column {name} to ignore", fix=f"choose from: {', '.join(known)}"
            )


def format_decimal(limit: Decimal) -> str:
    """Give the number without exponent: digits and a point."""
    return f"{limit:f}"


def _parse_tolerance(text: str) -> Tolerance:
    column, _, written = text.rpartition("=")
    is_relative = written.endswith("%")
    try:
        number = Decimal(written.removesuffix("%"))
    except InvalidOperation:
        number = Decimal("NaN")
    is_fine = number.is_finite() and (number == 0 or _SMALLEST <= number <= _LARGEST)
    if not column or not is_fine:
        raise ConfigError(
            f"the tolerance {text!r} cannot be read",
            fix="write COLUMN=0.01 for a distance, or COLUMN=1% for a share of the value",
        )
    limit = number / 100 if is_relative else number
    return Tolerance(column=column, limit=limit, is_relative=is_relative)
