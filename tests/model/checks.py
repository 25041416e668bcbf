"""What must hold after each step, whatever came before."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.chaos.lab import TARGET
from tests.model.world import ACCEPTING, Files

if TYPE_CHECKING:
    from tests.model.machine import Machine


def check(machine: Machine) -> None:
    """After each step."""
    machine.look.refresh()
    _target(machine)
    _kept(machine)
    _runs(machine)
    _pointer(machine)


def check_tags(machine: Machine) -> None:
    """After an expiry, and in the end: no table lacks a file, the shadows neither."""
    for name in machine.look.catalog():
        _tags(machine, name)


def _tags(machine: Machine, name: str) -> None:
    refs = (machine.look.metadata(name) or {}).get("refs", {})
    for snapshot_id in {ref["snapshot-id"] for ref in refs.values()}:
        assert machine.look.missing(name, snapshot_id) == [], name


def _target(machine: Machine) -> None:
    """The rows of each day, in the files in which they were: what nobody changed is not moved."""
    found = machine.look.data(TARGET)
    _same(machine, machine.world.files, found)


def _same(machine: Machine, wanted: Files, found: dict[str, dict[str, list[Any]]]) -> None:
    for day in wanted:
        there = dict(found.get(day, {}))
        new = []
        for number, rows in wanted[day]:
            path = machine.paths.get(number)
            if path is None:
                new.append((number, rows))
            else:
                assert path in there, f"{day}: a file is gone: {rows}; there are {there}"
                assert there.pop(path) == list(rows), day
        got = Counter(tuple(rows) for rows in there.values())
        assert got == Counter(rows for _, rows in new), f"{day}: {got} instead of {new}"
        for number, rows in new:
            path = next(path for path, held in there.items() if tuple(held) == rows)
            del there[path]
            machine.paths[number] = path
    assert not set(found) - set(wanted)


def _kept(machine: Machine) -> None:
    """All that was ever accepted or pinned can be read, with the rows that it had."""
    look, world = machine.look, machine.world
    _tags(machine, TARGET)
    for number in world.kept:
        commit = world.commits[number]
        assert look.missing(TARGET, commit.snapshot_id) == []
        if number not in machine.read:
            _same(machine, commit.files, look.data(TARGET, commit.snapshot_id))
            machine.read.add(number)


def _runs(machine: Machine) -> None:
    """Every run stands where the model says; its log has no gap."""
    logs: dict[str, list[dict[str, Any]]] = {}
    for event in machine.look.log("run_event"):
        logs.setdefault(event["run_id"], []).append(event)
    found = {name: log[-1]["to_state"] for name, log in logs.items()}
    assert found == {run.run_id: run.state for run in machine.world.runs.values()}
    for log in logs.values():
        assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
        states = ["draft", *(event["to_state"] for event in log)]
        assert [event["from_state"] for event in log] == states[:-1]


def _pointer(machine: Machine) -> None:
    """What is accepted, what is under way, and every act that ever was accepted, in order."""
    world = machine.world
    ids = [commit.snapshot_id for commit in world.commits]
    log = machine.look.log("accepted_output_version")
    found = [
        (row["output_version"], row["action"], row["run_id"], row["snapshot_id"])
        for row in log
        if row["action"] in ACCEPTING
    ]
    assert found == [(v.number, v.action, v.run_id, ids[v.commit]) for v in world.versions]
    is_pending = bool(log) and log[-1]["action"] == "reserve"
    assert is_pending == (world.pending is not None)
    if world.pending is not None:
        held = (log[-1]["output_version"], log[-1]["run_id"])
        assert held == (world.pending.number, world.pending.run_id)
