"""Deletion vectors in manifests: PyIceberg 0.12 reads entries without the fields that name them.

Many vectors lie in one Puffin file, each at its offset, and each hides rows of one data file
(Iceberg spec, deletion vectors).
"""

from __future__ import annotations

from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)

_NEWEST_FORMAT = 3
_FIELD_POSITIONS = {
    field.name: position for position, field in enumerate(DATA_FILE_TYPE[_NEWEST_FORMAT].fields)
}


def read_manifest_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """Read all entries of a manifest, those of delete files with what format 3 adds to them."""
    if manifest.content == ManifestContent.DATA:
        return manifest.fetch_manifest_entry(io, discard_deleted=False)
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[_NEWEST_FORMAT],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        return [_inherit_from_manifest(entry, manifest) for entry in reader]


def unique_file_name(file: DataFile) -> str:
    """Name a file so that no two live ones have the same name: by path, a vector by offset too."""
    offset = _data_file_field(file, "content_offset")
    return file.file_path if offset is None else f"{file.file_path}#{offset}"


def vector_data_file(file: DataFile) -> str | None:
    """Give the path of the data file that a deletion vector hides rows of."""
    found = _data_file_field(file, "referenced_data_file")
    return None if found is None else str(found)


def _data_file_field(file: DataFile, name: str) -> Any:
    position = _FIELD_POSITIONS[name]
    return file._data[position] if position < len(file._data) else None
