"""Which code a run executes, and whether its name and version still mean one thing (D6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse_backfill.domain.plan import ResolvedManifest
from lakehouse_backfill.errors import Blocked, ConfigError

_CODE = (".py", ".sql")
_DIRTY = "-dirty"


def code_files(resolved: ResolvedManifest) -> dict[str, str]:
    """Give the SHA-256 of the job and of each module of the project that it imports, by path."""
    modules = {name: mark for name, mark in resolved.files.items() if name.endswith(_CODE)}
    return {**modules, resolved.manifest.transform.file: resolved.code_hash}


def require_same_code(
    resolved: ResolvedManifest, earlier: Iterable[tuple[str, Mapping[str, str]]]
) -> None:
    """Raise ConfigError when a stored run executed other code under the same name and version.

    `earlier` are those runs with their code, `code_files` of each.
    """
    transform, mine = resolved.manifest.transform, code_files(resolved)
    for run_id, theirs in sorted(earlier, key=lambda one: one[0]):
        differing = sorted(
            name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)
        )
        if differing:
            raise ConfigError(
                f"{transform.name} {transform.version} is other code than in {run_id}: "
                f"{', '.join(differing)} differs",
                state="nothing was registered",
                fix=f"raise the version: in {transform.file} and in transform.version",
                field="transform.version",
            )


def is_dirty(git_commit: str | None) -> bool:
    """Tell whether the project had changes that were not committed."""
    return git_commit is not None and git_commit.endswith(_DIRTY)


def require_committed(git_commit: str | None, *environments: str) -> None:
    """Raise Blocked for changes that are not committed, where the environment is prod."""
    if is_dirty(git_commit) and "prod" in environments:
        raise Blocked(
            f"the project has changes that are not committed ({git_commit}), and the profile is "
            "prod",
            state="nothing was decided or registered",
            fix="git commit them, then plan again",
        )
