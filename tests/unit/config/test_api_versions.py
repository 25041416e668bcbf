"""Declarations carry the version of their format; older ones are read, newer ones refused (M7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse_backfill.config.contracts import load_contract
from lakehouse_backfill.config.manifests import load_manifest
from lakehouse_backfill.config.yaml_lines import (
    API_VERSION,
    Migration,
    YamlDocument,
    parse_yaml,
    upgrade_document,
)
from lakehouse_backfill.errors import ConfigError, Fault
from tests.support.examples.declarations import CONTRACT, MANIFEST, changed, project

pytestmark = pytest.mark.req("M7")

FILES = {
    "jobs/arrivals_daily/run.yaml": (MANIFEST, load_manifest),
    "catalog/contracts/silver.arrivals_daily.yaml": (CONTRACT, load_contract),
}


def _owner_is_a_group(data: dict[str, Any]) -> dict[str, Any]:
    owner = data.pop("owner")
    return {**data, "ownership": {"name": owner}}


def _reason_is_required(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "ownership": {**data["ownership"], "since": "unknown"}}


#: What a later release may have: two steps from the version of today.
LATER = (
    Migration("lakehouse-backfill/v1", "lakehouse-backfill/v2", _owner_is_a_group),
    Migration("lakehouse-backfill/v2", "lakehouse-backfill/v3", _reason_is_required),
)
V1 = "api_version: lakehouse-backfill/v1\nowner: ana\nproduct: silver.daily\n"


def upgrade(text: str, newest: str = "lakehouse-backfill/v3") -> YamlDocument:
    return upgrade_document(parse_yaml(text, "a.yaml"), LATER, newest)


def test_an_old_declaration_is_read_as_the_newest_version_by_each_step_in_between() -> None:
    document = upgrade(V1)
    assert document.data == {
        "api_version": "lakehouse-backfill/v3",
        "product": "silver.daily",
        "ownership": {"name": "ana", "since": "unknown"},
    }
    assert document.line(("product",)) == 3
    assert parse_yaml(V1, "a.yaml").data["owner"] == "ana"


def test_a_declaration_of_the_newest_version_is_read_as_it_is() -> None:
    text = V1.replace("/v1", "/v3")
    assert upgrade(text).data == parse_yaml(text, "a.yaml").data
    assert upgrade_document(parse_yaml(V1, "a.yaml")).data["api_version"] == API_VERSION


def load(folder: Path, name: str, text: str) -> tuple[Fault, ...]:
    path = project(folder) / name
    path.write_text(text)
    reader: Any = FILES[name][1]
    with pytest.raises(ConfigError) as caught:
        reader(path, folder)
    return caught.value.faults


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("version", "problem", "fix"),
    [
        ("lakehouse-backfill/v9", "newer than this release", "upgrade lakehouse-backfill, or"),
        ("v1", "is no version of this format", "write one of: lakehouse-backfill/v1"),
        ("lakehouse-backfill/v0", "is no version of this format", "lakehouse-backfill/v1"),
    ],
    ids=["newer", "misspelt", "never written"],
)
def test_an_unknown_version_is_refused_with_what_to_do(
    tmp_path: Path, name: str, version: str, problem: str, fix: str
) -> None:
    text = FILES[name][0].replace("lakehouse-backfill/v1", version)
    (fault,) = load(tmp_path, name, text)
    assert (fault.line, fault.field) == (1, "api_version")
    assert problem in fault.problem
    assert fix in fault.fix


@pytest.mark.parametrize("name", FILES)
def test_a_declaration_without_a_version_is_refused(tmp_path: Path, name: str) -> None:
    text = FILES[name][0].replace("api_version: lakehouse-backfill/v1\n", "")
    assert "api_version" in [fault.field for fault in load(tmp_path, name, text)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "transform.py",
            '@transform(name="arrivals_daily", version="1.2.0", inputs=("flights", "airports"), '
            'api_version="lakehouse-backfill/v2")\ndef build(context, flights, airports): ...\n',
        ),
        (
            "transform.sql",
            "-- name: arrivals_daily\n-- version: 1.2.0\n-- inputs: flights, airports\n"
            "-- api_version: lakehouse-backfill/v2\nSELECT 1\n",
        ),
    ],
    ids=["python", "sql"],
)
def test_a_transform_for_another_version_is_refused(tmp_path: Path, file: str, text: str) -> None:
    name = "jobs/arrivals_daily/run.yaml"
    (project(tmp_path) / name).parent.joinpath(file).write_text(text)
    manifest = changed(MANIFEST, "transform.py", file)
    path = tmp_path / name
    path.write_text(manifest)
    with pytest.raises(ConfigError) as caught:
        load_manifest(path, tmp_path)
    (fault,) = caught.value.faults
    assert fault.field == "transform.file"
    assert "lakehouse-backfill/v2" in fault.problem
    assert "upgrade lakehouse-backfill" in fault.fix
