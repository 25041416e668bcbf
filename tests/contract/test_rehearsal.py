"""rehearse on a real lake: the whole path on copies, and the real tables as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.chaos.faults import Kill
from tests.chaos.lab import BY, CONTRACT, PROFILES, SOURCE, TARGET, Ended, Lab

pytestmark = [pytest.mark.req("P8"), pytest.mark.in_turn(2, of="file")]
PLACE = """\
  rehearsal:
    environment: dev
    catalog:
      name: practice
      type: sql
      uri: sqlite:///${project}/practice/catalog.db
      warehouse: file://${project}/practice/warehouse
"""
STEPS = (
    "plan", "approve", "stage", "validate", "accept", "publish", "read as a consumer", "verify",
    "rollback", "read after the rollback", "the real tables",
)  # fmt: skip
HOOKS = """\
hooks:
  - {name: pause_jobs, on: before_publish, command: ["false"]}
four_eyes: true
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.make()
    lab.save("made")
    return lab


@pytest.fixture
def lab(made: Lab) -> Lab:
    """A lake on which no run was made."""
    made.restore("made")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    """What each file of a lake holds, byte by byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def declare(lab: Lab, place: str = PLACE, contract: str = CONTRACT) -> str:
    (lab.folder / "catalog" / "profiles.yaml").write_text(PROFILES + place)
    (lab.folder / "catalog" / "contracts" / f"{TARGET}.yaml").write_text(contract)
    return lab.manifest("next.yaml", "2024-01-05", "2024-01-07")


def rehearsed(lab: Lab, manifest: str, place: str = "rehearsal", **fault: Any) -> Ended:
    return lab.do("rehearse", manifest, "--in", place, *BY, **fault)


def test_the_whole_path_is_gone_on_copies_and_the_real_lake_keeps_every_byte(lab: Lab) -> None:
    manifest = declare(lab, contract=CONTRACT + HOOKS)
    before = contents(lab.folder / "lake")
    data = rehearsed(lab, manifest).data
    assert [(step["step"], step["held"]) for step in data["steps"]] == [(s, True) for s in STEPS]
    assert data["held"]
    assert data["copies"] == [TARGET, SOURCE]
    assert contents(lab.folder / "lake") == before
    # Nothing of the real lake is in a folder of the rehearsal's, and it has a lake of its own.
    seen = {step["step"]: step["seen"] for step in data["steps"]}
    assert "2 data files in, 2 out" in seen["publish"]
    assert seen["read after the rollback"] == "the same 2 data files as before, 6 rows"
    found = {one["what"]: (one["real"], one["rehearsal"]) for one in data["differences"]}
    assert found["hooks"] == ("pause_jobs (before_publish)", "not called")
    assert found["four eyes"] == ("two people", "one person")
    assert set(found) == {"roles", "four eyes", "hooks", "live writers"}
    assert data["next_command"].endswith(f"plan {manifest}")
    assert "--profile rehearsal evidence" in data["command"]

    require_that_no_decision_counts(lab, manifest, data)


def require_that_no_decision_counts(lab: Lab, manifest: str, rehearsal: dict[str, Any]) -> None:
    """The real run is another one, and nobody has approved it; the real lake knows no rehearsal."""
    real = lab.must("plan", manifest, *BY).data
    assert real["manifest_hash"] == rehearsal["manifest_hash"]
    assert real["run_id"] != rehearsal["run_id"]
    refused = lab.do("run", real["run_id"], *BY)
    assert (refused.code, refused.error["code"]) == (3, "approval-missing")
    assert lab.do("publish", rehearsal["run_id"], *BY).code == 2


def test_a_rehearsal_is_refused_in_a_lake_that_may_be_the_real_one(lab: Lab) -> None:
    prod = PLACE.replace("  rehearsal:", "  live:").replace("dev", "prod")
    same = PLACE.replace("  rehearsal:", "  same:").replace("practice\n", "lake\n")
    manifest = declare(lab, PLACE + prod + same)
    assert rehearsed(lab, manifest, "live").error["code"] == "not-allowed"
    assert "has the name of the real one" in rehearsed(lab, manifest, "same").error["problem"]
    assert not (lab.folder / "practice").exists()
    (lab.folder / "practice" / "warehouse").mkdir(parents=True)
    theirs = practice(lab)
    theirs.create_namespace("bronze")
    location = theirs.create_table(SOURCE, lab.catalog().load_table(SOURCE).schema()).location()
    refused = rehearsed(lab, manifest)
    assert (refused.code, refused.error["code"]) == (4, "conflict")
    assert f"has a table {SOURCE} that is no copy" in refused.error["problem"]
    assert theirs.load_table(SOURCE).location() == location
    assert not theirs.namespace_exists("silver")


def test_a_rehearsal_can_be_given_again_whatever_became_of_the_last(lab: Lab) -> None:
    manifest = declare(lab)
    before = contents(lab.folder / "lake")
    for point in ("TableCopies.copy:after", "Publisher.adopt:after"):
        assert rehearsed(lab, manifest, hook=Kill(point)).code < 0, point
        assert contents(lab.folder / "lake") == before
    # A live writer moves the target, so that the last copy is not what is read now.
    with lab.opened() as catalog:
        table = catalog.load_table(TARGET)
        table.append(table.scan().to_arrow().slice(0, 1))
    ended = rehearsed(lab, manifest)
    assert ended.code == 0, ended.said
    assert ended.data["held"]
    assert lab.must("--profile", "rehearsal", "status").data["runs"] == []


def test_closed_gates_stop_a_rehearsal_as_they_would_stop_the_run(lab: Lab) -> None:
    manifest = declare(lab)
    with lab.opened() as catalog:  # three more rows a day than readers see: the tolerance is 0
        catalog.load_table(SOURCE).append(catalog.load_table(SOURCE).scan().to_arrow())
    before = contents(lab.folder / "lake")
    refused = rehearsed(lab, manifest)
    assert (refused.code, refused.error["code"]) == (3, "checks-failed")
    assert "the real tables were only read" in refused.error["state"]
    assert "lakehouse-backfill --profile rehearsal status bf-" in refused.error["fix"]
    assert contents(lab.folder / "lake") == before


def practice(lab: Lab) -> SqlCatalog:
    """The lake of the rehearsal, as anybody may open it."""
    folder = lab.folder / "practice"
    return SqlCatalog(
        "practice", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )


def test_a_pinned_product_is_rehearsed_by_its_pointer(lab: Lab) -> None:
    pinned = CONTRACT.replace("product: silver.t", "product: silver.pinned").replace(
        "table: silver.t", "table: silver.t\npublication: pinned"
    )
    declare(lab)
    contracts = lab.folder / "catalog" / "contracts"
    (contracts / "silver.pinned.yaml").write_text(pinned)
    manifest = lab.manifest("pinned.yaml", "2024-01-05", "2024-01-07")
    file = lab.folder / manifest
    text = file.read_text().replace("product: silver.t", "product: silver.pinned")
    file.write_text(text.replace("target:\n", "target:\n  publish_mode: pointer_swap\n"))
    before = contents(lab.folder / "lake")
    ended = rehearsed(lab, manifest)
    assert ended.code == 0, ended.said
    assert ended.data["held"]
    assert contents(lab.folder / "lake") == before
