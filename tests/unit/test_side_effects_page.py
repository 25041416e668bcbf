"""docs/side-effects.md lists exactly what the guard looks at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakehouse_backfill.adapters.spark.guard.process_guard import EVENTS
from lakehouse_backfill.core.guards.outside.side_effects import (
    CLIENTS,
    CLIENTS_BY_SINK,
    NAMES_BY_SINK,
)
from lakehouse_backfill.core.guards.outside.sinks import HONOURED, MEANINGS
from lakehouse_backfill.core.staging.sinks import MAX_MESSAGES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "side-effects.md"


def _table(head: str) -> dict[str, tuple[str, ...]]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {head}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*) \|$", section, re.MULTILINE)
    return {sink: tuple(re.findall(r"`([^`]+)`", names)) for sink, names in rows}


@pytest.mark.parametrize(
    ("head", "known"),
    [
        ("Audit events", EVENTS),
        ("Clients that a job may not import", CLIENTS_BY_SINK),
        ("Names that the scan of the source looks for", NAMES_BY_SINK),
    ],
)
def test_the_page_lists_what_the_code_knows(
    head: str, known: Mapping[str, tuple[str, ...]]
) -> None:
    assert _table(head) == dict(known)


def test_a_client_stands_in_the_list_once() -> None:
    assert len(CLIENTS) == sum(len(modules) for modules in CLIENTS_BY_SINK.values())


def test_the_page_lists_policies_and_what_each_type_of_sink_honours() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for policy, meaning in MEANINGS.items():
        assert f"| `{policy}` | {meaning} |" in text
    for kind, (policies, why) in HONOURED.items():
        names = ", ".join(f"`{policy}`" for policy in policies)
        assert f"| `{kind}` | {names} | {why or 'none'} |" in text
    assert f"at most {MAX_MESSAGES}" in text


def test_what_passes_is_shown_by_a_test_or_says_why_not() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## What no layer stops\n")[1]
    rows = re.findall(r"^\| (.+) \| (`tests/.+`|no test: .+) \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| ") - 1
    named = [one.strip("`").split("::") for _, one in rows if one.startswith("`")]
    missing = [
        test
        for file, test in named
        if f"def {test}(" not in (PAGE.parents[1] / file).read_text(encoding="utf-8")
    ]
    assert missing == []
