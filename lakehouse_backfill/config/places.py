"""Where the declarations of a project lie, and which paths a declaration may name."""

from __future__ import annotations

from pathlib import Path

from lakehouse_backfill.config.faults import suggest_name
from lakehouse_backfill.config.yaml_lines import FieldPath, YamlDocument
from lakehouse_backfill.errors import Fault

CONTRACTS_FOLDER = Path("catalog") / "contracts"
PROFILES_FILE = Path("catalog") / "profiles.yaml"


def display_path(path: Path, project: Path) -> str:
    """Give a path as people type it: relative to the project where it lies inside."""
    try:
        return path.resolve().relative_to(project.resolve()).as_posix()
    except ValueError:
        return str(path)


def resolve_inside(project: Path, name: str) -> Path | None:
    """Give the file that `name` means in the project; None when it lies outside, also by a link.

    None too for a name with `..`: the archived code of a run is put back under the same name.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    root = project.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError):
        return None
    return path if path.is_relative_to(root) else None


def path_faults(
    document: YamlDocument, path: FieldPath, project: Path, *, must_exist: bool
) -> list[Fault]:
    """Check that the field at `path` names a file inside the project."""
    name = document.get(*path)
    if not isinstance(name, str) or not name:
        return []
    found = resolve_inside(project, name)
    if found is None:
        fix = "write a path relative to the project's folder, without .."
        what = "which lies outside the project, or leaves it by .."
        return [document.fault(path, f"is {name!r}, {what}", fix)]
    if must_exist and not found.is_file():
        return [
            document.fault(
                path, f"is {name!r}, which does not exist", _suggest_file(project, found)
            )
        ]
    return []


def _suggest_file(project: Path, missing: Path) -> str:
    if not missing.parent.is_dir():
        return f"there is no folder {display_path(missing.parent, project)}; correct the path"
    names = [item.name for item in missing.parent.iterdir() if item.is_file()]
    return f"in {display_path(missing.parent, project)}: {suggest_name(missing.name, names)}"
