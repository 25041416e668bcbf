"""Why a row changed: from what it was in states that differ by one input."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse_backfill.core.evidence import attribution, origins
from lakehouse_backfill.domain.comparison.attribution import CAUSE_CLASSES, ComparedState, Factor
from lakehouse_backfill.domain.partitions import Scope, ScopeField
from lakehouse_backfill.domain.publication import Publication
from tests.support.examples.dossiers import plan
from tests.support.examples.plans import a_publication

pytestmark = pytest.mark.req("Q5")

CODE, LATE = Factor(cause="code"), Factor(cause="late_input", input="orders")
UPSTREAM, RATES = Factor(cause="upstream", input="orders"), Factor(cause="reference", input="rates")
FIVE = (CODE, LATE, UPSTREAM, RATES, Factor(cause="deletion", input="orders"))
GONE, X, Y, Z = attribution.ABSENT_ROW, 0, 1, 2
REPLACED, PUBLISHED, KEPT, CANDIDATE = (
    ComparedState("replaced"), ComparedState("published"), ComparedState("kept"),
    ComparedState("candidate"),
)  # fmt: skip


def named(
    factors: tuple[Factor, ...],
    replaced: int,
    published: int,
    computed: tuple[int, ...],
    candidate: int,
) -> tuple[Factor, ...]:
    """Name the causes; `computed` are all old, each alone, (all but one,) all new."""
    states = (REPLACED, PUBLISHED, *attribution.states_to_compute(len(factors)), CANDIDATE)
    return attribution.find_factors(states, (replaced, published, *computed, candidate), factors)


CASES = {
    "the code": ((CODE,), (X, X, (X, Y), Y), (CODE,), "code"),
    "late input": ((LATE,), (GONE, GONE, (GONE, Y), Y), (LATE,), "late_input"),
    "a live write that the run takes back": (
        (), (Y, X, (X,), X), (attribution.LIVE_WRITE_FACTOR,), "live_write",
    ),
    "a row that a live job brought": (
        (), (Y, GONE, (GONE,), GONE), (attribution.LIVE_WRITE_FACTOR,), "live_write",
    ),
    "a live deletion that the run takes back": (
        (), (GONE, X, (X,), X), (attribution.DELETED_FACTOR,), "deletion",
    ),
    "what the run that made it does not give again": (
        (), (X, X, (Y,), Y), (attribution.UNEXPLAINED_FACTOR,), "unexplained",
    ),
    "what this run does not give again": (
        (CODE,), (X, X, (X, X), Y), (attribution.UNEXPLAINED_FACTOR,), "unexplained",
    ),
    "a live write and the code": (
        (CODE,), (Z, X, (X, Y), Y), (attribution.LIVE_WRITE_FACTOR, CODE), "several"
    ),
    "two that each change a part": ((CODE, LATE), (X, X, (X, Y, Z, 3), 3), (CODE, LATE), "several"),
    "two that only work together": ((CODE, LATE), (X, X, (X, X, X, Y), Y), (CODE, LATE), "several"),
    "two of which each is enough": ((CODE, LATE), (X, X, (X, Y, Y, Y), Y), (CODE, LATE), "several"),
    "one beside one that does nothing": (
        (CODE, LATE), (X, X, (X, X, Y, Y), Y), (LATE,), "late_input",
    ),
    "one that hides what the other does": (
        (CODE, LATE), (X, X, (X, Y, GONE, GONE), GONE), (LATE,), "late_input",
    ),
    "partly unexplained": (
        (CODE,), (X, X, (X, Y), Z), (CODE, attribution.UNEXPLAINED_FACTOR), "unexplained",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("factors", "row", "causes", "counted"), CASES.values(), ids=CASES)
def test_a_row_is_explained_by_what_was_swapped(factors, row, causes, counted) -> None:
    found = named(factors, *row)
    assert (found, attribution.classify_factors(found)) == (causes, counted)


WAS_KEPT = ComparedState("was_kept")
DELETED = {
    "what tombstones name": (
        (REPLACED, *attribution.states_to_compute(1), KEPT, CANDIDATE),
        (X, X, Y, GONE, GONE), (CODE,),
    ),
    "what the earlier run kept and this one does not": (
        (REPLACED, PUBLISHED, WAS_KEPT, *attribution.states_to_compute(0), CANDIDATE),
        (GONE, GONE, GONE, X, X), (),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("states", "row", "factors"), DELETED.values(), ids=DELETED)
def test_what_was_left_out_as_deleted_is_a_deletion(states, row, factors) -> None:
    found = attribution.find_factors(states, row, factors)
    assert found == (attribution.EXCLUDED_FACTOR,)
    assert attribution.classify_factors(found) == "deletion"


def test_a_state_that_could_not_be_computed_proves_nothing() -> None:
    whole = frozenset({0, 1})
    states = (REPLACED, ComparedState("computed"), ComparedState("computed", whole), CANDIDATE)
    found = attribution.find_factors(states, (X, X, Y, Y), (CODE, LATE))
    assert found == (attribution.UNEXPLAINED_FACTOR,)


def test_one_that_is_needed_but_does_not_do_alone_is_not_the_only_cause() -> None:
    """The code and any of two late inputs: without the code nothing changes, nor by it alone."""

    def value(new: frozenset[Factor]) -> bool:
        return CODE in new and bool(new & {LATE, UPSTREAM})

    found = explained((CODE, LATE, UPSTREAM), value)
    assert found == {CODE, LATE, UPSTREAM}
    assert attribution.classify_factors(found) == "several"


def test_those_that_move_a_row_alone_are_named_beside_the_one_that_is_needed() -> None:
    def value(new: frozenset[Factor]) -> str:
        late = bool(new & {LATE, UPSTREAM})
        return "both" if CODE in new and late else "late" if late else "as before"

    found = explained((CODE, LATE, UPSTREAM, RATES), value)
    assert found == {CODE, LATE, UPSTREAM}


SHAPES: dict[str, Callable[[frozenset[int], frozenset[int]], object]] = {
    "each has its part": lambda swapped, acting: swapped & acting,
    "only all together": lambda swapped, acting: acting <= swapped,
    "any of them": lambda swapped, acting: bool(acting & swapped),
}


def explained(
    factors: tuple[Factor, ...], value: Callable[[frozenset[Factor]], object]
) -> frozenset[Factor]:
    """Name the causes of a row whose value depends on which factors are new."""
    states = attribution.states_to_compute(len(factors))
    values = [value(frozenset(factors[place] for place in state.swapped)) for state in states]
    order = list(dict.fromkeys([values[0], *values]))
    numbers = [order.index(each) for each in values]
    whole = (REPLACED, *states, CANDIDATE)
    return frozenset(attribution.find_factors(whole, (numbers[0], *numbers, numbers[-1]), factors))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@given(count=st.integers(1, 5), data=st.data())
def test_exactly_the_factors_that_act_are_named(shape, count, data) -> None:
    acting = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1))
    of = {factor: place for place, factor in enumerate(FIVE)}
    found = explained(
        FIVE[:count], lambda swapped: shape(frozenset(of[each] for each in swapped), acting)
    )
    assert found == {FIVE[place] for place in acting}


@given(count=st.integers(2, 3), data=st.data())
def test_the_answer_does_not_depend_on_the_order_of_the_factors(count, data) -> None:
    factors = FIVE[:count]
    subsets = [frozenset(factors[place] for place in range(count) if number >> place & 1)
               for number in range(2**count)]  # fmt: skip
    values = dict(zip(subsets, data.draw(
        st.lists(st.integers(0, 2), min_size=len(subsets), max_size=len(subsets))
    ), strict=True))  # fmt: skip
    if values[frozenset()] == values[frozenset(factors)]:
        return
    answers = {explained(order, values.__getitem__) for order in permutations(factors)}
    assert len(answers) == 1
    (answer,) = answers
    assert answer
    assert attribution.classify_factors(answer) in CAUSE_CLASSES


def test_each_factor_is_tried_alone_and_left_out() -> None:
    sets = [
        [sorted(state.swapped) for state in attribution.states_to_compute(count)]
        for count in range(4)
    ]
    assert sets == [
        [[]],
        [[], [0]],
        [[], [0], [1], [0, 1]],
        [[], [0], [1], [2], [1, 2], [0, 2], [0, 1], [0, 1, 2]],
    ]


@given(
    changed=st.dictionaries(st.from_regex(r"[a-z]{3}", fullmatch=True), st.integers(1, 99)),
    most=st.integers(1, 10),
    seed=st.text(max_size=5),
)
def test_a_sample_holds_the_most_changed_partition_and_repeats(changed, most, seed) -> None:
    found = attribution.sample_partitions(changed, most, seed)
    assert found == attribution.sample_partitions(changed, most, seed)
    assert len(found) == min(most, len(changed))
    assert list(found) == [label for label in changed if label in found]
    if changed:
        assert max(changed.values()) in {changed[label] for label in found}


DAY = ScopeField(column="d", transform="identity", type="date")
ONE, TWO = "2020-01-01", "2020-01-02"


def row(number: int, action: str, run: str | None, version: int, *days: str) -> Publication:
    """One row of the pointer table; `number` is its place in time."""
    return a_publication(
        version, action, run_id=run, snapshot_id=number,
        scope=Scope(field=DAY, partitions=days),
        at=plan().created_at + timedelta(minutes=number - 10),
    )  # fmt: skip


BASE = row(1, "baseline", None, 0, ONE, TWO)
FIRST, SECOND = row(2, "publish", "bf-1", 1, ONE, TWO), row(4, "publish", "bf-2", 2, TWO)
UNDONE = row(6, "rollback", None, 1, TWO)
PARTLY = row(6, "rollback", None, 3, ONE)
LATER = row(20, "publish", "bf-3", 3, ONE, TWO)
MINE = row(8, "publish", plan().run_id, 3, ONE, TWO)
MADE = {
    "nobody published": ((), (None, None)),
    "only what the first run found": ((BASE,), (None, None)),
    "one run": ((FIRST, BASE), ("bf-1", "bf-1")),
    "each partition by its newest run": ((SECOND, FIRST, BASE), ("bf-1", "bf-2")),
    "after a rollback the run before": ((UNDONE, SECOND, FIRST, BASE), ("bf-1", "bf-1")),
    "a partition that went back alone": ((PARTLY, FIRST, BASE), (None, "bf-1")),
    "what came after the plan does not count": ((LATER, FIRST, BASE), ("bf-1", "bf-1")),
    "the run itself does not count": ((MINE, FIRST, BASE), ("bf-1", "bf-1")),
}


@pytest.mark.parametrize(("history", "made_by"), MADE.values(), ids=MADE)
def test_the_maker_of_a_partition_is_the_run_whose_rows_readers_had(history, made_by) -> None:
    found = tuple(origins.publication_of_partition(history, plan(), label) for label in (ONE, TWO))
    assert tuple(each.run_id if each else None for each in found) == made_by


def test_other_files_other_config_or_another_mode_are_other_code() -> None:
    one = plan()
    resolved = one.resolved
    later = one.model_copy(update={"created_at": datetime.now(timezone.utc), "run_id": "bf-9"})
    assert attribution.is_same_code(one, later)
    others = [
        resolved.model_copy(update={"code_hash": "0" * 64}),
        resolved.model_copy(update={"files": {**resolved.files, "jobs/more.py": "0" * 64}}),
    ]
    transform = resolved.manifest.transform.model_copy(update={"config": {"a": 1}})
    manifest = resolved.manifest.model_copy(update={"transform": transform})
    others.append(resolved.model_copy(update={"manifest": manifest}))
    for other in others:
        assert not attribution.is_same_code(one, one.model_copy(update={"resolved": other}))
