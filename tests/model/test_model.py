"""Plans, publications, rollbacks, live writes, expiry and crashes in any order, against a model."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.model.picks import ACTIONS
from tests.model.run import LEAST_SHARE, MEANINGFUL, RESULTS, Progress, Result, report, run

SEQUENCES, SEED = 50, 1


@pytest.mark.timeout(900)
@pytest.mark.req("T8", "U10", "U11", "U12", "T3")
def test_after_any_sequence_of_actions_the_lake_is_what_the_model_says() -> None:
    result = run(Progress(SEQUENCES, SEED, None)).total()
    print(report(result))  # noqa: T201 (pytest shows it when it fails, or with -s)
    assert result.failures == []
    assert result.sequences >= SEQUENCES
    assert {name for name in ACTIONS if result.done[name] == 0} == set()


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_a_stored_result_has_no_failure_and_enough_of_each_action_after_crashes(file) -> None:
    found = json.loads(file.read_text(encoding="utf-8"))
    assert (found["failures"], found["sequences"] >= found["asked_for"]) == (0, True)
    if found["asked_for"] >= MEANINGFUL:
        assert min(found["after_crash_share"][name] for name in ACTIONS) >= LEAST_SHARE


def test_a_run_that_was_interrupted_goes_on_with_the_shards_that_are_left(tmp_path) -> None:
    def opened(seed: int) -> Progress:
        progress = Progress(120, seed, tmp_path / "7.part")
        progress.open()
        return progress

    made = Result(50, 400, Counter(plan=3), after_crash=Counter(plan=2), cpu_s=20.5)
    opened(7).add(700_000, made, 30.04)
    again = opened(7)
    assert (again.done, again.seconds, again.total()) == ({700_000: made}, 30.0, made)
    assert again.left() == [(700_001, 50), (700_002, 20)]
    assert opened(8).done == {}
