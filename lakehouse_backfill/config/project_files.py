"""The files of a project that decide what a run computes and how it is judged.

Their hashes are part of the manifest hash: what was approved is what runs (M4). Transforms are
found by reading code, never by running it. A reader's query is a file, or a list of columns.

Heads of the logs of runs that were kept outside the lake, read from JSON.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from lakehouse_backfill import transforms
from lakehouse_backfill.config import faults
from lakehouse_backfill.core.guards.outside import sinks
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.rollout import ReaderQuery
from lakehouse_backfill.errors import ConfigError, NotFound


def hash_run_files(project: Path, manifest: RunManifest, contract: Contract) -> dict[str, str]:
    """Return the SHA-256 of each file that decides, by its path inside the project.

    The job, the modules of the project that it imports (also through others), the suites of
    contract and manifest, golden rows, answers of mocked sinks. Raises NotFound and
    ConfigError for a file that is absent or outside.
    """
    job, validation = manifest.transform.file, manifest.validation
    names = [(path, "transform.file") for path in (job, *imported_modules(project, job))]
    names += [
        (item.file, f"validation.suites[{number}].file")
        for number, item in enumerate(validation.suites)
    ]
    if manifest.target.progressive is not None:
        names += [
            (item.file, f"target.progressive.suites[{number}].file")
            for number, item in enumerate(manifest.target.progressive.suites)
        ]
    names += [(suite.file, "") for suite in contract.suites]
    names += [(assumption.file, "") for assumption in contract.assumptions]
    names += [(file, "") for file in sinks.answer_files(contract, manifest)]
    if validation.golden:
        names.append((validation.golden, "validation.golden"))
    found = {name: file_hash(project, name, field) for name, field in names}
    return dict(sorted(found.items()))


def file_hash(project: Path, name: str, field: str = "") -> str:
    """Return the SHA-256 of a file of the project, read now; raises NotFound, ConfigError."""
    path = _require_inside(project, name, field)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise NotFound(
            f"{name} {reason}", fix=f"put {name} there, or correct the path", field=field
        ) from error


def find_file_hash(project: Path, name: str) -> str | None:
    """Return the SHA-256 of a file of the project; None where there is none of this name."""
    return file_hash(project, name) if (project / name).is_file() else None


def _require_inside(project: Path, name: str, field: str = "") -> Path:
    path = faults.resolve_inside(project, name)
    if path is None:
        raise ConfigError(
            f"{name} lies outside the project",
            fix="write a path relative to the project's folder, without ..",
            field=field,
        )
    return path


def imported_modules(project: Path, job: str) -> tuple[str, ...]:
    """Name the modules of the project that a Python job imports, also through other modules.

    Read from the code without running it; an import that is put together at run time is not seen.
    """
    root, seen = project.resolve(), set[Path]()
    start = faults.resolve_inside(project, job)
    todo = [start] if start is not None and start.suffix == ".py" else []
    while todo:
        path = todo.pop()
        for found in _imports_in_file(root, path):
            if found not in seen and found != start:
                seen.add(found)
                todo.append(found)
    return tuple(sorted(path.relative_to(root).as_posix() for path in seen))


def _imports_in_file(root: Path, path: Path) -> Iterator[Path]:
    for node in _walk(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files((root, path.parent), alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            places_ = (
                (root, path.parent) if not node.level else (_parent_package(path, node.level),)
            )
            parts = node.module.split(".") if node.module else []
            yield from _module_files(places_, parts)
            for alias in node.names:
                yield from _module_files(places_, [*parts, alias.name])


def _parent_package(path: Path, levels: int) -> Path:
    return path.parents[min(levels, len(path.parents)) - 1]


def _module_files(folders: tuple[Path, ...], parts: list[str]) -> Iterator[Path]:
    """Yield the files that importing `parts` would run: each package on the way, and the module."""
    root = folders[0]
    for folder in folders:
        first = folder / parts[0] if parts else folder
        if not first.is_dir() and not first.with_suffix(".py").is_file():
            continue
        for length in range(1, len(parts) + 1):
            base = folder.joinpath(*parts[:length])
            for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                if candidate.is_file() and candidate.resolve().is_relative_to(root):
                    yield candidate.resolve()


_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def load_reader_query(
    project: Path, reader: str, sql: str | None, columns: tuple[str, ...], tolerance: float
) -> ReaderQuery:
    """Read what a reader asks; raises ConfigError, NotFound (the file).

    `sql` is a file of the project with one SELECT over `product`; `columns` are a shorter way to
    ask for some columns of all rows. Exactly one of them is given.
    """
    if bool(sql) is bool(columns):
        raise ConfigError(
            "a comparison needs the reader's query, once",
            fix="add --sql FILE (one SELECT over `product`) or --columns A,B",
        )
    text = _columns_query(columns) if columns else _read_query_file(project, str(sql))
    try:
        return ReaderQuery(reader=reader, sql=text, tolerance=_check_tolerance(tolerance))
    except ValidationError as error:
        raise ConfigError(
            f"{reader!r} is no name of a reader, or {sql} is empty",
            fix="use letters, digits and _, as target.dual_read.readers names it",
        ) from error


def _check_tolerance(tolerance: float) -> float:
    if not 0 <= tolerance < 1:
        raise ConfigError(
            f"the tolerance {tolerance} is no share", fix="write e.g. 0.001 for a thousandth"
        )
    return tolerance


def _columns_query(columns: tuple[str, ...]) -> str:
    """Columns are plain names only, so that none of them can be anything but a column."""
    wrong = [name for name in columns if not _COLUMN_NAME.fullmatch(name)]
    if wrong:
        raise ConfigError(
            f"{wrong[0]!r} is no plain column name", fix="write the query to a file: --sql FILE"
        )
    quoted = ", ".join(f'"{name}"' for name in columns)
    return f"SELECT {quoted} FROM product"  # noqa: S608 (names of letters, digits and _)


def _read_query_file(project: Path, file: str) -> str:
    path = _require_inside(project, file)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(
            f"{file} cannot be read: {error}", fix="name a text file with one SELECT"
        ) from error


@dataclass(frozen=True)
class FoundTransform:
    """A transform as its code declares it; `file` is relative to the project."""

    name: str
    version: str
    inputs: tuple[str, ...]
    file: str
    api_version: str = transforms.API_VERSION
    is_stateful: bool = False


def find_transforms(project: Path) -> tuple[FoundTransform, ...]:
    """List the transforms under `jobs/`, by file and version; files that do not parse are left out.

    Only literal arguments of `@transform` are understood, and `-- name:` lines of SQL files.
    """
    found: list[FoundTransform] = []
    for path in sorted((project / "jobs").rglob("*")):
        file = path.relative_to(project).as_posix()
        if path.suffix == ".py":
            found += filter(None, _python_transforms(path, file))
        elif path.suffix == ".sql":
            found += _sql_transforms(path, file)
    return tuple(found)


def transforms_in_file(path: Path, file: str) -> tuple[FoundTransform, ...] | None:
    """List what a file declares; None when it cannot be told without running it."""
    if path.suffix == ".sql":
        return tuple(_sql_transforms(path, file)) or None
    found = _python_transforms(path, file)
    declared = tuple(item for item in found if item is not None)
    return declared if declared and len(declared) == len(found) else None


def missing_header_lines(path: Path) -> tuple[str, ...]:
    """Name the header lines that a SQL file lacks; none for a file that cannot be read."""
    fields = _sql_fields(path)
    if fields is None:
        return ()
    return tuple(f"-- {name}:" for name in ("name", "version", "inputs") if name not in fields)


def _sql_fields(path: Path) -> dict[str, str] | None:
    try:
        return transforms.sql_header(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def code_versions(project: Path, file: str) -> dict[str, str]:
    """Return the transforms that a file declares by now, as far as code tells: version by name."""
    found = transforms_in_file(project / file, file) or ()
    return {one.name: one.version for one in found}


def newest_transform(project: Path, name: str) -> FoundTransform | None:
    """Return the highest version of the transform called `name`, or None."""
    named = [item for item in find_transforms(project) if item.name == name]
    return max(named, key=_version_order, default=None)


def _version_order(item: FoundTransform) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in item.version.split("."))


def _python_transforms(path: Path, file: str) -> list[FoundTransform | None]:
    """List what the decorators of a file declare; None for one that is no plain `@transform`.

    `plan` names what is wrong with a transform; here it only cannot be suggested.
    """
    decorators = [one for node in _walk(path) for one in getattr(node, "decorator_list", ())]
    return [_declared_transform(one, file) for one in decorators]


def _walk(path: Path) -> Iterator[ast.AST]:
    """Yield the nodes of a Python file; none of one that does not parse."""
    with suppress(OSError, ValueError, SyntaxError):
        yield from _nodes(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def _nodes(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(text)))


def _declared_transform(node: ast.expr, file: str) -> FoundTransform | None:
    if not isinstance(node, ast.Call):
        return None
    called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
    if called != "transform":
        return None
    try:
        given = {item.arg: ast.literal_eval(item.value) for item in node.keywords if item.arg}
        inputs = tuple(map(str, given["inputs"]))
        written_for = str(given.get("api_version", transforms.API_VERSION))
        return FoundTransform(
            str(given["name"]), str(given["version"]), inputs, file, written_for,
            is_stateful=bool(given.get("state")),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError):
        return None


def _sql_transforms(path: Path, file: str) -> Iterator[FoundTransform]:
    fields = _sql_fields(path) or {}
    if fields.get("name") and fields.get("version"):
        inputs = tuple(part.strip() for part in fields.get("inputs", "").split(",") if part.strip())
        written_for = fields.get("api_version", transforms.API_VERSION)
        yield FoundTransform(fields["name"], fields["version"], inputs, file, written_for)


_HEAD = re.compile(r"|[0-9a-f]{64}")
_FIX = "give a file that this command wrote: lakehouse-backfill audit verify --json > FILE"


def read_kept_heads(file: Path) -> dict[str, str]:
    """Return the newest hash of each run, as `audit verify --json` printed it then.

    Raises NotFound for a file that cannot be opened; ConfigError when it holds no heads: an empty
    file, or one of another command, must not pass for a comparison.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}", fix=_FIX) from error
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON: {error}", fix=_FIX) from error
    found = document.get("data", document) if isinstance(document, dict) else None
    heads = found.get("heads") if isinstance(found, dict) else None
    if not isinstance(heads, dict) or not heads:
        raise ConfigError(f"{file} holds no heads of runs", fix=_FIX)
    bad = [run for run, head in heads.items() if not _HEAD.fullmatch(str(head))]
    if bad:
        raise ConfigError(f"{file}: the head of {bad[0]} is no SHA-256", fix=_FIX)
    return {str(run): str(head) for run, head in heads.items()}
