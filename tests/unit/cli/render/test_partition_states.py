"""The states of a partition have the same words wherever they are shown."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import get_args

import pytest

from lakehouse_backfill.cli.render import render_result
from lakehouse_backfill.core.evidence.staleness import (
    PartitionStatus,
    ProductStatus,
    StaleCause,
    StateOfPartition,
    state_of_open_run,
)
from lakehouse_backfill.core.evidence.story import PartitionStory
from lakehouse_backfill.domain.run import RunState
from lakehouse_backfill.results.origins import StaleResult, WhyResult

DOCS = Path(__file__).parents[4] / "docs"
WORDS = get_args(StateOfPartition)
PRODUCT = "silver.daily"


def shown(result: object, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    stream = StringIO()
    render_result(result, stream)
    return stream.getvalue()


def test_the_glossary_has_exactly_the_states_of_a_partition() -> None:
    text = (DOCS / "glossary.md").read_text("utf-8").partition("## States of a partition\n")[2]
    rows = re.findall(r"^\| ([a-z ]+?) \|", text.partition("\n## ")[0], re.M)
    assert rows[0] == "state"
    assert sorted(rows[1:]) == sorted(WORDS)


@pytest.mark.parametrize("word", WORDS)
def test_stale_and_why_show_the_word_to_people_and_to_machines(
    word: StateOfPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = PartitionStatus("2020-01-02", word, (StaleCause("unknown", "a cause"),))
    stale = StaleResult.of((ProductStatus(PRODUCT, (status,)),), {}, is_drafted=False)
    why = WhyResult.of(PartitionStory(PRODUCT, PRODUCT, "2020-01-02", (), ()), status)
    for result in (stale, why):
        assert word in shown(result, monkeypatch)
        assert f'"{word}"' in json.dumps(result.to_dict(), default=str)


@pytest.mark.parametrize("state", [one for one in RunState if one.value not in (
    "published", "cancelled", "rolled_back", "superseded",
)])  # fmt: skip
def test_each_state_of_an_open_run_is_one_of_the_words(state: RunState) -> None:
    waits = {"planned", "validated"}
    failed = {"failed", "halted", "rejected", "publish_halted"}
    expected = (
        "waiting for approval" if state.value in waits
        else "failed" if state.value in failed
        else "in progress"
    )  # fmt: skip
    assert state_of_open_run(state) == expected
    assert expected in WORDS
