"""Manifest lists and manifests: Avro files, with readers that are made once for each schema.

Shared by the adapters that read tables by PyIceberg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask


class _RecordForm(NamedTuple):
    """How records of a kind of Avro file are read: schema, and classes by field id."""

    schema: Schema
    types: dict[int, Callable[..., Any]]
    enums: dict[int, Callable[..., Any]]


_NEWEST_FORMAT = max(DATA_FILE_TYPE)
_ENTRY_TYPES: dict[int, Callable[..., Any]] = {-1: ManifestEntry, 2: DataFile}
_ENTRY_ENUMS: dict[int, Callable[..., Any]] = {
    0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent,
}  # fmt: skip
_FORMS = {
    "manifest list": _RecordForm(
        MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
        {-1: ManifestFile, 508: PartitionFieldSummary},
        {517: ManifestContent},
    ),
    "data files": _RecordForm(
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION], _ENTRY_TYPES, _ENTRY_ENUMS
    ),
    # PyIceberg reads them without the fields that identify deletion vectors.
    "delete files": _RecordForm(MANIFEST_ENTRY_SCHEMAS[_NEWEST_FORMAT], _ENTRY_TYPES, _ENTRY_ENUMS),
}


def read_manifest_list(io: FileIO, path: str) -> list[ManifestFile]:
    """Read the manifests that a manifest list names."""
    # An error of the reader finds the damaged file by this name (`require_undamaged`).
    file = io.new_input(path)
    with _KnownAvroFile(file, "manifest list") as reader:
        return list(reader)


def read_manifest_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Read all entries of a manifest, those of delete files with the fields of format 3."""
    kind = "data files" if manifest.content == ManifestContent.DATA else "delete files"
    with _KnownAvroFile(io.new_input(manifest.manifest_path), kind) as reader:
        return [_inherit_from_manifest(entry, manifest) for entry in reader]


class _KnownAvroFile(AvroFile[Any]):
    """An Avro file whose reader is made once for all files of its schema.

    PyIceberg makes it again for each file, which takes longer than reading a small one.
    """

    __slots__ = ("_kind",)

    def __init__(self, input_file: InputFile, kind: str) -> None:
        form = _FORMS[kind]
        super().__init__(input_file, form.schema, form.types, form.enums)
        self._kind = kind

    def __enter__(self) -> _KnownAvroFile:
        """Read the file, and find the reader of its records."""
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = _header_reader().read(self.decoder)
        self.reader = _record_reader(self.header.meta.get("avro.schema", ""), self._kind)
        return self


@lru_cache(maxsize=1)
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


@lru_cache(maxsize=64)
def _record_reader(avro_schema: str, kind: str) -> Reader:
    """Make the reader of the records of a file; readers have no state of their own."""
    header = AvroFileHeader(None, {"avro.schema": avro_schema} if avro_schema else {}, None)
    return resolve_reader(header.get_schema(), *_FORMS[kind])


class ManifestReadBy:
    """A manifest whose entries a function reads, as PyIceberg's planning takes it."""

    def __init__(
        self, manifest: ManifestFile, read: Callable[[FileIO], list[ManifestEntry]]
    ) -> None:
        self._manifest, self._read = manifest, read

    def __getattr__(self, name: str) -> Any:
        """Return what the manifest says."""
        return getattr(self._manifest, name)

    def fetch_manifest_entry(
        self,
        io: FileIO,
        discard_deleted: bool = True,  # noqa: FBT001, FBT002 (the signature is PyIceberg's)
    ) -> list[ManifestEntry]:
        """Return the entries as PyIceberg's manifest does."""
        removed = ManifestEntryStatus.DELETED
        return [entry for entry in self._read(io) if not discard_deleted or entry.status != removed]


def plan_files(scan: DataScan) -> Iterable[FileScanTask]:
    """Return the files that a scan may read, as it plans them itself; they are read faster."""
    snapshot = scan.snapshot()
    if snapshot is None or scan._should_use_server_side_planning():
        return scan.plan_files()
    manifests = [
        ManifestReadBy(manifest, partial(_read_as_planned, manifest))
        for manifest in read_manifest_list(scan.io, snapshot.manifest_list)
    ]
    return scan._manifest_planner.plan_files(cast("list[ManifestFile]", manifests))


def _read_as_planned(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    if manifest.content == ManifestContent.DATA:
        return read_manifest_entries(io, manifest)
    # What reads rows knows delete files without the fields of format 3.
    return manifest.fetch_manifest_entry(io, discard_deleted=False)
