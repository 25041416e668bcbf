"""Parsers of files: CSV, JSON lines and Parquet, strictly by the declared columns."""

from __future__ import annotations

import csv as text_csv
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.sources.change_records import BadChange, read_change_lines
from lakehouse_backfill.adapters.sources.files.errors import bad_file, unparsable_file
from lakehouse_backfill.adapters.sources.formats import read_json_lines, require_small_exponents
from lakehouse_backfill.domain.sources.declaration import ChangeLog, FileSource

if TYPE_CHECKING:
    import pyarrow as pa

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


def parse(
    declared: FileSource,
    path: str,
    content: bytes,
    schema: pa.Schema,
    change_log: ChangeLog | None = None,
) -> pa.Table:
    """Return all rows of a file, with the columns of `schema` in its order.

    The file must have exactly these columns. Raises RejectedInput, without values of the file.
    """
    import pyarrow as pa

    parsers: dict[str, Callable[[FileSource, bytes, pa.Schema], pa.Table]] = {
        "csv": _parse_csv,
        "json": _parse_json,
        "parquet": _parse_parquet,
    }
    try:
        if declared.format != "parquet":
            content = _decompressed(path, content, declared.max_file_mib)
        if change_log is not None:
            return read_change_lines(content, change_log, schema)
        rows = parsers[declared.format](declared, content, schema)
    except BadChange as error:
        raise bad_file(path, str(error)) from None
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise unparsable_file(path, error) from error
    _require_columns(path, rows.column_names, schema.names)
    for field in schema:
        if not field.nullable and rows[field.name].null_count:
            count = rows[field.name].null_count
            raise bad_file(path, f"{field.name} is required, and {count} rows have no value")
    try:
        return rows.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise unparsable_file(path, error) from error


def _require_columns(path: str, found: list[str], wanted: list[str]) -> None:
    faults = [f"has no column {name}" for name in wanted if name not in found]
    faults += [f"has a column {name} that is not declared" for name in found if name not in wanted]
    faults += [
        f"has two columns {name}" for name in sorted({n for n in found if found.count(n) > 1})
    ]
    if faults:
        raise bad_file(path, "; ".join(faults[:5]))


def _decompressed(path: str, content: bytes, most_mib: int) -> bytes:
    import pyarrow as pa

    codec = next((name for end, name in _COMPRESSIONS.items() if path.endswith(end)), None)
    if codec is None:
        return content
    with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
        plain = bytes(stream.read(most_mib * 1024 * 1024 + 1))
    if len(plain) > most_mib * 1024 * 1024:
        raise bad_file(path, f"is larger than max_file_mib when decompressed: {most_mib}")
    return plain


def _parse_csv(declared: FileSource, content: bytes, schema: pa.Schema) -> pa.Table:
    from pyarrow import csv

    _require_closed_quotes(declared, content)

    def read(kinds: dict[str, pa.DataType]) -> pa.Table:
        return csv.read_csv(
            io.BytesIO(content),
            # A row must lie in two blocks at most.
            read_options=csv.ReadOptions(block_size=max(1 << 20, min(len(content), 1 << 26))),
            parse_options=csv.ParseOptions(
                delimiter=declared.csv.delimiter, newlines_in_values=True
            ),
            convert_options=csv.ConvertOptions(
                column_types=kinds,
                null_values=list(declared.csv.null_texts),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    require_small_exponents(content, schema, read)
    return read({field.name: field.type for field in schema})


def _require_closed_quotes(declared: FileSource, content: bytes) -> None:
    """Raise ValueError for a quote that is not closed: the rows behind it would be its value."""
    if b'"' not in content:
        return
    text = io.StringIO(content.decode("utf-8-sig"), newline="")
    longest = text_csv.field_size_limit(max(len(content), 1))
    try:
        for _ in text_csv.reader(text, delimiter=declared.csv.delimiter, strict=True):
            pass
    except text_csv.Error as error:
        raise ValueError("CSV: a quote is not closed, or text follows a closed one") from error
    finally:
        text_csv.field_size_limit(longest)


def _parse_json(declared: FileSource, content: bytes, schema: pa.Schema) -> pa.Table:  # noqa: ARG001 (one signature for all parsers)
    return read_json_lines(content, schema)


def _parse_parquet(declared: FileSource, content: bytes, schema: pa.Schema) -> pa.Table:  # noqa: ARG001 (one signature for all parsers)
    import pyarrow as pa
    from pyarrow import parquet

    file = parquet.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")
    leaves = (file.schema.column(at) for at in range(len(file.schema)))
    # Spark's old form of an instant; it has no place for a zone, and is in UTC.
    instants = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    found = file.read()
    if set(found.column_names) == set(schema.names):
        for name, kind in zip(found.schema.names, found.schema.types, strict=True):
            wanted = schema.field(name).type
            if name not in instants and not _is_lossless(kind, wanted):
                raise ValueError(f"{name} is {kind}, not {wanted}")
    return found


def _is_lossless(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast keeps each value, or refuses it: other casts round, or guess a zone."""
    from pyarrow import types as kinds

    if kinds.is_dictionary(found):
        found = found.value_type
    if found.equals(wanted) or kinds.is_null(found):
        return True
    if kinds.is_struct(found) and kinds.is_struct(wanted):
        fields = {field.name: field.type for field in wanted}
        return found.num_fields == len(fields) and all(
            field.name in fields and _is_lossless(field.type, fields[field.name]) for field in found
        )
    if kinds.is_timestamp(found) and kinds.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    if kinds.is_floating(found) and kinds.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if kinds.is_integer(found):
        return any(is_kind(wanted) for is_kind in (kinds.is_integer, kinds.is_decimal))
    texts = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    blobs = (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary)
    lists = (kinds.is_list, kinds.is_large_list)
    if any(is_kind(found) for is_kind in lists) and any(is_kind(wanted) for is_kind in lists):
        return _is_lossless(found.value_type, wanted.value_type)
    families = (texts, blobs, (kinds.is_decimal,), (kinds.is_time,), (kinds.is_map,))
    return any(
        any(is_kind(found) for is_kind in family) and any(is_kind(wanted) for is_kind in family)
        for family in families
    )
