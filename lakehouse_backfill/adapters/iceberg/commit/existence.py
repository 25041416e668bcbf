"""Proving that files are where a commit will say they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry

from lakehouse_backfill.adapters.iceberg.commit.conflicts import ErrorWording
from lakehouse_backfill.errors import NotFound

_CHECK_THREADS = 16


class FileExistenceCheck:
    """Checks each file once."""

    def __init__(self, verb: ErrorWording) -> None:
        self._verb = verb
        self._seen: set[str] = set()

    def check(self, io: FileIO, entries: dict[str, ManifestEntry]) -> None:
        """Raise NotFound when a file is missing or has another size than its entry says."""
        files = [e.data_file for path, e in entries.items() if path not in self._seen]
        if not files:
            return
        with ThreadPoolExecutor(min(_CHECK_THREADS, len(files))) as pool:
            faults = [
                fault for fault in pool.map(lambda file: _file_fault(io, file), files) if fault
            ]
        if faults:
            raise NotFound(
                f"{len(faults)} of {len(files)} files are not as the table lists them: {faults[0]}",
                state=self._verb.state,
                fix=self._verb.fix,
            )
        self._seen.update(entries)


def _file_fault(io: FileIO, file: DataFile) -> str:
    try:
        size = len(io.new_input(file.file_path))
    except FileNotFoundError:
        return f"{file.file_path} is missing"
    if size != file.file_size_in_bytes:
        return f"{file.file_path} has {size} bytes, not {file.file_size_in_bytes}"
    return ""
