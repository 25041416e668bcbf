"""The code that a manifest names for the rows which no run made, read from a file or a git commit.

It is read and parsed, never executed: attribution does that, under the guards of every job.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lakehouse_backfill.config import project_files
from lakehouse_backfill.config.project_files import FoundTransform
from lakehouse_backfill.domain.manifest import NOTHING_PLANNED, PreviousCode, RunManifest
from lakehouse_backfill.domain.plan import PreviousCodePin
from lakehouse_backfill.errors import ConfigError, NotFound

#: Returns the full id of a commit; None when the repository lacks it.
CommitFinder = Callable[[Path, str], str | None]
#: Returns the Python and SQL files of a commit, by path.
CommitReader = Callable[[Path, str], Mapping[str, bytes]]
FILE, COMMIT, NAME = (f"previous_code.{field}" for field in ("file", "git_commit", "name"))


def resolve_previous_code(
    project: Path, manifest: RunManifest, find_commit: CommitFinder, read_commit: CommitReader
) -> PreviousCodePin | None:
    """Return the named code with the hashes of its files; None when the manifest names none.

    Raises NotFound for an absent commit or file, ConfigError for a file that lies outside the
    project, cannot be parsed, or does not hold one transform of the run's inputs.
    """
    wanted = manifest.previous_code
    if wanted is None:
        return None
    commit = None
    if wanted.git_commit is not None:
        commit = find_commit(project, wanted.git_commit)
        if commit is None:
            raise NotFound(
                f"git commit {wanted.git_commit} is not in the repository of the project",
                state=NOTHING_PLANNED,
                fix="git fetch it (a shallow clone lacks old commits), or name a file alone",
                field=COMMIT,
            )
    with _code_folder(project, commit, wanted, read_commit) as folder:
        modules = project_files.imported_modules(folder, wanted.file)
        names = (wanted.file, *modules)
        files = {name: project_files.file_hash(folder, name, FILE) for name in names}
        _require_parsable(folder, names)
        found = _choose_transform(folder, wanted)
    inputs = manifest.sources.keys() | manifest.reference_data.keys()
    missing = [name for name in found.inputs if name not in inputs]
    if missing:
        raise _code_error(
            f"{wanted.file} needs inputs that the manifest lacks: {', '.join(missing)}",
            fix="declare them under sources or reference_data, or remove previous_code",
        )
    return PreviousCodePin(
        name=found.name, version=found.version, file=wanted.file, git_commit=commit,
        code_hash=files[wanted.file], files=files,
    )  # fmt: skip


@contextmanager
def _code_folder(
    project: Path, commit: str | None, wanted: PreviousCode, read_commit: CommitReader
) -> Iterator[Path]:
    """Give the folder of the code: the project, or a temporary one with a commit's code."""
    if commit is None:
        yield project
        return
    committed = read_commit(project, commit)
    if wanted.file not in committed:
        raise NotFound(
            f"git commit {commit[:12]} has no file {wanted.file} in this project",
            state=NOTHING_PLANNED,
            fix=f"write the path that the file had then: git show --stat {commit[:12]}",
            field=FILE,
        )
    with TemporaryDirectory(prefix="lakehouse-backfill-") as name:
        folder = Path(name).resolve()
        for file, data in committed.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield folder


def _require_parsable(folder: Path, names: tuple[str, ...]) -> None:
    if not names[0].endswith((".py", ".sql")):
        raise _code_error(
            f"{names[0]} is neither a Python nor a SQL file",
            fix="name the .py or .sql file that ran",
        )
    for name in names:
        try:
            text = (folder / name).read_text(encoding="utf-8")
            if name.endswith(".py"):
                ast.parse(text, filename=name)
        except (OSError, ValueError, SyntaxError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise _code_error(
                f"{name}{line} cannot be read as code: {getattr(error, 'msg', error)}",
                fix="name the file, or the git commit, with the code that ran",
            ) from error


def _choose_transform(folder: Path, wanted: PreviousCode) -> FoundTransform:
    """Return the transform that is named, or the only one of the file."""
    offered = project_files.transforms_in_file(folder / wanted.file, wanted.file)
    if offered is None:
        if wanted.name and wanted.version:
            # Declared by arguments that are computed: what it is shows when it is executed.
            return FoundTransform(wanted.name, wanted.version, (), wanted.file)
        raise _code_error(
            f"{wanted.file} declares no transform with a plain name and version",
            fix="add previous_code.name and previous_code.version, or mark the old function with "
            "@transform in a file of its own",
        )
    fitting = [
        one
        for one in offered
        if wanted.name in (None, one.name) and wanted.version in (None, one.version)
    ]
    if len(fitting) != 1:
        known = ", ".join(f"{one.name} {one.version}" for one in offered)
        raise _code_error(
            f"{wanted.file} holds {len(fitting)} transforms that previous_code can mean",
            fix=f"it offers {known}: name one by previous_code.name and previous_code.version",
            field=NAME if wanted.name else FILE,
        )
    return fitting[0]


def _code_error(problem: str, *, fix: str, field: str = FILE) -> ConfigError:
    return ConfigError(problem, state=NOTHING_PLANNED, fix=fix, field=field)
