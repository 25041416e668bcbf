"""The warm session of a project: a JVM with Spark that a host process keeps for one shell.

Commands use it one after the other, each as an ordinary process of its own. What a JVM and its
Python workers take over from the process that starts them must be the same for a command as for
the host; else the command starts its own Spark, and says what differs.

The files lie in a folder that only the user may enter: `connection.json`, and two locks, which the
system releases when the process that holds them dies, however it dies.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from lakehouse_backfill import __version__
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.command_lines import VOLATILE_VARIABLES
from lakehouse_backfill.domain.profile import Profile

#: The folder of the files, in the project's state folder.
FOLDER = "session"
_CONNECTION, _HOST_LOCK, _USE_LOCK = "connection.json", "host.lock", "use.lock"
#: Touched by the command server when a command begins or ends.
_COMMANDS = "commands.json"
#: Settings that list jars, with the separator.
_JARS = (("spark.driver.extraClassPath", os.pathsep), ("spark.jars", ","))
#: Others look at a lock for a moment; so long one waits for it.
_PATIENCE_S, _PAUSE_S = 0.5, 0.02
#: Differences that are named; the others are counted.
_NAMED = 3


def spark_settings(profile: Profile, project: Path, *, hides_values: bool) -> SparkSettings:
    """Return the settings with which a session of the profile starts."""
    return SparkSettings.for_session(profile, project, hides_values=hides_values)


def session_facts(settings: SparkSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a JVM takes over from the process that starts it, by name; values are secret."""
    facts = {
        "the toolkit's version": __version__,
        "PySpark's version": version("pyspark"),
        "the Python": sys.executable,
        "the working folder": str(Path.cwd()),
        "the mask of new files": _umask(),
    }
    facts |= {f"the setting {key}": text for key, text in settings.options.items()}
    jars = [
        path
        for key, separator in _JARS
        for path in settings.options.get(key, "").split(separator)
        if path
    ]
    for path in jars:
        with suppress(OSError):
            found = Path(path).stat()
            facts[f"the jar {path}"] = f"{found.st_size} {found.st_mtime_ns}"
    return facts | {
        f"the variable {name}": value
        for name, value in environ.items()
        if name not in VOLATILE_VARIABLES
    }


@dataclass(frozen=True)
class Connection:
    """How to reach a host's JVM; `facts` are sealed by the token, so that they tell no value.

    `process` names the host by more than its pid, which a later process may have.
    """

    process: str
    pid: int
    port: int
    token: str
    log: str
    since: float
    idle_s: float
    facts: dict[str, str]
    #: Addresses of the files that Spark gave to every task when it started.
    files: list[str]

    @staticmethod
    def seal(facts: Mapping[str, str], token: str) -> dict[str, str]:
        """Return the facts by name, each as a digest that only the token's holder can compare."""
        key = token.encode()
        return {
            name: hmac.new(key, f"{name}\0{value}".encode(), "sha256").hexdigest()
            for name, value in sorted(facts.items())
        }

    def difference(self, facts: Mapping[str, str]) -> str:
        """Name what is not as the host found it; empty when all is the same."""
        sealed = self.seal(facts, self.token)
        differing = [
            name
            for name in sorted(sealed.keys() | self.facts.keys())
            if not hmac.compare_digest(sealed.get(name, ""), self.facts.get(name, ""))
        ]
        more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        return ", ".join(differing[:_NAMED]) + more


class WarmSession:
    """A session that this process alone uses, until it ends or releases it."""

    def __init__(self, connection: Connection, lock: int) -> None:
        """Keep the held lock."""
        self.connection = connection
        self._lock = lock

    def release(self) -> None:
        """Let other commands use the session."""
        os.close(self._lock)


@dataclass(frozen=True)
class SessionFolder:
    """The files of a project's session."""

    path: Path

    def make(self) -> None:
        """Make the folder, for this user alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def write(self, connection: Connection) -> None:
        """Store how to reach the host, at once and for this user alone."""
        new = self.path / f"{_CONNECTION}.new"
        with suppress(FileNotFoundError):
            new.unlink()
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(connection), file)
        new.replace(self.path / _CONNECTION)

    def remove(self) -> None:
        """Remove the connection: no command finds the host any more."""
        with suppress(FileNotFoundError):
            (self.path / _CONNECTION).unlink()

    def read(self) -> Connection | str | None:
        """Return the connection, why it is not to be trusted, or None when there is none."""
        if not (self.path / _CONNECTION).exists():
            return None
        try:
            if not _is_private(os.lstat(self.path), stat.S_ISDIR):
                return f"{self.path} is not a folder of yours alone"
            handle = os.open(self.path / _CONNECTION, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(handle, encoding="utf-8") as file:
                if not _is_private(os.fstat(handle), stat.S_ISREG):
                    return f"{self.path / _CONNECTION} is not a file of yours alone"
                return Connection(**json.load(file))
        except (OSError, ValueError, TypeError) as error:
            return f"{self.path / _CONNECTION} cannot be read: {error}"

    def last_command(self) -> int:
        """Return when a command last began or ended, also one without Spark; 0: nobody knows."""
        with suppress(OSError):
            return (self.path / _COMMANDS).stat().st_mtime_ns
        return 0

    def hold_host_lock(self) -> int | None:
        """Take the lock of the host until the process ends; None: another one holds it."""
        return _lock(self.path / _HOST_LOCK)

    def is_hosted(self) -> bool:
        """Return whether a host lives."""
        return self.path.is_dir() and _is_held(self.path / _HOST_LOCK)

    def hold_use_lock(self) -> int | None:
        """Take the lock of the command that uses the session; None: another one does."""
        return _lock(self.path / _USE_LOCK)

    def is_used(self) -> bool:
        """Return whether a command uses the session."""
        return _is_held(self.path / _USE_LOCK)

    def take(self, facts: Mapping[str, str]) -> WarmSession | str:
        """Take the session for this process, or return why not; empty where there is none."""
        found = self.read()
        if found is None or isinstance(found, str):
            return found or ""
        if not self.is_hosted():
            self.remove()
            return "its process was killed"
        differing = found.difference(facts)
        if differing:
            return f"it was started with another value of {differing}"
        lock = self.hold_use_lock()
        if lock is None:
            return "another command uses it"
        # The host takes this lock before it ends.
        if self.read() != found:
            os.close(lock)
            return "it has ended"
        return WarmSession(found, lock)


def _umask() -> str:
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:o}"


def _is_private(found: os.stat_result, is_kind: object) -> bool:
    is_right = callable(is_kind) and bool(is_kind(found.st_mode))
    return is_right and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _lock(path: Path) -> int | None:
    """Take a lock for this process alone; None: another one holds it, for more than a moment."""
    end = time.monotonic() + _PATIENCE_S
    while (handle := _try_lock(path, fcntl.LOCK_EX)) is None and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return handle


def _try_lock(path: Path, kind: int) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _is_held(path: Path) -> bool:
    handle = _try_lock(path, fcntl.LOCK_SH)
    if handle is not None:
        os.close(handle)
    return handle is None
