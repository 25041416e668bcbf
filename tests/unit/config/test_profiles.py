"""A lake is chosen by name, except the embedded one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.config.profiles import choose_profile, embedded_profiles, load_profiles
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


def test_anything_but_the_embedded_lake_must_be_named(tmp_path: Path) -> None:
    (project(tmp_path) / NAME).write_text(changed(PROFILES, "default: embedded", "default: prod"))
    with pytest.raises(ConfigError) as caught:
        choose_profile(load_profiles(tmp_path))
    assert caught.value.fix == "add --profile prod before the command"


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
