"""Small lakes for all tests of this folder, each saved in every state of a run's life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.chaos.cases import Work
from tests.chaos.faults import Kill
from tests.chaos.lab import BY, TARGET, Lab
from tests.chaos.oracle import CONTROL
from tests.turn_plugin import mark_folder

#: As many cases run at once. `make test-all` keeps all cores busy by other suites beside this one,
#: and each lab takes some twenty commands to prepare.
LABS = 1


#: The fixture of the labs in which runs write to such shadows.
LABS_OF = {"clone": "labs", "branch": "branch_labs"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the kills and races each turn runs a sixth."""
    mark_folder(items, Path(__file__).parent, 6)


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> list[Lab]:
    return _prepared([Lab(tmp_path_factory.mktemp("chaos")) for _ in range(LABS)])


@pytest.fixture(scope="session")
def branch_labs(tmp_path_factory: pytest.TempPathFactory) -> list[Lab]:
    return _prepared([Lab(tmp_path_factory.mktemp("branches"), "branch") for _ in range(LABS)])


def _prepared(made: list[Lab]) -> list[Lab]:
    with ThreadPoolExecutor(LABS) as pool:
        list(pool.map(_prepare, made))
    return made


@pytest.fixture(scope="module", params=LABS_OF)
def labs_of_kind(request: pytest.FixtureRequest) -> list[Lab]:
    """The labs of each kind of shadow in turn."""
    found: list[Lab] = request.getfixturevalue(LABS_OF[request.param])
    return found


@pytest.fixture
def isolation() -> str:
    """Where runs write; a test may have both kinds as its parameter."""
    return "clone"


@pytest.fixture
def lab(request: pytest.FixtureRequest, isolation: str) -> Lab:
    found: Lab = request.getfixturevalue(LABS_OF[isolation])[0]
    return found


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[Any, Future[Any]]]:
    """What the module's selected cases ask for, by what they ask it of.

    It is under way on all labs at once, while the tests wait for it in turn.
    """
    wanted: dict[Any, tuple[SimpleQueue[Lab], Work]] = {}
    free: dict[str, SimpleQueue[Lab]] = {}
    for case in _selected(request):
        kind = getattr(case, "isolation", "clone")
        if kind not in free:
            free[kind] = SimpleQueue()
            for lab in request.getfixturevalue(LABS_OF[kind]):
                free[kind].put(lab)
        wanted |= {key: (free[kind], work) for key, work in case.works().items()}
    with ThreadPoolExecutor(LABS) as pool:
        yield {key: pool.submit(_on_a_lab, *each) for key, each in wanted.items()}
        pool.shutdown(cancel_futures=True)


def _on_a_lab(free: SimpleQueue[Lab], work: Work) -> Any:
    lab = free.get()
    try:
        return work(lab)
    finally:
        free.put(lab)


def _selected(request: pytest.FixtureRequest) -> list[Any]:
    items = [item for item in request.session.items if item.path == request.path]
    values = [getattr(item, "callspec", None) for item in items]
    found = [value.params.get("case") for value in values if value is not None]
    return [case for case in found if case is not None]


def _prepare(lab: Lab) -> None:
    lab.make()
    lab.manifest("a.yaml", "2024-01-02", "2024-01-05")
    lab.save("new")
    run = lab.run = lab.must("plan", "jobs/a.yaml", *BY).data["run_id"]
    lab.must("approve", run, *BY)
    lab.save("approved")
    lab.killed("stage", run, *BY, hook=Kill("ControlLog.backfill_chunk_run:committing", 2))
    lab.save("staging cut off")
    lab.restore("approved")
    lab.must("stage", run, *BY)
    lab.save("staged")
    lab.must("validate", run, *BY)
    lab.must("accept", run, *BY)
    lab.save("accepted")
    lab.killed("publish", run, *BY, hook=Kill("Publisher.swap:committed"))
    lab.save("publishing cut off")
    lab.restore("accepted")
    lab.must("publish", run, *BY)
    lab.save("published")
    lab.restore("published")
    _drop_tags(lab)
    lab.save("published without tags")
    lab.restore("published")
    _edit_pointer(lab)
    lab.save("pointer edited")
    lab.restore("published")
    back = ("rollback", "silver.t", "--to", "0", "--reason", "wrong", *BY)
    lab.killed(*back, hook=Kill("Publisher.swap:committed"))
    lab.save("rollback cut off")


def _edit_pointer(lab: Lab) -> None:
    """Do what somebody does who wants readers to get another version."""
    catalog = lab.catalog()
    table = catalog.load_table(f"{CONTROL}.accepted_output_version")
    pointer = json.loads(table.properties[f"pointer.{TARGET}"])
    pointer["accepted"]["version"] = pointer["last_version"] = 7
    with table.transaction() as change:
        change.set_properties({f"pointer.{TARGET}": json.dumps(pointer)})
    catalog.engine.dispose()


def _drop_tags(lab: Lab) -> None:
    """Do what a catalog does that keeps no tags."""
    catalog = lab.catalog()
    table = catalog.load_table(TARGET)
    with table.manage_snapshots() as changes:
        for name, ref in table.metadata.refs.items():
            if ref.snapshot_ref_type == "tag":
                changes.remove_tag(name)
    catalog.engine.dispose()
