"""A run's whole life on REST catalogs that refuse, that are busy, or that lose their answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.faults import Stop
from tests.chaos.lab import BY, SCOPE, TARGET
from tests.chaos.test_publish_races import race
from tests.stack import catalog_rules
from tests.stack.catalogs import Catalogs
from tests.stack.proxy import Fault
from tests.stack.rest_lab import (
    BACK,
    RestLab,
    require_no_secret,
    require_published,
    require_rolled_back,
)
from tests.stack.servers import Rest

Make = Callable[[str, str, list[Fault]], RestLab]


@pytest.fixture
def make(catalogs: Catalogs, rest: Rest, tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """Make the lab on a catalog of this kind; the tables are made past its proxy."""

    def lab(kind: str, isolation: str, faults: list[Fault]) -> RestLab:
        uri = catalogs.make(kind)["uri"]
        name = uri.rpartition("/")[2]
        database = rest.folder / name / "rest.db"
        catalogs.proxy.faults += faults
        direct = {"uri": f"{rest.uri}/{name}"}
        if kind == "lakekeeper":
            direct |= request.getfixturevalue("seaweed").s3()
        made = RestLab(tmp_path, uri, direct, database, isolation)
        made.make()
        return made

    return lab


@pytest.mark.req("X12", "X9", "U10", "T8")
def test_with_keys_no_command_fails_where_answers_are_lost_and_a_zombie_changes_nothing(
    make: Make, catalogs: Catalogs
):
    """As Lakekeeper answers: no other UUID, and rights that end at each table.

    No request leaves the place of its key's table, as the log of the store's door shows.
    """
    lost = catalog_rules.lost_answers()
    lab = make("lakekeeper", "auto", lost)
    lab.do("doctor")
    tried_out = catalogs.door.refused()
    plan = lab.must("plan", lab.manifest("a.yaml", SCOPE[0], "2024-01-05"), *BY).data
    lab.run = plan["run_id"]
    (price,) = [note for note in plan["notes"] if "branch" in note]
    assert "a table takes no new UUID, which fences a clone; live writers try again" in price
    lab.must("approve", lab.run, *BY)
    zombie = lab.start("stage", lab.run, *BY, hook=Stop("Spark.overwrite:committing", 2))
    zombie.wait_until_stopped()

    lab.must("stage", lab.run, "--take-over", *BY)
    for verb in ("validate", "accept"):
        lab.must(verb, lab.run, *BY)
    both = race(lab, [("publish", lab.run, *BY)] * 2, "Runs.append:before")
    assert {one.code for one in both} in ({0}, {0, 4}), both
    require_published(lab)
    assert not any("shadow" in name for name in lab.oracle.names())
    before = (lab.oracle.rows(TARGET), lab.oracle.log("run_event", "run_id", "seq"))
    zombie.go_on()
    assert zombie.end().code in (0, 4)

    assert (lab.oracle.rows(TARGET), lab.oracle.log("run_event", "run_id", "seq")) == before
    lab.must(*BACK)
    require_rolled_back(lab)
    assert lab.must("recover", "--all", *BY).data["actions"] == []
    assert sum(fault.met for fault in lost) > 0
    require_no_secret(lab)
    asked = catalogs.door.asked
    places = {who for who, _, place, _ in asked if place.startswith(f"{who}/")}
    assert any(place.endswith("/silver/t") for place in places)
    assert catalogs.door.refused() == tried_out


@pytest.mark.req("T4", "U10", "X1")
def test_without_keys_nothing_is_lost_or_doubled_where_answers_are(make: Make, catalogs: Catalogs):
    """As Polaris answers: 500 after a commit that happened, and 503 when it is busy."""
    faults = [*catalog_rules.unknown_states(), *catalog_rules.lost_answers()]
    lab = make("polaris_files", "clone", faults)
    lab.accept()
    lab.repeat("publish", lab.run, *BY)
    require_published(lab)
    lab.repeat(*BACK)
    require_rolled_back(lab)
    lab.repeat("recover", "--all", *BY)
    assert all(fault.met for fault in faults)
    assert set(catalogs.proxy.keys) == {None}
