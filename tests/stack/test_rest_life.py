"""A run's whole life on REST catalogs that refuse, that are busy, or that lose their answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults import Stop
from tests.chaos.lab import BY, SCOPE, TARGET
from tests.chaos.test_publish_races import BEGUN, race
from tests.stack import catalog_rules
from tests.stack.catalogs import KEYS, Catalogs
from tests.stack.kill_lab import ServerLab, ServerLabs
from tests.stack.proxy import Fault, Proxy
from tests.stack.rest_lab import (
    BACK,
    RestLab,
    require_no_secret,
    require_published,
    require_rolled_back,
)
from tests.stack.servers import Rest, Seaweed

#: From which saved state runs begin that lose answers, by the seed of what each loses.
BEGINS = {1: "new", 2: "approved", 3: "approved", 4: "accepted", 5: "accepted"}


@pytest.mark.req("X12", "X9", "U10", "T8")
def test_with_keys_no_command_fails_where_answers_are_lost_and_a_zombie_changes_nothing(
    catalogs: Catalogs, rest: Rest, seaweed: Seaweed, tmp_path: Path
):
    """As Lakekeeper answers: no other UUID, and rights that end at each table.

    No request leaves the place of its key's table, as the log of the store's door shows.
    """
    lost, uri = catalog_rules.lost_answers(), catalogs.make("lakekeeper")["uri"]
    name = uri.rpartition("/")[2]
    catalogs.proxy.faults += lost
    direct = {"uri": f"{rest.uri}/{name}", **seaweed.s3()}
    lab = RestLab(tmp_path, uri, direct, rest.folder / name / "rest.db", "auto")
    lab.make()
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
    both = race(lab, [("publish", lab.run, *BY)] * 2, BEGUN)
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


@pytest.mark.req("T4", "U10", "X12")
@pytest.mark.parametrize("seed", BEGINS)
def test_with_keys_each_command_succeeds_at_once_where_answers_are_lost(
    server_labs: ServerLabs, seed: int
):
    """Iceberg's own handler makes a change once for each key."""
    lab = server_labs.of("rest")
    proxy = _restate_and_take_back(lab, seed, _losses(), **KEYS)
    assert set(lab.codes) == {0}
    keys = [key for key in proxy.keys if key is not None]
    assert len(keys) > len(set(keys))


@pytest.mark.req("T4", "U10", "X1", "X12")
@pytest.mark.parametrize("seed", BEGINS)
def test_without_keys_nothing_is_lost_or_doubled_where_answers_are(
    server_labs: ServerLabs, seed: int
):
    """As Polaris answers: 500 after a commit that happened, and 503 when it is busy."""
    faults = [*_losses(), *catalog_rules.unknown_states(), *catalog_rules.polaris()]
    proxy = _restate_and_take_back(server_labs.of("rest"), seed, faults)
    assert set(proxy.keys) == {None}


def _losses() -> list[Fault]:
    """The answers to both swaps, and to a tenth of all changes."""
    return [*catalog_rules.lost_swaps(), *catalog_rules.lost_answers()]


def _restate_and_take_back(
    lab: ServerLab, seed: int, faults: list[Fault], **announces: str
) -> Proxy:
    """Give each command until it succeeds; look past the server at rows and versions.

    `faults` begin with those of the two swaps.
    """
    lab.codes.clear()
    with Proxy(lab.through["uri"], faults, announces=announces, seed=seed) as proxy:
        lab.through = {**lab.through, "uri": proxy.uri}
        lab.restore(BEGINS[seed])
        if BEGINS[seed] == "new":
            lab.accept()
        elif BEGINS[seed] == "approved":
            lab.accept_approved()
        lab.repeat("publish", lab.run, *BY)
        require_published(lab)
        lab.repeat(*BACK)
        require_rolled_back(lab)
    assert all(fault.met for fault in faults[:2])
    return proxy
