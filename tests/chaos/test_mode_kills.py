"""SIGKILL where a publish mode has effects of its own, staging and publishing: one result.

On a branch of the target it is killed at the commits of branch and target.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import In

from tests.chaos.faults import Kill, Record
from tests.chaos.lab import BY, DAYS, TARGET, Lab
from tests.chaos.oracle import MARK
from tests.chaos.scenarios import moments

#: What stands under `target:`, and the kind of product.
KINDS = {
    "row predicate": ("  row_predicate: {k: [1, 2]}\n", "follow"),
    "columns": ("  columns: [v]\n", "follow"),
    "append": ("  publish_mode: append\n", "follow"),
    "merge": ("  publish_mode: merge\n  merge: {version: v}\n", "follow"),
    "versioned": ("  publish_mode: versioned\n", "pinned"),
}
#: The values of a restated day: the target holds 100 times the source's, the job gives 10 times.
EXPECTED = {
    "row predicate": [10, 20, 300],
    "columns": [10, 20, 30],
    "append": [10, 20, 30],
    # Older versions than those that are there.
    "merge": [100, 200, 300],
    "versioned": [10, 20, 30],
}


#: Points whose effects differ by mode; `test_kills.py` kills at all others.
OWN = {
    "stage": ("Staging.stage", "Spark.overwrite", "Runs.record_chunk"),
    "publish": ("Publisher.", "Shadows.", "Pins.", "Versions.move", "VersionTables."),
}


#: Versions are clones, on a branch they are refused.
RUNS = [
    (kind, isolation)
    for kind in KINDS
    for isolation in ("clone", "branch")
    if (kind, isolation) != ("versioned", "branch")
]


@pytest.fixture(scope="module", params=RUNS, ids=" ".join)
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lab, str]:
    """A lab with a run of that mode, saved as `approved` and `accepted`; and the mode."""
    kind, isolation = request.param
    more, publication = KINDS[kind]
    lab = Lab(tmp_path_factory.mktemp("mode"), isolation)
    lab.make()
    file = lab.manifest("a.yaml", DAYS[1], DAYS[3])
    _edit(lab.folder / file, "target:\n", "target:\n" + more)
    contract = lab.folder / "catalog" / "contracts" / f"{TARGET}.yaml"
    more = f"versions_table: {TARGET}_all\n" if kind == "versioned" else ""
    _edit(contract, "owner: ana\n", f"owner: ana\npublication: {publication}\n{more}")
    if kind == "row predicate":
        # The lab's job gives the rows of all keys: a warm-up explains those that are left out.
        _edit(lab.folder / file, "s: {table: bronze.s,", "s: {table: bronze.s, warm_up_days: 1,")
    if kind == "append":
        with lab.opened() as catalog:
            days = [date.fromisoformat(day) for day in DAYS[1:3]]
            catalog.load_table(TARGET).delete(In("d", days))
    lab.run = lab.must("plan", file, *BY).data["run_id"]
    lab.must("approve", lab.run, *BY)
    lab.save("approved")
    for verb in ("stage", "validate", "accept"):
        lab.must(verb, lab.run, *BY)
    lab.save("accepted")
    return lab, kind


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def _facts(lab: Lab) -> dict[str, Any]:
    """What must be the same, whatever was killed on the way."""
    oracle = lab.oracle
    versions = oracle.log("accepted_output_version", "output_version", "action", "table_name")
    ledger = oracle.log(
        "backfill_chunk_run", "chunk_id", "carried_rows", "stray_rows", "inserted_rows",
        "updated_rows", "deleted_rows", "ignored_rows", "checksum",
    )  # fmt: skip
    newest = {row["chunk_id"]: row for row in ledger}
    names = sorted(name for name in oracle.names() if name.startswith(TARGET))
    return {
        "tables": {name: oracle.rows(name) for name in names},
        "labels": _labels(lab) if f"{TARGET}_all" in names else [],
        "operation": _operation(lab),
        "pointer": versions[-1] if versions else None,
        "state": oracle.log("run_event", "run_id", "to_state")[-1]["to_state"],
        "ledger": [newest[name] for name in sorted(newest)],
        "commits": sum(f"{MARK}publication" in found for found in oracle.summaries(TARGET)),
    }


def _labels(lab: Lab) -> list[str]:
    """Which version made each row of the table of versions, and what became of it."""
    columns = ("d", "k", "output_version", "output_status")
    found = lab.oracle.table(f"{TARGET}_all").scan(selected_fields=columns).to_arrow()
    return sorted(map(str, found.to_pylist()))


def _operation(lab: Lab) -> str:
    snapshot = lab.oracle.table(TARGET).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return str(snapshot.summary.operation.value)


def _is_own(passed: list[str], point: str, verb: str, isolation: str) -> bool:
    """Tell whether the point, or the method that it lies in, is one of the mode's own."""
    if isolation == "branch":
        return point.startswith(("Spark.", "Publisher."))
    place = passed.index(point)
    around = next((one for one in passed[place:] if one.endswith(":after")), point)
    return point.startswith(OWN[verb]) or around.startswith(OWN[verb])


def _killed_everywhere(lab: Lab, state: str, verb: str, tmp_path: Path) -> None:
    points, typed = tmp_path / verb, (verb, lab.run, *BY)
    lab.restore(state)
    assert lab.do(*typed, hook=Record(points)).code == 0
    expected = _facts(lab)
    passed = points.read_text(encoding="utf-8").split()
    cases = [
        point
        for point, nth in moments(passed)
        if nth == 1 and _is_own(passed, point, verb, lab.isolation)
    ]
    assert cases
    for place, point in enumerate(cases):
        lab.restore(state)
        lab.killed(*typed, hook=Kill(point, 1))
        if place % 2:
            lab.must("recover", lab.run, *BY)
        if _facts(lab)["state"] != expected["state"]:
            lab.must(*typed)
        lab.must("recover", "--all", *BY)
        assert _facts(lab) == expected, point


@pytest.mark.req("T3", "P9", "U1b", "U3", "U4", "U5", "U10", "X12")
def test_what_was_killed_in_any_mode_comes_to_the_same_result(
    prepared: tuple[Lab, str], tmp_path: Path
) -> None:
    lab, kind = prepared
    _killed_everywhere(lab, "approved", "stage", tmp_path)
    _killed_everywhere(lab, "accepted", "publish", tmp_path)
    found = _facts(lab)
    name = f"{TARGET}_v1" if kind == "versioned" else TARGET
    assert (found["pointer"]["table_name"], found["pointer"]["action"]) == (name, "publish")
    assert found["commits"] == (0 if kind == "versioned" else 1)
    assert (found["operation"] == "append") is (kind in ("append", "versioned"))
    assert [v for day, _, v in found["tables"][name] if day == DAYS[1]] == EXPECTED[kind]
    if kind == "versioned":
        # Old and new rows of the restated days, and all others once.
        assert len(found["tables"][f"{TARGET}_all"]) == len(found["tables"][name]) + 6
        accepted = [one for one in found["labels"] if "'accepted'" in one]
        assert len(accepted) == len(found["tables"][name])
