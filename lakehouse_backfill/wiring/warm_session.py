"""The warm session of a project, which commands of a shell use instead of a Spark of their own.

`session start`, `stop` and `status` act on the warm session. `python -m` with this module is its
host: a process without a terminal, which keeps the JVM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_backfill.adapters.iceberg.catalog import with_pyiceberg_settings
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings, describe_start
from lakehouse_backfill.adapters.spark.session.warm_session import (
    FOLDER,
    Connection,
    SessionFolder,
    session_facts,
    spark_settings,
)
from lakehouse_backfill.adapters.system.process import driver_name, is_driver_alive
from lakehouse_backfill.config.contracts import may_restrict_columns
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import BackfillError, EnvironmentDown, Unsupported
from lakehouse_backfill.ports.system import Progress
from lakehouse_backfill.wiring.adapters import STATE_FOLDER

if TYPE_CHECKING:
    from lakehouse_backfill.wiring.adapters import Adapters

#: The module of the process that forks one for each command.
COMMAND_SERVER = "lakehouse_backfill.cli.command_server"
#: How long `stop` waits for a session that no command uses.
_STOP_S = 20.0


@dataclass(frozen=True)
class SessionState:
    """Whether there is a warm session, and what keeps a command from using it."""

    is_on: bool
    is_used: bool = False
    pid: int | None = None
    since: datetime | None = None
    idle_minutes: float | None = None
    unusable: str = ""


class WarmSessions:
    """The warm session of one project and profile."""

    def __init__(
        self,
        project: Path,
        profile: Profile,
        profile_name: str,
        state: Path,
        *,
        hides_values: bool,
    ) -> None:
        """Use the state folder of the project; `hides_values`: products have restricted columns."""
        self._project, self._profile, self._name = project, profile, profile_name
        self._folder, self._hides_values = SessionFolder(state / FOLDER), hides_values

    def open_session(self, progress: Progress, expected_rows: int | None = None) -> Any:
        """Open a Spark session in the JVM of the warm session; None, once the reason is said.

        Of few rows, its queries are interpreted.
        """
        found = self._folder.take(self._facts())
        if not isinstance(found, str):
            progress.start("using the warm session", 0, "")
            try:
                from lakehouse_backfill.adapters.spark.session.session import open_session
                from lakehouse_backfill.adapters.spark.session.warm_jvm import attach

                return open_session(
                    self._profile, self._project, partial(attach, found),
                    hides_values=self._hides_values, expected_rows=expected_rows,
                )  # fmt: skip
            except EnvironmentDown as error:
                found.release()
                found = error.problem
            finally:
                progress.finish()
        if found:
            progress.say(f"the warm session is not used: {found}")
        return None

    def state(self) -> SessionState:
        """Return what there is."""
        found = self._folder.read()
        if found is None:
            return SessionState(is_on=False)
        if isinstance(found, str):
            return SessionState(is_on=False, unusable=found)
        if not self._is_host(found):
            return SessionState(is_on=False, unusable="its process was killed")
        differing = found.difference(self._facts())
        return SessionState(
            is_on=True,
            is_used=self._folder.is_used(),
            pid=found.pid,
            since=datetime.fromtimestamp(found.since, timezone.utc),
            idle_minutes=found.idle_s / 60,
            unusable=f"it was started with another value of {differing}" if differing else "",
        )

    def start(self, idle_minutes: float, progress: Progress) -> SessionState:
        """Start the host of a session, unless there is one; return once commands can use it.

        Raises Unsupported where Spark is not of this machine, EnvironmentDown when it does not
        start.
        """
        if not SparkSettings.from_profile(self._profile, self._project).is_local:
            raise Unsupported(
                "a warm session keeps a Spark of this machine, and the profile's runs elsewhere",
                fix="give the commands without one",
            )
        if self.state().is_on:
            return self.state()
        progress.start(describe_start(self._profile, self._project), 0, "")
        try:
            self._start_host(idle_minutes * 60)
        finally:
            progress.finish()
        return self.state()

    def _start_host(self, idle_s: float) -> None:
        work = {
            "project": str(self._project), "profile": self._name, "folder": str(self._folder.path),
            "cwd": str(Path.cwd()), "idle_s": idle_s, "owner": driver_name(_shell()),
            "hides_values": self._hides_values,
        }  # fmt: skip
        # This program again, as it was started.
        host = subprocess.Popen(  # noqa: S603
            # Not in the project's folder, whose modules could take the place of ours.
            [sys.executable, "-m", __name__, json.dumps(work)], cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            said = host.stdout.readline() if host.stdout else b""
        except BaseException:
            host.terminate()
            raise
        answer = json.loads(said or b'{"problem": "its process ended"}')
        if answer:
            raise EnvironmentDown(
                f"the warm session did not start: {answer['problem']}",
                state="commands work without it",
                fix=answer.get("fix") or "lakehouse-backfill doctor",
            )

    def stop(self) -> SessionState:
        """Ask the host to end; return once it has, or while a command still uses it."""
        found = self._folder.read()
        if isinstance(found, Connection) and self._is_host(found):
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGTERM)
            end = time.monotonic() + _STOP_S
            while self._folder.is_hosted() and time.monotonic() < end:
                if self._folder.is_used():
                    return self.state()
                time.sleep(0.1)
        if self._folder.read() == found:  # Else it is that of a host which started meanwhile.
            self._folder.remove()
        return self.state()

    def _is_host(self, found: Connection) -> bool:
        """Return whether the process that wrote the connection lives, and is the host."""
        return self._folder.is_hosted() and driver_name(found.pid) == found.process

    def _facts(self) -> dict[str, str]:
        return session_facts(
            spark_settings(self._profile, self._project, hides_values=self._hides_values),
            os.environ,
        )


def warm_sessions(wiring: Adapters) -> WarmSessions:
    """Return what acts on the warm session of a project."""
    whole = with_pyiceberg_settings(wiring.profile)
    hides = may_restrict_columns(wiring.folder)
    state = wiring.folder / STATE_FOLDER
    return WarmSessions(wiring.folder, whole, wiring.profile_name, state, hides_values=hides)


def _shell() -> int:
    """Return the process whose end ends the session: the shell, not what it called us by."""
    leader = os.getsid(0)
    return leader if leader not in (0, os.getpid()) else os.getppid()


def serve(work: dict[str, Any], say: Callable[[dict[str, str]], None]) -> None:
    """Keep the session that `work` describes; say `{}` when it is ready, or its error."""
    from lakehouse_backfill.adapters.spark.session.warm_jvm import (
        Host,
        keep_session,
        leave_terminal,
    )
    from lakehouse_backfill.config.profiles import choose_profile, load_profiles

    os.chdir(work["cwd"])
    project, folder = Path(work["project"]), SessionFolder(Path(work["folder"]))

    # It loads libraries while Spark starts; its stdin ends with this process.
    commands = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", COMMAND_SERVER, str(folder.path), work["cwd"]], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def tell_and_leave() -> None:
        if not (commands.stdout and commands.stdout.readline()):
            raise EnvironmentDown("its command server ended")
        say({})
        leave_terminal()

    folder.make()
    try:
        chosen = choose_profile(load_profiles(project), work["profile"], project)
        profile = with_pyiceberg_settings(chosen)
        keep_session(
            Host(
                driver_name(os.getpid()), profile, project, folder, work["idle_s"],
                hides_values=work["hides_values"],
            ),
            lambda: is_driver_alive(work["owner"]), tell_and_leave,
        )  # fmt: skip
    except BackfillError as error:
        say({"problem": error.problem, "fix": error.fix})
    finally:
        if commands.stdin:
            commands.stdin.close()


def _say(answer: dict[str, str]) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), _say)
