"""Rows that are deleted live, or named in a tombstone table, on a real catalog without Spark."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
import yaml

from tests.chaos.lab import BY, DAYS, SCOPE, TARGET, Lab, _arrow

GONE = "privacy.gone"
DAY = SCOPE[1]


@pytest.fixture(params=["clone block", "clone reapply", "branch reapply"])
def declared(request: pytest.FixtureRequest) -> list[str]:
    """Where the run writes, and what the contract says: a branch blocks as a clone does."""
    return str(request.param).split()


@pytest.fixture
def isolation(declared: list[str]) -> str:
    return declared[0]


@pytest.fixture
def policy(declared: list[str]) -> str:
    return declared[1]


@pytest.fixture
def accepted(lab: Lab, policy: str) -> tuple[Lab, str]:
    """A run over three days, accepted; the contract says what is done about deletions."""
    lab.restore("new")
    file = lab.folder / "catalog" / "contracts" / f"{TARGET}.yaml"
    contract = yaml.safe_load(file.read_text())
    contract["deletions"] = policy
    contract["tombstones"] = [{"table": GONE, "columns": {"d": "d", "k": "k"}}]
    file.write_text(yaml.safe_dump(contract))
    _with_catalog(lab, _make_tombstones)
    run = str(lab.must("plan", lab.manifest("d.yaml", SCOPE[0], DAYS[4]), *BY).data["run_id"])
    for command in ("approve", "stage", "validate", "accept"):
        lab.must(command, run, *BY)
    return lab, run


def _make_tombstones(catalog: Any) -> None:
    catalog.create_namespace("privacy")
    schema = catalog.load_table(TARGET).schema()
    catalog.create_table(GONE, schema).append(_arrow([(date.fromisoformat(SCOPE[0]), 3, 0)]))


def _with_catalog(lab: Lab, act: Any) -> None:
    with lab.opened() as catalog:
        act(catalog)


def _delete(lab: Lab, day: str, key: int) -> None:
    _with_catalog(lab, lambda c: c.load_table(TARGET).delete(f"d = '{day}' and k = {key}"))


def _name(lab: Lab, day: str, key: int) -> None:
    row = _arrow([(date.fromisoformat(day), key, 0)])
    _with_catalog(lab, lambda c: c.load_table(GONE).append(row))


def _of(lab: Lab, day: str) -> list[tuple[int, int]]:
    return [(k, v) for d, k, v in lab.oracle.rows(TARGET) if d == day]


@pytest.mark.req("E3")
def test_a_row_that_was_deleted_live_is_not_brought_back_by_publish(
    accepted: tuple[Lab, str], policy: str
) -> None:
    lab, run = accepted
    _delete(lab, DAY, 2)
    ended = lab.do("publish", run, *BY)
    if policy == "block":
        assert (ended.code, ended.error["code"]) == (4, "target-changed")
        assert ended.error["data"]["deletions"]["rows"] == 1
        assert _of(lab, DAY) == [(1, 100), (3, 300)]
    else:
        assert ended.code == 0, ended
        assert _of(lab, DAY) == [(1, 10), (3, 30)]
        assert _of(lab, SCOPE[2]) == [(1, 10), (2, 20), (3, 30)]
    # Tombstoned when it was planned: it was never staged.
    assert 3 not in dict(_of(lab, SCOPE[0])) or policy == "block"


@pytest.mark.req("E3")
def test_a_row_that_was_deleted_live_is_not_brought_back_by_rollback(
    accepted: tuple[Lab, str], policy: str
) -> None:
    lab, run = accepted
    lab.must("publish", run, *BY)
    _delete(lab, DAY, 2)
    ended = lab.do("rollback", TARGET, "--to", "0", "--reason", "wrong", *BY)
    if policy == "block":
        assert (ended.code, ended.error["code"]) == (4, "target-changed")
        assert "cannot be rolled back: 1 rows of" in ended.error["problem"]
        assert _of(lab, DAY) == [(1, 10), (3, 30)]
    else:
        assert ended.code == 0, ended
        assert _of(lab, DAY) == [(1, 100), (3, 300)]
        assert _of(lab, SCOPE[0]) == [(1, 100), (2, 200)]
        assert _of(lab, SCOPE[2]) == [(1, 100), (2, 200), (3, 300)]


@pytest.mark.req("E3")
def test_a_row_that_is_named_after_staging_is_not_published(
    accepted: tuple[Lab, str], policy: str
) -> None:
    lab, run = accepted
    _name(lab, DAY, 2)
    ended = lab.do("publish", run, *BY)
    if policy == "block":
        assert (ended.code, ended.error["code"]) == (4, "target-changed")
        assert ended.error["data"]["tombstones"] == {"rows": 1, "partitions": [DAY]}
    else:
        assert ended.code == 0, ended
        assert _of(lab, DAY) == [(1, 10), (3, 30)]
        done = ended.data["run_id"]
        chunks = lab.must("chunks", done).data["chunks"]
        assert sum(chunk["left_out_rows"] or 0 for chunk in chunks) == 1
