"""The pages for newcomers say what the program says: extras, states, acts, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakehouse_backfill.cli.main import app
from lakehouse_backfill.domain.run import RunState

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def words(page: str, section: str) -> list[str]:
    """Give the first cells of a section's table."""
    part = (DOCS / page).read_text(encoding="utf-8").partition(f"## {section}\n")[2]
    rows = part.partition("\n## ")[0].splitlines()
    return [row.split("|")[1].strip() for row in rows if row.startswith("| ")][1:]


def commands() -> set[str]:
    return {str(item.name) for item in app.registered_commands} | {
        str(item.name) for item in app.registered_groups
    }


def test_the_glossary_explains_every_state_of_a_run_in_their_order() -> None:
    assert words("glossary.md", "States of a run") == [f"`{one.value}`" for one in RunState]


def test_each_act_of_the_glossary_is_a_command_or_an_option() -> None:
    text = ", ".join(words("glossary.md", "Acts"))
    acts = text.replace("roll back", "rollback").split(", ")
    assert set(acts) - commands() == {"revise", "four eyes"}


@pytest.mark.parametrize("page", ["glossary.md", "install.md", "why.md"])
def test_commands_that_a_page_names_exist(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    named = re.findall(r"lakehouse-backfill ([a-z][a-z-]+)", text)
    named += re.findall(r"`([a-z][a-z-]+)(?: [A-Z]+|`)", text) if page == "install.md" else []
    extras = {"java", "postgres", "connect", "kafka", "demo", "microbatch", "main"}
    assert set(named) - extras <= commands()


def test_the_page_lists_the_extras_of_the_package() -> None:
    # Python 3.10 reads no TOML.
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    part = declared.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^([a-z]+) = ", part, re.MULTILINE)
    text = (DOCS / "install.md").read_text(encoding="utf-8")
    assert len(extras) == 5
    assert set(re.findall(r"^\| `([a-z]+)` \| [a-z]", text, re.MULTILINE)) == set(extras)
