"""One interruption of a command, what is typed then, and what the lake says in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.chaos.lab import BY, DAYS, SCOPE, TARGET, Ended, Lab
from tests.chaos.oracle import facts
from tests.chaos.scenarios import Scenario

#: What a case does on a lab of its own.
Work = Callable[[Lab], Any]


@dataclass(frozen=True)
class Case:
    """A scenario whose command is interrupted; it goes on by the same command, or by `recover`."""

    scenario: Scenario
    point: str
    nth: int
    goes_on: str
    interrupt: Callable[[Lab, Case], Ended]

    def __str__(self) -> str:
        return f"{self.scenario} - {self.point} - {self.nth} - {self.goes_on}"

    @property
    def isolation(self) -> str:
        return self.scenario.isolation

    def works(self) -> dict[Any, Work]:
        """The interrupted scenario, and the same without interruption."""
        return {self.scenario: whole(self.scenario), self: interrupted(self)}


@dataclass(frozen=True)
class Outcome:
    """How the interrupted command ended, what was so in the end, and what was lost on the way."""

    ended: Ended
    facts: dict[str, Any]
    outside: tuple[Any, Any]
    attempts: list[str]
    actions: list[Any]
    was_written_to: bool
    deleted: list[str]


def whole(scenario: Scenario) -> Work:
    """The facts after the scenario's commands, uninterrupted."""

    def work(lab: Lab) -> dict[str, Any]:
        lab.restore(scenario.state)
        for command in scenario.then:
            lab.must(*lab.typed(command))
        return facts(lab.oracle, TARGET, lab.run)

    return work


def interrupted(case: Case) -> Work:
    """The outcome of the case; a last recovery must find nothing to do."""

    def work(lab: Lab) -> Outcome:
        lab.restore(case.scenario.state)
        before = _outside(lab)
        ended = case.interrupt(lab, case)
        left = _kept(lab)
        if case.goes_on == "recover":
            _recover(lab, case)
        for command in case.scenario.then:
            _type(lab, case, command)
        found, state = facts(lab.oracle, TARGET, lab.run), lab.oracle.state()
        actions = lab.must("recover", "--all", *BY).data["actions"]
        return Outcome(
            ended=ended,
            facts=found,
            outside=(before, _outside(lab)),
            attempts=lab.oracle.attempts(),
            actions=actions,
            was_written_to=lab.oracle.state() != state,
            deleted=sorted(left - _kept(lab)),
        )

    return work


def _type(lab: Lab, case: Case, command: tuple[str, ...]) -> None:
    """Give a command that works, or that says that all is done but what recovery does."""
    ended = lab.do(*lab.typed(command))
    if case.scenario.already and ended.code != 0:
        assert case.scenario.already in ended.error["problem"], ended
        lab.must("recover", "--all", *BY)
    else:
        assert ended.code == 0, ended


def _recover(lab: Lab, case: Case) -> None:
    """A run that was never stored cannot be named; nothing is left of it but pins."""
    ended = lab.do("recover", lab.run, *BY)
    assert ended.code == 0 or (case.scenario.name == "plan" and ended.code == 2), ended


def _outside(lab: Lab) -> dict[str, list[str]]:
    files = lab.oracle.paths(TARGET)
    return {day: files[day] for day in DAYS if day not in SCOPE}


def _kept(lab: Lab) -> set[str]:
    """All files but the old metadata files that Iceberg lets go by itself."""
    return {name for name in lab.oracle.files() if not name.endswith(".metadata.json")}
