"""SIGKILL between any two side effects of a publication or rollback, on catalogs of servers.

Staging, cancelling and `maintain` are killed at a few commits, and stopped drivers are overtaken.
On SQLite all verbs are killed, at all points (`tests/chaos/test_kills.py`, `test_branch_kills.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.chaos.faults import Kill, Stop
from tests.chaos.lab import BY, DAYS, SCOPE, TARGET
from tests.chaos.oracle import CONTROL, facts
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.stack.catalogs import Catalogs
from tests.stack.kill_lab import Database, ServerLab

#: By kind of catalog the one that has its states: the emulated ones are two ways to the same one,
#: on S3, with credentials that end at each table; runs write to branches there.
KINDS = {"postgres": "postgres", "rest": "rest", "lakekeeper": "s3", "polaris": "s3"}
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
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ServerLab]]:
    """Give the lab of a kind of catalog, prepared once for all ways to it."""
    opened: dict[str, tuple[Catalogs, ServerLab]] = {}

    def lab(kind: str) -> ServerLab:
        name = KINDS[kind]
        if name not in opened:
            folder = tmp_path_factory.mktemp("kills")
            made = Catalogs(request, folder, f"t{uuid.uuid4().hex[:12]}")
            opened[name] = made, _make(request, folder, made.make(kind))
        made, found = opened[name]
        found.through = made.make(kind) if name == "s3" else found.through
        return found

    yield lab
    for name, (made, _) in opened.items():
        assert name != "s3" or made.door.refused() == []
        made.close()


def _make(request: pytest.FixtureRequest, folder: Any, properties: dict[str, str]) -> ServerLab:
    if properties["type"] == "sql":
        lab = ServerLab(folder, "clone", properties, Database(properties["uri"]))
    else:
        rest = request.getfixturevalue("rest")
        place = rest.folder / properties["uri"].rpartition("/")[2]
        direct = {"name": "lake", "type": "rest", "uri": f"{rest.uri}/{place.name}"}
        is_on_s3 = (place / "filer").exists()
        direct |= request.getfixturevalue("seaweed").s3() if is_on_s3 else {}
        database = Database(f"sqlite:///{place / 'rest.db'}?timeout=30")
        lab = ServerLab(folder, "branch" if is_on_s3 else "clone", direct, database)
    lab.make()
    manifest = lab.manifest("a.yaml", SCOPE[0], "2024-01-05")
    lab.run = lab.must("plan", manifest, *BY).data["run_id"]
    lab.must("approve", lab.run, *BY)
    lab.save("approved")
    for verb in ("stage", "validate", "accept"):
        lab.must(verb, lab.run, *BY)
    lab.save("accepted")
    lab.must("publish", lab.run, *BY)
    lab.save("published")
    return lab


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, prepared: Callable[[str], ServerLab]) -> ServerLab:
    return prepared(request.param)


@pytest.mark.req("T3", "U10", "U12", "X9", "X12")
@pytest.mark.parametrize(("lab", "verb", "point", "nth", "goes_on"), CASES, indirect=["lab"])
def test_what_was_killed_comes_to_the_same_result(
    lab: ServerLab, verb: str, point: str, nth: int, goes_on: str
) -> None:
    lab.restore(_VERBS[verb].state)
    command = lab.typed(_VERBS[verb].command)
    state, versions = _ENDS[verb]
    lab.killed(*command, hook=Kill(point, nth))
    if goes_on == "recover":
        lab.must("recover", "--all", *BY)
    found = facts(lab.oracle, TARGET, lab.run)
    if found["runs"] != {"RUN": state}:
        _type(lab, command)
        found = facts(lab.oracle, TARGET, lab.run)
    assert (found["runs"], found["versions"]) == ({"RUN": state}, versions)
    assert (found["tokens are used once"], found["reserved"]) == (True, False)
    assert len(found["ledger"]) == len(SCOPE)
    assert len(found["publications"]) == len(versions) - 1
    rows = lab.oracle.rows(TARGET)
    assert len(rows) == len(set(rows)) == 24
    new = SCOPE if verb == "publish" else ()
    assert all(v == k * (10 if day in new else 100) for day, k, v in rows)


def _type(lab: ServerLab, command: tuple[str, ...]) -> None:
    """Give the command again, or hear that nothing is left to do but what recovery does."""
    ended = lab.do(*command)
    if ended.code != 0:
        assert "is at version 0 already" in ended.error["problem"], ended
        lab.must("recover", "--all", *BY)


def _on_each(*cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Give all cases on two catalogs; on that of one S3 store one case by each way to it."""
    all_on = [(kind, *case) for kind in ("postgres", "rest") for case in cases]
    return [*all_on, ("lakekeeper", *cases[0]), ("polaris", *cases[1])]


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
    assert len(rows) == len(set(rows)) == 24
    assert all(v == k * (10 if day in SCOPE else 100) for day, k, v in rows)
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
        found = facts(lab.oracle, TARGET, lab.run)
        assert (found["runs"], found["versions"]) == ({"RUN": "published"}, _ENDS[verb][1])
        assert len(found["publications"]) == 1
    assert lab.must("recover", "--all", *BY).data["actions"] == []


def _what_is_read(lab: ServerLab) -> tuple[Any, ...]:
    """Give the control tables, the rows, and the shadow; of one on a branch its newest epoch."""
    control = [row for row in lab.oracle.catalog() if len(row) > 4 and row[1] == CONTROL]
    shadow = lab.oracle.staged(TARGET, lab.run)
    return control, lab.oracle.rows(TARGET), shadow
