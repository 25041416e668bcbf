"""What lets a process do more sequences: fewer threads, no waiting for disks, less parsing.

Every verb still plans, reads and commits as it does for a user. Only what cannot change once it is
written is parsed once: metadata files, manifest lists and manifests, and the data files of control
tables. The data files of the target are read each time: they can be deleted under the product.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa
from pyiceberg import manifest
from pyiceberg.io import pyarrow as reading
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.utils.concurrent import ExecutorFactory
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.model.lake import CONTROL
from tests.support.quick_pyiceberg import make_quick

#: So many parsed files are remembered, then all are forgotten.
MOST = 20_000


class Inline(Executor):
    """Does the work at once, in the thread that asks: the files have a few rows each."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (as any executor does)
            done.set_exception(error)
        return done


class Memory:
    """Answers that never change, by key."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = make()
        return self._known[key]


def set_up() -> None:
    """Set this process up; called once in each."""
    ExecutorFactory._instance, ExecutorFactory._instance_pid = Inline(), os.getpid()
    pa.set_cpu_count(1)
    event.listen(Engine, "connect", _no_sync)
    make_quick()
    _remember_metadata(Memory())
    _remember_manifests(Memory())
    _remember_rows(Memory())


def freeze() -> None:
    """Let the garbage collector leave alone what stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _no_sync(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF")


def _remember_metadata(memory: Memory) -> None:
    parse = FromInputFile.table_metadata

    def remembered(input_file: Any, *args: Any) -> Any:
        return memory.of(input_file.location, lambda: parse(input_file, *args))

    FromInputFile.table_metadata = staticmethod(remembered)


def _remember_manifests(memory: Memory) -> None:
    fetch, read = ManifestFile.fetch_manifest_entry, manifest.read_manifest_list

    def entries(self: ManifestFile, io: Any, discard_deleted: bool = True) -> list[Any]:
        found = memory.of(self.manifest_path, lambda: fetch(self, io, discard_deleted=False))
        return [e for e in found if not discard_deleted or e.status != ManifestEntryStatus.DELETED]

    def listed(input_file: Any) -> Iterator[ManifestFile]:
        yield from memory.of(input_file.location, lambda: list(read(input_file)))

    ManifestFile.fetch_manifest_entry = entries
    manifest.read_manifest_list = listed


def _remember_rows(memory: Memory) -> None:
    read = reading._task_to_record_batches

    def batches(io: Any, task: Any, where: Any, wanted: Any, *args: Any) -> Iterator[Any]:
        path = task.file.file_path
        if f"/{CONTROL}" not in path:
            yield from read(io, task, where, wanted, *args)
            return
        key = (path, repr(where), wanted.schema_id, tuple(wanted.column_names))
        yield from memory.of(key, lambda: list(read(io, task, where, wanted, *args)))

    reading._task_to_record_batches = batches
