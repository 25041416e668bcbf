"""JSON values as Arrow columns; files and pages of APIs share it."""

from __future__ import annotations

import io
import json as text_json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    import pyarrow as pa

#: Marks a number in a text of JSON while it is made; no other process knows it.
_NUMBER = uuid4().hex
#: No type of a column holds larger numbers.
_LARGEST_EXPONENT = 400


def read_json_lines(content: bytes, schema: pa.Schema, *, unexpected: str = "error") -> pa.Table:
    """Return the rows of JSON lines in types that a cast to `schema` finishes.

    `unexpected`: what is done with fields that the schema lacks, `error` or `ignore`.
    """
    import pyarrow as pa
    from pyarrow import json

    if not content.strip():
        return schema.empty_table()
    try:  # the parser itself takes any bytes for text
        content.decode()
    except UnicodeDecodeError as error:
        raise ValueError("JSON is no UTF-8") from error
    plain = pa.schema([pa.field(field.name, _json_type(field.type)) for field in schema])
    return json.read_json(
        io.BytesIO(content),
        read_options=json.ReadOptions(block_size=max(1 << 20, min(len(content), 1 << 26))),
        parse_options=json.ParseOptions(
            explicit_schema=plain, unexpected_field_behavior=unexpected, newlines_in_values=True
        ),
    )


def decode_json(text: str | bytes) -> Any:
    """Return a JSON value with exact numbers; raises ValueError, RecursionError.

    NaN and Infinity are no JSON, and a number beyond 1E+400 or below 1E-400 is refused: written
    out, `1e999999999` would fill the memory.
    """
    return text_json.loads(text, parse_float=_exact_number, parse_constant=_refuse_constant)


def _exact_number(text: str) -> Decimal:
    try:
        found = Decimal(text)
    except InvalidOperation as error:
        raise ValueError("a number has too large an exponent") from error
    if abs(found.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError("a number has too large an exponent")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def exact_json(value: Mapping[str, Any]) -> str:
    """Return the JSON text of a decoded object; a Decimal is the number that it was read from."""
    text = text_json.dumps(
        dict(value), default=lambda one: f"{_NUMBER}{one}", ensure_ascii=False, allow_nan=False
    )
    return re.sub(rf'"{_NUMBER}([^"]*)"', r"\1", text)


def from_json_rows(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return decoded JSON objects as a table; fields that the schema lacks are left out."""
    import pyarrow as pa

    exact = {field.name for field in schema if pa.types.is_decimal(field.type)}
    lines = []
    for row in rows:
        own = {name: row.get(name) for name in schema.names}
        for name in exact:
            own[name] = None if own[name] is None else str(own[name])
        lines.append(exact_json(own))
    found = read_json_lines("\n".join(lines).encode(), schema)
    return found.select(schema.names).cast(schema)


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that the JSON parser knows; the rest is a cast.

    The cast of a text to an instant demands its zone; the parser would take UTC for one.
    """
    import pyarrow as pa

    if pa.types.is_large_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_json_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _json_type(field.type)) for field in kind])
    return kind
