"""Files of a folder with Hive-style partition folders: where they lie, and what their paths say."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from lakehouse_backfill.adapters.sources.files.config import compile_folders, compile_pattern
from lakehouse_backfill.adapters.sources.files.errors import source_down, translate_store_errors
from lakehouse_backfill.errors import Blocked, ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
#: Folders of table formats: which files beside them count is said within these.
_TABLE_FORMATS = {
    "_delta_log": "a Delta table", ".hoodie": "a Hudi table", "metadata": "an Iceberg table",
    "_spark_metadata": "the output of a Spark stream",
}  # fmt: skip
_IS_NO_FILE = "it is no file, or a link that leads to none"
_TABLE_SIGN = re.compile(
    r"(?:(.*?)/)?(_delta_log|\.hoodie|_spark_metadata|metadata(?=/[^/]*\.metadata\.json$))(?:/.*)?",
    re.DOTALL,
)
#: What Hive writes for null.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_FOOTER_TAIL, _READ_BYTES = 8, 1 << 22
_NOTHING = "nothing was migrated"


class ListedFile(NamedTuple):
    """A file as it is listed: its name within the folder, size, and time of change."""

    name: str
    size_bytes: int
    modified: str
    #: Why it cannot be read as a file of its own.
    fault: str = ""


@dataclass(frozen=True)
class OldFolder:
    """The folder in its store: its path there, and the location by which Iceberg reads it."""

    store: FileSystem
    root: str
    base: str
    pattern: str

    @staticmethod
    def open(location: str, pattern: str, project: Path) -> OldFolder:
        """Open the folder; raises ConfigError for a location that is none."""
        from pyarrow.fs import FileSystem, LocalFileSystem

        if not _SCHEME.match(location):
            folder = Path(location).expanduser()
            root = os.path.normpath(folder if folder.is_absolute() else project / folder)
            return OldFolder(LocalFileSystem(), root, f"file://{root}", pattern)
        try:
            store, root = FileSystem.from_uri(location)
        except (ValueError, OSError, NotImplementedError) as error:
            raise ConfigError(
                f"{location} is no place of files: {error}",
                fix="write a folder, or a URI such as s3://bucket/trips",
                field="parquet.location",
            ) from error
        root = root.rstrip("/")
        return OldFolder(store, root, location_of(location, root), pattern)

    def location(self, name: str) -> str:
        """Return where Iceberg reads a file."""
        return f"{self.base}/{name}"

    def path(self, name: str) -> str:
        """Return the path of a file in its store."""
        return f"{self.root}/{name}" if name else self.root

    def list_files(self) -> tuple[ListedFile, ...]:
        """Return the files, by name; raises SourceDown, Blocked for a folder that is a table."""
        from pyarrow.fs import FileSelector, FileType

        self._require_text_above()
        with translate_store_errors(self.root):
            if self.store.get_file_info(self.root).type != FileType.Directory:
                raise source_down(f"{self.root} is no folder that can be read")
            try:
                listed = self.store.get_file_info(FileSelector(self.root, recursive=True))
                names = {info.path[len(self.root) + 1 :]: info for info in listed}
            except UnicodeDecodeError as error:
                raise Blocked(
                    f"a name in {self.root} is no UTF-8", state=_NOTHING, fix="rename the file"
                ) from error
        self._require_plain(names)
        self._require_no_table_above()
        pattern, folders = compile_pattern(self.pattern), compile_folders(self.pattern)

        def fits(name: str) -> bool:
            return bool(pattern.fullmatch(name)) and not _is_hidden(name)

        def may_hold(name: str) -> bool:
            is_seen = _is_partition(name) and not _is_hidden(name)
            return is_seen and bool(folders.fullmatch(f"{name}/"))

        wanted = {
            name: info
            for name, info in names.items()
            if info.type != FileType.Directory and fits(name)
        }
        others = self._other_names(wanted)
        found = [
            ListedFile(name, int(info.size), _modified(info), others.get(name, ""))
            if info.type == FileType.File
            else ListedFile(name, 0, _modified(info), _IS_NO_FILE)
            for name, info in wanted.items()
        ]
        found += [
            ListedFile(name, 0, "", _IS_NO_FILE)
            for name in self._dead_links()
            if fits(name) or may_hold(name)
        ]
        return tuple(sorted(found))

    def read_state(self, name: str) -> tuple[int, str, str] | None:
        """Return size, time of change, and digest of the footer as they are now; None: gone."""
        from pyarrow.fs import FileType

        with translate_store_errors(self.path(name)):
            info = self.store.get_file_info(self.path(name))
            if info.type != FileType.File:
                return None
            try:
                return int(info.size), _modified(info), self.footer_digest(name, int(info.size))
            except FileNotFoundError:
                return None

    def footer_digest(self, name: str, size_bytes: int) -> str:
        """Return the SHA-256 of the footer of a Parquet file, or of the end of another file.

        Raises FileNotFoundError, SourceDown.
        """
        try:
            with self.store.open_input_file(self.path(name)) as file:
                file.seek(max(0, size_bytes - _FOOTER_TAIL))
                tail = file.read(_FOOTER_TAIL)
                length = int.from_bytes(tail[:4], "little") if len(tail) == _FOOTER_TAIL else 0
                start = max(0, size_bytes - _FOOTER_TAIL - min(length, size_bytes))
                file.seek(start)
                return hashlib.sha256(file.read(size_bytes - start)).hexdigest()[:32]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise source_down(f"{self.path(name)} cannot be read: {error}") from error

    def require_bytes(self, name: str) -> None:
        """Read the bytes of a file that a parser refused: a store that is down makes no file bad.

        Raises SourceDown when they cannot be read.
        """
        with (
            translate_store_errors(self.path(name)),
            self.store.open_input_stream(self.path(name)) as file,
        ):
            while file.read(_READ_BYTES):
                pass

    def _require_text_above(self) -> None:
        """Raise Blocked when the location names a partition by bytes that are no text."""
        try:
            path_values(f"{self.root}/")
        except UnicodeDecodeError as error:
            raise Blocked(
                f"{self.root} names a partition by a text that is no UTF-8",
                state=_NOTHING,
                fix="rename the folder above the location, or move the files",
            ) from error

    def _require_plain(self, names: Iterable[str]) -> None:
        """Raise Blocked when the folder belongs to a table format: old files would come back."""
        for found in filter(None, map(_TABLE_SIGN.fullmatch, names)):
            if not _is_hidden(found[1] or ""):
                raise _no_plain_folder(self.path(found[1] or ""), found[2])

    def _require_no_table_above(self) -> None:
        """Raise Blocked when the folder is a partition, or the data, of a table.

        Folders above that may not be read are passed over.
        """
        from pyarrow.fs import FileSelector, FileType

        folder = PurePosixPath(self.root)
        while folder.parent.name and ("=" in folder.name or folder.name == "data"):
            folder = folder.parent
            metadata = FileSelector(f"{folder}/metadata", allow_not_found=True)
            signs = [f"{folder}/{sign}" for sign in _TABLE_FORMATS if sign != "metadata"]
            with suppress(OSError):
                infos = [*self.store.get_file_info(signs), *self.store.get_file_info(metadata)]
                for info in infos:
                    sign = _TABLE_SIGN.fullmatch(info.path.removeprefix(f"{folder}/"))
                    if sign and info.type != FileType.NotFound:
                        raise _no_plain_folder(str(folder), sign[2])

    def _dead_links(self) -> Iterator[str]:
        """Give the links that lead to nothing, which Arrow does not list."""
        from pyarrow.fs import LocalFileSystem

        if not isinstance(self.store, LocalFileSystem):
            return
        for folder, _, files in os.walk(self.root):
            for path in map(Path(folder).joinpath, files):
                if path.is_symlink() and not path.exists():
                    yield str(path.relative_to(self.root))

    def _other_names(self, wanted: dict[str, FileInfo]) -> dict[str, str]:
        """Return by name which other name the same file has: links to files or folders."""
        from pyarrow.fs import LocalFileSystem

        if not isinstance(self.store, LocalFileSystem):
            return {}
        names: dict[str, list[str]] = {}
        for name, info in wanted.items():
            names.setdefault(os.path.realpath(info.path), []).append(name)
        return {
            name: f"the same file is also reached as {same[1] if name == same[0] else same[0]}"
            for same in names.values()
            if len(same) > 1
            for name in same
        }


def _no_plain_folder(path: str, sign: str) -> Blocked:
    return Blocked(
        f"{path} is {_TABLE_FORMATS[sign]}, and no plain folder of Parquet files: files that it "
        "does not count any more may lie in it",
        state=_NOTHING,
        fix="write its rows out as plain files first, or bring it in by its own tools",
    )


def location_of(address: str, root: str) -> str:
    """Return the location of a folder for readers of Iceberg, of its address and path in the store.

    Host and port are kept, as they say which store it is; options, users and secrets are not.
    Raises ConfigError for an address that does not name its container.
    """
    parts = urlsplit(address)
    scheme, host = parts.scheme.lower(), parts.netloc.rpartition("@")[2]
    if scheme not in ("abfs", "abfss"):
        # In the path of a bucket's store stands the bucket; other paths begin at the root.
        return f"{scheme}://{host if root.startswith('/') else ''}{root}"
    container, _, folder = root.partition("/")
    if parts.netloc.rpartition("@")[0].partition(":")[0] != container:
        raise ConfigError(
            f"{scheme}://{host} is no address of a container that readers of Iceberg know",
            fix=f"write {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER",
            field="parquet.location",
        )
    return f"{scheme}://{container}@{host}/{folder}".rstrip("/")


def path_values(name: str) -> tuple[tuple[str, str | None], ...]:
    """Return the columns of a path with their texts, in order; None: null.

    Raises UnicodeDecodeError for a path whose escapes are no UTF-8.
    """
    found = []
    for folder in name.split("/")[:-1]:
        column, equals, text = folder.partition("=")
        if equals and column:
            value = unquote(text, errors="strict")
            found.append((unquote(column, errors="strict"), None if value == HIVE_NULL else value))
    return tuple(found)


def _is_hidden(name: str) -> bool:
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in name.split("/")
    )


def _is_partition(name: str) -> bool:
    return "=" in name.rpartition("/")[2]


def _modified(info: FileInfo) -> str:
    return str(info.mtime_ns or 0)
