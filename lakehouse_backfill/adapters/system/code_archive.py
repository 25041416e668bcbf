"""The code of a run as it was planned, restored into a folder that is named by its content."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from lakehouse_backfill.command_lines import plan_command
from lakehouse_backfill.core.planning.job_code import code_files
from lakehouse_backfill.domain.plan import Plan
from lakehouse_backfill.domain.serialization import digest
from lakehouse_backfill.errors import ApprovalMissing, Tampered

#: The archive of a run: path, SHA-256 and text (None: too large) of each file.
ArchivedFiles = list[dict[str, Any]]


class CodeArchive:
    """Restores a plan's code exactly as it was planned."""

    def __init__(self, project: Path, folder: Path, kept: Callable[[str], ArchivedFiles]) -> None:
        """Restore into `folder` the files that `kept` returns for a run."""
        self._project = project
        self._folder = folder
        self._kept = kept

    def restore_folder(self, plan: Plan) -> Path:
        """Restore the code of the plan into a folder of its own; the same again changes nothing.

        A file that is not kept (of an older release, or too large) is taken from the project if it
        is the planned one. Raises ApprovalMissing when it is not, Tampered when a name leads out of
        the folder.
        """
        digests = code_files(plan.resolved)
        _refuse_outside(plan, digests)
        target = self._folder / digest(digests)[:16]
        if not _is_complete(target, digests):
            # The code that is named for old rows may have files with the names of the run's own.
            texts = [
                (file["file"], str(file["text"]).encode())
                for file in self._kept(plan.code_of or plan.run_id)
                if file["text"] is not None
            ]
            kept = {(name, _sha256(data)): data for name, data in texts}
            data = {
                name: kept[name, sha256]
                if (name, sha256) in kept
                else self._project_bytes(plan, name, sha256)
                for name, sha256 in digests.items()
            }
            _write_folder(target, data)
        return target

    def _project_bytes(self, plan: Plan, name: str, sha256: str) -> bytes:
        with suppress(OSError):
            data = (self._project / name).read_bytes()
            if _sha256(data) == sha256:
                return data
        raise ApprovalMissing(
            f"{name} as {plan.run_id} was planned with is not kept, and the file changed since",
            state="nothing was computed",
            fix=f"put {name} back, or "
            f"{plan_command(plan.manifest_file, plan.run_id)}, and let it "
            "be approved again",
        )


def _refuse_outside(plan: Plan, names: Mapping[str, str]) -> None:
    """Check that no file name leads out of the folder: stored names may have been edited."""
    paths = {name: PurePosixPath(name) for name in names}
    outside = [name for name, path in paths.items() if path.is_absolute() or ".." in path.parts]
    if outside:
        raise Tampered(
            f"the plan of {plan.run_id} names code outside the project: {', '.join(outside)}",
            state="nothing was written or computed",
            fix=f"name it without .. and {plan_command(plan.manifest_file, plan.run_id)}",
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_complete(folder: Path, wanted: Mapping[str, str]) -> bool:
    """Return whether the folder holds exactly these contents: a file may have been edited."""
    try:
        return all(_sha256((folder / name).read_bytes()) == mark for name, mark in wanted.items())
    except OSError:
        return False


def _write_folder(folder: Path, data: Mapping[str, bytes]) -> None:
    """Write the files to a temporary folder, then rename it: readers see all files or none."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    for name, content in data.items():
        path = temporary.joinpath(*PurePosixPath(name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary.rename(folder)
    except OSError:
        # Another process wrote the same folder first.
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():
            raise
