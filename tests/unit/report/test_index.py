"""The index of all runs beside their pages."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from lakehouse_backfill.domain.run import RunState, RunStatus
from lakehouse_backfill.report.page import MAX_LISTED, render_index
from tests.support.examples.dossiers import NOW


def run(number: int, state: RunState = RunState.PUBLISHED) -> RunStatus:
    return RunStatus(
        run_id=f"bf-{number}", product="silver.<b>daily", state=state, seq=1,
        at=NOW + timedelta(minutes=number), head="",
    )  # fmt: skip


def test_runs_with_a_page_are_linked_and_values_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "bf-2.html").touch()
    text = render_index([run(1, RunState.VALIDATED), run(2)], tmp_path)
    assert re.findall('href="(.*?)"', text) == ["bf-2.html"]
    assert "silver.<wbr>&lt;b&gt;daily" in text
    assert text.index("bf-1") < text.index("bf-2")
    assert re.findall('data-label="Waits for" class="word">(.*?)</td>', text) == [
        "a person", "\N{EN DASH}",
    ]  # fmt: skip
    assert "State of 2026-03-02 09:32:00 UTC" in text


@pytest.mark.parametrize("count", [0, MAX_LISTED, MAX_LISTED + 3])
def test_the_index_stays_small(tmp_path: Path, count: int) -> None:
    text = render_index([run(number) for number in range(count)], tmp_path, "prod")
    assert text.count("lakehouse-backfill --profile prod ") == text.count("lakehouse-backfill ")
    assert text.count("<tr><td") == min(count, MAX_LISTED)
    assert ("3 older runs" in text) is (count > MAX_LISTED)
    assert ("There is no run yet." in text) is not count
    assert len(text) < 150_000
