"""The folder in which jobs may write: held while a process uses it, removed by the last one.

Uses the standard library only: its text is sent to Python workers. A held folder has a lock of the
operating system, which ends with the process, so folders of processes that were killed are found.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

PREFIX = "lakehouse-backfill-scratch-"
#: A younger folder may not be held yet.
_LEAST_AGE_S = 3600


def make_held(parent: str | None = None) -> Path:
    """Make a folder for this process, and return it; remove those that killed processes left.

    It lies in `parent`, which must exist, else where temporary files do.
    """
    _remove_left(parent or tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)).resolve()
    hold(str(folder))
    return folder


def hold(folder: str) -> int:
    """Make a folder where it is missing, and hold it; return what `let_go` needs."""
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 (an executor may lack it)
        try:
            held = os.open(folder, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_SH)
            # Another task may have removed it while this one waited.
            if os.path.samestat(os.fstat(held), os.stat(folder)):  # noqa: PTH116
                return held
            os.close(held)
        except FileNotFoundError:
            continue


def let_go(folder: str, held: int) -> None:
    """Give a folder back; the last process that held it removes it, with all that it holds."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # Somebody else holds it: the driver, or another task.
    finally:
        os.close(held)


def _remove_left(parent: str) -> None:
    for path in Path(parent).glob(f"{PREFIX}*"):
        try:
            found = path.lstat()
            is_old = found.st_mtime < time.time() - _LEAST_AGE_S
            if is_old and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                let_go(str(path), os.open(path, os.O_RDONLY | os.O_NOFOLLOW))
        except OSError:
            continue  # Its owner has removed it.
