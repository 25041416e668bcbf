"""The code of a run as it was planned, put back into a folder that is named by its content."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from lakehouse_backfill import errors
from lakehouse_backfill.core.planning.job_code import code_files
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import ApprovalMissing, Tampered

#: What is kept of a run: path, SHA-256 and text (None: too large to keep) of each file.
ArchivedFiles = list[dict[str, Any]]


class CodeArchive:
    """Gives the folder in which a plan's code lies exactly as it was planned."""

    def __init__(self, project: Path, folder: Path, kept: Callable[[str], ArchivedFiles]) -> None:
        """`kept` gives the files of a run; `folder` is where they are put back."""
        self._project = project
        self._folder = folder
        self._kept = kept

    def restore_folder(self, plan: Plan) -> Path:
        """Put the code of the plan into a folder of its own; the same again changes nothing.

        A file that is not kept (of an older release, or too large) is taken from the project if it
        is the one that was planned. Raises ApprovalMissing when it is not, Tampered when a name
        leads out of the folder.
        """
        wanted = code_files(plan.resolved)
        _refuse_outside(plan, wanted)
        found = self._folder / digest(wanted)[:16]
        if not _is_complete(found, wanted):
            kept = {one["file"]: one for one in self._kept(plan.code_of or plan.run_id)}
            data = {name: self._file_bytes(plan, name, kept.get(name), wanted) for name in wanted}
            _write_folder(found, data)
        return found

    def _file_bytes(
        self, plan: Plan, name: str, kept: Mapping[str, Any] | None, wanted: Mapping[str, str]
    ) -> bytes:
        text = kept["text"] if kept else None
        if text is not None and _sha256(text.encode()) == wanted[name]:
            return str(text).encode()
        with suppress(OSError):
            data = (self._project / name).read_bytes()
            if _sha256(data) == wanted[name]:
                return data
        raise ApprovalMissing(
            f"{name} as {plan.run_id} was planned with is not kept, and the file changed since",
            state="nothing was computed",
            fix=f"put {name} back, or {errors.plan_command(plan.manifest_file, plan.run_id)}, and let it "
            "be approved again",
        )


def _refuse_outside(plan: Plan, names: Mapping[str, str]) -> None:
    """Files are written under these names: one that somebody stored must not lead elsewhere."""
    paths = {name: PurePosixPath(name) for name in names}
    outside = [name for name, path in paths.items() if path.is_absolute() or ".." in path.parts]
    if outside:
        raise Tampered(
            f"the plan of {plan.run_id} names code outside the project: {', '.join(outside)}",
            state="nothing was written or computed",
            fix=f"name it without .. and {errors.plan_command(plan.manifest_file, plan.run_id)}",
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_complete(folder: Path, wanted: Mapping[str, str]) -> bool:
    """Tell whether the folder holds exactly these files: somebody may have edited one."""
    try:
        return all(_sha256((folder / name).read_bytes()) == mark for name, mark in wanted.items())
    except OSError:
        return False


def _write_folder(folder: Path, data: Mapping[str, bytes]) -> None:
    """Write the files beside their place, then rename: who reads the folder finds all of it."""
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    for name, content in data.items():
        path = beside.joinpath(*PurePosixPath(name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        beside.rename(folder)
    except OSError:
        # Another process put the same there in between.
        shutil.rmtree(beside, ignore_errors=True)
        if not folder.is_dir():
            raise
