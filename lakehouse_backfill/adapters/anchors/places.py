"""Anchors outside the lake: a git repository, or a folder.

In a repository each record is one tag, on a commit that holds it. The repository has to refuse
moved and deleted tags: protected tags of a forge, or `receive.denyDeletes` and a hook. A tag that
exists is never pushed with force.

In a folder each record is one file, which is created and never opened for writing. Only the rights
of the folder keep the publisher from changing files: another owner and the sticky bit, `chattr +a`,
or a share that allows new files only.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from lakehouse_backfill.domain.identity.statement import AnchorRecord
from lakehouse_backfill.domain.serialization import canonical_json
from lakehouse_backfill.errors import EnvironmentDown, Tampered
from lakehouse_backfill.fault_points import commit_window
from lakehouse_backfill.ports.system import Anchor

_PREFIX = "refs/tags/lakehouse-backfill/"
_TIMEOUT_S = 60
#: The tree of every record's commit: empty. The record is the commit's message.
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
#: An address with a password.
_ADDRESS = re.compile(r"(?i)([a-z][a-z0-9+.-]*)://([^/:@]*):([^/]*)@(([^/]*).*)")
_USER, _PASSWORD = "LAKEHOUSE_BACKFILL_ANCHOR_USER", "LAKEHOUSE_BACKFILL_ANCHOR_PASSWORD"
#: Git runs it by a shell, whose arguments are these words.
_HELPER = (
    f"""!f() {{ test "$1" != get || """
    f"""printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
)
_IDENTITY = ("-c", "user.name=lakehouse-backfill", "-c", "user.email=anchor@localhost")


class GitAnchor(Anchor):
    """`ports.identity.Anchor` as tags of a repository: a path or address to push to."""

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self._credentials: dict[str, str] = {}
        if found := _ADDRESS.fullmatch(repository):
            self._hide_password(*found.groups())

    def _hide_password(self, scheme: str, user: str, password: str, rest: str, host: str) -> None:
        """Take a password out of the arguments of git, which all processes of a machine can read.

        By HTTP, git asks a helper for user and password, for this host only, and the helper reads
        them from the environment. Other schemes use no password of an address.
        """
        is_http = scheme.lower() in ("http", "https")
        self._repository = f"{scheme}://{rest}" if is_http else f"{scheme}://{user}@{rest}"
        if not is_http:
            return
        first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
        self._credentials = {_USER: unquote(user), _PASSWORD: unquote(password)}
        # The empty value drops other helpers: none is asked first, and none stores the password.
        for place, value in enumerate(("", _HELPER), first):
            self._credentials[f"GIT_CONFIG_KEY_{place}"] = f"credential.{scheme}://{host}.helper"
            self._credentials[f"GIT_CONFIG_VALUE_{place}"] = value
        self._credentials["GIT_CONFIG_COUNT"] = str(first + 2)

    @property
    def place(self) -> str:
        """Where it is, for people; without a user name or password in its address."""
        scheme, has_scheme, rest = self._repository.partition("://")
        return f"the git repository {scheme}{has_scheme}{rest.rpartition('@')[2] or rest}"

    def keep(self, record: AnchorRecord) -> None:
        """Write a record; one of the same name stays as it is. Raises EnvironmentDown."""
        if record.name in self.names():
            return
        with self._scratch_repository() as folder:
            self._git(folder, "hash-object", "-t", "tree", "-w", "--stdin")
            text = canonical_json(record)
            commit = self._git(folder, *_IDENTITY, "commit-tree", _EMPTY_TREE, "-m", text).strip()
            target = f"{commit}:{_PREFIX}{record.name}"
            try:
                with commit_window("Anchor.keep"):
                    self._git(folder, "push", "--quiet", "--", self._repository, target)
            except EnvironmentDown:
                # Another process may have kept the same head meanwhile.
                if record.name not in self.names():
                    raise

    def names(self) -> frozenset[str]:
        """Return the names of all records; raises EnvironmentDown."""
        listed = self._git(None, "ls-remote", "--refs", "--", self._repository, f"{_PREFIX}*")
        refs = (line.partition("\t")[2] for line in listed.splitlines())
        return frozenset(ref.removeprefix(_PREFIX) for ref in refs)

    def records(self) -> tuple[AnchorRecord, ...]:
        """Return all records; raises EnvironmentDown, and Tampered for one that is no record."""
        with self._scratch_repository() as folder:
            self._git(
                folder, "fetch", "--quiet", "--no-tags", "--", self._repository,
                f"{_PREFIX}*:{_PREFIX}*",
            )  # fmt: skip
            form = "%(refname)%00%(contents)%00"
            listed = self._git(folder, "for-each-ref", f"--format={form}", _PREFIX)
        fields = listed.split("\0")[:-1]
        pairs = zip(fields[::2], fields[1::2], strict=True)
        return tuple(_read_record(ref.strip().removeprefix(_PREFIX), text) for ref, text in pairs)

    @contextmanager
    def _scratch_repository(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as name:
            self._git(None, "init", "--quiet", "--bare", "--template=", name)
            yield Path(name)

    def _git(self, folder: Path | None, *arguments: str) -> str:
        place = () if folder is None else ("-C", str(folder))
        try:
            # A fixed program without a shell; the repository follows `--`, so it is no option.
            done = subprocess.run(  # noqa: S603
                ["git", *place, *arguments],  # noqa: S607 (whichever git is installed)
                stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **self._credentials},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._error(type(error).__name__) from error
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise self._error(lines[-1] if lines else f"git ended with {done.returncode}")
        return done.stdout.decode("utf-8", "replace")

    def _error(self, why: str) -> EnvironmentDown:
        return EnvironmentDown(
            f"the anchor in {self.place} cannot be used: {why}",
            fix="correct anchor.git in catalog/profiles.yaml, or give this account the right to "
            "push new tags",
        )


def _read_record(name: str, text: str) -> AnchorRecord:
    try:
        record = AnchorRecord.model_validate_json(text)
    except ValueError as error:
        raise Tampered(f"the tag {name} holds no record of an anchor") from error
    if record.name != name:
        raise Tampered(f"the tag {name} holds the record of {record.name}")
    return record


_SUFFIX = ".json"


class FolderAnchor(Anchor):
    """`ports.identity.Anchor` in a folder, which has to exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"the folder {self._folder}"

    def keep(self, record: AnchorRecord) -> None:
        """Write a record; one of the same name stays as it is. Raises EnvironmentDown."""
        file = self._folder / f"{record.name}{_SUFFIX}"
        try:
            with commit_window("Anchor.keep"), file.open("x", encoding="utf-8") as text:
                text.write(canonical_json(record))
        except FileExistsError:
            return
        except OSError as error:
            raise self._error(error) from error

    def names(self) -> frozenset[str]:
        """Return the names of all records; raises EnvironmentDown."""
        return frozenset(file.name.removesuffix(_SUFFIX) for file in self._files())

    def records(self) -> tuple[AnchorRecord, ...]:
        """Return all records; raises EnvironmentDown, and Tampered for one that is no record."""
        return tuple(_read_stored_record(file) for file in self._files())

    def _files(self) -> list[Path]:
        try:
            return sorted(file for file in self._folder.iterdir() if file.suffix == _SUFFIX)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> EnvironmentDown:
        return EnvironmentDown(
            f"the anchor in {self.place} cannot be used: {error.strerror}",
            fix="create the folder, or correct anchor.folder in catalog/profiles.yaml",
        )


def _read_stored_record(file: Path) -> AnchorRecord:
    try:
        record = AnchorRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Tampered(f"{file} is no record of an anchor: {type(error).__name__}") from error
    if record.name != file.name.removesuffix(_SUFFIX):
        raise Tampered(f"{file} holds the record of {record.name}")
    return record
