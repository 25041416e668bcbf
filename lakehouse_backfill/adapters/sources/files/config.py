"""Where the files of a source lie, and where they are archived."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_backfill.adapters.sources.files.errors import (
    source_down,
    translate_store_errors,
    unreadable_name,
)
from lakehouse_backfill.domain.sources.declaration import FileSource
from lakehouse_backfill.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

#: Files that a producer is still writing, by custom.
_UNFINISHED = re.compile(r"(^|/)[._][^/]*$|\.(tmp|partial|part|crdownload)$")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True)
class StoreFolder:
    """A folder of a file system, or a prefix of a bucket."""

    store: FileSystem
    root: str

    def path(self, name: str) -> str:
        """Return the whole path of a file in it."""
        return f"{self.root.rstrip('/')}/{name}"


@dataclass(frozen=True)
class FilePlaces:
    """The folders of a source of files."""

    inbox: StoreFolder
    accepted: StoreFolder | None
    rejected: StoreFolder | None

    @staticmethod
    def open(declared: FileSource, project: Path) -> FilePlaces:
        """Open the folders; raises ConfigError for a location that is none."""
        archive, inbox = declared.archive, _open_folder(declared.location, project)
        names = {"accepted": archive.accepted, "rejected": archive.rejected} if archive else {}
        folders = {name: _open_folder(location, project) for name, location in names.items()}
        for name, folder in folders.items():
            if f"{inbox.root}/".startswith(f"{folder.root}/"):
                raise ConfigError(
                    f"files.archive.{name} is the folder of the files, or holds it",
                    fix="name a folder beside it, or one within it",
                    field=f"files.archive.{name}",
                )
        return FilePlaces(inbox, folders.get("accepted"), folders.get("rejected"))

    @property
    def keeps_files(self) -> bool:
        """Whether files stay where they were found."""
        return self.accepted is None

    def list_names(self, pattern: str, leave_out: frozenset[str]) -> dict[str, int]:
        """Return names and sizes of the files that fit the pattern, without unfinished ones.

        Names are relative to the folder. Links are followed; a file that is reached by several
        names has its own one. Raises SourceDown, Blocked for a name that is no UTF-8.
        """
        from pyarrow.fs import FileSelector, FileType

        root = self.inbox.root.rstrip("/")
        with translate_store_errors(root):
            if self.inbox.store.get_file_info(root).type != FileType.Directory:
                raise source_down(f"{root} is no folder that can be read")
            try:
                listed = self.inbox.store.get_file_info(FileSelector(root, recursive=True))
                sorted(info.path for info in listed)  # each is decoded when it is looked at
            except UnicodeDecodeError as error:
                raise unreadable_name(root) from error
        fits = compile_pattern(pattern)
        archives = [
            folder.root.rstrip("/") + "/" for folder in (self.accepted, self.rejected) if folder
        ]
        found = {}
        for info in self._each_once(listed):
            name = info.path[len(root) + 1 :]
            is_archived = any(info.path.startswith(folder) for folder in archives)
            is_left_out = is_archived or name in leave_out or _UNFINISHED.search(name)
            if info.type == FileType.File and fits.fullmatch(name) and not is_left_out:
                found[name] = int(info.size)
        return dict(sorted(found.items()))

    def _each_once(self, listed: list[FileInfo]) -> list[FileInfo]:
        """Return each file of a local folder once: folders can link to one that holds them."""
        from pyarrow.fs import LocalFileSystem

        if not isinstance(self.inbox.store, LocalFileSystem):
            return listed
        root = os.path.realpath(self.inbox.root)
        names: dict[str, tuple[bool, int, str, FileInfo]] = {}
        for info in listed:
            real = os.path.realpath(info.path)
            is_link = real != f"{root}{info.path[len(self.inbox.root.rstrip('/')) :]}"
            one = (is_link, len(info.path), info.path, info)
            names[real] = min(one, names.get(real, one), key=lambda known: known[:3])
        return [one[3] for one in names.values()]


_PATTERN_PARTS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of names: `*` and `?` stay within a folder, `**` crosses folders."""
    # A name can hold a line break.
    return re.compile("".join(part for _, part in _pattern_parts(pattern)), re.DOTALL)


def compile_folders(pattern: str) -> re.Pattern[str]:
    """Compile the names of folders, with a final `/`, in which names of the pattern may be."""
    found, before = [], ""
    for piece, part in _pattern_parts(pattern):
        if piece.startswith("**"):
            found.append(before + ".*/")
        before += part
        if piece == "/":
            found.append(before)
    return re.compile("|".join(found) or "(?!)", re.DOTALL)


def _pattern_parts(pattern: str) -> list[tuple[str, str]]:
    """Return the pieces of a pattern, each with its regular expression."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|/)", pattern)
    return [(piece, _PATTERN_PARTS.get(piece, re.escape(piece))) for piece in pieces]


def _open_folder(location: str, project: Path) -> StoreFolder:
    from pyarrow.fs import FileSystem, LocalFileSystem

    if not _SCHEME.match(location):
        folder = Path(location).expanduser()
        root = folder if folder.is_absolute() else project / folder
        return StoreFolder(LocalFileSystem(), os.path.normpath(root))
    try:
        store, root = FileSystem.from_uri(location)
    except (ValueError, OSError, NotImplementedError) as error:
        raise ConfigError(
            f"{location} is no place of files: {error}",
            fix="write a folder, or a URI such as s3://bucket/inbox",
            field="files.location",
        ) from error
    return StoreFolder(store, root.rstrip("/") or root)
