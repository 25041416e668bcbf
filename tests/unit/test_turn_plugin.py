"""Rules of the plugin that runs matrices of tests in turns."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turn_plugin import Case, chosen, of_turn

#: For each case: its test, in how many turns that runs, what the case proves.
files = st.lists(
    st.tuples(
        st.sampled_from([("test_a", 3), ("test_b", 3), ("test_c", 2), ("test_d", 5)]),
        st.frozensets(st.sampled_from(["A1", "A2", "A3"])),
    ),
    min_size=1,
    max_size=20,
)


def cases(file: list[tuple[tuple[str, int], frozenset[str]]]) -> list[Case]:
    return [Case(test, f"{test}[{n}]", turns, ids) for n, ((test, turns), ids) in enumerate(file)]


@given(files, st.integers(0, 2**32))
def test_as_many_turns_as_the_mark_says_run_every_case(
    file: list[tuple[tuple[str, int], frozenset[str]]], start: int
) -> None:
    found = cases(file)
    for test, turns in {(case.group, case.turns) for case in found}:
        run = set().union(*(chosen(found, set(), start + more) for more in range(turns)))
        assert {case.name for case in found if case.group == test} <= run


@given(files, st.frozensets(st.sampled_from(["A1", "A2"])), st.integers(0, 99))
def test_a_turn_runs_every_test_and_proves_what_the_folder_proves(
    file: list[tuple[tuple[str, int], frozenset[str]]], beside: frozenset[str], turn: int
) -> None:
    found = cases(file)
    run = [case for case in found if case.name in chosen(found, set(beside), turn)]
    assert {case.group for case in run} == {case.group for case in found}
    assert beside.union(*(one.ids for one in run)) == beside.union(*(one.ids for one in found))


@pytest.mark.parametrize(("turns", "sizes"), [(2, [4, 3]), (3, [3, 2, 2]), (9, [1] * 7)])
def test_where_nothing_is_to_be_proven_a_turn_runs_its_share(turns: int, sizes: list[int]) -> None:
    found = [Case("test_a", f"test_a[{n}]", turns) for n in range(7)]
    assert [len(chosen(found, set(), turn)) for turn in range(len(sizes))] == sizes


@pytest.mark.parametrize(
    ("options", "run"),
    [
        ((), ["one", "0", "1", "2", "3"]),
        (("--turn", "all"), ["one", "0", "1", "2", "3"]),
        (("--turn", "2"), ["one", "0", "3"]),
        # Cases that nobody asked for take no turn.
        (("--turn", "1", "-k", "1 or 3"), ["3"]),
        (("--turn", "0", "-m", "not in_turn"), ["one"]),
    ],
)
def test_a_turn_runs_a_part(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    run: list[str],
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p tests.turn_plugin --strict-markers\n")
    pytester.makepyfile(
        test_rule="""
        import pytest

        def test_rule():
            print("ran one")

        @pytest.mark.in_turn(2)
        @pytest.mark.parametrize("n", range(4))
        def test_case(n):
            print(f"ran {n}")
        """
    )
    result = pytester.runpytest_inprocess("-s", *options)
    said = [line.partition("ran ")[2].split()[0] for line in result.outlines if "ran " in line]
    assert said == run
    assert result.ret == 0


@pytest.mark.parametrize(
    ("turn", "taken"), [(None, "abcd"), (0, "ad"), (4, "b"), (5, "c"), (6, "ad")]
)
def test_a_test_that_goes_through_its_cases_itself_takes_those_of_the_turn(
    turn: int | None, taken: str
) -> None:
    class Config(NamedTuple):
        turn: int | None

        def getoption(self, _: str) -> int | None:
            return self.turn

    assert of_turn(cast(Any, Config(turn)), "abcd") == taken
    assert of_turn(cast(Any, Config(turn)), "") == ""


@pytest.mark.parametrize(("of", "files"), [("file", ["abcd"]), ("folder", ["a", "b", "cd"])])
def test_whole_files_and_folders_are_run_in_parts(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, of: str, files: list[str]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p tests.turn_plugin --strict-markers\n")
    mark = f'import pytest\npytestmark = pytest.mark.in_turn(2, of="{of}")\n'
    for number, names in enumerate(files):
        tests = "".join(f"def test_{name}(): pass\n" for name in names)
        pytester.makepyfile(**{f"test_heavy_{number}": mark + tests})
    for turn in ("0", "1"):
        pytester.runpytest_inprocess("--turn", turn).assert_outcomes(passed=2, deselected=2)
