"""SIGKILL between any two side effects of a publication or rollback, on catalogs of servers.

All other verbs, and groups of runs, are killed at a few commits, and stopped drivers are overtaken.
On SQLite all verbs are killed, at all points (`tests/chaos/test_kills.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.faults import Kill, Stop
from tests.chaos.lab import BY, DAYS, SCOPE, TARGET, expected_rows
from tests.chaos.oracle import CONTROL, facts
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.stack.kill_lab import KINDS, OTHER, ServerLab, ServerLabs

_VERBS = {one.name: one for one in SCENARIOS if one.name in ("publish", "roll back")}
_ENDS = {
    "publish": ("published", [[0, "baseline"], [1, "publish"]]),
    "roll back": ("rolled_back", [[0, "baseline"], [1, "publish"], [0, "rollback"]]),
}


def _gaps(verb: Scenario) -> list[tuple[str, int]]:
    """List where a side effect is done and another one is left."""
    return [case for case in verb.cases() if case[0].endswith(":committed")][:-1]


#: Every other one is finished by recovery, the others by the same command.
CASES = [
    (kind, name, point, nth, ("again", "recover")[number % 2])
    for kind in KINDS
    for name, verb in _VERBS.items()
    for number, (point, nth) in enumerate(_gaps(verb))
    # Of one catalog and store: each gap by one of the two ways, that after the swap by both.
    if {"lakekeeper": 1, "polaris": 0}.get(kind) != number % 2 or point.startswith("Publisher.")
]


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, server_labs: ServerLabs) -> ServerLab:
    return server_labs.of(request.param)


@pytest.mark.req("T3", "U10", "U12", "X9", "X12")
@pytest.mark.parametrize(("lab", "verb", "point", "nth", "goes_on"), CASES, indirect=["lab"])
def test_what_was_killed_comes_to_the_same_result(
    lab: ServerLab, verb: str, point: str, nth: int, goes_on: str
) -> None:
    lab.restore(_VERBS[verb].state)
    command = lab.typed(_VERBS[verb].command)
    lab.killed(*command, hook=Kill(point, nth))
    if goes_on == "recover":
        lab.must("recover", "--all", *BY)
    if facts(lab.oracle, TARGET, lab.run)["runs"] != {"RUN": _ENDS[verb][0]}:
        _type(lab, command)
    _require_ended(lab, verb)


def _require_ended(lab: ServerLab, verb: str) -> None:
    """Look past the catalog: the verb is done once, and all rows are right."""
    state, versions = _ENDS[verb]
    found = facts(lab.oracle, TARGET, lab.run)
    assert (found["runs"], found["versions"]) == ({"RUN": state}, versions)
    assert (found["tokens are used once"], found["reserved"]) == (True, False)
    assert len(found["ledger"]) == len(SCOPE)
    assert len(found["publications"]) == len(versions) - 1
    assert lab.oracle.rows(TARGET) == expected_rows(SCOPE if verb == "publish" else ())


def _type(lab: ServerLab, command: tuple[str, ...]) -> None:
    """Give the command again, or hear that nothing is left to do but what recovery does."""
    ended = lab.do(*command)
    if ended.code != 0:
        assert "is at version 0 already" in ended.error["problem"], ended
        lab.must("recover", "--all", *BY)


_RECOVER = ("recover", "--all", *BY)


def _on_each(*cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Give all cases on two catalogs; on that of one S3 store one case by each way to it."""
    all_on = [(kind, *case) for kind in ("postgres", "rest") for case in cases]
    return [*all_on, ("lakekeeper", *cases[0]), ("polaris", *cases[1])]


_PLAN = ("new", ("plan", "jobs/a.yaml"), "ControlLog.pipeline_run:committed")
_VALIDATE = ("staged", ("validate", "RUN"), "ControlLog.run_event:committed")


@pytest.mark.req("T3", "X12")
@pytest.mark.parametrize(
    ("lab", "state", "command", "point"),
    [
        ("postgres", *_PLAN), ("rest", *_VALIDATE), ("lakekeeper", *_PLAN), ("polaris", *_VALIDATE),
    ],
    indirect=["lab"],
)  # fmt: skip
def test_a_plan_and_a_validation_that_were_killed_are_the_same_when_repeated(
    lab: ServerLab, state: str, command: tuple[str, ...], point: str
) -> None:
    lab.restore(state)
    lab.killed(*lab.typed(command), hook=Kill(point))
    lab.must(*lab.typed(command))
    assert facts(lab.oracle, TARGET, lab.run) == lab.ends[command[0]]
    assert lab.must(*_RECOVER).data["actions"] == []


@pytest.mark.req("T3", "U10", "X12")
@pytest.mark.parametrize(
    ("lab", "verb", "nth"),
    [
        ("postgres", "publish", 3), ("rest", "roll back", 1),
        ("lakekeeper", "roll back", 1), ("polaris", "publish", 3),
    ],
    indirect=["lab"],
)  # fmt: skip
def test_a_recovery_that_was_killed_is_finished_by_the_next(
    lab: ServerLab, verb: str, nth: int
) -> None:
    """It dies once the pointer is moved, before the run's event says so."""
    lab.restore(_VERBS[verb].state)
    lab.killed(*lab.typed(_VERBS[verb].command), hook=Kill("Publisher.swap:committed"))
    lab.killed(*_RECOVER, hook=Kill("ControlLog.accepted_output_version:committed", nth))
    lab.must(*_RECOVER)
    _require_ended(lab, verb)
    assert lab.must(*_RECOVER).data["actions"] == []


@pytest.mark.req("T3", "U2", "U10", "X12")
@pytest.mark.parametrize(
    ("lab", "verb"),
    [
        ("rest", "publish"), ("rest", "roll back"),
        ("lakekeeper", "publish"), ("polaris", "roll back"),
    ],
    indirect=["lab"],
)  # fmt: skip
def test_a_group_that_was_killed_is_seen_as_a_whole_and_finished(lab: ServerLab, verb: str) -> None:
    """A publication goes on by the same command, a rollback by recovery."""
    lab.save_group()
    lab.restore(f"group {_VERBS[verb].state}")
    why = ("--reason", "wrong", *BY)
    commands = {
        "publish": ("publish", lab.run, lab.other, *BY),
        "roll back": ("rollback", TARGET, OTHER, *why),
    }
    lab.killed(*commands[verb], hook=Kill("Publisher.swap_together:committed"))
    new = expected_rows(SCOPE if verb == "publish" else ())
    assert [lab.oracle.rows(product) for product in (TARGET, OTHER)] == [new, new]
    lab.must(*(commands[verb] if verb == "publish" else _RECOVER))
    assert [lab.oracle.rows(product) for product in (TARGET, OTHER)] == [new, new]
    found, (state, versions) = facts(lab.oracle, TARGET, lab.run), _ENDS[verb]
    assert found["runs"] == {"RUN": state, lab.other: state}
    assert sorted(found["versions"]) == sorted([*versions, *versions])
    assert (found["tokens are used once"], found["reserved"]) == (True, False)
    assert lab.must(*_RECOVER).data["actions"] == []


@pytest.mark.req("T3", "U10", "X12")
@pytest.mark.parametrize(
    ("lab", "point", "nth", "goes_on"),
    _on_each(
        ("Spark.overwrite:committed", 2, "again"),
        ("ControlLog.backfill_chunk_run:committed", 2, "recover"),
    ),
    indirect=["lab"],
)
def test_a_staging_that_was_killed_computes_no_chunk_twice(
    lab: ServerLab, point: str, nth: int, goes_on: str
) -> None:
    lab.restore("approved")
    before = lab.oracle.rows(TARGET)
    lab.killed("stage", lab.run, *BY, hook=Kill(point, nth))
    if goes_on == "recover":
        lab.must("recover", lab.run, *BY)
    lab.must("stage", lab.run, *BY)
    _require_staged(lab)
    assert lab.oracle.rows(TARGET) == before


def _require_staged(lab: ServerLab) -> None:
    """Look at the shadow past the catalog: each chunk of the scope once, all other rows as ever."""
    chunks, rows = lab.oracle.staged(TARGET, lab.run)
    assert len(chunks) == len(set(chunks)) == len(SCOPE)
    assert rows == expected_rows(SCOPE)
    found = facts(lab.oracle, TARGET, lab.run)
    assert (found["runs"], len(found["ledger"])) == ({"RUN": "staged"}, len(SCOPE))


_ERASE = ("maintain", "--erasure", TARGET, "--reason", "request 4711", *BY)


@pytest.mark.req("T3", "U15", "X12")
@pytest.mark.parametrize(
    ("lab", "point"),
    _on_each(("Shadows.drop:committed",), ("Pins.expire:committed",)),
    indirect=["lab"],
)
def test_a_maintain_that_was_killed_is_finished_by_the_next(lab: ServerLab, point: str) -> None:
    """It is one for an erasure: no clock has to be moved, and no file of a control table goes."""
    lab.restore("published")
    before = lab.oracle.rows(TARGET)
    lab.killed(*_ERASE, hook=Kill(point))
    assert lab.oracle.rows(TARGET) == before
    lab.must(*_ERASE)
    assert lab.oracle.rows(TARGET) == before
    assert lab.oracle.shadow() is None
    refs = lab.oracle.table(TARGET).refs()
    assert [name for name in refs if name.startswith(("lhb-pin", f"lhb-{lab.run}-e"))] == []
    assert lab.must("recover", "--all", *BY).data["actions"] == []


@pytest.mark.req("T3", "U15", "X12")
@pytest.mark.parametrize(
    ("lab", "point"),
    [
        ("postgres", "ControlLog.run_event:committing"),
        ("rest", "ControlLog.run_event:committed"),
        # The files of a branch lie among those of its target, and are left to its maintenance.
    ],
    indirect=["lab"],
)
def test_a_run_that_is_cancelled_and_its_files_are_removed_wherever_it_is_killed(
    lab: ServerLab, point: str
) -> None:
    lab.restore("approved")
    rows = lab.oracle.rows(TARGET)
    run = lab.must("plan", lab.manifest("b.yaml", DAYS[5], DAYS[6]), *BY).data["run_id"]
    for verb in ("approve", "stage"):
        lab.must(verb, run, *BY)
    staged = lab.oracle.staged_files(TARGET, run)
    assert staged
    cancel = ("cancel", run, *BY, "--reason", "no")
    lab.killed(*cancel, hook=Kill(point))
    if lab.must("status", run).data["runs"][0]["state"] != "cancelled":
        lab.must(*cancel)
    lab.killed(*_ERASE, hook=Kill("RunFiles.delete:committed"))
    lab.must(*_ERASE)
    assert not any(map(lab.oracle.exists, staged))
    assert lab.oracle.rows(TARGET) == rows
    states = facts(lab.oracle, TARGET, run)["runs"]
    assert (states["RUN"], states[lab.run]) == ("cancelled", "approved")


@pytest.mark.req("X9", "X12")
@pytest.mark.parametrize(
    ("lab", "state", "verb", "point", "nth"),
    [
        (kind, *case)
        for kind in ("postgres", "rest", "polaris")
        for case in (
            ("approved", "stage", "Spark.overwrite:committing", 2),
            ("accepted", "publish", "Publisher.swap:committing", 1),
        )
    ],
    indirect=["lab"],
)
def test_a_stopped_driver_that_was_overtaken_changes_nothing_that_anybody_reads(
    lab: ServerLab, state: str, verb: str, point: str, nth: int
) -> None:
    lab.restore(state)
    zombie = lab.start(verb, lab.run, *BY, hook=Stop(point, nth))
    zombie.wait_until_stopped()
    lab.must(verb, lab.run, *BY)
    before = _what_is_read(lab)
    zombie.go_on()
    ended = zombie.end()
    assert ended.code in (0, 4), ended
    assert _what_is_read(lab) == before
    if verb == "stage":
        _require_staged(lab)
    else:
        _require_ended(lab, verb)
    assert lab.must("recover", "--all", *BY).data["actions"] == []


def _what_is_read(lab: ServerLab) -> tuple[Any, ...]:
    """Give the control tables, the rows, and the shadow; of one on a branch its newest epoch."""
    control = [row for row in lab.oracle.catalog() if len(row) > 4 and row[1] == CONTROL]
    shadow = lab.oracle.staged(TARGET, lab.run)
    return control, lab.oracle.rows(TARGET), shadow
