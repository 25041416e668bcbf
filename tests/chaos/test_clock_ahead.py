"""A lake without any other clock, and a driver whose clock is a day ahead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.chaos.faults import Both, Kill, SkewedCommits
from tests.chaos.lab import BY, SCOPE, Lab

DAY = timedelta(days=1)


@pytest.mark.req("T8", "X3")
def test_others_are_refused_until_its_time_has_come_and_then_each_chunk_is_there_once(
    lab: Lab,
) -> None:
    """Of what it left half done; a staged run is published by a right clock at once."""
    lab.restore("approved")
    untouched = lab.oracle.rows("silver.t")
    died = Both(SkewedCommits(DAY), Kill("Spark.overwrite:committed", 2))
    lab.killed("stage", lab.run, *BY, hook=died)
    refused = lab.do("stage", lab.run, *BY)
    assert (refused.code, refused.error["code"]) == (6, "wrong-clock")
    assert "its last commit is 86," in refused.error["problem"]
    assert len(lab.oracle.attempts()) == 2

    a_day_later = lab.do("stage", lab.run, *BY, hook=SkewedCommits(DAY + timedelta(hours=1)))
    assert a_day_later.code == 0, a_day_later
    assert len(lab.oracle.attempts()) == len(set(lab.oracle.attempts())) == len(SCOPE)
    assert lab.oracle.rows("silver.t") == untouched
    for verb in ("validate", "accept", "publish"):
        lab.must(verb, lab.run, *BY)
    assert lab.oracle.rows("silver.t") != untouched
