"""Profiles and their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.session.settings import spark_catalog_properties
from lakehouse_backfill.config.profiles import choose_profile, embedded_profiles, load_profiles
from lakehouse_backfill.core.runs.gate_registry import REPORTABLE_GATES
from lakehouse_backfill.domain import contract
from lakehouse_backfill.domain.guards.safety import Safety
from lakehouse_backfill.domain.manifest import Compute, Validation
from lakehouse_backfill.domain.profile import FOUR_EYES_ENVIRONMENTS
from lakehouse_backfill.errors import ConfigError
from tests.support.examples.declarations import PROFILES, changed, project

NAME = "catalog/profiles.yaml"


def faults(folder: Path, text: str) -> list[tuple[int, str, str, str]]:
    (project(folder) / NAME).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_profiles(folder)
    assert {fault.file for fault in caught.value.faults} == {NAME}
    return [(fault.line, fault.field, fault.problem, fault.fix) for fault in caught.value.faults]


def test_a_project_without_profiles_has_the_embedded_lake(tmp_path: Path) -> None:
    profiles = load_profiles(tmp_path)
    assert profiles == embedded_profiles()
    assert choose_profile(profiles).catalog == {
        "name": "lake",
        "type": "sql",
        "uri": "sqlite:///${project}/.lakehouse/catalog.db",
        "warehouse": "file://${project}/.lakehouse/warehouse",
    }


def test_a_profile_is_chosen_by_name(tmp_path: Path) -> None:
    profiles = load_profiles(project(tmp_path))
    assert choose_profile(profiles, "prod").environment == "prod"
    assert choose_profile(profiles) == profiles.profiles["embedded"]


def test_an_unknown_profile_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no profile 'prd'; did you mean `prod`\?"):
        choose_profile(load_profiles(project(tmp_path)), "prd")


@pytest.mark.req("M2")
def test_wrong_profiles_are_refused_with_lines(tmp_path: Path) -> None:
    text = changed(PROFILES, "default: embedded", "default: embeded")
    text = changed(text, "{name: lake, type: rest, ", "{type: 5, ")
    assert faults(tmp_path, changed(text, "${project}", "${home}")) == [
        (2, "default", "is 'embeded', which is no profile", "did you mean `embedded`?"),
        (
            5,
            "profiles.embedded.catalog.uri",
            "uses ${home}, which is not replaced",
            "only ${project} is; give secrets in PyIceberg's environment variables",
        ),
        (
            8,
            "profiles.prod.catalog",
            "has no name",
            "add `name:`, by which Spark and SQL call the catalog",
        ),
        (8, "profiles.prod.catalog.type", "is 5", "write text (quote it)"),
    ]


DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "manifest.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.req("M8")


def test_what_nobody_says_is_the_careful_choice() -> None:
    assert Safety().model_dump(exclude_none=True) == {
        "side_effects": False, "manual_publish": True, "on_conflict": "fail",
        "on_deletions": "block",
    }  # fmt: skip
    validation = Validation()
    assert (validation.count_tolerance, validation.checksum, validation.gates) == (
        0, "required", {},
    )  # fmt: skip
    assert (Compute().pool, Compute().scratch) == ("default", "default")
    assert (contract.PIN_DAYS, FOUR_EYES_ENVIRONMENTS) == (30, ("prod",))


def test_the_page_prints_the_numbers_of_the_defaults() -> None:
    table = PAGE.split("## Defaults\n")[1].split("\n## ")[0]
    holds = dict(re.findall(r"^\| (.+?) \| (.+?) \|", table, re.MULTILINE))
    kept = contract.KeepVersions()
    expected = {
        "totals": f"equal: count tolerance {Validation().count_tolerance:g}",
        "pins": f"kept until {contract.PIN_DAYS} days after acceptance; `maintain` lets them go "
        "then",
        "accepted versions": f"the newest {kept.count}, and all of the last {kept.days} days, can "
        "be gone back to",
        "four eyes": f"on in {' and '.join(FOUR_EYES_ENVIRONMENTS)}, off elsewhere",
    }
    assert {about: holds[about] for about in expected} == expected


def test_the_page_names_every_gate_that_may_only_report() -> None:
    text = PAGE.split("## Gates\n")[1].split("\n## ")[0]
    assert [name for name in REPORTABLE_GATES if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "uri",
    ["sqlite:////srv/lake/catalog.db", "sqlite:///${project}/../lake.db", "sqlite:///:memory:"],
    ids=["elsewhere", "above", "in memory"],
)
def test_a_lake_outside_the_project_must_be_named(tmp_path: Path, uri: str) -> None:
    text = changed(PROFILES, "sqlite:///${project}/x.db", uri)
    (project(tmp_path) / "catalog/profiles.yaml").write_text(text)
    profiles = load_profiles(tmp_path)
    with pytest.raises(ConfigError, match="not the embedded lake of this project") as caught:
        choose_profile(profiles, None, tmp_path)
    assert caught.value.fix == (
        "add --profile embedded before the command, or set LAKEHOUSE_BACKFILL_PROFILE=embedded"
    )
    assert choose_profile(profiles, "embedded", tmp_path).catalog["uri"] == uri


@pytest.mark.parametrize(
    ("environment", "counts"),
    [("environment: dev", True), ("environment: prod", False), ("", False)],
    ids=["dev", "prod", "not declared"],
)
def test_a_default_of_a_shared_lake_counts_where_it_is_declared_as_dev(
    tmp_path: Path, environment: str, *, counts: bool
) -> None:
    lake = "{name: lake, type: rest, uri: 'http://lake.example'}"
    text = "api_version: lakehouse-backfill/v1\ndefault: shared\nprofiles:\n  shared:\n"
    text += f"    catalog: {lake}\n"
    text += f"    {environment}\n" if environment else ""
    (project(tmp_path) / NAME).write_text(text)
    profiles = load_profiles(tmp_path)
    if counts:
        assert choose_profile(profiles, None, tmp_path) == profiles.profiles["shared"]
    else:
        with pytest.raises(ConfigError, match="so it must be named"):
            choose_profile(profiles, None, tmp_path)
    assert choose_profile(profiles, "shared", tmp_path) == profiles.profiles["shared"]


def test_the_page_of_catalogs_has_a_profile_of_each_that_loads(tmp_path: Path) -> None:
    page = (DOCS / "catalogs.md").read_text(encoding="utf-8")
    block = page.split("## Profiles of other catalogs\n")[1].split("```yaml\n")[1].split("```")[0]
    (project(tmp_path) / NAME).write_text(block)
    found = load_profiles(tmp_path).profiles
    assert set(found) == {
        "polaris", "lakekeeper", "nessie", "glue", "s3_tables", "unity", "biglake", "hive",
    }  # fmt: skip
    for one in found.values():
        translated = spark_catalog_properties(one.catalog)
        assert (translated["type"], one.isolation) == (one.catalog["type"], "auto")
        assert translated["uri"] == one.catalog["uri"]
