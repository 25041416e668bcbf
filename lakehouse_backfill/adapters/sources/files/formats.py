"""Parsers of files: CSV, JSON lines and Parquet, strictly by the declared columns."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.sources.files.errors import bad_file, unparsable_file
from lakehouse_backfill.adapters.sources.formats import read_json_lines
from lakehouse_backfill.domain.sources.declaration import FileSource

if TYPE_CHECKING:
    import pyarrow as pa

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


def parse(declared: FileSource, path: str, content: bytes, schema: pa.Schema) -> pa.Table:
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
            content = _decompressed(path, content)
        rows = parsers[declared.format](declared, content, schema)
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


def _decompressed(path: str, content: bytes) -> bytes:
    import pyarrow as pa

    codec = next((name for end, name in _COMPRESSIONS.items() if path.endswith(end)), None)
    if codec is None:
        return content
    with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
        return bytes(stream.read())


def _parse_csv(declared: FileSource, content: bytes, schema: pa.Schema) -> pa.Table:
    from pyarrow import csv

    types = {field.name: field.type for field in schema}
    return csv.read_csv(
        io.BytesIO(content),
        parse_options=csv.ParseOptions(delimiter=declared.csv.delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types,
            null_values=list(declared.csv.null_texts),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _parse_json(declared: FileSource, content: bytes, schema: pa.Schema) -> pa.Table:  # noqa: ARG001 (one signature for all parsers)
    return read_json_lines(content, schema)


def _parse_parquet(declared: FileSource, content: bytes, schema: pa.Schema) -> pa.Table:  # noqa: ARG001 (one signature for all parsers)
    import pyarrow as pa
    from pyarrow import parquet

    return parquet.ParquetFile(pa.BufferReader(content)).read()
