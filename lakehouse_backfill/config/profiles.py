"""Loading catalog profiles, and choosing one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lakehouse_backfill.command_lines import PROFILE_VARIABLE
from lakehouse_backfill.config.faults import (
    PROFILES_FILE,
    closest_name,
    load_model,
    suggest_name,
)
from lakehouse_backfill.config.yaml_lines import YamlDocument
from lakehouse_backfill.domain.profile import Profile, Profiles
from lakehouse_backfill.errors import ConfigError, Fault

EMBEDDED_PROFILE = "embedded"
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


def embedded_profiles() -> Profiles:
    """Return the profiles of a project that declares none: one SQLite file and a folder."""
    catalog = {
        "name": "lake",
        "type": "sql",
        "uri": "sqlite:///${project}/.lakehouse/catalog.db",
        "warehouse": "file://${project}/.lakehouse/warehouse",
    }
    return Profiles(
        api_version="lakehouse-backfill/v1",
        default=EMBEDDED_PROFILE,
        profiles={EMBEDDED_PROFILE: Profile(catalog=catalog)},
    )


def load_profiles(project: Path) -> Profiles:
    """Load `catalog/profiles.yaml`; without that file, the embedded lake.

    Raises:
        ConfigError: the file is wrong; every fault is named.
    """
    path = project / PROFILES_FILE
    if not path.exists():
        return embedded_profiles()
    return load_model(Profiles, path, project, _cross_field_faults)


def choose_profile(
    profiles: Profiles, name: str | None = None, project: Path | None = None
) -> Profile:
    """Return the profile called `name`, or the default.

    The default must be the embedded lake of `project`, or declare `environment: dev`: nobody
    restates a shared lake because nothing was named (M8).

    Raises:
        ConfigError: no such profile, or none was named where one must be.
    """
    wanted = name or profiles.default
    if wanted not in profiles.profiles:
        near = closest_name(wanted, profiles.profiles) or profiles.default
        raise ConfigError(
            f"there is no profile {wanted!r}; {suggest_name(wanted, list(profiles.profiles))}",
            fix=f"the same command with --profile {near}, or add {wanted} to "
            f"{PROFILES_FILE.as_posix()}",
        )
    profile = profiles.profiles[wanted]
    is_dev = "environment" in profile.model_fields_set and profile.environment == "dev"
    if name is None and not is_dev and not is_embedded(profile, project):
        raise ConfigError(
            f"the default profile {wanted!r} is not the embedded lake of this project and "
            "does not declare `environment: dev`, so it must be named",
            fix=f"add --profile {wanted} before the command, or set {PROFILE_VARIABLE}={wanted}",
        )
    return profile


def is_embedded(profile: Profile, project: Path | None = None) -> bool:
    """Return whether catalog and files of the profile lie in the project's own folder.

    A SQLite file elsewhere may be somebody else's lake, or one that several projects share.
    """
    root = (project or Path("/project")).resolve()
    places_of_lake = (profile.catalog.get("uri", ""), profile.catalog.get("warehouse", ""))
    uri, warehouse = (text.replace("${project}", str(root)) for text in places_of_lake)
    if not uri.startswith("sqlite:"):
        return False
    file = Path(uri.partition("://")[2].partition("?")[0].removeprefix("/"))
    files = Path(warehouse.removeprefix("file:").replace("//", "/") or root)
    return all(_is_inside(path, root) for path in (file, files))


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return path.is_absolute() and path.resolve().is_relative_to(root)
    except (OSError, ValueError, RuntimeError):
        return False


def _anchor_faults(document: YamlDocument, profile: str) -> Iterator[Fault]:
    anchor = document.get("profiles", profile, "anchor")
    if isinstance(anchor, dict) and len({"folder", "git"} & anchor.keys()) != 1:
        fix = "write either `folder:` or `git:`"
        yield document.fault(("profiles", profile, "anchor"), "does not name one place", fix)


def _cross_field_faults(document: YamlDocument) -> Iterator[Fault]:
    profiles, default = document.get("profiles"), document.get("default")
    if not isinstance(profiles, dict):
        return
    if isinstance(default, str) and default not in profiles:
        problem = f"is {default!r}, which is no profile"
        yield document.fault(("default",), problem, suggest_name(default, list(profiles)))
    for name in profiles:
        yield from _anchor_faults(document, name)
        catalog = document.get("profiles", name, "catalog")
        if not isinstance(catalog, dict):
            continue
        if "name" not in catalog:
            fix = "add `name:`, by which Spark and SQL call the catalog"
            yield document.fault(("profiles", name, "catalog"), "has no name", fix)
        for key, value in catalog.items():
            odd = set(_PLACEHOLDER.findall(str(value))) - {"project"}
            if odd:
                problem = f"uses ${{{sorted(odd)[0]}}}, which is not replaced"
                fix = "only ${project} is; give secrets in PyIceberg's environment variables"
                yield document.fault(("profiles", name, "catalog", key), problem, fix)
