"""What files hold once they are decompressed: Parquet, Avro, gzip, and the bytes as they are."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq


def plain_contents(path: Path) -> Iterator[bytes]:
    """Yield the file's bytes, and what they hold after decompression and decoding."""
    raw = path.read_bytes()
    yield raw
    if raw.startswith(b"PAR1"):
        # The repr of all cells: values of dictionaries and pages, whatever their encoding.
        yield repr(pq.read_table(path, partitioning=None).to_pylist()).encode()
    elif raw.startswith(b"\x1f\x8b"):
        yield gzip.decompress(raw)
    elif raw.startswith(b"Obj\x01"):
        yield from _avro_blocks(raw)


def _avro_blocks(raw: bytes) -> Iterator[bytes]:
    """Yield the blocks of an Avro file with codec null or deflate."""
    metadata, at = {}, 4
    while True:
        pairs, at = _long(raw, at)
        if pairs == 0:
            break
        if pairs < 0:
            pairs, (_, at) = -pairs, _long(raw, at)
        for _ in range(pairs):
            key, at = _bytes(raw, at)
            metadata[key], at = _bytes(raw, at)
    codec, at = metadata.get(b"avro.codec", b"null"), at + 16
    while at < len(raw):
        _, at = _long(raw, at)
        block, at = _bytes(raw, at)
        assert codec in (b"null", b"deflate"), codec
        yield zlib.decompress(block, -15) if codec == b"deflate" else block
        at += 16


def _long(raw: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte, at = raw[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(raw, at)
    return raw[at : at + size], at + size
