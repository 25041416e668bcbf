"""The files of a project that decide what a run computes and how it is judged, with their hashes.

They are part of the manifest hash: what was approved is what runs (M4).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from lakehouse_backfill.config import places
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import ConfigError, NotFound


def hash_run_files(project: Path, manifest: RunManifest, contract: Contract) -> dict[str, str]:
    """Give the SHA-256 of each file that decides, by its path inside the project.

    The job, the modules of the project that it imports (also through others), the suites of
    contract and manifest, golden rows. Raises NotFound and ConfigError for a file that is absent
    or outside.
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
    if validation.golden:
        names.append((validation.golden, "validation.golden"))
    found = {name: file_hash(project, name, field) for name, field in names}
    return dict(sorted(found.items()))


def file_hash(project: Path, name: str, field: str = "") -> str:
    """Give the SHA-256 of a file of the project, read now; raises NotFound, ConfigError."""
    path = places.resolve_inside(project, name)
    if path is None:
        raise ConfigError(
            f"{name} lies outside the project",
            fix="write a path relative to the project's folder, without ..",
            field=field,
        )
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise NotFound(
            f"{name} {reason}", fix=f"put {name} there, or correct the path", field=field
        ) from error


def imported_modules(project: Path, job: str) -> tuple[str, ...]:
    """Name the modules of the project that a Python job imports, also through other modules.

    Read from the code without running it; an import that is put together at run time is not seen.
    """
    root, seen = project.resolve(), set[Path]()
    start = places.resolve_inside(project, job)
    todo = [start] if start is not None and start.suffix == ".py" else []
    while todo:
        path = todo.pop()
        for found in _imports_in_file(root, path):
            if found not in seen and found != start:
                seen.add(found)
                todo.append(found)
    return tuple(sorted(path.relative_to(root).as_posix() for path in seen))


def _imports_in_file(root: Path, path: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return  # staging names what is wrong with it
    for node in ast.walk(tree):
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
        for length in range(1, len(parts) + 1):
            base = folder.joinpath(*parts[:length])
            for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                if candidate.is_file() and candidate.resolve().is_relative_to(root):
                    yield candidate.resolve()
