"""Metadata files of tables that were parsed, for commands that load the same tables many times.

A chunk loads the shadow three times and control tables four times, and PyIceberg takes 50 ms to
parse the metadata of a shadow with 2,200 snapshots. A metadata file never changes and its name is
not used again, so it is parsed once. Which file is the newest one is asked of the catalog each
time: unlike in a view of the catalog, nothing that is loaded is older than the call.

The next file of a table mostly lists the same snapshots and some more. Where the text of its lists
begins with that of the lists before, their entries are shared, and only new ones are parsed.
"""

from __future__ import annotations

import codecs
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

#: The metadata of a table with a long history takes tens of megabytes.
_MAX_TABLES = 16
#: The methods of a catalog that are replaced.
_LOADS_ROW, _COMMITS = "_convert_orm_to_iceberg", "commit_table"
#: The lists of a metadata file that grow with each commit, and what they hold.
_ENTRIES: Mapping[str, type[Snapshot] | type[SnapshotLogEntry]] = {
    "snapshots": Snapshot, "snapshot-log": SnapshotLogEntry,
}  # fmt: skip
_DECODER = json.JSONDecoder()
#: What stands before the first entry of a list, before another one, and behind the last one.
_FIRST, _NEXT, _END = re.compile(r"\s*"), re.compile(r"\s*,\s*"), re.compile(r"\s*\]")


@dataclass(frozen=True)
class _ParsedList:
    """The entries of a list in a metadata file, and how their text is known again."""

    entries: tuple[Any, ...] = ()
    #: Bytes from the first entry to the end of the last one.
    size: int = 0
    digest: bytes = field(default_factory=lambda: blake2b().digest())


@dataclass(frozen=True)
class ParsedFile:
    """What a metadata file holds; of one that was written here, no text is known."""

    name: str
    metadata: TableMetadata
    lists: Mapping[str, _ParsedList] = field(default_factory=dict)


class _ParsedFiles:
    """The newest parsed metadata file of each table; the least recently used table goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, ...], ParsedFile] = OrderedDict()

    def find(self, table: tuple[str, ...]) -> ParsedFile | None:
        """Return the newest file of a table that is known."""
        with self._lock:
            if table in self._found:
                self._found.move_to_end(table)
            return self._found.get(table)

    def keep(self, table: tuple[str, ...], file: ParsedFile) -> None:
        """Keep what a file of a table holds in place of what its earlier file held."""
        with self._lock:
            self._found[table] = file
            self._found.move_to_end(table)
            while len(self._found) > _MAX_TABLES:
                self._found.popitem(last=False)


def _own_copy(metadata: TableMetadata) -> TableMetadata:
    """Return metadata with properties of its own: writers set some for the length of a commit."""
    return metadata.model_copy(update={"properties": dict(metadata.properties)})


def parse_file(io: FileIO, name: str, before: ParsedFile | None = None) -> ParsedFile:
    """Parse a metadata file; entries that the file `before` it has, too, are shared with it.

    Raises what PyIceberg raises for a file that it cannot read.
    """
    compressor = Compressor.get_compressor(name)
    with io.new_input(name).open() as stored, compressor.stream_decompressor(stored) as text:
        data = text.read()
    try:
        return _parse(name, data, before.lists if before else {})
    except (ValueError, ValidationError):
        # PyIceberg's own error says what is wrong; it drops half a letter at the end, too.
        text_of_all = codecs.getincrementaldecoder("utf-8")().decode(data)
        return ParsedFile(name, TableMetadataUtil.parse_raw(text_of_all))


def _parse(name: str, data: bytes, known: Mapping[str, _ParsedList]) -> ParsedFile:
    lists: dict[str, _ParsedList] = {}
    for key, kind in _ENTRIES.items():
        # In a text or a name, the quotes would be escaped.
        places = [place.end() for place in re.finditer(rb'"%s"\s*:\s*\[' % key.encode(), data)]
        if len(places) == 1:
            begin = places[0]
            found = _parse_list(data, begin, kind, known.get(key, _ParsedList()))
            data = data[:begin] + data[begin + found.size :]
            lists[key] = found
    metadata = TableMetadataUtil.parse_raw(data.decode())
    entries = {key.replace("-", "_"): [*found.entries] for key, found in lists.items()}
    return ParsedFile(name, metadata.model_copy(update=entries), lists)


def _parse_list(data: bytes, begin: int, kind: Any, known: _ParsedList) -> _ParsedList:
    """Parse the list that begins there; what is known of it is taken over."""
    digest = blake2b(memoryview(data)[begin : begin + known.size])
    if digest.digest() != known.digest:
        known, digest = _ParsedList(), blake2b()
    entries = [*known.entries]
    text = data[begin + known.size :].decode()
    done = 0
    while not _END.match(text, done):
        gap = (_NEXT if entries else _FIRST).match(text, done)
        if gap is None:
            raise ValueError("the list is broken")
        done = _DECODER.raw_decode(text, gap.end())[1]
        entry = kind.model_validate_json(text[gap.end() : done])
        entries.append(_share_parts(entry, entries[-1] if entries else None))
    added = text[:done].encode()
    digest.update(added)
    return _ParsedList(tuple(entries), known.size + len(added), digest.digest())


def _share_parts(entry: Any, before: Any) -> Any:
    """Have an entry hold the same objects as the one before it, where they are equal.

    Most of a snapshot's memory are texts that each commit of an engine repeats, and names.
    """
    if before is None:
        return entry
    _share_names(entry, before)
    if getattr(entry, "summary", None) and getattr(before, "summary", None):
        _share_names(entry.summary, before.summary)
        known = before.summary.additional_properties
        names = {name: name for name in known}
        found = entry.summary.additional_properties
        shared = {
            names.get(name, name): known[name] if known.get(name) == value else value
            for name, value in found.items()
        }
        found.clear()
        found.update(shared)
    return entry


def _share_names(model: Any, before: Any) -> None:
    if model.model_fields_set == before.model_fields_set:
        object.__setattr__(model, "__pydantic_fields_set__", before.model_fields_set)


@contextmanager
def parsing_once(catalog: Catalog) -> Iterator[None]:
    """Parse each metadata file of the catalog's tables once until the block ends.

    What its own commits write is known, too. Only catalogs in a database name the file of a table
    without sending what it holds; for others nothing changes, nor inside another such block.
    """
    if not hasattr(catalog, _LOADS_ROW) or _LOADS_ROW in vars(catalog):
        yield
        return
    commit_before = vars(catalog).get(_COMMITS)
    vars(catalog).update(_parsing_methods(catalog, _ParsedFiles()))
    try:
        yield
    finally:
        del vars(catalog)[_LOADS_ROW], vars(catalog)[_COMMITS]
        if commit_before is not None:
            vars(catalog)[_COMMITS] = commit_before


def _parsing_methods(catalog: Any, files: _ParsedFiles) -> dict[str, Callable[..., Any]]:
    """Return the catalog's methods that look for parsed files first, and keep new ones."""
    commit: Callable[..., CommitTableResponse] = getattr(catalog, _COMMITS)

    def load_row(row: Any) -> Table:
        table = (*Catalog.identifier_to_tuple(row.table_namespace or ""), row.table_name)
        name, found = row.metadata_location, files.find(table)
        if found is None or found.name != name:
            found = parse_file(catalog._load_file_io({}, name), name, found)
            files.keep(table, found)
        metadata = _own_copy(found.metadata)
        io = catalog._load_file_io(metadata.properties, name)
        return Table(table, metadata, name, io, catalog)

    def commit_table(table: Table, *arguments: Any, **named: Any) -> CommitTableResponse:
        response = commit(table, *arguments, **named)
        metadata = _own_copy(response.metadata)
        files.keep(table.name(), ParsedFile(response.metadata_location, metadata))
        return response

    return {_LOADS_ROW: load_row, _COMMITS: commit_table}
