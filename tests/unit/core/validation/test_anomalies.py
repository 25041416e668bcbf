"""Anomalies against earlier partitions: planted ones are found, clean histories are quiet."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.validation import anomalies
from lakehouse_backfill.domain.checks import Anomaly, AnomalyReport, CheckResult
from lakehouse_backfill.domain.partitions import ScopeField

DAY = ScopeField(column="d", transform="identity", type="date")
MONDAY = date(2024, 1, 1)
pytestmark = pytest.mark.req("Q6")


def label(day: int) -> str:
    return (MONDAY + timedelta(days=day)).isoformat()


def shape(day: int) -> float:
    """Weekends are a quarter of a working day: only the same weekday is comparable."""
    return 2500.0 if day % 7 >= 5 else 10_000.0


def history(seed: int, days: int = 84, noise: float = 0.03) -> dict[str, float | None]:
    chance = random.Random(seed)
    return {label(day): round(shape(day) * chance.gauss(1, noise)) for day in range(days)}


#: What went wrong with a day, and the number that it comes out with.
PLANTED: dict[str, Callable[[float], float]] = {
    "all rows twice": lambda usual: 2 * usual,
    "half of the rows lost": lambda usual: usual / 2,
    "an hour lost": lambda usual: usual * 0.75,
    "no row": lambda _: 0.0,
    "cents instead of euros": lambda usual: 100 * usual,
    "a sign turned": lambda usual: -usual,
    "a weekday's rows on a Sunday": lambda _: 10_000.0,
    "a fourth added": lambda usual: usual * 1.25,
    "a constant": lambda _: 1.0,
    "thousand-fold": lambda usual: 1000 * usual,
}


@pytest.mark.parametrize("seed", range(10), ids=list(PLANTED))
def test_ten_planted_anomalies_are_found(seed: int) -> None:
    name, wrong = list(PLANTED.items())[seed]
    day = 90 if "Sunday" in name else 84 + seed % 5
    found = anomalies.report_anomalies(DAY, name, {label(day): wrong(shape(day))}, history(seed))
    assert [one.partition for one in found.found] == [label(day)]
    assert (found.judged, found.too_little) == (1, 0)


@pytest.mark.parametrize("seed", range(100, 110))
def test_ten_clean_histories_are_quiet(seed: int) -> None:
    known = history(seed, 91)
    new = {label(day): known.pop(label(day)) for day in range(84, 91)}
    found = anomalies.report_anomalies(DAY, "rows", new, known)
    assert (found.found, found.judged) == ((), 7)


CASES = [
    pytest.param(10, [10] * 8, 10.0, 0.0, False, id="constant, same"),
    pytest.param(11, [10] * 8, 10.0, None, True, id="constant, another"),
    pytest.param(0.1 + 0.2, [0.3] * 8, 0.3, 0.0, False, id="rounding is no difference"),
    pytest.param(12, [10] * 9 + [1000], 10.0, 0.016, False, id="most equal: mean deviation"),
    pytest.param(900, [10] * 9 + [20], 10.0, 710.117, True, id="most equal, far away"),
    pytest.param(4, [1, 2, 3, 4, 5, 6, 7, 8, 9], 5, -0.337, False, id="median deviation"),
    pytest.param(25, [1, 2, 3, 4, 5, 6, 7, 8, 9], 5, 6.745, True, id="just beyond"),
    pytest.param(24, [1, 2, 3, 4, 5, 6, 7, 8, 9], 5, 6.408, False, id="just within"),
]


@pytest.mark.parametrize(("value", "before", "median", "score", "is_anomaly"), CASES)
def test_the_score_is_the_distance_in_robust_deviations(value, before, median, score, is_anomaly):
    found = anomalies.score_value("p", value, before)
    assert (found.median, found.score) == (median, score)
    assert anomalies.is_anomaly(found) == is_anomaly


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=12), st.floats(0.001, 1000))
def test_the_score_knows_no_unit(before: list[float], unit: float) -> None:
    value = before[0]
    one, other = (anomalies.score_value("p", v, h) for v, h in (
        (value, before), (value * unit, [x * unit for x in before]),
    ))  # fmt: skip
    if one.score is None or other.score is None:
        return  # differences as small as rounding
    assert one.score == pytest.approx(other.score, rel=1e-2, abs=1e-2)


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=12))
def test_a_number_equal_to_the_median_is_never_an_anomaly(before: list[float]) -> None:
    middle = anomalies.score_value("p", 0.0, before).median
    assert not anomalies.is_anomaly(anomalies.score_value("p", middle, before))


def test_fewer_than_eight_earlier_partitions_say_nothing() -> None:
    known = history(1, 7 * 7)  # seven of each weekday
    found = anomalies.report_anomalies(DAY, "rows", {label(49): 1e9}, known)
    assert found == AnomalyReport(
        measure="rows", basis="earlier partitions of the same weekday", judged=0, too_little=1
    )
    assert anomalies.check_anomalies(found, "block") == CheckResult(
        name="rows is like that of earlier partitions", group="anomaly", passed=True,
        detail="not judged, too little history: 1 have fewer than 8 of earlier partitions of the "
        "same weekday", observed=0, limit=0, blocking=True, judged=False,
    )  # fmt: skip


def test_an_anomaly_is_named_with_its_median_and_score() -> None:
    known: dict[str, float | None] = {label(7 * week): 100.0 + week for week in range(12)}
    found = anomalies.report_anomalies(DAY, "rows", {label(84): 50.0, label(85): 1.0}, known)
    assert found.found == (
        Anomaly(
            partition=label(84), value=50.0, median=105.5, score=-12.478, limit=5.17, history=12
        ),
    )
    assert anomalies.check_anomalies(found, "report") == CheckResult(
        name="rows is like that of earlier partitions", group="anomaly", passed=False,
        detail="1 of 1 partitions far from earlier partitions of the same weekday; not judged, too "
        "little history: 1 have fewer than 8; 2024-03-25: 50, median 105.5 of 12 (z -12.5, limit "
        "5.2)",
        observed=1, limit=0, blocking=False,
    )  # fmt: skip


BASES = [
    pytest.param(DAY, "2024-03-04", ["2024-02-26", "2024-02-27", "2024-03-11", "null"],
                 ("2024-02-26",), id="day"),
    pytest.param(ScopeField(column="t", transform="hour", type="timestamptz"), "2024-03-04T07",
                 ["2024-03-03T07", "2024-03-04T06", "2024-03-01T07"],
                 ("2024-03-03T07", "2024-03-01T07"), id="hour"),
    pytest.param(ScopeField(column="t", transform="month", type="date"), "2024-03",
                 ["2024-01", "2024-02", "2024-04"], ("2024-02", "2024-01"), id="month"),
    pytest.param(ScopeField(column="n", transform="identity", type="long"), "11",
                 ["9", "10", "12"], ("10", "9"), id="number"),
    pytest.param(ScopeField(column="s", transform="identity", type="string"), "EU",
                 ["AA", "US"], (), id="no order"),
    pytest.param(DAY, "null", ["2024-02-26"], (), id="null"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "one", "known", "expected"), BASES)
def test_a_partition_is_held_against_earlier_ones_of_its_kind(field, one, known, expected) -> None:
    assert anomalies.earlier_partitions(field, one, known) == expected


def test_partitions_of_the_run_are_no_history_of_each_other() -> None:
    days = [label(day) for day in range(0, 7 * 30, 7)]
    needed = anomalies.needed_history(DAY, days[-2:], days)
    assert needed == tuple(days[-2 - anomalies.MAX_HISTORY : -2])


def test_the_limit_is_never_below_and_sinks_to_three_and_a_half() -> None:
    limits = [anomalies.anomaly_limit(count) for count in (8, 12, 16, 100)]
    assert limits == [7.25, 5.17, 4.44, 3.52]


def test_normal_numbers_are_rarely_called_anomalies_however_short_the_history() -> None:
    chance = random.Random(11)
    for length in (anomalies.MIN_HISTORY, 12, anomalies.MAX_HISTORY):
        drawn = [[chance.gauss(0, 1) for _ in range(length + 1)] for _ in range(3000)]
        scored = [anomalies.score_value("p", one[0], one[1:]) for one in drawn]
        found = sum(map(anomalies.is_anomaly, scored))
        assert found / len(drawn) < 0.01
