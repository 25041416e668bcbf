"""The rules of an anchor, on the fake, a folder and a git repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.anchors.places import FolderAnchor, GitAnchor
from lakehouse_backfill.domain.identity.statement import AnchorRecord
from lakehouse_backfill.errors import EnvironmentDown, Tampered
from lakehouse_backfill.ports.system import Anchor
from tests.support.fakes.identity import FakeAnchor


def record(subject: str = "bf-1", count: int = 7, head: str = "a" * 64) -> AnchorRecord:
    at = "2026-11-25T01:00:00+00:00"
    return AnchorRecord(
        kind="run", subject=subject, count=count, head=head, environment="prod", at=at
    )


def repository(folder: Path) -> Path:
    """A bare repository that refuses to delete and to move tags."""
    bare = folder / "anchor.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(bare)], check=True)
    for setting in ("receive.denyDeletes", "receive.denyNonFastForwards"):
        subprocess.run(["git", "-C", str(bare), "config", setting, "true"], check=True)
    return bare


def in_folder(folder: Path) -> Anchor:
    (folder / "anchor").mkdir()
    return FolderAnchor(folder / "anchor")


ANCHORS: dict[str, Callable[[Path], Anchor]] = {
    "fake": lambda folder: FakeAnchor(),
    "folder": in_folder,
    "git": lambda folder: GitAnchor(str(repository(folder))),
}
#: A subject with all that a file name or a tag must not have; no such run or product exists.
HOSTILE = "../../-x\n.. ~^:?*[\\@{.lock"


@pytest.mark.parametrize("kind", ANCHORS)
def test_an_anchor_keeps_records_and_a_record_of_the_same_name_stays(
    tmp_path: Path, kind: str
) -> None:
    anchor = ANCHORS[kind](tmp_path)
    assert (anchor.names(), anchor.records()) == (frozenset(), ())
    first, second, odd = record(), record(count=9, head="b" * 64), record(HOSTILE)
    for one in (first, second, odd, first.model_copy(update={"at": "later"})):
        anchor.keep(one)
    assert anchor.names() == {first.name, second.name, odd.name}
    assert set(anchor.records()) == {first, second, odd}


@pytest.mark.parametrize("kind", ["folder", "git"])
def test_a_place_that_is_not_there_is_named(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "nowhere")
    anchor: Anchor = FolderAnchor(Path(place)) if kind == "folder" else GitAnchor(place)
    for call in (anchor.names, anchor.records, lambda: anchor.keep(record())):
        with pytest.raises(EnvironmentDown, match="nowhere") as caught:
            call()
        assert caught.value.exit_code == 6


@pytest.mark.req("E4")
def test_a_record_that_was_edited_or_renamed_is_named(tmp_path: Path) -> None:
    anchor = in_folder(tmp_path)
    anchor.keep(record())
    file = tmp_path / "anchor" / f"{record().name}.json"
    text = file.read_text()
    file.write_text(text.replace("a" * 64, "c" * 64))
    with pytest.raises(Tampered, match="holds the record of"):
        anchor.records()
    file.write_text("{}")
    with pytest.raises(Tampered, match="is no record of an anchor"):
        anchor.records()


@pytest.mark.req("E4")
def test_a_repository_that_is_called_like_an_option_is_no_option(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for name in (f"--upload-pack=touch {marker}", f"ext::sh -c 'touch {marker}'"):
        anchor = GitAnchor(name)
        with pytest.raises(EnvironmentDown):
            anchor.names()
        with pytest.raises(EnvironmentDown):
            anchor.records()
    assert not marker.exists()


def test_the_place_of_a_repository_is_shown_without_its_password() -> None:
    place = GitAnchor("https://bot:s3cret@git.example.com/anchor.git").place
    assert place == "the git repository https://git.example.com/anchor.git"


@pytest.mark.req("E4")
def test_a_password_of_an_address_is_no_argument_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git, stub = shutil.which("git"), tmp_path / "git"
    # It notes its arguments, and which password git would use at the address and elsewhere.
    stub.write_text(
        f"""#!/bin/sh
printf '%s\\n' "$@" >> {tmp_path}/arguments
for host in git.example.com other.example.com; do
  printf 'url=https://%s/anchor.git\\n\\n' $host | {git} credential fill >> {tmp_path}/$host
done
exit 0
"""
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    anchor = GitAnchor("https://bot:s3%2Fcret@git.example.com/anchor.git")
    assert anchor.names() == frozenset()
    assert anchor.records() == ()
    anchor.keep(record())
    GitAnchor("ssh://bot:s3cret@git.example.com/anchor.git").names()
    arguments = (tmp_path / "arguments").read_text()
    assert "cret" not in arguments
    assert {"ls-remote", "fetch", "push", "https://git.example.com/anchor.git"} <= {
        *arguments.splitlines()
    }
    assert "ssh://bot@git.example.com/anchor.git" in arguments
    filled = (tmp_path / "git.example.com").read_text().splitlines()
    assert {"username=bot", "password=s3/cret"} <= set(filled)
    assert "cret" not in (tmp_path / "other.example.com").read_text()
