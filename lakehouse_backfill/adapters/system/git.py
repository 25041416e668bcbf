"""Which commit a project is at, and whether it has changes that are in none."""

from __future__ import annotations

import subprocess
from pathlib import Path

_GIT_TIMEOUT_S = 10


def describe_git_commit(folder: Path, files: tuple[str, ...] = ()) -> str | None:
    """Name the commit of the folder; `-dirty` at its end: files that decide are not in it.

    Those are files that changed since, and those of `files` that git does not know. None: it is no
    repository, has no commit, or there is no git.
    """
    head = _run_git(folder, "describe", "--always", "--dirty", "--abbrev=40")
    if not head or head.endswith("-dirty") or not files:
        return head or None
    unknown = _run_git(folder, "ls-files", "--others", "--", *files)
    return f"{head}-dirty" if unknown else head


def _run_git(folder: Path, *arguments: str) -> str:
    try:
        # A fixed command on a folder that the user named.
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607 (whichever git is installed)
            capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
