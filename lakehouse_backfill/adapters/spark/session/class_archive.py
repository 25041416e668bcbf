"""Keeps what Java has loaded of Spark's classes, so that its next start need not load them again.

A JVM that is told so writes the classes that it has loaded to a file when it ends, and a later one
maps that file (class data sharing). Java itself looks whether file, options, version and jars fit
together, and otherwise goes on without it. Nothing here fails a command: whatever is not as it
should be leaves Java without an archive.

Such a file is code: it is read and written only in folders that nobody else can write. It holds no
rows, but names that generated classes have, so a JVM for restricted columns writes none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import stat
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lakehouse_backfill.adapters.spark.session.java import user_cache

#: `off` neither reads nor writes archives.
ARCHIVE_VARIABLE = "LAKEHOUSE_BACKFILL_CLASS_ARCHIVE"
#: Java would report each class that it leaves out.
_NO_REPORT = "-Xlog:cds*=off"
#: First four bytes of a whole archive: Java writes them last.
_MAGIC = 0xF00BABA8
#: Space, quotes and the like would be split or replaced where Spark reads Java's options.
_PLAIN_PATH = re.compile(r"[\w./@+=-]+")
#: Options of a profile that decide about archives themselves.
_OWN_CHOICE = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit", "-javaagent", "-agent")
#: Archives that stay beside the one in use, of another Java or other jars: each has 200 MB.
_MAX_OTHERS = 1
#: Ends of a JVM that a broken archive can cause; Java makes no such end by itself.
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)


@dataclass
class ArchiveUse:
    """What one JVM does with an archive: reads it, writes it, or neither."""

    options: tuple[str, ...] = ()
    #: Held by the JVM as long as it may write; to be passed to its process.
    lock: int | None = None
    #: The file that it reads, or writes.
    reads: Path | None = None
    writes: Path | None = None

    def keep(self) -> None:
        """Have what the JVM writes at its end read by later ones: it has done a whole run.

        One that was stopped early has loaded too little.
        """
        if self.writes is not None:
            with suppress(OSError):
                self.writes.with_suffix(".keep").touch()

    def release(self) -> None:
        """Leave the lock to the JVM, once it has started."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def blame(self, returncode: int | None) -> bool:
        """Remove the archive if the JVM that read it crashed; return whether it did."""
        if self.reads is None or returncode is None or not is_crash(returncode):
            return False
        with suppress(OSError):
            self.reads.unlink()
        return True


def is_crash(returncode: int) -> bool:
    """Return whether a process ended by a fault of its own, directly or below a shell."""
    return -returncode in _CRASHES or returncode - 128 in _CRASHES


class ClassArchives:
    """The archives of a user, in a folder that nobody else can write."""

    def __init__(self, folder: Path) -> None:
        """Use a folder; it is made when an archive is."""
        self._folder = folder

    @staticmethod
    def of_user(environ: Mapping[str, str]) -> ClassArchives | None:
        """Return the archives in the user's cache; None where they are off, or there is no home."""
        if environ.get(ARCHIVE_VARIABLE, "").lower() in ("off", "0", "no", "false"):
            return None
        try:
            return ClassArchives(user_cache(environ) / "classes")
        except RuntimeError:
            return None

    def describe(self) -> str:
        """Say which archives there are, or why none is used."""
        try:
            if not self._folder.exists():
                return "no archive of classes yet: the first short run writes one"
            if not _is_own_folder(self._folder):
                return f"no archive of classes is used: others can write {self._folder}"
            sizes = [one.stat().st_size for one in self._folder.glob("*.jsa") if _is_whole(one)]
        except OSError as error:
            return f"no archive of classes is used: {error}"
        return f"{len(sizes)} archives of classes, {sum(sizes) / 1e6:.0f} MB in {self._folder}"

    def use(self, key: str, *, may_write: bool, options: str = "") -> ArchiveUse:
        """Return the options by which a JVM reads the archive of `key`, or writes it at its end.

        `options` are those that it has already: what they say about archives is left as it is.
        """
        if any(word in options for word in _OWN_CHOICE):
            return ArchiveUse()
        try:
            return self._use(key, may_write=may_write)
        except OSError:
            return ArchiveUse()

    def _use(self, key: str, *, may_write: bool) -> ArchiveUse:
        file, fresh = self._folder / f"{key}.jsa", self._folder / f"{key}.new"
        if not _PLAIN_PATH.fullmatch(str(file)):
            return ArchiveUse()
        if may_write:
            _make_own_folder(self._folder)
        if not _is_own_folder(self._folder):
            return ArchiveUse()
        lock = _try_lock(self._folder / f"{key}.lock")
        if lock is None:  # A JVM writes it, or another command looks at this moment.
            return _reading(file) if _is_whole(file) else ArchiveUse()
        if _is_taken_over(fresh, file):
            os.close(lock)
            self._remove_others(file)
            return _reading(file)
        if may_write:
            options = (_NO_REPORT, f"-XX:ArchiveClassesAtExit={fresh}")
            return ArchiveUse(options, lock, writes=fresh)
        os.close(lock)
        return ArchiveUse()

    def _remove_others(self, file: Path) -> None:
        """Remove the archives that were not used for longest, until few are left."""
        with suppress(OSError):
            # Also those that were written at the end of a JVM and that none has begun with.
            others = [one for end in ("jsa", "new") for one in self._folder.glob(f"*.{end}")]
            others = [one for one in others if one.stem != file.stem]
            others.sort(key=lambda one: one.stat().st_mtime, reverse=True)
            for old in others[_MAX_OTHERS:]:
                lock = _try_lock(old.with_suffix(".lock"))
                if lock is None:  # A JVM writes it.
                    continue
                for end in (old.suffix, ".keep", ".lock"):
                    old.with_suffix(end).unlink(missing_ok=True)
                os.close(lock)


def archive_key(java: Path, class_path: Iterable[Path]) -> str:
    """Name the archive of a Java and of what it loads classes from, jar by jar.

    A changed jar or Java gives another name. Raises OSError where something cannot be looked at.
    """
    parts = [os.path.realpath(java), _state(java / "release"), _state(java / "lib" / "modules")]
    for entry in class_path:
        jars = sorted(entry.glob("*.jar")) if entry.is_dir() else [entry]
        parts += [f"{jar} {_state(jar)}" for jar in jars]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _state(file: Path) -> str:
    found = file.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


def _reading(file: Path) -> ArchiveUse:
    with suppress(OSError):
        os.utime(file, (time.time(), file.stat().st_mtime))
    return ArchiveUse((f"-XX:SharedArchiveFile={file}",), reads=file)


def _is_taken_over(fresh: Path, file: Path) -> bool:
    """Give a new archive that is to be kept its name, else remove it; return if there is one."""
    keep = fresh.with_suffix(".keep")
    if not _is_whole(file) and _is_whole(fresh) and keep.exists():
        fresh.replace(file)
    is_there = _is_whole(file)
    for left in (fresh, keep) if is_there else (file, fresh, keep):
        left.unlink(missing_ok=True)
    return is_there


def _make_own_folder(folder: Path) -> None:
    for one in (folder.parent.parent, folder.parent, folder):
        one.mkdir(parents=True, exist_ok=True, mode=0o700)
    for one in (folder.parent, folder):
        found = one.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not _is_own(found):
            # Made with an open umask; what lies in it is this user's own.
            one.chmod(stat.S_IMODE(found.st_mode) & ~0o022)


def _is_own_folder(folder: Path) -> bool:
    """Return whether nobody but this user can write the folder, or put another in its place."""
    for one in (folder, folder.parent):
        try:
            found = one.lstat()
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode) or not _is_own(found):
            return False
    return True


def _is_whole(file: Path) -> bool:
    """Return whether Java has written the file to its end, and nobody else could."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or not _is_own(found):
            return False
        return os.read(handle, 4) == struct.pack("=I", _MAGIC)
    finally:
        os.close(handle)


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _try_lock(path: Path) -> int | None:
    """Return the handle that holds the lock; None where another process has it, or removed it.

    A lock on a removed file would keep nobody out: the next process creates another file.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.lstat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None
