"""Data files and metadata files in the store: sizes, digests, and how a table reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

from pyiceberg import types
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lakehouse_backfill.adapters.iceberg.catalog import fetch_all, load_table, translate_errors
from lakehouse_backfill.adapters.iceberg.manifests.scope_files import describe_live_file
from lakehouse_backfill.adapters.iceberg.manifests.scoped_reader import ScopedReader
from lakehouse_backfill.adapters.iceberg.metadata import find_snapshot, schema_of_snapshot
from lakehouse_backfill.domain.comparison.checksums import FileBytes
from lakehouse_backfill.domain.partitions import Scope
from lakehouse_backfill.domain.run import LINEAGE_NAMES
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.domain.tables.files import LiveFile, MetadataFile
from lakehouse_backfill.errors import NotFound

#: Files read in parallel: a store serves many requests, and hashing releases the GIL.
_CONCURRENT_READS = 16
_BLOCK_BYTES = 4 * 1024 * 1024
#: How files without field ids are read.
_NAME_MAPPING_PROPERTY = "schema.name-mapping.default"
#: Type promotions that do not change the canonical row hash.
_EQUIVALENT_TYPES = (
    (types.IntegerType, types.LongType, "long"),
    (types.FloatType, types.DoubleType, "double"),
)
_MAX_SHORT_PRECISION = 18


def reading_digest(schema: Schema, name_mapping: str = "") -> str:
    """Return the digest of how columns read a file, without the lineage columns."""
    fields = [field for field in schema.fields if field.name not in LINEAGE_NAMES]
    return digest([_field_shapes(fields), name_mapping])


def _field_shapes(fields: Collection[types.NestedField]) -> list[Any]:
    """Return the fields sorted by name, as the row hash sorts them; order and docs do not count."""
    return [
        [field.field_id, field.name, _type_shape(field.field_type), str(field.initial_default)]
        for field in sorted(fields, key=lambda each: each.name)
    ]


def _type_shape(kind: types.IcebergType) -> Any:
    if isinstance(kind, types.StructType):
        return ["struct", _field_shapes(kind.fields)]
    if isinstance(kind, types.ListType):
        return ["list", kind.element_id, _type_shape(kind.element_type)]
    if isinstance(kind, types.MapType):
        key, value = _type_shape(kind.key_type), _type_shape(kind.value_type)
        return ["map", kind.key_id, key, kind.value_id, value]
    if isinstance(kind, types.DecimalType):
        return f"decimal{18 if kind.precision <= _MAX_SHORT_PRECISION else 38}:{kind.scale}"
    alike = (name for small, large, name in _EQUIVALENT_TYPES if isinstance(kind, small | large))
    return next(alike, str(kind))


def _hash_data_file(io: FileIO, path: str) -> FileBytes:
    sha256, size = hashlib.sha256(), 0
    with io.new_input(path).open() as stream:
        while piece := stream.read(_BLOCK_BYTES):
            sha256.update(piece)
            size += len(piece)
    return FileBytes(size_bytes=size, sha256=sha256.hexdigest())


class IcebergStoredFiles:
    """`ports.tables.StoredFiles` on PyIceberg."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def files(self, table: str, snapshot_id: int, scope: Scope) -> tuple[LiveFile, ...]:
        """List the live data files of the scope by path, once for each manifest entry."""
        loaded, snapshot = self._snapshot(table, snapshot_id)
        with translate_errors():
            reader = ScopedReader(loaded, scope)
            listings = reader.scope_files(snapshot).listings
            files = [describe_live_file(reader.labels, listing) for listing in listings]
            return tuple(sorted(files, key=lambda each: (each.path, each.partition or "")))

    def metadata(self, table: str, snapshot_id: int, scope: Scope) -> tuple[MetadataFile, ...]:
        """Hash the snapshot's manifest list and the manifests that may list files of the scope."""
        loaded, snapshot = self._snapshot(table, snapshot_id)
        manifest_list = _hash_metadata_file(loaded.io, snapshot.manifest_list, None)
        if manifest_list is None:
            return ()
        with translate_errors():
            reader = ScopedReader(loaded, scope)
            manifests = filter(reader.may_hold, reader.manifests(snapshot))
            lengths = {each.manifest_path: each.manifest_length for each in manifests}
        files = [_hash_metadata_file(loaded.io, *manifest) for manifest in lengths.items()]
        found = [manifest_list, *filter(None, files)]
        return tuple(sorted(found, key=lambda file: file.path))

    def sizes(self, table: str, paths: Collection[str]) -> dict[str, int]:
        """Return the files' sizes in the store; missing files are left out."""
        io = load_table(self._catalog, table).io
        return fetch_all(lambda path: len(io.new_input(path)), sorted(set(paths)))

    def reading(self, table: str, snapshot_id: int) -> str:
        """Return the digest of a snapshot's columns: field ids, names, types.

        A file has the same rows under equal readings. Raises NotFound.
        """
        metadata = load_table(self._catalog, table).metadata
        schema = schema_of_snapshot(metadata, find_snapshot(metadata, snapshot_id, table))
        return reading_digest(schema, metadata.properties.get(_NAME_MAPPING_PROPERTY, ""))

    def digests(self, table: str, paths: Collection[str]) -> dict[str, FileBytes]:
        """Read the files' bytes in parallel; missing files are left out."""
        if not paths:
            return {}
        io = load_table(self._catalog, table).io
        return fetch_all(lambda path: _hash_data_file(io, path), paths, _CONCURRENT_READS)

    def _snapshot(self, table: str, snapshot_id: int) -> tuple[Table, Snapshot]:
        loaded = load_table(self._catalog, table)
        return loaded, find_snapshot(loaded.metadata, snapshot_id, table)


def _hash_metadata_file(io: FileIO, path: str, listed: int | None) -> MetadataFile | None:
    try:
        with translate_errors(), io.new_input(path).open() as stream:
            data = stream.read()
    except NotFound:
        return None
    return MetadataFile(
        path=path,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        listed_bytes=listed,
    )
