"""Small lakes for all tests of this folder, each saved in every state of a run's life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from tests.chaos import damages
from tests.chaos.cases import Work
from tests.chaos.faults import Kill
from tests.chaos.lab import BY, TARGET, Lab
from tests.chaos.oracle import CONTROL

#: As many cases run at once.
LABS = 2


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> list[Lab]:
    made = [Lab(tmp_path_factory.mktemp("chaos")) for _ in range(LABS)]
    with ThreadPoolExecutor(LABS) as pool:
        list(pool.map(_prepare, made))
    return made


@pytest.fixture
def lab(labs: list[Lab]) -> Lab:
    return labs[0]


@pytest.fixture(scope="module")
def outcomes(labs: list[Lab], request: pytest.FixtureRequest) -> Iterator[dict[Any, Future[Any]]]:
    """What the module's selected cases ask for, by what they ask it of.

    It is under way on all labs at once, while the tests wait for it in turn.
    """
    free: SimpleQueue[Lab] = SimpleQueue()
    for lab in labs:
        free.put(lab)

    def on_a_lab(work: Work) -> Any:
        lab = free.get()
        try:
            return work(lab)
        finally:
            free.put(lab)

    wanted: dict[Any, Work] = {}
    for case in _selected(request):
        wanted |= case.works()
    with ThreadPoolExecutor(len(labs)) as pool:
        yield {key: pool.submit(on_a_lab, work) for key, work in wanted.items()}
        pool.shutdown(cancel_futures=True)


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
    damages.prepare(lab)
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
        for name in table.metadata.refs:
            if name.startswith("lhb-"):
                changes.remove_tag(name)
    catalog.engine.dispose()
