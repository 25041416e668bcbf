"""JSON values as Arrow columns; files and pages of APIs share it."""

from __future__ import annotations

import io
import json as text_json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    import pyarrow as pa

#: Marks a number in a text of JSON while it is made; no other process knows it.
_NUMBER = uuid4().hex
#: No type of a column holds larger numbers.
_LARGEST_EXPONENT = 400
_DEEPEST = 200
_LARGE_EXPONENT = re.compile(rb"[0-9.][eE][-+]?[0-9]{4,}")


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

    def read(kinds: Mapping[str, pa.DataType]) -> pa.Table:
        return json.read_json(
            io.BytesIO(content),
            read_options=json.ReadOptions(block_size=max(1 << 20, min(len(content), 1 << 26))),
            parse_options=json.ParseOptions(
                explicit_schema=pa.schema(list(kinds.items())),
                unexpected_field_behavior=unexpected,
                newlines_in_values=True,
            ),
        )

    require_small_exponents(content, schema, read)
    return read({field.name: _json_type(field.type) for field in schema})


def require_small_exponents(
    content: bytes, schema: pa.Schema, read: Callable[[dict[str, pa.DataType]], pa.Table]
) -> None:
    """Raise ValueError for a decimal with an exponent of four digits: Arrow dies of it.

    `read` gives the content as a table of these types by name.
    """
    own = {field.name for field in schema if "decimal" in str(field.type)}
    if not own or not _LARGE_EXPONENT.search(content):
        return
    kinds = {
        field.name: _with_texts(_json_type(field.type)) if field.name in own
        else _json_type(field.type)
        for field in schema
    }  # fmt: skip
    found = read(kinds)
    for name in own & set(found.column_names):
        if any(_LARGE_EXPONENT.search(str(one).encode()) for one in found[name].to_pylist()):
            raise ValueError(f"JSON or CSV: {name} has a decimal with too large an exponent")


def decode_json(text: str | bytes) -> Any:
    """Return a JSON value with exact numbers; raises ValueError, RecursionError.

    NaN and Infinity are no JSON. A number beyond 1E+400 or nearer to zero than 1E-400 is refused:
    Arrow dies of `1e-999999999` in a decimal. So is what is nested so deeply that it could not be
    written again.
    """
    found = text_json.loads(text, parse_float=_exact_number, parse_constant=_refuse_constant)
    opened = (text.count("{") + text.count("[") if isinstance(text, str)
              else text.count(b"{") + text.count(b"["))  # fmt: skip
    if opened > _DEEPEST:
        _require_shallow(found)
    return found


def _require_shallow(found: Any) -> None:
    level = [found]
    for _ in range(_DEEPEST):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ] if isinstance(found, (dict, list)) else []  # fmt: skip
        if not level:
            return
    raise ValueError("a value is nested too deeply")


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


def unfit_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[int]:
    """Return which decoded objects do not fit a schema: by halves, so that few cost little."""
    import pyarrow as pa

    found: list[int] = []
    waiting = [(0, len(rows))] if rows else []
    while waiting:
        first, stop = waiting.pop()
        try:
            from_json_rows(rows[first:stop], schema)
        except (pa.ArrowException, ValueError, TypeError):
            if stop - first == 1:
                found.append(first)
            else:
                middle = (first + stop) // 2
                waiting += [(middle, stop), (first, middle)]
    return found


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts in the place of its decimals."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_with_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_texts(field.type)) for field in kind])
    return kind


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
