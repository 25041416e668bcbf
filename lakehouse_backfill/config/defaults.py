"""Defaults of a project for all of its run manifests: `catalog/defaults.yaml`.

A manifest's own field wins. Only fields are offered that neither weaken a check nor decide for one
run: gates, tolerances, exceptions and golden rows are said by each manifest itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lakehouse_backfill.config.faults import load_model
from lakehouse_backfill.config.yaml_lines import YamlDocument
from lakehouse_backfill.domain.guards.safety import PaceLimits, PublishWindow
from lakehouse_backfill.domain.serialization import Value

DEFAULTS_FILE = Path("catalog/defaults.yaml")


class DefaultLimits(Value):
    """How runs are cut."""

    partitions_per_chunk: int | None = Field(None, ge=1, le=10_000)


class DefaultCompute(Value):
    """Where runs compute."""

    staging_location: Literal["shadow", "under_target"] | None = None


class DefaultSafety(Value):
    """What no run exceeds, unless its manifest says so."""

    max_rows: int | None = Field(None, ge=1)
    max_bytes: int | None = Field(None, ge=1)
    max_cost_usd: float | None = Field(None, ge=0)
    on_conflict: Literal["fail", "catch_up"] | None = None
    publish_window: PublishWindow | None = None


class DefaultValidation(Value):
    """How far beyond their ranges runs are checked; not less than a manifest without defaults."""

    edge_partitions: int | None = Field(None, ge=2, le=366)


class ProjectDefaults(Value):
    """The fields of `catalog/defaults.yaml`, as in a run manifest."""

    api_version: Literal["lakehouse-backfill/v1"] = Field(description="Version of this format.")
    limits: DefaultLimits = Field(default_factory=DefaultLimits)
    compute: DefaultCompute = Field(default_factory=DefaultCompute)
    safety: DefaultSafety = Field(default_factory=DefaultSafety)
    validation: DefaultValidation = Field(default_factory=DefaultValidation)


def with_project_defaults(document: YamlDocument, project: Path) -> YamlDocument:
    """Return the manifest's document with the fields that it leaves to the project.

    Raises ConfigError, which names file and line, when the defaults are wrong.
    """
    path = project / DEFAULTS_FILE
    if not path.is_file():
        return document
    found = load_model(ProjectDefaults, path, project, lambda _: ())
    merged = dict(document.data)
    for group, fields in _written(found).items():
        own = merged.get(group, {})
        if fields and isinstance(own, dict):
            merged[group] = {**fields, **own}
    return YamlDocument(document.file, merged, document.lines)


def with_profile_limits(document: YamlDocument, limits: PaceLimits | None) -> YamlDocument:
    """Return the manifest's document with the limits that it leaves to the profile."""
    given = limits.model_dump(by_alias=True, exclude_unset=True) if limits else {}
    own = document.data.get("limits", {})
    if not given or not isinstance(own, dict):
        return document
    merged = {**document.data, "limits": {**given, **own}}
    return YamlDocument(document.file, merged, document.lines)


def _written(found: ProjectDefaults) -> dict[str, dict[str, Any]]:
    """Return the fields that the file sets, as a manifest writes them."""
    return found.model_dump(by_alias=True, exclude_none=True, exclude={"api_version"})
