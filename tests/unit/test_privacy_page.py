"""docs/privacy.md lists the fields and masks that a contract may declare, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from lakehouse_backfill.domain.guards.privacy import ColumnPrivacy, MaskKey, MaskKind, Privacy

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")


def listed(heading: str) -> list[str]:
    """Give the first cells of the first table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


@pytest.mark.req("E3")
def test_the_page_lists_exactly_the_fields_of_privacy() -> None:
    parts = {"columns": ("privacy.columns.NAME.", ColumnPrivacy), "key": ("privacy.key.", MaskKey)}
    fields = []
    for name in Privacy.model_fields:
        prefix, model = parts.get(name, ("", None))
        if model is None:
            fields.append(f"privacy.{name}")
            continue
        fields += [f"{prefix}{each.alias or own}" for own, each in model.model_fields.items()]
    assert listed("What is declared") == fields


@pytest.mark.req("E3")
def test_the_page_lists_exactly_the_masks() -> None:
    assert listed("Masks") == list(get_args(MaskKind))
