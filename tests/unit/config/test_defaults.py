"""Defaults of a project fill what manifests leave out; they weaken no check."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lakehouse_backfill.config.defaults import DEFAULTS_FILE, ProjectDefaults
from lakehouse_backfill.config.manifests import load_manifest
from lakehouse_backfill.domain.guards.safety import PaceLimits
from lakehouse_backfill.domain.manifest import RunManifest
from lakehouse_backfill.errors import ConfigError
from tests.support.examples.declarations import MANIFEST, project

NAME = "jobs/arrivals_daily/run.yaml"
HEAD = "api_version: lakehouse-backfill/v1\n"
DOCS = Path(__file__).resolve().parents[3] / "docs"


def load(folder: Path, defaults: str, own: str = "") -> RunManifest:
    path = project(folder) / NAME
    path.write_text(f"{MANIFEST}{own}\n")
    (folder / DEFAULTS_FILE).parent.mkdir(exist_ok=True)
    (folder / DEFAULTS_FILE).write_text(HEAD + defaults)
    return load_manifest(path, folder)


def test_a_field_that_the_manifest_leaves_out_is_the_projects(tmp_path: Path) -> None:
    text = "compute: {staging_location: under_target}\n"
    text += 'safety: {publish_window: {from: "22:00", to: "05:00"}}\n'
    found = load(tmp_path, text)
    assert found.compute.staging_location == "under_target"
    assert found.safety.publish_window is not None
    assert found.safety.publish_window.from_ == "22:00"


def test_the_manifests_own_field_wins_and_its_neighbours_are_the_projects(tmp_path: Path) -> None:
    text = "safety: {max_rows: 7, max_bytes: 8}\nlimits: {partitions_per_chunk: 3}\n"
    found = load(tmp_path, text, "safety: {max_rows: 9}\nlimits: {partitions_per_chunk: 5}")
    assert (found.safety.max_rows, found.safety.max_bytes) == (9, 8)
    assert found.limits.partitions_per_chunk == 5
    released = load(tmp_path, text, "safety: {max_rows: null}")
    assert (released.safety.max_rows, released.safety.max_bytes) == (None, 8)


@pytest.mark.req("X3")
def test_limits_that_the_manifest_leaves_out_are_the_profiles(tmp_path: Path) -> None:
    load(tmp_path, "limits: {partitions_per_chunk: 3}\n", "limits: {parallel: 2}")
    hours = {"from": "22:00", "to": "05:00"}
    limits = PaceLimits(parallel=8, rows_per_minute=1000, hours=hours)
    found = load_manifest(tmp_path / NAME, tmp_path, limits).limits
    assert (found.parallel, found.rows_per_minute, found.partitions_per_chunk) == (2, 1000, 3)
    assert found.hours == limits.hours
    # Written out, they are the same manifest; without any, one of an earlier release.
    assert "parallel" not in load_manifest(tmp_path / NAME, tmp_path).limits.model_copy(
        update={"parallel": 1}
    ).model_dump(mode="json")


def test_other_defaults_are_another_manifest(tmp_path: Path) -> None:
    one = load(tmp_path, "safety: {max_rows: 70}\n")
    assert one != load(tmp_path, "safety: {max_rows: 71}\n")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("validation:\n  gates: {keys are unique: report}\n", "validation.gates"),
        ("validation:\n  edge_tolerance_rows: 9\n", "validation.edge_tolerance_rows"),
        ("validation:\n  edge_partitions: 1\n", "validation.edge_partitions"),
        ("safety:\n  manual_publish: false\n", "safety.manual_publish"),
        ("safety:\n  retention_exception: {by: a, reason: b}\n", "safety.retention_exception"),
        ("transform:\n  file: a.py\n", "transform"),
    ],
)
def test_what_weakens_a_check_or_decides_for_one_run_is_no_default(
    tmp_path: Path, text: str, field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    (fault,) = caught.value.faults
    assert (fault.file, fault.field) == (DEFAULTS_FILE.as_posix(), field)
    assert fault.line == (2 if "." not in field else 3)


def test_the_example_of_the_page_has_every_field_and_is_right() -> None:
    part = (DOCS / "manifest.md").read_text(encoding="utf-8").partition("## Defaults of a project")
    example = yaml.safe_load(part[2].split("```yaml\n")[1].split("```")[0])
    found = ProjectDefaults.model_validate(example)
    for name in ("limits", "compute", "safety", "validation"):
        assert set(example[name]) == set(type(getattr(found, name)).model_fields)
