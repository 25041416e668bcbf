"""Errors about files of a table that cannot be read: which file, and what to do.

Avro, JSON and Parquet readers fail on a damaged file with errors of many types that name no file.
The file is found in the frames of the traceback: each reader holds the file that it reads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.io import InputFile
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import FileScanTask

from lakehouse_backfill.adapters.iceberg.catalog import is_outage
from lakehouse_backfill.errors import BackfillError, DamagedFile

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Holder = TypeVar("Holder", bound="DataclassInstance")
#: Ports of these packages read files of tables.
_PACKAGES = ("lakehouse_backfill.adapters.iceberg", "lakehouse_backfill.adapters.local")
#: Readers report damage as an `OSError` too; it names the format, and an outage does not.
_FORMATS = ("parquet", "thrift", "magic bytes")


def damaged_file(error: BaseException) -> str | None:
    """Return the location of the file that a reader could not read; None for any other error."""
    if isinstance(error, BackfillError) or not isinstance(error, Exception):
        return None
    if is_outage(error) and not any(word in str(error).lower() for word in _FORMATS):
        return None
    found = None
    for frame in _frames(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith("pyiceberg."):
            locations = filter(None, map(_location, frame.f_locals.values()))
            found = next(locations, found)
    return found


@contextmanager
def translate_damage() -> Iterator[None]:
    """Translate a reader's error on a damaged file into DamagedFile; others pass unchanged."""
    try:
        yield
    except Exception as error:
        location = damaged_file(error)
        if location is None:
            raise
        raise DamagedFile(location, error) from error


def translate_damage_of_ports(holder: Holder) -> Holder:
    """Return the dataclass with ports that raise DamagedFile for a file that cannot be read."""
    ports = {
        name: _TranslatedPort(port)
        for name, port in vars(holder).items()
        if type(port).__module__.startswith(_PACKAGES)
    }
    return replace(holder, **ports)


class _TranslatedPort:
    """A port whose methods raise DamagedFile."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if not callable(value) or name.startswith("_"):
            return value
        method = _translated(value)
        setattr(self, name, method)
        return method


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with translate_damage():
            result = method(*arguments, **named)
        return _translated_items(result) if inspect.isgenerator(result) else result

    return call


def _translated_items(items: Iterator[Any]) -> Iterator[Any]:
    with translate_damage():
        yield from items


def _frames(traceback: TracebackType | None) -> Iterator[Any]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _location(value: object) -> str | None:
    if isinstance(value, InputFile):
        return value.location
    if isinstance(value, ManifestFile):
        return str(value.manifest_path)
    if isinstance(value, FileScanTask):
        return str(value.file.file_path)
    return str(value.file_path) if isinstance(value, DataFile) else None
