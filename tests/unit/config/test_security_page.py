"""docs/security.md names a test for each attack, and each of these tests exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lakehouse_backfill.domain.profile import Profile
from lakehouse_backfill.errors import ConfigError
from lakehouse_backfill.ports.system import Identity
from lakehouse_backfill.wiring.adapters import Adapters
from lakehouse_backfill.wiring.ports import identity_port
from tests.support.examples.declarations import project

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[a-z_/]+\.py)::(\w+)`", PAGE)


@pytest.mark.req("E4")
@pytest.mark.parametrize(("file", "test"), NAMED, ids=[name for _, name in NAMED])
def test_each_test_that_the_page_names_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.req("E4")
def test_each_attack_of_the_page_has_a_test() -> None:
    section = PAGE.split("## Attacks, and the test that tries each")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(NAMED) > 30
    for row in rows:
        assert row.count("`tests/") == 1, row


@pytest.mark.req("E4")
@pytest.mark.parametrize("place", ["../allowed_signers", "/etc/passwd", "link"])
def test_signers_outside_the_project_are_refused(tmp_path: Path, place: str) -> None:
    folder = project(tmp_path / "project")
    (folder / "link").symlink_to(tmp_path / "allowed_signers")
    profiles = folder / "catalog" / "profiles.yaml"
    text = profiles.read_text()
    profiles.write_text(text.replace("  embedded:\n", f"  embedded:\n    signers: {place}\n"))

    def port() -> Identity:
        return identity_port(Adapters.open(folder, "embedded", None))

    with pytest.raises(ConfigError, match="lies outside the project") as caught:
        port()
    assert "signers" in str(caught.value.faults or caught.value.field)


@pytest.mark.req("E4")
def test_signatures_are_required_in_prod_unless_the_profile_says_otherwise() -> None:
    catalog = {"name": "lake"}
    found = {
        (environment, choice): Profile.model_validate(
            {"catalog": catalog, "environment": environment, "signatures": choice}
        ).requires_signatures
        for environment in ("dev", "prod")
        for choice in (None, "optional", "required")
    }
    assert [pair for pair, is_required in found.items() if is_required] == [
        ("dev", "required"), ("prod", None), ("prod", "required"),
    ]  # fmt: skip
