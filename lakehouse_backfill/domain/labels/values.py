"""Values of partition fields that are no times: their text, their type, and truncation.

The text of a value is unique within its type, and gives exactly the value back: booleans `true` and
`false`, decimals with all digits of their scale, binary values as `0x` with hexadecimal digits.
Truncation follows the Iceberg spec: numbers and decimals round down, texts keep their first code
points, binary values their first bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation, localcontext
from typing import Annotated, Any, Literal

from pydantic import Field

#: What an aggregate is computed over, along a partition field: a unit, or a width of numbers.
GrainUnit = Literal["day", "month", "year"]
Grain = GrainUnit | Annotated[int, Field(ge=2)]
Bound = date | datetime | int | str | Decimal | bytes

#: From fine to coarse; buckets and truncations mix values.
_ORDERED_TRANSFORMS = ("identity", "hour", "day", "month", "year")
TIME_TYPES = ("date", "timestamp", "timestamptz")
_WIDTH = re.compile(r"(bucket|truncate)\[(\d+)\]")
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_HEX = re.compile(r"0x([0-9a-f]{2})*")
#: More digits than a decimal of Iceberg has.
_DIGITS = 80
_TRUNCATED_TYPES = ("int", "long", "string")
#: Tables keep so much of the bounds of files, by which Spark tells that a file begins with a value.
_BOUND_BYTES = 16
#: The largest values of whole numbers: no row lies above them.
_MAX_NUMBERS = {"int": 2**31 - 1, "long": 2**63 - 1}
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_HIGHEST_CODE_POINT, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


@dataclass(frozen=True)
class NamedRange:
    """Values of a column's own type, `start <= value < stop`; null is in none."""

    start: Bound
    stop: Bound

    def __contains__(self, value: Any) -> bool:
        return value is not None and bool(self.start <= value < self.stop)


def width_of(transform: str) -> int | None:
    """Return N of `bucket[N]` or `truncate[N]`; None for other transforms."""
    found = _WIDTH.fullmatch(transform)
    return int(found[2]) if found else None


def fineness(transform: str) -> int:
    """Return a key that sorts transforms from fine to coarse; buckets and truncations are last."""
    known = transform in _ORDERED_TRANSFORMS
    return _ORDERED_TRANSFORMS.index(transform) if known else len(_ORDERED_TRANSFORMS)


def is_bucket(transform: str) -> bool:
    """Return whether the transform is a bucket: its partitions have numbers, and no order."""
    return transform.startswith("bucket[")


def is_truncation(transform: str) -> bool:
    """Return whether the transform is a truncation."""
    return transform.startswith("truncate[")


def scale_of(kind: str) -> int | None:
    """Return the scale of a decimal type; None for other types."""
    found = _DECIMAL.fullmatch(kind)
    return int(found[2]) if found else None


def is_simple_type(kind: str) -> bool:
    """Return whether values of the type have a label: primitive types but floats and times of day.

    Arrow does not compare UUIDs, and Spark writes no partitions by values of a fixed length.
    """
    simple = (*TIME_TYPES, "int", "long", "string", "boolean", "binary")
    return kind in simple or scale_of(kind) is not None


def fits(transform: str, kind: str) -> bool:
    """Return whether partitions by the transform of a column of the type have labels."""
    if transform in ("identity", "table"):
        return is_simple_type(kind)
    if transform in ("year", "month", "day"):
        return kind in TIME_TYPES
    if transform == "hour":
        return kind in ("timestamp", "timestamptz")
    if is_bucket(transform):
        return is_simple_type(kind) and kind != "boolean"
    if not is_truncation(transform):
        return False
    if kind == "binary":
        return (width_of(transform) or 0) <= _BOUND_BYTES
    return kind in _TRUNCATED_TYPES or scale_of(kind) is not None


def value_text(kind: str, value: object) -> str:
    """Return the text of a value of a type that is neither a time nor a text.

    Raises ValueError when it is no value of the type.
    """
    if kind in ("int", "long"):
        return str(int(str(value)))
    if kind == "boolean":
        return _boolean_text(value)
    scale = scale_of(kind)
    if scale is not None:
        return _decimal_text(value, scale)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"0x{bytes(value).hex()}"
    text = str(value).lower()
    if not _HEX.fullmatch(text):
        raise ValueError(value)
    return text


def parse_value(kind: str, text: str) -> Bound:
    """Return the value whose text this is; raises ValueError when it is no text of the type."""
    if kind == "string":
        return text
    if value_text(kind, text) != text:
        raise ValueError(text)
    if kind in ("int", "long"):
        return int(text)
    if kind == "boolean":
        return text == "true"
    return Decimal(text) if scale_of(kind) is not None else bytes.fromhex(text[2:])


def example_of(kind: str) -> str:
    """Return a value of a type as a manifest writes it."""
    examples = {
        "boolean": "true", "int": "42",
        "long": "42", "string": '"EU"',
    }  # fmt: skip
    scale = scale_of(kind)
    if scale is not None:
        return f'"{Decimal(1).scaleb(-scale):f}"'
    return examples.get(kind, '"0x0a1b"')


def truncate_value(transform: str, kind: str, value: Bound) -> Bound:
    """Return the value of the partition that holds `value`, as the Iceberg spec defines it."""
    width = width_of(transform) or 1
    if isinstance(value, (str, bytes)):
        return value[:width]
    if isinstance(value, Decimal):
        unit = _unit(kind, width)
        with localcontext() as exact:
            exact.prec = _DIGITS
            return value - (value % unit + unit) % unit
    if not isinstance(value, int):
        raise ValueError(value)  # noqa: TRY004 (a value that does not fit its column)
    return value - value % width


def start_of_truncation(transform: str, kind: str, stored: Bound) -> Bound:
    """Return the value of the partition that Iceberg stores as `stored`.

    The lowest partition of whole numbers may begin below the smallest one. Iceberg's arithmetic
    (`TruncateUtil`) has 32 or 64 bits, and stores a number near the largest one then. No other
    partition is stored as a number that the width does not divide.
    """
    width = width_of(transform) or 1
    if kind not in _MAX_NUMBERS or not isinstance(stored, int) or stored % width == 0:
        return stored
    # A column of the type long may have been an int when the file was written.
    return stored - (2**32 if stored <= _MAX_NUMBERS["int"] else 2**64)


def is_beyond(kind: str, value: Bound) -> bool:
    """Return whether a number has too many digits, or is too large, for a column of the type.

    Readers fail on a filter by such a number, or take it for the largest one.
    """
    if isinstance(value, Decimal):
        found = _DECIMAL.fullmatch(kind)
        return found is not None and len(value.as_tuple().digits) > int(found[1])
    if kind in _MAX_NUMBERS and isinstance(value, int):
        return not -_MAX_NUMBERS[kind] - 1 <= value <= _MAX_NUMBERS[kind]
    return False


def truncated_bounds(
    transform: str, kind: str, value: Bound
) -> tuple[Bound | None, Bound | None] | None:
    """Return the half-open range of values in a partition; None: only `value` itself is in it.

    An end is None where no value of the type lies beyond it.
    """
    width = width_of(transform) or 1
    if isinstance(value, (str, bytes)):
        if len(value) < width:
            return None
        return value, next_text(value) if isinstance(value, str) else _next_bytes(value)
    if isinstance(value, Decimal):
        with localcontext() as exact:
            exact.prec = _DIGITS
            upper = value + _unit(kind, width)
        return None if is_beyond(kind, value) else value, None if is_beyond(kind, upper) else upper
    if not isinstance(value, int):
        raise ValueError(value)  # noqa: TRY004 (a value that does not fit its column)
    end = value + width
    return None if is_beyond(kind, value) else value, None if is_beyond(kind, end) else end


def bucket_number(transform: str, kind: str, value: Bound) -> int:
    """Return the number of the bucket that holds a value of the type (Iceberg spec, appendix B).

    Raises ValueError for a transform that is no bucket, and for values that have none.
    """
    if not is_bucket(transform) or isinstance(value, bool):
        raise ValueError(value)
    # Most commands never need it.
    import mmh3

    hashed = mmh3.hash(_hashed_bytes(kind, value))
    return (hashed & 0x7FFFFFFF) % (width_of(transform) or 1)


def _hashed_bytes(kind: str, value: Bound) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, Decimal):
        numerator, denominator = value.as_integer_ratio()
        unscaled = numerator * int(10 ** (scale_of(kind) or 0)) // denominator
        length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return unscaled.to_bytes(length, "big", signed=True)
    if isinstance(value, datetime):
        at = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        value = (at - _UNIX_EPOCH) // timedelta(microseconds=1)
    elif isinstance(value, date):
        value = (value - _UNIX_EPOCH.date()).days
    return value.to_bytes(8, "little", signed=True)


def next_text(text: str) -> str | None:
    """Return the smallest text above all that begin with `text`, in order of code points."""
    for place in reversed(range(len(text))):
        code = ord(text[place]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= _HIGHEST_CODE_POINT:
            return text[:place] + chr(code)
    return None


def _next_bytes(value: bytes) -> bytes | None:
    for place in reversed(range(len(value))):
        if value[place] < 0xFF:
            return value[:place] + bytes([value[place] + 1])
    return None


def _unit(kind: str, width: int) -> Decimal:
    return Decimal(width).scaleb(-(scale_of(kind) or 0))


def _boolean_text(value: object) -> str:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise ValueError(value)
    return "true" if text in ("true", "1") else "false"


def _decimal_text(value: object, scale: int) -> str:
    try:
        with localcontext() as exact:
            exact.prec = _DIGITS
            number = Decimal(str(value))
            rounded = number.quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation as error:
        raise ValueError(value) from error
    if not number.is_finite() or rounded != number:
        raise ValueError(value)
    return f"{rounded if rounded else abs(rounded):f}"
