"""The defaults stand in one place, and the page about run manifests prints them (M8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse_backfill.config.profiles import choose_profile, load_profiles
from lakehouse_backfill.core.runs import gate_registry
from lakehouse_backfill.core.runs.gate_registry import REPORTABLE_GATES
from lakehouse_backfill.domain import contract
from lakehouse_backfill.domain.manifest import Compute, Safety, Validation
from lakehouse_backfill.errors import ConfigError
from tests.support.examples.declarations import PROFILES, changed, project

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "manifest.md").read_text(encoding="utf-8")
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
    assert (contract.PIN_DAYS, contract.FOUR_EYES_ENVIRONMENTS) == (30, ("prod",))


def test_the_page_prints_every_default() -> None:
    table = PAGE.split("## Defaults\n")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        f"| {one.about} | {one.holds} | {one.change} |" for one in contract.DOCUMENTED_DEFAULTS
    ]


def test_the_page_names_every_gate_that_may_only_report() -> None:
    text = PAGE.split("## Gates\n")[1].split("\n## ")[0]
    assert [name for name in REPORTABLE_GATES if f"`{name}`" not in text] == []


def test_a_gate_that_may_only_report_is_one_that_may_be_waived() -> None:
    listed = {(gate.group, gate.name): gate for gate in gate_registry.GATES}
    named = [listed[gate.group, gate.name] for gate in REPORTABLE_GATES.values() if gate.name]
    assert [gate.name for gate in named if gate.why_not] == []


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
    assert caught.value.fix == "add --profile embedded before the command"
    assert choose_profile(profiles, "embedded", tmp_path).catalog["uri"] == uri
