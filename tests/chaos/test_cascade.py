"""Six products restated by one pointer commit: readers see all of it, or nothing.

What each reader sees holds only within one version: the sums of a product are those of its inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cascade import (
    PRODUCTS,
    ROOT,
    SCOPE,
    TIMES,
    CascadeLab,
    expected,
    read_all,
)
from tests.chaos.crowd import Beside
from tests.chaos.faults import Fail, Kill, Record
from tests.chaos.lab import BY

OLD, NEW = expected(100), expected(10)
COMPUTED = "Staging.stage:before"
MOVED = "ControlLog.run_event:committed"
#: Chunks of each product.
CHUNKS = len(SCOPE)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> CascadeLab:
    """Saved as `new`, `approved` and `accepted`; with the points that `run` passes."""
    made = CascadeLab(tmp_path_factory.mktemp("cascade"))
    made.make()
    made.save("new")
    cascade = made.run = made.plan()
    made.must("approve", cascade, *BY)
    made.save("approved")
    points = tmp_path_factory.mktemp("points") / "run"
    assert made.do("run", cascade, *BY, hook=Record(points)).code == 0
    made.points = points.read_text(encoding="utf-8").split()
    made.must("accept", cascade, *BY)
    made.save("accepted")
    return made


def states(lab: CascadeLab) -> dict[str, Any]:
    return {one["product"]: one["state"] for one in lab.must("status", lab.run).data["members"]}


def recorded_chunks(lab: CascadeLab) -> dict[str, list[str]]:
    """The partitions of each row of the chunk ledger, by product."""
    runs = {run: product for product, run in lab.run_of(lab.run).items()}
    found: dict[str, list[str]] = {product: [] for product in PRODUCTS}
    for row in lab.oracle.log("backfill_chunk_run", "run_id", "partitions"):
        found[runs[row["run_id"]]] += row["partitions"]
    return found


@pytest.mark.req("P4", "U2")
def test_the_products_come_in_order_and_only_what_changes_is_computed(lab: CascadeLab) -> None:
    lab.restore("accepted")
    assert lab.points.count(COMPUTED) == CHUNKS * len(PRODUCTS)
    assert recorded_chunks(lab) == {product: list(SCOPE) for product in PRODUCTS}
    order = [one["product"] for one in lab.must("status", lab.run).data["members"]]
    assert order == list(PRODUCTS)


@pytest.mark.timeout(900)
@pytest.mark.req("P4", "U2")
def test_readers_of_six_products_never_see_a_mix(lab: CascadeLab, tmp_path: Path) -> None:
    lab.restore("accepted")
    with Beside(lab.folder, tmp_path / "seen", read_all) as reader:
        lab.must("publish", lab.run, *BY)
        lab.must("rollback", lab.run, "--reason", "again", *BY)
        lab.must("publish", lab.run, *BY)
        lab.must("publish", lab.run, *BY)
    assert reader.said[0] == OLD
    assert reader.said == [(OLD, NEW)[number % 2] for number in range(len(reader.said))]
    assert lab.seen() == NEW
    assert len(lab.oracle.log("accepted_output_version", "data_product")) == len(PRODUCTS) * 4
    assert lab.must("recover", "--all", *BY).data["actions"] == []


@pytest.mark.timeout(900)
@pytest.mark.req("P4", "U2")
def test_a_failure_in_the_fourth_product_leaves_readers_and_run_goes_on_there(
    lab: CascadeLab, tmp_path: Path
) -> None:
    lab.restore("approved")
    failed = lab.do("run", lab.run, *BY, hook=Fail(COMPUTED, 3 * CHUNKS + 2))
    assert failed.code == 6
    assert lab.seen() == OLD
    assert list(states(lab).values()) == ["validated"] * 3 + ["failed"] + ["approved"] * 2
    assert lab.do("publish", lab.run, *BY).code == 3
    points = tmp_path / "points"
    assert lab.do("run", lab.run, *BY, hook=Record(points)).code == 0
    assert points.read_text(encoding="utf-8").split().count(COMPUTED) == 3 * CHUNKS - 1
    assert lab.seen() == OLD
    lab.must("accept", lab.run, *BY)
    lab.must("publish", lab.run, *BY)
    assert lab.seen() == NEW
    require_that_equal_days_are_kept(lab, tmp_path)


def require_that_equal_days_are_kept(lab: CascadeLab, folder: Path) -> None:
    """Restate again after late rows of one day: what reads the other days is not computed."""
    lab.add_source_row(SCOPE[1], 4)
    kept = [SCOPE[0], SCOPE[2]]
    again = lab.plan()
    lab.must("approve", again, *BY)
    points = folder / "again"
    assert lab.do("run", again, *BY, hook=Record(points)).code == 0
    computed = points.read_text(encoding="utf-8").split().count(COMPUTED)
    assert computed == CHUNKS + len(PRODUCTS) - 1
    found = {one["product"]: one for one in lab.must("status", again).data["members"]}
    assert {name: one["kept"] for name, one in found.items()} == {
        ROOT: [], **{name: kept for name in PRODUCTS if name != ROOT}
    }  # fmt: skip
    assert (
        "not computed: input partitions equal to live; skipped" in found["silver.e"]["because"][0]
    )
    lab.must("accept", again, *BY)
    lab.must("publish", again, *BY)
    late = {name: {SCOPE[1]: NEW[name][SCOPE[1]] + 10 * 4 * TIMES[name]} for name in PRODUCTS}
    assert lab.seen() == {name: NEW[name] | late[name] for name in PRODUCTS}
    lab.must("verify", found["silver.e"]["run_id"])


@pytest.mark.req("P4", "T3")
@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85])
def test_a_kill_between_two_steps_changes_nothing_but_the_time(
    lab: CascadeLab, share: float
) -> None:
    lab.restore("approved")
    moves = lab.points.count(MOVED)
    lab.killed("run", lab.run, *BY, hook=Kill(MOVED, 1 + int(share * moves)))
    assert lab.seen() == OLD
    if share > 0.5:
        lab.must("recover", "--all", *BY)
    lab.must("run", lab.run, *BY)
    assert set(states(lab).values()) == {"validated"}
    lab.must("accept", lab.run, *BY)
    lab.must("publish", lab.run, *BY)
    assert lab.seen() == NEW


@pytest.mark.req("P4")
def test_a_kill_while_planning_leaves_no_half_cascade(lab: CascadeLab) -> None:
    lab.restore("new")
    plan = ("plan", "jobs/r.yaml", "--cascade", *BY)
    lab.killed(*plan, hook=Kill("Runs.register:after", 3))
    assert lab.do("status", lab.run).code == 2
    assert lab.must(*plan).data["cascade_id"] == lab.run
    assert set(states(lab).values()) == {"planned"}
    assert lab.must(*plan).data["cascade_id"] == lab.run


@pytest.mark.req("P4")
def test_the_graph_is_frozen_while_a_cascade_is_open(lab: CascadeLab) -> None:
    lab.restore("approved")
    path = "catalog/contracts/silver.b.yaml"
    text = (lab.folder / path).read_text(encoding="utf-8")
    lab.write(path, f"{text}critical: true\n")
    refused = lab.do("plan", "jobs/r.yaml", "--cascade", *BY)
    assert refused.code == 4
    assert f"{lab.run} is open" in refused.error["problem"]
    assert "the contracts or the code of the products have changed" in refused.error["problem"]
    lab.must("cancel", lab.run, *BY, "--reason", "new code")
    other = lab.plan()
    assert other != lab.run
    order = [one["product"] for one in lab.must("status", other).data["members"]]
    assert order[1:3] == ["silver.b", "silver.a"]
    assert lab.must("status", lab.run).data["state"] == "cancelled"


@pytest.mark.req("P4", "U2")
def test_no_pinned_product_of_a_cascade_is_published_alone(lab: CascadeLab) -> None:
    lab.restore("accepted")
    runs = lab.run_of(lab.run)
    for product in (ROOT, "silver.c"):
        refused = lab.do("publish", runs[product], *BY)
        assert refused.code == 3
        assert "become visible by one commit" in refused.error["problem"]
    assert lab.seen() == OLD
    assert lab.do("plan", "--revise", runs["silver.c"], *BY).code == 2


@pytest.mark.req("P4", "U2")
def test_no_pinned_product_of_a_cascade_is_rolled_back_alone(lab: CascadeLab) -> None:
    lab.restore("accepted")
    lab.must("publish", lab.run, *BY)
    for more in ((), ("--dry-run",)):
        for products in (("silver.c",), (ROOT, "silver.c")):
            refused = lab.do("rollback", *products, *more, "--reason", "alone", *BY)
            assert refused.code == 3
            assert "readers would see a mix" in refused.error["problem"]
    assert lab.seen() == NEW
    lab.must("rollback", lab.run, "--reason", "all", *BY)
    assert lab.seen() == OLD


@pytest.mark.req("P4", "U2", "T3")
def test_a_rollback_that_is_killed_is_told_and_finished(lab: CascadeLab) -> None:
    lab.restore("accepted")
    lab.must("publish", lab.run, *BY)
    back = ("rollback", lab.run, "--reason", "all", *BY)
    lab.killed(*back, hook=Kill(MOVED, 2))
    assert lab.seen() == OLD
    told = lab.must("status", lab.run).data
    assert told["state"] == "rollback cut off"
    assert told["readers_see"] == "the accepted versions as before"
    refused = lab.do(*back)
    assert refused.code == 4
    assert "recover --all" in refused.error["fix"]
    lab.must("recover", "--all", *BY)
    lab.must(*back)
    assert set(states(lab).values()) == {"rolled_back"}
