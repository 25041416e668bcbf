"""Archives of Java's classes: who may write one, which is read, and that none stops a JVM."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse_backfill.adapters.spark.session import class_archive, jvm, session
from lakehouse_backfill.adapters.spark.session.class_archive import ArchiveUse, ClassArchives
from lakehouse_backfill.adapters.spark.session.java import require_java
from lakehouse_backfill.adapters.spark.session.settings import SparkSettings
from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import EnvironmentDown

WHOLE = struct.pack("=I", 0xF00BABA8) + b"classes"
LAKE = {"name": "lake", "type": "sql", "uri": "sqlite:////c.db", "warehouse": "file:///lake"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lakehouse-backfill" / "classes"


def keep(folder: Path, name: str, content: bytes = WHOLE) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / name).write_bytes(content)
    (folder / name).chmod(0o444)
    return folder / name


def test_the_first_jvm_writes_what_a_later_one_reads_once_it_has_ended(folder: Path) -> None:
    archives = ClassArchives(folder)
    first = archives.use("k", may_write=True)
    assert first.options[-1] == f"-XX:ArchiveClassesAtExit={folder / 'k.new'}"
    # It lives, and may be about to write.
    keep(folder, "k.new")
    assert archives.use("k", may_write=True) == ArchiveUse()
    first.keep()
    first.release()
    second = archives.use("k", may_write=True)
    assert (second.options, second.lock) == ((f"-XX:SharedArchiveFile={folder / 'k.jsa'}",), None)
    assert archives.use("other", may_write=False) == ArchiveUse()


@pytest.mark.parametrize(
    ("left", "is_kept"),
    [(b"", True), (b"\0\0\0\0 Java was killed while it wrote", True), (WHOLE, False)],
)
def test_what_java_has_not_written_to_its_end_or_after_a_whole_run_is_written_again(
    folder: Path, left: bytes, is_kept: bool
) -> None:
    keep(folder, "k.new", left)
    if is_kept:
        keep(folder, "k.keep")
    found = ClassArchives(folder).use("k", may_write=True)
    assert found.reads is None
    assert "ArchiveClassesAtExit" in found.options[-1]
    assert not (folder / "k.new").exists()
    found.release()


@pytest.mark.parametrize("writable", ["folder", "above", "file", "link"])
def test_what_others_can_write_is_never_read(folder: Path, writable: str, tmp_path: Path) -> None:
    file = keep(folder, "k.jsa")
    if writable == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        {"folder": folder, "above": folder.parent, "file": file}[writable].chmod(0o777)
    assert ClassArchives(folder).use("k", may_write=False) == ArchiveUse()


def test_the_folder_is_this_users_alone_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o000)
    try:
        ClassArchives(folder).use("k", may_write=True).release()
    finally:
        os.umask(before)
    assert [one.stat().st_mode & 0o022 for one in (folder, folder.parent)] == [0, 0]


def test_nothing_in_the_way_fails_a_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "file" / "classes", tmp_path / "with space" / "classes"):
        assert ClassArchives(place).use("k", may_write=True) == ArchiveUse()
    for own in ("-Xshare:off", "-XX:SharedArchiveFile=/mine", "-javaagent:/a.jar"):
        found = ClassArchives(tmp_path / "c").use("k", may_write=True, options=own)
        assert found == ArchiveUse()
    assert ClassArchives.of_user({class_archive.ARCHIVE_VARIABLE: "off"}) is None
    assert ClassArchives.of_user({"HOME": "~nobody-of-this-name"}) is None


def test_doctor_says_why_no_archive_is_used(folder: Path) -> None:
    archives = ClassArchives(folder)
    assert archives.describe().startswith("no archive of classes yet")
    keep(folder, "k.jsa")
    assert archives.describe() == f"1 archives of classes, 0 MB in {folder}"
    folder.chmod(0o777)
    assert archives.describe() == f"no archive of classes is used: others can write {folder}"


def test_few_archives_stay(folder: Path) -> None:
    for age, name in enumerate(("used", "newest", "older", "oldest")):
        os.utime(keep(folder, f"{name}.jsa"), (0, 1_000_000 - age))
    os.utime(keep(folder, "begun.new"), (0, 1_000_000 - 9))
    os.utime(keep(folder, "never.new"), (0, 1_000_000 - 9))
    with (folder / "begun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ClassArchives(folder).use("used", may_write=False)
    kept = sorted(one.name for one in folder.iterdir() if one.suffix != ".lock")
    assert kept == ["begun.new", "newest.jsa", "used.jsa"]


def test_another_jar_or_another_java_has_another_archive(tmp_path: Path) -> None:
    java, jars = tmp_path / "java", tmp_path / "jars"
    (java / "lib").mkdir(parents=True)
    jars.mkdir()
    (java / "release").write_text("17")
    (java / "lib" / "modules").write_text("m")
    (jars / "a.jar").write_text("a")

    def key() -> str:
        return class_archive.archive_key(java, [jars, jars / "a.jar"])

    first = key()
    assert key() == first
    (jars / "a.jar").write_text("ab")
    second = key()
    (java / "release").write_text("17.1")
    assert len({first, second, key()}) == 3


@pytest.mark.parametrize(
    ("returncode", "is_removed"),
    [(-signal.SIGSEGV, True), (134, True), (0, False), (1, False), (-signal.SIGKILL, False),
     (-signal.SIGTERM, False), (143, False), (None, False)],
)  # fmt: skip
def test_an_archive_is_removed_when_the_jvm_that_read_it_crashed(
    folder: Path, returncode: int | None, is_removed: bool
) -> None:
    file = keep(folder, "k.jsa")
    found = ClassArchives(folder).use("k", may_write=False)
    assert found.blame(returncode) is is_removed
    assert file.exists() is not is_removed


class Ended:
    """The process of a JVM that has ended."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode

    def poll(self) -> int:
        return self.returncode

    def wait(self, _: float) -> int:
        return self.returncode


@pytest.mark.parametrize("crash", [True, False])
def test_after_a_crash_spark_starts_again_without_the_archive(
    folder: Path, monkeypatch, crash: bool
) -> None:
    keep(folder, "k.jsa")
    started: list[tuple[str, ...]] = []

    def begin(_: SparkSettings, *, may_archive: bool) -> Any:
        use = ClassArchives(folder).use("k", may_write=may_archive)
        started.append(use.options)
        return SimpleNamespace(process=Ended(-signal.SIGABRT if crash else 1), archive=use)

    def open_in(jvm: Any, _: object) -> str:
        if jvm.archive.options:
            raise ChildProcessError("Java ended")
        return "session"

    monkeypatch.setattr(session, "begin_jvm", begin)
    monkeypatch.setattr(session, "_open_in", open_in)
    if crash:
        assert (
            session._start(
                SparkSettings("lake", {"spark.master": "local[2]"}), None, may_archive=True
            )
            == "session"
        )
        assert [bool(options) for options in started] == [True, False]
        return
    with pytest.raises(EnvironmentDown, match="Spark did not start: Java ended"):
        session._start(SparkSettings("lake", {"spark.master": "local[2]"}), None, may_archive=True)
    assert len(started) == 1


@pytest.mark.parametrize(
    ("rows", "hides", "master", "expected"),
    [(2_000_000, False, "local[2]", True), (2_000_001, False, "local[2]", False),
     (10, True, "local[2]", False), (10, False, "spark://host:7077", False),
     (None, False, "local[2]", False)],
)  # fmt: skip
def test_only_a_short_local_run_without_restricted_columns_writes_an_archive(
    monkeypatch, tmp_path: Path, rows: int | None, hides: bool, master: str, expected: bool
) -> None:
    asked: list[bool] = []

    def start(*_: object, may_archive: bool, **__: object) -> None:
        asked.append(may_archive)
        raise InterruptedError

    monkeypatch.setattr(session, "_start", start)
    monkeypatch.setattr(session, "_OPEN_SESSIONS", {})
    profile = Profile(catalog=LAKE, spark={"spark.master": master})
    with pytest.raises(InterruptedError):
        session.open_session(profile, tmp_path, hides_values=hides, expected_rows=rows)
    assert asked == [expected]


def test_java_itself_writes_such_an_archive_and_goes_on_without_a_broken_one(folder: Path) -> None:
    java = str(require_java().home / "bin" / "java")
    archives = ClassArchives(folder)
    writes = archives.use("k", may_write=True)

    def start(use: ArchiveUse) -> int:
        command = [java, *use.options, "-XX:TieredStopAtLevel=1", "-version"]
        inherited = [] if use.lock is None else [use.lock]
        return subprocess.run(command, pass_fds=inherited, capture_output=True).returncode

    assert start(writes) == 0
    writes.keep()
    writes.release()
    reads = archives.use("k", may_write=True)
    assert start(reads) == 0
    assert reads.reads is not None, "Java wrote no archive, or its form has changed"
    reads.reads.chmod(0o600)
    reads.reads.write_bytes(WHOLE + b"\0" * 100_000)
    again = archives.use("k", may_write=True)
    assert again.reads is not None
    assert start(again) == 0


def test_a_jvm_gets_its_archive_before_the_options_of_the_profile(
    folder: Path, tmp_path: Path
) -> None:
    file, key = keep(folder, "k.jsa"), "spark.driver.extraJavaOptions"
    profile = Profile(catalog=LAKE, spark={key: "-Xss4m"})
    settings = SparkSettings.from_profile(profile, tmp_path)
    use = ClassArchives(folder).use("k", may_write=False)
    words = jvm._with_java_options(settings, require_java(), use)[key].split()
    assert words.index(f"-XX:SharedArchiveFile={file}") < words.index("-Xss4m")


def test_no_archive_is_written_under_a_lock_that_another_process_removes_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = fcntl.flock

    def remove_and_take(handle: int, how: int) -> None:
        (folder / "k.lock").unlink()
        take(handle, how)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", remove_and_take)
        assert ClassArchives(folder).use("k", may_write=True).writes is None
    assert ClassArchives(folder).use("k", may_write=True).writes is not None
