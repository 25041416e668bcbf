"""A new project: its files, and the JSON Schemas of its declarations for editors."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lakehouse_backfill.config.defaults import ProjectDefaults
from lakehouse_backfill.domain.contract import Contract
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.domain.profile import Profiles
from lakehouse_backfill.domain.sources.declaration import SourceDeclaration
from lakehouse_backfill.domain.sources.events import EventStoreDeclaration
from lakehouse_backfill.domain.sources.migration import MigrationDeclaration
from lakehouse_backfill.errors import ConfigError, EnvironmentDown, NotFound

SCHEMA_MODELS: dict[str, type[BaseModel]] = {
    "manifest": RunManifest,
    "contract": Contract,
    "profiles": Profiles,
    "defaults": ProjectDefaults,
    "source": SourceDeclaration,
    "migration": MigrationDeclaration,
    "events": EventStoreDeclaration,
}


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a kind of declaration: see `SCHEMA_MODELS`.

    Raises:
        NotFound: no such kind of declaration.
    """
    model = SCHEMA_MODELS.get(kind)
    if model is None:
        raise NotFound(
            f"there is no schema {kind!r}", fix=f"use one of: {', '.join(SCHEMA_MODELS)}"
        )
    schema = model.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


#: Path in a new project -> file of `project_template/`.
_TEMPLATES = {
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "catalog/profiles.yaml": "profiles.yaml",
}


def new_project_files() -> dict[str, str]:
    """Return the files of a new project: path inside it -> content."""
    templates = files("lakehouse_backfill.config") / "project_template"
    found = {name: (templates / file).read_text("utf-8") for name, file in _TEMPLATES.items()}
    found |= {
        f"schemas/{kind}.json": json.dumps(json_schema(kind), indent=2) + "\n"
        for kind in SCHEMA_MODELS
    }
    kept = ("catalog/contracts", "expectations", "jobs")
    return found | {f"{folder}/.gitkeep": "" for folder in kept}


def create_project(folder: Path) -> tuple[str, ...]:
    """Create the files of a new project and name them. Writes nothing when one is there already.

    Raises:
        ConfigError: a file is there already; all of them are named.
        EnvironmentDown: the folder cannot be written.
    """
    wanted = new_project_files()
    there = [name for name in wanted if (folder / name).exists()]
    if there:
        raise ConfigError(
            f"{folder} already holds {', '.join(sorted(there))}",
            state="nothing was written",
            fix="choose another folder, or go on in this one: lakehouse-backfill doctor",
        )
    for name, content in wanted.items():
        write_new_file(folder / name, content)
    return tuple(sorted(wanted))


def write_new_file(path: Path, content: str) -> None:
    """Write a new text file and the folders above it; never over an existing one.

    Raises:
        ConfigError: the file exists.
        EnvironmentDown: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(content)
    except FileExistsError as error:
        raise ConfigError(
            f"{path} is there already", state="nothing was overwritten", fix="move it away first"
        ) from error
    except OSError as error:
        raise EnvironmentDown(
            f"{path} cannot be written: {error.strerror or error}",
            state="files named before it may have been written",
            fix="choose a folder that you may write to",
        ) from error
