"""The code that a manifest names for rows that no run made: found, hashed, or refused by name."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.adapters.system.process import find_commit, read_committed_code
from lakehouse_backfill.config.previous_code import resolve_previous_code
from lakehouse_backfill.domain.plan import PreviousCodePin
from lakehouse_backfill.errors import BackfillError, ConfigError, NotFound
from tests.support.fakes.context import declared

pytestmark = pytest.mark.req("Q5")
JOB = """from jobs.lib import rates

@transform(name="{name}", version="{version}", inputs=("raw",))
def job(context, raw):
    return raw
"""
OLD, NEW = JOB.format(name="daily", version="0.9.0"), JOB.format(name="daily", version="1.0.0")


def mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def put(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def resolved(project: Path, **previous: Any) -> PreviousCodePin:
    manifest = declared(previous_code=previous).manifest
    found = resolve_previous_code(project, manifest, find_commit, read_committed_code)
    assert found is not None
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in a folder of a repository, whose first commit has the old code."""
    folder = tmp_path / "project"
    put(folder, jobs__job=OLD, jobs__lib__rates="RATE = 1\n")
    (folder / "jobs/lib/__init__.py").write_text("")
    put(tmp_path, outside=OLD)
    (folder / "jobs/link.py").symlink_to(tmp_path / "outside.py")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "old")
    put(folder, jobs__job=NEW, jobs__lib__rates="RATE = 2\n")
    git(tmp_path, "commit", "-q", "-a", "-m", "new")
    return folder


def test_a_commit_gives_the_code_as_it_was_with_its_modules(project: Path) -> None:
    commit = git(project, "rev-parse", "HEAD~1")
    found = resolved(project, file="jobs/job.py", git_commit=commit[:8])
    assert (found.name, found.version, found.git_commit) == ("daily", "0.9.0", commit)
    assert found.code_hash == mark(OLD)
    assert found.files == {
        "jobs/job.py": mark(OLD), "jobs/lib/__init__.py": mark(""),
        "jobs/lib/rates.py": mark("RATE = 1\n"),
    }  # fmt: skip
    kept = read_committed_code(project, commit)
    assert {name: mark(kept[name].decode()) for name in found.files} == found.files


def test_a_file_is_taken_as_it_is_now(project: Path) -> None:
    put(project, jobs__old=OLD)
    found = resolved(project, file="jobs/old.py")
    assert (found.version, found.git_commit, found.code_hash) == ("0.9.0", None, mark(OLD))
    assert found.files["jobs/lib/rates.py"] == mark("RATE = 2\n")


def test_one_of_several_transforms_is_chosen_by_name_and_version(project: Path) -> None:
    put(project, jobs__two=OLD + NEW, jobs__computed="@transform(name=NAME)\ndef job(): ...\n")
    assert resolved(project, file="jobs/two.py", version="0.9.0").version == "0.9.0"
    found = resolved(project, file="jobs/computed.py", name="daily", version="0.1.0")
    assert (found.name, found.version) == ("daily", "0.1.0")


REFUSED = {
    "a commit that is not there": (
        {"file": "jobs/job.py", "git_commit": "0" * 40}, NotFound, "is not in the repository",
        "previous_code.git_commit",
    ),
    "a file that the commit lacks": (
        {"file": "jobs/gone.py", "git_commit": "HEAD"}, NotFound, "has no file jobs/gone.py",
        "previous_code.file",
    ),
    "a link of the commit": (
        {"file": "jobs/link.py", "git_commit": "HEAD"}, NotFound, "has no file jobs/link.py",
        "previous_code.file",
    ),
    "a path out of the project": (
        {"file": "../outside.py"}, ConfigError, "lies outside the project", "previous_code.file",
    ),
    "a link out of the project": (
        {"file": "jobs/link.py"}, ConfigError, "lies outside the project", "previous_code.file",
    ),
    "a file that is not there": (
        {"file": "jobs/gone.py"}, NotFound, "does not exist", "previous_code.file",
    ),
    "code that does not parse": (
        {"file": "jobs/broken.py"}, ConfigError, "jobs/broken.py:1 cannot be read as code",
        "previous_code.file",
    ),
    "another kind of file": (
        {"file": "jobs/notes.txt"}, ConfigError, "neither a Python nor a SQL file",
        "previous_code.file",
    ),
    "no transform": (
        {"file": "jobs/lib/rates.py"}, ConfigError, "declares no transform", "previous_code.file",
    ),
    "another transform": (
        {"file": "jobs/job.py", "name": "other"}, ConfigError, "holds 0 transforms",
        "previous_code.name",
    ),
    "inputs that the run lacks": (
        {"file": "jobs/wide.py"}, ConfigError, "needs inputs that the manifest lacks: rates",
        "previous_code.file",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("previous", "kind", "problem", "field"), REFUSED.values(), ids=REFUSED)
def test_code_that_cannot_be_used_is_refused_by_name(
    project: Path, previous: dict[str, str], kind: type[BackfillError], problem: str, field: str
) -> None:
    put(project, jobs__broken="def (:\n", jobs__wide=OLD.replace('"raw",', '"raw", "rates"'))
    (project / "jobs/notes.txt").write_text("an old job\n")
    if previous.get("git_commit") == "HEAD":
        previous = previous | {"git_commit": git(project, "rev-parse", "HEAD")}
    with pytest.raises(kind, match=problem) as error:
        resolved(project, **previous)
    assert error.value.field == field
    assert error.value.fix
    assert error.value.state
