"""A warm session serves one user, one command at a time, and only where nothing differs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session import warm_jvm
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.adapters.spark.session.warm_session import (
    FOLDER,
    Connection,
    SessionFolder,
    WarmSession,
    session_facts,
)
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import EnvironmentDown
from lakehouse_backfill.wiring.warm_session import WarmSessions

TOKEN = "t0ken"
FACTS = {"the Python": "/python", "the variable RATE": "12.5"}


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    """The files of a session whose host this process may become."""
    made = SessionFolder(tmp_path / "session")
    made.make()
    made.write(connection(os.getpid()))
    return made


def connection(pid: int) -> Connection:
    """Return the connection to a host that had this pid, and was not the process of now."""
    sealed = Connection.seal(FACTS, TOKEN)
    return Connection(f"here:{pid}@1", pid, 1, TOKEN, "", 0.0, 60.0, sealed, [])


def test_a_command_takes_the_session_that_no_other_one_uses(folder: SessionFolder) -> None:
    assert folder.hold_host_lock() is not None
    taken = folder.take(FACTS)
    assert isinstance(taken, WarmSession)
    assert (folder.is_used(), folder.take(FACTS)) == (True, "another command uses it")
    taken.release()
    assert isinstance(folder.take(FACTS), WarmSession)


def test_what_differs_is_named_without_its_value(folder: SessionFolder) -> None:
    assert folder.hold_host_lock() is not None
    other = {"the Python": "/python", "the variable RATE": "13", "the variable ZONE": "x"}
    because = "it was started with another value of the variable RATE, the variable ZONE"
    assert folder.take(other) == because
    text = (folder.path / "connection.json").read_text(encoding="utf-8")
    assert "12.5" not in text


def test_a_host_that_was_killed_is_forgotten(folder: SessionFolder) -> None:
    assert folder.take(FACTS) == "its process was killed"
    assert folder.take(FACTS) == ""


def test_a_session_that_ends_meanwhile_is_not_taken(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.hold_host_lock() is not None
    answers = iter((folder.read(), None))
    monkeypatch.setattr(SessionFolder, "read", lambda _: next(answers))
    assert folder.take(FACTS) == "it has ended"
    assert not folder.is_used()


def test_a_new_host_forgets_the_killed_one_before_it_starts_a_jvm(
    folder: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []

    def open_session(*_: object, **__: object) -> None:
        found.append(folder.read())
        raise EnvironmentDown("no JVM")

    monkeypatch.setattr(warm_jvm.own_session, "open_session", open_session)
    monkeypatch.setattr(warm_jvm.signal, "signal", lambda *_: None)
    monkeypatch.setattr(warm_jvm, "spark_settings", lambda *_, **__: SparkSettings("lake", {}))
    host = warm_jvm.Host("here:1@1", profile(), tmp_path, folder, 60.0, hides_values=False)
    with pytest.raises(EnvironmentDown, match="no JVM"):
        warm_jvm.keep_session(host, lambda: True, lambda: None)
    assert found == [None]


def test_queries_of_few_rows_are_interpreted_in_the_session_of_their_command(
    tmp_path: Path,
) -> None:
    plain = SparkSettings.from_profile(profile(), tmp_path)
    for settings, is_adaptive, codegen in (
        (plain, "true", None),
        (plain.for_rows(10), "false", "NO_CODEGEN"),
    ):
        conf: dict[str, str] = {}
        session: Any = SimpleNamespace(conf=SimpleNamespace(set=conf.__setitem__))
        warm_jvm.set_queries(session, settings)
        assert conf["spark.sql.adaptive.enabled"] == is_adaptive
        assert conf.get("spark.sql.codegen.factoryMode") == codegen


def profile() -> Profile:
    return Profile(
        catalog={"name": "lake", "type": "sql", "uri": "sqlite:///lake.db", "warehouse": "."}
    )


@pytest.mark.parametrize("is_alive", [True, False])
def test_stop_ends_no_process_that_is_not_the_host(
    folder: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    """Another process has the pid of a host that was killed, or none; a new host starts."""
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        try:
            if not is_alive:
                other.kill()
                other.wait()
            folder.write(connection(other.pid))
            assert folder.hold_host_lock() is not None
            monkeypatch.setattr("lakehouse_backfill.wiring.warm_session._STOP_S", 0.2)
            folder.path.rename(tmp_path / FOLDER)
            sessions = WarmSessions(tmp_path, profile(), "dev", tmp_path, hides_values=False)
            assert not sessions.state().is_on
            assert not sessions.stop().is_on
            time.sleep(0.1)
            assert (other.poll() is None) == is_alive
        finally:
            other.kill()


@pytest.mark.parametrize("name", ["", "connection.json"])
def test_files_that_others_may_read_are_not_trusted(folder: SessionFolder, name: str) -> None:
    (folder.path / name).chmod(0o755)
    assert "of yours alone" in str(folder.take(FACTS))


def test_files_are_for_the_user_alone(folder: SessionFolder) -> None:
    folder.hold_host_lock()
    folder.hold_use_lock()
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    expected = dict.fromkeys(("connection.json", "host.lock", "use.lock"), 0o600)
    assert (modes, folder.path.stat().st_mode & 0o777) == (expected, 0o700)


def test_facts_are_what_a_jvm_takes_over(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    settings = SparkSettings("lake", {"spark.jars": str(jar), "spark.master": "local[2]"})
    facts = session_facts(settings, {"RATE": "12.5", "SHLVL": "2"})
    assert facts["the variable RATE"] == "12.5"
    assert facts["the setting spark.master"] == "local[2]"
    assert "the variable SHLVL" not in facts
    jar.write_bytes(b"22")
    changed = session_facts(settings, {"RATE": "12.5", "SHLVL": "3"})
    assert {name for name in facts if facts[name] != changed[name]} == {f"the jar {jar}"}


class Jobs:
    """Stands for the Spark session of a host: counts how often its jobs are ended."""

    def __init__(self) -> None:
        self.sparkContext, self.ended = self, 0

    def cancelAllJobs(self) -> None:  # noqa: N802 (PySpark's name)
        self.ended += 1


@pytest.fixture
def wait(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[float, int]]:
    """Let a host wait; give the seconds that it took, and how often it ended jobs."""

    def waited(
        *,
        is_wanted: bool = True,
        is_alive: bool = True,
        acts: tuple[Callable[[], None], ...] = (),
    ) -> tuple[float, int]:
        now, jobs, left = [0.0], Jobs(), list(acts)

        def sleep(seconds: float) -> None:
            now[0] += seconds
            if left:
                left.pop(0)()

        monkeypatch.setattr(warm_jvm.time, "sleep", sleep)
        monkeypatch.setattr(warm_jvm.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(warm_jvm, "is_jvm_alive", lambda: is_alive)
        warm_jvm._wait(folder, jobs, 5.0, lambda: is_wanted)  # type: ignore[arg-type]
        return now[0], jobs.ended

    return waited


def test_a_host_ends_when_it_is_idle(wait: Callable[..., tuple[float, int]]) -> None:
    assert wait() == (5.0, 0)


def test_a_host_ends_with_its_shell(wait: Callable[..., tuple[float, int]]) -> None:
    assert wait(is_wanted=False) == (0.5, 0)


def test_a_host_ends_with_its_jvm(wait: Callable[..., tuple[float, int]]) -> None:
    assert wait(is_alive=False) == (0.0, 0)


def test_a_host_lets_a_command_finish_and_ends_the_jobs_that_it_left(
    folder: SessionFolder, wait: Callable[..., tuple[float, int]]
) -> None:
    held = folder.hold_use_lock()
    assert held is not None
    acts = (lambda: None, lambda: None, lambda: os.close(held))
    assert wait(is_wanted=False, acts=acts) == (1.5, 1)


@pytest.mark.parametrize(
    ("added", "is_usable"),
    [
        (["file:/home/ana/a.py"], True),
        (["file:/home/ana/a.py", "file:/home/ana/job/a.py"], False),
        ([], True),
    ],
    ids=["those of its start", "one of the same name", "none"],
)
def test_a_jvm_with_files_that_a_job_has_added_serves_no_command(
    added: list[str], *, is_usable: bool
) -> None:
    listed = SimpleNamespace(size=lambda: len(added), apply=added.__getitem__)
    context = SimpleNamespace(isStopped=lambda: False, listFiles=lambda: listed)
    session = SimpleNamespace(sparkContext=lambda: context)
    found = SimpleNamespace(isEmpty=lambda: False, get=lambda: session)
    kind = SimpleNamespace(getDefaultSession=lambda: found)
    gateway = SimpleNamespace(
        jvm=SimpleNamespace(**{"org.apache.spark.sql.classic.SparkSession": kind})
    )
    if is_usable:
        assert warm_jvm._require_usable(gateway, ["file:/home/ana/a.py"]) is session
        return
    with pytest.raises(EnvironmentDown, match="a job has added files to it"):
        warm_jvm._require_usable(gateway, ["file:/home/ana/a.py"])
