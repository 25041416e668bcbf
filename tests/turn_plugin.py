"""Pytest plugin: of a test's many cases each turn runs some, and all turns together run all.

A command that is killed at each of a hundred places, or a suite that repeats on each catalog, takes
longer than anybody waits for. `@pytest.mark.in_turn(3)` says that a third of a test's cases are
enough at once: `--turn N` runs every third of them, in an order that mixes the parameters. Without
`--turn`, or with `--turn all`, all run. With `in_turn(2, of="file")`, a turn runs half of the tests
of a file, and with `of="folder"` half of those of a folder: for many that cost much.

Of what carries the mark, test, file or folder, at least one case runs in every turn, and what the
tests of a folder that were asked for prove is proven in every turn.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.req_plugin import ids_of

T = TypeVar("T")

#: How many turns there are, where the mark does not say.
TURNS = 3


@dataclass(frozen=True)
class Case:
    """A case of a test, file or folder, what it proves, and how many turns run all of them."""

    group: str
    name: str
    turns: int = TURNS
    ids: frozenset[str] = frozenset()


def chosen(cases: Sequence[Case], proven: set[str], turn: int) -> set[str]:
    """Name the cases of a turn, of all in a folder; `proven` is what its other tests prove.

    Over as many turns as a mark says, each case is chosen once or more often.
    """
    groups: dict[tuple[str, int], list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda one: (zlib.crc32(one.name.encode()), one.name)):
        groups[case.group, case.turns].append(case)
    taken = [case for (_, turns), mine in groups.items() for case in _share(mine, turn, turns)]
    done = proven.union(*(case.ids for case in taken))
    for case in cases:
        if not case.ids <= done:
            taken.append(case)
            done |= case.ids
    return {case.name for case in taken}


def _share(cases: Sequence[T], turn: int, turns: int) -> Sequence[T]:
    """Give one in `turns` cases, and one at least where there are any."""
    return cases[turn % min(turns, len(cases)) :: turns] if cases else cases


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("turns").addoption(
        "--turn", type=_turn, metavar="N|all", help="which cases of the tests marked in_turn to run"
    )


def _turn(text: str) -> int | None:
    return None if text == "all" else int(text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f'in_turn(n={TURNS}, of="test"|"file"|"folder"): a turn runs one in n of the cases of that',
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, among what other options have selected, the tests whose turn it is not."""
    turn = config.getoption("--turn")
    if turn is None:
        return
    cases, proven = defaultdict[Path, list[Case]](list), defaultdict[Path, set[str]](set)
    for item in items:
        mark = item.get_closest_marker("in_turn")
        folder, ids = item.path.parent, frozenset(ids_of(item))
        if mark is None:
            proven[folder] |= ids
        else:
            turns = int(mark.args[0]) if mark.args else TURNS
            group = _group(item, mark.kwargs.get("of", "test"))
            cases[folder].append(Case(group, item.nodeid, turns, ids))
    runs = set().union(*(chosen(mine, proven[folder], turn) for folder, mine in cases.items()))
    waiting = {case.name for mine in cases.values() for case in mine} - runs
    if waiting:
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in waiting])
        items[:] = [one for one in items if one.nodeid not in waiting]


def _group(item: pytest.Item, of: str) -> str:
    """Name the test, file or folder of which a turn runs a part."""
    if of == "folder":
        return str(item.path.parent)
    return str(item.path) if of == "file" else item.nodeid.partition("[")[0]


def mark_folder(
    items: Sequence[pytest.Item], folder: Path, turns: int = TURNS, *, only: str = ""
) -> None:
    """Let the tests of a folder, and those of each folder in it, take turns.

    What carries the mark already keeps its own; `only` names a mark without which a test has none.
    """
    for item in items:
        if (
            folder in item.path.parents
            and (not only or item.get_closest_marker(only) is not None)
            and item.get_closest_marker("in_turn") is None
        ):
            item.add_marker(pytest.mark.in_turn(turns, of="folder"))


def of_turn(config: pytest.Config, cases: Sequence[T], turns: int = TURNS) -> Sequence[T]:
    """Give every third case to a test that goes through its cases itself; all without `--turn`.

    Such a test has a mark of its own, whose number has no factor in common with `turns`: where
    both go by thirds, some cases never run.
    """
    turn = config.getoption("--turn")
    return cases if turn is None else _share(cases, turn, turns)


def pytest_report_header(config: pytest.Config) -> list[str]:
    turn = config.getoption("--turn")
    return [] if turn is None else [f"tests marked in_turn: turn {turn}; all with --turn all"]
